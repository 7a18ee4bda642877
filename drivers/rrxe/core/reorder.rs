// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Buffer for out-of-order packets, sorted by PSN.
//!
//! The core decides which packets to keep ([`crate::Outcome::buffer`]) and when their turn comes.
//! The driver owns the packets and the storage. Each half of a queue pair has its own [`Reorder`].
//! After every packet the driver does this:
//!
//! 1. If the outcome says `buffer`, [`Reorder::insert`] the packet.
//! 2. While [`Reorder::next`] returns a packet that is due (`Responder::is_due`,
//!    `Requester::is_due`), pass it to `handle_packet` again, and buffer it again if the outcome
//!    says so.
//! 3. Report whether packets are left (`Responder::on_buffered`, `Requester::on_buffered`), because
//!    there may be a gap to report.
//! 4. Call [`Reorder::expire`] before all that, and at the time of [`Reorder::expires`].
//!
//! A buffered packet has had no effect: it wrote no memory, and nothing was acknowledged or
//! completed (B-14). To drop it is the same as to lose it in the network.

use crate::lengths::total;
use crate::psn::{Psn, Region};
use crate::{Increment, RingCounter, Span, Time};

/// Maximum number of slots for each half of a queue pair.
pub const MAX_BUFFERED: usize = MAX_DISTANCE as usize;

/// Maximum distance of a buffered packet from the expected PSN, in PSNs: the largest window.
pub const MAX_DISTANCE: u32 = crate::requester::MAX_WINDOW;

/// Maximum age of a buffered packet: several acknowledge timeouts of a typical peer
/// (67 ms each), which has retransmitted the missing packets by then. Older packets may be stale or
/// forged.
pub const MAX_AGE: Span = Span::from_us(500_000);

/// Returns whether a packet of a connection can have this PSN: at most [`MAX_DISTANCE`] PSNs before
/// or after the expected one.
#[inline]
pub const fn is_plausible(psn: Psn, expected: Psn) -> bool {
    psn.since(expected.sub(MAX_DISTANCE)) < 2 * MAX_DISTANCE
}

/// Returns the bytes that one of several owners of buffered packets may use, given that it has
/// `own` of the `all` bytes used so far: half of what the others leave of `max`. With n owners,
/// each gets one part in n + 1, and a new owner always finds something left.
#[inline]
pub const fn share(max: usize, all: usize, own: usize) -> usize {
    max.saturating_sub(all).saturating_add(own) / 2
}

/// A buffered packet.
#[derive(Clone, Copy, Debug)]
pub struct Buffered<P> {
    /// Its PSN.
    pub psn: Psn,
    /// Arrival time.
    pub arrived: Time,
    /// Memory that it keeps allocated, in bytes.
    pub bytes: u32,
    /// Its memory is also that of the last packet buffered, which has the PSN before this one.
    /// Memory that packets share counts once.
    pub shares_memory: bool,
    /// The owner's packet.
    pub packet: P,
}

impl<P> Buffered<P> {
    /// Returns the bytes to count for this packet.
    #[inline]
    fn counts(&self) -> usize {
        if self.shares_memory {
            0
        } else {
            self.bytes as usize
        }
    }
}

/// State of a reorder buffer. Its packets are in a ring of the driver, whose length must be a power
/// of two; otherwise nothing is buffered. Every call must pass the same ring. The default is empty.
#[derive(Clone, Debug, Default)]
pub struct Reorder {
    /// Index of the first packet in the ring.
    head: RingCounter,
    /// Number of packets.
    len: u32,
    /// Memory of the packets, in bytes.
    bytes: usize,
    /// Lower bound of the arrival times of the packets.
    oldest: Time,
}

impl Reorder {
    /// Returns the memory of the packets in bytes, as their owner counted them.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns when to call [`Reorder::expire`] unless something happens before.
    #[inline]
    pub fn expires(&self) -> Option<Time> {
        (self.len != 0).then(|| self.oldest + MAX_AGE)
    }

    /// Returns the number of packets buffered.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether no packet is buffered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ring index of the n-th packet.
    #[inline]
    fn index(&self, capacity: usize, n: u32) -> usize {
        self.head.add(n).index(capacity)
    }

    /// Returns the packet with the farthest PSN.
    pub fn last<'a, P>(&self, ring: &'a [Option<Buffered<P>>]) -> Option<&'a Buffered<P>> {
        self.get(ring, self.len.checked_sub(1)?)
    }

    fn get<'a, P>(&self, ring: &'a [Option<Buffered<P>>], n: u32) -> Option<&'a Buffered<P>> {
        ring.get(self.index(ring.len(), n))?.as_ref()
    }

    /// Removes the n-th packet from the ring. Memory that it shares with the next one then counts
    /// for that.
    fn remove_at<P>(&mut self, ring: &mut [Option<Buffered<P>>], n: u32) -> Option<Buffered<P>> {
        let buffered = ring.get_mut(self.index(ring.len(), n))?.take()?;
        debug_assert!(
            self.bytes >= buffered.counts(),
            "more bytes leave than came"
        );
        self.bytes = self.bytes.saturating_sub(buffered.counts());
        let after = self.head.add(n).next().index(ring.len());
        let next = ring.get_mut(after);
        let next = next.and_then(Option::as_mut);
        if let Some(next) = next.filter(|next| next.shares_memory) {
            next.shares_memory = false;
            self.bytes = total([self.bytes, next.counts()]);
        }
        Some(buffered)
    }

    fn remove_first<P>(&mut self, ring: &mut [Option<Buffered<P>>]) -> Option<P> {
        debug_assert!(self.len != 0, "a packet leaves an empty buffer");
        let first = self.remove_at(ring, 0);
        debug_assert!(first.is_some(), "the first slot is empty");
        self.head.advance();
        self.len = self.len.saturating_sub(1);
        first.map(|buffered| buffered.packet)
    }

    /// Drops the packet with the farthest PSN.
    fn drop_last<P>(&mut self, ring: &mut [Option<Buffered<P>>]) {
        if let Some(last) = self.len.checked_sub(1) {
            self.len = last;
            drop(self.remove_at(ring, last));
        }
    }

    /// Removes the packets for which `leave` returns true, and closes the gaps.
    fn remove<P>(
        &mut self,
        ring: &mut [Option<Buffered<P>>],
        leave: impl Fn(&Buffered<P>) -> bool,
    ) {
        let mut end = self.head;
        for n in 0..self.len {
            if self.get(ring, n).is_none_or(&leave) {
                drop(self.remove_at(ring, n));
            } else {
                ring.swap(end.index(ring.len()), self.index(ring.len(), n));
                end.advance();
            }
        }
        let kept = end.since(self.head);
        debug_assert!(kept <= self.len, "more packets are left than there were");
        self.len = kept;
        self.assert_invariants(ring);
    }

    /// Asserts what holds between two calls. Packets before the expected PSN, which are about to be
    /// dropped, may be out of order.
    fn assert_invariants<P>(&self, ring: &[Option<Buffered<P>>]) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.len as usize <= ring.len(), "more packets than slots");
        let packets = || (0..self.len).map(|n| self.get(ring, n));
        debug_assert!(
            packets().all(|packet| packet.is_some()),
            "an empty slot between packets"
        );
        debug_assert!(
            ring.iter().flatten().count() == self.len as usize,
            "a packet in a slot that is not in use"
        );
        let counted = packets().flatten().map(Buffered::counts);
        debug_assert!(
            self.bytes == counted.sum::<usize>(),
            "the bytes are not those of the packets"
        );
        debug_assert!(
            packets()
                .flatten()
                .all(|packet| packet.arrived >= self.oldest),
            "a packet is older than the oldest"
        );
        debug_assert!(
            packets()
                .take(1)
                .flatten()
                .all(|first| !first.shares_memory),
            "the first packet shares the memory of none"
        );
    }

    /// Drops packets that are older than [`MAX_AGE`].
    pub fn expire<P>(&mut self, ring: &mut [Option<Buffered<P>>], now: Time) {
        if self.expires().is_none_or(|at| at > now) {
            return;
        }
        // Dropping packets that would expire soon, too, keeps the number of passes low.
        let until = now - MAX_AGE / 2;
        self.remove(ring, |buffered| buffered.arrived <= until);
        let left = (0..self.len).filter_map(|n| self.get(ring, n));
        let oldest = left.map(|buffered| buffered.arrived).min();
        self.oldest = oldest.unwrap_or(now);
        debug_assert!(
            self.expires().is_none_or(|until| until > now),
            "an expired packet is left"
        );
    }

    /// Buffers a packet that comes after `expected`, the expected PSN. All buffered packets may
    /// have up to `max_bytes` bytes.
    ///
    /// If two packets with one PSN differ, at least one is stale or forged. Neither is buffered
    /// then: the peer retransmits its own.
    ///
    /// Returns the packet if it is not buffered, because its PSN is there already or because nearer
    /// packets use all slots or bytes. Farther packets are dropped to free slots and bytes.
    #[must_use = "a packet that is not buffered is lost"]
    pub fn insert<P>(
        &mut self,
        ring: &mut [Option<Buffered<P>>],
        expected: Psn,
        max_bytes: usize,
        buffered: Buffered<P>,
        same: impl FnOnce(&P, &P) -> bool,
    ) -> Option<P> {
        let capacity = ring.len();
        if !capacity.is_power_of_two() {
            return Some(buffered.packet);
        }
        debug_assert!(
            !buffered.shares_memory
                || self
                    .last(ring)
                    .is_some_and(|last| last.psn == buffered.psn.prev()),
            "shared memory without the packet before"
        );
        // The packet nearly always belongs at or near the end.
        let distance = buffered.psn.since(expected);
        let mut at = self.len;
        while let Some(before) = at.checked_sub(1) {
            match self.get(ring, before) {
                Some(other) if other.psn == buffered.psn => {
                    if !same(&other.packet, &buffered.packet) {
                        self.remove(ring, |other| other.psn == buffered.psn);
                    }
                    return Some(buffered.packet);
                }
                Some(other) if other.psn.since(expected) > distance => at = before,
                _ => break,
            }
        }
        let bytes = buffered.counts();
        while self.len as usize >= capacity || total([self.bytes, bytes]) > max_bytes {
            if at == self.len {
                return Some(buffered.packet);
            }
            self.drop_last(ring);
        }
        if self.len == 0 || buffered.arrived < self.oldest {
            self.oldest = buffered.arrived;
        }
        self.bytes = total([self.bytes, bytes]);
        for n in (at..self.len).rev() {
            // Both indices are valid, because the capacity is a power of two.
            let after = self.head.add(n).next().index(capacity);
            ring.swap(self.index(capacity, n), after);
        }
        if let Some(slot) = ring.get_mut(self.index(capacity, at)) {
            *slot = Some(buffered);
            self.len.increment();
        }
        self.assert_invariants(ring);
        None
    }

    /// Removes and returns the first packet if it is due. Drops packets before `expected`, the
    /// expected PSN, because copies of them have been handled meanwhile.
    pub fn next<P>(
        &mut self,
        ring: &mut [Option<Buffered<P>>],
        expected: Psn,
        due: impl FnOnce(Psn) -> bool,
    ) -> Option<P> {
        while self.len != 0 {
            match self.get(ring, 0).map(|first| first.psn) {
                Some(psn) if psn.region(expected) != Region::Duplicate => {
                    return due(psn).then(|| self.remove_first(ring)).flatten();
                }
                _ => drop(self.remove_first(ring)),
            }
        }
        None
    }

    /// Moves all packets to another ring, which the caller must pass from then on. Drops those
    /// that exceed its capacity, the farthest first.
    pub fn move_to<P>(&mut self, from: &mut [Option<Buffered<P>>], to: &mut [Option<Buffered<P>>]) {
        let capacity = if to.len().is_power_of_two() {
            to.len()
        } else {
            0
        };
        while self.len as usize > capacity {
            self.drop_last(from);
        }
        for (n, to) in (0..self.len).zip(to) {
            let index = self.index(from.len(), n);
            debug_assert!(to.is_none(), "the new ring is in use");
            *to = from.get_mut(index).and_then(Option::take);
        }
        self.head = RingCounter::default();
        debug_assert!(
            from.iter().all(Option::is_none),
            "a packet is left in the old ring"
        );
    }

    /// Drops all packets.
    pub fn clear<P>(&mut self, ring: &mut [Option<Buffered<P>>]) {
        while self.len != 0 {
            drop(self.remove_first(ring));
        }
        debug_assert!(self.bytes == 0, "an empty buffer has bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn ring(slots: usize) -> Vec<Option<Buffered<u32>>> {
        (0..slots).map(|_| None).collect()
    }

    fn insert(
        reorder: &mut Reorder,
        ring: &mut [Option<Buffered<u32>>],
        expected: Psn,
        packet: u32,
    ) -> Option<u32> {
        let buffered = Buffered {
            psn: expected.add(packet),
            arrived: Time::default(),
            bytes: 1,
            shares_memory: false,
            packet,
        };
        reorder.insert(ring, expected, usize::MAX, buffered, |a, b| a == b)
    }

    /// Packets come out in the order of their PSNs, whatever their order of arrival, and across the
    /// PSN wrap.
    #[test]
    fn in_order() {
        let (mut reorder, mut ring) = (Reorder::default(), ring(8));
        let base = Psn::new(0xff_fffe);
        for n in [3, 1, 5, 2, 3] {
            let back = insert(&mut reorder, &mut ring, base, n);
            assert_eq!(back, (n == 3 && reorder.len() == 4).then_some(3));
        }
        assert_eq!(reorder.next(&mut ring, base, |psn| psn == base), None);
        for n in [1, 2, 3] {
            let expected = base.add(n);
            let packet = reorder.next(&mut ring, expected, |psn| psn == expected);
            assert_eq!(packet, Some(n));
        }
        // Packets 4 and 5 have been handled without being buffered.
        assert_eq!(reorder.next(&mut ring, base.add(6), |_| true), None);
        assert!(reorder.is_empty());
        assert!(ring.iter().all(Option::is_none));
    }

    /// Nearer packets push out farther ones, but never the reverse.
    #[test]
    fn full() {
        let (mut reorder, mut ring) = (Reorder::default(), ring(4));
        let base = Psn::new(0);
        for n in [10, 20, 30, 40] {
            assert_eq!(insert(&mut reorder, &mut ring, base, n), None);
        }
        assert_eq!(insert(&mut reorder, &mut ring, base, 50), Some(50));
        assert_eq!(insert(&mut reorder, &mut ring, base, 25), None);
        assert_eq!((reorder.len(), reorder.bytes()), (4, 4));
        assert!(ring.iter().flatten().all(|buffered| buffered.packet != 40));
        reorder.clear(&mut ring);
        assert!(reorder.is_empty() && ring.iter().all(Option::is_none));
        // A ring without slots buffers nothing.
        assert_eq!(insert(&mut reorder, &mut [], base, 1), Some(1));
        assert_eq!(reorder.bytes(), 0);
    }

    /// A larger ring gets all packets, a smaller one the nearest.
    #[test]
    fn moved() {
        let (mut reorder, mut small, mut large) = (Reorder::default(), ring(4), ring(8));
        let base = Psn::new(0xff_ffff);
        for n in [1, 2, 3] {
            assert_eq!(insert(&mut reorder, &mut small, base, n), None);
        }
        // Now the first packet is not at index 0.
        assert_eq!(reorder.next(&mut small, base.add(1), |_| true), Some(1));
        for n in [5, 4] {
            assert_eq!(insert(&mut reorder, &mut small, base, n), None);
        }
        reorder.move_to(&mut small, &mut large);
        assert!(small.iter().all(Option::is_none));
        assert_eq!(insert(&mut reorder, &mut large, base, 6), None);
        assert_eq!((reorder.len(), reorder.bytes()), (5, 5));
        reorder.move_to(&mut large, &mut small);
        assert_eq!((reorder.len(), reorder.bytes()), (4, 4));
        for n in [2, 3, 4, 5] {
            assert_eq!(reorder.next(&mut small, base.add(n), |_| true), Some(n));
        }
        assert!(reorder.is_empty());
    }

    /// Of two different packets with one PSN neither is kept. A duplicate changes nothing.
    #[test]
    fn two_packets_with_one_psn() {
        let (mut reorder, mut ring) = (Reorder::default(), ring(8));
        let base = Psn::new(0xff_ffff);
        for n in [1, 2, 3, 2] {
            let _ = insert(&mut reorder, &mut ring, base, n);
        }
        assert_eq!(reorder.len(), 3);
        let other = Buffered {
            psn: base.add(2),
            arrived: Time::default(),
            bytes: 1,
            shares_memory: false,
            packet: 77,
        };
        let lost = reorder.insert(&mut ring, base, usize::MAX, other, |a, b| a == b);
        assert_eq!(lost, Some(77));
        assert_eq!((reorder.len(), reorder.bytes()), (2, 2));
        for n in [1, 3] {
            assert_eq!(reorder.next(&mut ring, base.add(n), |_| true), Some(n));
        }
        assert!(reorder.is_empty() && ring.iter().all(Option::is_none));
    }

    /// Memory that several packets share counts once, for as long as one of them is buffered.
    #[test]
    fn shared_memory() {
        const MEMORY: u32 = 100;
        let (mut reorder, mut ring) = (Reorder::default(), ring(8));
        let base = Psn::new(0xff_fffd);
        let filled = |reorder: &mut Reorder, ring: &mut [Option<Buffered<u32>>]| {
            reorder.clear(ring);
            for n in 1..=4 {
                let buffered = Buffered {
                    psn: base.add(n),
                    arrived: Time::default(),
                    bytes: MEMORY,
                    shares_memory: n != 1,
                    packet: n,
                };
                let max_bytes = MEMORY as usize;
                assert!(reorder
                    .insert(ring, base, max_bytes, buffered, |_, _| true)
                    .is_none());
            }
            assert_eq!(reorder.bytes(), MEMORY as usize);
        };
        // The first packets leave.
        filled(&mut reorder, &mut ring);
        for n in 1..=4 {
            assert_eq!(reorder.bytes(), MEMORY as usize);
            assert_eq!(reorder.next(&mut ring, base.add(n), |_| true), Some(n));
        }
        assert_eq!(reorder.bytes(), 0);
        // The last packets leave for a smaller ring, then the first for a packet nearer than they.
        filled(&mut reorder, &mut ring);
        let mut small = self::ring(2);
        reorder.move_to(&mut ring, &mut small);
        assert_eq!((reorder.len(), reorder.bytes()), (2, MEMORY as usize));
        assert_eq!(insert(&mut reorder, &mut small, base, 0), None);
        assert_eq!((reorder.len(), reorder.bytes()), (2, MEMORY as usize + 1));
        reorder.clear(&mut small);
        assert_eq!(reorder.bytes(), 0);
        // Any of them leaves because another packet has its PSN.
        for n in 1..=4 {
            filled(&mut reorder, &mut ring);
            let other = Buffered {
                psn: base.add(n),
                arrived: Time::default(),
                bytes: MEMORY,
                shares_memory: false,
                packet: 77,
            };
            let _ = reorder.insert(&mut ring, base, usize::MAX, other, |_, _| false);
            assert_eq!(reorder.len(), 3);
            assert!(reorder.bytes() >= MEMORY as usize);
            reorder.clear(&mut ring);
            assert_eq!(reorder.bytes(), 0);
        }
    }

    /// The bytes of a buffer are those of its packets.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "an empty buffer has bytes")]
    fn bytes_of_no_packet() {
        let mut reorder = Reorder {
            bytes: 1,
            ..Reorder::default()
        };
        reorder.clear(&mut ring(4));
    }

    /// Owners that use all they may get equal parts, and leave a part to the next owner.
    #[test]
    fn shares() {
        const LIMIT: usize = 1 << 20;
        for owners in 1..40 {
            let mut own = vec![0; owners];
            for _ in 0..1000 {
                for n in 0..owners {
                    let all = own.iter().sum();
                    own[n] = share(LIMIT, all, own[n]);
                }
            }
            let part = LIMIT / (owners + 1);
            assert!(own.iter().all(|own| own.abs_diff(part) <= owners));
            assert!(share(LIMIT, own.iter().sum(), 0) >= part / 2 - owners);
        }
        // The other owners used their bytes before the limit was lowered.
        assert_eq!(share(10, 20, 4), 2);
        assert_eq!(share(usize::MAX, 0, usize::MAX), usize::MAX / 2);
    }

    /// Packets that are too old are dropped, and only those.
    #[test]
    fn old() {
        let (mut reorder, mut ring) = (Reorder::default(), ring(8));
        let base = Psn::new(0);
        assert_eq!(reorder.expires(), None);
        let (age, at) = (MAX_AGE.ns(), Time::from_ns);
        for (n, arrived) in [(5, 100), (1, 200), (3, age), (2, age + 300)] {
            let buffered = Buffered {
                psn: base.add(n),
                arrived: at(arrived),
                bytes: n,
                shares_memory: false,
                packet: n,
            };
            assert_eq!(
                reorder.insert(&mut ring, base, usize::MAX, buffered, |_, _| true),
                None
            );
        }
        assert_eq!(reorder.expires(), Some(at(100 + age)));
        reorder.expire(&mut ring, at(99 + age));
        assert_eq!(reorder.len(), 4);
        reorder.expire(&mut ring, at(100 + age));
        assert_eq!((reorder.len(), reorder.bytes()), (2, 5));
        assert_eq!(reorder.expires(), Some(at(2 * age)));
        for n in [2, 3] {
            assert_eq!(reorder.next(&mut ring, base.add(n), |_| true), Some(n));
        }
        assert_eq!(reorder.expires(), None);
    }

    proptest! {
        /// The buffer behaves like a sorted map.
        #[test]
        fn as_a_map(steps in prop::collection::vec((any::<bool>(), 1u32..40), 0..200)) {
            let (mut reorder, mut ring) = (Reorder::default(), ring(16));
            let mut map = BTreeMap::new();
            let mut base = 0u32;
            for (insert, n) in steps {
                if insert {
                    let psn = base + n;
                    let shares_memory = false;
                    let buffered = Buffered { psn: Psn::new(psn), arrived: Time::default(), bytes: n, shares_memory, packet: psn };
                    let lost = reorder.insert(&mut ring, Psn::new(base), 200, buffered, |a, b| a == b);
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
