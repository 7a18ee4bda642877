// SPDX-License-Identifier: GPL-2.0

//! CRC-32.
//!
//! C header: `include/linux/crc32.h`.

use crate::raw;

/// Returns the least-significant-bit-first CRC-32 of IEEE 802.3 over `bytes`, continued from `crc`.
/// Applies neither the initial nor the final complement.
#[inline]
pub fn crc32_le(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: The slice is valid for reads of its length.
    unsafe { of_shared(crc, bytes.as_ptr(), bytes.len()) }
}

/// Returns the CRC-32, as [`crc32_le`], of memory that may change concurrently: a change leads to
/// an unspecified sum and nothing worse.
///
/// # Safety
///
/// `data` is valid for reads of `len` bytes.
#[inline]
pub(crate) unsafe fn of_shared(crc: u32, data: *const u8, len: usize) -> u32 {
    // SAFETY: The caller guarantees valid memory.
    unsafe { raw::crc32_le(crc, data.cast(), len) }
}

#[kernel::prelude::kunit_tests(linux_rdma_crc32)]
mod tests {
    use super::*;
    use kernel::prelude::*;

    /// Computes the CRC bit by bit, following the definition of the polynomial.
    fn by_bits(mut crc: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                let carry = if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
                crc = (crc >> 1) ^ carry;
            }
        }
        crc
    }

    #[test]
    fn checksum_is_crc32() -> Result {
        // The check value of CRC-32.
        let sum = crc32_le(!0, b"123456789");
        assert_eq!(sum, !0xcbf4_3926);
        Ok(())
    }

    /// Tests lengths around the block sizes of every code path, with varying alignment.
    #[test]
    fn checksums_of_every_length() -> Result {
        let mut source = KVec::from_elem(0u8, 500, GFP_KERNEL)?;
        let mut seed = 0x9e37_79b9u32;
        for byte in source.iter_mut() {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = seed.to_be_bytes()[0];
        }
        for len in 0usize..420 {
            let from = len % 19;
            let bytes = source.get(from..from + len).ok_or(EINVAL)?;
            let expected = by_bits(len as u32, bytes);
            assert_eq!(crc32_le(len as u32, bytes), expected);
        }
        Ok(())
    }
}
