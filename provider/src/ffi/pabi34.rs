// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Declarations for private ABI 34 of libibverbs (rdma-core 56.1): the size of the context, and the
//! functions whose signatures later ABIs change.

use super::command;
use super::driver::{VerbsContext, VerbsCq, VerbsDeviceOps, VerbsQp};
use super::verbs::*;
use core::ffi::c_int;

/// Words of `struct verbs_context` before the public context.
pub(crate) const PRIVATE_WORDS: usize = 40;

extern "C" {
    /// `verbs_register_driver`, whose name carries the number of the private ABI.
    #[link_name = "verbs_register_driver_34"]
    pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);

    pub(crate) fn ibv_cmd_get_context(
        context: *mut VerbsContext,
        cmd: *mut command::GetContext,
        cmd_size: usize,
        resp: *mut command::GetContextResp,
        resp_size: usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_cq_ex(
        context: *mut IbvContext,
        cq_attr: *const IbvCqInitAttrEx,
        cq: *mut VerbsCq,
        cmd: *mut command::CreateCqEx,
        cmd_size: usize,
        resp: *mut command::CreateCqExResp,
        resp_size: usize,
        cmd_flags: u32,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_qp_ex2(
        context: *mut IbvContext,
        qp: *mut VerbsQp,
        attr: *mut IbvQpInitAttrEx,
        cmd: *mut command::CreateQpEx,
        cmd_size: usize,
        resp: *mut command::CreateQpExResp,
        resp_size: usize,
    ) -> c_int;
}
