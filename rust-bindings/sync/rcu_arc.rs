// SPDX-License-Identifier: GPL-2.0

//! A reference to a shared object that comes and goes, read under RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use super::synchronize_rcu_expedited;
use core::ptr;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        rcu, Arc,
    },
};

/// Holds a reference to an object, or none. Readers take neither lock nor reference. Setting the
/// reference allocates nothing, and taking it waits for the readers.
///
/// # Invariants
///
/// The pointer is null or came from [`Arc::into_raw`]. The caller that takes it out owns the reference, and
/// keeps it until all readers that may have seen it are done.
pub struct RcuArc<T: Send + Sync + 'static> {
    object: Atomic<*mut T>,
}

// SAFETY: Owns an `Arc<T>`, which may be dropped by another thread, and hands out `&T`.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: Shared references hand out `&T`, and exchange the pointer as an atomic.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync + 'static> RcuArc<T> {
    /// Returns an empty one.
    pub const fn empty() -> Self {
        // INVARIANT: Null.
        Self {
            object: Atomic::new(ptr::null_mut()),
        }
    }

    /// Returns whether it is empty at the moment. Any context.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.object.load(Relaxed).is_null()
    }

    /// Returns the object, for as long as the guard is held. Any context.
    #[inline]
    pub fn get<'a>(&'a self, _guard: &'a rcu::Guard) -> Option<&'a T> {
        // Acquire: pairs with the publication in `set`.
        let object = self.object.load(Acquire);
        // SAFETY: Null, or an object of which a reference is held until the guard ends: the pointer
        // was seen under RCU, and `take` waits for a grace period (rcupdate.h,
        // `synchronize_rcu()`) before it gives the reference away.
        unsafe { object.as_ref() }
    }

    /// Sets the object. Any context in which an `Arc<T>` may be dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is an object, which stays.
    pub fn set(&self, object: Arc<T>) -> Result {
        let new = Arc::into_raw(object).cast_mut();
        // INVARIANT: From `into_raw`, in place of null.
        if self.object.cmpxchg(ptr::null_mut(), new, Full).is_err() {
            // SAFETY: From `into_raw` just above, and not published.
            drop(unsafe { Arc::from_raw(new) });
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Takes the object out, and returns it when no reader that has seen it here is left. Sleeps.
    pub fn take(&self) -> Option<Arc<T>> {
        // INVARIANT: Null. The reference is dropped below at the earliest.
        let object = self.object.xchg(ptr::null_mut(), Full);
        if object.is_null() {
            return None;
        }
        synchronize_rcu_expedited();
        // SAFETY: From `into_raw` by the type invariant, and only one caller takes it out.
        Some(unsafe { Arc::from_raw(object) })
    }
}

impl<T: Send + Sync + 'static> Drop for RcuArc<T> {
    /// Drops the reference at once: `&mut self` means that there are no readers.
    fn drop(&mut self) {
        let object = *self.object.get_mut();
        if !object.is_null() {
            // SAFETY: From `into_raw` by the type invariant, and `&mut self` is the only user.
            drop(unsafe { Arc::from_raw(object) });
        }
    }
}
