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
//! 4. Call [`Reorder::expire`] before all that, and at the time of [`Reorder::expires`].
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

/// How long a packet is held at most, in nanoseconds: several acknowledge timeouts of a usual peer
/// (67 ms each), which has sent again by then what is missing before it. One that has waited for
/// longer may be stale or forged. It is let go within half of this time more.
pub const MAX_AGE: u64 = 500_000_000;

/// Whether a packet of a connection may have this PSN, as seen from the expected one: whether it is
/// at most [`REACH`] PSNs before or after it.
#[inline]
pub const fn is_near(psn: Psn, expected: Psn) -> bool {
    psn.since(expected.sub(REACH)) < 2 * REACH
}

/// Returns the bytes that one of several owners of held packets may take, which has taken `own` of
/// the `all` bytes taken so far: as much as it leaves of `most` to the others. So n owners get one
/// part in n + 1 each, and there is always something left for another.
#[inline]
pub const fn share(most: usize, all: usize, own: usize) -> usize {
    most.saturating_sub(all).saturating_add(own) / 2
}

/// A packet in its place.
#[derive(Clone, Copy, Debug)]
pub struct Held<P> {
    /// Its PSN.
    pub psn: Psn,
    /// When it came, in nanoseconds.
    pub came: u64,
    /// Bytes of memory that it takes.
    pub bytes: u32,
    /// What it is to its owner.
    pub packet: P,
}

/// Where the packets are in a ring, whose length must be a power of two: without that nothing is
/// held. The same ring must be passed every time.
#[derive(Clone, Debug, Default)]
pub struct Reorder {
    /// Place of the first in the ring.
    head: u32,
    /// How many there are.
    len: u32,
    /// Bytes that they take.
    bytes: usize,
    /// None of them came earlier.
    oldest: u64,
}

impl Reorder {
    /// Nothing is held.
    pub const fn new() -> Reorder {
        Reorder {
            head: 0,
            len: 0,
            bytes: 0,
            oldest: 0,
        }
    }

    /// Bytes that the packets take, as their owner has counted them.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When to call [`Reorder::expire`] if nothing happens before, in nanoseconds.
    #[inline]
    pub fn expires(&self) -> Option<u64> {
        (self.len != 0).then(|| self.oldest.saturating_add(MAX_AGE))
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

    /// The packet with the farthest PSN.
    pub fn last<'a, P>(&self, ring: &'a [Option<Held<P>>]) -> Option<&'a Held<P>> {
        let last = self.len.checked_sub(1)?;
        ring.get(self.place(ring.len(), last))?.as_ref()
    }

    fn psn<P>(&self, ring: &[Option<Held<P>>], n: u32) -> Option<Psn> {
        ring.get(self.place(ring.len(), n))
            .and_then(|place| place.as_ref())
            .map(|held| held.psn)
    }

    /// Takes the n-th packet out of its place.
    fn take<P>(&mut self, ring: &mut [Option<Held<P>>], n: u32) -> Option<Held<P>> {
        let held = ring.get_mut(self.place(ring.len(), n))?.take()?;
        self.bytes = self.bytes.saturating_sub(held.bytes as usize);
        Some(held)
    }

    fn take_first<P>(&mut self, ring: &mut [Option<Held<P>>]) -> Option<P> {
        let first = self.take(ring, 0);
        self.head = self.head.wrapping_add(1);
        self.len = self.len.saturating_sub(1);
        first.map(|held| held.packet)
    }

    /// Takes out the packets for which `leave` says so, and closes the ranks.
    fn remove<P>(&mut self, ring: &mut [Option<Held<P>>], leave: impl Fn(&Held<P>) -> bool) {
        let mut kept = 0u32;
        for n in 0..self.len {
            let place = self.place(ring.len(), n);
            if ring.get(place).and_then(Option::as_ref).is_none_or(&leave) {
                drop(self.take(ring, n));
            } else {
                ring.swap(self.place(ring.len(), kept), place);
                kept = kept.wrapping_add(1);
            }
        }
        self.len = kept;
    }

    /// Lets go of packets that came too long ago ([`MAX_AGE`]).
    pub fn expire<P>(&mut self, ring: &mut [Option<Held<P>>], now: u64) {
        if self.expires().is_none_or(|at| at > now) {
            return;
        }
        // Those that are about to be leave with them: so there are few rounds.
        let until = now.saturating_sub(MAX_AGE / 2);
        self.remove(ring, |held| held.came <= until);
        let packets = (0..self.len).filter_map(|n| {
            let place = ring.get(self.place(ring.len(), n));
            place.and_then(Option::as_ref)
        });
        self.oldest = packets.map(|held| held.came).min().unwrap_or(now);
    }

    /// Holds a packet that comes after `expected`, the PSN whose turn it is. All that are held may
    /// take `room` bytes.
    ///
    /// Of two packets with one PSN that are not the same, at least one is stale or forged. Neither is
    /// held then: the peer sends its own again.
    ///
    /// Returns the packet if it is not held: because there is one of its PSN, or because nearer ones
    /// take all places or bytes. Farther ones are dropped to make room.
    #[must_use = "a packet that is not held is lost"]
    pub fn hold<P>(
        &mut self,
        ring: &mut [Option<Held<P>>],
        expected: Psn,
        room: usize,
        held: Held<P>,
        same: impl FnOnce(&P, &P) -> bool,
    ) -> Option<P> {
        let capacity = ring.len();
        if !capacity.is_power_of_two() {
            return Some(held.packet);
        }
        // Nearly always it belongs behind all others, or not far from there.
        let distance = held.psn.since(expected);
        let mut at = self.len;
        while let Some(before) = at.checked_sub(1) {
            match self.psn(ring, before) {
                Some(other) if other == held.psn => {
                    let other = ring.get(self.place(capacity, before));
                    let other = other.and_then(Option::as_ref);
                    if !other.is_some_and(|other| same(&other.packet, &held.packet)) {
                        self.remove(ring, |other| other.psn == held.psn);
                    }
                    return Some(held.packet);
                }
                Some(other) if other.since(expected) > distance => at = before,
                _ => break,
            }
        }
        let bytes = held.bytes as usize;
        while self.len as usize >= capacity || self.bytes.saturating_add(bytes) > room {
            let last = self.len.wrapping_sub(1);
            if self.len == 0 || at > last {
                return Some(held.packet);
            }
            drop(self.take(ring, last));
            self.len = last;
        }
        if self.len == 0 || held.came < self.oldest {
            self.oldest = held.came;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        let mut n = self.len;
        while n > at {
            let before = n.wrapping_sub(1);
            // Both are inside: the capacity is a power of two.
            ring.swap(self.place(capacity, before), self.place(capacity, n));
            n = before;
        }
        if let Some(place) = ring.get_mut(self.place(capacity, at)) {
            *place = Some(held);
            self.len = self.len.wrapping_add(1);
        }
        None
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
            if n >= room {
                drop(self.take(from, n));
                continue;
            }
            let place = self.place(from.len(), n);
            let held = from.get_mut(place).and_then(Option::take);
            if let Some(to) = to.get_mut(n as usize) {
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

    fn hold(
        reorder: &mut Reorder,
        ring: &mut [Option<Held<u32>>],
        expected: Psn,
        packet: u32,
    ) -> Option<u32> {
        let held = Held {
            psn: expected.add(packet),
            came: 0,
            bytes: 1,
            packet,
        };
        reorder.hold(ring, expected, usize::MAX, held, |a, b| a == b)
    }

    /// Packets come out in the order of their PSNs, however they came, and across the wrap.
    #[test]
    fn in_order() {
        let (mut reorder, mut ring) = (Reorder::new(), ring(8));
        let base = Psn::new(0xff_fffe);
        for n in [3, 1, 5, 2, 3] {
            let back = hold(&mut reorder, &mut ring, base, n);
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
            assert_eq!(hold(&mut reorder, &mut ring, base, n), None);
        }
        assert_eq!(hold(&mut reorder, &mut ring, base, 50), Some(50));
        assert_eq!(hold(&mut reorder, &mut ring, base, 25), None);
        assert_eq!((reorder.len(), reorder.bytes()), (4, 4));
        assert!(ring.iter().flatten().all(|held| held.packet != 40));
        reorder.clear(&mut ring);
        assert!(reorder.is_empty() && ring.iter().all(Option::is_none));
        // No place at all.
        assert_eq!(hold(&mut reorder, &mut [], base, 1), Some(1));
        assert_eq!(reorder.bytes(), 0);
    }

    /// A larger ring has all of it, a smaller one the nearest.
    #[test]
    fn moved() {
        let (mut reorder, mut small, mut large) = (Reorder::new(), ring(4), ring(8));
        let base = Psn::new(0xff_ffff);
        for n in [1, 2, 3] {
            assert_eq!(hold(&mut reorder, &mut small, base, n), None);
        }
        // The first is not in the first place.
        assert_eq!(reorder.next(&mut small, base.add(1), |_| true), Some(1));
        for n in [5, 4] {
            assert_eq!(hold(&mut reorder, &mut small, base, n), None);
        }
        reorder.move_to(&mut small, &mut large);
        assert!(small.iter().all(Option::is_none));
        assert_eq!(hold(&mut reorder, &mut large, base, 6), None);
        assert_eq!((reorder.len(), reorder.bytes()), (5, 5));
        reorder.move_to(&mut large, &mut small);
        assert_eq!((reorder.len(), reorder.bytes()), (4, 4));
        for n in [2, 3, 4, 5] {
            assert_eq!(reorder.next(&mut small, base.add(n), |_| true), Some(n));
        }
        assert!(reorder.is_empty());
    }

    /// Of two packets with one PSN that differ, neither is kept; a copy changes nothing.
    #[test]
    fn not_the_same() {
        let (mut reorder, mut ring) = (Reorder::new(), ring(8));
        let base = Psn::new(0xff_ffff);
        for n in [1, 2, 3, 2] {
            let _ = hold(&mut reorder, &mut ring, base, n);
        }
        assert_eq!(reorder.len(), 3);
        let other = Held {
            psn: base.add(2),
            came: 0,
            bytes: 1,
            packet: 77,
        };
        let lost = reorder.hold(&mut ring, base, usize::MAX, other, |a, b| a == b);
        assert_eq!(lost, Some(77));
        assert_eq!((reorder.len(), reorder.bytes()), (2, 2));
        for n in [1, 3] {
            assert_eq!(reorder.next(&mut ring, base.add(n), |_| true), Some(n));
        }
        assert!(reorder.is_empty() && ring.iter().all(Option::is_none));
    }

    /// Owners that take all they may get equal parts, and leave one to whoever comes next.
    #[test]
    fn shares() {
        const MOST: usize = 1 << 20;
        for owners in 1..40 {
            let mut own = vec![0; owners];
            for _ in 0..1000 {
                for n in 0..owners {
                    let all = own.iter().sum();
                    own[n] = share(MOST, all, own[n]);
                }
            }
            let part = MOST / (owners + 1);
            assert!(own.iter().all(|own| own.abs_diff(part) <= owners));
            assert!(share(MOST, own.iter().sum(), 0) >= part / 2 - owners);
        }
        // Others had taken it before.
        assert_eq!(share(10, 20, 4), 2);
        assert_eq!(share(usize::MAX, 0, usize::MAX), usize::MAX / 2);
    }

    /// What is held for too long is let go, and nothing else.
    #[test]
    fn old() {
        let (mut reorder, mut ring) = (Reorder::new(), ring(8));
        let base = Psn::new(0);
        assert_eq!(reorder.expires(), None);
        for (n, came) in [(5, 100), (1, 200), (3, MAX_AGE), (2, MAX_AGE + 300)] {
            let held = Held {
                psn: base.add(n),
                came,
                bytes: n,
                packet: n,
            };
            assert_eq!(
                reorder.hold(&mut ring, base, usize::MAX, held, |_, _| true),
                None
            );
        }
        assert_eq!(reorder.expires(), Some(100 + MAX_AGE));
        reorder.expire(&mut ring, 99 + MAX_AGE);
        assert_eq!(reorder.len(), 4);
        reorder.expire(&mut ring, 100 + MAX_AGE);
        assert_eq!((reorder.len(), reorder.bytes()), (2, 5));
        assert_eq!(reorder.expires(), Some(2 * MAX_AGE));
        for n in [2, 3] {
            assert_eq!(reorder.next(&mut ring, base.add(n), |_| true), Some(n));
        }
        assert_eq!(reorder.expires(), None);
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
                    let held = Held { psn: Psn::new(psn), came: 0, bytes: n, packet: psn };
                    let lost = reorder.hold(&mut ring, Psn::new(base), 200, held, |a, b| a == b);
                    let twice = map.contains_key(&psn);
                    map.entry(psn).or_insert(n as usize);
                    while map.len() > 16 || map.values().sum::<usize>() > 200 {
                        map.pop_last();
                    }
                    prop_assert_eq!(lost.is_some(), twice || !map.contains_key(&psn));
                } else {
                    base += n / 8;
                    map = map.split_off(&base);
                    let expected = map.first_key_value().map(|(psn, _)| *psn);
                    let due = expected.filter(|psn| *psn == base);
                    let next = reorder.next(&mut ring, Psn::new(base), |psn| psn.get() == base);
                    prop_assert_eq!(next, due);
                    if due.is_some() {
                        map.remove(&base);
                    }
                }
                prop_assert_eq!(reorder.len() as usize, map.len());
                prop_assert_eq!(reorder.bytes(), map.values().sum::<usize>());
            }
        }
    }
}
