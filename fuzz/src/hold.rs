// SPDX-License-Identifier: GPL-2.0

//! Out-of-order packets, buffered as a driver buffers them.

use rrxe_core::reorder::Held;
use rrxe_core::{Packet, Psn, Reorder};

/// Capacity of the buffer. It is small, so that the buffer fills up.
const PLACES: usize = 8;

/// Buffered packets of one half of a queue pair, each with its associated data.
pub struct Hold<P> {
    reorder: Reorder,
    ring: Vec<Option<Held<(Packet, P)>>>,
    /// Whether this driver buffers packets.
    pub holds: bool,
}

impl<P> Hold<P> {
    /// Creates the buffer of a driver that buffers packets, if `holds` is true.
    pub fn new(holds: bool) -> Hold<P> {
        Hold {
            reorder: Reorder::new(),
            ring: (0..PLACES).map(|_| None).collect(),
            holds,
        }
    }

    /// Buffers a packet if the driver does so.
    pub fn keep(&mut self, expected: Psn, packet: &Packet, what: P) {
        if self.holds {
            let held = Held {
                psn: packet.psn(),
                came: 0,
                bytes: packet.payload_len,
                shares: false,
                packet: (*packet, what),
            };
            let same = |a: &(Packet, P), b: &(Packet, P)| a.0.repeats(&b.0);
            let _lost = self
                .reorder
                .hold(&mut self.ring, expected, usize::MAX, held, same);
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
