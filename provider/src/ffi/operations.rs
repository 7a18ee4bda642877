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
        $(($($type:ty),*) $(-> $result:ty)?)?,
    )*) => {
        /// `struct verbs_context_ops`. Private ABI 65 inserts operations between those of 34.
        #[repr(C)]
        pub(crate) struct VerbsContextOps {
            $(
                $(#[$cfg])*
                pub(crate) $name: operation!($(($($type),*) $(-> $result)?)?),
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
    @(16, 32) alloc_mw(Ptr<IbvPd>, u32) -> *mut IbvMw,
    alloc_null_mr,
    alloc_parent_domain,
    @(40, 56) alloc_pd(Ptr<IbvContext>) -> *mut IbvPd,
    alloc_td,
    async_event,
    attach_counters_point_flow,
    @(72, 88) attach_mcast(Ptr<IbvQp>, &IbvGid, u16) -> c_int,
    @(80, 96) bind_mw(Ptr<IbvQp>, Ptr<IbvMw>, &IbvMwBind) -> c_int,
    @(88, 104) close_xrcd(Ptr<IbvXrcd>) -> c_int,
    cq_event,
    @(104, 120) create_ah(Ptr<IbvPd>, &IbvAhAttr) -> *mut IbvAh,
    #[cfg(feature = "pabi65")] create_comp_cntr,
    create_counters,
    @(120, 144) create_cq(Ptr<IbvContext>, c_int, Option<&IbvCompChannel>, c_int) -> *mut IbvCq,
    @(128, 152) create_cq_ex(Ptr<IbvContext>, &IbvCqInitAttrEx) -> *mut IbvCqEx,
    create_flow,
    create_flow_action_esp,
    @(152, 176) create_qp(Ptr<IbvPd>, &mut IbvQpInitAttr) -> *mut IbvQp,
    @(160, 184) create_qp_ex(Ptr<IbvContext>, &mut IbvQpInitAttrEx) -> *mut IbvQp,
    create_rwq_ind_table,
    @(176, 200) create_srq(Ptr<IbvPd>, &mut IbvSrqInitAttr) -> *mut IbvSrq,
    @(184, 208) create_srq_ex(Ptr<IbvContext>, &mut IbvSrqInitAttrEx) -> *mut IbvSrq,
    create_wq,
    #[cfg(feature = "pabi65")] dealloc_dmah,
    @(200, 232) dealloc_mw(Ptr<IbvMw>) -> c_int,
    @(208, 240) dealloc_pd(Ptr<IbvPd>) -> c_int,
    dealloc_td,
    @(224, 256) dereg_mr(Ptr<VerbsMr>) -> c_int,
    @(232, 264) destroy_ah(Ptr<IbvAh>) -> c_int,
    #[cfg(feature = "pabi65")] destroy_comp_cntr,
    destroy_counters,
    @(248, 288) destroy_cq(Ptr<IbvCq>) -> c_int,
    destroy_flow,
    destroy_flow_action,
    @(272, 312) destroy_qp(Ptr<IbvQp>) -> c_int,
    destroy_rwq_ind_table,
    @(288, 328) destroy_srq(Ptr<IbvSrq>) -> c_int,
    destroy_wq,
    @(304, 344) detach_mcast(Ptr<IbvQp>, &IbvGid, u16) -> c_int,
    #[cfg(feature = "pabi65")] dm_export_dmabuf_fd,
    #[cfg(feature = "pabi65")] free_buf,
    @(312, 368) free_context(Ptr<IbvContext>),
    free_dm,
    @(328, 384) get_srq_num(Ptr<IbvSrq>, &mut MaybeUninit<u32>) -> c_int,
    import_dm,
    import_mr,
    import_pd,
    #[cfg(feature = "pabi65")] inc_comp_cntr,
    #[cfg(feature = "pabi65")] inc_err_comp_cntr,
    modify_cq,
    modify_flow_action_esp,
    @(376, 448) modify_qp(Ptr<IbvQp>, &IbvQpAttr, c_int) -> c_int,
    modify_qp_rate_limit,
    @(392, 464) modify_srq(Ptr<IbvSrq>, &IbvSrqAttr, c_int) -> c_int,
    modify_wq,
    @(408, 480) open_qp(Ptr<IbvContext>, &IbvQpOpenAttr) -> *mut IbvQp,
    @(416, 488) open_xrcd(Ptr<IbvContext>, &IbvXrcdInitAttr) -> *mut IbvXrcd,
    @(424, 496) poll_cq(Ptr<IbvCq>, c_int, *mut IbvWc) -> c_int,
    @(432, 504) post_recv(Ptr<IbvQp>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int,
    @(440, 512) post_send(Ptr<IbvQp>, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int,
    post_srq_ops,
    @(456, 528) post_srq_recv(Ptr<IbvSrq>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int,
    #[cfg(feature = "pabi65")] qp_attach_comp_cntr,
    #[cfg(feature = "pabi65")] query_comp_cntr_caps,
    @(464, 552) query_device_ex(
        Ptr<IbvContext>, Option<&IbvQueryDeviceExInput>, *mut IbvDeviceAttrEx, usize
    ) -> c_int,
    query_ece,
    @(480, 568) query_port(Ptr<IbvContext>, u8, &mut IbvPortAttr) -> c_int,
    #[cfg(feature = "pabi65")] query_port_speed,
    @(488, 584) query_qp(
        Ptr<IbvQp>, &mut MaybeUninit<IbvQpAttr>, c_int, &mut MaybeUninit<IbvQpInitAttr>
    ) -> c_int,
    query_qp_data_in_order,
    @(504, 600) query_rt_values(Ptr<IbvContext>, &mut IbvValuesEx) -> c_int,
    @(512, 608) query_srq(Ptr<IbvSrq>, &mut MaybeUninit<IbvSrqAttr>) -> c_int,
    #[cfg(feature = "pabi65")] read_comp_cntr,
    read_counters,
    #[cfg(feature = "pabi65")] read_err_comp_cntr,
    reg_dm_mr,
    reg_dmabuf_mr,
    @(544, 656) reg_mr(Ptr<IbvPd>, *mut c_void, usize, u64, c_int) -> *mut IbvMr,
    #[cfg(feature = "pabi65")] reg_mr_ex,
    @(552, 672) req_notify_cq(Ptr<IbvCq>, c_int) -> c_int,
    @(560, 680) rereg_mr(
        Ptr<VerbsMr>, c_int, Option<Ptr<IbvPd>>, *mut c_void, usize, c_int
    ) -> c_int,
    @(568, 688) resize_cq(Ptr<IbvCq>, c_int) -> c_int,
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
