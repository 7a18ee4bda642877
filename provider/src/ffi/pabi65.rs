// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Declarations for private ABI 65 of libibverbs (rdma-core 65.0): the size of the context, and
//! three functions that take one argument more than in private ABI 34. The provider does not use
//! that argument: the functions here have the signatures of 34 and pass null, which libibverbs
//! treats as "none".

use super::command::{GetContext, GetContextResp};
use super::driver::{VerbsContext, VerbsCq, VerbsDeviceOps, VerbsQp};
use super::ptr::Ptr;
use super::verbs::*;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Words of `struct verbs_context` before the public context.
pub(crate) const PRIVATE_WORDS: usize = 46;

/// libibverbs' functions with their C signatures.
mod c {
    use super::*;

    extern "C" {
        pub(super) fn ibv_cmd_get_context(
            context: *mut VerbsContext,
            cmd: &mut GetContext,
            cmd_size: usize,
            fd_arr: *mut c_void,
            resp: &mut GetContextResp,
            resp_size: usize,
        ) -> c_int;
        pub(super) fn ibv_cmd_create_cq_ex(
            context: Ptr<IbvContext>,
            cq_attr: &IbvCqInitAttrEx,
            prov_attr: *mut c_void,
            cq: &UnsafeCell<VerbsCq>,
            cmd: *mut c_void,
            cmd_size: usize,
            resp: *mut c_void,
            resp_size: usize,
            cmd_flags: u32,
        ) -> c_int;
        pub(super) fn ibv_cmd_create_qp_ex2(
            context: Ptr<IbvContext>,
            qp: &UnsafeCell<VerbsQp>,
            attr: &mut IbvQpInitAttrEx,
            cmd: *mut c_void,
            cmd_size: usize,
            resp: *mut c_void,
            resp_size: usize,
            driver: *mut c_void,
        ) -> c_int;
    }
}

extern "C" {
    /// `verbs_register_driver`, whose name carries the number of the private ABI.
    #[link_name = "verbs_register_driver_65"]
    pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);
}

/// Calls `ibv_cmd_get_context` without an array of file descriptors.
///
/// # Safety
///
/// The C function's contract: `cmd` and `resp` have at least the sizes given.
pub(crate) unsafe fn ibv_cmd_get_context(
    context: *mut VerbsContext,
    cmd: &mut GetContext,
    cmd_size: usize,
    resp: &mut GetContextResp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the caller's contract. libibverbs checks the array for null.
    unsafe { c::ibv_cmd_get_context(context, cmd, cmd_size, null_mut(), resp, resp_size) }
}

/// Calls `ibv_cmd_create_cq_ex` without a buffer that libibverbs describes to the kernel.
///
/// # Safety
///
/// The C function's contract: `cmd` and `resp` have at least the sizes given, and `cmd_flags` does
/// not ask for such a buffer.
#[expect(clippy::too_many_arguments, reason = "those of the C function")]
pub(crate) unsafe fn ibv_cmd_create_cq_ex(
    context: Ptr<IbvContext>,
    cq_attr: &IbvCqInitAttrEx,
    cq: &UnsafeCell<VerbsCq>,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
    cmd_flags: u32,
) -> c_int {
    // SAFETY: the caller's contract. libibverbs reads the buffer only if the flags ask for it.
    unsafe {
        c::ibv_cmd_create_cq_ex(
            context,
            cq_attr,
            null_mut(),
            cq,
            cmd,
            cmd_size,
            resp,
            resp_size,
            cmd_flags,
        )
    }
}

/// Calls `ibv_cmd_create_qp_ex2` without driver attributes.
///
/// # Safety
///
/// The C function's contract: `cmd` and `resp` have at least the sizes given.
pub(crate) unsafe fn ibv_cmd_create_qp_ex2(
    context: Ptr<IbvContext>,
    qp: &UnsafeCell<VerbsQp>,
    attr: &mut IbvQpInitAttrEx,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    // SAFETY: the caller's contract. Null ends libibverbs' chain of attributes.
    unsafe {
        c::ibv_cmd_create_qp_ex2(
            context,
            qp,
            attr,
            cmd,
            cmd_size,
            resp,
            resp_size,
            null_mut(),
        )
    }
}
