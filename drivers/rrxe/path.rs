// SPDX-License-Identifier: GPL-2.0

//! The path to a peer: addresses, headers and route, looked up once and used for many packets.

use crate::{device::DeviceState, limits};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, SpinLock,
    },
};
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
    /// How far the peer is: one of those below.
    distance: Atomic<u32>,
    /// While that is in doubt: batches that are yet to leave with ICRCs.
    wait: Atomic<u32>,
    /// How often it has been in doubt.
    doubts: Atomic<u32>,
    /// The last row was long.
    long_rows: Atomic<u32>,
    /// The peer, which is on this host, has been told that its rows come as they were made.
    told: Atomic<u32>,
}

/// Whether all packets are to have an ICRC, and to pass the stack.
#[inline]
pub(crate) fn always_has_icrc() -> bool {
    linux_rdma::parameter::<u8>(crate::module_parameters::same_host_icrc.value()) != 0
}

/// Not known yet.
const UNKNOWN: u32 = 0;
/// On this host, and our rows arrive there as they were made: it takes them without ICRCs.
const NEAR: u32 = 1;
/// All packets have an ICRC, by the module's parameter.
const FAR: u32 = 2;
/// It was near, and then an acknowledgement did not come: maybe somebody cuts them now, and drops what has no ICRC; maybe the
/// peer was only slow. Or the peer has received something without an ICRC that was cut, or forged.
const DOUBTFUL: u32 = 3;

/// Batches that leave with ICRCs after a timeout; twice as many after each further one, so often.
const WAIT: u32 = 64;
const MOST_DOUBTS: u32 = 16;
/// The doubts that a cut or forged packet raises at least: if rows are cut on their way, each that leaves without ICRCs is lost.
const CUT_DOUBTS: u32 = 4;

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
            distance: Atomic::new(UNKNOWN),
            wait: Atomic::new(0),
            doubts: Atomic::new(0),
            long_rows: Atomic::new(0),
            told: Atomic::new(0),
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

    /// The same of a packet between these two, that never was a packet of the stack.
    pub(crate) fn joins(&self, source: &IpAddr, destination: &IpAddr) -> bool {
        self.source == *destination && self.destination == *source
    }

    /// The peer has received a row of ours as it was made.
    pub(crate) fn arrives_whole(&self) {
        if self.distance.load(Relaxed) == UNKNOWN {
            let distance = if always_has_icrc() { FAR } else { NEAR };
            self.distance.store(distance, Relaxed);
        }
    }

    /// Whether the peer has still to be told that its rows come as they were made.
    #[inline]
    pub(crate) fn is_untold(&self) -> bool {
        self.told.load(Relaxed) == 0
    }

    /// The peer has been told.
    pub(crate) fn set_told(&self) {
        self.told.store(1, Relaxed);
    }

    /// The peer has received a packet without an ICRC that did not come as it was made: something was cut into pieces or
    /// copied on its way, or is not ours. If nothing of ours leaves without ICRCs anyway, that is of no account.
    #[cold]
    pub(crate) fn arrives_cut(&self) {
        if self.distance.cmpxchg(NEAR, DOUBTFUL, Relaxed).is_ok() {
            self.doubt(self.doubts.load(Relaxed).max(CUT_DOUBTS));
        }
    }

    /// An acknowledgement has not come in time.
    #[cold]
    pub(crate) fn is_silent(&self) {
        // Both sides of a queue pair may be here: what they count then is as good.
        if self.distance.cmpxchg(NEAR, DOUBTFUL, Relaxed) == Err(FAR) {
            return;
        }
        self.doubt(self.doubts.load(Relaxed));
    }

    /// Has packets leave with ICRCs for a number of batches that grows with the doubts.
    fn doubt(&self, doubts: u32) {
        self.wait.store(WAIT << doubts, Relaxed);
        let next = doubts.wrapping_add(1).min(MOST_DOUBTS);
        self.doubts.store(next, Relaxed);
    }

    /// Whether the payload of rows needs no ICRC: asked once for each batch.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        match self.distance.load(Relaxed) {
            NEAR => true,
            DOUBTFUL => self.is_near_again(),
            _ => false,
        }
    }

    #[cold]
    fn is_near_again(&self) -> bool {
        let wait = self.wait.load(Relaxed);
        self.wait.store(wait.saturating_sub(1), Relaxed);
        wait == 0 && self.distance.cmpxchg(DOUBTFUL, NEAR, Relaxed).is_ok()
    }

    /// Whether small packets are expected to leave in long rows.
    #[inline]
    pub(crate) fn has_long_rows(&self) -> bool {
        self.long_rows.load(Relaxed) != 0
    }

    /// Whether the last row was long.
    #[inline]
    pub(crate) fn set_long_rows(&self, long: bool) {
        if self.has_long_rows() != long {
            self.long_rows.store(long.into(), Relaxed);
        }
    }

    /// Whether the other path leads back along this one.
    pub(crate) fn leads_back(&self, other: &Path) -> bool {
        self.source == other.destination && self.destination == other.source
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
        // The address may be that of a VLAN; where its device has gone, so has the path. One that
        // is in another namespace than ours, as a container's macvlan, is not for us to use: its
        // index may name any device here.
        let net = device.netdev.net(rcu);
        if self.info.namespace != Some(net.cookie()) {
            return None;
        }
        let dev = net.device(self.info.ifindex, rcu)?;
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
