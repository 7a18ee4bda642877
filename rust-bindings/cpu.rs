// SPDX-License-Identifier: GPL-2.0

//! Processors.
//!
//! C header: `include/linux/cpumask.h`.

use crate::raw;

/// How many processors there may be, present or not.
#[inline]
pub fn num_possible() -> u32 {
    // SAFETY: Reads a mask that does not change after boot.
    unsafe { raw::shim_num_possible_cpus() }
}
