// SPDX-License-Identifier: GPL-2.0

//! Out-of-order packets, buffered as a driver buffers them.

use rrxe_core::reorder::Buffered;
use rrxe_core::{Packet, Psn, Reorder};

/// Capacity of the buffer. It is small, so that the buffer fills up.
const PLACES: usize = 8;

/// Buffered packets of one half of a queue pair, each with its associated data.
pub struct ReorderBuffer<P> {
    reorder: Reorder,
    ring: Vec<Option<Buffered<(Packet, P)>>>,
    /// Whether this driver buffers packets.
    pub enabled: bool,
}

impl<P> ReorderBuffer<P> {
    /// Creates the buffer of a driver that buffers packets, if `enabled` is true.
    pub fn new(enabled: bool) -> ReorderBuffer<P> {
        ReorderBuffer {
            reorder: Reorder::new(),
            ring: (0..PLACES).map(|_| None).collect(),
            enabled,
        }
    }

    /// Buffers a packet if the driver does so.
    pub fn keep(&mut self, expected: Psn, packet: &Packet, what: P) {
        if self.enabled {
            let buffered = Buffered {
                psn: packet.psn(),
                arrived: 0,
                bytes: packet.payload_len,
                shares_memory: false,
                packet: (*packet, what),
            };
            let same = |a: &(Packet, P), b: &(Packet, P)| a.0.repeats(&b.0);
            let _lost = self
                .reorder
                .insert(&mut self.ring, expected, usize::MAX, buffered, same);
        }
    }

    /// Takes the next packet that is due.
    pub fn next(&mut self, expected: Psn, due: impl Fn(Psn) -> bool) -> Option<(Packet, P)> {
        self.reorder.next(&mut self.ring, expected, due)
    }

    /// Returns whether packets are left in the buffer.
    pub fn left(&self) -> bool {
        !self.reorder.is_empty()
    }

    /// Upper bound on successive buffered packets; more would be an endless loop.
    pub const TURNS: usize = 4 * PLACES;
}
