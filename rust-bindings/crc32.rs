// SPDX-License-Identifier: GPL-2.0

//! CRC-32 by the kernel's library.
//!
//! C header: `include/linux/crc32.h`.

use crate::raw;

/// The least-significant-bit-first CRC-32 of IEEE 802.3 over `bytes`, going on from `crc`: neither
/// the initial nor the final complement is applied.
#[inline]
pub fn crc32_le(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: The slice is valid for reads of its length.
    unsafe { crc32_le_raw(crc, bytes.as_ptr(), bytes.len()) }
}

/// As [`crc32_le`], over memory that others may change meanwhile.
///
/// # Safety
///
/// `data` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn crc32_le_raw(crc: u32, data: *const u8, len: usize) -> u32 {
    // SAFETY: The caller promises valid memory. C code reads it, so that a concurrent change gives
    // an unspecified checksum and nothing worse.
    unsafe { raw::crc32_le(crc, data.cast(), len) }
}
