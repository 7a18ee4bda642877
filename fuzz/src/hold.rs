// SPDX-License-Identifier: GPL-2.0

//! Packets that came before their turn, as a driver keeps them.

use rrxe_core::reorder::Held;
use rrxe_core::{Packet, Psn, Reorder};

/// Places: few, so that they run out.
const PLACES: usize = 8;

/// The packets of one half of a queue pair, each with what belongs to it.
pub struct Hold<P> {
    reorder: Reorder,
    ring: Vec<Option<Held<(Packet, P)>>>,
    /// Whether this driver holds any.
    pub holds: bool,
}

impl<P> Hold<P> {
    /// Of a driver that holds packets, or not.
    pub fn new(holds: bool) -> Hold<P> {
        Hold {
            reorder: Reorder::new(),
            ring: (0..PLACES).map(|_| None).collect(),
            holds,
        }
    }

    /// Keeps one, if that is wanted.
    pub fn keep(&mut self, expected: Psn, packet: &Packet, what: P) {
        if self.holds {
            let held = Held {
                psn: packet.psn(),
                came: 0,
                bytes: packet.payload_len,
                packet: (*packet, what),
            };
            let same = |a: &(Packet, P), b: &(Packet, P)| a.0.repeats(&b.0);
            let _lost = self
                .reorder
                .hold(&mut self.ring, expected, usize::MAX, held, same);
        }
    }

    /// The next one whose turn it is.
    pub fn next(&mut self, expected: Psn, due: impl Fn(Psn) -> bool) -> Option<(Packet, P)> {
        self.reorder.next(&mut self.ring, expected, due)
    }

    /// Whether some are left.
    pub fn left(&self) -> bool {
        !self.reorder.is_empty()
    }

    /// Most times that packets can be handled in a row before something is wrong.
    pub const TURNS: usize = 4 * PLACES;
}
