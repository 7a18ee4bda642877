// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Structures, function types and constants of libibverbs' public header, `infiniband/verbs.h`,
//! as far as this provider uses them.
//!
//! They are part of libibverbs' stable ABI, which is identical in every version. Names are those of
//! the header in Rust's spelling (`struct ibv_send_wr` is [`IbvSendWr`]); fields keep their names,
//! so `verbs.h` and its manual pages document them. [`super::layout`] asserts sizes and offsets.

use super::ptr::{Ptr, Public};
use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// Words of glibc's `pthread_mutex_t`.
#[cfg(not(target_arch = "aarch64"))]
const MUTEX_WORDS: usize = 5;
/// Words of glibc's `pthread_mutex_t`.
#[cfg(target_arch = "aarch64")]
const MUTEX_WORDS: usize = 6;

/// `pthread_mutex_t`, which libibverbs initialises and uses; the provider only reserves the space.
#[repr(C)]
pub(crate) struct PthreadMutex(UnsafeCell<[u64; MUTEX_WORDS]>);

/// `pthread_cond_t`, which libibverbs initialises and uses; the provider only reserves the space.
#[repr(C)]
pub(crate) struct PthreadCond(UnsafeCell<[u64; 6]>);

/// Declares structures that only pass through this provider.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub(crate) struct $name { _opaque: [u8; 0] })*
    };
}

opaque! {
    /// `struct ibv_port_attr`.
    IbvPortAttr;
    /// `struct ibv_query_device_ex_input`.
    IbvQueryDeviceExInput;
    /// `union ibv_gid`.
    IbvGid;
    /// `struct ibv_comp_channel`.
    IbvCompChannel;
    /// `struct ibv_ah_attr`.
    IbvAhAttr;
    /// `struct ibv_wc_tm_info`.
    IbvWcTmInfo;
}

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct IbvDevice {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context`. `verbs_set_ops` fills in its table of operations.
#[repr(C)]
pub(crate) struct IbvContext {
    pub(crate) device: *mut IbvDevice,
    pub(crate) ops: [usize; 32],
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: PthreadMutex,
    pub(crate) abi_compat: *mut c_void,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(crate) struct IbvDeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    /// Members from `max_mr` to `max_map_per_fmr`, which are not used here.
    pub(crate) unused: [u32; 19],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    /// Members from `max_pkeys` to the end, which are not used here.
    pub(crate) rest: [u32; 2],
}

/// The first members of `struct ibv_device_attr_ex`; the caller's may be longer or shorter.
#[repr(C)]
pub(crate) struct IbvDeviceAttrEx {
    pub(crate) orig_attr: IbvDeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    /// Frequency of the clock, in kHz.
    pub(crate) hca_core_clock: u64,
}

/// `struct ibv_values_ex`.
#[repr(C)]
pub(crate) struct IbvValuesEx {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: super::os::Timespec,
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub(crate) const VALUES_MASK_RAW_CLOCK: u32 = 1;

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct IbvPd {
    pub(crate) context: Ptr<IbvContext>,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct IbvMr {
    pub(crate) context: Ptr<IbvContext>,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct IbvMw {
    pub(crate) context: Ptr<IbvContext>,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) rkey: Cell<u32>,
    pub(crate) handle: u32,
    /// `enum ibv_mw_type`.
    pub(crate) mw_type: u32,
}

// SAFETY: these objects consist of the public part alone. Only the key of a window changes.
unsafe impl Public for IbvPd {
    type Object = Self;
}
// SAFETY: as above.
unsafe impl Public for IbvMr {
    type Object = Self;
}
// SAFETY: as above.
unsafe impl Public for IbvMw {
    type Object = Self;
}

/// Values of [`IbvMw::mw_type`] (`enum ibv_mw_type`).
pub(crate) mod mw_type {
    pub(crate) const TYPE_2: u32 = 2;
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvMwBindInfo {
    pub(crate) mr: Option<Ptr<IbvMr>>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
pub(crate) struct IbvMwBind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: IbvMwBindInfo,
}

/// `bind_mw` of [`IbvSendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WrBindMw {
    pub(crate) mw: Option<Ptr<IbvMw>>,
    pub(crate) rkey: u32,
    pub(crate) bind_info: IbvMwBindInfo,
}

/// Further arguments of an [`IbvSendWr`]; the opcode selects the valid member.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union WrExtra {
    pub(crate) bind_mw: WrBindMw,
    pub(crate) words: [u64; 6],
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct IbvAh {
    pub(crate) context: Ptr<IbvContext>,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) handle: u32,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct IbvCq {
    pub(crate) context: Option<Ptr<IbvContext>>,
    pub(crate) channel: Option<&'static IbvCompChannel>,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: PthreadMutex,
    pub(crate) cond: PthreadCond,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct IbvSrq {
    pub(crate) context: Option<Ptr<IbvContext>>,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) handle: u32,
    pub(crate) mutex: PthreadMutex,
    pub(crate) cond: PthreadCond,
    pub(crate) events_completed: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct IbvSrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `IBV_SRQ_MAX_WR` in the mask of modify.
pub(crate) const SRQ_MAX_WR: c_int = 1;

/// `struct ibv_srq_init_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvSrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub(crate) struct IbvXrcd {
    pub(crate) context: Ptr<IbvContext>,
}

/// `struct ibv_xrcd_init_attr`, which is opaque.
#[repr(C)]
pub(crate) struct IbvXrcdInitAttr {
    _opaque: [u8; 0],
}

/// `struct ibv_qp_open_attr`, which is opaque.
#[repr(C)]
pub(crate) struct IbvQpOpenAttr {
    _opaque: [u8; 0],
}

/// `struct ibv_srq_init_attr_ex`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvSrqInitAttrEx {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: u32,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) xrcd: Option<Ptr<IbvXrcd>>,
    pub(crate) cq: Option<Ptr<IbvCq>>,
    /// `struct ibv_tm_cap`.
    pub(crate) tm_cap: [u32; 2],
}

/// Bits of [`IbvSrqInitAttrEx::comp_mask`] (`enum ibv_srq_init_attr_mask`).
pub(crate) mod srq_init_attr {
    pub(crate) const TYPE: u32 = 1 << 0;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const XRCD: u32 = 1 << 2;
    pub(crate) const CQ: u32 = 1 << 3;
}

/// `IBV_SRQT_XRC`.
pub(crate) const SRQ_TYPE_XRC: u32 = 1;

/// A function that reads one field of the current completion.
pub(crate) type ReadField<T> = Option<unsafe extern "C" fn(current: Ptr<IbvCqEx>) -> T>;

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct IbvCqEx {
    pub(crate) base: IbvCq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll:
        Option<unsafe extern "C" fn(current: Ptr<IbvCqEx>, attr: Option<&IbvPollCqAttr>) -> c_int>,
    pub(crate) next_poll: ReadField<c_int>,
    pub(crate) end_poll: ReadField<()>,
    pub(crate) read_opcode: ReadField<c_uint>,
    pub(crate) read_vendor_err: ReadField<u32>,
    pub(crate) read_byte_len: ReadField<u32>,
    pub(crate) read_imm_data: ReadField<u32>,
    pub(crate) read_qp_num: ReadField<u32>,
    pub(crate) read_src_qp: ReadField<u32>,
    pub(crate) read_wc_flags: ReadField<c_uint>,
    pub(crate) read_slid: ReadField<u32>,
    pub(crate) read_sl: ReadField<u8>,
    pub(crate) read_dlid_path_bits: ReadField<u8>,
    pub(crate) read_completion_ts: ReadField<u64>,
    pub(crate) read_cvlan: ReadField<u16>,
    pub(crate) read_flow_tag: ReadField<u32>,
    pub(crate) read_tm_info:
        Option<unsafe extern "C" fn(current: Ptr<IbvCqEx>, info: *mut IbvWcTmInfo)>,
    pub(crate) read_completion_wallclock_ns: ReadField<u64>,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub(crate) struct IbvPollCqAttr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvCqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Option<&'static IbvCompChannel>,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: Option<Ptr<IbvPd>>,
}

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`: `flags` is valid.
pub(crate) const CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
pub(crate) const CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;

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

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvWc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Also `invalidated_rkey`.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct IbvQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Option<Ptr<IbvCq>>,
    pub(crate) recv_cq: Option<Ptr<IbvCq>>,
    pub(crate) srq: Option<Ptr<IbvSrq>>,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvQpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Option<Ptr<IbvCq>>,
    pub(crate) recv_cq: Option<Ptr<IbvCq>>,
    pub(crate) srq: Option<Ptr<IbvSrq>>,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) xrcd: Option<Ptr<IbvXrcd>>,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    /// `struct ibv_rx_hash_conf`.
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// Bits of [`IbvQpInitAttrEx::comp_mask`] (`enum ibv_qp_init_attr_mask`).
pub(crate) mod qp_init_attr {
    pub(crate) const PD: u32 = 1 << 0;
    pub(crate) const XRCD: u32 = 1 << 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// Bits of [`IbvQpInitAttrEx::send_ops_flags`] (`enum ibv_qp_create_send_ops_flags`).
pub(crate) mod send_ops {
    pub(crate) const RDMA_WRITE: u64 = 1 << 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(crate) const SEND: u64 = 1 << 2;
    pub(crate) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(crate) const RDMA_READ: u64 = 1 << 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(crate) const LOCAL_INV: u64 = 1 << 7;
    pub(crate) const BIND_MW: u64 = 1 << 8;
    pub(crate) const SEND_WITH_INV: u64 = 1 << 9;
    pub(crate) const FLUSH: u64 = 1 << 11;
    pub(crate) const ATOMIC_WRITE: u64 = 1 << 12;
}

/// Values of [`IbvQp::qp_type`] (`enum ibv_qp_type`).
pub(crate) mod qp_type {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
    pub(crate) const XRC_SEND: u32 = 9;
    pub(crate) const XRC_RECV: u32 = 10;
}

/// Values of [`IbvQp::state`] (`enum ibv_qp_state`).
pub(crate) mod qp_state {
    pub(crate) const RESET: u32 = 0;
    pub(crate) const RTS: u32 = 3;
}

/// `struct ibv_qp_attr`.
#[repr(C)]
pub(crate) struct IbvQpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: IbvQpCap,
    /// Members from `ah_attr` to the end, which are not used here.
    pub(crate) rest: [u32; 22],
}

/// `IBV_QP_STATE` in the mask of modify and query.
pub(crate) const QP_ATTR_STATE: c_int = 1;

/// `struct ibv_sge`. Its layout is that of the ABI's `Sge`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IbvSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_data_buf`.
#[repr(C)]
pub(crate) struct IbvDataBuf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// `wr.rdma` of [`IbvSendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WrRdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `wr.atomic` of [`IbvSendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WrAtomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `wr.ud` of [`IbvSendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WrUd {
    pub(crate) ah: Option<Ptr<IbvAh>>,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `wr` of [`IbvSendWr`]: the opcode and the type of the queue pair select the valid member.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Wr {
    pub(crate) rdma: WrRdma,
    pub(crate) atomic: WrAtomic,
    pub(crate) ud: WrUd,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct IbvSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvSendWr,
    pub(crate) sg_list: *const IbvSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: c_uint,
    /// Also `invalidate_rkey`.
    pub(crate) imm_data: u32,
    pub(crate) wr: Wr,
    pub(crate) remote_srqn: u32,
    /// `bind_mw` and `tso`.
    pub(crate) extra: WrExtra,
}

/// Bits of [`IbvSendWr::send_flags`] and [`IbvQpEx::wr_flags`] (`enum ibv_send_flags`).
/// The first four are the ABI's `WQE_*` bits.
pub(crate) mod send_flags {
    pub(crate) const FENCE: u32 = 1 << 0;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct IbvRecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvRecvWr,
    pub(crate) sg_list: *const IbvSge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct IbvQp {
    pub(crate) context: Option<Ptr<IbvContext>>,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: Option<Ptr<IbvPd>>,
    pub(crate) send_cq: Option<Ptr<IbvCq>>,
    pub(crate) recv_cq: Option<Ptr<IbvCq>>,
    pub(crate) srq: Option<Ptr<IbvSrq>>,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: PthreadMutex,
    pub(crate) cond: PthreadCond,
    pub(crate) events_completed: u32,
}

/// An operation of [`IbvQpEx`] without arguments.
pub(crate) type WrPlain<T> = Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>) -> T>;
/// An operation of [`IbvQpEx`] whose argument is a key or immediate data.
pub(crate) type WrWord = Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, word: u32)>;
/// RDMA READ and WRITE of [`IbvQpEx`].
pub(crate) type WrRemote =
    Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, rkey: u32, remote_addr: u64)>;

/// `struct ibv_qp_ex`.
#[repr(C)]
pub(crate) struct IbvQpEx {
    pub(crate) qp_base: IbvQp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<
        unsafe extern "C" fn(
            qp: Ptr<IbvQpEx>,
            rkey: u32,
            remote_addr: u64,
            compare: u64,
            swap: u64,
        ),
    >,
    pub(crate) wr_atomic_fetch_add:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, rkey: u32, remote_addr: u64, add: u64)>,
    pub(crate) wr_bind_mw: Option<
        unsafe extern "C" fn(
            qp: Ptr<IbvQpEx>,
            mw: Option<Ptr<IbvMw>>,
            rkey: u32,
            bind_info: &IbvMwBindInfo,
        ),
    >,
    pub(crate) wr_local_inv: WrWord,
    pub(crate) wr_rdma_read: WrRemote,
    pub(crate) wr_rdma_write: WrRemote,
    pub(crate) wr_rdma_write_imm:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, rkey: u32, remote_addr: u64, imm_data: u32)>,
    pub(crate) wr_send: WrPlain<()>,
    pub(crate) wr_send_imm: WrWord,
    pub(crate) wr_send_inv: WrWord,
    pub(crate) wr_send_tso:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, hdr: *mut c_void, hdr_sz: u16, mss: u16)>,
    pub(crate) wr_set_ud_addr: Option<
        unsafe extern "C" fn(
            qp: Ptr<IbvQpEx>,
            ah: Option<Ptr<IbvAh>>,
            remote_qpn: u32,
            remote_qkey: u32,
        ),
    >,
    pub(crate) wr_set_xrc_srqn: WrWord,
    pub(crate) wr_set_inline_data:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, addr: *const c_void, length: usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, num_buf: usize, buf_list: *const IbvDataBuf)>,
    pub(crate) wr_set_sge:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, lkey: u32, addr: u64, length: u32)>,
    pub(crate) wr_set_sge_list:
        Option<unsafe extern "C" fn(qp: Ptr<IbvQpEx>, num_sge: usize, sg_list: *const IbvSge)>,
    pub(crate) wr_start: WrPlain<()>,
    pub(crate) wr_complete: WrPlain<c_int>,
    pub(crate) wr_abort: WrPlain<()>,
    pub(crate) wr_atomic_write: Option<
        unsafe extern "C" fn(
            qp: Ptr<IbvQpEx>,
            rkey: u32,
            remote_addr: u64,
            atomic_wr: *const c_void,
        ),
    >,
    pub(crate) wr_flush: Option<
        unsafe extern "C" fn(
            qp: Ptr<IbvQpEx>,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            kind: u8,
            level: u8,
        ),
    >,
}
