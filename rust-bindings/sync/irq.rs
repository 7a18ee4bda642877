// SPDX-License-Identifier: GPL-2.0

//! Sections with interrupts disabled, for locks that callers may hold in any context.

use crate::raw;
use core::ops::{Deref, DerefMut};
use kernel::{
    sync::{lock::spinlock::SpinLockGuard, SpinLock},
    types::NotThreadSafe,
};

/// Interrupts are disabled on this CPU while it exists; they are as before when it is dropped.
///
/// With it, a [`SpinLock`](kernel::sync::SpinLock) becomes what `spin_lock_irqsave()` makes of it.
/// Guards must be dropped in the reverse order in which they were made.
pub struct IrqGuard {
    flags: usize,
    _not_send: NotThreadSafe,
}

impl IrqGuard {
    /// Disables interrupts.
    #[inline]
    #[expect(clippy::new_without_default, reason = "it acts on the CPU")]
    pub fn new() -> Self {
        Self {
            // SAFETY: local_irq_save() (linux/irqflags.h) may be called in any context.
            flags: unsafe { raw::shim_local_irq_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for IrqGuard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: The state that `new` saved on this CPU: the guard can't be sent to another, and
        // nothing sleeps with interrupts disabled.
        unsafe { raw::shim_local_irq_restore(self.flags) };
    }
}

/// A [`SpinLock`] that is held with interrupts disabled (`spin_lock_irqsave()`).
///
/// One value, so that the lock is always released before interrupts come back: a guard of each kind in
/// one scope is easily dropped in the wrong order.
pub struct IrqLocked<'a, T> {
    // Fields are dropped in this order.
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
