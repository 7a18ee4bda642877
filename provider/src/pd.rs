// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_alloc_pd, ibv_cmd_dealloc_pd};
use crate::ffi::verbs::{IbvContext, IbvPd};
use crate::{object, quota};
use core::ffi::c_int;

/// `ibv_alloc_pd`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device.
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    object::create(|| {
        let mut cmd = command::AllocPd::zeroed();
        let mut resp = command::AllocPdResp::zeroed();
        let mut pd = Box::new(IbvPd { context, handle: 0 });
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            let error = ibv_cmd_alloc_pd(
                context,
                &mut *pd,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            );
            quota::explained(context, "a protection domain", error)
        })?;
        Ok(pd)
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
///
/// Called by libibverbs with a domain that [`alloc_pd`] returned.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<IbvPd, _>(pd, ibv_cmd_dealloc_pd(pd)) }
}
