// SPDX-License-Identifier: GPL-2.0

//! CRC-32. If the kernel's library has nothing better, AVX forms of its instructions are used. They
//! take a third fewer instructions.
//!
//! C header: `include/linux/crc32.h`.

#[cfg(CONFIG_X86)]
use crate::vector::CHECKSUMS;
use crate::{raw, vector::Vector};

#[cfg(CONFIG_X86)]
mod fold;

/// Minimum length for which taking the vector registers pays off. For shorter data the library,
/// which takes them too, has a shorter code path.
#[cfg(CONFIG_X86)]
const MIN_VECTOR: usize = 256;

/// Returns the least-significant-bit-first CRC-32 of IEEE 802.3 over memory that may change
/// concurrently, continued from `crc`. Applies neither the initial nor the final complement.
///
/// # Safety
///
/// `data` is valid for reads of `len` bytes.
#[inline]
#[cfg_attr(not(CONFIG_X86), expect(unused_variables, unused_mut))]
pub(crate) unsafe fn crc32_le(vector: &Vector, crc: u32, data: *const u8, len: usize) -> u32 {
    let (mut crc, mut done) = (crc, 0);
    // SAFETY: The caller guarantees valid memory. If `vector` or `own` holds the registers, the
    // data is at least `MIN_LEN` bytes, and the CPU has AVX and PCLMULQDQ. The fold leaves less
    // than 16 bytes. A concurrent change leads to an unspecified sum and nothing worse.
    unsafe {
        #[cfg(CONFIG_X86)]
        {
            let own = Vector::default();
            let has_registers = if vector.is_held() {
                len >= fold::MIN_LEN
            } else {
                len >= MIN_VECTOR && own.take(CHECKSUMS)
            };
            if has_registers {
                crc = fold::crc32(crc, data, len);
                done = len & !15;
            }
        }
        // Nothing is often left, and calling a library function is not free.
        match len.wrapping_sub(done) {
            0 => crc,
            left => raw::crc32_le(crc, data.add(done).cast(), left),
        }
    }
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
        let sum = Vector::default().crc32_le(!0, b"123456789");
        assert_eq!(sum, !0xcbf4_3926);
        Ok(())
    }

    /// Tests lengths around the block sizes of every code path, with varying alignment.
    #[test]
    fn checksums_of_every_length() -> Result {
        crate::vector::prepare();
        let mut source = KVec::from_elem(0u8, 500, GFP_KERNEL)?;
        let mut seed = 0x9e37_79b9u32;
        for byte in source.iter_mut() {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = seed.to_be_bytes()[0];
        }
        // Even lengths are checked with the registers held.
        let vector = crate::vector::Vector::default();
        for len in 0usize..420 {
            if len % 2 == 0 {
                vector.hold();
            } else {
                vector.release();
            }
            let from = len % 19;
            let bytes = source.get(from..from + len).ok_or(EINVAL)?;
            let expected = by_bits(len as u32, bytes);
            assert_eq!(vector.crc32_le(len as u32, bytes), expected);
        }
        Ok(())
    }
}
