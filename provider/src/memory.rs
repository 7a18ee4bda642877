// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects in memory of the C library's allocator.
//!
//! `Box` ends the program if there is no memory. A verb fails with `ENOMEM` instead.

use crate::ffi::os::{self, ENOMEM};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// An object that this value owns.
///
/// # Invariants
///
/// Points to a valid `T` in memory of `malloc`, which nothing else frees.
pub(crate) struct Owned<T>(NonNull<T>);

// SAFETY: the value is the only owner of the object.
unsafe impl<T: Send> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Moves `value` into new memory. Fails with `ENOMEM`.
    pub(crate) fn new(value: T) -> Result<Self, c_int> {
        // malloc(3) aligns memory for any type of C.
        const { assert!(align_of::<T>() <= 16 && size_of::<T>() != 0) };
        let memory = os::malloc(size_of::<T>()).cast::<T>();
        let memory = NonNull::new(memory).ok_or(ENOMEM)?;
        // SAFETY: the memory is new, and has the size and the alignment of a `T`.
        unsafe { memory.write(value) };
        // INVARIANT: the memory comes from `malloc` and contains the value.
        Ok(Self(memory))
    }

    /// Passes the ownership to the caller.
    pub(crate) fn into_raw(self) -> *mut T {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes the ownership of an object.
    ///
    /// # Safety
    ///
    /// [`Owned::into_raw`] returned the address, and nothing else uses the object.
    pub(crate) unsafe fn from_raw(object: *mut T) -> Self {
        // INVARIANT: by the caller's contract.
        // SAFETY: the address of an object is not null.
        Self(unsafe { NonNull::new_unchecked(object) })
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: by the invariant.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Owned<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: by the invariant; the owner is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: by the invariant the object is valid and its memory comes from `malloc`. Nothing
        // uses it after this value.
        unsafe {
            self.0.drop_in_place();
            os::free(self.0.as_ptr().cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_object_is_dropped_once() {
        let (one, two) = (Arc::new(1), Arc::new(2));
        let mut owned = Owned::new(Arc::clone(&one)).ok().unwrap();
        *owned = Arc::clone(&two);
        assert_eq!((**owned, Arc::strong_count(&one)), (2, 1));
        let raw = owned.into_raw();
        assert_eq!(Arc::strong_count(&two), 2);
        // SAFETY: the address comes from `into_raw`.
        drop(unsafe { Owned::from_raw(raw) });
        assert_eq!(Arc::strong_count(&two), 1);
    }
}
