// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Datagram Extended Transport Header (IBA 9.3.2).

use super::QPN_MASK;

header! {
    /// The DETH: the sender of a datagram, and its authorization.
    pub struct Deth {
        /// Q_Key, which must equal that of the receiving queue pair.
        qkey: u32,
        /// Sending queue pair number: 24 bits.
        src_qpn: u32 & QPN_MASK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
        let b = [0x80, 1, 0, 0, 0xff, 0, 0, 1];
        let deth = Deth::from_bytes(&b);
        assert_eq!(
            deth,
            Deth {
                qkey: 0x8001_0000,
                src_qpn: 1
            }
        );
        assert_eq!(deth.to_bytes(), [0x80, 1, 0, 0, 0, 0, 0, 1]);
    }
}
