// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA Extended Transport Header (IBA 9.3.3).

header! {
    /// The RETH: the remote memory of an RDMA READ or WRITE.
    pub struct Reth {
        /// Virtual address in the remote region.
        va: u64,
        /// Key of the remote region.
        rkey: u32,
        /// DMA length: bytes of the whole message, at most 2^31.
        len: u32,
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
