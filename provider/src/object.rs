// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Code that the verbs that create and destroy objects have in common.
//!
//! An object is a box whose first member is the part that libibverbs and the program see.

use crate::ffi::os;
use crate::ffi::ptr::{Ptr, Public};
use core::ffi::c_int;

/// Creates an object with `make` and returns its public part. If `make` fails, returns null with
/// the error in `errno`.
pub(crate) fn create<T, P>(make: impl FnOnce() -> Result<Box<T>, c_int>) -> *mut P {
    match make() {
        Ok(object) => Box::into_raw(object).cast(),
        Err(error) => os::fail(error),
    }
}

/// Frees an object if `error`, the kernel's answer, is 0. Returns `error`.
///
/// # Safety
///
/// [`create`] made `object` of a box of its [`Public::Object`]. If `error` is 0, nothing uses the
/// object.
pub(crate) unsafe fn destroy<P: Public>(object: Ptr<P>, error: c_int) -> c_int {
    if error == 0 {
        // SAFETY: the box is no longer in use.
        drop(unsafe { Box::from_raw(object.as_ptr().cast::<P::Object>()) });
    }
    error
}

/// Returns the result of a verb, which is 0 or an error number.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}
