// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that came before their turn, in the order of their PSNs.
//!
//! The core decides which packets are worth keeping ([`crate::Outcome::hold`]) and when their turn
//! comes; the driver owns them and the storage. Each half of a queue pair has a [`Reorder`] of its
//! own. What a host does with one, after every packet:
//!
//! 1. Where the outcome says `hold`, [`Reorder::hold`] the packet.
//! 2. While [`Reorder::next`] returns one that is due (`Responder::is_due`, `Requester::is_due`),
//!    hand it to `handle_packet` again, and hold it again where the outcome says so.
//! 3. Tell what is left (`Responder::held`, `Requester::held`), which may have a gap to report.
//!
//! A packet that is held has had no effect: no memory was written, nothing was acknowledged and
//! nothing completed (B-14). Dropping one is the loss of a packet.

use crate::psn::{Psn, Region};

/// The places that a host should have for each half of a queue pair: the largest window's worth,
/// since a peer sends no more beyond a gap.
pub const HELD: usize = REACH as usize;

/// How far beyond the expected PSN a packet may be that is held, in PSNs: the largest window. One
/// that is farther off is left to be sent again.
pub const REACH: u32 = crate::requester::MOST_WINDOW;

/// A packet in its place.
#[derive(Clone, Copy, Debug)]
pub struct Held<P> {
    psn: Psn,
    packet: P,
}

/// Where the packets are in a ring, whose length must be a power of two: without that nothing is
/// held. The same ring must be passed every time.
#[derive(Clone, Debug, Default)]
pub struct Reorder {
    /// Place of the first in the ring.
    head: u32,
    /// How many there are.
    len: u32,
}

impl Reorder {
    /// Nothing is held.
    pub const fn new() -> Reorder {
        Reorder { head: 0, len: 0 }
    }

    /// Packets held.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is held.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the n-th packet.
    #[inline]
    fn place(&self, capacity: usize, n: u32) -> usize {
        (self.head.wrapping_add(n) as usize) & capacity.wrapping_sub(1)
    }

    fn psn<P>(&self, ring: &[Option<Held<P>>], n: u32) -> Option<Psn> {
        ring.get(self.place(ring.len(), n))
            .and_then(|place| place.as_ref())
            .map(|held| held.psn)
    }

    fn take_first<P>(&mut self, ring: &mut [Option<Held<P>>]) -> Option<P> {
        let first = ring.get_mut(self.place(ring.len(), 0))?.take();
        self.head = self.head.wrapping_add(1);
        self.len = self.len.saturating_sub(1);
        first.map(|held| held.packet)
    }

    /// Holds a packet that comes after `expected`, the PSN whose turn it is.
    ///
    /// Returns what is not held: this packet, if there is one of its PSN, or if all places are
    /// taken by nearer ones; otherwise the farthest, where that made room.
    #[must_use = "a packet that is not held is lost, and its owner may have to account for it"]
    pub fn hold<P>(
        &mut self,
        ring: &mut [Option<Held<P>>],
        expected: Psn,
        psn: Psn,
        packet: P,
    ) -> Option<P> {
        let capacity = ring.len();
        if !capacity.is_power_of_two() {
            return Some(packet);
        }
        // Nearly always it belongs behind all others, or not far from there.
        let distance = psn.since(expected);
        let mut at = self.len;
        while let Some(before) = at.checked_sub(1) {
            match self.psn(ring, before) {
                Some(other) if other == psn => return Some(packet),
                Some(other) if other.since(expected) > distance => at = before,
                _ => break,
            }
        }
        let mut evicted = None;
        if self.len as usize >= capacity {
            let last = self.len.wrapping_sub(1);
            if at > last {
                return Some(packet);
            }
            let place = self.place(capacity, last);
            evicted = ring.get_mut(place).and_then(|place| place.take());
            self.len = last;
        }
        let mut n = self.len;
        while n > at {
            let before = n.wrapping_sub(1);
            // Both are inside: the capacity is a power of two.
            ring.swap(self.place(capacity, before), self.place(capacity, n));
            n = before;
        }
        if let Some(place) = ring.get_mut(self.place(capacity, at)) {
            *place = Some(Held { psn, packet });
            self.len = self.len.wrapping_add(1);
        }
        evicted.map(|held| held.packet)
    }

    /// Takes out the first packet, if it is due. Those before `expected`, the PSN whose turn it
    /// is, have come another way meanwhile, and are dropped.
    pub fn next<P>(
        &mut self,
        ring: &mut [Option<Held<P>>],
        expected: Psn,
        due: impl FnOnce(Psn) -> bool,
    ) -> Option<P> {
        while self.len != 0 {
            match self.psn(ring, 0) {
                Some(psn) if psn.region(expected) != Region::Duplicate => {
                    return if due(psn) {
                        self.take_first(ring)
                    } else {
                        None
                    };
                }
                _ => drop(self.take_first(ring)),
            }
        }
        None
    }

    /// Moves everything to another ring, which is to be passed from now on. What it has no room for is dropped, the
    /// farthest first.
    pub fn move_to<P>(&mut self, from: &mut [Option<Held<P>>], to: &mut [Option<Held<P>>]) {
        let room = if to.len().is_power_of_two() {
            u32::try_from(to.len()).unwrap_or(u32::MAX)
        } else {
            0
        };
        for n in 0..self.len {
            let place = self.place(from.len(), n);
            let held = from.get_mut(place).and_then(Option::take);
            if let Some(to) = to.get_mut(n as usize).filter(|_| n < room) {
                *to = held;
            }
        }
        self.head = 0;
        self.len = self.len.min(room);
    }

    /// Drops everything.
    pub fn clear<P>(&mut self, ring: &mut [Option<Held<P>>]) {
        while self.len != 0 {
            drop(self.take_first(ring));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn ring(places: usize) -> Vec<Option<Held<u32>>> {
        (0..places).map(|_| None).collect()
    }

    /// Packets come out in the order of their PSNs, however they came, and across the wrap.
    #[test]
    fn in_order() {
        let (mut reorder, mut ring) = (Reorder::new(), ring(8));
        let base = Psn::new(0xff_fffe);
        for n in [3, 1, 5, 2, 3] {
            let back = reorder.hold(&mut ring, base, base.add(n), n);
            assert_eq!(back, (n == 3 && reorder.len() == 4).then_some(3));
        }
        assert_eq!(reorder.next(&mut ring, base, |psn| psn == base), None);
        for n in [1, 2, 3] {
            let expected = base.add(n);
            let packet = reorder.next(&mut ring, expected, |psn| psn == expected);
            assert_eq!(packet, Some(n));
        }
        // 4 came, and 5 too, by another way.
        assert_eq!(reorder.next(&mut ring, base.add(6), |_| true), None);
        assert!(reorder.is_empty());
        assert!(ring.iter().all(Option::is_none));
    }

    /// Nearer packets push out farther ones, never the other way round.
    #[test]
    fn full() {
        let (mut reorder, mut ring) = (Reorder::new(), ring(4));
        let base = Psn::new(0);
        for n in [10, 20, 30, 40] {
            assert_eq!(reorder.hold(&mut ring, base, base.add(n), n), None);
        }
        assert_eq!(reorder.hold(&mut ring, base, base.add(50), 50), Some(50));
        assert_eq!(reorder.hold(&mut ring, base, base.add(25), 25), Some(40));
        reorder.clear(&mut ring);
        assert!(reorder.is_empty() && ring.iter().all(Option::is_none));
        // No place at all.
        assert_eq!(reorder.hold(&mut [], base, base.add(1), 1), Some(1));
    }

    /// A larger ring has all of it, a smaller one the nearest.
    #[test]
    fn moved() {
        let (mut reorder, mut small, mut large) = (Reorder::new(), ring(4), ring(8));
        let base = Psn::new(0xff_ffff);
        for n in [1, 2, 3] {
            assert_eq!(reorder.hold(&mut small, base, base.add(n), n), None);
        }
        // The first is not in the first place.
        assert_eq!(reorder.next(&mut small, base.add(1), |_| true), Some(1));
        for n in [5, 4] {
            assert_eq!(reorder.hold(&mut small, base, base.add(n), n), None);
        }
        reorder.move_to(&mut small, &mut large);
        assert!(small.iter().all(Option::is_none));
        assert_eq!(reorder.hold(&mut large, base, base.add(6), 6), None);
        assert_eq!(reorder.len(), 5);
        reorder.move_to(&mut large, &mut small);
        for n in [2, 3, 4, 5] {
            assert_eq!(reorder.next(&mut small, base.add(n), |_| true), Some(n));
        }
        assert!(reorder.is_empty());
    }

    proptest! {
        /// As a plain sorted map would.
        #[test]
        fn as_a_map(steps in prop::collection::vec((any::<bool>(), 1u32..40), 0..200)) {
            let (mut reorder, mut ring) = (Reorder::new(), ring(16));
            let mut map = BTreeMap::new();
            let mut base = 0u32;
            for (hold, n) in steps {
                if hold {
                    let psn = base + n;
                    let lost = reorder.hold(&mut ring, Psn::new(base), Psn::new(psn), psn);
                    let twice = map.insert(psn, ()).is_some();
                    let expected = if twice {
                        Some(psn)
                    } else if map.len() > 16 {
                        map.pop_last().map(|(psn, ())| psn)
                    } else {
                        None
                    };
                    prop_assert_eq!(lost, expected);
                } else {
                    base += n / 8;
                    map = map.split_off(&base);
                    let expected = map.first_key_value().map(|(psn, ())| *psn);
                    let due = expected.filter(|psn| *psn == base);
                    let next = reorder.next(&mut ring, Psn::new(base), |psn| psn.get() == base);
                    prop_assert_eq!(next, due);
                    if due.is_some() {
                        map.remove(&base);
                    }
                }
                prop_assert_eq!(reorder.len() as usize, map.len());
            }
        }
    }
}
