// SPDX-License-Identifier: GPL-2.0

//! Bottom halves: disabling softirqs on the current CPU.
//!
//! C header: `include/linux/bottom_half.h`.

use crate::raw;
use core::ops::{Deref, DerefMut};
use kernel::{
    sync::{lock::spinlock::SpinLockGuard, SpinLock},
    types::NotThreadSafe,
};

/// A guard that disables softirqs on the current CPU. Guards nest.
///
/// If a softirq handler locks some data, all other contexts must hold this guard while they lock
/// it. Must be created with interrupts enabled.
///
/// # Invariants
///
/// Owns one level of the current task's `local_bh_disable`.
#[must_use = "softirqs are enabled again when the guard is dropped"]
pub struct BhGuard(NotThreadSafe);

impl BhGuard {
    /// Disables softirqs.
    #[inline]
    pub fn new() -> Self {
        raw::safe::shim_local_bh_disable();
        // INVARIANT: The level was added just above.
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
        // SAFETY: Balances the `local_bh_disable` of `new` (type invariant). It runs on the same
        // task, because the guard is not `Send`.
        unsafe { raw::shim_local_bh_enable() };
    }
}

/// Returns whether interrupts are disabled on the current CPU.
#[inline]
pub fn irqs_disabled() -> bool {
    raw::safe::shim_irqs_disabled()
}

/// A [`SpinLock`] that is held with softirqs disabled (`spin_lock_bh()`).
///
/// It combines both guards, so that the lock is always released before softirqs are enabled. Two
/// separate guards in one scope are easily dropped in the wrong order.
pub struct BhLocked<'a, T> {
    // Fields are dropped in declaration order.
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
