// SPDX-License-Identifier: GPL-2.0

//! The addresses of a device, and the interfaces and network namespaces that have them.
//!
//! A device has the addresses of its network device and of those stacked on it, each with its
//! interface, as ib_core's GID table lists them. A path belongs to the namespace of its GID's
//! interface. A packet belongs to the interface that received its frame, or, if it came from this
//! host, to the addresses of a namespace or of a VRF.

use super::path::Path;
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{aref::ARef, rcu},
};
use linux_rdma::{
    net::{InterfaceId, IpAddr, NetDevice, NetNsCookie},
    rdma::{AddressInfo, NewGid},
    sync::{RcuListEntry, RcuLists},
    time::LogLimit,
    user::current_euid,
};

/// An entry of the GID table.
pub(crate) struct Gid {
    /// Index in the table.
    index: u32,
    address: IpAddr,
    interface: InterfaceId,
    /// Dropped a grace period after ib_core has removed the entry.
    netdev: ARef<NetDevice>,
}

/// The highest priority of packets of any program (`TC_PRIO_INTERACTIVE`, linux/pkt_sched.h).
const MAX_PRIORITY: u8 = 6;

/// The log messages about paths that a program may not use.
static REFUSALS: LogLimit = LogLimit::new();

/// The interfaces of a device: its own network device, and those with an address in the GID table.
#[pin_data]
pub(crate) struct Interfaces {
    /// The device's own network device.
    pub(crate) netdev: ARef<NetDevice>,
    /// The GID table.
    #[pin]
    gids: RcuLists<Gid, 1>,
}

/// The way by which a packet came.
#[derive(Clone, Copy)]
pub(crate) enum Arrival<'a> {
    /// Through the network stack. The device is the interface that received the frame, or the
    /// loopback device or a VRF if the packet came from this host.
    Stack(&'a NetDevice),
    /// From a queue pair of the same device whose path is in this namespace, outside of VRFs.
    Loopback(NetNsCookie),
}

/// The origin of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The network, through this interface.
    Network(InterfaceId),
    /// This host. The packet is for an address of the namespace in the VRF with this index, or
    /// outside of VRFs if that is 0.
    Host { namespace: NetNsCookie, vrf: u32 },
}

impl Arrival<'_> {
    fn origin(self, rcu: &rcu::Guard) -> Origin {
        let (namespace, vrf) = match self {
            Self::Loopback(namespace) => (namespace, 0),
            Self::Stack(dev) if dev.is_loopback() => (dev.net(rcu).cookie(), 0),
            Self::Stack(dev) if dev.is_vrf() => {
                let InterfaceId { namespace, ifindex } = dev.interface(rcu);
                (namespace, ifindex)
            }
            Self::Stack(dev) => return Origin::Network(dev.interface(rcu)),
        };
        Origin::Host { namespace, vrf }
    }

    /// Returns whether the packet came through a network device itself, not one stacked on it.
    #[inline]
    pub(crate) fn is_through(self, dev: &NetDevice) -> bool {
        matches!(self, Self::Stack(through) if through == dev)
    }
}

impl Gid {
    /// Returns a new entry for the list of a device.
    pub(crate) fn new(gid: &NewGid<'_>) -> Result<RcuListEntry<Self>> {
        let interface = {
            let rcu = rcu::read_lock();
            gid.netdev.interface(&rcu)
        };
        let entry = Self {
            index: gid.index,
            address: AddressInfo::ip_of(&gid.gid),
            interface,
            netdev: gid.netdev.into(),
        };
        RcuListEntry::new(entry, GFP_KERNEL)
    }

    /// Returns whether a packet of this origin and destination can be for the entry's address.
    fn receives(&self, origin: Origin, destination: &IpAddr, rcu: &rcu::Guard) -> bool {
        match origin {
            Origin::Network(interface) => self.interface == interface,
            Origin::Host { namespace, vrf } => {
                self.address == *destination
                    && self.interface.namespace == namespace
                    && self.netdev.vrf(rcu) == vrf
            }
        }
    }
}

impl Interfaces {
    /// Returns an initializer for a device without addresses.
    pub(crate) fn new(netdev: &NetDevice) -> impl PinInit<Self> + use<> {
        let netdev = netdev.into();
        pin_init!(Self {
            netdev,
            // SAFETY: Before the module is unloaded, `SharedState` (rrxe_main.rs) waits for RCU
            // callbacks. By then no device exists.
            gids <- unsafe { RcuLists::new(c"rrxe_gids", static_lock_class!()) },
        })
    }

    /// Adds an entry of the GID table.
    pub(crate) fn add(&self, gid: RcuListEntry<Gid>) {
        self.gids.lock().push(0, gid);
    }

    /// Removes the entry of the GID table with this index.
    pub(crate) fn remove(&self, index: u32) {
        self.gids.lock().remove(0, |gid| gid.index == index);
    }

    /// Returns whether the device has an address to which a packet can be, given how it came and
    /// its destination.
    #[inline]
    pub(crate) fn receives(
        &self,
        arrival: Arrival<'_>,
        destination: &IpAddr,
        rcu: &rcu::Guard,
    ) -> bool {
        arrival.is_through(&self.netdev) || self.gid_of(arrival, destination, rcu).is_some()
    }

    /// Returns the interface of this namespace that has an address.
    pub(crate) fn interface_with<'a>(
        &'a self,
        address: &IpAddr,
        namespace: NetNsCookie,
        rcu: &'a rcu::Guard,
    ) -> Option<&'a NetDevice> {
        let mut gids = self.gids.iter(0, rcu);
        let has = |gid: &&Gid| gid.address == *address && gid.interface.namespace == namespace;
        gids.find(has).map(|gid| &*gid.netdev)
    }

    /// Returns an entry for an address to which a packet can be.
    fn gid_of<'a>(
        &'a self,
        arrival: Arrival<'_>,
        destination: &IpAddr,
        rcu: &'a rcu::Guard,
    ) -> Option<&'a Gid> {
        let origin = arrival.origin(rcu);
        let mut gids = self.gids.iter(0, rcu);
        gids.find(|gid| gid.receives(origin, destination, rcu))
    }

    /// Returns whether the GID table has the destination of a packet, with the interface through
    /// which the packet came. That is the connection manager's rule for the device on which it
    /// listens at an address (`cma_validate_port()`, drivers/infiniband/core/cma.c).
    pub(crate) fn has_gid(
        &self,
        arrival: Arrival<'_>,
        destination: &IpAddr,
        rcu: &rcu::Guard,
    ) -> bool {
        let origin = arrival.origin(rcu);
        let mut gids = self.gids.iter(0, rcu);
        gids.any(|gid| gid.address == *destination && gid.receives(origin, destination, rcu))
    }

    /// Returns the VLAN identifier of the network device to which a datagram is addressed.
    pub(crate) fn vlan_id_at(
        &self,
        arrival: Arrival<'_>,
        destination: &IpAddr,
        rcu: &rcu::Guard,
    ) -> Option<u16> {
        match (arrival, arrival.origin(rcu)) {
            (Arrival::Stack(dev), Origin::Network(_)) => dev.vlan_id(rcu),
            _ => self.gid_of(arrival, destination, rcu)?.netdev.vlan_id(rcu),
        }
    }

    /// Returns whether a packet came to the interface of a path of this device.
    #[inline]
    pub(crate) fn is_at_path(&self, arrival: Arrival<'_>, path: &Path, rcu: &rcu::Guard) -> bool {
        if arrival.is_through(&self.netdev) {
            return path.is_own;
        }
        let Some(interface) = path.info.interface else {
            return false;
        };
        match arrival.origin(rcu) {
            Origin::Network(through) => interface == through,
            Origin::Host { namespace, vrf } => {
                let is_in_vrf = |dev: &NetDevice| dev.vrf(rcu) == vrf;
                interface.namespace == namespace
                    && if path.is_own {
                        is_in_vrf(&self.netdev)
                    } else {
                        let netdev = self.netdev_of(interface, rcu);
                        netdev.is_some_and(is_in_vrf)
                    }
            }
        }
    }

    /// Returns `EPERM`, and logs the reason, if the current process may not use a path.
    ///
    /// The source address may belong to another namespace than the device. Then only processes of
    /// that namespace may use it, and processes with CAP_NET_RAW over it, which can send any packet
    /// there. The priority of packets is restricted like that of sockets (`sk_set_prio_allowed()`,
    /// net/core/sock.c).
    pub(crate) fn check_use(&self, info: &AddressInfo) -> Result {
        let Some(interface) = info.interface else {
            return Ok(());
        };
        let rcu = rcu::read_lock();
        let own = self.netdev.net(&rcu);
        let net = if own.cookie() == interface.namespace {
            Some(own)
        } else {
            let net = self.netdev_of(interface, &rcu).map(|dev| dev.net(&rcu));
            net.filter(|net| net.is_current() || net.may_send_raw())
        };
        let Some(net) = net else {
            if REFUSALS.may_print() {
                pr_warn!(
                    "user {}: the GID with index {} on {} belongs to another network namespace; run the program in that namespace, or give it CAP_NET_RAW there\n",
                    current_euid(),
                    info.sgid_index,
                    self.netdev.name()
                );
            }
            return Err(EPERM);
        };
        if info.priority() > MAX_PRIORITY && !net.may_send_raw() && !net.may_administer() {
            if REFUSALS.may_print() {
                pr_warn!(
                    "user {}: service level {} on {} is for network control; use 0 to {}, or give the program CAP_NET_ADMIN\n",
                    current_euid(),
                    info.sl,
                    self.netdev.name(),
                    MAX_PRIORITY
                );
            }
            return Err(EPERM);
        }
        Ok(())
    }

    /// Returns a network device of the GID table by its identity.
    pub(crate) fn netdev_of<'a>(
        &'a self,
        interface: InterfaceId,
        rcu: &'a rcu::Guard,
    ) -> Option<&'a NetDevice> {
        let mut gids = self.gids.iter(0, rcu);
        let gid = gids.find(|gid| gid.interface == interface)?;
        // It may have left for another namespace.
        (gid.netdev.interface(rcu) == interface).then_some(&gid.netdev)
    }
}
