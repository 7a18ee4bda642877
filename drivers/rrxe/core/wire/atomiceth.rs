// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Atomic Extended Transport Header (IBA 9.3.4).

/// The AtomicETH: target and operands of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address in the remote region, a multiple of 8.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: u32,
    /// CmpSwap: the new value. FetchAdd: the addend.
    pub swap_add: u64,
    /// CmpSwap: the value to compare with. FetchAdd: unused.
    pub compare: u64,
}

impl AtomicEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 28;

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; AtomicEth::LEN]) -> AtomicEth {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3, c4, c5, c6, c7] =
            *b;
        AtomicEth {
            va: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            swap_add: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            compare: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        }
    }

    /// Serializes the header.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; AtomicEth::LEN] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.to_be_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.swap_add.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.compare.to_be_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3, s4, s5, s6, s7, c0, c1,
            c2, c3, c4, c5, c6, c7,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
        let eth = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!(eth.to_bytes(), bytes);
        assert_eq!(AtomicEth::from_bytes(&bytes), eth);
    }
}
