// SPDX-License-Identifier: GPL-2.0

//! Waiting for RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use crate::raw;

/// Waits until all RCU read-side sections that had begun are over. Sleeps.
#[inline]
pub fn synchronize_rcu() {
    // SAFETY: `synchronize_rcu` has no requirement but a context that may sleep, the violation of
    // which the kernel diagnoses.
    unsafe { raw::synchronize_rcu() }
}

/// Waits until all RCU callbacks that had been queued have run. Sleeps.
///
/// A module whose callbacks may be queued must call this before its code goes.
#[inline]
pub fn rcu_barrier() {
    // SAFETY: As for `synchronize_rcu`.
    unsafe { raw::rcu_barrier() }
}
