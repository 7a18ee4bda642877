// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Declarations for private ABI 34 of libibverbs (rdma-core 56.1): the size of the context, and the
//! functions whose signatures later ABIs change.

use super::command::{GetContext, GetContextResp};
use super::driver::{VerbsContext, VerbsCq, VerbsDeviceOps, VerbsQp};
use super::ptr::Ptr;
use super::verbs::*;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

/// Words of `struct verbs_context` before the public context.
pub(crate) const PRIVATE_WORDS: usize = 40;

extern "C" {
    /// `verbs_register_driver`, whose name carries the number of the private ABI.
    #[link_name = "verbs_register_driver_34"]
    pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);

    pub(crate) fn ibv_cmd_get_context(
        context: *mut VerbsContext,
        cmd: &mut GetContext,
        cmd_size: usize,
        resp: &mut GetContextResp,
        resp_size: usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_cq_ex(
        context: Ptr<IbvContext>,
        cq_attr: &IbvCqInitAttrEx,
        cq: &UnsafeCell<VerbsCq>,
        cmd: *mut c_void,
        cmd_size: usize,
        resp: *mut c_void,
        resp_size: usize,
        cmd_flags: u32,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_qp_ex2(
        context: Ptr<IbvContext>,
        qp: &UnsafeCell<VerbsQp>,
        attr: &mut IbvQpInitAttrEx,
        cmd: *mut c_void,
        cmd_size: usize,
        resp: *mut c_void,
        resp_size: usize,
    ) -> c_int;
}
