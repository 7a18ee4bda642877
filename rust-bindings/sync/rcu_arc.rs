// SPDX-License-Identifier: GPL-2.0

//! An optional reference to a shared object, read under RCU.
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

/// Holds a reference to an object, or nothing. Readers take neither a lock nor a reference. Setting
/// the reference allocates nothing, and taking it waits for the readers.
///
/// # Invariants
///
/// The pointer is null or that of an [`Arc`] that was forgotten. The caller that takes it out owns
/// the reference, and keeps it until all readers that may have seen it have finished.
pub struct RcuArc<T: Send + Sync + 'static> {
    object: Atomic<*mut T>,
}

// SAFETY: It owns an `Arc<T>`, which another thread may drop, and hands out `&T`.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: Shared references hand out `&T` and exchange the pointer atomically.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync + 'static> RcuArc<T> {
    /// Creates an empty `RcuArc`.
    pub const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            object: Atomic::new(ptr::null_mut()),
        }
    }

    /// Returns whether it is currently empty. Any context.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.object.load(Relaxed).is_null()
    }

    /// Returns the object, valid while the guard is held. Any context.
    #[inline]
    pub fn get<'a>(&'a self, _guard: &'a rcu::Guard) -> Option<&'a T> {
        // Acquire pairs with the publication in `set`.
        let object = self.object.load(Acquire);
        // SAFETY: The pointer is null or refers to an object whose reference outlives the guard: it
        // was read under RCU, and `take` waits for a grace period (rcupdate.h, `synchronize_rcu()`)
        // before it gives the reference away.
        unsafe { object.as_ref() }
    }

    /// Sets the object. Callable in any context in which an `Arc<T>` may be dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is already an object, which stays.
    pub fn set(&self, object: Arc<T>) -> Result {
        let new = Arc::as_ptr(&object).cast_mut();
        if self.object.cmpxchg(ptr::null_mut(), new, Full).is_err() {
            return Err(EBUSY);
        }
        // INVARIANT: `self` owns the reference now.
        core::mem::forget(object);
        Ok(())
    }

    /// Takes the object out. Waits until no reader uses it before it returns. Sleeps.
    pub fn take(&self) -> Option<Arc<T>> {
        // INVARIANT: The pointer is null. The reference is kept until the grace period below has
        // passed.
        let object = self.object.xchg(ptr::null_mut(), Full);
        if object.is_null() {
            return None;
        }
        synchronize_rcu_expedited();
        // SAFETY: By the type invariant, `object` was an `Arc`; the exchange gave it to one
        // caller only.
        Some(unsafe { Arc::from_raw(object) })
    }
}

impl<T: Send + Sync + 'static> Drop for RcuArc<T> {
    /// Drops the reference immediately: `&mut self` rules out readers.
    fn drop(&mut self) {
        let object = *self.object.get_mut();
        if !object.is_null() {
            // SAFETY: By the type invariant, `object` was an `Arc`, and `&mut self` is
            // exclusive.
            drop(unsafe { Arc::from_raw(object) });
        }
    }
}
