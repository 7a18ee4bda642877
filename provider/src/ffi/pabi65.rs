// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is particular to private ABI 65 of libibverbs (rdma-core 65.0): the table of operations,
//! the size of the context, and three functions that take one argument more than in private ABI
//! 34. The provider does not use that argument: the functions here have the signatures of 34 and
//! pass null for it, which libibverbs takes for "none".

use super::command;
use super::driver::{VerbsContext, VerbsCq, VerbsDeviceOps, VerbsQp};
use super::operations::{self as op, Unset};
use super::verbs::*;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// `struct verbs_context_ops`: what a provider can do. In the order of the header.
#[repr(C)]
pub(crate) struct VerbsContextOps {
    pub(crate) advise_mr: Unset,
    pub(crate) alloc_buf: Unset,
    pub(crate) alloc_dm: Unset,
    pub(crate) alloc_dmah: Unset,
    pub(crate) alloc_mw: op::AllocMw,
    pub(crate) alloc_null_mr: Unset,
    pub(crate) alloc_parent_domain: Unset,
    pub(crate) alloc_pd: op::AllocPd,
    pub(crate) alloc_td: Unset,
    pub(crate) async_event: Unset,
    pub(crate) attach_counters_point_flow: Unset,
    pub(crate) attach_mcast: op::AttachMcast,
    pub(crate) bind_mw: op::BindMw,
    pub(crate) close_xrcd: op::CloseXrcd,
    pub(crate) cq_event: Unset,
    pub(crate) create_ah: op::CreateAh,
    pub(crate) create_comp_cntr: Unset,
    pub(crate) create_counters: Unset,
    pub(crate) create_cq: op::CreateCq,
    pub(crate) create_cq_ex: op::CreateCqEx,
    pub(crate) create_flow: Unset,
    pub(crate) create_flow_action_esp: Unset,
    pub(crate) create_qp: op::CreateQp,
    pub(crate) create_qp_ex: op::CreateQpEx,
    pub(crate) create_rwq_ind_table: Unset,
    pub(crate) create_srq: op::CreateSrq,
    pub(crate) create_srq_ex: op::CreateSrqEx,
    pub(crate) create_wq: Unset,
    pub(crate) dealloc_dmah: Unset,
    pub(crate) dealloc_mw: op::DeallocMw,
    pub(crate) dealloc_pd: op::DeallocPd,
    pub(crate) dealloc_td: Unset,
    pub(crate) dereg_mr: op::DeregMr,
    pub(crate) destroy_ah: op::DestroyAh,
    pub(crate) destroy_comp_cntr: Unset,
    pub(crate) destroy_counters: Unset,
    pub(crate) destroy_cq: op::DestroyCq,
    pub(crate) destroy_flow: Unset,
    pub(crate) destroy_flow_action: Unset,
    pub(crate) destroy_qp: op::DestroyQp,
    pub(crate) destroy_rwq_ind_table: Unset,
    pub(crate) destroy_srq: op::DestroySrq,
    pub(crate) destroy_wq: Unset,
    pub(crate) detach_mcast: op::DetachMcast,
    pub(crate) dm_export_dmabuf_fd: Unset,
    pub(crate) free_buf: Unset,
    pub(crate) free_context: op::FreeContext,
    pub(crate) free_dm: Unset,
    pub(crate) get_srq_num: op::GetSrqNum,
    pub(crate) import_dm: Unset,
    pub(crate) import_mr: Unset,
    pub(crate) import_pd: Unset,
    pub(crate) inc_comp_cntr: Unset,
    pub(crate) inc_err_comp_cntr: Unset,
    pub(crate) modify_cq: Unset,
    pub(crate) modify_flow_action_esp: Unset,
    pub(crate) modify_qp: op::ModifyQp,
    pub(crate) modify_qp_rate_limit: Unset,
    pub(crate) modify_srq: op::ModifySrq,
    pub(crate) modify_wq: Unset,
    pub(crate) open_qp: op::OpenQp,
    pub(crate) open_xrcd: op::OpenXrcd,
    pub(crate) poll_cq: op::PollCq,
    pub(crate) post_recv: op::PostRecv,
    pub(crate) post_send: op::PostSend,
    pub(crate) post_srq_ops: Unset,
    pub(crate) post_srq_recv: op::PostSrqRecv,
    pub(crate) qp_attach_comp_cntr: Unset,
    pub(crate) query_comp_cntr_caps: Unset,
    pub(crate) query_device_ex: op::QueryDeviceEx,
    pub(crate) query_ece: Unset,
    pub(crate) query_port: op::QueryPort,
    pub(crate) query_port_speed: Unset,
    pub(crate) query_qp: op::QueryQp,
    pub(crate) query_qp_data_in_order: Unset,
    pub(crate) query_rt_values: op::QueryRtValues,
    pub(crate) query_srq: op::QuerySrq,
    pub(crate) read_comp_cntr: Unset,
    pub(crate) read_counters: Unset,
    pub(crate) read_err_comp_cntr: Unset,
    pub(crate) reg_dm_mr: Unset,
    pub(crate) reg_dmabuf_mr: Unset,
    pub(crate) reg_mr: op::RegMr,
    pub(crate) reg_mr_ex: Unset,
    pub(crate) req_notify_cq: op::ReqNotifyCq,
    pub(crate) rereg_mr: op::ReregMr,
    pub(crate) resize_cq: op::ResizeCq,
    pub(crate) set_comp_cntr: Unset,
    pub(crate) set_ece: Unset,
    pub(crate) set_err_comp_cntr: Unset,
    pub(crate) unimport_dm: Unset,
    pub(crate) unimport_mr: Unset,
    pub(crate) unimport_pd: Unset,
}

/// Words of `struct verbs_context` before the public context.
pub(crate) const PRIVATE_WORDS: usize = 46;

/// libibverbs' functions as they are.
mod c {
    use super::*;

    extern "C" {
        pub(super) fn ibv_cmd_get_context(
            context: *mut VerbsContext,
            cmd: *mut command::GetContext,
            cmd_size: usize,
            fd_arr: *mut c_void,
            resp: *mut command::GetContextResp,
            resp_size: usize,
        ) -> c_int;
        pub(super) fn ibv_cmd_create_cq_ex(
            context: *mut IbvContext,
            cq_attr: *const IbvCqInitAttrEx,
            prov_attr: *mut c_void,
            cq: *mut VerbsCq,
            cmd: *mut command::CreateCqEx,
            cmd_size: usize,
            resp: *mut command::CreateCqExResp,
            resp_size: usize,
            cmd_flags: u32,
        ) -> c_int;
        pub(super) fn ibv_cmd_create_qp_ex2(
            context: *mut IbvContext,
            qp: *mut VerbsQp,
            attr: *mut IbvQpInitAttrEx,
            cmd: *mut command::CreateQpEx,
            cmd_size: usize,
            resp: *mut command::CreateQpExResp,
            resp_size: usize,
            driver: *mut c_void,
        ) -> c_int;
    }
}

extern "C" {
    /// `verbs_register_driver`, which carries the number of the private ABI in its name.
    #[link_name = "verbs_register_driver_65"]
    pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);
}

/// `ibv_cmd_get_context` without an array of file descriptors.
///
/// # Safety
///
/// As of the C function: `cmd` and `resp` have at least the sizes given.
pub(crate) unsafe fn ibv_cmd_get_context(
    context: *mut VerbsContext,
    cmd: *mut command::GetContext,
    cmd_size: usize,
    resp: *mut command::GetContextResp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the caller's contract. libibverbs checks the array for null.
    unsafe { c::ibv_cmd_get_context(context, cmd, cmd_size, null_mut(), resp, resp_size) }
}

/// `ibv_cmd_create_cq_ex` without a buffer that libibverbs describes to the kernel.
///
/// # Safety
///
/// As of the C function: `cmd` and `resp` have at least the sizes given, and `cmd_flags` does not
/// ask for such a buffer.
#[expect(clippy::too_many_arguments, reason = "those of the C function")]
pub(crate) unsafe fn ibv_cmd_create_cq_ex(
    context: *mut IbvContext,
    cq_attr: *const IbvCqInitAttrEx,
    cq: *mut VerbsCq,
    cmd: *mut command::CreateCqEx,
    cmd_size: usize,
    resp: *mut command::CreateCqExResp,
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

/// `ibv_cmd_create_qp_ex2` without further attributes of the driver.
///
/// # Safety
///
/// As of the C function: `cmd` and `resp` have at least the sizes given.
pub(crate) unsafe fn ibv_cmd_create_qp_ex2(
    context: *mut IbvContext,
    qp: *mut VerbsQp,
    attr: *mut IbvQpInitAttrEx,
    cmd: *mut command::CreateQpEx,
    cmd_size: usize,
    resp: *mut command::CreateQpExResp,
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
