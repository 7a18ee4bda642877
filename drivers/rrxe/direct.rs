// SPDX-License-Identifier: GPL-2.0

//! From queue pair to queue pair of one device, without the stack.
//!
//! What a queue pair sends to another of its device, the stack would hand to the loopback device, and that back to the stack. So
//! it is put into a *parcel* instead, header by header, and the parcel is delivered by who has sent it, once he holds no
//! lock. Payload stays where it is, as a [`Reference`], if that is a program's region: it is copied from one region to the
//! other. What may be gone by then is copied into the parcel: inline data, operands, memory of kernel consumers, and what is
//! small.
//!
//! For both queue pairs these are packets like others, only that none gets lost, and none has an ICRC. docs/performance.md says
//! when this way is taken.

use crate::{
    counters::Counter,
    device::DeviceState,
    incoming::{Incoming, Row},
    mr::Reference,
    path::Path,
    qp::Qp,
};
use kernel::{prelude::*, sync::rcu};
use linux_rdma::{
    net::{Fragment, IpAddr, Pocket, Room, IPV4_HEADER, IPV6_HEADER, UDP_HEADER},
    rdma::memory::MappedMemory,
    time::monotonic_ns,
    vector::Vector,
};
use rrxe_core::{Packet, TxError, TxPacket};

/// Payload from this size on stays where it is: two look-ups cost as much as copying so many bytes once more.
pub(crate) const LARGE: u32 = 512;

/// Parcels that may be delivered within each other on a CPU: one, and the answers to it. What would be more is sent by a softirq.
const DEPTH: u64 = 2;

/// Places for packets to begin with: a large message is three. A stream of small ones has 64 in a parcel.
const FIRST: usize = 8;

/// Packets for queue pairs of the same device, in their order.
pub(crate) struct Parcel {
    source: IpAddr,
    destination: IpAddr,
    packets: KVec<Posted>,
    /// Payload that was copied.
    pocket: Pocket,
}

/// A packet of a parcel, or several that follow each other by [`TxPacket::step`].
struct Posted {
    packet: TxPacket,
    count: u32,
    payload: Place,
}

/// Where a payload is.
#[derive(Clone, Copy)]
enum Place {
    /// From this byte of the pocket on.
    Pocket(usize),
    Region(Reference),
}

/// What a parcel has that a packet of the stack would have.
#[derive(Clone, Copy)]
pub(crate) struct InParcel<'a> {
    parcel: &'a Parcel,
    payload: Found<'a>,
    /// What bytes are copied with.
    pub(crate) vector: &'a Vector,
}

/// Where the payload of a packet is, as it is delivered.
#[derive(Clone, Copy)]
enum Found<'a> {
    Pocket(usize),
    /// In this memory, from this byte on.
    Region(MappedMemory<'a>, u64),
}

impl Parcel {
    /// An empty one, for the peer that a path leads to.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            source: *path.source(),
            destination: *path.destination(),
            packets: KVec::new(),
            pocket: Pocket::new(),
        }
    }

    /// Puts packets in whose payload stays where it is. False where there is no memory for that: they are lost.
    pub(crate) fn refer(&mut self, packet: &TxPacket, count: u32, reference: Reference) -> bool {
        let posted = Posted {
            packet: *packet,
            count,
            payload: Place::Region(reference),
        };
        self.push(posted).is_ok()
    }

    /// Puts a packet in whose payload `gather` writes. `Ok(false)` where there is no memory for that: it is lost.
    ///
    /// # Errors
    ///
    /// [`TxError::NoRoom`]: there is too much in it. What `gather` says.
    pub(crate) fn copy(
        &mut self,
        packet: &TxPacket,
        vector: &Vector,
        gather: impl FnOnce(&mut Room<'_>) -> Result<(), TxError>,
    ) -> Result<bool, TxError> {
        let start = match packet.payload.len() as usize {
            0 => 0,
            len => match self.pocket.append(len, vector, gather) {
                Ok(start) => start?,
                Err(EMSGSIZE) => return Err(TxError::NoRoom),
                Err(_) => return Ok(false),
            },
        };
        let posted = Posted {
            packet: *packet,
            count: 1,
            payload: Place::Pocket(start),
        };
        Ok(self.push(posted).is_ok())
    }

    #[inline]
    fn push(&mut self, posted: Posted) -> Result {
        let places = self.packets.capacity();
        if self.packets.len() == places {
            let more = places.saturating_mul(3).max(FIRST);
            self.packets.reserve(more, GFP_ATOMIC)?;
        }
        Ok(self.packets.push_within_capacity(posted)?)
    }

    /// Bytes of the IP packet that the stack would have made of so much UDP payload.
    fn ip_len(&self, udp_payload_len: usize) -> usize {
        let headers = match self.source {
            IpAddr::V4(_) => IPV4_HEADER + UDP_HEADER,
            IpAddr::V6(_) => IPV6_HEADER + UDP_HEADER,
        };
        udp_payload_len.wrapping_add(headers)
    }
}

impl<'a> InParcel<'a> {
    /// Whether the packet comes from the peer that a path leads to.
    pub(crate) fn comes_along(&self, path: &Path) -> bool {
        path.joins(&self.parcel.source, &self.parcel.destination)
    }

    /// Bytes of an IP packet with so much UDP payload.
    pub(crate) fn ip_len(&self, udp_payload_len: usize) -> usize {
        self.parcel.ip_len(udp_payload_len)
    }

    /// Calls `f` for each piece of memory that `len` bytes of the payload, from `offset` on, are in, in their order.
    ///
    /// # Errors
    ///
    /// They are not inside the payload.
    pub(crate) fn for_each(
        &self,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        if len == 0 {
            return Ok(());
        }
        match self.payload {
            Found::Region(memory, start) => {
                let start = start.checked_add(offset as u64).ok_or(EINVAL)?;
                memory.fragments(start, len, self.vector, f)
            }
            Found::Pocket(start) => {
                let start = start.checked_add(offset).ok_or(EINVAL)?;
                let fragment = self.parcel.pocket.fragment(start, len, self.vector);
                f(fragment.ok_or(EINVAL)?);
                Ok(())
            }
        }
    }

    /// The same payload, from this byte on.
    fn from(self, offset: u64) -> Self {
        let payload = match self.payload {
            Found::Region(memory, start) => Found::Region(memory, start.wrapping_add(offset)),
            Found::Pocket(start) => Found::Pocket(start.wrapping_add(offset as usize)),
        };
        Self { payload, ..self }
    }
}

impl DeviceState {
    /// Whether so many parcels are being delivered on this CPU that who would send another had better do that later.
    #[inline]
    pub(crate) fn is_deep(&self) -> bool {
        self.deliveries.depth() >= DEPTH
    }

    /// Hands the packets of a parcel to their queue pairs, which act on them, and answer. Returns how
    /// many packets and bytes of IP packets they were. No lock may be held.
    pub(crate) fn deliver(&self, parcel: &Parcel) -> (u64, u64) {
        let _nested = self.deliveries.enter();
        let rcu = rcu::read_lock();
        let now = monotonic_ns();
        let vector = Vector::new();
        let mut row = Row::new(&vector);
        let (mut packets, mut bytes) = (0u64, 0u64);
        for posted in &parcel.packets {
            packets = packets.wrapping_add(posted.count.into());
            let each = parcel.ip_len(posted.packet.udp_payload_len() as usize);
            bytes = bytes.wrapping_add((each as u64).wrapping_mul(posted.count.into()));
            self.deliver_some(parcel, posted, now, &mut row, &rcu);
        }
        row.finish();
        (packets, bytes)
    }

    /// Hands a packet over, or those that follow each other.
    #[inline]
    fn deliver_some<'a>(
        &'a self,
        parcel: &Parcel,
        posted: &Posted,
        now: u64,
        row: &mut Row<'a>,
        rcu: &'a rcu::Guard,
    ) {
        let sent = &posted.packet;
        let Ok(mut packet) = Packet::parse(sent.header(), sent.udp_payload_len()) else {
            self.counters.count(Counter::Malformed);
            return;
        };
        let number = packet.bth.dest_qpn;
        let find = || {
            let found = self.tables.qps.get(number, rcu);
            found.filter(|qp| core::ptr::eq(&*qp.device, self))
        };
        let (Some(qp), Some(payload)) = (
            row.last(number).or_else(find),
            // What is gone by now is lost: who sends it again learns why.
            posted.find(self, rcu),
        ) else {
            self.counters.count(Counter::Discarded);
            return;
        };
        let vector = row.vector();
        let whole = InParcel {
            parcel,
            payload,
            vector,
        };
        let after = row.of(qp);
        let each = packet.payload_len;
        let mut done = 0u32;
        while done < posted.count {
            let carried = whole.from(u64::from(each).wrapping_mul(done.into()));
            let left = posted.count.wrapping_sub(done);
            let mut count = 1;
            if left > 1 && packet.starts_run() {
                let first = Incoming::in_parcel(&packet, carried, now);
                count = Qp::takes_run(qp, &first, after).clamp(1, left);
            }
            let run = packet.run(count);
            Qp::receive(qp, &Incoming::in_parcel(&run, carried, now), after, rcu);
            done = done.wrapping_add(count);
            packet.bth.psn = packet.bth.psn.add(count);
        }
    }
}

impl Posted {
    /// Where the payload is now; `None` where it has gone.
    #[inline]
    fn find<'a>(&self, device: &'a DeviceState, rcu: &'a rcu::Guard) -> Option<Found<'a>> {
        Some(match &self.payload {
            Place::Pocket(start) => Found::Pocket(*start),
            Place::Region(reference) => {
                let len = u64::from(self.packet.payload.len()).wrapping_mul(self.count.into());
                let (memory, start) = device.tables.pinned(rcu, reference, len)?;
                Found::Region(memory, start)
            }
        })
    }
}
