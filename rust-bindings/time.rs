// SPDX-License-Identifier: GPL-2.0

//! The monotonic clock as a plain number.
//!
//! C header: `include/linux/timekeeping.h`.

use crate::raw;

/// Nanoseconds of `CLOCK_MONOTONIC`. Any context.
#[inline]
pub fn monotonic_ns() -> u64 {
    // SAFETY: No requirements.
    unsafe { raw::shim_ktime_get_ns() }
}
