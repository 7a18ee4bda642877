// SPDX-License-Identifier: GPL-2.0

//! Sections with interrupts disabled, for locks that callers may hold in any context.

use crate::raw;
use kernel::types::NotThreadSafe;

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
