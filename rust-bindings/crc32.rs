// SPDX-License-Identifier: GPL-2.0

//! CRC-32, by the kernel's library, and, where that has nothing better, by AVX's forms of its
//! instructions: a third fewer for a checksum alone, half for a copy with one.
//!
//! C header: `include/linux/crc32.h`.

#[cfg(CONFIG_X86_64)]
use crate::vector::Registers;
use crate::{raw, shared_bytes, vector::Vector};

#[cfg(CONFIG_X86_64)]
mod fold;

/// Bytes from which on taking the vector registers is worth it to us: the library, which takes them too, has
/// a shorter way for less.
#[cfg(CONFIG_X86_64)]
const MANY: usize = 256;

/// Bytes from which on a copy and its checksum are better made at once than one after the other.
pub(crate) const SOME: usize = 64;

/// The right to use the vector registers for so many bytes, where that is better than the library: `vector`'s, or
/// one of its own to be given back.
#[cfg(CONFIG_X86_64)]
#[inline]
fn registers(vector: &Vector, len: usize) -> Option<Option<Registers>> {
    if vector.is_held() {
        (len >= fold::LEAST).then_some(None)
    } else if len >= MANY {
        Registers::for_checksums().map(Some)
    } else {
        None
    }
}

/// The least-significant-bit-first CRC-32 of IEEE 802.3 over memory that others may change meanwhile, going on from `crc`: neither
/// the initial nor the final complement is applied.
///
/// # Safety
///
/// `data` is valid for reads of `len` bytes.
#[inline]
pub(crate) unsafe fn crc32_le_raw(vector: &Vector, crc: u32, data: *const u8, len: usize) -> u32 {
    #[cfg(CONFIG_X86_64)]
    if let Some(registers) = registers(vector, len) {
        // SAFETY: The caller promises valid memory, which is no less than `LEAST`; the registers are
        // ours, and the CPU has the instructions.
        let crc = unsafe { fold::crc32(crc, data, len) };
        drop(registers);
        let done = len & !15;
        // SAFETY: The rest of what the caller promises.
        return unsafe { rest(crc, data.add(done), len & 15) };
    }
    // SAFETY: The caller promises the same.
    unsafe { rest(crc, data, len) }
}

/// Copies, and returns the CRC-32, as [`crc32_le_raw`], of what it has written.
///
/// # Safety
///
/// `source` is valid for reads of `len` bytes, which others may change meanwhile; `to` is valid for writes
/// of as many, and nobody else uses these.
#[inline]
pub(crate) unsafe fn copy_raw(
    vector: &Vector,
    crc: u32,
    to: *mut u8,
    source: *const u8,
    len: usize,
) -> u32 {
    #[cfg(CONFIG_X86_64)]
    if let Some(registers) = registers(vector, len) {
        // SAFETY: As in `crc32_le_raw`, and nobody else uses what is written.
        let crc = unsafe { fold::crc32_copy(crc, to, source, len) };
        drop(registers);
        let done = len & !15;
        // SAFETY: The rest of what the caller promises, less than a block.
        return unsafe { copy_plain(crc, to.add(done), source.add(done), len & 15) };
    }
    // SAFETY: The caller promises the same.
    unsafe { copy_plain(crc, to, source, len) }
}

/// As [`copy_raw`], one after the other.
///
/// # Safety
///
/// As [`copy_raw`].
#[inline]
unsafe fn copy_plain(crc: u32, to: *mut u8, source: *const u8, len: usize) -> u32 {
    // SAFETY: The caller promises valid memory, which does not overlap since nobody else uses `to`; what
    // is read for the checksum is what was written.
    unsafe {
        shared_bytes::copy(to, source, len);
        rest(crc, to, len)
    }
}

/// As [`crc32_le_raw`], of what a fold leaves, or of whatever the library is better for.
///
/// # Safety
///
/// `data` is valid for reads of `len` bytes.
#[inline]
unsafe fn rest(crc: u32, data: *const u8, len: usize) -> u32 {
    if len == 0 {
        // That is often so, and the call of a library's function is not free.
        return crc;
    }
    // SAFETY: The caller promises the same. C code reads it, so that a concurrent change gives
    // an unspecified checksum and nothing worse.
    unsafe { raw::crc32_le(crc, data.cast(), len) }
}

#[kernel::prelude::kunit_tests(linux_rdma_crc32)]
mod tests {
    use super::*;
    use kernel::prelude::*;

    /// As the polynomial's definition says, a bit at a time.
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
        let sum = Vector::new().crc32_le(!0, b"123456789");
        assert_eq!(sum, !0xcbf4_3926);
        Ok(())
    }

    /// Lengths around the blocks of every way, from any start, and to any place.
    #[test]
    fn copies_and_checksums_of_every_length() -> Result {
        crate::vector::prepare();
        let mut source = KVec::from_elem(0u8, 500, GFP_KERNEL)?;
        let mut seed = 0x9e37_79b9u32;
        for byte in source.iter_mut() {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = seed.to_be_bytes()[0];
        }
        let mut copy = KVec::from_elem(0u8, 500, GFP_KERNEL)?;
        // Half of them with the registers held.
        let vector = crate::vector::Vector::new();
        for len in 0usize..420 {
            if len % 2 == 0 {
                vector.hold();
            } else {
                vector.release();
            }
            let (from, to) = (len % 19, len % 13);
            let bytes = source.get(from..from + len).ok_or(EINVAL)?;
            let expected = by_bits(len as u32, bytes);
            assert_eq!(vector.crc32_le(len as u32, bytes), expected);
            copy.fill(0x5a);
            let place = copy.get_mut(to..to + len).ok_or(EINVAL)?;
            // SAFETY: Both are slices of that length.
            let crc =
                unsafe { copy_raw(&vector, len as u32, place.as_mut_ptr(), bytes.as_ptr(), len) };
            assert_eq!(crc, expected);
            let (before, rest) = copy.split_at(to);
            let (place, behind) = rest.split_at(len);
            assert_eq!(place, bytes);
            assert!(before.iter().all(|byte| *byte == 0x5a));
            assert!(behind.iter().all(|byte| *byte == 0x5a));
        }
        Ok(())
    }
}
