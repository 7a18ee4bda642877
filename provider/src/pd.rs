// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_alloc_pd, ibv_cmd_dealloc_pd};
use crate::ffi::os;
use crate::ffi::verbs::{IbvContext, IbvPd};
use core::ffi::c_int;

/// `ibv_alloc_pd`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device.
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    let mut cmd = command::AllocPd::zeroed();
    let mut resp = command::AllocPdResp::zeroed();
    let mut pd = Box::new(IbvPd { context, handle: 0 });
    // SAFETY: the buffers have the sizes given.
    let error = unsafe {
        ibv_cmd_alloc_pd(
            context,
            &mut *pd,
            &mut cmd,
            size_of_val(&cmd),
            &mut resp,
            size_of_val(&resp),
        )
    };
    if error != 0 {
        return os::fail(error);
    }
    Box::into_raw(pd)
}

/// `ibv_dealloc_pd`.
///
/// # Safety
///
/// Called by libibverbs with what [`alloc_pd`] returned.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    // SAFETY: the caller's contract.
    let error = unsafe { ibv_cmd_dealloc_pd(pd) };
    if error == 0 {
        // SAFETY: `alloc_pd` made it a pointer, and the consumer gave it up.
        drop(unsafe { Box::from_raw(pd) });
    }
    error
}
