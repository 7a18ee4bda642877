// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices, ports and queues.

use crate::{compat::DeviceLimit, raw};
use kernel::str::CStr;

/// Arguments of CREATE_CQ (`struct ib_cq_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct CqInitAttr {
    /// The minimum number of entries.
    pub cqe: u32,
    /// The completion vector.
    pub comp_vector: u32,
    /// `IB_UVERBS_CQ_FLAGS_*`.
    pub flags: u32,
}

impl CqInitAttr {
    /// Reads ib_core's arguments.
    pub(crate) fn from_raw(attr: &raw::ib_cq_init_attr) -> Self {
        Self {
            cqe: attr.cqe,
            comp_vector: attr.comp_vector,
            flags: attr.flags,
        }
    }
}

/// The consumer requests completion timestamps.
pub const CQ_FLAG_TIMESTAMP: u32 = 1 << 0;

/// Attributes of a shared receive queue (`struct ib_srq_attr`).
#[derive(Clone, Copy, Debug)]
pub struct SrqAttr {
    /// The maximum number of outstanding work requests.
    pub max_wr: u32,
    /// The maximum number of data segments in a work request.
    pub max_sge: u32,
    /// An event is reported when fewer work requests than this are left; 0 disables it.
    pub srq_limit: u32,
}

impl SrqAttr {
    /// Reads ib_core's attributes.
    pub(crate) fn from_raw(attr: &raw::ib_srq_attr) -> Self {
        Self {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
        }
    }

    /// Returns ib_core's attributes.
    pub(crate) fn to_raw(self) -> raw::ib_srq_attr {
        let mut attr: raw::ib_srq_attr = pin_init::zeroed();
        attr.max_wr = self.max_wr;
        attr.max_sge = self.max_sge;
        attr.srq_limit = self.srq_limit;
        attr
    }
}

/// Attributes of a device (`struct ib_device_attr`). Others are zero.
#[derive(Default)]
#[expect(missing_docs, reason = "named as in ib_verbs.h")]
pub struct DeviceAttr {
    pub fw_ver: u64,
    pub sys_image_guid: [u8; 8],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u64,
    pub kernel_cap_flags: u64,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub atomic_cap: u32,
    pub max_mw: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_fast_reg_page_list_len: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub odp_caps: OdpCaps,
    pub max_dm_size: u64,
    /// Largest number of completions and of microseconds of [`Moderation`].
    pub max_cq_moderation: Moderation,
}

/// Moderation of the events of a completion queue (`ibv_modify_cq(3)`).
#[derive(Clone, Copy, Default)]
pub struct Moderation {
    /// Completions after which the consumer is notified.
    pub count: u16,
    /// Microseconds after which the consumer is notified.
    pub period: u16,
}

/// Support of on-demand paging (`struct ib_odp_caps`), by transport. All are zero without it.
#[derive(Default)]
pub struct OdpCaps {
    /// `IB_ODP_SUPPORT*`: in general.
    pub general: u64,
    /// [`odp`] flags of reliable connections.
    pub rc: u32,
    /// [`odp`] flags of unreliable connections.
    pub uc: u32,
    /// [`odp`] flags of datagrams.
    pub ud: u32,
    /// [`odp`] flags of extended reliable connections.
    pub xrc: u32,
}

/// `IB_ODP_SUPPORT_*` flags: operations whose memory may be absent.
pub mod odp {
    use crate::raw;
    pub use crate::raw::{
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC as ATOMIC,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC_WRITE as ATOMIC_WRITE,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH as FLUSH,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ as READ,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV as RECV,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND as SEND,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SRQ_RECV as SRQ_RECV,
        ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE as WRITE,
    };
    /// `IB_ODP_SUPPORT` and `IB_ODP_SUPPORT_IMPLICIT`: regions of the whole address space, too.
    pub const GENERAL: u64 = (raw::ib_odp_general_cap_bits_IB_ODP_SUPPORT
        | raw::ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT) as u64;
}

impl DeviceAttr {
    /// Returns ib_core's attributes.
    pub(crate) fn to_raw(&self) -> raw::ib_device_attr {
        let mut attr: raw::ib_device_attr = pin_init::zeroed();
        attr.fw_ver = self.fw_ver;
        attr.sys_image_guid = u64::from_ne_bytes(self.sys_image_guid);
        attr.max_mr_size = self.max_mr_size;
        attr.page_size_cap = self.page_size_cap;
        attr.vendor_id = self.vendor_id;
        attr.vendor_part_id = self.vendor_part_id;
        attr.max_qp = self.max_qp as DeviceLimit;
        attr.max_qp_wr = self.max_qp_wr as DeviceLimit;
        attr.device_cap_flags = self.device_cap_flags;
        attr.kernel_cap_flags = self.kernel_cap_flags;
        attr.max_send_sge = self.max_send_sge as DeviceLimit;
        attr.max_recv_sge = self.max_recv_sge as DeviceLimit;
        attr.max_sge_rd = self.max_sge_rd as DeviceLimit;
        attr.max_cq = self.max_cq as DeviceLimit;
        attr.max_cqe = self.max_cqe as DeviceLimit;
        attr.max_mr = self.max_mr as DeviceLimit;
        attr.max_pd = self.max_pd as DeviceLimit;
        attr.max_qp_rd_atom = self.max_qp_rd_atom as DeviceLimit;
        attr.max_res_rd_atom = self.max_res_rd_atom as DeviceLimit;
        attr.max_qp_init_rd_atom = self.max_qp_init_rd_atom as DeviceLimit;
        attr.atomic_cap = self.atomic_cap;
        attr.max_mw = self.max_mw as DeviceLimit;
        attr.max_mcast_grp = self.max_mcast_grp as DeviceLimit;
        attr.max_mcast_qp_attach = self.max_mcast_qp_attach as DeviceLimit;
        attr.max_total_mcast_qp_attach = self.max_total_mcast_qp_attach as DeviceLimit;
        attr.max_ah = self.max_ah as DeviceLimit;
        attr.max_srq = self.max_srq as DeviceLimit;
        attr.max_srq_wr = self.max_srq_wr as DeviceLimit;
        attr.max_srq_sge = self.max_srq_sge as DeviceLimit;
        attr.max_fast_reg_page_list_len = self.max_fast_reg_page_list_len;
        attr.max_pkeys = self.max_pkeys;
        attr.local_ca_ack_delay = self.local_ca_ack_delay;
        attr.timestamp_mask = self.timestamp_mask;
        attr.hca_core_clock = self.hca_core_clock;
        attr.max_dm_size = self.max_dm_size;
        attr.cq_caps.max_cq_moderation_count = self.max_cq_moderation.count;
        attr.cq_caps.max_cq_moderation_period = self.max_cq_moderation.period;
        attr.odp_caps.general_caps = self.odp_caps.general;
        let caps = &mut attr.odp_caps.per_transport_caps;
        caps.rc_odp_caps = self.odp_caps.rc;
        caps.uc_odp_caps = self.odp_caps.uc;
        caps.ud_odp_caps = self.odp_caps.ud;
        caps.xrc_odp_caps = self.odp_caps.xrc;
        attr
    }
}

/// Attributes of a port (`struct ib_port_attr`). ib_core's state, speed and width follow from the
/// network device. Others are zero.
#[derive(Default)]
#[expect(missing_docs, reason = "named as in ib_verbs.h")]
pub struct PortAttr {
    /// `enum ib_mtu`; see [`mtu_to_enum`].
    pub max_mtu: u32,
    /// `enum ib_mtu`; see [`mtu_to_enum`].
    pub active_mtu: u32,
    pub phys_mtu: u32,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub max_vl_num: u8,
}

impl PortAttr {
    /// Returns ib_core's attributes.
    pub(crate) fn to_raw(&self) -> raw::ib_port_attr {
        let mut attr: raw::ib_port_attr = pin_init::zeroed();
        attr.max_mtu = self.max_mtu;
        attr.active_mtu = self.active_mtu;
        attr.phys_mtu = self.phys_mtu;
        attr.gid_tbl_len = self.gid_tbl_len as i32;
        attr.port_cap_flags = self.port_cap_flags;
        attr.max_msg_sz = self.max_msg_sz;
        attr.bad_pkey_cntr = self.bad_pkey_cntr;
        attr.qkey_viol_cntr = self.qkey_viol_cntr;
        attr.pkey_tbl_len = self.pkey_tbl_len;
        attr.max_vl_num = self.max_vl_num;
        attr
    }
}

/// `IB_ATOMIC_HCA`: atomics are atomic with respect to the queue pairs of this device.
pub const ATOMIC_HCA: u32 = raw::ib_atomic_cap_IB_ATOMIC_HCA;

/// `IBK_ALLOW_USER_UNREG`: `rdma link delete` may remove the device.
pub const KERNEL_CAP_ALLOW_USER_UNREG: u64 = raw::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG as u64;

/// `IBK_ON_DEMAND_PAGING`: programs may register memory for on-demand paging.
pub const KERNEL_CAP_ON_DEMAND_PAGING: u64 = raw::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING as u64;

/// `IB_DEVICE_*` flags.
pub mod device_cap {
    pub use crate::raw::{
        ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE as ATOMIC_WRITE,
        ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR as BAD_PKEY_CNTR,
        ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR as BAD_QKEY_CNTR,
        ib_device_cap_flags_IB_DEVICE_CURR_QP_STATE_MOD as CURR_QP_STATE_MOD,
        ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL as FLUSH_GLOBAL,
        ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as MEM_MGT_EXTENSIONS,
        ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as MEM_WINDOW,
        ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as MEM_WINDOW_TYPE_2B,
        ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT as PORT_ACTIVE_EVENT,
        ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as RC_RNR_NAK_GEN,
        ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE as SRQ_RESIZE,
        ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID as SYS_IMAGE_GUID,
        ib_device_cap_flags_IB_DEVICE_XRC as XRC,
    };
}

/// Returns the largest `enum ib_mtu` that is at most `bytes`, but at least 256 bytes.
pub fn mtu_to_enum(bytes: u32) -> u32 {
    match bytes {
        4096.. => raw::ib_mtu_IB_MTU_4096,
        2048.. => raw::ib_mtu_IB_MTU_2048,
        1024.. => raw::ib_mtu_IB_MTU_1024,
        512.. => raw::ib_mtu_IB_MTU_512,
        _ => raw::ib_mtu_IB_MTU_256,
    }
}

/// The name of a statistic of a port, as sysfs (`hw_counters/`) and `rdma statistic` show it.
#[repr(transparent)]
pub struct StatName(raw::rdma_stat_desc);

// SAFETY: It is never written to, and its pointers refer to static data.
unsafe impl Sync for StatName {}

impl StatName {
    /// Creates a name.
    pub const fn new(name: &'static CStr) -> Self {
        Self(raw::rdma_stat_desc {
            name: kernel::str::as_char_ptr_in_const_context(name).cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}
