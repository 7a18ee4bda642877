// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions. The kernel does all the work.

use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_dereg_mr, ibv_cmd_reg_mr, VerbsMr};
use crate::ffi::verbs::{IbvMr, IbvPd};
use crate::object;
use core::ffi::{c_int, c_void};

/// `ibv_reg_mr` and `ibv_reg_mr_iova`.
///
/// # Safety
///
/// Called by libibverbs with a protection domain of an open rrxe device.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut IbvMr {
    object::create(|| {
        let mut cmd = command::RegMr::zeroed();
        let mut resp = command::RegMrResp::zeroed();
        // SAFETY: integers and pointers that may be null.
        let mut mr: Box<VerbsMr> = Box::new(unsafe { command::zeroed() });
        // SAFETY: the buffers have the sizes given. libibverbs fills the region in.
        object::check(unsafe {
            ibv_cmd_reg_mr(
                pd,
                addr,
                length,
                hca_va,
                access,
                &mut *mr,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            )
        })?;
        Ok(mr)
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
///
/// Called by libibverbs with what [`reg_mr`] returned.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut VerbsMr) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<VerbsMr, _>(mr, ibv_cmd_dereg_mr(mr)) }
}
