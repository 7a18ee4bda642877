// SPDX-License-Identifier: GPL-2.0

//! Network devices.
//!
//! C header: `include/linux/netdevice.h`.

use super::{NetNs, NetNsCookie};
use crate::{raw, shared_bytes};
use core::ptr::NonNull;
use kernel::{
    ffi::{c_int, c_uint, c_ushort},
    str::CStr,
    sync::{aref::AlwaysRefCounted, rcu},
    types::Opaque,
};

/// A network device (`struct net_device`).
///
/// An `ARef<NetDevice>` holds a reference with `dev_hold`. Unregistering a device waits for all
/// references, so their owners must release them in
/// [`NetdevEvents::unregister`](super::NetdevEvents::unregister).
///
/// # Invariants
///
/// Only created from pointers to a valid `struct net_device`.
#[repr(transparent)]
pub struct NetDevice(Opaque<raw::net_device>);

// SAFETY: A `struct net_device` belongs to no thread, and its count is per-CPU or atomic.
unsafe impl Send for NetDevice {}
// SAFETY: All methods read fields that may be read without locks.
unsafe impl Sync for NetDevice {}

// SAFETY: `dev_hold` and `dev_put` count references. Unregistering the device waits until the count
// is zero (netdev_wait_allrefs_any in net/core/dev.c).
unsafe impl AlwaysRefCounted for NetDevice {
    fn inc_ref(&self) {
        shim_dev_hold(self);
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller owns a reference and gives it up.
        unsafe { raw::shim_dev_put(obj.cast().as_ptr()) }
    }
}

#[allow(improper_ctypes, reason = "C code sees a `struct net_device`")]
// Safe: these are the signatures of the shims. Each takes any valid device, which a `&NetDevice`
// points to (type invariant, `repr(transparent)`). `dev_hold` counts a reference, and the others
// only read fields.
unsafe extern "C" {
    safe fn shim_dev_hold(dev: &NetDevice);
    safe fn shim_is_vlan_dev(dev: &NetDevice) -> bool;
    safe fn shim_netif_is_l3_master(dev: &NetDevice) -> bool;
    pub(super) safe fn shim_ll_reserved_space(dev: &NetDevice) -> c_uint;
    safe fn shim_netdev_can_segment_udp(dev: &NetDevice) -> bool;
    safe fn shim_netdev_flags(dev: &NetDevice) -> c_uint;
    safe fn shim_netdev_has_generic_xdp(dev: &NetDevice) -> bool;
    #[cfg(CONFIG_NETFILTER_EGRESS)]
    safe fn shim_netdev_has_nf_egress(dev: &NetDevice) -> bool;
    #[cfg(CONFIG_NETFILTER_INGRESS)]
    safe fn shim_netdev_has_nf_ingress(dev: &NetDevice) -> bool;
    safe fn shim_netdev_has_lower(dev: &NetDevice) -> bool;
    safe fn shim_netdev_has_rx_handler(dev: &NetDevice) -> bool;
    #[cfg(CONFIG_NET_XGRESS)]
    safe fn shim_netdev_has_tc_egress(dev: &NetDevice) -> bool;
    #[cfg(CONFIG_NET_XGRESS)]
    safe fn shim_netdev_has_tc_ingress(dev: &NetDevice) -> bool;
    safe fn shim_netdev_ifindex(dev: &NetDevice) -> c_int;
    safe fn shim_netdev_mtu(dev: &NetDevice) -> c_uint;
    safe fn shim_netdev_type(dev: &NetDevice) -> c_ushort;
    safe fn shim_netif_is_lag_port(dev: &NetDevice) -> bool;
    safe fn shim_netif_oper_up(dev: &NetDevice) -> bool;
}

/// Identifies a network device among those of all namespaces. A device that moves to another
/// namespace becomes another interface. The kernel may reuse the index of a device that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceId {
    /// The namespace of the device.
    pub namespace: NetNsCookie,
    /// The index of the device in that namespace.
    pub ifindex: u32,
}

/// Name of a device at the time of the call.
#[derive(Clone, Copy)]
pub struct DeviceName([u8; raw::IFNAMSIZ as usize]);

impl kernel::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        let name = self.0.split(|byte| *byte == 0).next().unwrap_or(&[]);
        kernel::fmt::Display::fmt(core::str::from_utf8(name).unwrap_or("?"), f)
    }
}

impl NetDevice {
    /// Borrows a device from its pointer.
    ///
    /// # Safety
    ///
    /// `dev` points to a `struct net_device` that is valid for `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(dev: *mut raw::net_device) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<net_device>`, and the caller guarantees that
        // `dev` is valid for `'a`.
        unsafe { &*dev.cast() }
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut raw::net_device {
        self.0.get()
    }

    /// Returns the index of the device, unique in its namespace.
    #[inline]
    pub fn ifindex(&self) -> i32 {
        shim_netdev_ifindex(self)
    }

    /// Returns the name of the device. During a rename, it may be a mixture of both names.
    pub fn name(&self) -> DeviceName {
        let mut bytes = [0; raw::IFNAMSIZ as usize];
        // SAFETY: The device is valid by the type invariant. Its name is an array of `IFNAMSIZ`
        // bytes, which `netif_change_name()` (net/core/dev.c) may change during the copy.
        unsafe {
            let name = raw::shim_netdev_name(self.as_raw()).cast::<u8>();
            shared_bytes::copy(bytes.as_mut_ptr(), name, bytes.len());
        };
        DeviceName(bytes)
    }

    /// Returns the maximum transmission unit in bytes, without the Ethernet header.
    #[inline]
    pub fn mtu(&self) -> u32 {
        shim_netdev_mtu(self)
    }

    /// Returns the Ethernet address, or `None` for devices of other types.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        if self.kind() != raw::ARPHRD_ETHER {
            return None;
        }
        let mut address = [0; 6];
        // SAFETY: The device is valid by the type invariant. Its address is in a buffer of
        // `MAX_ADDR_LEN` bytes that lives as long as the device. `dev_addr_mod()`
        // (net/core/dev_addr_lists.c) may change it during the copy.
        unsafe {
            let found = raw::shim_netdev_addr(self.as_raw());
            shared_bytes::copy(address.as_mut_ptr(), found, address.len());
        };
        Some(address)
    }

    /// Returns whether the device carries IP packets: Ethernet, or a tunnel without its own link
    /// layer (tun, WireGuard, GRE, IPIP, SIT, PPP).
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
        shim_netdev_type(self).into()
    }

    /// Returns whether this is the loopback device.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        shim_netdev_flags(self) & raw::net_device_flags_IFF_LOOPBACK != 0
    }

    /// Returns whether packets go through a queueing discipline before they leave, which may delay,
    /// drop or change them. By default, the loopback device has no queue.
    #[inline]
    pub fn has_queue(&self, _guard: &rcu::Guard) -> bool {
        // SAFETY: The device is valid by the type invariant. It has at least one queue, which has a
        // discipline (`dev_init_scheduler()`, net/sched/sch_generic.c) that is valid for the RCU
        // section.
        unsafe { raw::shim_netdev_has_queue(self.as_raw()) }
    }

    /// Returns whether this is a device of a kind of `rtnl_link_ops`, such as "veth".
    #[inline]
    pub fn is_kind(&self, kind: &CStr) -> bool {
        // SAFETY: The device is valid by the type invariant. Link operations are static data of the
        // module that the device belongs to, and have a kind, which ends with a zero byte. The
        // comparison ends there, or before: this runs for each batch, so it does not call strlen().
        unsafe {
            let ops = raw::shim_netdev_link_ops(self.as_raw());
            if ops.is_null() {
                return false;
            }
            let own = raw::shim_link_ops_kind(ops);
            let mut bytes = kind.to_bytes_with_nul().iter().enumerate();
            bytes.all(|(at, byte)| own.add(at).read() == *byte)
        }
    }

    /// Returns whether the device accepts IP packets that hold several UDP datagrams.
    #[inline]
    pub(super) fn can_segment_udp(&self) -> bool {
        shim_netdev_can_segment_udp(self)
    }

    /// Returns whether another device of the namespace is in the same VRF, or both are in none.
    pub(super) fn shares_vrf_with(&self, other: &NetDevice, rcu: &rcu::Guard) -> bool {
        self.vrf(rcu) == other.vrf(rcu)
    }

    /// Returns the other end of a pair of virtual devices, such as veth.
    #[inline]
    pub(super) fn peer<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<&'a NetDevice> {
        // SAFETY: The device is valid by the type invariant, and its operations are static data of
        // the module that it belongs to. The RCU read lock is held, as `ndo_get_peer_dev`
        // (include/linux/netdevice.h) requires, which returns null or a device that is valid under
        // RCU.
        unsafe {
            let peer = raw::shim_netdev_peer_op(self.as_raw())?(self.as_raw());
            (!peer.is_null()).then(|| NetDevice::from_raw(peer))
        }
    }

    /// Returns whether a packet socket (tcpdump) sees the packets that leave through the device.
    /// The socket may be bound to the device or one below it, to all devices of its namespace, or
    /// to the other end of a veth pair.
    pub fn is_captured(&self, rcu: &rcu::Guard) -> bool {
        // SAFETY: The device is valid by the type invariant, and the RCU read lock is held, as
        // `dev_nit_active_rcu` (net/core/dev.c) requires.
        let is_seen_at = |dev: &NetDevice| unsafe { raw::dev_nit_active_rcu(dev.as_raw()) };
        is_seen_at(self)
            || self.peer(rcu).is_some_and(is_seen_at)
            || shim_netdev_has_lower(self)
                && self
                    .find_lower(rcu, |lower| is_seen_at(lower).then_some(()))
                    .is_some()
    }

    /// Returns whether a program or rule of tc or nftables may change or redirect the packets that
    /// the stack sends through the device (`sch_handle_egress()` and `nf_hook_egress()` in
    /// net/core/dev.c).
    #[inline]
    pub fn has_egress_rules(&self) -> bool {
        #[cfg(CONFIG_NET_XGRESS)]
        if shim_netdev_has_tc_egress(self) {
            return true;
        }
        #[cfg(CONFIG_NETFILTER_EGRESS)]
        if shim_netdev_has_nf_egress(self) {
            return true;
        }
        false
    }

    /// Returns whether all packets that the stack sends through the device reach its driver: no
    /// rule may redirect them, and no filter of a queueing discipline (`tcf_classify()`,
    /// net/sched/cls_api.c).
    #[inline]
    pub(super) fn sends_directly(&self, rcu: &rcu::Guard) -> bool {
        !self.has_egress_rules() && !self.has_queue(rcu)
    }

    /// Returns whether all packets that the device receives reach the network layer of its
    /// namespace: the device is no port of a bridge or bond, has no macvlan and no other device
    /// that takes its packets (`rx_handler`), and no generic XDP program and no program or rule of
    /// tc or nftables may redirect them (`__netif_receive_skb_core()`, net/core/dev.c).
    #[inline]
    pub(super) fn receives_directly(&self) -> bool {
        #[cfg(CONFIG_NET_XGRESS)]
        if shim_netdev_has_tc_ingress(self) {
            return false;
        }
        #[cfg(CONFIG_NETFILTER_INGRESS)]
        if shim_netdev_has_nf_ingress(self) {
            return false;
        }
        !shim_netdev_has_rx_handler(self) && !shim_netdev_has_generic_xdp(self)
    }

    /// Returns whether frames that the device receives may leave through others: it is a port of a
    /// bridge, or carries a macvlan or the like. (The frames of a port of a bond are those of the
    /// bond.)
    #[inline]
    pub(super) fn passes_frames_on(&self) -> bool {
        shim_netdev_has_rx_handler(self) && !shim_netif_is_lag_port(self)
    }

    /// Returns whether the device is set up (`IFF_UP`).
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        shim_netdev_flags(self) & raw::net_device_flags_IFF_UP != 0
    }

    /// Returns whether the device can carry traffic (RFC 2863 `ifOperStatus`).
    #[inline]
    pub(crate) fn is_operational(&self) -> bool {
        shim_netif_oper_up(self)
    }

    /// Returns whether this is a VLAN device.
    #[inline]
    pub fn is_vlan(&self) -> bool {
        shim_is_vlan_dev(self)
    }

    /// Returns the VLAN identifier of packets that the device receives: its own if it is a VLAN
    /// device, otherwise that of the first VLAN device below it. ib_core uses the same rule for
    /// GIDs (`rdma_read_gid_l2_fields()`, drivers/infiniband/core/cache.c).
    pub fn vlan_id(&self, rcu: &rcu::Guard) -> Option<u16> {
        self.own_vlan_id()
            .or_else(|| self.find_lower(rcu, Self::own_vlan_id))
    }

    fn own_vlan_id(&self) -> Option<u16> {
        // SAFETY: It is a VLAN device, as `vlan_dev_vlan_id` (net/8021q/vlan_core.c) requires.
        let id = || unsafe { raw::shim_vlan_dev_vlan_id(self.as_raw()) };
        self.is_vlan().then(id)
    }

    /// Calls `f` for the devices below this one, nearest first, and returns its first `Some`.
    pub fn find_lower<T, F>(&self, _rcu: &rcu::Guard, f: F) -> Option<T>
    where
        F: FnMut(&NetDevice) -> Option<T>,
    {
        let mut search = (f, None);
        let mut context: raw::netdev_nested_priv = pin_init::zeroed();
        context.data = (&raw mut search).cast();
        // SAFETY: The device is valid by the type invariant, and the RCU read lock is held, as
        // `netdev_walk_all_lower_dev_rcu()` (net/core/dev.c) requires. It calls `step` with
        // `context`, whose data is `search`, and with devices that are valid under RCU.
        unsafe {
            raw::netdev_walk_all_lower_dev_rcu(self.as_raw(), Some(step::<T, F>), &mut context);
        }
        search.1
    }

    /// Returns whether this is the master of a VRF, which also stands in for the loopback device
    /// there.
    #[inline]
    pub fn is_vrf(&self) -> bool {
        shim_netif_is_l3_master(self)
    }

    /// Returns the index of the VRF's device if this device is in a VRF or is a VRF, otherwise 0.
    #[inline]
    pub fn vrf(&self, _rcu: &rcu::Guard) -> u32 {
        // SAFETY: The device is valid by the type invariant, and the RCU read lock is held, as
        // `l3mdev_master_ifindex_rcu` (net/l3mdev/l3mdev.c) requires.
        let index = unsafe { raw::shim_l3mdev_master_ifindex_rcu(self.as_raw()) };
        u32::try_from(index).unwrap_or(0)
    }

    /// Returns the identity of the device.
    #[inline]
    pub fn interface(&self, rcu: &rcu::Guard) -> InterfaceId {
        InterfaceId {
            namespace: self.net(rcu).cookie(),
            ifindex: u32::try_from(self.ifindex()).unwrap_or(0),
        }
    }

    /// Returns the namespace of the device, which may move to another one later.
    #[inline]
    pub fn net<'a>(&'a self, _guard: &'a rcu::Guard) -> &'a NetNs {
        // SAFETY: The device is valid by the type invariant, and the guard holds the RCU read lock.
        // A namespace is freed a grace period after its last device has left it.
        unsafe { NetNs::from_raw(raw::shim_dev_net_rcu(self.as_raw())) }
    }
}

/// Calls the function of a search for one device. Returns 1 to end the walk.
///
/// # Safety
///
/// Called by the walk that `find_lower` starts, with the same type parameters.
unsafe extern "C" fn step<T, F: FnMut(&NetDevice) -> Option<T>>(
    dev: *mut raw::net_device,
    context: *mut raw::netdev_nested_priv,
) -> c_int {
    // SAFETY: `find_lower` passes the context to `netdev_walk_all_lower_dev_rcu()`
    // (net/core/dev.c), which calls this for one device after another with the RCU read lock held.
    // `find_lower` does not use the search until the walk has ended.
    unsafe {
        let (f, found) = &mut *(*context).data.cast::<(F, Option<T>)>();
        *found = f(NetDevice::from_raw(dev));
        found.is_some().into()
    }
}

impl PartialEq for NetDevice {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for NetDevice {}
