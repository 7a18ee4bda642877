// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions that a provider passes to libibverbs: `struct verbs_context_ops`. Their types are
//! identical in both private ABIs, but their places in the table differ.

use super::driver::VerbsMr;
use super::verbs::*;
use core::ffi::{c_int, c_void};

/// An operation that this provider does not implement. libibverbs returns `EOPNOTSUPP` or, in
/// private ABI 65, falls back to other operations (`reg_mr_ex`, `alloc_buf`).
pub(crate) type Unset = Option<unsafe extern "C" fn()>;

/// `struct verbs_context_ops`: the operations of a provider, in the alphabetical order of the
/// header. Private ABI 65 inserts operations between those of 34.
#[repr(C)]
pub(crate) struct VerbsContextOps {
    pub(crate) advise_mr: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) alloc_buf: Unset,
    pub(crate) alloc_dm: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) alloc_dmah: Unset,
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(pd: *mut IbvPd, mw_type: u32) -> *mut IbvMw>,
    pub(crate) alloc_null_mr: Unset,
    pub(crate) alloc_parent_domain: Unset,
    pub(crate) alloc_pd: Option<unsafe extern "C" fn(context: *mut IbvContext) -> *mut IbvPd>,
    pub(crate) alloc_td: Unset,
    pub(crate) async_event: Unset,
    pub(crate) attach_counters_point_flow: Unset,
    pub(crate) attach_mcast:
        Option<unsafe extern "C" fn(qp: *mut IbvQp, gid: *const IbvGid, lid: u16) -> c_int>,
    pub(crate) bind_mw:
        Option<unsafe extern "C" fn(qp: *mut IbvQp, mw: *mut IbvMw, bind: *mut IbvMwBind) -> c_int>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut IbvXrcd) -> c_int>,
    pub(crate) cq_event: Unset,
    pub(crate) create_ah:
        Option<unsafe extern "C" fn(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh>,
    #[cfg(feature = "pabi65")]
    pub(crate) create_comp_cntr: Unset,
    pub(crate) create_counters: Unset,
    pub(crate) create_cq: Option<
        unsafe extern "C" fn(
            context: *mut IbvContext,
            cqe: c_int,
            channel: *mut IbvCompChannel,
            comp_vector: c_int,
        ) -> *mut IbvCq,
    >,
    pub(crate) create_cq_ex: Option<
        unsafe extern "C" fn(
            context: *mut IbvContext,
            init_attr: *mut IbvCqInitAttrEx,
        ) -> *mut IbvCqEx,
    >,
    pub(crate) create_flow: Unset,
    pub(crate) create_flow_action_esp: Unset,
    pub(crate) create_qp:
        Option<unsafe extern "C" fn(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp>,
    pub(crate) create_qp_ex: Option<
        unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvQpInitAttrEx) -> *mut IbvQp,
    >,
    pub(crate) create_rwq_ind_table: Unset,
    pub(crate) create_srq:
        Option<unsafe extern "C" fn(pd: *mut IbvPd, init: *mut IbvSrqInitAttr) -> *mut IbvSrq>,
    pub(crate) create_srq_ex: Option<
        unsafe extern "C" fn(context: *mut IbvContext, init: *mut IbvSrqInitAttrEx) -> *mut IbvSrq,
    >,
    pub(crate) create_wq: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) dealloc_dmah: Unset,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(mw: *mut IbvMw) -> c_int>,
    pub(crate) dealloc_pd: Option<unsafe extern "C" fn(pd: *mut IbvPd) -> c_int>,
    pub(crate) dealloc_td: Unset,
    pub(crate) dereg_mr: Option<unsafe extern "C" fn(vmr: *mut VerbsMr) -> c_int>,
    pub(crate) destroy_ah: Option<unsafe extern "C" fn(ah: *mut IbvAh) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub(crate) destroy_comp_cntr: Unset,
    pub(crate) destroy_counters: Unset,
    pub(crate) destroy_cq: Option<unsafe extern "C" fn(cq: *mut IbvCq) -> c_int>,
    pub(crate) destroy_flow: Unset,
    pub(crate) destroy_flow_action: Unset,
    pub(crate) destroy_qp: Option<unsafe extern "C" fn(qp: *mut IbvQp) -> c_int>,
    pub(crate) destroy_rwq_ind_table: Unset,
    pub(crate) destroy_srq: Option<unsafe extern "C" fn(srq: *mut IbvSrq) -> c_int>,
    pub(crate) destroy_wq: Unset,
    pub(crate) detach_mcast:
        Option<unsafe extern "C" fn(qp: *mut IbvQp, gid: *const IbvGid, lid: u16) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub(crate) dm_export_dmabuf_fd: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) free_buf: Unset,
    pub(crate) free_context: Option<unsafe extern "C" fn(context: *mut IbvContext)>,
    pub(crate) free_dm: Unset,
    pub(crate) get_srq_num:
        Option<unsafe extern "C" fn(srq: *mut IbvSrq, number: *mut u32) -> c_int>,
    pub(crate) import_dm: Unset,
    pub(crate) import_mr: Unset,
    pub(crate) import_pd: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) inc_comp_cntr: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) inc_err_comp_cntr: Unset,
    pub(crate) modify_cq: Unset,
    pub(crate) modify_flow_action_esp: Unset,
    pub(crate) modify_qp: Option<
        unsafe extern "C" fn(qp: *mut IbvQp, attr: *mut IbvQpAttr, attr_mask: c_int) -> c_int,
    >,
    pub(crate) modify_qp_rate_limit: Unset,
    pub(crate) modify_srq:
        Option<unsafe extern "C" fn(srq: *mut IbvSrq, attr: *mut IbvSrqAttr, mask: c_int) -> c_int>,
    pub(crate) modify_wq: Unset,
    pub(crate) open_qp: Option<
        unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvQpOpenAttr) -> *mut IbvQp,
    >,
    pub(crate) open_xrcd: Option<
        unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvXrcdInitAttr) -> *mut IbvXrcd,
    >,
    pub(crate) poll_cq:
        Option<unsafe extern "C" fn(cq: *mut IbvCq, num_entries: c_int, wc: *mut IbvWc) -> c_int>,
    pub(crate) post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut IbvQp,
            wr: *mut IbvRecvWr,
            bad_wr: *mut *mut IbvRecvWr,
        ) -> c_int,
    >,
    pub(crate) post_send: Option<
        unsafe extern "C" fn(
            qp: *mut IbvQp,
            wr: *mut IbvSendWr,
            bad_wr: *mut *mut IbvSendWr,
        ) -> c_int,
    >,
    pub(crate) post_srq_ops: Unset,
    pub(crate) post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut IbvSrq,
            wr: *mut IbvRecvWr,
            bad_wr: *mut *mut IbvRecvWr,
        ) -> c_int,
    >,
    #[cfg(feature = "pabi65")]
    pub(crate) qp_attach_comp_cntr: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) query_comp_cntr_caps: Unset,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(
            context: *mut IbvContext,
            input: *const IbvQueryDeviceExInput,
            attr: *mut IbvDeviceAttrEx,
            attr_size: usize,
        ) -> c_int,
    >,
    pub(crate) query_ece: Unset,
    pub(crate) query_port: Option<
        unsafe extern "C" fn(
            context: *mut IbvContext,
            port_num: u8,
            attr: *mut IbvPortAttr,
        ) -> c_int,
    >,
    #[cfg(feature = "pabi65")]
    pub(crate) query_port_speed: Unset,
    pub(crate) query_qp: Option<
        unsafe extern "C" fn(
            qp: *mut IbvQp,
            attr: *mut IbvQpAttr,
            attr_mask: c_int,
            init_attr: *mut IbvQpInitAttr,
        ) -> c_int,
    >,
    pub(crate) query_qp_data_in_order: Unset,
    pub(crate) query_rt_values:
        Option<unsafe extern "C" fn(context: *mut IbvContext, values: *mut IbvValuesEx) -> c_int>,
    pub(crate) query_srq:
        Option<unsafe extern "C" fn(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub(crate) read_comp_cntr: Unset,
    pub(crate) read_counters: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) read_err_comp_cntr: Unset,
    pub(crate) reg_dm_mr: Unset,
    pub(crate) reg_dmabuf_mr: Unset,
    pub(crate) reg_mr: Option<
        unsafe extern "C" fn(
            pd: *mut IbvPd,
            addr: *mut c_void,
            length: usize,
            hca_va: u64,
            access: c_int,
        ) -> *mut IbvMr,
    >,
    #[cfg(feature = "pabi65")]
    pub(crate) reg_mr_ex: Unset,
    pub(crate) req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut IbvCq, solicited_only: c_int) -> c_int>,
    pub(crate) rereg_mr: Option<
        unsafe extern "C" fn(
            vmr: *mut VerbsMr,
            flags: c_int,
            pd: *mut IbvPd,
            addr: *mut c_void,
            length: usize,
            access: c_int,
        ) -> c_int,
    >,
    pub(crate) resize_cq: Option<unsafe extern "C" fn(cq: *mut IbvCq, cqe: c_int) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub(crate) set_comp_cntr: Unset,
    pub(crate) set_ece: Unset,
    #[cfg(feature = "pabi65")]
    pub(crate) set_err_comp_cntr: Unset,
    pub(crate) unimport_dm: Unset,
    pub(crate) unimport_mr: Unset,
    pub(crate) unimport_pd: Unset,
}

impl VerbsContextOps {
    /// Creates a table without any operation.
    pub(crate) const fn empty() -> Self {
        // SAFETY: every member is an optional function pointer, for which zero means `None`.
        unsafe { core::mem::MaybeUninit::zeroed().assume_init() }
    }
}
