// SPDX-License-Identifier: GPL-2.0

//! Outgoing packets: turns the core's headers and payload references into packets of the network
//! stack.

use crate::{
    congestion,
    counters::Counter,
    device::DeviceState,
    direct::{Parcel, LARGE},
    limits,
    mr::{Reference, Span},
    path::{self, Path},
    qp::Qp,
    rx::NO_ICRC,
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    net::{
        IpAddr, Room, Route, TxQueue, TxSkb, IPV4_HEADER, IPV6_HEADER, MOST_SEGMENTS, UDP_HEADER,
    },
    vector::Vector,
};
use rrxe_core::{
    icrc::{self, LastPrefix, Prefix},
    Fault, TxError, TxPacket,
};

/// Bytes in front of the payload of a GSO packet: Ethernet with a VLAN tag, IPv6, UDP.
const ROW_HEADERS: usize = 18 + IPV6_HEADER + UDP_HEADER;

/// Packets smaller than this get a buffer for [`SMALL_ROW`] of them from the start: one larger
/// allocation is cheaper than one for each packet.
const SMALL: usize = 256;
const SMALL_ROW: usize = 8;

/// State for writing the packets of a batch.
#[derive(Default)]
pub(crate) struct Pen {
    /// SIMD context; held from the first packet on.
    vector: Vector,
    prefix: LastPrefix,
}

/// Route and header fields that the packets of one path share, for the duration of a batch.
pub(crate) struct Carrier<'a> {
    path: &'a Path,
    route: Route,
    source_port: u16,
    tos: u8,
    /// Largest UDP payload, in bytes, of a GSO packet, which the stack segments; 0 if each packet
    /// leaves alone.
    row: usize,
    /// Payload in page fragments needs no ICRC.
    near: bool,
    /// Packets may be queued on this host.
    queues: bool,
}

impl<'a> Carrier<'a> {
    /// Returns `None` if there is no route: the packets are lost.
    pub(crate) fn new(
        path: &'a Path,
        device: &DeviceState,
        source_port: u16,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let route = path.route(device, source_port, rcu)?;
        Some(Self {
            path,
            queues: route.device(rcu).queues_packets(rcu),
            route,
            source_port,
            tos: path.info().traffic_class,
            row: 0,
            near: false,
        })
    }

    /// Returns the carrier for a connected queue pair, which reacts to congestion.
    pub(crate) fn connected(
        path: &'a Path,
        device: &DeviceState,
        source_port: u16,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let tos = congestion::connected_tos(path.info().traffic_class);
        let carrier = Self::new(path, device, source_port, rcu)?.with_tos(tos);
        // A capture must show packets as they are on a wire.
        if carrier.route.device(rcu).is_captured(rcu) {
            return Some(carrier);
        }
        Some(Self {
            // A queueing discipline may segment GSO packets.
            near: !carrier.queues && path.is_near(),
            ..carrier.in_rows()
        })
    }

    /// Returns the carrier for datagrams to one destination. They always carry an ICRC, because
    /// without retransmission nothing would reveal that packets without one get lost. Multicasts
    /// leave one by one, because the stack copies them.
    pub(crate) fn datagrams(
        path: &'a Path,
        device: &DeviceState,
        source_port: u16,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let carrier = Self::new(path, device, source_port, rcu)?;
        let alone = path.destination().is_multicast() || carrier.route.device(rcu).is_captured(rcu);
        Some(if alone { carrier } else { carrier.in_rows() })
    }

    /// Enables GSO packets if the device supports them.
    fn in_rows(self) -> Self {
        let limit = self.route.segmentation_limit() as usize;
        let row = limit.min(usize::from(u16::MAX)).saturating_sub(ROW_HEADERS);
        Self { row, ..self }
    }

    /// Returns whether the route leads back over the loopback device, with neither a queueing
    /// discipline nor a capture that must see the packets.
    #[inline]
    pub(crate) fn leads_back(&self, rcu: &rcu::Guard) -> bool {
        let dev = self.route.device(rcu);
        dev.is_loopback()
            && !dev.has_queue(rcu)
            && !dev.is_captured(rcu)
            && !path::always_has_icrc()
    }

    /// Replaces the type of service or traffic class.
    pub(crate) fn with_tos(self, tos: u8) -> Self {
        Self { tos, ..self }
    }

    fn udp_header(&self, payload_len: usize) -> [u8; UDP_HEADER] {
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = limits::ROCE_UDP_PORT.to_be_bytes();
        // At most 64 KiB with all headers.
        let [l0, l1] = (payload_len.wrapping_add(UDP_HEADER) as u16).to_be_bytes();
        // No checksum: the ICRC is the stronger protection.
        [s0, s1, d0, d1, l0, l1, 0, 0]
    }

    fn hop_limit(&self) -> u8 {
        match self.path.info().hop_limit {
            0 => limits::DEFAULT_HOP_LIMIT,
            n => n,
        }
    }

    fn ipv4_header(
        &self,
        source: [u8; 4],
        destination: [u8; 4],
        ident: u16,
        payload_len: usize,
    ) -> [u8; IPV4_HEADER] {
        let [l0, l1] = (payload_len.wrapping_add(IPV4_HEADER + UDP_HEADER) as u16).to_be_bytes();
        let [i0, i1] = ident.to_be_bytes();
        let [s0, s1, s2, s3] = source;
        let [d0, d1, d2, d3] = destination;
        [
            0x45,
            self.tos,
            l0,
            l1,
            i0,
            i1,
            0x40, // Don't fragment.
            0,
            self.hop_limit(),
            17,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ]
    }

    fn ipv6_header(
        &self,
        source: &[u8; 16],
        destination: &[u8; 16],
        payload_len: usize,
    ) -> [u8; IPV6_HEADER] {
        let info = self.path.info();
        let mut header = [0; IPV6_HEADER];
        let first = 6 << 28 | u32::from(self.tos) << 20 | info.flow_label;
        let (fixed, addresses) = header.split_at_mut(8);
        let [f0, f1, f2, f3] = first.to_be_bytes();
        let [l0, l1] = (payload_len.wrapping_add(UDP_HEADER) as u16).to_be_bytes();
        fixed.copy_from_slice(&[f0, f1, f2, f3, l0, l1, 17, self.hop_limit()]);
        let (to_source, to_destination) = addresses.split_at_mut(16);
        to_source.copy_from_slice(source);
        to_destination.copy_from_slice(destination);
        header
    }

    /// Returns the part of the ICRC's input in front of the BTH.
    fn prefix(&self, ident: u16, total: usize) -> Option<Prefix> {
        let udp = self.udp_header(total);
        match (self.path.source(), self.path.destination()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = self.ipv4_header(*source, *destination, ident, total);
                Some(Prefix::ipv4(&ip, &udp))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ip = self.ipv6_header(source, destination, total);
                Some(Prefix::ipv6(&ip, &udp))
            }
            // There is no route between two IP versions, and so no carrier.
            _ => None,
        }
    }

    /// Returns the state of the ICRC after the headers of a packet. `ident` is the packet's IPv4
    /// Identification. `last` caches the prefix of the previous packet.
    fn start_icrc(
        &self,
        packet: &TxPacket,
        ident: u16,
        vector: &Vector,
        last: &mut LastPrefix,
    ) -> u32 {
        let total = packet.udp_payload_len() as usize;
        let prefix = last.prefix(total, ident, || self.prefix(ident, total));
        prefix.map_or(0, |prefix| {
            prefix.start(|crc, bytes| vector.crc32_le(crc, bytes), packet.header())
        })
    }

    /// Writes a UDP payload: headers, the payload by `gather`, padding, and the ICRC, or zeros if
    /// the ICRC is omitted.
    fn write(
        packet: &TxPacket,
        icrc: Option<u32>,
        room: &mut Room<'_>,
        gather: impl FnOnce(&mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<(), TxError> {
        // The room is as large as the packet's own length, so the calls can't fail.
        let _ = room.push(packet.header());
        if let Some(icrc) = icrc {
            room.start_sum(icrc);
        }
        gather(room)?;
        let _ = room.push_zeros(packet.pad.into());
        let icrc = icrc.map_or(NO_ICRC, |_| icrc::finish(room.end_sum()));
        let _ = room.push(&icrc);
        Ok(())
    }

    /// Writes the headers in front of the UDP payload. Returns `None` on failure: the packet is
    /// lost.
    fn finish(&self, mut skb: TxSkb, ident: u16) -> Option<TxSkb> {
        let len = skb.len();
        let udp = self.udp_header(len);
        let finished = match (self.path.source(), self.path.destination()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = self.ipv4_header(*source, *destination, ident, len);
                skb.finish_v4(&self.route, &ip, &udp)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ip = self.ipv6_header(source, destination, len);
                skb.finish_v6(&self.route, &ip, &udp)
            }
            _ => Err(EINVAL),
        };
        finished.is_ok().then_some(skb)
    }

    /// Makes a packet; `gather` writes the payload. Returns `Ok(None)` if there is no memory: the
    /// packet is lost.
    pub(crate) fn packet(
        &self,
        packet: &TxPacket,
        pen: &mut Pen,
        mut gather: impl FnMut(&mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<Option<TxSkb>, TxError> {
        let Some(mut row) = Row::new(self, packet) else {
            return Ok(None);
        };
        let count = row.append(self, &mut { *packet }, 1, pen, |_, room| gather(room))?;
        Ok(match count {
            0 => None,
            _ => row.finish(self),
        })
    }
}

/// The packets that a batch sends. Each of the two queues keeps its order.
#[derive(Default)]
pub(crate) struct Batch {
    /// Packets for the network stack.
    pub(crate) queue: TxQueue,
    /// Packets in `queue` that have an owner.
    pub(crate) owned: u16,
    /// Packets that bypass the network stack, if any.
    pub(crate) parcel: Option<Parcel>,
}

impl Batch {
    /// Returns the `Parcel` for packets that bypass the network stack. `None` if nothing may be
    /// sent.
    #[inline]
    fn parcel<'a>(
        batch: &'a mut Option<&mut Self>,
        carrier: &Option<Carrier<'_>>,
    ) -> Option<&'a mut Parcel> {
        let (batch, carrier) = (batch.as_deref_mut()?, carrier.as_ref()?);
        let new = || Parcel::new(carrier.path);
        Some(batch.parcel.get_or_insert_with(new))
    }
}

/// Output of a queue pair, for the duration of a batch.
///
/// Consecutive packets of one size, the last of which may be shorter, cross the stack as one GSO
/// packet if the device supports that. Each of them has its own ICRC, computed for the lengths and
/// the Identification that segmentation gives it.
pub(crate) struct Outgoing<'a> {
    qp: &'a Qp,
    /// `None` without a route: packets are lost.
    carrier: Option<Carrier<'a>>,
    /// `None` if nothing may be sent.
    batch: Option<&'a mut Batch>,
    /// The packets are for a queue pair of the same device, and bypass the network stack.
    direct: bool,
    row: Option<Row>,
    pen: Pen,
    /// Number of packets for which this host has room.
    room: u32,
}

/// A GSO packet under construction: packets of one size that cross the stack together.
struct Row {
    skb: TxSkb,
    /// Identification of the first packet.
    ident: u16,
    /// Bytes of UDP payload of each packet.
    size: usize,
    count: u16,
    /// The peer is on this host: the packets have no ICRC.
    plain: bool,
    /// The packet counts against the local queue until it leaves this host.
    counted: bool,
}

impl Row {
    /// Allocates a buffer for a GSO packet that starts with `packet`. Returns `None` if there is no
    /// memory.
    #[inline]
    fn new(carrier: &Carrier<'_>, packet: &TxPacket) -> Option<Self> {
        let size = packet.udp_payload_len() as usize;
        // A small single packet is cheaper without page fragments.
        let plain = carrier.near && (size >= SMALL || carrier.path.has_long_rows());
        let others = match size {
            ..SMALL if carrier.row != 0 && !packet.payload.is_empty() => SMALL_ROW,
            _ => 1,
        };
        let skb = match plain {
            true => TxSkb::new_paged(&carrier.route),
            false => TxSkb::new(&carrier.route, size.saturating_mul(others)),
        };
        Some(Self {
            skb: skb?,
            ident: ident(packet),
            size,
            count: 0,
            plain,
            counted: carrier.queues && !packet.is_acknowledgement(),
        })
    }

    /// Returns whether another packet fits. A shorter packet ends the GSO packet, so it must be the
    /// last of its message: the packets after a FIRST are shorter, because a FIRST has longer
    /// headers, but more of them follow.
    fn takes(&self, packet: &TxPacket, size: usize, carrier: &Carrier<'_>) -> bool {
        (size == self.size || size < self.size && packet.last)
            && self.skb.len().saturating_add(size) <= carrier.row
            && u32::from(self.count) < MOST_SEGMENTS
    }

    /// Appends up to `most` packets of a burst, each derived from the previous one by
    /// [`TxPacket::advance`]. Returns their number, or 0 if there is no memory. The first packet
    /// always fits.
    #[inline(always)]
    fn append(
        &mut self,
        carrier: &Carrier<'_>,
        packet: &mut TxPacket,
        most: u32,
        pen: &mut Pen,
        mut gather: impl FnMut(u32, &mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<u32, TxError> {
        let Pen { vector, prefix } = pen;
        let size = packet.udp_payload_len() as usize;
        let count = match most {
            1 => 1,
            most => {
                let room = carrier.row.saturating_sub(self.skb.len());
                let room = room.min(self.skb.room(size));
                let fit = room.checked_div(size).unwrap_or(0) as u32;
                let segments = MOST_SEGMENTS.saturating_sub(self.count.into());
                most.min(fit).min(segments).max(1)
            }
        };
        let first = self.ident.wrapping_add(self.count);
        let all = size.saturating_mul(count as usize);
        let plain = self.plain;
        let written = self.skb.append(all, vector, |room| {
            for done in 0..count {
                // The cast wraps like the Identification.
                let ident = first.wrapping_add(done as u16);
                let gather = |room: &mut Room<'_>| gather(done, room);
                let icrc = (!plain).then(|| carrier.start_icrc(packet, ident, vector, prefix));
                Carrier::write(packet, icrc, room, gather)?;
                packet.advance();
            }
            Ok(())
        });
        let Ok(written) = written else {
            return Ok(0);
        };
        written?;
        self.count = self.count.wrapping_add(count as u16);
        Ok(count)
    }

    /// Finishes the packet for the stack. Returns `None` on failure: all of its packets are lost.
    fn finish(self, carrier: &Carrier<'_>) -> Option<TxSkb> {
        if carrier.near {
            carrier
                .path
                .set_long_rows(usize::from(self.count) > SMALL_ROW);
        }
        let mut skb = carrier.finish(self.skb, self.ident)?;
        if self.count > 1 {
            // Packets are much smaller than 2^16 bytes.
            let size = self.size as u16;
            skb.segment(&carrier.route, size, self.count).ok()?;
        }
        Some(skb)
    }
}

impl<'a> Outgoing<'a> {
    /// Returns an output to which nothing may be sent yet.
    #[inline]
    pub(crate) fn new(qp: &'a Qp) -> Self {
        Self {
            qp,
            carrier: None,
            batch: None,
            direct: false,
            row: None,
            pen: Pen::default(),
            room: u32::MAX,
        }
    }

    /// Returns the number of packets for which this host has room.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Directs the output to `batch`, if there is one. `is_direct` decides whether packets bypass
    /// the network stack; its argument tells whether the route leads back to this host.
    // In place, because the struct is too large to move. Most calls handle received packets and
    // have no batch.
    #[inline(always)]
    pub(crate) fn fill_batch(
        &mut self,
        batch: Option<&'a mut Batch>,
        path: &'a Option<Arc<Path>>,
        source_port: u16,
        rcu: &rcu::Guard,
        is_direct: impl FnOnce(bool) -> bool,
    ) {
        if batch.is_none() {
            return;
        }
        self.batch = batch;
        if let Some(path) = path {
            self.carrier = Carrier::connected(path, &self.qp.device, source_port, rcu);
        }
        let back = |carrier: &Carrier<'_>| carrier.leads_back(rcu);
        self.direct = is_direct(self.carrier.as_ref().is_some_and(back));
        // Datagrams count against the queue pair's device, because their routes are not known yet.
        let queues = match &self.carrier {
            Some(carrier) => carrier.queues,
            None => path.is_none() && self.qp.device.netdev.queues_packets(rcu),
        };
        if queues {
            self.room = self.qp.local.room();
        }
    }

    /// Sends consecutive packets, related by [`TxPacket::advance`], without copying their payload.
    /// `reference` returns a reference to all of it. Returns `None`, and sends nothing, if the
    /// payload can't stay in place until the packets are delivered.
    #[inline]
    pub(crate) fn refer(
        &mut self,
        packet: &TxPacket,
        count: u32,
        reference: impl FnOnce(u32) -> Option<Reference>,
    ) -> Option<(u32, Result<(), TxError>)> {
        if !self.direct {
            return None;
        }
        let whole = packet.payload.len().checked_mul(count);
        let reference = reference(whole.filter(|len| *len >= LARGE)?)?;
        let Some(parcel) = Batch::parcel(&mut self.batch, &self.carrier) else {
            return Some((0, Err(TxError::NoRoom)));
        };
        if !parcel.refer(packet, count, reference) {
            // A batch has fewer than 2^16 packets.
            self.count_lost(count as u16);
        }
        Some((count, Ok(())))
    }

    /// Sends packets that bypass the network stack, and copies their payload.
    #[inline(never)]
    fn send_direct(
        &mut self,
        packet: &TxPacket,
        count: u32,
        mut gather: impl FnMut(u32, &mut Room<'_>) -> Result<(), TxError>,
    ) -> (u32, Result<(), TxError>) {
        let Some(parcel) = Batch::parcel(&mut self.batch, &self.carrier) else {
            return (0, Err(TxError::NoRoom));
        };
        let vector = &self.pen.vector;
        let (mut at, mut lost) = (0u32, 0u16);
        let sent = packet.for_each_in_burst(count, |packet| {
            let fill = |room: &mut Room<'_>| gather(at, room);
            if !parcel.copy(packet, vector, fill)? {
                lost = lost.wrapping_add(1);
            }
            at = at.wrapping_add(1);
            Ok(())
        });
        self.count_lost(lost);
        sent
    }

    /// Sends a packet; `gather` writes the payload. A packet that can't be sent is lost: the
    /// protocol recovers.
    pub(crate) fn send(
        &mut self,
        packet: &TxPacket,
        mut gather: impl FnMut(&mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<(), TxError> {
        if self.direct {
            return self.send_direct(packet, 1, |_, room| gather(room)).1;
        }
        self.send_some(&mut { *packet }, 1, |_, room| gather(room))
            .map(|_| ())
    }

    /// Sends consecutive packets, related by [`TxPacket::advance`]; `gather` writes the payload of
    /// each, given its index. Returns the number of packets taken, and the error of the next one.
    /// Packets that can't be sent are lost.
    pub(crate) fn send_burst(
        &mut self,
        packet: &TxPacket,
        count: u32,
        mut gather: impl FnMut(u32, &mut Room<'_>) -> Result<(), TxError>,
    ) -> (u32, Result<(), TxError>) {
        if self.direct {
            return self.send_direct(packet, count, gather);
        }
        let mut packet = *packet;
        let mut done = 0;
        while done < count {
            let gather = |at: u32, room: &mut Room<'_>| gather(done.wrapping_add(at), room);
            let left = count.wrapping_sub(done);
            match self.send_some(&mut packet, left, gather) {
                Ok(taken) => done = done.wrapping_add(taken),
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// Sends consecutive packets whose payloads follow each other in a span. `error` maps the fault
    /// of reading the span.
    pub(crate) fn send_span(
        &mut self,
        packet: &TxPacket,
        count: u32,
        span: &Span<'_>,
        error: impl Fn(Fault) -> TxError,
    ) -> (u32, Result<(), TxError>) {
        let len = packet.payload.len();
        self.send_burst(packet, count, |number, to| {
            let at = u64::from(number).wrapping_mul(len.into());
            span.read(at, len, to).map_err(&error)
        })
    }

    /// Sends at least one packet, and up to `most` that fit into one GSO packet. Advances `packet`
    /// past them.
    #[inline(always)]
    fn send_some(
        &mut self,
        packet: &mut TxPacket,
        most: u32,
        gather: impl FnMut(u32, &mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<u32, TxError> {
        if self.batch.is_none() {
            return Err(TxError::NoRoom);
        }
        self.pen.vector.hold();
        let Some(carrier) = &self.carrier else {
            self.count_lost(1);
            packet.advance();
            return Ok(1);
        };
        let size = packet.udp_payload_len() as usize;
        let joins = |row: &Row| row.takes(packet, size, carrier);
        let new = !self.row.as_ref().is_some_and(joins);
        if new {
            let row = Row::new(carrier, packet);
            self.finish();
            self.row = row;
        }
        let (Some(carrier), Some(row)) = (&self.carrier, &mut self.row) else {
            self.count_lost(1);
            packet.advance();
            return Ok(1);
        };
        // A shorter packet is the last one.
        let last = size < row.size || carrier.row == 0;
        let sent = row.append(carrier, packet, most, &mut self.pen, gather);
        if sent.is_err() && new {
            self.row = None;
        }
        let sent = sent?;
        if sent == 0 {
            self.count_lost(1);
            packet.advance();
        }
        if last || sent == 0 {
            self.finish();
        }
        Ok(sent.max(1))
    }

    /// Sets the path of the following packets: the datagrams of a batch may have many destinations.
    pub(crate) fn along(
        &mut self,
        path: &'a Path,
        source_port: impl FnOnce() -> u16,
        rcu: &rcu::Guard,
    ) {
        let goes_there = |carrier: &Carrier<'_>| core::ptr::eq(carrier.path, path);
        if !self.carrier.as_ref().is_some_and(goes_there) {
            self.finish();
            self.pen.prefix = LastPrefix::default();
            self.carrier = Carrier::datagrams(path, &self.qp.device, source_port(), rcu);
        }
    }

    /// Ends the batch: moves an unfinished GSO packet to the queue.
    pub(crate) fn finish(&mut self) {
        // It may be empty.
        let row = self.row.take().filter(|row| row.count != 0);
        let (Some(row), Some(carrier)) = (row, &self.carrier) else {
            return;
        };
        let count = row.count;
        if row.plain {
            self.qp
                .tally(|counters| counters.add(Counter::WithoutIcrc, count.into()));
        }
        let owner = row.counted.then_some(&self.qp.local);
        match (row.finish(carrier), self.batch.as_deref_mut()) {
            (Some(mut skb), Some(batch)) => {
                if let Some(owner) = owner {
                    let owned = skb.set_owner(owner.clone());
                    batch.owned = batch.owned.wrapping_add(owned.into());
                }
                self.room = self.room.saturating_sub(owner.is_some().into());
                batch.queue.push(skb);
            }
            _ => self.count_lost(count),
        }
    }

    fn count_lost(&self, packets: u16) {
        self.qp
            .tally(|counters| counters.add(Counter::SendErrors, packets.into()));
    }
}

/// Returns the IPv4 Identification of a packet. Any value is valid, since no router may fragment
/// our packets (RFC 6864). The PSN needs no counter, and consecutive packets get consecutive
/// values.
fn ident(packet: &TxPacket) -> u16 {
    packet.psn.get() as u16
}
