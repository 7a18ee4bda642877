// SPDX-License-Identifier: GPL-2.0

//! Packets between queue pairs of one device, which bypass the network stack.
//!
//! The network stack would pass these packets to the loopback device and take them back from there.
//! Instead they are queued in a [`LoopbackBatch`], header by header, and the sender delivers it
//! after it has released its locks. Payload in a user program's region stays in place, named by a
//! [`Reference`], and is copied once, from one region to the other. Payload that may be gone by
//! then, and payload that is small, is copied into the [`LoopbackBatch`]: inline data, operands,
//! memory of kernel consumers.
//!
//! Both queue pairs treat these packets like any others, except that none of them is lost and none
//! has an ICRC. docs/performance.md describes when packets take this path.

use super::{path::Path, rx_packet::RxPacket};
use crate::{
    counters::Counter,
    qp::RxBatch,
    verbs::{device::DeviceState, mr::Reference},
};
use kernel::{prelude::*, sync::rcu};
use linux_rdma::{
    net::{Fragment, IpAddr, PacketWriter, PayloadArena, IPV4_HEADER, IPV6_HEADER, UDP_HEADER},
    rdma::memory::MappedMemory,
    time::monotonic_ns,
    vector::Vector,
};
use rrxe_core::{Packet, TxError, TxPacket};

/// Smallest payload, in bytes, that stays in place: two lookups cost as much as copying this many
/// bytes once more.
pub(crate) const MIN_ZERO_COPY: u32 = 512;

/// Largest nesting of deliveries on a CPU: one `LoopbackBatch`, and the responses to it. A softirq
/// sends anything beyond that.
const MAX_NESTING: u64 = 2;

/// Initial capacity for packets. A large message needs three; a batch of small messages needs 64.
const INITIAL_CAPACITY: usize = 8;

/// Packets for queue pairs of the same device, in order.
pub(crate) struct LoopbackBatch {
    source: IpAddr,
    destination: IpAddr,
    packets: KVec<LoopbackEntry>,
    /// Copied payload.
    arena: PayloadArena,
}

/// A packet in a [`LoopbackBatch`], or consecutive packets, related by [`TxPacket::advance`].
struct LoopbackEntry {
    packet: TxPacket,
    count: u32,
    payload: PayloadSource,
}

/// Location of a payload.
#[derive(Clone, Copy)]
enum PayloadSource {
    /// In the arena, from this offset on.
    Arena(usize),
    Region(Reference),
}

/// The part of a [`LoopbackBatch`] that stands in for a packet of the network stack.
#[derive(Clone, Copy)]
pub(crate) struct LoopbackPacket<'a> {
    batch: &'a LoopbackBatch,
    payload: ResolvedPayload<'a>,
    /// SIMD context for copying.
    pub(crate) vector: &'a Vector,
}

/// Location of a packet's payload at delivery.
#[derive(Clone, Copy)]
enum ResolvedPayload<'a> {
    Arena(usize),
    /// In this memory, from this offset on.
    Region(MappedMemory<'a>, u64),
}

impl LoopbackBatch {
    /// Returns an empty loopback batch for the peer of a path.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            source: *path.source(),
            destination: *path.destination(),
            packets: KVec::new(),
            arena: PayloadArena::new(),
        }
    }

    /// Adds consecutive packets whose payload stays in place. Returns false if there is no memory:
    /// the packets are lost.
    pub(crate) fn push_reference(
        &mut self,
        packet: &TxPacket,
        count: u32,
        reference: Reference,
    ) -> bool {
        let entry = LoopbackEntry {
            packet: *packet,
            count,
            payload: PayloadSource::Region(reference),
        };
        self.push(entry).is_ok()
    }

    /// Adds a packet; `gather` writes the payload. Returns `Ok(false)` if there is no memory: the
    /// packet is lost.
    ///
    /// # Errors
    ///
    /// [`TxError::NoRoom`] if the batch is full, or the error of `gather`.
    pub(crate) fn push_copy(
        &mut self,
        packet: &TxPacket,
        vector: &Vector,
        gather: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), TxError>,
    ) -> Result<bool, TxError> {
        let start = match packet.payload.len() as usize {
            0 => 0,
            len => match self.arena.append(len, vector, gather) {
                Ok(start) => start?,
                Err(EMSGSIZE) => return Err(TxError::NoRoom),
                Err(_) => return Ok(false),
            },
        };
        let entry = LoopbackEntry {
            packet: *packet,
            count: 1,
            payload: PayloadSource::Arena(start),
        };
        Ok(self.push(entry).is_ok())
    }

    #[inline]
    fn push(&mut self, entry: LoopbackEntry) -> Result {
        let capacity = self.packets.capacity();
        if self.packets.len() == capacity {
            let more = capacity.saturating_mul(3).max(INITIAL_CAPACITY);
            self.packets.reserve(more, GFP_ATOMIC)?;
        }
        Ok(self.packets.push_within_capacity(entry)?)
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

impl<'a> LoopbackPacket<'a> {
    /// Returns whether the packet comes from the peer of a path.
    pub(crate) fn is_from_peer_of(&self, path: &Path) -> bool {
        path.has_addresses(&self.batch.source, &self.batch.destination)
    }

    /// Returns the length of an IP packet with this UDP payload.
    pub(crate) fn ip_len(&self, udp_payload_len: usize) -> usize {
        self.batch.ip_len(udp_payload_len)
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
            ResolvedPayload::Region(memory, start) => {
                let start = start.checked_add(offset as u64).ok_or(EINVAL)?;
                memory.fragments(start, len, self.vector, f)
            }
            ResolvedPayload::Arena(start) => {
                let start = start.checked_add(offset).ok_or(EINVAL)?;
                let fragment = self.batch.arena.fragment(start, len, self.vector);
                f(fragment.ok_or(EINVAL)?);
                Ok(())
            }
        }
    }

    /// Skips the first `offset` bytes of the payload.
    fn from(self, offset: u64) -> Self {
        let payload = match self.payload {
            ResolvedPayload::Region(memory, start) => {
                ResolvedPayload::Region(memory, start.wrapping_add(offset))
            }
            ResolvedPayload::Arena(start) => {
                ResolvedPayload::Arena(start.wrapping_add(offset as usize))
            }
        };
        Self { payload, ..self }
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
        let vector = Vector::new();
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
        let (Some(qp), Some(payload)) = (
            rx_batch.last(number).or_else(find),
            // If the region is gone, the packet is lost. The sender learns the reason when it
            // retransmits.
            entry.find(self, rcu),
        ) else {
            self.counters.count(Counter::Discarded);
            return;
        };
        let vector = rx_batch.vector();
        let whole = LoopbackPacket {
            batch,
            payload,
            vector,
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

impl LoopbackEntry {
    /// Returns the current location of the payload; `None` if it is gone.
    #[inline]
    fn find<'a>(
        &self,
        device: &'a DeviceState,
        rcu: &'a rcu::Guard,
    ) -> Option<ResolvedPayload<'a>> {
        Some(match &self.payload {
            PayloadSource::Arena(start) => ResolvedPayload::Arena(*start),
            PayloadSource::Region(reference) => {
                let len = u64::from(self.packet.payload.len()).wrapping_mul(self.count.into());
                let (memory, start) = device.tables.mrs.pinned(rcu, reference, len)?;
                ResolvedPayload::Region(memory, start)
            }
        })
    }
}
