// SPDX-License-Identifier: GPL-2.0

//! Copies of memory that may change concurrently.
//!
//! A program may write to its memory while the kernel reads it. In Rust, that is a data race and
//! undefined behaviour. Such memory is therefore only copied by C functions: a concurrent change
//! leads to unspecified bytes and nothing worse.

use crate::raw;

/// Copies `len` bytes of a payload (`memmove()`, include/linux/string.h). They may overlap: a queue
/// pair may write to memory that it also reads, through another queue pair of its device.
///
/// Bytes that do not overlap are copied in ascending order, because a program may poll the last one
/// to detect that all have arrived; `memcpy()` copies some backwards. With ERMS, `memmove()` uses
/// string instructions, for which `memcpy()` requires FSRM (arch/x86/lib/memmove_64.S,
/// memcpy_64.S).
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub(crate) unsafe fn copy_payload(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller guarantees valid memory.
    unsafe { raw::memmove(to.cast(), from.cast(), len) };
}

/// Copies `len` bytes (`memcpy()`, include/linux/string.h).
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller guarantees valid memory that does not overlap, as `memcpy()` requires.
    unsafe { raw::memcpy(to.cast(), from.cast(), len) };
}
