// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Code that the verbs that create objects have in common, and the verbs that destroy objects
//! without state of their own.
//!
//! An object is a box whose first member is the part that libibverbs and the program see.

use crate::ffi::driver::*;
use crate::ffi::os;
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
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

/// Defines verbs that destroy an object. Each has the type of the public part, and the function
/// that destroys the kernel's part.
macro_rules! destroying {
    ($(fn $name:ident($public:ty) = $command:ident;)*) => {$(
        #[doc = concat!("`ibv_", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// Unless the call fails, nothing uses the object afterwards.
        pub(crate) unsafe extern "C" fn $name(object: Ptr<$public>) -> c_int {
            // SAFETY: the program passes an object that a verb made with `create`; the rest is this
            // function's contract.
            unsafe { destroy(object, $command(object)) }
        }
    )*};
}

destroying! {
    fn dealloc_pd(IbvPd) = ibv_cmd_dealloc_pd;
    fn dereg_mr(VerbsMr) = ibv_cmd_dereg_mr;
    fn dealloc_mw(IbvMw) = ibv_cmd_dealloc_mw;
    fn destroy_ah(IbvAh) = ibv_cmd_destroy_ah;
    fn destroy_cq(IbvCq) = ibv_cmd_destroy_cq;
    fn destroy_srq(IbvSrq) = ibv_cmd_destroy_srq;
    fn close_xrcd(IbvXrcd) = ibv_cmd_close_xrcd;
}

/// Returns the result of a verb, which is 0 or an error number.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}
