// SPDX-License-Identifier: GPL-2.0

//! Network devices.
//!
//! C header: `include/linux/netdevice.h`.

use super::NetNs;
use crate::{raw, shared_bytes};
use core::ptr::NonNull;
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::{aref::AlwaysRefCounted, rcu},
    types::Opaque,
};

/// Most datagrams that a packet which is to be segmented may have.
pub const MOST_SEGMENTS: u32 = 16;

/// A network device (`struct net_device`).
///
/// `ARef<NetDevice>` holds it with `dev_hold`. Unregistering a device waits for all references to
/// go, so who holds one listens to [`NetdevEvent::Unregister`](super::NetdevEvent::Unregister) and
/// lets go.
///
/// # Invariants
///
/// Made from pointers to a valid `struct net_device` only.
#[repr(transparent)]
pub struct NetDevice(Opaque<raw::net_device>);

// SAFETY: A `struct net_device` belongs to no thread, and its count is per-CPU or atomic.
unsafe impl Send for NetDevice {}
// SAFETY: All methods read fields that may be read without locks.
unsafe impl Sync for NetDevice {}

// SAFETY: `dev_hold` and `dev_put` count references, and unregistering the device waits until the
// count is gone (netdev_wait_allrefs_any in net/core/dev.c).
unsafe impl AlwaysRefCounted for NetDevice {
    fn inc_ref(&self) {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_dev_hold(self.as_raw()) }
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference.
        unsafe { raw::shim_dev_put(obj.cast().as_ptr()) }
    }
}

/// Name of a device at the time of asking.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceName {
    bytes: [u8; raw::IFNAMSIZ as usize],
}

impl DeviceName {
    /// The name without its terminating zero.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
    }
}

impl kernel::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        let name = core::str::from_utf8(self.as_bytes()).unwrap_or("?");
        kernel::fmt::Display::fmt(name, f)
    }
}

impl NetDevice {
    /// Borrows a device from its pointer.
    ///
    /// # Safety
    ///
    /// `dev` points to a `struct net_device` that is valid for `'a`.
    #[inline]
    pub unsafe fn from_raw<'a>(dev: *mut raw::net_device) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<net_device>`; the caller promises the rest.
        unsafe { &*dev.cast() }
    }

    /// The C struct.
    #[inline]
    pub fn as_raw(&self) -> *mut raw::net_device {
        self.0.get()
    }

    /// Index of the device, unique in its namespace.
    #[inline]
    pub fn ifindex(&self) -> i32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netdev_ifindex(self.as_raw()) }
    }

    /// Name of the device. One that is renamed meanwhile may give a mixture of both names.
    pub fn name(&self) -> DeviceName {
        let mut bytes = [0; raw::IFNAMSIZ as usize];
        // SAFETY: The device is valid by the type invariant, and its name is an array of
        // `IFNAMSIZ` bytes, which `dev_change_name()` (net/core/dev.c) may change meanwhile.
        unsafe {
            let name = raw::shim_netdev_name(self.as_raw()).cast::<u8>();
            shared_bytes::copy(bytes.as_mut_ptr(), name, bytes.len());
        };
        DeviceName { bytes }
    }

    /// Maximum transmission unit in bytes, Ethernet header excluded.
    #[inline]
    pub fn mtu(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netdev_mtu(self.as_raw()) }
    }

    /// Returns the Ethernet address; `None` for devices of other kinds.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        if self.kind() != raw::ARPHRD_ETHER {
            return None;
        }
        let mut address = [0; 6];
        // SAFETY: The device is valid by the type invariant. Its address is in a buffer of
        // `MAX_ADDR_LEN` bytes, which lives as long as the device and may be changed meanwhile
        // (net/core/dev_addr_lists.c, `dev_addr_mod()`).
        unsafe {
            let found = raw::shim_netdev_addr(self.as_raw());
            shared_bytes::copy(address.as_mut_ptr(), found, address.len());
        };
        Some(address)
    }

    /// Returns whether the device carries IP packets: Ethernet, and tunnels without a link layer
    /// of their own (tun, WireGuard, GRE, IPIP, SIT, PPP).
    pub fn carries_ip(&self) -> bool {
        matches!(
            self.kind(),
            raw::ARPHRD_ETHER
                | raw::ARPHRD_NONE
                | raw::ARPHRD_RAWIP
                | raw::ARPHRD_PPP
                | raw::ARPHRD_TUNNEL
                | raw::ARPHRD_TUNNEL6
                | raw::ARPHRD_SIT
                | raw::ARPHRD_IPGRE
                | raw::ARPHRD_IP6GRE
        )
    }

    /// Returns the hardware type (`ARPHRD_*`).
    fn kind(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netdev_type(self.as_raw()) }.into()
    }

    /// Whether this is the loopback device.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.flags() & raw::net_device_flags_IFF_LOOPBACK != 0
    }

    /// Whether packets wait in a queueing discipline before they leave, which may delay, drop or change them: not as a loopback
    /// device is to begin with.
    #[inline]
    pub fn has_queue(&self, _guard: &rcu::Guard) -> bool {
        // SAFETY: The device is valid by the type invariant, and has at least one queue, which has a discipline (net/core/dev.c,
        // dev_init_scheduler()); that lives for the RCU section.
        unsafe { raw::shim_netdev_has_queue(self.as_raw()) }
    }

    /// Returns whether packets that leave through the device may wait on this host: in a queueing
    /// discipline, in the ring of hardware, or in a device below. Without a discipline, a veth or
    /// the loopback device hands each packet straight to the receiver's stack.
    pub fn queues_packets(&self, rcu: &rcu::Guard) -> bool {
        self.has_queue(rcu) || !(self.is_loopback() || self.is_veth())
    }

    /// Returns whether this is one end of a veth pair.
    fn is_veth(&self) -> bool {
        // SAFETY: The device is valid by the type invariant. Link operations are static data of
        // the module that the device belongs to, and have a kind.
        unsafe {
            let ops = raw::shim_netdev_link_ops(self.as_raw());
            !ops.is_null() && CStr::from_char_ptr(raw::shim_link_ops_kind(ops)) == c"veth"
        }
    }

    /// Bytes of the largest IP packet, of several UDP datagrams that are to be segmented, which the
    /// device takes whole, as long as they stay inside this host; 0 where it takes none.
    ///
    /// veth is the device that does: it hands them to the receiver's stack as they are. Hardware
    /// that segments by itself is not meant: it would put UDP checksums into the datagrams.
    pub fn segmentation_limit(&self) -> u32 {
        if !self.is_veth() {
            return 0;
        }
        // SAFETY: The device is valid by the type invariant.
        unsafe {
            if !raw::shim_netdev_can_segment_udp(self.as_raw())
                || raw::shim_netdev_gso_max_segs(self.as_raw()) < MOST_SEGMENTS
            {
                return 0;
            }
            raw::shim_netdev_gso_max_size(self.as_raw())
                .min(raw::shim_netdev_gso_ipv4_max_size(self.as_raw()))
        }
    }

    /// Returns whether a packet socket (tcpdump) sees the packets that leave through the device: a
    /// socket on the device itself, on all devices of its namespace, or on the other end of a veth
    /// pair.
    pub fn is_captured(&self, _rcu: &rcu::Guard) -> bool {
        // SAFETY: The device is valid by the type invariant, and its operations are static data of
        // the module that it belongs to. The RCU read lock is held, as `dev_nit_active_rcu`
        // (net/core/dev.c) and `ndo_get_peer_dev` (include/linux/netdevice.h) want; what the
        // latter returns is null or valid while it is.
        unsafe {
            raw::dev_nit_active_rcu(self.as_raw())
                || raw::shim_netdev_peer_op(self.as_raw())
                    .map(|peer| peer(self.as_raw()))
                    .is_some_and(|peer| !peer.is_null() && raw::dev_nit_active_rcu(peer))
        }
    }

    /// Whether the device is set up (`IFF_UP`).
    #[inline]
    pub fn is_up(&self) -> bool {
        self.flags() & raw::net_device_flags_IFF_UP != 0
    }

    /// Whether the device sees its carrier.
    #[inline]
    pub fn has_carrier(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netif_carrier_ok(self.as_raw()) }
    }

    /// Whether the device can carry traffic (RFC 2863 `ifOperStatus`).
    #[inline]
    pub fn is_operational(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netif_oper_up(self.as_raw()) }
    }

    /// Whether the device is registered, and not on its way out.
    #[inline]
    pub fn is_registered(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        u32::from(unsafe { raw::shim_netdev_reg_state(self.as_raw()) })
            == raw::netdev_reg_state_NETREG_REGISTERED
    }

    /// Whether this is a VLAN device.
    #[inline]
    pub fn is_vlan(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_is_vlan_dev(self.as_raw()) }
    }

    /// Returns the VLAN identifier of packets that the device receives: its own if it is a VLAN
    /// device, or that of the first VLAN device below it, as ib_core has it for the GIDs of its
    /// addresses (`rdma_read_gid_l2_fields()`, drivers/infiniband/core/cache.c).
    pub fn vlan_id(&self, rcu: &rcu::Guard) -> Option<u16> {
        self.own_vlan_id()
            .or_else(|| self.find_lower(rcu, Self::own_vlan_id))
    }

    fn own_vlan_id(&self) -> Option<u16> {
        if !self.is_vlan() {
            return None;
        }
        // SAFETY: It is a VLAN device, as `vlan_dev_vlan_id` (net/8021q/vlan_core.c) wants.
        Some(unsafe { raw::shim_vlan_dev_vlan_id(self.as_raw()) })
    }

    /// Returns whether `upper` is stacked on this device, directly or not: a VLAN, a bridge, a
    /// bond, a macvlan.
    pub fn has_upper(&self, upper: &NetDevice, _rcu: &rcu::Guard) -> bool {
        // SAFETY: Both devices are valid, and the RCU read lock is held, as
        // `netdev_has_upper_dev_all_rcu` (net/core/dev.c) wants.
        unsafe { raw::netdev_has_upper_dev_all_rcu(self.as_raw(), upper.as_raw()) }
    }

    /// Calls `f` for the devices below this one, nearer ones first, and returns its first `Some`.
    pub fn find_lower<T>(
        &self,
        _rcu: &rcu::Guard,
        f: impl FnMut(&NetDevice) -> Option<T>,
    ) -> Option<T> {
        let mut search = Search { f, found: None };
        let step = search.step();
        let mut context: raw::netdev_nested_priv = pin_init::zeroed();
        context.data = (&raw mut search).cast();
        // SAFETY: The device is valid by the type invariant, and the RCU read lock is held, as
        // `netdev_walk_all_lower_dev_rcu()` (net/core/dev.c) wants. It calls `step`, which is the
        // callback of this `Search`, with `context` and with devices that are valid under RCU.
        unsafe { raw::netdev_walk_all_lower_dev_rcu(self.as_raw(), Some(step), &mut context) };
        search.found
    }

    /// The namespace that the device is in; it may move to another one.
    #[inline]
    pub fn net<'a>(&'a self, _guard: &'a rcu::Guard) -> &'a NetNs {
        // SAFETY: The device is valid by the type invariant, and this is an RCU read-side section.
        // A namespace is freed a grace period after its last device has left it.
        unsafe { NetNs::from_raw(raw::shim_dev_net_rcu(self.as_raw())) }
    }

    #[inline]
    fn flags(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { raw::shim_netdev_flags(self.as_raw()) }
    }
}

/// A search among lower devices, for C.
struct Search<F, T> {
    f: F,
    found: Option<T>,
}

type Step = unsafe extern "C" fn(*mut raw::net_device, *mut raw::netdev_nested_priv) -> c_int;

impl<F: FnMut(&NetDevice) -> Option<T>, T> Search<F, T> {
    /// Returns the callback for a search of this type.
    fn step(&self) -> Step {
        step::<F, T>
    }
}

/// Looks at one device. Returns 1, which ends the walk, if it is the one.
///
/// # Safety
///
/// `dev` is valid for the call, and `context` is, whose `data` points to a `Search<F, T>` that
/// nothing else uses meanwhile.
unsafe extern "C" fn step<F: FnMut(&NetDevice) -> Option<T>, T>(
    dev: *mut raw::net_device,
    context: *mut raw::netdev_nested_priv,
) -> c_int {
    // SAFETY: `find_lower` passes the context to `netdev_walk_all_lower_dev_rcu()`
    // (net/core/dev.c), which calls this for one device after the other, with RCU held.
    // `find_lower` does not touch the search until the walk has ended.
    let (dev, search) = unsafe {
        (
            NetDevice::from_raw(dev),
            &mut *(*context).data.cast::<Search<F, T>>(),
        )
    };
    search.found = (search.f)(dev);
    search.found.is_some().into()
}

impl PartialEq for NetDevice {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for NetDevice {}
