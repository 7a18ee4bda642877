// SPDX-License-Identifier: GPL-2.0

//! The path to a peer: addresses, headers and route, looked up once and used for many packets.

use crate::{device::DeviceState, limits};
use kernel::{new_spinlock, prelude::*, sync::rcu, sync::SpinLock};
use linux_rdma::{
    net::{Flow, IpAddr, Route, RxSkb},
    rdma::{AddressInfo, NetworkType},
    sync::lock_bh,
};

/// A path.
#[pin_data]
pub(crate) struct Path {
    info: AddressInfo,
    source: IpAddr,
    destination: IpAddr,
    /// The route of the last packets; looked up again once the stack calls it stale.
    #[pin]
    route: SpinLock<Option<Route>>,
}

impl Path {
    pub(crate) fn new(info: AddressInfo) -> impl PinInit<Self, Error> {
        let (source, destination) = match info.network {
            NetworkType::Ipv4 => (
                IpAddr::V4(AddressInfo::ipv4_of(&info.sgid)),
                IpAddr::V4(AddressInfo::ipv4_of(&info.dgid)),
            ),
            NetworkType::Ipv6 => (IpAddr::V6(info.sgid), IpAddr::V6(info.dgid)),
        };
        try_pin_init!(Self {
            info,
            source,
            destination,
            route <- new_spinlock!(None, "rrxe_path"),
        })
    }

    /// The address as the consumer gave it.
    pub(crate) fn info(&self) -> &AddressInfo {
        &self.info
    }

    /// Our own address.
    pub(crate) fn source(&self) -> &IpAddr {
        &self.source
    }

    /// The peer's address.
    pub(crate) fn destination(&self) -> &IpAddr {
        &self.destination
    }

    /// Whether a packet comes from the peer, to the address that we have for it.
    pub(crate) fn carries(&self, skb: &RxSkb) -> bool {
        self.source == skb.destination() && self.destination == skb.source()
    }

    /// The route, as it is now. `None` where the stack knows none.
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
        // The address may be that of a VLAN; where its device has gone, so has the path.
        let dev = device.netdev.net(rcu).device(self.info.ifindex, rcu)?;
        *cached = Route::lookup(
            dev,
            &Flow {
                source: self.source,
                destination: self.destination,
                tos: self.info.traffic_class,
                source_port,
                destination_port: limits::ROCE_UDP_PORT,
                mark: 0,
            },
        )
        .ok();
        cached.clone()
    }
}
