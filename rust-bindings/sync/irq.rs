// SPDX-License-Identifier: GPL-2.0

//! Sections with softirqs or interrupts disabled on the current CPU, and spin locks in them.
//!
//! C headers: `include/linux/bottom_half.h`, `include/linux/spinlock.h`.

use super::PerCpuCounters;
use crate::raw;
use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};
use kernel::{
    prelude::*,
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
    #[expect(clippy::new_without_default, reason = "a guard has no default value")]
    pub fn new() -> Self {
        raw::safe::shim_local_bh_disable();
        // INVARIANT: The level was added just above.
        Self(NotThreadSafe)
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

/// Returns whether the current CPU handles a softirq, or softirqs are disabled on it.
#[inline]
pub(crate) fn in_softirq() -> bool {
    raw::safe::shim_in_softirq()
}

/// Returns whether the current CPU handles a softirq.
#[inline]
pub(crate) fn in_serving_softirq() -> bool {
    raw::safe::shim_in_serving_softirq()
}

/// A [`SpinLock`] that is held with softirqs disabled.
pub struct BhLocked<'a, T> {
    // Dropped before `_bh`.
    guard: SpinLockGuard<'a, T>,
    _bh: BhGuard,
}

/// Disables softirqs and takes the lock (`spin_lock_bh()`).
#[inline]
pub fn lock_bh<T>(lock: &SpinLock<T>) -> BhLocked<'_, T> {
    let bh = BhGuard::new();
    BhLocked {
        guard: lock.lock(),
        _bh: bh,
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

/// Returns the C lock.
#[inline]
fn raw_lock<T>(lock: &SpinLock<T>) -> *mut raw::spinlock_t {
    // The state is the first field of the `repr(C)` struct `Lock` (rust/kernel/sync/lock.rs).
    (&raw const *lock).cast_mut().cast()
}

/// Disables interrupts, takes the lock (`spin_lock_irqsave()`), and calls `f` with the data. Then
/// releases the lock and restores the interrupts. Any context.
///
/// There is no guard for this: two guards that are dropped in the wrong order would enable
/// interrupts while the second lock is held. Calls nest, so each restores the state from before it.
#[inline]
pub fn with_lock_irqsave<T: Unpin, R>(lock: &SpinLock<T>, f: impl FnOnce(&mut T) -> R) -> R {
    // SAFETY: A `SpinLock` is initialised. spin_lock_irqsave() (linux/spinlock.h) may be called in
    // any context.
    let flags = unsafe { raw::shim_spin_lock_irqsave(raw_lock(lock)) };
    // SAFETY: The lock was taken just above. The guard is never dropped, because the lock is
    // released below.
    let mut guard = ManuallyDrop::new(unsafe { SpinLockGuard::new(lock, ()) });
    let result = f(&mut guard);
    // SAFETY: This task holds the lock. `spin_lock_irqsave()` returned the flags, and each section
    // that began since has ended, because sections are calls.
    unsafe { raw::shim_spin_unlock_irqrestore(raw_lock(lock), flags) };
    result
}

/// Counts, for each CPU, how deeply calls of one kind are nested. Softirqs are disabled during a
/// call, so only a nested call can begin before it ends.
pub struct Nesting(PerCpuCounters<1>);

impl Nesting {
    /// Creates a counter without calls. Sleeps. Returns `ENOMEM` on failure.
    pub fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    /// Begins a call, which ends when the returned value is dropped. Softirqs are disabled until
    /// then. Must be called with interrupts enabled.
    #[inline]
    pub fn enter(&self) -> Nested<'_> {
        let bh = BhGuard::new();
        self.0.add(0, 1);
        Nested {
            nesting: self,
            _bh: bh,
        }
    }

    /// Returns the number of calls in progress on this CPU. Any context.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.0.this_cpu(0)
    }
}

/// A call in progress; see [`Nesting::enter`].
#[must_use = "the call ends when this is dropped"]
pub struct Nested<'a> {
    nesting: &'a Nesting,
    // Dropped after the body of `drop`, which is thus on the CPU on which the call began.
    _bh: BhGuard,
}

impl Drop for Nested<'_> {
    #[inline]
    fn drop(&mut self) {
        self.nesting.0.add(0, u64::MAX);
    }
}
