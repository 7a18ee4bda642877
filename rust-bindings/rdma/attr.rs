// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices, ports and queues.

use crate::raw;
use kernel::str::CStr;

pub use crate::compat::DeviceLimit;

/// Arguments of CREATE_CQ: the minimum number of entries, the completion vector, and
/// `IB_UVERBS_CQ_FLAGS_*`.
pub type CqInitAttr = raw::ib_cq_init_attr;

/// The consumer requests completion timestamps.
pub const CQ_FLAG_TIMESTAMP: u32 = 1 << 0;

/// Attributes of a shared receive queue: the maximum numbers of outstanding work requests and of
/// data segments in each, and the limit. An event is reported when fewer work requests than the
/// limit are left; 0 disables it.
pub type SrqAttr = raw::ib_srq_attr;

/// Attributes of a device, named as in ib_verbs.h.
pub type DeviceAttr = raw::ib_device_attr;

/// Attributes of a port, named as in ib_verbs.h.
pub type PortAttr = raw::ib_port_attr;

/// `IB_ATOMIC_HCA`: atomics are atomic with respect to the queue pairs of this device.
pub const ATOMIC_HCA: u32 = raw::ib_atomic_cap_IB_ATOMIC_HCA;

/// `IBK_ALLOW_USER_UNREG`: `rdma link delete` may remove the device.
pub const KERNEL_CAP_ALLOW_USER_UNREG: u64 = raw::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG as u64;

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
