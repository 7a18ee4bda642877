// SPDX-License-Identifier: GPL-2.0

//! Sections with interrupts disabled, for locks that are taken in any context.

use crate::raw;
use core::ops::{Deref, DerefMut};
use kernel::{
    sync::{lock::spinlock::SpinLockGuard, SpinLock},
    types::NotThreadSafe,
};

/// A guard that disables interrupts on this CPU and restores their previous state when it is
/// dropped.
///
/// Holding it while taking a [`SpinLock`](kernel::sync::SpinLock) is equivalent to
/// `spin_lock_irqsave()`. Guards must be dropped in reverse order of creation.
pub(crate) struct IrqGuard {
    flags: usize,
    _not_send: NotThreadSafe,
}

impl IrqGuard {
    /// Disables interrupts.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            flags: raw::safe::shim_local_irq_save(),
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for IrqGuard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `new` saved this state on this CPU: the guard is not `Send`, and a task does not
        // sleep with interrupts disabled.
        unsafe { raw::shim_local_irq_restore(self.flags) };
    }
}

/// A [`SpinLock`] that is held with interrupts disabled (`spin_lock_irqsave()`).
///
/// It combines both guards, so that the lock is always released before interrupts are restored. Two
/// separate guards in one scope are easily dropped in the wrong order.
pub struct IrqLocked<'a, T> {
    // Fields are dropped in declaration order.
    guard: SpinLockGuard<'a, T>,
    _outer: IrqGuard,
}

/// Disables interrupts and takes the lock.
#[inline]
pub fn lock_irqsave<T>(lock: &SpinLock<T>) -> IrqLocked<'_, T> {
    let outer = IrqGuard::new();
    IrqLocked {
        guard: lock.lock(),
        _outer: outer,
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
