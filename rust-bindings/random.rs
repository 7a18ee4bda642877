// SPDX-License-Identifier: GPL-2.0

//! Cryptographically secure random numbers.
//!
//! C header: `include/linux/random.h`.

use crate::raw;

/// Returns random bytes. Any context.
#[inline]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: The array is valid for writes of its length.
    unsafe { raw::get_random_bytes(bytes.as_mut_ptr().cast(), N) }
    bytes
}

/// Returns a random `u32`. Any context.
#[inline]
pub fn u32() -> u32 {
    raw::safe::get_random_u32()
}
