// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Datagram Extended Transport Header (IBA 9.3.2).

use super::QPN_MASK;

/// The DETH: the sender of a datagram, and its authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key, which must equal that of the receiving queue pair.
    pub qkey: u32,
    /// Sending queue pair number: 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; Deth::LEN]) -> Deth {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *b;
        Deth {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            src_qpn: u32::from_be_bytes([0, q0, q1, q2]),
        }
    }

    /// Serializes the header.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Deth::LEN] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = (self.src_qpn & QPN_MASK).to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
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
