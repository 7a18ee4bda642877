// SPDX-License-Identifier: GPL-2.0

//! The path to a peer: addresses, header fields and a cached route.

use super::icrc_elision::IcrcElision;
use crate::{limits, verbs::device::DeviceState};
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
    /// The route of the last packets; looked up again once the stack reports it as stale.
    #[pin]
    route: SpinLock<Option<Route>>,
    pub(crate) elision: IcrcElision,
}

impl Path {
    pub(crate) fn new(info: AddressInfo) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            info,
            source: AddressInfo::ip_of(&info.sgid),
            destination: AddressInfo::ip_of(&info.dgid),
            route <- new_spinlock!(None, "rrxe_path"),
            elision: IcrcElision::new(),
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
        device: &DeviceState,
        source_port: u16,
        rcu: &rcu::Guard,
    ) -> Option<Route> {
        let mut cached = lock_bh(&self.route);
        if let Some(route) = cached.as_ref().filter(|route| route.is_valid()) {
            return Some(route.clone());
        }
        // The interface may be a VLAN: if the device is gone, so is the path. A device in another
        // namespace, such as a container's macvlan, must not be used: its index may name any device
        // in this one.
        let net = device.netdev.net(rcu);
        if self.info.namespace != Some(net.cookie()) {
            return None;
        }
        let dev = net.device(self.info.ifindex, rcu)?;
        let flow = Flow {
            source: self.source,
            destination: self.destination,
            tos: self.info.traffic_class,
            source_port,
            destination_port: limits::ROCE_UDP_PORT,
        };
        *cached = Route::lookup(dev, &flow).ok();
        cached.clone()
    }
}
