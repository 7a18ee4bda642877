// SPDX-License-Identifier: GPL-2.0

//! Waiting for RCU, and values that are dropped after a grace period.
//!
//! C header: `include/linux/rcupdate.h`.

use crate::raw;
use core::ptr::NonNull;
use kernel::{alloc::Flags, prelude::*, types::Opaque};

/// Waits until all RCU read-side sections that had begun are over. Sleeps.
#[inline]
pub fn synchronize_rcu() {
    // SAFETY: `synchronize_rcu` has no requirement but a context that may sleep, the violation of
    // which the kernel diagnoses.
    unsafe { raw::synchronize_rcu() }
}

/// Waits until all RCU read-side sections that had begun are over, in some tens of microseconds, at
/// the price of interrupting all CPUs: for what a program waits for. Sleeps.
#[inline]
pub fn synchronize_rcu_expedited() {
    // SAFETY: It has no requirement but a context that may sleep (kernel/rcu/tree_exp.h), the
    // violation of which the kernel diagnoses.
    unsafe { raw::synchronize_rcu_expedited() }
}

/// Waits until all RCU callbacks that had been queued have run. Sleeps.
///
/// A module whose callbacks may be queued must call this before its code goes.
#[inline]
pub fn rcu_barrier() {
    // SAFETY: It has no requirement but a context that may sleep (kernel/rcu/tree.c), the violation
    // of which the kernel diagnoses.
    unsafe { raw::rcu_barrier() }
}

/// A value on the heap that RCU readers may see, and the means to drop it later without
/// allocating.
#[repr(C)]
pub(super) struct Record<T> {
    /// The first field, so that a pointer to it is a pointer to the record.
    head: Opaque<raw::callback_head>,
    pub(super) value: T,
}

impl<T: Send + 'static> Record<T> {
    /// A record of a value, which is whose who gets the box.
    pub(super) fn new(value: T, flags: Flags) -> Result<KBox<Self>> {
        let head = Opaque::uninit();
        Ok(KBox::new(Self { head, value }, flags)?)
    }

    /// Drops the record when all readers that may see it are done, by an RCU callback in softirq
    /// context: the value's `Drop` must not sleep. Any context.
    ///
    /// # Safety
    ///
    /// `this` came from [`KBox::into_raw`], the caller owns it, and only readers under the RCU
    /// read lock still use it. The module's code stays until [`rcu_barrier`] has returned.
    pub(super) unsafe fn drop_later(this: NonNull<Self>) {
        // SAFETY: The record lives until the callback frees it, and since the caller owns it, its
        // head is queued once. The callback gets a pointer to the head, as it expects.
        unsafe {
            raw::call_rcu(
                Opaque::cast_into(&raw const (*this.as_ptr()).head),
                Some(Self::drop_now),
            )
        };
    }

    /// Ends a record after a grace period.
    ///
    /// # Safety
    ///
    /// `head` is that of a record for which [`Record::drop_later`] was called, a grace period has
    /// passed since, and this is called once for it.
    unsafe extern "C" fn drop_now(head: *mut raw::callback_head) {
        // SAFETY: `call_rcu()` (kernel/rcu/tree.c) calls once, after a grace period, so the readers
        // are done. The head is the first field of the `repr(C)` record, which came from
        // `into_raw`, and whose owner gave it up.
        drop(unsafe { KBox::from_raw(head.cast::<Self>()) });
    }
}
