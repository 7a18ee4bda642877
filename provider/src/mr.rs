// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions, which are implemented by the kernel.

use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_dereg_mr, ibv_cmd_reg_mr, ibv_cmd_rereg_mr, VerbsMr};
use crate::ffi::verbs::{IbvMr, IbvPd};
use crate::memlock;
use crate::object;
use core::ffi::{c_int, c_void};

/// Name of the object in messages.
const WHAT: &str = "a memory region";

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
        // SAFETY: the buffers have the sizes given. libibverbs fills in the region.
        object::check(unsafe {
            memlock::explained(
                (*pd).context,
                WHAT,
                (addr as u64, length),
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
                ),
            )
        })?;
        Ok(mr)
    })
}

/// `ibv_rereg_mr`. The region's keys change if its memory changes.
///
/// # Safety
///
/// Called by libibverbs with a region that [`reg_mr`] returned, and with a protection domain of the
/// same device if the flags change it.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut VerbsMr,
    flags: c_int,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut cmd = command::ReregMr::zeroed();
    let mut resp = command::ReregMrResp::zeroed();
    // SAFETY: the buffers have the sizes given. libibverbs uses the protection domain only if the
    // flags say so, and sets the keys.
    unsafe {
        memlock::explained(
            (*mr).ibv_mr.context,
            WHAT,
            (addr as u64, length),
            ibv_cmd_rereg_mr(
                mr,
                flags as u32,
                addr,
                length,
                addr as u64,
                access,
                pd,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            ),
        )
    }
}

/// `ibv_dereg_mr`.
///
/// # Safety
///
/// Called by libibverbs with a region that [`reg_mr`] returned.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut VerbsMr) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<VerbsMr, _>(mr, ibv_cmd_dereg_mr(mr)) }
}
