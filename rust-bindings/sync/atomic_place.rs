// SPDX-License-Identifier: GPL-2.0

//! A place for an owned object, which is filled and emptied atomically.

use core::{ffi::c_void, marker::PhantomData, ptr};
use kernel::{
    sync::atomic::{Acquire, Atomic, Full, Relaxed},
    types::ForeignOwnable,
};

/// A place for a `KBox` or an `Arc`.
///
/// # Invariants
///
/// The pointer is null or came from `P::into_foreign`; the place owns the object.
#[repr(transparent)]
pub(super) struct AtomicPlace<P: ForeignOwnable>(Atomic<*mut c_void>, PhantomData<fn(P) -> P>);

// SAFETY: A null pointer is a valid `Atomic<*mut c_void>`, and means that the place is empty.
unsafe impl<P: ForeignOwnable> pin_init::Zeroable for AtomicPlace<P> {}

impl<P: ForeignOwnable> AtomicPlace<P> {
    pub(super) const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self(Atomic::new(ptr::null_mut()), PhantomData)
    }

    /// Returns whether the place is currently empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Relaxed).is_null()
    }

    /// Puts an object into the place. Returns it if the place is not empty.
    pub(super) fn fill(&self, new: P) -> Result<(), P> {
        let new = new.into_foreign();
        match self.0.cmpxchg(ptr::null_mut(), new, Full) {
            Ok(_) => Ok(()),
            // SAFETY: The object was not put into the place, so this function still owns it.
            Err(_) => Err(unsafe { P::from_foreign(new) }),
        }
    }

    /// Takes the object out of the place.
    pub(super) fn take(&self) -> Option<P> {
        // SAFETY: By the type invariant, the pointer is null or came from `into_foreign`. The
        // exchange gave it to one caller only.
        unsafe { P::try_from_foreign(self.0.xchg(ptr::null_mut(), Full)) }
    }

    /// Returns the object, if there is one.
    ///
    /// # Safety
    ///
    /// The object is not dropped while the result is used, even if it is taken out.
    #[inline]
    pub(super) unsafe fn get(&self) -> Option<P::Borrowed<'_>> {
        // Acquire pairs with `fill`.
        let object = self.0.load(Acquire);
        // SAFETY: By the type invariant, a pointer that is not null came from `into_foreign`. The
        // caller keeps the object alive.
        (!object.is_null()).then(|| unsafe { P::borrow(object) })
    }
}

impl<P: ForeignOwnable> Drop for AtomicPlace<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
