// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Round-trip times, and the timeout computed from them (RFC 6298).

use crate::psn::Psn;
use crate::{Increment, Span, Time};

/// Minimum probe timeout: longer than the scheduling delays of a busy host.
pub const MIN_PTO: Span = Span::from_us(1_000);

/// Probe timeout before a round trip has been measured. TCP starts with a second
/// (RFC 6298), but a probe is a single packet and uses up no retry.
const INITIAL_PTO: Span = Span::from_us(20_000);

/// Time after which the shortest round trip is forgotten, as in BBR: the route may
/// have changed.
const MIN_LIFETIME: Span = Span::from_us(10_000_000);

/// Consecutive round trips, each four times as long as the shortest one, that show a longer path.
const MAX_LONGER: u8 = 16;

/// Largest exponent of the back-off after superfluous probes.
const MAX_BACK_OFF: u32 = 10;

/// A sample of a coarse clock may be zero. It counts as this, because zero stands for "no sample".
const SHORTEST: Span = Span::from_ns(1);

/// A round-trip time estimate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    /// Smoothed round-trip time; 0 before the first sample.
    srtt: Span,
    /// Mean deviation of the round-trip time.
    rttvar: Span,
}

impl Estimate {
    /// Takes a round trip into account.
    pub(super) fn sample(&mut self, time: Span) {
        let time = time.max(SHORTEST);
        if self.srtt.is_zero() {
            self.srtt = time;
            self.rttvar = time / 2;
            return;
        }
        let off = self.srtt.abs_diff(time);
        self.rttvar = self.rttvar - self.rttvar / 4 + off / 4;
        self.srtt = (self.srtt - self.srtt / 8 + time / 8).max(SHORTEST);
        debug_assert!(!self.srtt.is_zero(), "a sample looks like none");
    }
}

/// The round trips of a queue pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    /// Round trips of packets that were sent once.
    packets: Estimate,
    /// Times from a repair to its response. They are often shorter than a round trip: the window is
    /// full behind a lost packet, and the queues on the path drain.
    pub(super) repairs: Estimate,
    /// The shortest round trip; 0 before the first.
    pub(super) min: Span,
    /// The shortest round trip of each of the last two periods of [`MIN_LIFETIME`]; 0 for none. The
    /// second one began at `period`.
    shortest: [Span; 2],
    period: Time,
    /// The round trip without the queues that this queue pair fills itself, as far as known; 0
    /// before the first.
    pub(super) base: Span,
    /// Consecutive round trips that took four times `base` or longer.
    longer: u8,
    /// The last round trip, or the last time from a repair to its response.
    latest: Span,
    /// The longest recent round trip. Each shorter one lowers it by a sixteenth of the difference.
    longest: Span,
    /// The packet whose response will be the next sample, and its send time. Its retransmission
    /// clears it, because the response could be to either transmission (Karn's algorithm).
    pub(super) timed: Option<(Psn, Time)>,
    /// Send time of the oldest packet in flight, or of a later one that is already acknowledged.
    pub(super) flight_start: Time,
    /// The last repair that was acknowledged was a probe.
    pub(super) probed: bool,
    /// Number of superfluous probes since the last round trip, at most [`MAX_BACK_OFF`].
    superfluous: u32,
}

impl Rtt {
    /// Asserts what holds between two events.
    pub(super) fn assert_invariants(&self) {
        let [before, latest] = self.shortest;
        debug_assert!(
            before.is_zero() || !latest.is_zero(),
            "an earlier round trip without a later one"
        );
        debug_assert!(
            self.min.is_zero() == latest.is_zero(),
            "the shortest round trip is that of no period"
        );
        debug_assert!(
            self.min <= latest,
            "the latest period has a shorter round trip"
        );
        debug_assert!(
            self.base.is_zero() == self.min.is_zero(),
            "a round trip without a shortest one"
        );
        debug_assert!(
            self.longer < MAX_LONGER,
            "the path has become longer unnoticed"
        );
        debug_assert!(self.superfluous <= MAX_BACK_OFF, "too long a back-off");
    }

    /// Returns the estimate of ordinary packets, or of repairs before the first sample.
    fn estimate(&self) -> Estimate {
        if self.packets.srtt.is_zero() {
            self.repairs
        } else {
            self.packets
        }
    }

    /// Returns whether no round trip has been measured, nor is being measured.
    #[inline]
    pub(super) fn is_unknown(&self) -> bool {
        self.min.is_zero() && self.timed.is_none()
    }

    /// Returns the smoothed round-trip time; 0 before the first sample.
    pub(super) fn srtt(&self) -> Span {
        self.estimate().srtt
    }

    /// Returns the mean deviation of the round-trip time.
    pub(super) fn rttvar(&self) -> Span {
        self.estimate().rttvar
    }

    /// Returns the longest expected time to the response to a packet, or to a repair: the mean plus
    /// four deviations, and at least `min`. Without a sample it is [`INITIAL_PTO`].
    pub(super) fn rto(&self, repair: bool, min: Span) -> Span {
        if self.srtt().is_zero() {
            return INITIAL_PTO;
        }
        let Estimate { srtt, rttvar } = if repair && !self.repairs.srtt.is_zero() {
            self.repairs
        } else {
            self.estimate()
        };
        let rto = (srtt + rttvar * 4).max(min);
        rto.doubled(self.superfluous)
    }

    /// Handles an acknowledgement of what had been acknowledged: the peer had received the packet
    /// of the last probe before. If the round trip has become longer than the timeout, every probe
    /// is superfluous, and leaves no round trip to measure. So the timeout doubles until there is
    /// one (Karn's algorithm, RFC 6298, 5.7).
    pub(super) fn on_duplicate(&mut self) {
        if core::mem::take(&mut self.probed) {
            self.superfluous.increment();
            self.superfluous = self.superfluous.min(MAX_BACK_OFF);
        }
    }

    /// Returns whether a packet sent at that time cannot have a response yet.
    pub(super) fn is_too_early(&self, sent: Time, now: Time) -> bool {
        now.since(sent) < self.min * 7 / 8
    }

    /// Notes that `len` packets from `first` on are sent again. The response to the timed packet
    /// could be to either transmission, if it is one of them.
    pub(super) fn retransmitted(&mut self, first: Psn, len: u32) {
        self.timed.take_if(|(psn, _)| psn.since(first) < len);
    }

    /// Handles the acknowledgement of `acknowledged` packets from `first` on. If the timed packet
    /// is one of them, that is a round trip, unless a missing packet has delayed it (`clean`).
    #[inline]
    pub(super) fn on_progress(&mut self, first: Psn, acknowledged: u32, clean: bool, now: Time) {
        let timed = self
            .timed
            .take_if(|(psn, _)| psn.since(first) < acknowledged);
        if let Some((_, sent)) = timed.filter(|_| clean) {
            let time = now.since(sent);
            self.superfluous = 0;
            self.packets.sample(time);
            self.sample_latest(time);
            self.sample_min(time, now);
        }
    }

    /// Takes a round trip into account for the shortest ones.
    pub(super) fn sample_min(&mut self, time: Span, now: Time) {
        let time = time.max(SHORTEST);
        let [before, latest] = &mut self.shortest;
        if latest.is_zero() || now.since(self.period) > MIN_LIFETIME {
            *before = *latest;
            *latest = time;
            self.period = now;
        }
        *latest = time.min(*latest);
        self.min = if before.is_zero() {
            *latest
        } else {
            (*latest).min(*before)
        };
        // The path has become longer if no round trip for a while is near the old ones.
        let longer = !self.base.is_zero() && time >= self.base * 4;
        if longer {
            self.longer.increment();
        } else {
            self.longer = 0;
        }
        if self.base.is_zero() || time < self.base || self.longer >= MAX_LONGER {
            self.base = time;
            self.longer = 0;
        }
    }

    /// Takes a round trip into account that is shorter than the path had been.
    pub(super) fn on_shorter_path(&mut self, time: Span, now: Time) {
        self.sample_min(time, now);
        // Otherwise the next responses would still seem to be too early.
        self.packets.srtt = self.packets.srtt.min(time.max(SHORTEST) * 2);
    }

    /// Takes the time from a repair to its response into account, which may be a round trip.
    pub(super) fn sample_repair(&mut self, time: Span, is_round_trip: bool) {
        self.repairs.sample(time);
        if is_round_trip {
            self.sample_latest(time);
        }
    }

    /// Takes a round trip into account as the latest one, and for the longest recent one.
    fn sample_latest(&mut self, time: Span) {
        self.latest = time;
        let shorter = self.longest.beyond(time);
        self.longest = (self.longest - shorter / 16).max(time);
    }

    /// Takes the time from a repair to its response as a round trip, because a path that loses many
    /// packets leaves no others that no missing packet has delayed.
    pub(super) fn sample_packets(&mut self, time: Span) {
        if !self.packets.srtt.is_zero() {
            self.packets.sample(time);
        }
    }

    /// Returns whether packets have waited in queues on the path lately: for more than a quarter of
    /// the shortest round trip.
    pub(super) fn shows_a_queue(&self) -> bool {
        !self.min.is_zero() && self.latest > self.min + self.min / 4
    }

    /// Returns whether a loss is likely to be that of a full queue: the last round trip was longer
    /// than the mean of the shortest and the longest one.
    pub(super) fn shows_a_full_queue(&self) -> bool {
        let queue = self.latest.beyond(self.min);
        self.shows_a_queue() && queue >= self.longest.beyond(self.min) / 2
    }

    /// Takes the time from a probe to a response as a sample if it is longer than the estimate. (If
    /// the response is to the original transmission, a round trip takes even longer.)
    pub(super) fn sample_probe(&mut self, time: Span) {
        if !self.packets.srtt.is_zero() && time > self.packets.srtt {
            self.packets.sample(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(ns: u64) -> Span {
        Span::from_ns(ns)
    }

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    /// A loss is that of a full queue if the last round trip is nearer to the longest one than to
    /// the shortest one. The longest one is forgotten slowly.
    #[test]
    fn full_queue() {
        let mut rtt = Rtt::default();
        for (time, full) in [
            (100, false),
            (120, false),
            (500, true),
            (280, false),
            (320, true),
        ] {
            rtt.sample_latest(ns(time));
            rtt.sample_min(ns(time), at(0));
            assert_eq!(rtt.shows_a_full_queue(), full, "{time}");
        }
        for _ in 0..30 {
            rtt.sample_latest(ns(200));
        }
        assert!(rtt.shows_a_full_queue());
    }

    /// The timeout doubles with each superfluous probe, until there is a round trip.
    #[test]
    fn backs_off_until_a_round_trip() {
        let mut rtt = Rtt::default();
        rtt.packets.sample(ns(4_000));
        for factor in [1, 2, 4] {
            assert_eq!(rtt.rto(false, ns(0)), ns(12_000) * factor);
            rtt.probed = true;
            rtt.on_duplicate();
            rtt.on_duplicate();
        }
        rtt.timed = Some((Psn::new(5), at(1_000)));
        rtt.on_progress(Psn::new(5), 1, false, at(9_000));
        assert_eq!(rtt.rto(false, ns(0)), ns(8 * 12_000));
        rtt.timed = Some((Psn::new(5), at(1_000)));
        rtt.on_progress(Psn::new(5), 1, true, at(5_000));
        assert!(rtt.rto(false, ns(0)) <= ns(12_000));
    }

    /// Times from repairs to their responses keep the timeout in step if there are no others.
    #[test]
    fn a_path_that_loses_many_packets() {
        let mut rtt = Rtt::default();
        rtt.sample_packets(ns(1_000));
        assert!(rtt.srtt().is_zero());
        rtt.packets.sample(ns(4_000));
        assert_eq!(rtt.rto(false, ns(0)), ns(12_000));
        for _ in 0..30 {
            rtt.sample_packets(ns(1_000));
        }
        assert!(rtt.rto(false, ns(0)) < ns(2_000));
    }
}
