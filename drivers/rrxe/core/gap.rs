// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Decides when the receiver of packets reports a gap: a missing packet may be lost, or only late.
//!
//! The receiver buffers the packets beyond a gap ([`crate::Reorder`]) and reports it after a number
//! of them, or after some time, whichever comes first: the *tolerance*. As in TCP (RFC 5681, 3.2),
//! it starts at three packets. A gap that closes without a report shows that packets overtake each
//! other, and raises the tolerance to twice its size. A retransmission of a packet that had
//! arrived anyway shows that a report was superfluous (as a DSACK does in RFC 8985, 6.2), and
//! raises it likewise. Each reported gap that closes lowers it by a quarter.
//!
//! A requester receives READ responses, a responder requests; both use this.

use crate::psn::Psn;
use crate::reorder::MAX_DISTANCE;
use crate::{Minus, Span, Time};

/// Smallest number of packets beyond a gap that report it.
pub const MIN_PACKETS: u32 = 3;

/// Largest number of packets beyond a gap that report it: half of those that can be buffered.
const MAX_PACKETS: u32 = MAX_DISTANCE / 2;

/// Shortest time after which a gap is reported. It delays only the report of a gap near the end of
/// a stream.
pub const MIN_DELAY: Span = Span::from_us(100);

/// Longest time after which a gap is reported.
const MAX_DELAY: Span = Span::from_us(4_000);

/// Longest time from a gap to a superfluous retransmission that it causes: a long round trip.
const MAX_DUPLICATE_AGE: Span = Span::from_us(50_000);

/// Maximum number of closed gaps that are remembered.
const MAX_CLOSED: usize = 8;

/// A gap in front of buffered packets, or one that was.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The missing packet.
    psn: Psn,
    /// Time at which it became the expected one.
    since: Time,
    /// Largest number of packets buffered beyond it.
    beyond: u32,
    reported: bool,
}

/// The gap before the expected packet, and how much reordering is tolerated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapDetector {
    gap: Option<Gap>,
    /// The farthest packet that has arrived beyond a gap; `None` before the first one.
    farthest: Option<Psn>,
    /// The peer may send packets up to this one again, because a gap was reported.
    again_until: Option<Psn>,
    /// Reported gaps that have closed, with the time that this took.
    closed: [Option<(Gap, Span)>; MAX_CLOSED],
    /// Packets beyond a gap that report it.
    packets: u32,
    /// Time after which a gap is reported.
    delay: Span,
    /// The last gap has closed without a report, or its report was superfluous.
    late: bool,
}

impl Default for GapDetector {
    fn default() -> GapDetector {
        GapDetector {
            gap: None,
            farthest: None,
            again_until: None,
            closed: [None; MAX_CLOSED],
            packets: MIN_PACKETS,
            delay: MIN_DELAY,
            late: false,
        }
    }
}

impl GapDetector {
    /// Notes that the packet `arrived` has arrived, but `expected` has not.
    pub(crate) fn on_beyond(&mut self, expected: Psn, arrived: Psn, now: Time) {
        debug_assert!(!expected.is_after(arrived), "a packet before the gap");
        self.open(expected, now);
        // The farthest packet of a gap long ago could otherwise count as one of the next 2^23.
        let recent = (self.farthest).filter(|psn| psn.since(expected) < MAX_DISTANCE);
        if recent.is_none_or(|psn| arrived.is_after(psn)) {
            self.farthest = Some(arrived);
        }
    }

    /// Notes that the packet `expected` is missing. Returns the gap.
    fn open(&mut self, expected: Psn, now: Time) -> &mut Gap {
        let known = self.gap.filter(|gap| gap.psn == expected);
        self.gap.insert(known.unwrap_or(Gap {
            psn: expected,
            since: now,
            beyond: 0,
            reported: false,
        }))
    }

    /// Notes that the packet `expected` is missing, and that `beyond` packets are buffered beyond
    /// it. Returns whether to report the gap, which [`GapDetector::report`] then notes.
    pub(crate) fn observe(&mut self, expected: Psn, beyond: u32, now: Time) -> bool {
        debug_assert!(beyond != 0, "a gap with nothing beyond it");
        self.assert_invariants();
        let gap = self.open(expected, now);
        gap.beyond = gap.beyond.max(beyond);
        let gap = *gap;
        let exceeds = gap.beyond >= self.packets;
        !gap.reported && exceeds || self.is_due(now)
    }

    /// Returns whether there is a gap, reported or not.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.gap.is_some()
    }

    /// Returns whether the missing packet has been late for so long that the gap must be reported.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due_at().is_some_and(|at| at <= now)
    }

    /// Returns when to report the gap unless the missing packet arrives; `None` if there is no gap,
    /// or if it was reported.
    #[inline]
    pub(crate) fn due_at(&self) -> Option<Time> {
        let gap = self.gap.filter(|gap| !gap.reported)?;
        Some(gap.since + self.delay)
    }

    /// Notes that the gap is reported.
    pub(crate) fn report(&mut self) {
        if let Some(gap) = &mut self.gap {
            gap.reported = true;
            if let Some(psn) = self.farthest {
                self.comes_again(psn);
            }
        }
    }

    /// Notes that packets up to this one may come again.
    pub(crate) fn comes_again(&mut self, until: Psn) {
        if self.again_until.is_none_or(|other| until.is_after(other)) {
            self.again_until = Some(until);
        }
    }

    /// Returns whether this packet may come again, because a gap was reported.
    fn may_come_again(&self, psn: Psn) -> bool {
        self.again_until.is_some_and(|until| !psn.is_after(until))
    }

    /// Notes that the expected packet has arrived; `again` if that may be its retransmission.
    #[inline]
    pub(crate) fn close(&mut self, again: bool, now: Time) {
        if let Some(gap) = self.gap.take() {
            self.close_gap(gap, again, now);
        }
    }

    #[cold]
    fn close_gap(&mut self, gap: Gap, again: bool, now: Time) {
        debug_assert!(self.gap.is_none(), "the closed gap is still open");
        let time = now.since(gap.since);
        if !gap.reported {
            // A retransmission shows nothing.
            if !self.may_come_again(gap.psn) {
                self.again_until = None;
                self.late = true;
                self.raise(gap.beyond, time);
            }
            return;
        }
        self.late = false;
        // The first ones of many reported gaps are remembered until their retransmissions must have
        // come.
        let is_over = |(other, _): (Gap, Span)| now.since(other.since) > MAX_DUPLICATE_AGE;
        let mut closed = self.closed.iter_mut();
        if let Some(entry) = closed.find(|entry| !again && entry.is_none_or(is_over)) {
            *entry = Some((gap, time));
        }
        // Losses have replaced reordering.
        let fewer = self.packets.minus((self.packets / 4).max(1));
        self.packets = fewer.max(MIN_PACKETS);
        self.delay = (self.delay - self.delay / 4).max(MIN_DELAY);
        self.assert_invariants();
    }

    /// Notes that a packet arrived which had arrived before.
    #[inline]
    pub(crate) fn duplicate(&mut self, psn: Psn) {
        let mut closed = self.closed.iter_mut();
        let superfluous = closed.find_map(|entry| entry.take_if(|(gap, _)| gap.psn == psn));
        if let Some((gap, time)) = superfluous {
            self.raise(gap.beyond, time);
            self.late = true;
        }
    }

    /// Forgets the gap, because the peer will send everything again, or nothing more.
    pub(crate) fn forget(&mut self) {
        self.gap = None;
    }

    /// Returns whether packets have arrived late lately, instead of getting lost.
    pub(crate) fn is_late(&self) -> bool {
        self.late
    }

    /// Raises the tolerance to twice a gap that has closed by itself.
    fn raise(&mut self, beyond: u32, time: Span) {
        self.assert_invariants();
        self.packets = (beyond.min(MAX_PACKETS) << 1).clamp(self.packets, MAX_PACKETS);
        self.delay = (time.min(MAX_DELAY) * 2).clamp(self.delay, MAX_DELAY);
    }

    /// Asserts what holds between two events.
    #[inline]
    fn assert_invariants(&self) {
        debug_assert!(
            (MIN_PACKETS..=MAX_PACKETS).contains(&self.packets),
            "the tolerated number of packets is out of bounds"
        );
        debug_assert!(
            (MIN_DELAY..=MAX_DELAY).contains(&self.delay),
            "the tolerated delay is out of bounds"
        );
        debug_assert!(
            self.closed.iter().flatten().all(|(gap, _)| gap.reported),
            "a closed gap was not reported"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reported gap says nothing about packets beyond those that have arrived, wherever the PSNs
    /// start.
    #[test]
    fn only_packets_that_have_arrived_may_come_again() {
        for expected in [5, 0x80_0000, 0xf0_0000, 0xff_f900].map(Psn::new) {
            let mut gaps = GapDetector::default();
            gaps.on_beyond(expected, expected.add(3), Time::default());
            gaps.on_beyond(expected, expected.add(2), Time::default());
            gaps.report();
            assert!(gaps.may_come_again(expected.add(3)));
            assert!(!gaps.may_come_again(expected.add(4)), "{expected:?}");
        }
    }
}
