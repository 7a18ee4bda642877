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

use super::path::Path;
use crate::verbs::mr::{MrTable, Reference};
use kernel::{prelude::*, sync::rcu};
use linux_rdma::{
    net::{Fragment, IpAddr, PacketWriter, PayloadArena, UDP_HEADER},
    rdma::memory::MappedMemory,
    vector::Vector,
};
use rrxe_core::{TxError, TxPacket};

/// Smallest payload, in bytes, that stays in place: two lookups cost as much as copying this many
/// bytes once more.
pub(crate) const MIN_ZERO_COPY: u32 = 512;

/// Initial capacity for packets. A large message needs three; a batch of small messages needs 64.
const INITIAL_CAPACITY: usize = 8;

/// Packets for queue pairs of the same device, in order.
pub(crate) struct LoopbackBatch {
    source: IpAddr,
    destination: IpAddr,
    pub(super) packets: KVec<LoopbackEntry>,
    /// Copied payload.
    arena: PayloadArena,
}

/// A packet in a [`LoopbackBatch`], or consecutive packets, related by [`TxPacket::advance`].
pub(super) struct LoopbackEntry {
    pub(super) packet: TxPacket,
    pub(super) count: u32,
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
    pub(super) batch: &'a LoopbackBatch,
    payload: ResolvedPayload<'a>,
    /// SIMD context for copying.
    vector: &'a Vector,
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
            source: path.source,
            destination: path.destination,
            packets: KVec::new(),
            arena: PayloadArena::default(),
        }
    }

    /// Returns whether the batch has no packets.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
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
    pub(super) fn ip_len(&self, udp_payload_len: usize) -> usize {
        let headers = self.source.version().header_len().wrapping_add(UDP_HEADER);
        udp_payload_len.wrapping_add(headers)
    }
}

impl<'a> LoopbackPacket<'a> {
    /// Returns whether the packet comes from the peer of a path.
    pub(crate) fn is_from_peer_of(&self, path: &Path) -> bool {
        path.is_from_peer(self.batch.source, self.batch.destination)
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
    pub(super) fn from(self, offset: u64) -> Self {
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

impl LoopbackEntry {
    /// Returns the packets with the current location of their payload; `None` if it is gone.
    #[inline]
    pub(super) fn find<'a>(
        &self,
        batch: &'a LoopbackBatch,
        mrs: &'a MrTable,
        vector: &'a Vector,
        rcu: &'a rcu::Guard,
    ) -> Option<LoopbackPacket<'a>> {
        let payload = match &self.payload {
            PayloadSource::Arena(start) => ResolvedPayload::Arena(*start),
            PayloadSource::Region(reference) => {
                let len = u64::from(self.packet.payload.len()).wrapping_mul(self.count.into());
                let (memory, start) = mrs.pinned(rcu, reference, len)?;
                ResolvedPayload::Region(memory, start)
            }
        };
        Some(LoopbackPacket {
            batch,
            payload,
            vector,
        })
    }
}
