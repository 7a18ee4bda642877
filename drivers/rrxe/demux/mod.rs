// SPDX-License-Identifier: GPL-2.0

//! Incoming packets of the network stack: from UDP port 4791 to the destination queue pair. This
//! file looks up queue pairs; [`crate::transport`] parses packets, and [`crate::qp::RxBatch`] has
//! the later stages. A packet that belongs to no queue pair, or that violates the specification, is
//! dropped without a response.

mod guard;
pub(crate) mod sockets;

use crate::{
    counters::Counter,
    module::Rrxe,
    qp::{
        multicast,
        table::{Gsi, QpTables},
        Qp, RxBatch, GSI,
    },
    transport::{
        gids::Arrival,
        rx::{check_icrc, Burst},
        rx_packet::{parse, RxPacket},
    },
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::{
    net::{Datagram, IpAddr, NetDevice, RxSkb, UdpPacket, UdpReceive},
    rdma::device::{by_netdev, DeviceRef},
    sync::BurstGuard,
    time::monotonic_ns,
};
use rrxe_core::{
    wire::{self, Bth},
    Packet, Service, Time, MAX_HEADER,
};

/// Returns the RDMA device of a network device, or of the nearest lower device that has one.
fn device_on(dev: &NetDevice, rcu: &rcu::Guard) -> Option<DeviceRef<Rrxe>> {
    by_netdev::<Rrxe>(dev).or_else(|| dev.find_lower(rcu, by_netdev::<Rrxe>))
}

/// The receiver of a UDP tunnel socket.
#[repr(align(8))]
pub(crate) struct Receiver {
    tables: Arc<QpTables>,
}

impl Receiver {
    pub(crate) fn new(tables: Arc<QpTables>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { tables }, GFP_KERNEL)?)
    }
}

/// The reception of a packet of the network stack.
struct Reception<'a> {
    tables: &'a QpTables,
    /// The interface that received the packet: [`UdpReceive::receive`].
    dev: &'a NetDevice,
    skb: &'a UdpPacket,
    now: Time,
    batch: RxBatch<'a>,
    /// The burst that the next datagram may extend, with its queue pair.
    burst: Option<(ArcBorrow<'a, Qp>, Burst<'a>)>,
}

impl<'a> Reception<'a> {
    /// Returns how the packet came.
    #[inline]
    fn arrival(&self) -> Arrival<'a> {
        Arrival::Stack(self.dev)
    }

    /// Counts a datagram that reached no queue pair at the device of the interface which received
    /// it, or, for a packet of this host, of the interface with its destination address.
    fn count(&self, counter: Counter) {
        let rcu = self.batch.burst;
        if !self.dev.is_loopback() && !self.dev.is_vrf() {
            if let Some(device) = device_on(self.dev, rcu) {
                device.data().core.counters.count(counter);
            }
            return;
        }
        let (arrival, destination) = (self.arrival(), self.skb.destination());
        let mut devices = self.tables.gsis.iter(rcu).map(|gsi| &gsi.qp.device);
        if let Some(device) =
            devices.find(|device| device.interfaces.has_gid(arrival, &destination, rcu))
        {
            device.counters.count(counter);
        }
    }

    /// Ends a burst: hands it to its queue pair.
    fn end_burst(&mut self) {
        if let Some((qp, burst)) = self.burst.take() {
            let packet = burst.packet();
            let incoming = RxPacket::of(&packet, burst.datagram, Some(self.dev), self.now);
            self.batch.deliver(qp, &incoming);
        }
    }

    /// Handles a datagram. Returns false if it was not a valid packet.
    fn datagram(&mut self, datagram: Datagram<'a>) -> bool {
        if self.burst.is_some() {
            if self.extends_burst(&datagram) {
                return true;
            }
            self.end_burst();
        }
        let mut head = [0; MAX_HEADER];
        let Some(packet) = parse(&datagram, &mut head) else {
            self.count(Counter::Malformed);
            return false;
        };
        // A packet for the same queue pair as the previous one has the same addresses and came the
        // same way.
        let last = self.batch.last(packet.bth.dest_qpn);
        let found = last.or_else(|| self.find(&packet));
        if found.is_none() && !self.is_special(&packet) {
            // Dropped before its ICRC is computed, which would be most of the cost of a scan of
            // queue pair numbers.
            self.count_unclaimed(&packet);
            return true;
        }
        let headers = head.get(..packet.header_len.into()).unwrap_or(&head);
        if !self.has_valid_icrc(&datagram, headers) {
            return false;
        }
        let incoming = RxPacket::of(&packet, datagram, Some(self.dev), self.now);
        let Some(qp) = found else {
            if !self.special(&incoming) {
                self.count_unclaimed(&packet);
            }
            return true;
        };
        let max = if packet.starts_burst() && datagram.is_followed() {
            self.batch.accepts_burst(qp, &incoming)
        } else {
            1
        };
        match head.first_chunk() {
            Some(header) if max > 1 => {
                self.burst = Some((qp, Burst::new(packet, datagram, header, max)));
            }
            _ => self.batch.deliver(qp, &incoming),
        }
        true
    }

    /// Adds a datagram to the burst if it is the next one. Returns whether it is.
    #[inline]
    fn extends_burst(&mut self, datagram: &Datagram<'_>) -> bool {
        let prefix = &mut self.batch.prefix;
        let burst = self.burst.as_mut();
        burst.is_some_and(|(_, burst)| burst.extend(datagram, prefix))
    }

    /// Returns whether the ICRC of a packet is right, and counts the packet if not.
    #[inline]
    fn has_valid_icrc(&mut self, datagram: &Datagram<'_>, headers: &[u8]) -> bool {
        let bad = match check_icrc(datagram, headers, &mut self.batch.prefix) {
            Some(true) => return true,
            Some(false) => Counter::BadIcrc,
            None => Counter::Malformed,
        };
        self.count(bad);
        false
    }

    /// Counts a packet that has no receiver: at the queue pair that it names, or else at the device
    /// of the interface that received it.
    #[cold]
    fn count_unclaimed(&self, packet: &Packet) {
        let counter = match packet.operation {
            wire::Operation::Cnp => Counter::CnpsIgnored,
            _ => Counter::Discarded,
        };
        if self.is_special(packet) {
            return self.count(counter);
        }
        match self.tables.qps.get(packet.bth.dest_qpn, self.batch.burst) {
            Some(qp) => qp.count(counter),
            None if counter == Counter::CnpsIgnored => self.count(counter),
            None => self.count(Counter::UnknownNumber),
        }
    }

    /// Returns whether a packet is a multicast, which has a queue pair number of its own, or
    /// for the general services interface.
    #[inline]
    fn is_special(&self, packet: &Packet) -> bool {
        packet.bth.dest_qpn == GSI || self.skb.destination().is_multicast()
    }

    /// Returns the queue pair that a unicast packet is for, if the packet came to an interface of
    /// the queue pair's device. A connected queue pair also compares the packet's addresses and
    /// interface with those of its path (`RxPacket::is_from_peer_of`).
    fn find(&self, packet: &Packet) -> Option<ArcBorrow<'a, Qp>> {
        let (number, rcu) = (packet.bth.dest_qpn, self.batch.burst);
        if number == GSI {
            return None;
        }
        let qp = self.tables.qps.get(number, rcu)?;
        let arrival = self.arrival();
        let is_ud = packet.bth.opcode.service() == Some(Service::Ud);
        if !is_ud && (arrival.is_through(&qp.device.interfaces.netdev) || self.dev.is_loopback()) {
            return Some(qp);
        }
        let destination = self.skb.destination();
        let belongs = !destination.is_multicast()
            && qp.device.interfaces.receives(arrival, &destination, rcu);
        belongs.then_some(qp)
    }

    /// Returns QP1 of the device on which the connection manager listens at the packet's
    /// destination: the first one in its list that has the address.
    fn gsi(&self) -> Option<&'a Gsi> {
        let (arrival, rcu) = (self.arrival(), self.batch.burst);
        let (destination, net) = (self.skb.destination(), self.dev.net(rcu));
        let listens = |gsi: &&Gsi| {
            let device = &gsi.qp.device;
            let is_accessible = |device: DeviceRef<Rrxe>| device.is_accessible_from(net);
            device.interfaces.has_gid(arrival, &destination, rcu)
                && by_netdev::<Rrxe>(&device.interfaces.netdev).is_some_and(is_accessible)
        };
        let found = self.tables.gsis.iter(rcu).filter(listens);
        found.min_by_key(|gsi| gsi.order)
    }

    /// Delivers a packet to the members of its multicast group, or to the general services
    /// interface. An error of one member does not affect the others (I-07). Returns whether there
    /// was a receiver.
    #[cold]
    fn special(&mut self, incoming: &RxPacket<'_>) -> bool {
        self.batch.finish();
        let (bth, rcu) = (&incoming.packet.bth, self.batch.burst);
        let mut received = false;
        let mut deliver = |qp: &Arc<Qp>| {
            received = true;
            Qp::receive_one(qp.as_arc_borrow(), incoming, rcu);
        };
        let destination = self.skb.destination();
        match (destination.is_multicast(), bth.dest_qpn) {
            (true, multicast::QPN) if bth.opcode.service() == Some(Service::Ud) => {
                // Groups are joined on the link's network device, in its namespace. Each interface
                // above it receives a copy of its own.
                let net = self.dev.net(rcu).cookie();
                if let Some(device) = device_on(self.dev, rcu) {
                    let device = device.data();
                    if device.core.interfaces.netdev.net(rcu).cookie() == net {
                        let members = device.qps.multicast.members_of(&destination, rcu);
                        members.for_each(&mut deliver);
                    }
                }
            }
            (false, GSI) => {
                if let Some(gsi) = self.gsi() {
                    deliver(&gsi.qp);
                }
            }
            _ => {}
        }
        received
    }
}

impl UdpReceive for Receiver {
    fn receive(&self, dev: &NetDevice, skb: RxSkb, burst: &BurstGuard) {
        let mut good = true;
        {
            let mut reception = Reception {
                tables: &self.tables,
                dev,
                skb: &skb,
                now: Time::from_ns(monotonic_ns()),
                batch: RxBatch::new(burst),
                burst: None,
            };
            for datagram in skb.datagrams() {
                good &= reception.datagram(datagram);
            }
            reception.end_burst();
            reception.batch.finish();
        }
        // An invalid packet shows as dropped.
        if good {
            skb.consume();
        }
    }

    #[inline]
    fn is_same_receiver(one: &[u8; Bth::LEN], other: &[u8; Bth::LEN]) -> bool {
        Bth::from_bytes(one).dest_qpn == Bth::from_bytes(other).dest_qpn
    }

    fn may_chain(
        &self,
        dev: &NetDevice,
        destination: &IpAddr,
        header: &[u8; Bth::LEN],
        rcu: &rcu::Guard,
    ) -> bool {
        let Some(qp) = self.tables.qps.get(Bth::from_bytes(header).dest_qpn, rcu) else {
            return false;
        };
        let namespace = dev.net(rcu).cookie();
        let interface = qp
            .device
            .interfaces
            .interface_with(destination, namespace, rcu);
        let is_seen = |netdev: &NetDevice| netdev.is_captured(rcu);
        interface.is_some_and(|interface| !is_seen(interface))
            && !is_seen(dev)
            && !is_seen(&qp.device.interfaces.netdev)
    }
}
