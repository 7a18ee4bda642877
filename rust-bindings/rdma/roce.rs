// SPDX-License-Identifier: GPL-2.0

//! The kind of device that [`rdma`](super) supports: a software device with one port, which is an
//! Ethernet interface with RoCEv2.
//!
//! The other modules depend on the kind only through this module and the trampoline of
//! `get_link_layer` (trampolines.c).

mod address;

pub use address::AddressInfo;

use crate::raw;
use core::ptr;
use kernel::ffi::c_int;

/// The number of the only port. Ports are numbered from 1, so this is also the number of ports.
pub(super) const PORT: u32 = 1;

/// `RDMA_CORE_PORT_*`: the protocols and agents of the port.
pub(super) const CORE_CAP_FLAGS: u32 = raw::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;

/// The size of a management datagram in bytes.
pub(super) const MAX_MAD_SIZE: u32 = raw::IB_MGMT_MAD_SIZE;

/// The DMA device, an argument of ib_register_device() (device.c). Without one, ib_core passes
/// kernel addresses instead of DMA addresses.
pub(super) const DMA_DEVICE: *mut raw::device = ptr::null_mut();

/// Fills in the attributes of the port that follow from its kind: GIDs are IP addresses, and speed
/// and width are those of the network device. Returns an errno code, or 0.
///
/// # Safety
///
/// `ib` is a live device.
pub(super) unsafe fn fill_port(ib: *mut raw::ib_device, attr: &mut raw::ib_port_attr) -> c_int {
    attr.set_ip_gids(1);
    // SAFETY: The caller guarantees the device. ib_get_eth_speed() (verbs.c) fails if the port has
    // no network device.
    unsafe { raw::ib_get_eth_speed(ib, PORT, &mut attr.active_speed, &mut attr.active_width) }
}
