// SPDX-License-Identifier: GPL-2.0

//! Waiting for RCU, and values that are dropped after a grace period.
//!
//! C header: `include/linux/rcupdate.h`.

use crate::raw;
use kernel::{alloc::Flags, prelude::*, types::Opaque};

// Safe: this is the signature of the C function (kernel/rcu/tree.c), which takes nothing. The
// kernel reports a caller that may not sleep.
unsafe extern "C" {
    /// Waits for all RCU callbacks that have been queued. Sleeps.
    ///
    /// A module whose callbacks may be queued must call this before it is unloaded.
    pub safe fn rcu_barrier();
}

/// A value on the heap that RCU readers may see, with the memory needed to drop it later without an
/// allocation.
#[repr(C)]
pub(super) struct Record<T> {
    /// The first field, so that a pointer to it is also a pointer to the record.
    head: Opaque<raw::callback_head>,
    pub(super) value: T,
}

impl<T: Send + 'static> Record<T> {
    /// Allocates a record, which the owner of the box owns.
    pub(super) fn new(value: T, flags: Flags) -> Result<KBox<Self>> {
        let head = Opaque::uninit();
        Ok(KBox::new(Self { head, value }, flags)?)
    }

    /// Drops the record once all readers that may see it have finished. An RCU callback does so in
    /// softirq context, so the value's `Drop` must not sleep. Any context.
    ///
    /// # Safety
    ///
    /// The module is not unloaded before [`rcu_barrier`] has returned.
    pub(super) unsafe fn drop_later(this: KBox<Self>) {
        let this = KBox::into_raw(this);
        // SAFETY: The record lives until the callback frees it. Nothing else owns it, so its head
        // is queued only once. `drop_now` expects a pointer to the head.
        unsafe {
            raw::call_rcu(
                Opaque::cast_into(&raw const (*this).head),
                Some(Self::drop_now),
            )
        };
    }

    /// Frees a record after a grace period.
    ///
    /// # Safety
    ///
    /// `head` belongs to a record for which [`Record::drop_later`] was called. A grace period has
    /// passed since, and this is the only call for the record.
    unsafe extern "C" fn drop_now(head: *mut raw::callback_head) {
        // SAFETY: `call_rcu()` (kernel/rcu/tree.c) invokes the callback once, after a grace period,
        // so there are no readers left. The head is the first field of the `repr(C)` record, which
        // came from `into_raw` and which its owner gave up.
        drop(unsafe { KBox::from_raw(head.cast::<Self>()) });
    }
}
