// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions that a provider passes to libibverbs: `struct verbs_context_ops`. Their types are
//! identical in both private ABIs, but their places in the table differ.
//!
//! The types state what libibverbs guarantees: a [`Ptr`] points to an object of this provider, a
//! reference to a structure of the program (or of libibverbs) that may be read, a mutable one to
//! one that may also be written. An optional argument may be null.

use super::driver::VerbsMr;
use super::pabi::by_pabi;
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
    ($($signature:tt)+) => { c_fn!($($signature)+) };
}

/// Defines the table of operations: all of them, in the alphabetical order of the header. Those
/// that this provider implements have their offsets in private ABI 34 and in 65, and their types.
macro_rules! operations {
    ($(
        $(#[$cfg:meta])* $(@($pabi34:literal, $pabi65:literal))? $name:ident
        $(($($arg:ident: $type:ty),*) $(-> $result:ty)?)?,
    )*) => {
        /// `struct verbs_context_ops`. Private ABI 65 inserts operations between those of 34.
        #[repr(C)]
        pub(crate) struct VerbsContextOps {
            $(
                $(#[$cfg])*
                pub(crate) $name: operation!($(($($arg: $type),*) $(-> $result)?)?),
            )*
        }

        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(core::mem::size_of::<VerbsContextOps>() == by_pabi(608, 744));
            $($(
                assert!(core::mem::offset_of!(VerbsContextOps, $name) == by_pabi($pabi34, $pabi65));
            )?)*
        };
    };
}

operations! {
    advise_mr,
    #[cfg(feature = "pabi65")] alloc_buf,
    alloc_dm,
    #[cfg(feature = "pabi65")] alloc_dmah,
    @(16, 32) alloc_mw(pd: Ptr<IbvPd>, mw_type: u32) -> *mut IbvMw,
    alloc_null_mr,
    alloc_parent_domain,
    @(40, 56) alloc_pd(context: Ptr<IbvContext>) -> *mut IbvPd,
    alloc_td,
    async_event,
    attach_counters_point_flow,
    @(72, 88) attach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int,
    @(80, 96) bind_mw(qp: Ptr<IbvQp>, mw: Ptr<IbvMw>, bind: &IbvMwBind) -> c_int,
    @(88, 104) close_xrcd(xrcd: Ptr<IbvXrcd>) -> c_int,
    cq_event,
    @(104, 120) create_ah(pd: Ptr<IbvPd>, attr: &IbvAhAttr) -> *mut IbvAh,
    #[cfg(feature = "pabi65")] create_comp_cntr,
    create_counters,
    @(120, 144) create_cq(
        context: Ptr<IbvContext>, cqe: c_int, channel: Option<&IbvCompChannel>, comp_vector: c_int
    ) -> *mut IbvCq,
    @(128, 152) create_cq_ex(context: Ptr<IbvContext>, attr: &IbvCqInitAttrEx) -> *mut IbvCqEx,
    create_flow,
    create_flow_action_esp,
    @(152, 176) create_qp(pd: Ptr<IbvPd>, attr: &mut IbvQpInitAttr) -> *mut IbvQp,
    @(160, 184) create_qp_ex(context: Ptr<IbvContext>, attr: &mut IbvQpInitAttrEx) -> *mut IbvQp,
    create_rwq_ind_table,
    @(176, 200) create_srq(pd: Ptr<IbvPd>, init: &mut IbvSrqInitAttr) -> *mut IbvSrq,
    @(184, 208) create_srq_ex(context: Ptr<IbvContext>, init: &mut IbvSrqInitAttrEx) -> *mut IbvSrq,
    create_wq,
    #[cfg(feature = "pabi65")] dealloc_dmah,
    @(200, 232) dealloc_mw(mw: Ptr<IbvMw>) -> c_int,
    @(208, 240) dealloc_pd(pd: Ptr<IbvPd>) -> c_int,
    dealloc_td,
    @(224, 256) dereg_mr(mr: Ptr<VerbsMr>) -> c_int,
    @(232, 264) destroy_ah(ah: Ptr<IbvAh>) -> c_int,
    #[cfg(feature = "pabi65")] destroy_comp_cntr,
    destroy_counters,
    @(248, 288) destroy_cq(cq: Ptr<IbvCq>) -> c_int,
    destroy_flow,
    destroy_flow_action,
    @(272, 312) destroy_qp(qp: Ptr<IbvQp>) -> c_int,
    destroy_rwq_ind_table,
    @(288, 328) destroy_srq(srq: Ptr<IbvSrq>) -> c_int,
    destroy_wq,
    @(304, 344) detach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int,
    #[cfg(feature = "pabi65")] dm_export_dmabuf_fd,
    #[cfg(feature = "pabi65")] free_buf,
    @(312, 368) free_context(context: Ptr<IbvContext>),
    free_dm,
    @(328, 384) get_srq_num(srq: Ptr<IbvSrq>, number: &mut MaybeUninit<u32>) -> c_int,
    import_dm,
    import_mr,
    import_pd,
    #[cfg(feature = "pabi65")] inc_comp_cntr,
    #[cfg(feature = "pabi65")] inc_err_comp_cntr,
    modify_cq,
    modify_flow_action_esp,
    @(376, 448) modify_qp(qp: Ptr<IbvQp>, attr: &IbvQpAttr, attr_mask: c_int) -> c_int,
    modify_qp_rate_limit,
    @(392, 464) modify_srq(srq: Ptr<IbvSrq>, attr: &IbvSrqAttr, mask: c_int) -> c_int,
    modify_wq,
    @(408, 480) open_qp(context: Ptr<IbvContext>, attr: &IbvQpOpenAttr) -> *mut IbvQp,
    @(416, 488) open_xrcd(context: Ptr<IbvContext>, attr: &IbvXrcdInitAttr) -> *mut IbvXrcd,
    @(424, 496) poll_cq(cq: Ptr<IbvCq>, num_entries: c_int, wc: *mut IbvWc) -> c_int,
    @(432, 504) post_recv(qp: Ptr<IbvQp>, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int,
    @(440, 512) post_send(qp: Ptr<IbvQp>, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int,
    post_srq_ops,
    @(456, 528) post_srq_recv(
        srq: Ptr<IbvSrq>, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr
    ) -> c_int,
    #[cfg(feature = "pabi65")] qp_attach_comp_cntr,
    #[cfg(feature = "pabi65")] query_comp_cntr_caps,
    @(464, 552) query_device_ex(
        context: Ptr<IbvContext>, input: Option<&IbvQueryDeviceExInput>, attr: *mut IbvDeviceAttrEx,
        attr_size: usize
    ) -> c_int,
    query_ece,
    @(480, 568) query_port(context: Ptr<IbvContext>, port_num: u8, attr: &mut IbvPortAttr) -> c_int,
    #[cfg(feature = "pabi65")] query_port_speed,
    @(488, 584) query_qp(
        qp: Ptr<IbvQp>, attr: &mut MaybeUninit<IbvQpAttr>, attr_mask: c_int,
        init_attr: &mut MaybeUninit<IbvQpInitAttr>
    ) -> c_int,
    query_qp_data_in_order,
    @(504, 600) query_rt_values(context: Ptr<IbvContext>, values: &mut IbvValuesEx) -> c_int,
    @(512, 608) query_srq(srq: Ptr<IbvSrq>, attr: &mut MaybeUninit<IbvSrqAttr>) -> c_int,
    #[cfg(feature = "pabi65")] read_comp_cntr,
    read_counters,
    #[cfg(feature = "pabi65")] read_err_comp_cntr,
    reg_dm_mr,
    reg_dmabuf_mr,
    @(544, 656) reg_mr(
        pd: Ptr<IbvPd>, addr: *mut c_void, length: usize, hca_va: u64, access: c_int
    ) -> *mut IbvMr,
    #[cfg(feature = "pabi65")] reg_mr_ex,
    @(552, 672) req_notify_cq(cq: Ptr<IbvCq>, solicited_only: c_int) -> c_int,
    @(560, 680) rereg_mr(
        mr: Ptr<VerbsMr>, flags: c_int, pd: Option<Ptr<IbvPd>>, addr: *mut c_void, length: usize,
        access: c_int
    ) -> c_int,
    @(568, 688) resize_cq(cq: Ptr<IbvCq>, cqe: c_int) -> c_int,
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
