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

/// A [`SpinLock`] that is held with interrupts disabled. With `CONFIG_PREEMPT_RT` the lock sleeps,
/// and interrupts stay enabled, as for `spin_lock_irqsave()` in C. Such locks must be released in
/// reverse order.
///
/// # Invariants
///
/// `guard` is that of a lock that [`lock_irqsave`] has taken, which `spin_lock_irqsave()` returned
/// `flags` for.
pub struct IrqLocked<'a, T> {
    /// Never dropped, because `drop` releases the lock.
    guard: ManuallyDrop<SpinLockGuard<'a, T>>,
    flags: usize,
}

/// Returns the C lock.
#[inline]
fn raw_lock<T>(lock: &SpinLock<T>) -> *mut raw::spinlock_t {
    // The state is the first field of the `repr(C)` struct `Lock` (rust/kernel/sync/lock.rs).
    (&raw const *lock).cast_mut().cast()
}

/// Disables interrupts and takes the lock (`spin_lock_irqsave()`).
#[inline]
pub fn lock_irqsave<T>(lock: &SpinLock<T>) -> IrqLocked<'_, T> {
    // SAFETY: A `SpinLock` is initialised. spin_lock_irqsave() (linux/spinlock.h) may be called in
    // any context.
    let flags = unsafe { raw::shim_spin_lock_irqsave(raw_lock(lock)) };
    // SAFETY: The lock was taken just above.
    let guard = unsafe { SpinLockGuard::new(lock, ()) };
    // INVARIANT: The lock was taken with these flags.
    IrqLocked {
        guard: ManuallyDrop::new(guard),
        flags,
    }
}

impl<T> Deref for IrqLocked<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: Unpin> DerefMut for IrqLocked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for IrqLocked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Otherwise another lock was released before this one, which was taken first.
        debug_assert!(cfg!(CONFIG_PREEMPT_RT) || irqs_disabled());
        // SAFETY: The lock is held by the type invariant, and `guard` is not dropped. The guard is
        // not `Send`, so this is the task that has taken the lock.
        unsafe { raw::shim_spin_unlock_irqrestore(raw_lock(self.guard.lock_ref()), self.flags) };
    }
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
