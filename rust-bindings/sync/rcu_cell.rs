// SPDX-License-Identifier: GPL-2.0

//! One shared object that is replaced as a whole, read under RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use crate::raw;
use core::ptr;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        rcu,
    },
    types::Opaque,
};

/// Holds a value, or none. Readers take neither lock nor reference; writers don't lock either,
/// and may be in any context that may allocate as they ask.
///
/// A value that is replaced is dropped when all readers that may see it are done, by an RCU
/// callback in softirq context: its `Drop` must not sleep. A module with such a cell calls
/// [`rcu_barrier`](super::rcu_barrier) before its code goes.
///
/// # Invariants
///
/// The pointer is null or came from [`KBox::into_raw`], and whoever takes it out of the cell owns
/// it, but for readers that hold the RCU read lock.
pub struct RcuCell<T: Send + Sync + 'static> {
    record: Atomic<*mut Record<T>>,
}

/// A value, and the means to drop it later without allocating.
#[repr(C)]
struct Record<T> {
    /// The first field, so that a pointer to it is a pointer to the record.
    head: Opaque<raw::callback_head>,
    value: T,
}

// SAFETY: The cell owns a `T`, which may be dropped by another thread, and hands out `&T`.
unsafe impl<T: Send + Sync> Send for RcuCell<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuCell<T> {}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// A cell without a value.
    pub const fn empty() -> Self {
        // INVARIANT: Null.
        Self {
            record: Atomic::new(ptr::null_mut()),
        }
    }

    /// The value, for as long as the guard is held. Any context.
    #[inline]
    pub fn get<'a>(&'a self, _guard: &'a rcu::Guard) -> Option<&'a T> {
        // Acquire: pairs with the publication in `replace`.
        let record = self.record.load(Acquire);
        // SAFETY: Null, or a live box by the type invariant: it was seen under RCU, and who takes
        // it out waits for a grace period before it drops it.
        unsafe { record.as_ref() }.map(|record| &record.value)
    }

    /// Puts another value, or none, in place of what there is.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the cell is as before.
    pub fn replace(&self, value: Option<T>) -> Result {
        let new = match value {
            Some(value) => KBox::into_raw(KBox::new(
                Record {
                    head: Opaque::uninit(),
                    value,
                },
                GFP_KERNEL_ACCOUNT,
            )?),
            None => ptr::null_mut(),
        };
        // INVARIANT: From `into_raw`, or null.
        let old = self.record.xchg(new, Full);
        if !old.is_null() {
            // SAFETY: Ours, now that it is out of the cell; it lives until the callback frees it,
            // and its head is queued once.
            unsafe {
                raw::call_rcu(
                    Opaque::cast_into(&raw const (*old).head),
                    Some(drop_record::<T>),
                )
            };
        }
        Ok(())
    }
}

impl<T: Send + Sync + 'static> Drop for RcuCell<T> {
    /// Drops the value at once: nobody reads any more.
    fn drop(&mut self) {
        let record = *self.record.get_mut();
        if !record.is_null() {
            // SAFETY: From `into_raw` by the type invariant, and `&mut self` means that there are
            // no readers.
            drop(unsafe { KBox::from_raw(record) });
        }
    }
}

/// Ends a record after a grace period.
///
/// # Safety
///
/// An RCU callback for the head of a [`Record`] that came from [`KBox::into_raw`] and that nobody
/// else owns.
unsafe extern "C" fn drop_record<T>(head: *mut raw::callback_head) {
    // SAFETY: The head is the first field of the `repr(C)` record, see the requirements.
    drop(unsafe { KBox::from_raw(head.cast::<Record<T>>()) });
}
