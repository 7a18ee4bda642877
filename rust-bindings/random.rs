// SPDX-License-Identifier: GPL-2.0

//! Cryptographically secure random numbers.
//!
//! C header: `include/linux/random.h`.

use crate::raw;

/// Fills a buffer with random bytes. Any context.
#[inline]
pub fn fill(buffer: &mut [u8]) {
    // SAFETY: The slice is valid for writes of its length.
    unsafe { raw::get_random_bytes(buffer.as_mut_ptr().cast(), buffer.len()) }
}

/// Returns a random `u32`. Any context.
#[inline]
pub fn u32() -> u32 {
    raw::safe::get_random_u32()
}
