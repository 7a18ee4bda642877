// SPDX-License-Identifier: GPL-2.0

//! Bottom halves: softirqs kept off the current CPU.
//!
//! C header: `include/linux/bottom_half.h`.

use crate::raw;
use kernel::types::NotThreadSafe;

/// Softirqs are disabled on the current CPU while this exists; guards nest.
///
/// Data that a softirq handler locks must be locked with this guard held everywhere else. Must be
/// made where interrupts are enabled.
///
/// # Invariants
///
/// Owns one level of `local_bh_disable` of the current task.
#[must_use = "softirqs are enabled again when the guard is dropped"]
pub struct BhGuard(NotThreadSafe);

impl BhGuard {
    /// Disables softirqs.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: `local_bh_disable` may be called in any context that is not a hard interrupt;
        // it only counts.
        unsafe { raw::shim_local_bh_disable() };
        // INVARIANT: Taken just above.
        Self(NotThreadSafe)
    }
}

impl Default for BhGuard {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BhGuard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: Matches the `local_bh_disable` of `new`, on the same task, by the type
        // invariant and since the guard is not `Send`.
        unsafe { raw::shim_local_bh_enable() };
    }
}

/// Whether interrupts are disabled on the current CPU.
#[inline]
pub fn irqs_disabled() -> bool {
    // SAFETY: Reads the flags register only.
    unsafe { raw::shim_irqs_disabled() }
}
