// SPDX-License-Identifier: GPL-2.0

//! Incoming packets: from UDP port 4791, or from a [`LoopbackBatch`], to the destination queue
//! pair. This file parses packets and looks up their queue pairs; [`crate::qp::RxBatch`] has the
//! later stages.
//!
//! The softirq that received a packet of the network stack also handles it. The sender of a
//! [`LoopbackBatch`] delivers it itself. A packet that belongs to no queue pair, or that violates
//! the specification, is dropped without a response.

use super::{
    icrc_elision::Mark,
    loopback::{LoopbackBatch, LoopbackEntry},
    rx_packet::{parse, with_addressed, RxPacket},
};
use crate::{
    counters::Counter,
    qp::{Qp, RxBatch},
    tables::Tables,
    verbs::{device::DeviceState, multicast},
    Rrxe,
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::{
    net::{Datagram, IpVersion, NetDevice, RxSkb, UdpReceive},
    rdma::device::{by_netdev, DeviceRef},
    time::monotonic_ns,
    vector::Vector,
};
use rrxe_core::{
    icrc::{self, Prefix, ICRC, NO_ICRC},
    wire::{self, Bth},
    Packet, Service, MAX_HEADER,
};

/// Largest nesting of deliveries on a CPU: one `LoopbackBatch`, and the responses to it. A softirq
/// sends anything beyond that.
const MAX_NESTING: u64 = 2;

/// The queue pair number of the general services interface.
pub(crate) const GSI: u32 = 1;

/// Returns the RDMA device of a network device, or of the nearest lower device that has one.
pub(crate) fn device_on(dev: &NetDevice, rcu: &rcu::Guard) -> Option<DeviceRef<Rrxe>> {
    by_netdev::<Rrxe>(dev).or_else(|| dev.find_lower(rcu, by_netdev::<Rrxe>))
}

/// The receiver of a UDP tunnel socket.
#[repr(align(8))]
pub(crate) struct Receiver {
    tables: Arc<Tables>,
}

/// Packets to be handled as one burst ([`Packet::burst`]).
struct Burst<'a, 'b> {
    qp: ArcBorrow<'a, Qp>,
    packet: Packet,
    /// The first packet.
    datagram: Datagram<'b>,
    /// The header that the next packet must have.
    next: [u8; Bth::LEN],
    packets: u32,
    /// Number of packets that the queue pair accepts at once.
    max: u32,
}

impl Burst<'_, '_> {
    /// Returns whether a datagram is the next packet of the burst. Does not check its ICRC.
    #[inline]
    fn is_next(&self, datagram: &Datagram<'_>) -> bool {
        let mut header = [0; Bth::LEN];
        self.packets < self.max
            && datagram.payload_len() == self.datagram.payload_len()
            && datagram.copy_bits(0, &mut header).is_ok()
            && header == self.next
    }

    #[inline]
    fn add(&mut self) {
        self.next = Packet::next_header(&self.next);
        self.packets = self.packets.wrapping_add(1);
    }
}

impl Receiver {
    pub(crate) fn new(tables: Arc<Tables>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { tables }, GFP_KERNEL)?)
    }

    /// Returns the part of the ICRC's input in front of the BTH. `None` if the datagram is not a
    /// packet.
    fn prefix(datagram: &Datagram<'_>) -> Option<Prefix> {
        let packet_len = u32::try_from(datagram.payload_len()).ok()?;
        let udp = datagram.udp_header();
        // IPv4 options and IPv6 extension headers are not supported (IBA A17.3).
        let (prefix, lengths_agree) = match datagram.packet().version() {
            IpVersion::V4 => {
                let ip = datagram.ipv4_header()?;
                let agree = wire::ipv4_lengths_agree(&ip, &udp, packet_len);
                (Prefix::ipv4(&ip, &udp), agree)
            }
            IpVersion::V6 => {
                let ip = datagram.ipv6_header()?;
                let agree = wire::ipv6_lengths_agree(&ip, &udp, packet_len);
                (Prefix::ipv6(&ip, &udp), agree)
            }
        };
        // The stack truncates a packet to its UDP length, regardless of the IP length.
        lengths_agree.then_some(prefix)
    }

    /// Returns whether the ICRC is right, and the received ICRC if it is wrong. `None` if the
    /// datagram is not a packet. The ICRC is not computed if nothing can have modified the
    /// datagram.
    #[inline(always)]
    fn check_icrc(
        datagram: &Datagram<'_>,
        headers: &[u8],
        batch: &mut RxBatch<'_>,
    ) -> Option<Result<(), [u8; ICRC]>> {
        if datagram.is_as_written() {
            return Some(Ok(()));
        }
        let total = datagram.payload_len();
        let crc32_le = |crc, bytes: &[u8]| datagram.vector().crc32_le(crc, bytes);
        let make = || Self::prefix(datagram);
        let prefix = batch.prefix.prefix(total, datagram.ident(), make)?;
        let mut state = prefix.start(crc32_le, headers);
        let body = total.checked_sub(headers.len())?.checked_sub(ICRC)?;
        datagram
            .for_each(headers.len(), body, |fragment| {
                state = fragment.crc32_le(state);
            })
            .ok()?;
        let mut received = [0; ICRC];
        datagram
            .copy_bits(total.checked_sub(ICRC)?, &mut received)
            .ok()?;
        let is_right = icrc::finish(state) == received;
        Some(is_right.then_some(()).ok_or(received))
    }

    /// Returns whether a datagram that came in on `dev` may be for a queue pair of the network
    /// device `own`: it came in on `own` or on a device stacked on it (a VLAN, a bridge, a
    /// macvlan), or it came from this host to an address of one of these.
    fn is_for(dev: &NetDevice, own: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> bool {
        let receives = |dev: &NetDevice| (dev == own || own.has_upper(dev, rcu)).then_some(());
        with_addressed(dev, skb, rcu, receives).is_some()
    }

    /// Returns the RDMA device that a packet is addressed to.
    fn device(dev: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> Option<DeviceRef<Rrxe>> {
        with_addressed(dev, skb, rcu, |dev| device_on(dev, rcu))
    }

    /// Counts a packet that reached no queue pair.
    fn count(dev: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard, counter: Counter) {
        if let Some(device) = Self::device(dev, skb, rcu) {
            device.data().counters.count(counter);
        }
    }

    /// Ends a burst: hands it to its queue pair.
    fn end_burst<'a>(
        burst: &mut Option<Burst<'a, '_>>,
        now: u64,
        batch: &mut RxBatch<'a>,
        rcu: &rcu::Guard,
    ) {
        if let Some(burst) = burst.take() {
            let packet = burst.packet.burst(burst.packets);
            let incoming = RxPacket::of(&packet, burst.datagram, None, now);
            batch.deliver(burst.qp, &incoming, rcu);
        }
    }

    /// Handles a datagram. Returns false if it was not a valid packet.
    fn datagram<'a, 'b>(
        &'a self,
        dev: &NetDevice,
        datagram: Datagram<'b>,
        now: u64,
        batch: &mut RxBatch<'a>,
        burst: &mut Option<Burst<'a, 'b>>,
        rcu: &'a rcu::Guard,
    ) -> bool {
        if burst.is_some() {
            if Self::extends_burst(burst, &datagram, batch) {
                return true;
            }
            Self::end_burst(burst, now, batch, rcu);
        }
        let skb = datagram.packet();
        let mut head = [0; MAX_HEADER];
        let Some(packet) = parse(&datagram, &mut head) else {
            Self::count(dev, skb, rcu, Counter::Malformed);
            return false;
        };
        // A packet for the same queue pair as the previous one has the same addresses and came the
        // same way.
        let last = batch.last(packet.bth.dest_qpn);
        let found = last.or_else(|| self.find(dev, skb, &packet, rcu));
        if found.is_none() && !Self::is_special(skb, &packet) {
            // Dropped before its ICRC is computed, which would be most of the cost of a scan of
            // queue pair numbers.
            self.count_unclaimed(dev, skb, &packet, rcu);
            return true;
        }
        let headers = head.get(..packet.header_len.into()).unwrap_or(&head);
        if !self.has_valid_icrc(dev, &datagram, &packet, headers, batch, rcu) {
            return false;
        }
        let incoming = RxPacket::of(&packet, datagram, Some(dev), now);
        if let Some(qp) = found {
            let max = if packet.starts_burst() && datagram.is_followed() {
                batch.accepts_burst(qp, &incoming)
            } else {
                1
            };
            match head.first_chunk() {
                Some(header) if max > 1 => {
                    *burst = Some(Burst {
                        qp,
                        packet,
                        datagram,
                        next: Packet::next_header(header),
                        packets: 1,
                        max,
                    });
                }
                _ => batch.deliver(qp, &incoming, rcu),
            }
        } else if !Self::special(dev, skb, &incoming, batch, rcu) {
            self.count_unclaimed(dev, skb, &packet, rcu);
        }
        true
    }

    /// Adds a datagram to the burst if it is the next one. Returns whether it is.
    #[inline]
    fn extends_burst(
        burst: &mut Option<Burst<'_, '_>>,
        datagram: &Datagram<'_>,
        batch: &mut RxBatch<'_>,
    ) -> bool {
        burst.as_mut().is_some_and(|current| {
            let is_next = current.is_next(datagram)
                && Self::check_icrc(datagram, &current.next, batch) == Some(Ok(()));
            if is_next {
                current.add();
            }
            is_next
        })
    }

    /// Returns whether the ICRC of a packet is right, and counts the packet if not. If it came
    /// without an ICRC and was modified, its queue pair is told.
    #[inline]
    fn has_valid_icrc(
        &self,
        dev: &NetDevice,
        datagram: &Datagram<'_>,
        packet: &Packet,
        headers: &[u8],
        batch: &mut RxBatch<'_>,
        rcu: &rcu::Guard,
    ) -> bool {
        let bad = match Self::check_icrc(datagram, headers, batch) {
            Some(Ok(())) => return true,
            Some(Err(received)) => {
                if received == NO_ICRC {
                    batch.finish();
                    if let Some(qp) = self.tables.qps.get(packet.bth.dest_qpn, rcu) {
                        qp.on_modified_packet(datagram.packet());
                    }
                }
                Counter::BadIcrc
            }
            None => Counter::Malformed,
        };
        Self::count(dev, datagram.packet(), rcu, bad);
        false
    }

    /// Counts a packet that has no receiver.
    #[cold]
    fn count_unclaimed(&self, dev: &NetDevice, skb: &RxSkb, packet: &Packet, rcu: &rcu::Guard) {
        let is_known = || self.tables.qps.get(packet.bth.dest_qpn, rcu).is_some();
        let counter = match packet.operation {
            wire::Operation::Cnp => Counter::CnpsIgnored,
            _ if Self::is_special(skb, packet) || is_known() => Counter::Discarded,
            _ => Counter::UnknownNumber,
        };
        Self::count(dev, skb, rcu, counter);
    }

    /// Returns whether a packet is a multicast, which has a queue pair number of its own, or
    /// for the general services interface.
    #[inline]
    fn is_special(skb: &RxSkb, packet: &Packet) -> bool {
        packet.bth.dest_qpn == GSI || skb.destination().is_multicast()
    }

    /// Returns the queue pair that a unicast packet is for, if it may receive packets from `dev`.
    fn find<'a>(
        &'a self,
        dev: &NetDevice,
        skb: &RxSkb,
        packet: &Packet,
        rcu: &'a rcu::Guard,
    ) -> Option<ArcBorrow<'a, Qp>> {
        let bth = &packet.bth;
        if Self::is_special(skb, packet) {
            return None;
        }
        let qp = self.tables.qps.get(bth.dest_qpn, rcu)?;
        // A connected queue pair takes the packets of its path, in its namespace
        // (`Path::is_from_peer`).
        let own = &qp.device.netdev;
        let is_ud = bth.opcode.service() == Some(Service::Ud);
        let belongs = dev == &**own
            || (is_ud || dev.net(rcu).cookie() == own.net(rcu).cookie())
                && Self::is_for(dev, own, skb, rcu);
        belongs.then_some(qp)
    }

    /// Delivers a packet to the members of its multicast group, or to the general services
    /// interface. An error of one member does not affect the others (I-07). Returns whether there
    /// was a receiver.
    #[cold]
    fn special(
        dev: &NetDevice,
        skb: &RxSkb,
        incoming: &RxPacket<'_>,
        batch: &mut RxBatch<'_>,
        rcu: &rcu::Guard,
    ) -> bool {
        let bth = &incoming.packet.bth;
        let mut taken = false;
        let mut deliver = |qp: &Arc<Qp>| {
            taken = true;
            Qp::receive_one(qp.as_arc_borrow(), incoming, rcu);
        };
        match (skb.destination().is_multicast(), bth.dest_qpn) {
            (true, multicast::QPN) if bth.opcode.service() == Some(Service::Ud) => {
                batch.finish();
                if let Some(device) = device_on(dev, rcu) {
                    let groups = &device.data().multicast;
                    groups.members_of(&skb.destination(), rcu).for_each(deliver);
                }
            }
            (false, GSI) => {
                batch.finish();
                let device = Self::device(dev, skb, rcu);
                if let Some(qp) = device.and_then(|d| d.data().gsi.get(rcu).map(Arc::from)) {
                    deliver(&qp);
                }
            }
            _ => {}
        }
        taken
    }
}

impl UdpReceive for Receiver {
    fn receive(&self, dev: &NetDevice, skb: RxSkb) {
        let rcu = rcu::read_lock();
        let now = monotonic_ns();
        let mut good = true;
        let vector = Vector::default();
        let mut batch = RxBatch::new(&vector);
        let mut burst = None;
        for datagram in skb.datagrams(Mark::of(&skb).is_some(), &vector) {
            vector.hold();
            good &= self.datagram(dev, datagram, now, &mut batch, &mut burst, &rcu);
        }
        Self::end_burst(&mut burst, now, &mut batch, &rcu);
        batch.finish();
        // An invalid packet shows as dropped.
        if good {
            skb.consume();
        }
    }
}

impl DeviceState {
    /// Returns whether deliveries on this CPU are nested so deeply that a softirq must send further
    /// packets.
    #[inline]
    pub(crate) fn is_deeply_nested(&self) -> bool {
        self.deliveries.depth() >= MAX_NESTING
    }

    /// Delivers the packets of a [`LoopbackBatch`] to their queue pairs, which may send responses.
    /// Returns the number of packets and the bytes of their IP packets. The caller must hold no
    /// lock.
    pub(crate) fn deliver(&self, batch: &LoopbackBatch) -> (u64, u64) {
        let _nested = self.deliveries.enter();
        let rcu = rcu::read_lock();
        let now = monotonic_ns();
        let vector = Vector::default();
        let mut rx_batch = RxBatch::new(&vector);
        let (mut packets, mut bytes) = (0u64, 0u64);
        for entry in &batch.packets {
            packets = packets.wrapping_add(entry.count.into());
            let each = batch.ip_len(entry.packet.udp_payload_len() as usize);
            bytes = bytes.wrapping_add((each as u64).wrapping_mul(entry.count.into()));
            self.deliver_entry(batch, entry, now, &mut rx_batch, &rcu);
        }
        rx_batch.finish();
        (packets, bytes)
    }

    /// Delivers one entry of a [`LoopbackBatch`].
    #[inline]
    fn deliver_entry<'a>(
        &'a self,
        batch: &LoopbackBatch,
        entry: &LoopbackEntry,
        now: u64,
        rx_batch: &mut RxBatch<'a>,
        rcu: &'a rcu::Guard,
    ) {
        let sent = &entry.packet;
        let Ok(mut packet) = Packet::parse(sent.header(), sent.udp_payload_len()) else {
            self.counters.count(Counter::Malformed);
            return;
        };
        let number = packet.bth.dest_qpn;
        let find = || {
            let found = self.tables.qps.get(number, rcu);
            found.filter(|qp| core::ptr::eq(&*qp.device, self))
        };
        let (Some(qp), Some(whole)) = (
            rx_batch.last(number).or_else(find),
            // If the region is gone, the packet is lost. The sender learns the reason when it
            // retransmits.
            entry.find(batch, &self.tables.mrs, rx_batch.vector, rcu),
        ) else {
            self.counters.count(Counter::Discarded);
            return;
        };
        let each = packet.payload_len;
        let mut done = 0u32;
        while done < entry.count {
            let rest = whole.from(u64::from(each).wrapping_mul(done.into()));
            let left = entry.count.wrapping_sub(done);
            let mut count = 1;
            if left > 1 && packet.starts_burst() {
                let first = RxPacket::from_loopback(&packet, rest, now);
                count = rx_batch.accepts_burst(qp, &first).clamp(1, left);
            }
            let burst = packet.burst(count);
            rx_batch.deliver(qp, &RxPacket::from_loopback(&burst, rest, now), rcu);
            done = done.wrapping_add(count);
            packet.bth.psn = packet.bth.psn.add(count);
        }
    }
}
