// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! XRC domains, which are implemented by the kernel.

use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_close_xrcd, ibv_cmd_open_xrcd, VerbsXrcd};
use crate::ffi::verbs::{IbvContext, IbvXrcd, IbvXrcdInitAttr};
use crate::{object, quota};
use core::ffi::c_int;

/// `ibv_open_xrcd`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device; `attr` may be read.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut IbvContext,
    attr: *mut IbvXrcdInitAttr,
) -> *mut IbvXrcd {
    object::create(|| {
        let mut cmd = command::OpenXrcd::zeroed();
        let mut resp = command::OpenXrcdResp::zeroed();
        // SAFETY: integers and a pointer that may be null.
        let mut xrcd: Box<VerbsXrcd> = Box::new(unsafe { command::zeroed() });
        // SAFETY: the caller's contract, and all buffers have the sizes given.
        object::check(unsafe {
            let error = ibv_cmd_open_xrcd(
                context,
                &mut *xrcd,
                size_of::<VerbsXrcd>() as c_int,
                attr,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            );
            quota::explained(context, "an XRC domain", error)
        })?;
        Ok(xrcd)
    })
}

/// `ibv_close_xrcd`.
///
/// # Safety
///
/// Called by libibverbs with a domain that [`open_xrcd`] returned.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut IbvXrcd) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<VerbsXrcd, _>(xrcd, ibv_cmd_close_xrcd(xrcd.cast())) }
}
