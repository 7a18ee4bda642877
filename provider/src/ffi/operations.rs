// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions that a provider passes to libibverbs: `struct verbs_context_ops`. Their types are
//! identical in both private ABIs, but their places in the table differ.
//!
//! The types state what libibverbs guarantees: a [`Ptr`] points to an object of this provider, a
//! reference to a structure of the program (or of libibverbs) that may be read, a mutable one to
//! one that may also be written. An optional argument may be null.

use super::driver::VerbsMr;
use super::ptr::Ptr;
use super::verbs::*;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

/// An operation that this provider does not implement. libibverbs returns `EOPNOTSUPP` or, in
/// private ABI 65, falls back to other operations (`reg_mr_ex`, `alloc_buf`).
pub(crate) type Unset = Option<unsafe extern "C" fn()>;

/// Returns the type of an operation.
macro_rules! operation {
    () => { Unset };
    ($($arg:ident: $type:ty),* => $result:ty) => {
        Option<unsafe extern "C" fn($($arg: $type),*) -> $result>
    };
}

/// Defines the table of operations: all of them, in the alphabetical order of the header, with the
/// types of those that this provider implements.
macro_rules! operations {
    ($($(#[$cfg:meta])* $name:ident $(($($arg:ident: $type:ty),*) -> $result:ty)?,)*) => {
        /// `struct verbs_context_ops`. Private ABI 65 inserts operations between those of 34.
        #[repr(C)]
        pub(crate) struct VerbsContextOps {
            $($(#[$cfg])* pub(crate) $name: operation!($($($arg: $type),* => $result)?),)*
        }
    };
}

operations! {
    advise_mr,
    #[cfg(feature = "pabi65")] alloc_buf,
    alloc_dm,
    #[cfg(feature = "pabi65")] alloc_dmah,
    alloc_mw(pd: Ptr<IbvPd>, mw_type: u32) -> *mut IbvMw,
    alloc_null_mr,
    alloc_parent_domain,
    alloc_pd(context: Ptr<IbvContext>) -> *mut IbvPd,
    alloc_td,
    async_event,
    attach_counters_point_flow,
    attach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int,
    bind_mw(qp: Ptr<IbvQp>, mw: Ptr<IbvMw>, bind: &IbvMwBind) -> c_int,
    close_xrcd(xrcd: Ptr<IbvXrcd>) -> c_int,
    cq_event,
    create_ah(pd: Ptr<IbvPd>, attr: &IbvAhAttr) -> *mut IbvAh,
    #[cfg(feature = "pabi65")] create_comp_cntr,
    create_counters,
    create_cq(
        context: Ptr<IbvContext>, cqe: c_int, channel: Option<&IbvCompChannel>, comp_vector: c_int
    ) -> *mut IbvCq,
    create_cq_ex(context: Ptr<IbvContext>, attr: &IbvCqInitAttrEx) -> *mut IbvCqEx,
    create_flow,
    create_flow_action_esp,
    create_qp(pd: Ptr<IbvPd>, attr: &mut IbvQpInitAttr) -> *mut IbvQp,
    create_qp_ex(context: Ptr<IbvContext>, attr: &mut IbvQpInitAttrEx) -> *mut IbvQp,
    create_rwq_ind_table,
    create_srq(pd: Ptr<IbvPd>, init: &mut IbvSrqInitAttr) -> *mut IbvSrq,
    create_srq_ex(context: Ptr<IbvContext>, init: &mut IbvSrqInitAttrEx) -> *mut IbvSrq,
    create_wq,
    #[cfg(feature = "pabi65")] dealloc_dmah,
    dealloc_mw(mw: Ptr<IbvMw>) -> c_int,
    dealloc_pd(pd: Ptr<IbvPd>) -> c_int,
    dealloc_td,
    dereg_mr(mr: Ptr<VerbsMr>) -> c_int,
    destroy_ah(ah: Ptr<IbvAh>) -> c_int,
    #[cfg(feature = "pabi65")] destroy_comp_cntr,
    destroy_counters,
    destroy_cq(cq: Ptr<IbvCq>) -> c_int,
    destroy_flow,
    destroy_flow_action,
    destroy_qp(qp: Ptr<IbvQp>) -> c_int,
    destroy_rwq_ind_table,
    destroy_srq(srq: Ptr<IbvSrq>) -> c_int,
    destroy_wq,
    detach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int,
    #[cfg(feature = "pabi65")] dm_export_dmabuf_fd,
    #[cfg(feature = "pabi65")] free_buf,
    free_context(context: Ptr<IbvContext>) -> (),
    free_dm,
    get_srq_num(srq: Ptr<IbvSrq>, number: &mut MaybeUninit<u32>) -> c_int,
    import_dm,
    import_mr,
    import_pd,
    #[cfg(feature = "pabi65")] inc_comp_cntr,
    #[cfg(feature = "pabi65")] inc_err_comp_cntr,
    modify_cq,
    modify_flow_action_esp,
    modify_qp(qp: Ptr<IbvQp>, attr: &IbvQpAttr, attr_mask: c_int) -> c_int,
    modify_qp_rate_limit,
    modify_srq(srq: Ptr<IbvSrq>, attr: &IbvSrqAttr, mask: c_int) -> c_int,
    modify_wq,
    open_qp(context: Ptr<IbvContext>, attr: &IbvQpOpenAttr) -> *mut IbvQp,
    open_xrcd(context: Ptr<IbvContext>, attr: &IbvXrcdInitAttr) -> *mut IbvXrcd,
    poll_cq(cq: Ptr<IbvCq>, num_entries: c_int, wc: *mut IbvWc) -> c_int,
    post_recv(qp: Ptr<IbvQp>, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int,
    post_send(qp: Ptr<IbvQp>, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int,
    post_srq_ops,
    post_srq_recv(srq: Ptr<IbvSrq>, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int,
    #[cfg(feature = "pabi65")] qp_attach_comp_cntr,
    #[cfg(feature = "pabi65")] query_comp_cntr_caps,
    query_device_ex(
        context: Ptr<IbvContext>, input: Option<&IbvQueryDeviceExInput>, attr: *mut IbvDeviceAttrEx,
        attr_size: usize
    ) -> c_int,
    query_ece,
    query_port(context: Ptr<IbvContext>, port_num: u8, attr: &mut IbvPortAttr) -> c_int,
    #[cfg(feature = "pabi65")] query_port_speed,
    query_qp(
        qp: Ptr<IbvQp>, attr: &mut MaybeUninit<IbvQpAttr>, attr_mask: c_int,
        init_attr: &mut MaybeUninit<IbvQpInitAttr>
    ) -> c_int,
    query_qp_data_in_order,
    query_rt_values(context: Ptr<IbvContext>, values: &mut IbvValuesEx) -> c_int,
    query_srq(srq: Ptr<IbvSrq>, attr: &mut MaybeUninit<IbvSrqAttr>) -> c_int,
    #[cfg(feature = "pabi65")] read_comp_cntr,
    read_counters,
    #[cfg(feature = "pabi65")] read_err_comp_cntr,
    reg_dm_mr,
    reg_dmabuf_mr,
    reg_mr(
        pd: Ptr<IbvPd>, addr: *mut c_void, length: usize, hca_va: u64, access: c_int
    ) -> *mut IbvMr,
    #[cfg(feature = "pabi65")] reg_mr_ex,
    req_notify_cq(cq: Ptr<IbvCq>, solicited_only: c_int) -> c_int,
    rereg_mr(
        mr: Ptr<VerbsMr>, flags: c_int, pd: Option<Ptr<IbvPd>>, addr: *mut c_void, length: usize,
        access: c_int
    ) -> c_int,
    resize_cq(cq: Ptr<IbvCq>, cqe: c_int) -> c_int,
    #[cfg(feature = "pabi65")] set_comp_cntr,
    set_ece,
    #[cfg(feature = "pabi65")] set_err_comp_cntr,
    unimport_dm,
    unimport_mr,
    unimport_pd,
}

impl VerbsContextOps {
    /// Creates a table without any operation.
    pub(crate) const fn empty() -> Self {
        // SAFETY: every member is an optional function pointer, for which zero means `None`.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}
