// SPDX-License-Identifier: GPL-2.0

//! The monotonic clock as a plain number.
//!
//! C header: `include/linux/timekeeping.h`.

use crate::raw;

/// Returns `CLOCK_MONOTONIC` in nanoseconds. Any context but an NMI.
#[inline]
pub fn monotonic_ns() -> u64 {
    raw::safe::ktime_get() as u64
}
