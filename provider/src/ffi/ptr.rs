// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Pointers to the objects of this provider and to structures of the program, as C code passes
//! them.

use core::ops::Deref;
use core::ptr::NonNull;

/// The part of an object of this provider that libibverbs and the program see.
///
/// # Safety
///
/// Every `Self` of which C code passes the address is the start of a [`Public::Object`], and the
/// address may be used to access the whole object. Members that C code may change while the
/// provider uses the object are in a cell.
pub(crate) unsafe trait Public {
    /// The whole object.
    type Object;
}

/// The address of the public part of an object.
///
/// Functions that C code calls have arguments of this type, and the structures of libibverbs have
/// members of it: the verbs require that a program passes objects that were created on the device
/// in question, and that it destroys no object that is in use (`ibv_create_qp(3)`,
/// `ibv_destroy_cq(3)`).
///
/// # Invariants
///
/// It points to the public part of an object that this provider has created. The object lives as
/// long as the pointer is used.
#[repr(transparent)]
pub(crate) struct Ptr<T>(NonNull<T>);

impl<T> Ptr<T> {
    /// Creates a pointer to the public part of an object.
    ///
    /// # Safety
    ///
    /// `public` fulfils the invariants of the type.
    pub(crate) unsafe fn new(public: *mut T) -> Self {
        // INVARIANT: by the caller's contract.
        // SAFETY: an object's address is not null.
        Self(unsafe { NonNull::new_unchecked(public) })
    }

    /// Returns the address, for functions of libibverbs.
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T: Public> Deref for Ptr<T> {
    type Target = T::Object;

    #[inline]
    fn deref(&self) -> &T::Object {
        // SAFETY: by the invariants, and by the contract of `Public`, the object is there, and
        // alive. Only its cells change.
        unsafe { self.0.cast().as_ref() }
    }
}

/// The address of a structure of libibverbs or of the program that this provider does not access,
/// and passes to functions of libibverbs.
///
/// # Invariants
///
/// A function of libibverbs may access the structure as its declaration says, as long as the call
/// lasts that has passed the address.
#[repr(transparent)]
pub(crate) struct Foreign<T>(NonNull<T>);

impl<T> Clone for Foreign<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Foreign<T> {}
