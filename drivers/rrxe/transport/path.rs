// SPDX-License-Identifier: GPL-2.0

//! The path to a peer: addresses, header fields and a cached route.

use super::gids::Interfaces;
use crate::limits;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{rcu, SpinLock},
};
use linux_rdma::{
    net::{Flow, IpAddr, Route},
    rdma::AddressInfo,
    sync::lock_bh,
};

/// A path.
#[pin_data]
pub(crate) struct Path {
    /// The address as the consumer set it.
    pub(crate) info: AddressInfo,
    /// The local address.
    pub(super) source: IpAddr,
    /// The peer's address.
    pub(super) destination: IpAddr,
    /// The local address is of the device's own network device.
    pub(super) is_own: bool,
    /// The route of the last packets; looked up again once the stack reports it as stale.
    #[pin]
    route: SpinLock<Option<Route>>,
}

impl Path {
    pub(crate) fn new(info: AddressInfo, interfaces: &Interfaces) -> impl PinInit<Self, Error> {
        let is_own = {
            let rcu = rcu::read_lock();
            info.interface == Some(interfaces.netdev.interface(&rcu))
        };
        try_pin_init!(Self {
            info,
            is_own,
            source: AddressInfo::ip_of(&info.sgid),
            destination: AddressInfo::ip_of(&info.dgid),
            route <- new_spinlock!(None, "rrxe_path"),
        })
    }

    /// Returns whether a packet with these addresses comes from the peer, and to the local address
    /// of this path.
    pub(crate) fn is_from_peer(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.source == destination && self.destination == source
    }

    /// Returns the current route. `None` if the stack has no route.
    pub(crate) fn route(
        &self,
        interfaces: &Interfaces,
        source_port: u16,
        rcu: &rcu::Guard,
    ) -> Option<Route> {
        let mut cached = lock_bh(&self.route);
        if let Some(route) = cached.as_ref().and_then(Route::current) {
            return Some(route);
        }
        // The index of the interface is one of its namespace. If the interface is gone, so is the
        // path.
        let interface = self.info.interface?;
        let own = interfaces.netdev.net(rcu);
        let is_here = own.cookie() == interface.namespace;
        let net = if is_here {
            own
        } else {
            interfaces.netdev_of(interface, rcu)?.net(rcu)
        };
        let dev = net.device(interface.ifindex, rcu)?;
        let flow = Flow {
            source: self.source,
            destination: self.destination,
            tos: self.info.traffic_class,
            source_port,
            destination_port: limits::ROCE_UDP_PORT,
        };
        let route = Route::lookup(dev, &flow).ok();
        // A route of IPv6 refers to its namespace, which may end before this path if it is not the
        // device's (`struct dst_ops` in `struct netns_ipv6`).
        let may_stay = is_here || matches!(self.source, IpAddr::V4(_));
        *cached = route.clone().filter(|_| may_stay);
        route
    }
}
