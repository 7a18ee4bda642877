// SPDX-License-Identifier: GPL-2.0

//! Incoming packets: from UDP port 4791 to the queue pair that they are for.
//!
//! Everything here runs in the softirq that received the packet. What does not belong to a queue
//! pair, or not to a packet as the specification wants it, is dropped without an answer.

use crate::{
    counters::Counter,
    direct::InParcel,
    driver::Rrxe,
    mr::Span,
    multicast,
    path::Path,
    qp::{After, Qp},
    tables::Tables,
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::{
    net::{Datagram, Fragment, IpVersion, KeptDatagram, NetDevice, RxSkb, UdpReceive},
    rdma::device::{by_netdev, DeviceRef},
    time::monotonic_ns,
    vector::Vector,
};
use rrxe_core::{
    icrc::{self, LastPrefix, Prefix},
    wire::{self, Bth},
    Fault, Packet, MAX_HEADER,
};

/// Bytes of the ICRC at the end of each packet.
const ICRC: usize = 4;

/// What stands there where none was computed.
pub(crate) const NO_ICRC: [u8; ICRC] = [0; ICRC];

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// Bytes in front of a datagram's payload: a Global Route Header, or the last 20 of them an IPv4
/// header (IBA 11.4.2.1, A17.4).
const GRH_LEN: usize = rrxe_core::responder::GRH_LEN as usize;

/// The queue pair number of the general services interface.
const GSI: u32 = 1;

/// What packets are received for.
#[repr(align(8))]
pub(crate) struct Receiver {
    tables: Arc<Tables>,
}

/// A packet with its headers parsed and its ICRC verified, or a run of them.
pub(crate) struct Incoming<'a> {
    pub(crate) packet: &'a Packet,
    carried: Carried<'a>,
    pub(crate) now: u64,
}

/// What a packet came in.
#[derive(Clone, Copy)]
enum Carried<'a> {
    /// A packet of the stack. Of a run it is the first, which the others are behind.
    Datagram(Datagram<'a>),
    /// The parcel of another queue pair of the device.
    Parcel(InParcel<'a>),
}

impl Incoming<'_> {
    /// Where the payload starts, from the first byte of the BTH.
    fn payload_offset(&self) -> usize {
        self.packet.header_len.into()
    }

    /// Whether it never was a packet of the stack.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.carried, Carried::Parcel(_))
    }

    /// IPv4 type of service or IPv6 traffic class. Nothing marks what never leaves the device.
    #[inline]
    pub(crate) fn tos(&self) -> u8 {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.packet().tos(),
            Carried::Parcel(_) => 0,
        }
    }

    /// Whether it comes from the peer that a path leads to.
    #[inline]
    pub(crate) fn comes_along(&self, path: &Path) -> bool {
        match &self.carried {
            Carried::Datagram(datagram) => path.carries(datagram.packet()),
            Carried::Parcel(parcel) => parcel.comes_along(path),
        }
    }

    /// Whether it is of a row that comes as it was made on this host.
    #[inline]
    pub(crate) fn is_of_row_from_here(&self) -> bool {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.is_of_row_from_here(),
            Carried::Parcel(_) => false,
        }
    }

    /// Keeps it for longer than it is being received. `None` where that can't be, and it is lost: its payload is where its
    /// sender has it.
    pub(crate) fn keep(&self) -> Option<KeptDatagram> {
        match &self.carried {
            Carried::Datagram(datagram) => Some(datagram.keep()),
            Carried::Parcel(_) => None,
        }
    }

    /// Copies the start of the payload.
    pub(crate) fn copy_payload(&self, to: &mut [u8]) -> Result<(), Fault> {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.copy_bits(self.payload_offset(), to),
            Carried::Parcel(parcel) => {
                let (mut at, mut result) = (0usize, Ok(()));
                let taken = parcel.for_each(0, to.len(), |fragment| {
                    let end = at.wrapping_add(fragment.len());
                    let copied = to.get_mut(at..end).ok_or(EINVAL);
                    result = result.and(copied.and_then(|to| fragment.copy_to(to)));
                    at = end;
                });
                taken.and(result)
            }
        }
        .map_err(|_| Fault::Malformed)
    }

    /// The IP header that stands in front of a datagram of UD, as its consumer sees it: an IPv6 header, or an IPv4 header behind
    /// 20 bytes of zeros.
    pub(crate) fn grh(&self) -> [u8; GRH_LEN] {
        let mut grh = [0; GRH_LEN];
        if let Carried::Datagram(datagram) = &self.carried {
            if let Some(ip) = datagram.ipv6_header() {
                grh = ip;
            } else if let (Some(ip), Some(to)) = (datagram.ipv4_header(), grh.last_chunk_mut()) {
                *to = ip;
            }
        }
        grh
    }

    /// The packet of the stack that it came in, maybe with others.
    pub(crate) fn skb(&self) -> Option<&RxSkb> {
        match &self.carried {
            Carried::Datagram(datagram) => Some(datagram.packet()),
            Carried::Parcel(_) => None,
        }
    }

    /// Copies `len` bytes of the payload at `offset` to the start of a span.
    #[inline]
    pub(crate) fn place(&self, offset: usize, len: usize, to: &Span<'_>) -> Result<(), Fault> {
        let (mut at, mut result) = (0usize, Ok(()));
        let write = |fragment: Fragment<'_>| {
            if result.is_ok() {
                result = to.write_fragment(at, &fragment);
            }
            at = at.wrapping_add(fragment.len());
        };
        let (start, packets) = (self.payload_offset(), self.packet.packets as usize);
        match &self.carried {
            // What follows each other lies behind each other there.
            Carried::Parcel(parcel) => parcel.for_each(offset, len, write),
            Carried::Datagram(datagram) if packets == 1 => {
                datagram.for_each(start.wrapping_add(offset), len, write)
            }
            Carried::Datagram(datagram) => {
                let each = self.payload_len().checked_div(packets).unwrap_or(0);
                datagram.for_each_in_row(start, each, offset, len, write)
            }
        }
        .map_err(|_| Fault::Malformed)?;
        result
    }

    /// Bytes of the IP packet, of a run of all of them.
    pub(crate) fn ip_len(&self) -> u64 {
        let packets = self.packet.packets;
        let each = match &self.carried {
            Carried::Datagram(datagram) => {
                let headers = datagram.ip_header_len().wrapping_add(UDP_HEADER);
                datagram.payload_len().wrapping_add(headers)
            }
            Carried::Parcel(parcel) => {
                let payload = self.packet.payload_len.checked_div(packets).unwrap_or(0) as usize;
                let around = self.payload_offset().wrapping_add(self.packet.pad.into());
                parcel.ip_len(payload.wrapping_add(around).wrapping_add(ICRC))
            }
        };
        (each as u64).wrapping_mul(packets.into())
    }

    /// Bytes of payload.
    pub(crate) fn payload_len(&self) -> usize {
        self.packet.payload_len as usize
    }
}

impl<'a> Incoming<'a> {
    /// A packet of the stack, or a run of which this is the first.
    #[inline]
    fn of(packet: &'a Packet, datagram: Datagram<'a>, now: u64) -> Self {
        Self {
            packet,
            carried: Carried::Datagram(datagram),
            now,
        }
    }

    /// A packet, or a run, that another queue pair of the device has sent.
    #[inline]
    pub(crate) fn in_parcel(packet: &'a Packet, parcel: InParcel<'a>, now: u64) -> Self {
        Self {
            packet,
            carried: Carried::Parcel(parcel),
            now,
        }
    }

    /// What its bytes are copied with.
    #[inline]
    pub(crate) fn vector(&self) -> &'a Vector {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.vector(),
            Carried::Parcel(parcel) => parcel.vector,
        }
    }

    /// The same of a packet that was verified before, and kept until now.
    pub(crate) fn with_kept<R>(
        &self,
        kept: &KeptDatagram,
        f: impl FnOnce(&Incoming<'_>) -> R,
    ) -> Option<R> {
        let datagram = kept.datagram(self.vector());
        let packet = parse(&datagram, &mut [0; MAX_HEADER])?;
        Some(f(&Incoming::of(&packet, datagram, self.now)))
    }
}

/// The headers of a datagram, which are read into `head`, maybe with more behind them. `None` where it is no packet.
// A packet is returned through memory otherwise, and copied.
#[inline(always)]
fn parse(datagram: &Datagram<'_>, head: &mut [u8; MAX_HEADER]) -> Option<Packet> {
    let total = datagram.payload_len();
    // A copy whose length is known beforehand needs no call.
    let start = if total >= MAX_HEADER {
        datagram.copy_bits(0, head).ok()?;
        head.as_slice()
    } else {
        let start = head.get_mut(..total)?;
        datagram.copy_bits(0, start).ok()?;
        start
    };
    Packet::parse(start, u32::try_from(total).ok()?).ok()
}

/// Packets that are going to be handled as a run ([`Packet::run`]).
struct Run<'a> {
    packet: Packet,
    /// The first.
    datagram: Datagram<'a>,
    /// The header that the next one must have.
    next: [u8; Bth::LEN],
    packets: u32,
    /// As many as the queue pair takes at once.
    most: u32,
}

impl<'a> Run<'a> {
    fn new(packet: Packet, datagram: Datagram<'a>, header: &[u8; Bth::LEN], most: u32) -> Self {
        Self {
            packet,
            datagram,
            next: Packet::next_header(header),
            packets: 1,
            most,
        }
    }

    /// Whether a datagram is the next one, but for its ICRC.
    #[inline]
    fn is_next(&self, datagram: &Datagram<'_>) -> bool {
        let mut header = [0; Bth::LEN];
        self.packets < self.most
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

/// The queue pair that packets which came together are for, and what they have left to do there.
pub(crate) struct Row<'a> {
    qp: Option<ArcBorrow<'a, Qp>>,
    after: After<'a>,
    prefix: LastPrefix,
    /// What the packets are copied and summed up with: not held while anything else is done.
    vector: &'a Vector,
}

impl<'a> Row<'a> {
    pub(crate) fn new(vector: &'a Vector) -> Self {
        Self {
            qp: None,
            after: After::default(),
            prefix: LastPrefix::default(),
            vector,
        }
    }

    pub(crate) fn vector(&self) -> &'a Vector {
        self.vector
    }

    /// The queue pair of the packet before, if it has this number.
    pub(crate) fn last(&self, number: u32) -> Option<ArcBorrow<'a, Qp>> {
        self.qp.filter(|qp| qp.number == number)
    }

    /// The next packet is for this queue pair.
    pub(crate) fn of(&mut self, qp: ArcBorrow<'a, Qp>) -> &mut After<'a> {
        let same = self.qp.is_some_and(|other| core::ptr::eq(&*other, &*qp));
        if !same {
            self.finish();
            self.qp = Some(qp);
        }
        &mut self.after
    }

    /// What is left to do is done.
    pub(crate) fn finish(&mut self) {
        self.vector.release();
        if let Some(qp) = self.qp.take() {
            Qp::after(qp, core::mem::take(&mut self.after));
        }
    }
}

impl Receiver {
    pub(crate) fn new(tables: Arc<Tables>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { tables }, GFP_KERNEL)?)
    }

    /// What the ICRC of a datagram begins with. `None` where it is no packet.
    fn prefix(datagram: &Datagram<'_>) -> Option<Prefix> {
        let packet_len = u32::try_from(datagram.payload_len()).ok()?;
        let udp = datagram.udp_header();
        // IPv4 options and IPv6 extension headers are not allowed for (IBA A17.3).
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
        // The stack cuts a packet to its UDP length, whatever IP says.
        lengths_agree.then_some(prefix)
    }

    /// Whether the ICRC is right, or else what it is; `None` where it is no packet. Where nobody can have changed it, it need not be computed.
    #[inline(always)]
    fn is_whole(
        datagram: &Datagram<'_>,
        headers: &[u8],
        row: &mut Row<'_>,
    ) -> Option<Result<(), [u8; ICRC]>> {
        if datagram.is_as_written() {
            return Some(Ok(()));
        }
        let (computed, received) = Self::sums(datagram, headers, row)?;
        Some(if computed == received {
            Ok(())
        } else {
            Err(received)
        })
    }

    /// The ICRC as it should be, and as it is. `None` where it is no packet.
    #[inline(always)]
    fn sums(
        datagram: &Datagram<'_>,
        headers: &[u8],
        row: &mut Row<'_>,
    ) -> Option<([u8; ICRC], [u8; ICRC])> {
        let total = datagram.payload_len();
        let crc32_le = |crc, bytes: &[u8]| datagram.vector().crc32_le(crc, bytes);
        let make = || Self::prefix(datagram);
        let prefix = row.prefix.prefix(total, datagram.ident(), make)?;
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
        Some((icrc::finish(state), received))
    }

    /// Whether a datagram that came in on `dev` may be for a queue pair of the network device
    /// `own`: it came in there or on a VLAN of it, or came from this host to an address of it.
    fn is_for(dev: &NetDevice, own: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> bool {
        let dev = dev.vlan_real_dev().unwrap_or(dev);
        if dev == own {
            return true;
        }
        if !dev.is_loopback() {
            return false;
        }
        match dev.net(rcu).device_of_address(&skb.destination()) {
            Some(holder) => holder.vlan_real_dev().unwrap_or(&holder) == own,
            None => false,
        }
    }

    /// The device that a packet is for, by its way and address.
    fn device(dev: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> Option<DeviceRef<Rrxe>> {
        let dev = dev.vlan_real_dev().unwrap_or(dev);
        if dev.is_loopback() {
            let holder = dev.net(rcu).device_of_address(&skb.destination())?;
            by_netdev::<Rrxe>(holder.vlan_real_dev().unwrap_or(&holder))
        } else {
            by_netdev::<Rrxe>(dev)
        }
    }

    /// Gives a multicast to each member of its group. What one makes of it is nothing to the
    /// others (I-07). Whether there is one.
    fn multicast(dev: &NetDevice, skb: &RxSkb, incoming: &Incoming<'_>, rcu: &rcu::Guard) -> bool {
        let dev = dev.vlan_real_dev().unwrap_or(dev);
        let device = match incoming.packet.bth.opcode.class() {
            wire::Class::Ud => by_netdev::<Rrxe>(dev),
            _ => None,
        };
        let mut taken = false;
        if let Some(device) = device {
            let groups = &device.data().multicast;
            groups.for_each_member(&skb.destination(), rcu, |qp| {
                taken = true;
                Qp::receive_one(qp.as_arc_borrow(), incoming, rcu);
            });
        }
        taken
    }

    /// Counts a packet that no queue pair has seen.
    fn count(dev: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard, counter: Counter) {
        if let Some(device) = Self::device(dev, skb, rcu) {
            device.data().counters.count(counter);
        }
    }
}

impl Receiver {
    /// The end of a run: hands it to the queue pair of the row.
    fn end_run(run: &mut Option<Run<'_>>, now: u64, row: &mut Row<'_>, rcu: &rcu::Guard) {
        let (Some(run), Some(qp)) = (run.take(), row.qp) else {
            return;
        };
        let packet = run.packet.run(run.packets);
        let incoming = Incoming::of(&packet, run.datagram, now);
        Qp::receive(qp, &incoming, &mut row.after, rcu);
    }

    /// Takes a datagram. False where that was no packet.
    fn datagram<'a, 'b>(
        &'a self,
        dev: &NetDevice,
        datagram: Datagram<'b>,
        now: u64,
        row: &mut Row<'a>,
        run: &mut Option<Run<'b>>,
        rcu: &'a rcu::Guard,
    ) -> bool {
        if let Some(current) = run {
            if current.is_next(&datagram) {
                if Self::is_whole(&datagram, &current.next, row) == Some(Ok(())) {
                    current.add();
                    return true;
                }
            }
            Self::end_run(run, now, row, rcu);
        }
        let skb = datagram.packet();
        let mut head = [0; MAX_HEADER];
        let Some(packet) = parse(&datagram, &mut head) else {
            Self::count(dev, skb, rcu, Counter::Malformed);
            return false;
        };
        let headers = head.get(..packet.header_len.into()).unwrap_or(&head);
        match Self::is_whole(&datagram, headers, row) {
            Some(Ok(())) => {}
            Some(Err(received)) => {
                Self::count(dev, skb, rcu, Counter::BadIcrc);
                if received == NO_ICRC {
                    row.finish();
                    if let Some(qp) = self.tables.qps.get(packet.bth.dest_qpn, rcu) {
                        qp.complain(skb, rcu);
                    }
                }
                return false;
            }
            None => {
                Self::count(dev, skb, rcu, Counter::Malformed);
                return false;
            }
        }
        let incoming = Incoming::of(&packet, datagram, now);
        // What is for the queue pair of the packet before has the same addresses, and came the same way.
        let last = row.last(packet.bth.dest_qpn);
        let found = last.or_else(|| self.find(dev, skb, &packet, rcu));
        if let Some(qp) = found {
            let after = row.of(qp);
            let most = if packet.starts_run() && datagram.is_followed() {
                Qp::takes_run(qp, &incoming, after)
            } else {
                1
            };
            match head.first_chunk() {
                Some(header) if most > 1 => {
                    *run = Some(Run::new(packet, datagram, header, most));
                }
                _ => Qp::receive(qp, &incoming, after, rcu),
            }
        } else if !self.special(dev, skb, &incoming, row, rcu) {
            let counter = match packet.operation {
                wire::Operation::Cnp => Counter::NotificationsIgnored,
                _ => Counter::Discarded,
            };
            Self::count(dev, skb, rcu, counter);
        }
        true
    }

    /// The queue pair that a packet is for, if that is one by itself, and may have it from there.
    fn find<'a>(
        &'a self,
        dev: &NetDevice,
        skb: &RxSkb,
        packet: &Packet,
        rcu: &'a rcu::Guard,
    ) -> Option<ArcBorrow<'a, Qp>> {
        let bth = &packet.bth;
        // Multicasts go to a number of their own.
        if bth.dest_qpn == GSI || skb.destination().is_multicast() {
            return None;
        }
        let qp = self.tables.qps.get(bth.dest_qpn, rcu)?;
        let belongs = match bth.opcode.class() {
            wire::Class::Ud => Self::is_for(dev, &qp.device.netdev, skb, rcu),
            // The path says whose packets a connected queue pair takes, and in which
            // namespace.
            _ => dev.net(rcu) == qp.device.netdev.net(rcu),
        };
        belongs.then_some(qp)
    }

    /// Gives a packet to the members of its multicast group, or to the general services interface. Whether somebody
    /// took it.
    #[cold]
    fn special(
        &self,
        dev: &NetDevice,
        skb: &RxSkb,
        incoming: &Incoming<'_>,
        row: &mut Row<'_>,
        rcu: &rcu::Guard,
    ) -> bool {
        let number = incoming.packet.bth.dest_qpn;
        let is_multicast = skb.destination().is_multicast();
        if is_multicast && number == multicast::QPN {
            row.finish();
            return Self::multicast(dev, skb, incoming, rcu);
        }
        if is_multicast || number != GSI {
            return false;
        }
        row.finish();
        let gsi = Self::device(dev, skb, rcu).and_then(|device| device.data().gsi());
        if let Some(qp) = &gsi {
            Qp::receive_one(qp.as_arc_borrow(), incoming, rcu);
        }
        gsi.is_some()
    }
}

impl UdpReceive for Receiver {
    fn receive(&self, dev: &NetDevice, skb: RxSkb) {
        let rcu = rcu::read_lock();
        let now = monotonic_ns();
        let mut good = true;
        let vector = Vector::new();
        let mut row = Row::new(&vector);
        let mut run = None;
        for datagram in skb.datagrams(&vector) {
            vector.hold();
            good &= self.datagram(dev, datagram, now, &mut row, &mut run, &rcu);
        }
        Self::end_run(&mut run, now, &mut row, &rcu);
        row.finish();
        // What is no packet shows as dropped.
        if good {
            skb.consume();
        }
    }
}
