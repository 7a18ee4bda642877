// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports.

use crate::{compat::DeviceLimit, raw};
use kernel::str::CStr;

/// Arguments of CREATE_CQ: the minimum number of entries, the completion vector, and
/// `IB_UVERBS_CQ_FLAGS_*`.
pub type CqInitAttr = raw::ib_cq_init_attr;

/// The consumer requests completion timestamps.
pub const CQ_FLAG_TIMESTAMP: u32 = 1 << 0;
/// The device may ignore an overrun.
pub const CQ_FLAG_IGNORE_OVERRUN: u32 = 1 << 1;

macro_rules! setters {
    ($(#[$doc:meta] $field:ident: $from:ty $(as $to:ty)?;)*) => {
        $(
            #[$doc]
            pub fn $field(&mut self, value: $from) -> &mut Self {
                self.0.$field = value $(as $to)?;
                self
            }
        )*
    };
}

/// A view of `struct ib_device_attr` for drivers to fill in.
pub struct DeviceAttr<'a>(&'a mut raw::ib_device_attr);

impl<'a> DeviceAttr<'a> {
    pub(crate) fn new(attr: &'a mut raw::ib_device_attr) -> Self {
        Self(attr)
    }

    setters! {
        /// Firmware version, for display.
        fw_ver: u64;
        /// Maximum size of a memory region in bytes.
        max_mr_size: u64;
        /// Bitmap of the page sizes that a region may have.
        page_size_cap: u64;
        /// Vendor identifier (an IEEE OUI).
        vendor_id: u32;
        /// The vendor's part number.
        vendor_part_id: u32;
        /// Hardware version.
        hw_ver: u32;
        /// Maximum number of queue pairs.
        max_qp: u32 as DeviceLimit;
        /// Maximum number of work requests in a work queue.
        max_qp_wr: u32 as DeviceLimit;
        /// `IB_DEVICE_*`.
        device_cap_flags: u64;
        /// `IBK_*`.
        kernel_cap_flags: u64;
        /// Maximum number of data segments in a send work request.
        max_send_sge: u32 as DeviceLimit;
        /// Maximum number of data segments in a receive work request.
        max_recv_sge: u32 as DeviceLimit;
        /// Maximum number of data segments in a READ.
        max_sge_rd: u32 as DeviceLimit;
        /// Maximum number of completion queues.
        max_cq: u32 as DeviceLimit;
        /// Maximum number of entries in a completion queue.
        max_cqe: u32 as DeviceLimit;
        /// Maximum number of memory regions.
        max_mr: u32 as DeviceLimit;
        /// Maximum number of memory windows.
        max_mw: u32 as DeviceLimit;
        /// Maximum number of pages in a fast registration.
        max_fast_reg_page_list_len: u32;
        /// Maximum number of protection domains.
        max_pd: u32 as DeviceLimit;
        /// Maximum number of READs and atomics outstanding at a queue pair as responder.
        max_qp_rd_atom: u32 as DeviceLimit;
        /// Maximum number of READs and atomics outstanding at all queue pairs as responders.
        max_res_rd_atom: u32 as DeviceLimit;
        /// Maximum number of READs and atomics outstanding at a queue pair as requester.
        max_qp_init_rd_atom: u32 as DeviceLimit;
        /// Maximum number of multicast groups.
        max_mcast_grp: u32 as DeviceLimit;
        /// Maximum number of queue pairs in a multicast group.
        max_mcast_qp_attach: u32 as DeviceLimit;
        /// Maximum number of queue pairs in all multicast groups together.
        max_total_mcast_qp_attach: u32 as DeviceLimit;
        /// Maximum number of address handles.
        max_ah: u32 as DeviceLimit;
        /// Maximum number of shared receive queues.
        max_srq: u32 as DeviceLimit;
        /// Maximum number of work requests in a shared receive queue.
        max_srq_wr: u32 as DeviceLimit;
        /// Maximum number of data segments in a work request of a shared receive queue.
        max_srq_sge: u32 as DeviceLimit;
        /// Number of entries in the P_Key table.
        max_pkeys: u16;
        /// Maximum delay of the device's acknowledgments: `4.096 us * 2^n`.
        local_ca_ack_delay: u8;
        /// Mask of the significant bits of completion timestamps.
        timestamp_mask: u64;
        /// Clock of completion timestamps, in kHz.
        hca_core_clock: u64;
    }

    /// Sets the system image GUID.
    pub fn sys_image_guid(&mut self, guid: [u8; 8]) -> &mut Self {
        self.0.sys_image_guid = u64::from_ne_bytes(guid);
        self
    }

    /// Declares that atomics are atomic with respect to the queue pairs of this device.
    pub fn atomics_within_device(&mut self) -> &mut Self {
        self.0.atomic_cap = raw::ib_atomic_cap_IB_ATOMIC_HCA;
        self
    }
}

/// `IBK_ALLOW_USER_UNREG`: `rdma link delete` may remove the device.
pub const KERNEL_CAP_ALLOW_USER_UNREG: u64 = raw::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG as u64;

/// `IB_DEVICE_*` flags.
pub mod device_cap {
    /// The device counts packets with a bad P_Key.
    pub const BAD_PKEY_CNTR: u64 = 1 << 1;
    /// The device counts packets with a bad Q_Key.
    pub const BAD_QKEY_CNTR: u64 = 1 << 2;
    /// MODIFY_QP supports the current-state modifier.
    pub const CURR_QP_STATE_MOD: u64 = 1 << 7;
    /// The device reports port-active events.
    pub const PORT_ACTIVE_EVENT: u64 = 1 << 10;
    /// The device has a system image GUID.
    pub const SYS_IMAGE_GUID: u64 = 1 << 11;
    /// RC queue pairs generate RNR NAKs.
    pub const RC_RNR_NAK_GEN: u64 = 1 << 12;
    /// Shared receive queues can be resized.
    pub const SRQ_RESIZE: u64 = 1 << 13;
    /// Extended reliable connections.
    pub const XRC: u64 = 1 << 20;
    /// FLUSH for global visibility.
    pub const FLUSH_GLOBAL: u64 = 1 << 38;
    /// ATOMIC WRITE.
    pub const ATOMIC_WRITE: u64 = 1 << 40;
    /// Memory windows of type 1.
    pub const MEM_WINDOW: u64 = 1 << 17;
    /// Fast registration, local invalidate, SEND with invalidate.
    pub const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
    /// Memory windows of type 2B.
    pub const MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The link is down administratively.
    Disabled,
    /// There is no link yet.
    Polling,
    /// The port is in use.
    Active,
}

/// Returns the largest `enum ib_mtu` that is at most `bytes`, but at least 256 bytes.
pub(crate) fn mtu_to_enum(bytes: u32) -> u32 {
    match bytes {
        4096.. => raw::ib_mtu_IB_MTU_4096,
        2048.. => raw::ib_mtu_IB_MTU_2048,
        1024.. => raw::ib_mtu_IB_MTU_1024,
        512.. => raw::ib_mtu_IB_MTU_512,
        _ => raw::ib_mtu_IB_MTU_256,
    }
}

/// Returns the bytes of an `enum ib_mtu`, or `None` for an invalid value.
pub(crate) fn mtu_from_enum(mtu: u32) -> Option<u32> {
    match mtu {
        1..=5 => Some(128 << mtu),
        _ => None,
    }
}

/// A view of `struct ib_port_attr` for drivers to fill in.
pub struct PortAttr<'a>(&'a mut raw::ib_port_attr);

impl<'a> PortAttr<'a> {
    pub(crate) fn new(attr: &'a mut raw::ib_port_attr) -> Self {
        Self(attr)
    }

    setters! {
        /// Number of entries in the GID table.
        gid_tbl_len: u32 as i32;
        /// Maximum size of a message in bytes.
        max_msg_sz: u32;
        /// Number of packets with a P_Key that did not match.
        bad_pkey_cntr: u32;
        /// Number of packets with a Q_Key that did not match.
        qkey_viol_cntr: u32;
        /// Number of entries in the P_Key table.
        pkey_tbl_len: u16;
        /// `IB_PORT_*_SUP`.
        port_cap_flags: u32;
        /// MTU of the link in bytes.
        phys_mtu: u32;
        /// Number of virtual lanes.
        max_vl_num: u8;
    }

    /// Sets the maximum and the active MTU, given in bytes (see [`mtu_to_enum`]).
    pub fn mtu(&mut self, max: u32, active: u32) -> &mut Self {
        self.0.max_mtu = mtu_to_enum(max);
        self.0.active_mtu = mtu_to_enum(active);
        self
    }

    /// Sets the logical and physical state.
    pub fn state(&mut self, state: PortState) -> &mut Self {
        self.0.state = match state {
            PortState::Active => raw::ib_port_state_IB_PORT_ACTIVE,
            _ => raw::ib_port_state_IB_PORT_DOWN,
        };
        let physical = match state {
            PortState::Active => raw::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
            PortState::Polling => raw::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
            PortState::Disabled => raw::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
        };
        self.0.phys_state = physical as u8;
        self
    }

    /// Sets the speed and width of the link.
    pub(crate) fn raw_speed(&mut self, speed: u16, width: u8) -> &mut Self {
        self.0.active_speed = speed;
        self.0.active_width = width;
        self
    }

    /// Declares that GIDs are IP addresses (RoCEv2).
    pub fn ip_gids(&mut self) -> &mut Self {
        self.0.set_ip_gids(1);
        self
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

/// The attributes of a RoCEv2 port that never change.
#[derive(Clone, Copy, Debug)]
pub struct PortImmutable {
    /// Number of entries in the P_Key table.
    pub pkey_tbl_len: u32,
    /// Number of entries in the GID table.
    pub gid_tbl_len: u32,
}
