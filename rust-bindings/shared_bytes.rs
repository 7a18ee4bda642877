// SPDX-License-Identifier: GPL-2.0

//! Copies of memory that others may change meanwhile.
//!
//! A program may write to its memory while the kernel reads it. In Rust that is a data race, which
//! is undefined. So bytes of such memory are copied by C's functions only: they copy unspecified
//! bytes then, and nothing worse happens.

use crate::raw;

/// Copies `len` bytes (`memcpy()`, include/linux/string.h).
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller promises what `memcpy()` asks for.
    unsafe { raw::memcpy(to.cast(), from.cast(), len) };
}

/// Copies `len` bytes that may overlap (`memmove()`, include/linux/string.h).
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub(crate) unsafe fn copy_within(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller promises what `memmove()` asks for.
    unsafe { raw::memmove(to.cast(), from.cast(), len) };
}
