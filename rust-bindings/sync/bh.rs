// SPDX-License-Identifier: GPL-2.0

//! Bottom halves: softirqs kept off the current CPU.
//!
//! C header: `include/linux/bottom_half.h`.

use crate::raw;
use core::ops::{Deref, DerefMut};
use kernel::{
    sync::{lock::spinlock::SpinLockGuard, SpinLock},
    types::NotThreadSafe,
};

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

/// A [`SpinLock`] that is held with softirqs disabled (`spin_lock_bh()`).
///
/// One value, so that the lock is always released before softirqs come back: a guard of each kind in
/// one scope is easily dropped in the wrong order.
pub struct BhLocked<'a, T> {
    // Fields are dropped in this order.
    guard: SpinLockGuard<'a, T>,
    _outer: BhGuard,
}

/// Disables softirqs and takes the lock.
#[inline]
pub fn lock_bh<T>(lock: &SpinLock<T>) -> BhLocked<'_, T> {
    let outer = BhGuard::new();
    BhLocked {
        guard: lock.lock(),
        _outer: outer,
    }
}

impl<T> Deref for BhLocked<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: Unpin> DerefMut for BhLocked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
