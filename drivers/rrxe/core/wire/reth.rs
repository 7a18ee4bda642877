// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA Extended Transport Header (IBA 9.3.3).

/// The RETH: the remote memory of an RDMA READ or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address in the remote region.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: u32,
    /// DMA length: bytes of the whole message, at most 2^31.
    pub len: u32,
}

impl Reth {
    /// Length of the header in bytes.
    pub const LEN: usize = 16;

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; Reth::LEN]) -> Reth {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *b;
        Reth {
            va: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// Serializes the header.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Reth::LEN] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.to_be_bytes();
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
        let b = [
            0, 0, 0x55, 0xd4, 0xc0, 0x72, 0x60, 0, 0, 0, 0x47, 0xb3, 0, 0, 0, 5,
        ];
        let reth = Reth::from_bytes(&b);
        assert_eq!(
            reth,
            Reth {
                va: 0x55d4_c072_6000,
                rkey: 0x47b3,
                len: 5
            }
        );
        assert_eq!(reth.to_bytes(), b);
    }
}
