// SPDX-License-Identifier: GPL-2.0

//! Sections with softirqs or interrupts disabled on the current CPU, and spin locks in them.
//!
//! C headers: `include/linux/bottom_half.h`, `include/linux/irqflags.h`.

use super::PerCpuCounters;
use crate::raw;
use core::ops::{Deref, DerefMut};
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

/// Returns whether the current CPU handles a softirq.
#[inline]
pub fn in_serving_softirq() -> bool {
    raw::safe::shim_in_serving_softirq()
}

/// A guard that disables interrupts on this CPU and restores their previous state when it is
/// dropped. Guards must be dropped in reverse order of creation.
pub struct IrqGuard(usize, NotThreadSafe);

impl IrqGuard {
    /// Disables interrupts.
    #[inline]
    pub(crate) fn new() -> Self {
        Self(raw::safe::shim_local_irq_save(), NotThreadSafe)
    }
}

impl Drop for IrqGuard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `new` saved this state on this CPU: the guard is not `Send`, and a task does not
        // sleep with interrupts disabled.
        unsafe { raw::shim_local_irq_restore(self.0) };
    }
}

/// A [`SpinLock`] that is held with softirqs or interrupts disabled by guard `G`, which is dropped
/// after the lock has been released.
pub struct Locked<'a, T, G> {
    // Fields are dropped in declaration order.
    guard: SpinLockGuard<'a, T>,
    _outer: G,
}

/// A [`SpinLock`] that is held with softirqs disabled.
pub type BhLocked<'a, T> = Locked<'a, T, BhGuard>;

/// Disables softirqs and takes the lock (`spin_lock_bh()`).
#[inline]
pub fn lock_bh<T>(lock: &SpinLock<T>) -> BhLocked<'_, T> {
    let outer = BhGuard::new();
    Locked {
        guard: lock.lock(),
        _outer: outer,
    }
}

/// Disables interrupts and takes the lock (`spin_lock_irqsave()`).
#[inline]
pub fn lock_irqsave<T>(lock: &SpinLock<T>) -> Locked<'_, T, IrqGuard> {
    let outer = IrqGuard::new();
    Locked {
        guard: lock.lock(),
        _outer: outer,
    }
}

impl<T, G> Deref for Locked<'_, T, G> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: Unpin, G> DerefMut for Locked<'_, T, G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
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
