// SPDX-License-Identifier: GPL-2.0

//! Copies of memory that may change concurrently.
//!
//! A program may write to its memory while the kernel reads it. In Rust, that is a data race and
//! undefined behaviour. Such memory is therefore only copied by C functions: a concurrent change
//! leads to unspecified bytes and nothing worse.

use crate::{compat::smp_wmb, raw};

/// Bytes at the end of a payload that [`copy_polled`] writes after all others.
const POLLED: usize = 8;

/// Copies `len` bytes of a payload to memory of a program, which may poll the last byte to detect
/// that all have arrived. The last [`POLLED`] bytes become visible after all others: `memmove()`
/// may write in any order, and so may the CPU within a string instruction.
///
/// The areas may overlap, because a queue pair may write to memory that it also reads, through
/// another queue pair of its device. The contents of overlapping bytes are unspecified.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub(crate) unsafe fn copy_polled(to: *mut u8, from: *const u8, len: usize) {
    let before = len.saturating_sub(POLLED);
    // SAFETY: The caller guarantees valid memory. If `before` is not 0, `len` is the sum of it and
    // `POLLED`.
    unsafe {
        if before == 0 {
            return copy_payload(to, from, len);
        }
        copy_payload(to, from, before);
        smp_wmb();
        // A copy of constant length needs no function call.
        copy_payload(to.add(before), from.add(before), POLLED);
    }
}

/// Copies `len` bytes of a payload (`memmove()`, include/linux/string.h), which may overlap. With
/// ERMS, `memmove()` uses string instructions, for which `memcpy()` requires FSRM
/// (arch/x86/lib/memmove_64.S, memcpy_64.S).
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

#[kernel::prelude::kunit_tests(linux_rdma_shared_bytes)]
mod tests {
    use super::*;
    use kernel::prelude::*;

    #[test]
    fn copies_of_every_length() -> Result {
        let mut from = KVec::from_elem(0u8, 300, GFP_KERNEL)?;
        for (index, byte) in from.iter_mut().enumerate() {
            *byte = (index * 7 + index / 256) as u8;
        }
        let mut to = KVec::from_elem(0u8, 300, GFP_KERNEL)?;
        for len in 0usize..200 {
            let (read, write) = (len % 37, len % 41);
            let bytes = from.get(read..read + len).ok_or(EINVAL)?;
            to.fill(0x5a);
            let place = to.get_mut(write..write + len).ok_or(EINVAL)?;
            // SAFETY: Both slices have `len` bytes.
            unsafe { copy_polled(place.as_mut_ptr(), bytes.as_ptr(), len) };
            let (before, rest) = to.split_at(write);
            let (place, behind) = rest.split_at(len);
            assert_eq!(place, bytes);
            for around in [before, behind] {
                assert!(around.iter().all(|byte| *byte == 0x5a));
            }
        }
        Ok(())
    }
}
