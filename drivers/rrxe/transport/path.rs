// SPDX-License-Identifier: GPL-2.0

//! The path to a peer: addresses, header fields and a cached route.

use crate::{config::Config, limits, verbs::device::DeviceState};
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
    /// The route of the last packets; looked up again once the stack reports it as stale.
    #[pin]
    route: SpinLock<Option<Route>>,
    /// Whether packets omit the ICRC: one of the constants below.
    icrc_elision: Atomic<u32>,
    /// While `SUSPECT`: number of batches that must still leave with ICRCs.
    batches_left: Atomic<u32>,
    /// Number of changes to `SUSPECT`, which determines the length of the next one.
    backoff: Atomic<u32>,
    /// The last GSO packet was long.
    long_gso: Atomic<u32>,
    /// The peer, on this host, has been told that its GSO packets arrive unmodified.
    intact_confirmed: Atomic<u32>,
}

/// ICRC elision is not known to work yet: all packets have an ICRC.
const UNKNOWN: u32 = 0;
/// The peer is on this host, and our GSO packets arrive there unmodified: it accepts them without
/// ICRCs.
const ELIDED: u32 = 1;
/// All packets have an ICRC, as configured.
const REQUIRED: u32 = 2;
/// Packets left without ICRCs (`ELIDED`), and then an ACK timed out, either because something on
/// the path now segments packets and drops those without an ICRC, or because the peer was slow. Or
/// the peer received a packet without an ICRC that was segmented or forged.
const SUSPECT: u32 = 3;

/// Number of batches that leave with ICRCs after a timeout. It doubles with each further timeout,
/// up to [`MAX_BACKOFF`] times.
const SUSPECT_BATCHES: u32 = 64;
const MAX_BACKOFF: u32 = 16;
/// Smallest back-off after a segmented or forged packet: if the path segments GSO packets, each one
/// that leaves without ICRCs is lost.
const MODIFIED_BACKOFF: u32 = 4;

impl Path {
    pub(crate) fn new(info: AddressInfo, config: &Config) -> impl PinInit<Self, Error> {
        let icrc_elision = if config.always_icrc {
            REQUIRED
        } else {
            UNKNOWN
        };
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
            icrc_elision: Atomic::new(icrc_elision),
            batches_left: Atomic::new(0),
            backoff: Atomic::new(0),
            long_gso: Atomic::new(0),
            intact_confirmed: Atomic::new(0),
        })
    }

    /// Returns the address as the consumer set it.
    pub(crate) fn info(&self) -> &AddressInfo {
        &self.info
    }

    /// Returns the local address.
    pub(crate) fn source(&self) -> &IpAddr {
        &self.source
    }

    /// Returns the peer's address.
    pub(crate) fn destination(&self) -> &IpAddr {
        &self.destination
    }

    /// Returns whether a packet comes from the peer, and to the local address of this path.
    pub(crate) fn is_from_peer(&self, skb: &RxSkb) -> bool {
        self.source == skb.destination() && self.destination == skb.source()
    }

    /// Returns whether a packet that bypassed the network stack, with these addresses, comes from
    /// the peer.
    pub(crate) fn has_addresses(&self, source: &IpAddr, destination: &IpAddr) -> bool {
        self.source == *destination && self.destination == *source
    }

    /// Records that the peer has received a GSO packet unmodified.
    pub(crate) fn on_intact(&self) {
        if self.icrc_elision.load(Relaxed) == UNKNOWN {
            self.icrc_elision.store(ELIDED, Relaxed);
        }
    }

    /// Returns whether all packets must have an ICRC and pass the network stack.
    #[inline]
    pub(crate) fn always_has_icrc(&self) -> bool {
        self.icrc_elision.load(Relaxed) == REQUIRED
    }

    /// Returns whether the peer must still be told that its GSO packets arrive unmodified.
    #[inline]
    pub(crate) fn needs_confirmation(&self) -> bool {
        self.intact_confirmed.load(Relaxed) == 0
    }

    /// Records that the peer has been told.
    pub(crate) fn set_confirmed(&self) {
        self.intact_confirmed.store(1, Relaxed);
    }

    /// Records that the peer has received a modified packet without an ICRC: a packet was segmented
    /// or copied on its way, or is forged. Has no effect unless packets leave without ICRCs.
    #[cold]
    pub(crate) fn on_modified(&self) {
        if self.icrc_elision.cmpxchg(ELIDED, SUSPECT, Relaxed).is_ok() {
            self.suspend(self.backoff.load(Relaxed).max(MODIFIED_BACKOFF));
        }
    }

    /// Records that an ACK has timed out.
    #[cold]
    pub(crate) fn on_timeout(&self) {
        // Both sides of a queue pair may race here. Either result is good enough.
        if self.icrc_elision.cmpxchg(ELIDED, SUSPECT, Relaxed) == Err(REQUIRED) {
            return;
        }
        self.suspend(self.backoff.load(Relaxed));
    }

    /// Makes packets leave with ICRCs for a number of batches that grows with the back-off.
    fn suspend(&self, backoff: u32) {
        self.batches_left.store(SUSPECT_BATCHES << backoff, Relaxed);
        let next = backoff.wrapping_add(1).min(MAX_BACKOFF);
        self.backoff.store(next, Relaxed);
    }

    /// Returns whether the payload of GSO packets needs no ICRC.
    #[inline]
    pub(crate) fn may_omit_icrc(&self) -> bool {
        self.icrc_elision.load(Relaxed) == ELIDED
    }

    /// Records that a batch begins whose GSO packets could omit ICRCs.
    #[inline]
    pub(crate) fn on_batch(&self) {
        if self.icrc_elision.load(Relaxed) == SUSPECT {
            self.on_suspect_batch();
        }
    }

    #[cold]
    fn on_suspect_batch(&self) {
        match self.batches_left.load(Relaxed).checked_sub(1) {
            Some(left) => self.batches_left.store(left, Relaxed),
            None => {
                let _ = self.icrc_elision.cmpxchg(SUSPECT, ELIDED, Relaxed);
            }
        }
    }

    /// Returns whether small packets are expected to form long GSO packets.
    #[inline]
    pub(crate) fn has_long_gso(&self) -> bool {
        self.long_gso.load(Relaxed) != 0
    }

    /// Records whether the last GSO packet was long.
    #[inline]
    pub(crate) fn set_long_gso(&self, long: bool) {
        if self.has_long_gso() != long {
            self.long_gso.store(long.into(), Relaxed);
        }
    }

    /// Returns whether `other` is the reverse of this path.
    pub(crate) fn is_reverse_of(&self, other: &Path) -> bool {
        self.source == other.destination && self.destination == other.source
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
