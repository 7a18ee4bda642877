// SPDX-License-Identifier: GPL-2.0

//! One shared object that is replaced as a whole, read under RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use super::rcu::Record;
use core::ptr::{self, NonNull};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        rcu,
    },
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

    /// Puts another value, or none, in place of what there is. May sleep, unless it is none.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the cell is as before.
    pub fn replace(&self, value: Option<T>) -> Result {
        let new = match value {
            Some(value) => KBox::into_raw(Record::new(value, GFP_KERNEL_ACCOUNT)?),
            None => ptr::null_mut(),
        };
        // INVARIANT: From `into_raw`, or null.
        if let Some(old) = NonNull::new(self.record.xchg(new, Full)) {
            // SAFETY: From `into_raw` by the type invariant, and ours, now that it is out of the
            // cell. The module waits for the callback, as the type's comment asks.
            unsafe { Record::drop_later(old) };
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
