// SPDX-License-Identifier: GPL-2.0

//! Out-of-order packets, buffered as a driver buffers them.

use rrxe_core::*;

/// The out-of-order packets of one side of a queue pair, each with what the driver knows about it.
pub struct ReorderBuffer<P> {
    reorder: Reorder,
    ring: Vec<Option<Buffered<(Packet, P)>>>,
}

impl<P> ReorderBuffer<P> {
    /// Creates a buffer for this number of packets, a power of two. A buffer for 0 packets drops
    /// all of them.
    pub fn new(capacity: usize) -> ReorderBuffer<P> {
        ReorderBuffer {
            reorder: Reorder::default(),
            ring: (0..capacity).map(|_| None).collect(),
        }
    }

    /// Buffers a packet that arrived while `expected` was the expected PSN. `same` compares it with
    /// another packet of its PSN. Returns false if this packet or another one is dropped.
    pub fn insert(
        &mut self,
        now: u64,
        expected: Psn,
        packet: &Packet,
        data: P,
        same: impl FnOnce(&P, &P) -> bool,
    ) -> bool {
        let before = self.len();
        let buffered = Buffered {
            psn: packet.psn(),
            arrived: Time::from_ns(now),
            bytes: packet.payload_len,
            shares_memory: false,
            packet: (*packet, data),
        };
        let same = |a: &(Packet, P), b: &(Packet, P)| a.0.repeats(&b.0) && same(&a.1, &b.1);
        let dropped = self
            .reorder
            .insert(&mut self.ring, expected, usize::MAX, buffered, same);
        dropped.is_none() && self.len() > before
    }

    /// Takes the next request that is due.
    pub fn next_request<R: ResourceRing>(
        &mut self,
        responder: &Responder<R>,
    ) -> Option<(Packet, P)> {
        let expected = Psn::new(responder.expected_psn());
        self.reorder
            .next(&mut self.ring, expected, |psn| responder.is_due(psn))
    }

    /// Takes the next response that is due.
    pub fn next_response(
        &mut self,
        requester: &Requester,
        slots: &[SendSlot],
    ) -> Option<(Packet, P)> {
        let due = |psn| requester.is_due(slots, psn);
        self.reorder
            .next(&mut self.ring, requester.expected_psn(), due)
    }

    /// Drops the packets that have expired.
    pub fn expire(&mut self, now: u64) {
        self.reorder.expire(&mut self.ring, Time::from_ns(now));
        let next = self.reorder.expires();
        assert!(next.is_none_or(|at| at.ns() > now), "buffered for too long");
    }

    /// Returns the number of packets.
    pub fn len(&self) -> u32 {
        self.reorder.len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.reorder.is_empty()
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.reorder.clear(&mut self.ring);
    }
}
