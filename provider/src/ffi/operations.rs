// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions that a provider hands to libibverbs, the members of `struct verbs_context_ops`:
//! their types are the same in all private ABIs, their places in the table are not.

use super::driver::VerbsMr;
use super::pabi::VerbsContextOps;
use super::verbs::*;
use core::ffi::{c_int, c_void};

/// An operation that this provider leaves to libibverbs, which answers `EOPNOTSUPP` or, in private
/// ABI 65, does what it can by other operations (`reg_mr_ex`, `alloc_buf`).
pub(crate) type Unset = Option<unsafe extern "C" fn()>;

/// `alloc_mw`.
pub(crate) type AllocMw = Option<unsafe extern "C" fn(pd: *mut IbvPd, mw_type: u32) -> *mut IbvMw>;
/// `alloc_pd`.
pub(crate) type AllocPd = Option<unsafe extern "C" fn(context: *mut IbvContext) -> *mut IbvPd>;
/// `attach_mcast`.
pub(crate) type AttachMcast =
    Option<unsafe extern "C" fn(qp: *mut IbvQp, gid: *const IbvGid, lid: u16) -> c_int>;
/// `bind_mw`.
pub(crate) type BindMw =
    Option<unsafe extern "C" fn(qp: *mut IbvQp, mw: *mut IbvMw, bind: *mut IbvMwBind) -> c_int>;
/// `close_xrcd`.
pub(crate) type CloseXrcd = Option<unsafe extern "C" fn(xrcd: *mut IbvXrcd) -> c_int>;
/// `create_ah`.
pub(crate) type CreateAh =
    Option<unsafe extern "C" fn(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh>;
/// `create_cq`.
pub(crate) type CreateCq = Option<
    unsafe extern "C" fn(
        context: *mut IbvContext,
        cqe: c_int,
        channel: *mut IbvCompChannel,
        comp_vector: c_int,
    ) -> *mut IbvCq,
>;
/// `create_cq_ex`.
pub(crate) type CreateCqEx = Option<
    unsafe extern "C" fn(context: *mut IbvContext, init_attr: *mut IbvCqInitAttrEx) -> *mut IbvCqEx,
>;
/// `create_qp`.
pub(crate) type CreateQp =
    Option<unsafe extern "C" fn(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp>;
/// `create_qp_ex`.
pub(crate) type CreateQpEx = Option<
    unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvQpInitAttrEx) -> *mut IbvQp,
>;
/// `create_srq`.
pub(crate) type CreateSrq =
    Option<unsafe extern "C" fn(pd: *mut IbvPd, init: *mut IbvSrqInitAttr) -> *mut IbvSrq>;
/// `create_srq_ex`.
pub(crate) type CreateSrqEx = Option<
    unsafe extern "C" fn(context: *mut IbvContext, init: *mut IbvSrqInitAttrEx) -> *mut IbvSrq,
>;
/// `dealloc_mw`.
pub(crate) type DeallocMw = Option<unsafe extern "C" fn(mw: *mut IbvMw) -> c_int>;
/// `dealloc_pd`.
pub(crate) type DeallocPd = Option<unsafe extern "C" fn(pd: *mut IbvPd) -> c_int>;
/// `dereg_mr`.
pub(crate) type DeregMr = Option<unsafe extern "C" fn(vmr: *mut VerbsMr) -> c_int>;
/// `destroy_ah`.
pub(crate) type DestroyAh = Option<unsafe extern "C" fn(ah: *mut IbvAh) -> c_int>;
/// `destroy_cq`.
pub(crate) type DestroyCq = Option<unsafe extern "C" fn(cq: *mut IbvCq) -> c_int>;
/// `destroy_qp`.
pub(crate) type DestroyQp = Option<unsafe extern "C" fn(qp: *mut IbvQp) -> c_int>;
/// `destroy_srq`.
pub(crate) type DestroySrq = Option<unsafe extern "C" fn(srq: *mut IbvSrq) -> c_int>;
/// `detach_mcast`.
pub(crate) type DetachMcast =
    Option<unsafe extern "C" fn(qp: *mut IbvQp, gid: *const IbvGid, lid: u16) -> c_int>;
/// `free_context`.
pub(crate) type FreeContext = Option<unsafe extern "C" fn(context: *mut IbvContext)>;
/// `get_srq_num`.
pub(crate) type GetSrqNum =
    Option<unsafe extern "C" fn(srq: *mut IbvSrq, number: *mut u32) -> c_int>;
/// `modify_qp`.
pub(crate) type ModifyQp =
    Option<unsafe extern "C" fn(qp: *mut IbvQp, attr: *mut IbvQpAttr, attr_mask: c_int) -> c_int>;
/// `modify_srq`.
pub(crate) type ModifySrq =
    Option<unsafe extern "C" fn(srq: *mut IbvSrq, attr: *mut IbvSrqAttr, mask: c_int) -> c_int>;
/// `open_qp`.
pub(crate) type OpenQp =
    Option<unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvQpOpenAttr) -> *mut IbvQp>;
/// `open_xrcd`.
pub(crate) type OpenXrcd = Option<
    unsafe extern "C" fn(context: *mut IbvContext, attr: *mut IbvXrcdInitAttr) -> *mut IbvXrcd,
>;
/// `poll_cq`.
pub(crate) type PollCq =
    Option<unsafe extern "C" fn(cq: *mut IbvCq, num_entries: c_int, wc: *mut IbvWc) -> c_int>;
/// `post_recv`.
pub(crate) type PostRecv = Option<
    unsafe extern "C" fn(qp: *mut IbvQp, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int,
>;
/// `post_send`.
pub(crate) type PostSend = Option<
    unsafe extern "C" fn(qp: *mut IbvQp, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int,
>;
/// `post_srq_recv`.
pub(crate) type PostSrqRecv = Option<
    unsafe extern "C" fn(
        srq: *mut IbvSrq,
        wr: *mut IbvRecvWr,
        bad_wr: *mut *mut IbvRecvWr,
    ) -> c_int,
>;
/// `query_device_ex`.
pub(crate) type QueryDeviceEx = Option<
    unsafe extern "C" fn(
        context: *mut IbvContext,
        input: *const IbvQueryDeviceExInput,
        attr: *mut IbvDeviceAttrEx,
        attr_size: usize,
    ) -> c_int,
>;
/// `query_port`.
pub(crate) type QueryPort = Option<
    unsafe extern "C" fn(context: *mut IbvContext, port_num: u8, attr: *mut IbvPortAttr) -> c_int,
>;
/// `query_qp`.
pub(crate) type QueryQp = Option<
    unsafe extern "C" fn(
        qp: *mut IbvQp,
        attr: *mut IbvQpAttr,
        attr_mask: c_int,
        init_attr: *mut IbvQpInitAttr,
    ) -> c_int,
>;
/// `query_rt_values`.
pub(crate) type QueryRtValues =
    Option<unsafe extern "C" fn(context: *mut IbvContext, values: *mut IbvValuesEx) -> c_int>;
/// `query_srq`.
pub(crate) type QuerySrq =
    Option<unsafe extern "C" fn(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int>;
/// `reg_mr`.
pub(crate) type RegMr = Option<
    unsafe extern "C" fn(
        pd: *mut IbvPd,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
    ) -> *mut IbvMr,
>;
/// `req_notify_cq`.
pub(crate) type ReqNotifyCq =
    Option<unsafe extern "C" fn(cq: *mut IbvCq, solicited_only: c_int) -> c_int>;
/// `rereg_mr`.
pub(crate) type ReregMr = Option<
    unsafe extern "C" fn(
        vmr: *mut VerbsMr,
        flags: c_int,
        pd: *mut IbvPd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int,
>;
/// `resize_cq`.
pub(crate) type ResizeCq = Option<unsafe extern "C" fn(cq: *mut IbvCq, cqe: c_int) -> c_int>;

impl VerbsContextOps {
    /// A table without any operation.
    pub(crate) const fn empty() -> Self {
        // SAFETY: every member is an optional function pointer, for which zero means `None`.
        unsafe { core::mem::MaybeUninit::zeroed().assume_init() }
    }
}
