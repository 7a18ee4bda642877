// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Structures, function types and constants of libibverbs' public header, `infiniband/verbs.h`,
//! as far as this provider uses them.
//!
//! They are part of libibverbs' stable ABI, which is identical in every version. Names are those of
//! the header in Rust's spelling (`struct ibv_send_wr` is [`IbvSendWr`]); fields keep their names,
//! so `verbs.h` and its manual pages document them. Members that only libibverbs and the program
//! use are arrays. [`super::layout`] asserts sizes and offsets.

use super::layout::MUTEX_WORDS;
use super::ptr::{Foreign, Ptr, Public};
pub(crate) use crate::abi::Sge as IbvSge;
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_uint, c_void};

/// Words of a `pthread_mutex_t`, a `pthread_cond_t` and two counters of events, with which several
/// structures end.
const EVENT_WORDS: usize = MUTEX_WORDS + 6 + 1;

opaque! {
    IbvDevice;
    IbvPortAttr;
    IbvQueryDeviceExInput;
    /// `union ibv_gid`.
    IbvGid;
    IbvCompChannel;
    IbvAhAttr;
    IbvXrcd;
    IbvXrcdInitAttr;
    IbvQpOpenAttr;
    IbvModifyCqAttr;
    IbvCq;
}

structures! {
    /// `struct ibv_context`. `verbs_set_ops` fills in its table of operations.
    struct IbvContext (328, mutex at 280) {
        @0 unused: [u64; 36 + MUTEX_WORDS],
    }

    /// The C types of the counts are signed, but none is negative.
    struct IbvDeviceAttr (232) {
        @0 fw_ver: [c_char; 64],
        @64 unused_from_node_guid: [u64; 6],
        @112 max_qp_wr: u32,
        @116 unused_from_device_cap_flags: [u32; 4],
        @132 max_cqe: u32,
        @136 unused_from_max_mr: [u32; 20],
        @216 max_srq_wr: u32,
        @220 max_srq_sge: u32,
        @224 unused_from_max_pkeys: [u32; 2],
    }

    /// The first members of `struct ibv_device_attr_ex`; the caller's may be longer or shorter.
    struct IbvDeviceAttrEx (280) {
        @0 orig_attr: IbvDeviceAttr,
        @232 unused_from_comp_mask: [u64; 4],
        @264 completion_timestamp_mask: u64,
        /// Frequency of the clock, in kHz.
        @272 hca_core_clock: u64,
    }

    struct IbvValuesEx (24) {
        @0 comp_mask: u32,
        @8 raw_clock: super::os::Timespec,
    }

    struct IbvPd (16) {
        @0 context: Ptr<IbvContext>,
        @8 handle: u32,
    }

    struct IbvAllocDmAttr (16) {
        @0 length: usize,
        @8 log_align_req: u32,
        @12 comp_mask: u32,
    }

    struct IbvDm (32) {
        @0 context: Ptr<IbvContext>,
        @8 memcpy_to_dm: c_fn!((Ptr<IbvDm>, u64, *const c_void, usize) -> c_int),
        @16 memcpy_from_dm: c_fn!((*mut c_void, Ptr<IbvDm>, u64, usize) -> c_int),
        @24 comp_mask: u32,
        @28 handle: u32,
    }

    struct IbvTd (8) {
        @0 context: Ptr<IbvContext>,
    }

    struct IbvTdInitAttr (4) {
        @0 comp_mask: u32,
    }

    struct IbvParentDomainInitAttr (48) {
        @0 pd: Option<Ptr<IbvPd>>,
        @8 td: Option<Ptr<IbvTd>>,
        @16 comp_mask: u32,
        @24 alloc: Option<AllocFn>,
        @32 free: Option<FreeFn>,
        @40 pd_context: *mut c_void,
    }

    #[derive(Default)]
    struct IbvMr (48) {
        @0 context: Option<Ptr<IbvContext>>,
        @8 pd: Option<Ptr<IbvPd>>,
        @16 unused_addr: u64,
        @24 length: usize,
        @32 unused_handle: u32,
        @36 lkey: u32,
        @40 unused_rkey: u64,
    }

    #[derive(Default)]
    struct IbvMw (32) {
        @0 unused: [u64; 2],
        @16 rkey: Cell<u32>,
        @20 unused_handle: u32,
        /// `enum ibv_mw_type`.
        @24 mw_type: u32,
    }

    #[derive(Clone, Copy)]
    struct IbvMwBindInfo (32) {
        @0 mr: Option<Ptr<IbvMr>>,
        @8 addr: u64,
        @16 length: u64,
        @24 mw_access_flags: c_uint,
    }

    struct IbvMwBind (48) {
        @0 wr_id: u64,
        @8 send_flags: c_uint,
        @16 bind_info: IbvMwBindInfo,
    }

    #[derive(Default)]
    struct IbvAh (24) {
        @0 unused: [u64; 3],
    }

    struct IbvSrq (128, mutex at 32) {
        @0 unused_context: u64,
        @8 srq_context: *mut c_void,
        @16 pd: Option<Ptr<IbvPd>>,
        @24 unused_from_handle: [u64; 1 + EVENT_WORDS],
    }

    #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
    struct IbvSrqAttr (12) {
        @0 max_wr: u32,
        @4 max_sge: u32,
        @8 srq_limit: u32,
    }

    struct IbvSrqInitAttr (24) {
        @0 srq_context: *mut c_void,
        @8 attr: IbvSrqAttr,
    }

    #[derive(Clone, Copy)]
    struct IbvSrqInitAttrEx (64) {
        @0 srq_context: *mut c_void,
        @8 attr: IbvSrqAttr,
        @20 comp_mask: u32,
        @24 srq_type: u32,
        @32 pd: Option<Ptr<IbvPd>>,
        @40 xrcd: Option<Ptr<IbvXrcd>>,
        @48 cq: Option<Ptr<IbvCq>>,
        /// `struct ibv_tm_cap`.
        @56 tm_cap: [u32; 2],
    }

    struct IbvCqEx (288, mutex at 32) {
        @0 unused: [u64; 4 + EVENT_WORDS],
        @128 comp_mask: u32,
        @132 status: u32,
        @136 wr_id: u64,
        @144 start_poll: c_fn!((Ptr<IbvCqEx>, Option<&IbvPollCqAttr>) -> c_int),
        @152 next_poll: c_fn!((Ptr<IbvCqEx>) -> c_int),
        @160 end_poll: c_fn!((Ptr<IbvCqEx>)),
        @168 read_opcode: c_fn!((Ptr<IbvCqEx>) -> c_uint),
        @176 read_vendor_err: c_fn!((Ptr<IbvCqEx>) -> u32),
        @184 read_byte_len: c_fn!((Ptr<IbvCqEx>) -> u32),
        @192 read_imm_data: c_fn!((Ptr<IbvCqEx>) -> u32),
        @200 read_qp_num: c_fn!((Ptr<IbvCqEx>) -> u32),
        @208 read_src_qp: c_fn!((Ptr<IbvCqEx>) -> u32),
        @216 read_wc_flags: c_fn!((Ptr<IbvCqEx>) -> c_uint),
        @224 read_slid: c_fn!((Ptr<IbvCqEx>) -> u32),
        @232 read_sl: c_fn!((Ptr<IbvCqEx>) -> u8),
        @240 read_dlid_path_bits: c_fn!((Ptr<IbvCqEx>) -> u8),
        @248 read_completion_ts: c_fn!((Ptr<IbvCqEx>) -> u64),
        @256 unused_from_read_cvlan: [u64; 3],
        @280 read_completion_wallclock_ns: c_fn!((Ptr<IbvCqEx>) -> u64),
    }

    struct IbvPollCqAttr (4) {
        @0 comp_mask: u32,
    }

    struct IbvCqInitAttrEx (56) {
        @0 cqe: u32,
        @8 unused_cq_context: *mut c_void,
        @16 channel: Option<Foreign<IbvCompChannel>>,
        @24 comp_vector: u32,
        @32 wc_flags: u64,
        @40 comp_mask: u32,
        @44 flags: u32,
        @48 parent_domain: Option<Ptr<IbvPd>>,
    }

    #[derive(Clone, Copy)]
    struct IbvWc (48) {
        @0 wr_id: u64,
        @8 status: u32,
        @12 opcode: u32,
        @16 vendor_err: u32,
        @20 byte_len: u32,
        /// Also `invalidated_rkey`.
        @24 imm_data: u32,
        @28 qp_num: u32,
        @32 src_qp: u32,
        @36 wc_flags: c_uint,
        @40 pkey_index: u16,
        @42 slid: u16,
        @44 sl: u8,
        @45 dlid_path_bits: u8,
    }

    struct IbvQp (160, mutex at 64) {
        @0 unused: [u64; 6],
        @48 handle: u32,
        @52 qp_num: u32,
        @56 unused_from_state: [u64; 1 + EVENT_WORDS],
    }

    struct IbvQpEx (360, mutex at 64) {
        @0 qp_base: IbvQp,
        @160 comp_mask: u64,
        @168 wr_id: u64,
        @176 wr_flags: c_uint,
        @184 wr_atomic_cmp_swp: c_fn!((Ptr<IbvQpEx>, u32, u64, u64, u64)),
        @192 wr_atomic_fetch_add: c_fn!((Ptr<IbvQpEx>, u32, u64, u64)),
        @200 wr_bind_mw: c_fn!((Ptr<IbvQpEx>, Option<Ptr<IbvMw>>, u32, &IbvMwBindInfo)),
        @208 wr_local_inv: c_fn!((Ptr<IbvQpEx>, u32)),
        @216 wr_rdma_read: c_fn!((Ptr<IbvQpEx>, u32, u64)),
        @224 wr_rdma_write: c_fn!((Ptr<IbvQpEx>, u32, u64)),
        @232 wr_rdma_write_imm: c_fn!((Ptr<IbvQpEx>, u32, u64, u32)),
        @240 wr_send: c_fn!((Ptr<IbvQpEx>)),
        @248 wr_send_imm: c_fn!((Ptr<IbvQpEx>, u32)),
        @256 wr_send_inv: c_fn!((Ptr<IbvQpEx>, u32)),
        @264 unused_wr_send_tso: u64,
        @272 wr_set_ud_addr: c_fn!((Ptr<IbvQpEx>, Option<Ptr<IbvAh>>, u32, u32)),
        @280 wr_set_xrc_srqn: c_fn!((Ptr<IbvQpEx>, u32)),
        @288 wr_set_inline_data: c_fn!((Ptr<IbvQpEx>, *const c_void, usize)),
        @296 wr_set_inline_data_list: c_fn!((Ptr<IbvQpEx>, usize, *const IbvDataBuf)),
        @304 wr_set_sge: c_fn!((Ptr<IbvQpEx>, u32, u64, u32)),
        @312 wr_set_sge_list: c_fn!((Ptr<IbvQpEx>, usize, *const IbvSge)),
        @320 wr_start: c_fn!((Ptr<IbvQpEx>)),
        @328 wr_complete: c_fn!((Ptr<IbvQpEx>) -> c_int),
        @336 wr_abort: c_fn!((Ptr<IbvQpEx>)),
        @344 wr_atomic_write: c_fn!((Ptr<IbvQpEx>, u32, u64, *const c_void)),
        @352 wr_flush: c_fn!((Ptr<IbvQpEx>, u32, u64, usize, u8, u8)),
    }

    #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
    struct IbvQpCap (20) {
        @0 max_send_wr: u32,
        @4 max_recv_wr: u32,
        @8 max_send_sge: u32,
        @12 max_recv_sge: u32,
        @16 max_inline_data: u32,
    }

    struct IbvQpInitAttr (64) {
        @0 qp_context: *mut c_void,
        @8 send_cq: Option<Ptr<IbvCq>>,
        @16 recv_cq: Option<Ptr<IbvCq>>,
        @24 srq: Option<Ptr<IbvSrq>>,
        @32 cap: IbvQpCap,
        @52 qp_type: u32,
        @56 sq_sig_all: c_int,
    }

    #[derive(Clone, Copy)]
    struct IbvQpInitAttrEx (136) {
        @0 qp_context: *mut c_void,
        @8 send_cq: Option<Ptr<IbvCq>>,
        @16 recv_cq: Option<Ptr<IbvCq>>,
        @24 srq: Option<Ptr<IbvSrq>>,
        @32 cap: IbvQpCap,
        @52 qp_type: u32,
        @56 sq_sig_all: c_int,
        @60 comp_mask: u32,
        @64 pd: Option<Ptr<IbvPd>>,
        @72 xrcd: Option<Ptr<IbvXrcd>>,
        @80 create_flags: u32,
        @84 unused_max_tso_header: u16,
        @88 unused_from_rwq_ind_tbl: [u64; 4],
        @120 unused_source_qpn: u32,
        @128 send_ops_flags: u64,
    }

    struct IbvQpAttr (144) {
        @0 qp_state: u32,
        @4 unused_from_cur_qp_state: [u32; 8],
        @36 cap: IbvQpCap,
        @56 unused_from_ah_attr: [u32; 22],
    }

    struct IbvSendWr (128) {
        @0 wr_id: u64,
        @8 next: *mut IbvSendWr,
        @16 sg_list: *const IbvSge,
        @24 num_sge: c_int,
        @28 opcode: u32,
        @32 send_flags: c_uint,
        /// Also `invalidate_rkey`.
        @36 imm_data: u32,
        @40 wr: Wr,
        @72 remote_srqn: u32,
        /// `bind_mw` and `tso`.
        @80 extra: WrExtra,
    }

    /// `wr.rdma` of [`IbvSendWr`].
    #[derive(Clone, Copy)]
    struct WrRdma (16) {
        @0 remote_addr: u64,
        @8 rkey: u32,
    }

    /// `wr.atomic` of [`IbvSendWr`].
    #[derive(Clone, Copy)]
    struct WrAtomic (32) {
        @0 remote_addr: u64,
        @8 compare_add: u64,
        @16 swap: u64,
        @24 rkey: u32,
    }

    /// `wr.ud` of [`IbvSendWr`].
    #[derive(Clone, Copy)]
    struct WrUd (16) {
        @0 ah: Option<Ptr<IbvAh>>,
        @8 remote_qpn: u32,
        @12 remote_qkey: u32,
    }

    /// `bind_mw` of [`IbvSendWr`].
    #[derive(Clone, Copy)]
    struct WrBindMw (48) {
        @0 mw: Option<Ptr<IbvMw>>,
        @8 rkey: u32,
        @16 bind_info: IbvMwBindInfo,
    }

    struct IbvRecvWr (32) {
        @0 wr_id: u64,
        @8 next: *mut IbvRecvWr,
        @16 sg_list: *const IbvSge,
        @24 num_sge: c_int,
    }

    struct IbvDataBuf (16) {
        @0 addr: *mut c_void,
        @8 length: usize,
    }
}

/// `wr` of [`IbvSendWr`]: the opcode and the type of the queue pair select the valid member.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Wr {
    pub(crate) rdma: WrRdma,
    pub(crate) atomic: WrAtomic,
    pub(crate) ud: WrUd,
}

/// Further arguments of an [`IbvSendWr`], which are valid for some opcodes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union WrExtra {
    pub(crate) bind_mw: WrBindMw,
}

// SAFETY: these objects consist of the public part alone. Only the key of a window changes.
unsafe impl Public for IbvMr {
    type Object = Self;
}
// SAFETY: as above.
unsafe impl Public for IbvMw {
    type Object = Self;
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub(crate) const VALUES_MASK_RAW_CLOCK: u32 = 1;
/// `IBV_DM_MASK_HANDLE`: [`IbvDm::handle`] is valid.
pub(crate) const DM_MASK_HANDLE: u32 = 1;
/// `IBV_MW_TYPE_2`.
pub(crate) const MW_TYPE_2: u32 = 2;
/// `IBV_SRQ_MAX_WR` in the mask of modify.
pub(crate) const SRQ_MAX_WR: c_int = 1;
/// `IBV_SRQT_XRC`.
pub(crate) const SRQ_TYPE_XRC: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`: `flags` is valid.
pub(crate) const CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_PD`: `parent_domain` is valid.
pub(crate) const CQ_INIT_ATTR_MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
pub(crate) const CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
/// `IBV_QP_STATE` in the mask of modify and query.
pub(crate) const QP_ATTR_STATE: c_int = 1;

/// Allocates memory: parent domain, `pd_context`, size, alignment, type of resource.
pub(crate) type AllocFn =
    unsafe extern "C" fn(*mut IbvPd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// Frees memory: parent domain, `pd_context`, address, type of resource.
pub(crate) type FreeFn = unsafe extern "C" fn(*mut IbvPd, *mut c_void, *mut c_void, u64);

/// Bits of [`IbvParentDomainInitAttr::comp_mask`] (`enum ibv_parent_domain_init_attr_mask`).
pub(crate) mod parent_domain_init_attr {
    pub(crate) const ALLOCATORS: u32 = 1 << 0;
    pub(crate) const PD_CONTEXT: u32 = 1 << 1;
}

/// Bits of [`IbvSrqInitAttrEx::comp_mask`] (`enum ibv_srq_init_attr_mask`).
pub(crate) mod srq_init_attr {
    pub(crate) const TYPE: u32 = 1 << 0;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const XRCD: u32 = 1 << 2;
    pub(crate) const CQ: u32 = 1 << 3;
}

/// Bits of [`IbvCqInitAttrEx::wc_flags`] (`enum ibv_create_cq_wc_flags`).
pub(crate) mod wc_ex {
    pub(crate) const BYTE_LEN: u64 = 1 << 0;
    pub(crate) const IMM: u64 = 1 << 1;
    pub(crate) const QP_NUM: u64 = 1 << 2;
    pub(crate) const SRC_QP: u64 = 1 << 3;
    pub(crate) const SLID: u64 = 1 << 4;
    pub(crate) const SL: u64 = 1 << 5;
    pub(crate) const DLID_PATH_BITS: u64 = 1 << 6;
    pub(crate) const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub(crate) const COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
}

/// Bits of [`IbvQpInitAttrEx::comp_mask`] (`enum ibv_qp_init_attr_mask`).
pub(crate) mod qp_init_attr {
    pub(crate) const PD: u32 = 1 << 0;
    pub(crate) const XRCD: u32 = 1 << 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// Values of [`IbvQpInitAttr::qp_type`] (`enum ibv_qp_type`).
pub(crate) mod qp_type {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
    pub(crate) const XRC_SEND: u32 = 9;
    pub(crate) const XRC_RECV: u32 = 10;
}

/// Values of [`IbvQpAttr::qp_state`] (`enum ibv_qp_state`).
pub(crate) mod qp_state {
    pub(crate) const RESET: u32 = 0;
    pub(crate) const RTS: u32 = 3;
}
