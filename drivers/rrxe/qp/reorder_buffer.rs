// SPDX-License-Identifier: GPL-2.0

//! Buffer for out-of-order packets. The core's [`Reorder`] keeps their order, this file stores the
//! packets.

use crate::{device_core::DeviceCore, limits, transport::rx_packet::is_same};
use core::mem::size_of;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use linux_rdma::net::KeptDatagram;
use rrxe_core::{
    lengths::{times, total},
    reorder::{share, MAX_BUFFERED},
    Buffered, Psn, Reorder, Time,
};

/// Initial number of entries: enough for a few losses on a short path.
const INITIAL_SLOTS: usize = 32;

/// An entry of the ring.
type Slot = Option<Buffered<KeptDatagram>>;

/// The out-of-order packets of one side of a queue pair. All bytes, including those of the ring,
/// count against the device's share.
pub(crate) struct ReorderBuffer {
    device: Arc<DeviceCore>,
    reorder: Reorder,
    /// Allocated for the first out-of-order packet, grown on demand, and freed with the last
    /// packet. Most queue pairs never need it.
    ring: KVec<Slot>,
    /// Bytes charged to the device's share.
    charged: usize,
}

impl ReorderBuffer {
    pub(crate) fn new(device: Arc<DeviceCore>) -> Self {
        Self {
            device,
            reorder: Reorder::default(),
            ring: KVec::new(),
            charged: 0,
        }
    }

    /// Returns the number of packets.
    pub(crate) fn len(&self) -> u32 {
        self.reorder.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reorder.is_empty()
    }

    /// Returns the time at which [`ReorderBuffer::expire`] must be called next, unless a packet
    /// comes first.
    pub(crate) fn expires(&self) -> Option<Time> {
        self.reorder.expires()
    }

    /// Drops packets that were buffered for too long.
    pub(crate) fn expire(&mut self, now: Time) {
        if !self.is_empty() {
            self.reorder.expire(&mut self.ring, now);
            self.update_charge();
        }
    }

    /// Allocates the ring, or a larger one if it is full. Runs in softirqs. The ring stays as it is
    /// if there is no memory, or if the packets and the new ring exceed `max_bytes` bytes.
    fn grow(&mut self, max_bytes: usize) -> Result {
        let slots = self.ring.len();
        if (self.reorder.len() as usize) < slots || slots >= MAX_BUFFERED {
            return Ok(());
        }
        let more = (slots << 1).clamp(INITIAL_SLOTS, MAX_BUFFERED);
        if total([self.reorder.bytes(), ring_bytes(more)]) > max_bytes {
            return Err(ENOMEM);
        }
        let mut ring = KVec::with_capacity(more, GFP_ATOMIC | __GFP_NOWARN)?;
        for _ in 0..more {
            ring.push(None, GFP_ATOMIC)?;
        }
        self.reorder.move_to(&mut self.ring, &mut ring);
        self.ring = ring;
        Ok(())
    }

    /// Buffers a packet that follows `expected` and arrived at time `now`. The packet is dropped if
    /// it exceeds the share of the memory.
    pub(crate) fn insert(&mut self, kept: KeptDatagram, expected: Psn, psn: Psn, now: Time) {
        let all = self.device.reorder_bytes.load(Relaxed);
        let max_bytes = share(limits::MAX_REORDER_BYTES, all, self.charged);
        // If the ring can't grow, packets closer to `expected` replace those farther away.
        let _ = self.grow(max_bytes);
        let last = self.reorder.last(&self.ring);
        let buffered = Buffered {
            psn,
            arrived: now,
            bytes: u32::try_from(kept.memory()).unwrap_or(u32::MAX),
            // The memory of a GSO packet counts once.
            shares_memory: last
                .is_some_and(|last| last.psn.next() == psn && last.packet.shares_memory(&kept)),
            packet: kept,
        };
        let max_bytes = max_bytes.saturating_sub(ring_bytes(self.ring.len()));
        let same = |a: &KeptDatagram, b: &KeptDatagram| is_same(&a.datagram(), &b.datagram());
        let reorder = &mut self.reorder;
        drop(reorder.insert(&mut self.ring, expected, max_bytes, buffered, same));
        self.update_charge();
    }

    /// Removes and returns the first packet, if it is due.
    pub(crate) fn next(
        &mut self,
        expected: Psn,
        due: impl FnOnce(Psn) -> bool,
    ) -> Option<KeptDatagram> {
        if self.reorder.is_empty() {
            return None;
        }
        let next = self.reorder.next(&mut self.ring, expected, due);
        self.update_charge();
        next
    }

    /// Drops all packets.
    pub(crate) fn clear(&mut self) {
        self.reorder.clear(&mut self.ring);
        self.update_charge();
    }

    /// Frees an empty ring, and updates the charge to the device's share.
    fn update_charge(&mut self) {
        if self.reorder.is_empty() && !self.ring.is_empty() {
            self.ring = KVec::new();
        }
        let ring = ring_bytes(self.ring.len());
        let bytes = total([self.reorder.bytes(), ring]);
        if bytes != self.charged {
            // A negative difference wraps around; the total never falls below zero.
            let growth = bytes.wrapping_sub(self.charged);
            self.device.reorder_bytes.add(growth, Relaxed);
            self.charged = bytes;
        }
    }
}

/// Returns the size in bytes of a ring with `slots` entries.
fn ring_bytes(slots: usize) -> usize {
    times(slots as u32, size_of::<Slot>() as u32) as usize
}

impl Drop for ReorderBuffer {
    fn drop(&mut self) {
        self.clear();
    }
}
