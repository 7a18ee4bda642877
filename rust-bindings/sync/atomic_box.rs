// SPDX-License-Identifier: GPL-2.0

//! A place for a box, which is filled and emptied atomically.

use core::ptr;
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full},
};

/// A place for a [`KBox`].
///
/// # Invariants
///
/// The pointer is null or came from [`KBox::into_raw`]; the place owns the box.
#[repr(transparent)]
pub(super) struct AtomicBox<T>(Atomic<*mut T>);

// SAFETY: A null pointer is a valid `Atomic<*mut T>`, and means that the place is empty.
unsafe impl<T> pin_init::Zeroable for AtomicBox<T> {}

impl<T> AtomicBox<T> {
    /// Puts a box into the place. Returns it if the place is not empty.
    pub(super) fn fill(&self, new: KBox<T>) -> Result<(), KBox<T>> {
        let new = KBox::into_raw(new);
        match self.0.cmpxchg(ptr::null_mut(), new, Full) {
            Ok(_) => Ok(()),
            // SAFETY: The box was not put into the place, so this function still owns it.
            Err(_) => Err(unsafe { KBox::from_raw(new) }),
        }
    }

    /// Takes the box out of the place.
    pub(super) fn take(&self) -> Option<KBox<T>> {
        let old = self.0.xchg(ptr::null_mut(), Full);
        // SAFETY: By the type invariant, a pointer that is not null came from `into_raw`. The
        // exchange gave it to one caller only.
        (!old.is_null()).then(|| unsafe { KBox::from_raw(old) })
    }

    /// Returns the contents of the box, if there is one.
    ///
    /// # Safety
    ///
    /// Nothing takes the box while the reference exists.
    #[inline]
    pub(super) unsafe fn get(&self) -> Option<&T> {
        // SAFETY: By the type invariant, a pointer that is not null is a box, which the caller
        // keeps in the place. Acquire pairs with `fill`.
        unsafe { self.0.load(Acquire).as_ref() }
    }
}

impl<T> Drop for AtomicBox<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
