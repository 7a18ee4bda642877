// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! XRC Extended Transport Header (IBA A14).

use super::QPN_MASK;

header! {
    /// The XRCETH, after the BTH of every XRC request: names the shared receive queue.
    pub struct XrcEth {
        /// Shared receive queue number of the receiver: 24 bits.
        srqn: u32 & QPN_MASK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
        // the reserved byte.
        let eth = XrcEth::from_bytes(&[0xff, 1, 2, 3]);
        assert_eq!(eth, XrcEth { srqn: 0x01_0203 });
        assert_eq!(eth.to_bytes(), [0, 1, 2, 3]);
        assert_eq!(XrcEth { srqn: u32::MAX }.to_bytes(), [0, 0xff, 0xff, 0xff]);
    }
}
