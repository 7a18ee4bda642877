// SPDX-License-Identifier: GPL-2.0

//! Packets between queue pairs of one device, which bypass the network stack.
//!
//! The sender queues them in a [`LoopbackBatch`], and delivers it after it has released its locks.
//! Payload in a user program's region stays in place, named by a [`Reference`], and is copied once,
//! from one region to the other. Small payload, and payload that may be gone by then (inline data,
//! operands, memory of kernel consumers), is copied into the batch. docs/performance.md describes
//! when packets take this path.

use super::{path::Path, payload::ReadPayload};
use crate::mr::{MrTable, Reference};
use kernel::prelude::*;
use linux_rdma::{
    net::{Fragment, IpAddr, NetNsCookie, PacketWriter, PayloadArena, UDP_HEADER},
    rdma::memory::MappedMemory,
    sync::BurstGuard,
};
use rrxe_core::{
    lengths::{times, total},
    TxError, TxPacket,
};

/// Smallest payload, in bytes, that stays in place: two lookups cost as much as copying this many
/// bytes once more.
pub(crate) const MIN_ZERO_COPY: u32 = 512;

/// Initial capacity for packets. A large message needs three; a batch of small messages needs 64.
const INITIAL_CAPACITY: usize = 8;

/// Packets for queue pairs of the same device, in order.
pub(crate) struct LoopbackBatch {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// The namespace of the sender's path.
    pub(super) namespace: Option<NetNsCookie>,
    pub(crate) packets: KVec<LoopbackEntry>,
    /// Copied payload.
    arena: PayloadArena,
}

/// A packet in a [`LoopbackBatch`], or consecutive packets, related by [`TxPacket::advance`].
pub(crate) struct LoopbackEntry {
    pub(crate) packet: TxPacket,
    pub(crate) count: u32,
    payload: PayloadSource,
}

/// Location of a payload.
pub(super) enum PayloadSource {
    /// In the arena, from this offset on.
    Arena(usize),
    Region(Reference),
}

/// The part of a [`LoopbackBatch`] that stands in for a packet of the network stack.
#[derive(Clone, Copy)]
pub(crate) struct LoopbackPacket<'a> {
    pub(super) batch: &'a LoopbackBatch,
    /// Memory of the payload; `None` for the arena.
    region: Option<MappedMemory<'a>>,
    /// Offset of the payload in it.
    start: u64,
}

impl LoopbackBatch {
    /// Returns an empty loopback batch for the peer of a path.
    pub(super) fn new(path: &Path) -> Self {
        Self {
            source: path.source,
            destination: path.destination,
            namespace: path.info.interface.map(|interface| interface.namespace),
            packets: KVec::new(),
            arena: PayloadArena::default(),
        }
    }

    /// Adds a packet, and copies its payload, which starts at byte `at`. Returns `Ok(false)` if
    /// there is no memory: the packet is lost. Returns [`TxError::Full`] if the batch is full.
    #[inline(never)]
    pub(super) fn push_copy(
        &mut self,
        packet: &TxPacket,
        payload: &impl ReadPayload,
        at: u32,
    ) -> Result<bool, TxError> {
        let len = packet.payload.len();
        let read = |to: &mut PacketWriter<'_>| payload.read(at, len, to);
        let start = match len {
            0 => 0,
            _ => match self.arena.append(len as usize, read) {
                Ok(start) => start?,
                Err(EMSGSIZE) => return Err(TxError::Full),
                Err(_) => return Ok(false),
            },
        };
        Ok(self.push(packet, 1, PayloadSource::Arena(start)))
    }

    /// Adds consecutive packets. Returns false if there is no memory: the packets are lost.
    #[inline]
    pub(super) fn push(&mut self, packet: &TxPacket, count: u32, payload: PayloadSource) -> bool {
        let capacity = self.packets.capacity();
        let more = capacity.saturating_mul(3).max(INITIAL_CAPACITY);
        if self.packets.len() == capacity && self.packets.reserve(more, GFP_ATOMIC).is_err() {
            return false;
        }
        let entry = LoopbackEntry {
            packet: *packet,
            count,
            payload,
        };
        self.packets.push_within_capacity(entry).is_ok()
    }

    /// Returns the length of the IP packet that the network stack would make of this UDP payload.
    pub(crate) fn ip_len(&self, udp_payload_len: usize) -> usize {
        total([
            self.source.version().header_len(),
            UDP_HEADER,
            udp_payload_len,
        ])
    }
}

impl LoopbackPacket<'_> {
    /// Calls `f` for each contiguous piece of `len` bytes of the payload, from `offset` on, in
    /// order. Returns `EINVAL` or `EFAULT` if the range is not inside the payload.
    pub(super) fn for_each(
        &self,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        if len == 0 {
            return Ok(());
        }
        let start = self.start.checked_add(offset as u64).ok_or(EINVAL)?;
        if let Some(memory) = self.region {
            return memory.fragments(start, len, f);
        }
        let arena = &self.batch.arena;
        let fragment = arena.fragment(start as usize, len);
        f(fragment.ok_or(EINVAL)?);
        Ok(())
    }

    /// Skips the first `offset` bytes of the payload.
    pub(crate) fn from(self, offset: u64) -> Self {
        let start = self.start.wrapping_add(offset);
        Self { start, ..self }
    }
}

impl LoopbackEntry {
    /// Returns the packets with the current location of their payload; `None` if it is gone.
    #[inline]
    pub(crate) fn find<'a>(
        &self,
        batch: &'a LoopbackBatch,
        mrs: &'a MrTable,
        burst: &'a BurstGuard,
    ) -> Option<LoopbackPacket<'a>> {
        let (region, start) = match &self.payload {
            PayloadSource::Arena(start) => (None, *start as u64),
            PayloadSource::Region(reference) => {
                let len = times(self.count, self.packet.payload.len());
                let (memory, start) = mrs.pinned(burst, reference, len)?;
                (Some(memory), start)
            }
        };
        Some(LoopbackPacket {
            batch,
            region,
            start,
        })
    }
}
