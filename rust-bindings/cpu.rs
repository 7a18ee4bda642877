// SPDX-License-Identifier: GPL-2.0

//! CPUs.
//!
//! C header: `include/linux/cpumask.h`.

use crate::raw;

/// Returns the number of possible CPUs, present or not.
#[inline]
pub fn num_possible() -> u32 {
    raw::safe::shim_num_possible_cpus()
}
