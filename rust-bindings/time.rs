// SPDX-License-Identifier: GPL-2.0

//! The monotonic clock as a plain number.
//!
//! C header: `include/linux/timekeeping.h`.

use crate::raw;

/// Returns `CLOCK_MONOTONIC` in nanoseconds. Any context but an NMI.
#[inline]
pub fn monotonic_ns() -> u64 {
    // SAFETY: `ktime_get()` (kernel/time/timekeeping.c) may be called outside of NMIs.
    unsafe { raw::ktime_get() as u64 }
}
