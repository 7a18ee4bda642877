// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! XRC Extended Transport Header (IBA A14).

use super::QPN_MASK;

/// The XRCETH, after the BTH of every XRC request: names the shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Shared receive queue number of the receiver: 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; XrcEth::LEN]) -> XrcEth {
        let [_, s0, s1, s2] = *b;
        XrcEth {
            srqn: u32::from_be_bytes([0, s0, s1, s2]),
        }
    }

    /// Serializes the header. A number wider than 24 bits loses its upper bits.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; XrcEth::LEN] {
        (self.srqn & QPN_MASK).to_be_bytes()
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
