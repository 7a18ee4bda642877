// SPDX-License-Identifier: GPL-2.0

//! Packets between queue pairs of one device, which bypass the network stack.
//!
//! The network stack would pass these packets to the loopback device and take them back from there.
//! Instead they are queued in a [`Parcel`], header by header, and the sender delivers it after it
//! has released its locks. Payload in a user program's region stays in place, named by a
//! [`Reference`], and is copied once, from one region to the other. Payload that may be gone by
//! then, and payload that is small, is copied into the [`Parcel`]: inline data, operands, memory of
//! kernel consumers.
//!
//! Both queue pairs treat these packets like any others, except that none of them is lost and none
//! has an ICRC. docs/performance.md describes when packets take this path.

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

/// Smallest payload, in bytes, that stays in place: two lookups cost as much as copying this many
/// bytes once more.
pub(crate) const LARGE: u32 = 512;

/// Largest nesting of deliveries on a CPU: one `Parcel`, and the responses to it. A softirq sends
/// anything beyond that.
const DEPTH: u64 = 2;

/// Initial capacity for packets. A large message needs three; a batch of small messages needs 64.
const FIRST: usize = 8;

/// Packets for queue pairs of the same device, in order: a loopback batch.
pub(crate) struct Parcel {
    source: IpAddr,
    destination: IpAddr,
    packets: KVec<Posted>,
    /// Copied payload.
    pocket: Pocket,
}

/// A packet in a [`Parcel`], or consecutive packets, related by [`TxPacket::advance`].
struct Posted {
    packet: TxPacket,
    count: u32,
    payload: Place,
}

/// Location of a payload.
#[derive(Clone, Copy)]
enum Place {
    /// In the pocket, from this offset on.
    Pocket(usize),
    Region(Reference),
}

/// The part of a [`Parcel`] that stands in for a packet of the network stack.
#[derive(Clone, Copy)]
pub(crate) struct InParcel<'a> {
    parcel: &'a Parcel,
    payload: Found<'a>,
    /// SIMD context for copying.
    pub(crate) vector: &'a Vector,
}

/// Location of a packet's payload at delivery.
#[derive(Clone, Copy)]
enum Found<'a> {
    Pocket(usize),
    /// In this memory, from this offset on.
    Region(MappedMemory<'a>, u64),
}

impl Parcel {
    /// Returns an empty loopback batch for the peer of a path.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            source: *path.source(),
            destination: *path.destination(),
            packets: KVec::new(),
            pocket: Pocket::new(),
        }
    }

    /// Adds consecutive packets whose payload stays in place. Returns false if there is no memory:
    /// the packets are lost.
    pub(crate) fn refer(&mut self, packet: &TxPacket, count: u32, reference: Reference) -> bool {
        let posted = Posted {
            packet: *packet,
            count,
            payload: Place::Region(reference),
        };
        self.push(posted).is_ok()
    }

    /// Adds a packet; `gather` writes the payload. Returns `Ok(false)` if there is no memory: the
    /// packet is lost.
    ///
    /// # Errors
    ///
    /// [`TxError::NoRoom`] if the batch is full, or the error of `gather`.
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

    /// Returns the length of the IP packet that the network stack would make of this UDP payload.
    fn ip_len(&self, udp_payload_len: usize) -> usize {
        let headers = match self.source {
            IpAddr::V4(_) => IPV4_HEADER + UDP_HEADER,
            IpAddr::V6(_) => IPV6_HEADER + UDP_HEADER,
        };
        udp_payload_len.wrapping_add(headers)
    }
}

impl<'a> InParcel<'a> {
    /// Returns whether the packet comes from the peer of a path.
    pub(crate) fn comes_along(&self, path: &Path) -> bool {
        path.joins(&self.parcel.source, &self.parcel.destination)
    }

    /// Returns the length of an IP packet with this UDP payload.
    pub(crate) fn ip_len(&self, udp_payload_len: usize) -> usize {
        self.parcel.ip_len(udp_payload_len)
    }

    /// Calls `f` for each contiguous piece of `len` bytes of the payload, from `offset` on, in
    /// order.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the payload.
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

    /// Skips the first `offset` bytes of the payload.
    fn from(self, offset: u64) -> Self {
        let payload = match self.payload {
            Found::Region(memory, start) => Found::Region(memory, start.wrapping_add(offset)),
            Found::Pocket(start) => Found::Pocket(start.wrapping_add(offset as usize)),
        };
        Self { payload, ..self }
    }
}

impl DeviceState {
    /// Returns whether deliveries on this CPU are nested so deeply that a softirq must send further
    /// packets.
    #[inline]
    pub(crate) fn is_deep(&self) -> bool {
        self.deliveries.depth() >= DEPTH
    }

    /// Delivers the packets of a [`Parcel`] to their queue pairs, which may send responses. Returns
    /// the number of packets and the bytes of their IP packets. The caller must hold no lock.
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

    /// Delivers one entry of a [`Parcel`].
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
            // If the region is gone, the packet is lost. The sender learns the reason when it
            // retransmits.
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
            if left > 1 && packet.starts_burst() {
                let first = Incoming::in_parcel(&packet, carried, now);
                count = Qp::accepts_burst(qp, &first, after).clamp(1, left);
            }
            let burst = packet.burst(count);
            Qp::receive(qp, &Incoming::in_parcel(&burst, carried, now), after, rcu);
            done = done.wrapping_add(count);
            packet.bth.psn = packet.bth.psn.add(count);
        }
    }
}

impl Posted {
    /// Returns the current location of the payload; `None` if it is gone.
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
