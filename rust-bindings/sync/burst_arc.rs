// SPDX-License-Identifier: GPL-2.0

//! An optional reference to a shared object, read in bursts.

use super::{atomic_place::AtomicPlace, wait_for_bursts, BurstGuard};
use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};

/// Holds a reference to an object, or nothing. Readers take neither a lock nor a reference. Setting
/// the reference allocates nothing, and taking it waits for the readers.
pub struct BurstArc<T: Send + Sync + 'static>(AtomicPlace<Arc<T>>);

impl<T: Send + Sync + 'static> BurstArc<T> {
    /// Creates an empty `BurstArc`.
    pub const fn empty() -> Self {
        Self(AtomicPlace::empty())
    }

    /// Returns whether it is currently empty. Any context.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the object, valid while the guard is held.
    #[inline]
    pub fn get<'a>(&'a self, _burst: &'a BurstGuard) -> Option<ArcBorrow<'a, T>> {
        // SAFETY: The reference outlives the guard: `take` waits for the bursts that may have found
        // it before it gives the reference away.
        unsafe { self.0.get() }
    }

    /// Sets the object. Returns `EBUSY` if there is already one, which stays. Callable in any
    /// context in which an `Arc<T>` may be dropped.
    pub fn set(&self, object: Arc<T>) -> Result {
        self.0.fill(object).map_err(|_| EBUSY)
    }

    /// Takes the object out. Waits until no reader uses it before it returns. Sleeps; must not be
    /// called in a burst.
    pub fn take(&self) -> Option<Arc<T>> {
        let object = self.0.take();
        if object.is_some() {
            wait_for_bursts();
        }
        object
    }
}
