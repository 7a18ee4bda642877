// SPDX-License-Identifier: GPL-2.0

//! Packets that came before their turn, kept until then: the core's [`Reorder`] has their order,
//! this has the packets.

use crate::{
    device::DeviceState,
    incoming::{is_same, Incoming},
    limits,
};
use core::mem::size_of;
use kernel::{prelude::*, sync::Arc};
use linux_rdma::{net::KeptDatagram, vector::Vector};
use rrxe_core::{
    reorder::{share, HELD},
    Held, Psn, Reorder,
};

/// Places to begin with: a few losses on a short way.
const FIRST: usize = 32;

/// A place of the ring.
type Place = Option<Held<KeptDatagram>>;

/// What one side of a queue pair keeps. Its bytes, those of the ring included, count against the
/// device's share.
pub(crate) struct HoldBack {
    device: Arc<DeviceState>,
    reorder: Reorder,
    /// Made when the first packet comes early, larger as need be, and given back with the last
    /// packet; most queue pairs never see one.
    ring: KVec<Place>,
    /// Bytes that the device's share was charged with.
    charged: usize,
}

impl HoldBack {
    pub(crate) fn new(device: Arc<DeviceState>) -> Self {
        Self {
            device,
            reorder: Reorder::new(),
            ring: KVec::new(),
            charged: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reorder.is_empty()
    }

    /// Returns the time at which [`HoldBack::expire`] has something to do, if nothing happens
    /// before.
    pub(crate) fn expires(&self) -> Option<u64> {
        self.reorder.expires()
    }

    /// Lets go of what came too long ago.
    pub(crate) fn expire(&mut self, now: u64) {
        if !self.is_empty() {
            self.reorder.expire(&mut self.ring, now);
            self.settle();
        }
    }

    /// Makes the ring, or a larger one if it is full. Softirqs get here: if there is no memory, or
    /// no `room` for so many bytes, the ring stays as it is.
    fn prepare(&mut self, room: usize) -> Result {
        let places = self.ring.len();
        if (self.reorder.len() as usize) < places || places >= HELD {
            return Ok(());
        }
        let more = places.saturating_mul(2).clamp(FIRST, HELD);
        if self.reorder.bytes().saturating_add(ring_bytes(more)) > room {
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

    /// Keeps a packet that comes after `expected`. If it can't be kept, or there is no room for it,
    /// it is lost.
    pub(crate) fn hold(&mut self, incoming: &Incoming<'_>, expected: Psn) {
        if let Some(kept) = incoming.keep() {
            let psn = incoming.packet.psn();
            self.hold_kept(kept, expected, psn, incoming.now, incoming.vector());
        }
    }

    /// Keeps a packet that was kept before. `now` counts as the time at which it came.
    pub(crate) fn hold_kept(
        &mut self,
        kept: KeptDatagram,
        expected: Psn,
        psn: Psn,
        now: u64,
        vector: &Vector,
    ) {
        let all = self.device.held_bytes();
        let room = share(limits::MAX_HELD_BYTES, all, self.charged);
        // Without more places, nearer packets push out farther ones.
        let _ = self.prepare(room);
        let bytes = match self.reorder.last(&self.ring) {
            // The memory of a row counts once.
            Some(last) if last.psn.next() == psn && last.packet.shares_memory(&kept) => kept.len(),
            _ => kept.memory(),
        };
        let held = Held {
            psn,
            came: now,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            packet: kept,
        };
        let room = room.saturating_sub(ring_bytes(self.ring.len()));
        let same =
            |a: &KeptDatagram, b: &KeptDatagram| is_same(&a.datagram(vector), &b.datagram(vector));
        drop(
            self.reorder
                .hold(&mut self.ring, expected, room, held, same),
        );
        self.settle();
    }

    /// Takes out the first packet, if it is due.
    pub(crate) fn next(
        &mut self,
        expected: Psn,
        due: impl FnOnce(Psn) -> bool,
    ) -> Option<KeptDatagram> {
        if self.reorder.is_empty() {
            return None;
        }
        let next = self.reorder.next(&mut self.ring, expected, due);
        self.settle();
        next
    }

    /// Lets everything go.
    pub(crate) fn clear(&mut self) {
        self.reorder.clear(&mut self.ring);
        self.settle();
    }

    /// Gives an empty ring back, and charges the device's share with what is left.
    fn settle(&mut self) {
        if self.reorder.is_empty() && !self.ring.is_empty() {
            self.ring = KVec::new();
        }
        let bytes = self
            .reorder
            .bytes()
            .saturating_add(ring_bytes(self.ring.len()));
        self.device.recharge_held(self.charged, bytes);
        self.charged = bytes;
    }
}

/// Bytes of a ring with so many places.
fn ring_bytes(places: usize) -> usize {
    places.saturating_mul(size_of::<Place>())
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        self.clear();
    }
}
