// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the verbs that create and destroy objects have in common.
//!
//! An object is a box whose first member is what libibverbs and the consumer see of it.

use crate::ffi::os;
use core::ffi::c_int;

/// The result of a function of libibverbs that returns 0 or an error number.
pub(crate) fn check(error: c_int) -> Result<(), c_int> {
    if error == 0 {
        Ok(())
    } else {
        Err(error)
    }
}

/// What a verb that creates returns: the public part of what `make` made. Null where that fails,
/// with the error in `errno`.
pub(crate) fn create<T, P>(make: impl FnOnce() -> Result<Box<T>, c_int>) -> *mut P {
    match make() {
        Ok(object) => Box::into_raw(object).cast(),
        Err(error) => os::fail(error),
    }
}

/// What a verb that destroys returns: `error`, the answer of the kernel. Frees the object if that
/// is 0.
///
/// # Safety
///
/// `object` is what [`create`] made of a box of `T`; nothing uses it any more if `error` is 0.
pub(crate) unsafe fn destroy<T, P>(object: *mut P, error: c_int) -> c_int {
    if error == 0 {
        // SAFETY: the caller's contract.
        drop(unsafe { Box::from_raw(object.cast::<T>()) });
    }
    error
}
