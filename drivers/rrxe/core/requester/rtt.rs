// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Round-trip times, and the timeout computed from them (RFC 6298). Times are in nanoseconds.

use crate::psn::Psn;

/// Minimum probe timeout, in nanoseconds: longer than the scheduling delays of a busy host.
pub const MIN_PTO: u64 = 1_000_000;

/// Probe timeout before a round trip has been measured, in nanoseconds. TCP starts with a second
/// (RFC 6298), but a probe is a single packet and uses up no retry.
const INITIAL_PTO: u64 = 20_000_000;

/// Time after which the shortest round trip is forgotten, in nanoseconds, as in BBR: the route may
/// have changed.
const MIN_LIFETIME: u64 = 10_000_000_000;

/// Consecutive round trips, each four times as long as the shortest one, that show a longer path.
const MAX_LONGER: u8 = 16;

/// Largest exponent of the back-off after superfluous probes.
const MAX_BACK_OFF: u32 = 10;

/// A round-trip time estimate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    /// Smoothed round-trip time; 0 before the first sample.
    srtt: u64,
    /// Mean deviation of the round-trip time.
    rttvar: u64,
}

impl Estimate {
    /// Takes a round trip into account.
    pub(super) fn sample(&mut self, time: u64) {
        // A sample of 0 (a coarse clock) must not look like "no sample".
        let time = time.max(1);
        if self.srtt == 0 {
            self.srtt = time;
            self.rttvar = time >> 1;
            return;
        }
        let off = self.srtt.abs_diff(time);
        self.rttvar = self
            .rttvar
            .saturating_sub(self.rttvar >> 2)
            .saturating_add(off >> 2);
        self.srtt = self
            .srtt
            .saturating_sub(self.srtt >> 3)
            .saturating_add(time >> 3)
            .max(1);
        debug_assert!(self.srtt != 0, "a sample looks like none");
    }
}

/// The round trips of a queue pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    /// Round trips of packets that were sent once.
    packets: Estimate,
    /// Times from a repair to its answer. They are often shorter than a round trip: the window is
    /// full behind a lost packet, and the queues on the path drain.
    pub(super) repairs: Estimate,
    /// The shortest round trip; 0 before the first.
    pub(super) min: u64,
    /// The shortest round trip of each of the last two periods of [`MIN_LIFETIME`]; 0 for none. The
    /// second one began at `period`.
    shortest: [u64; 2],
    period: u64,
    /// The round trip without the queues that this queue pair fills itself, as far as known; 0
    /// before the first.
    pub(super) base: u64,
    /// Consecutive round trips that took four times `base` or longer.
    longer: u8,
    /// The last round trip, or the last time from a repair to its answer.
    latest: u64,
    /// The longest recent round trip. Each shorter one lowers it by a sixteenth of the difference.
    longest: u64,
    /// The packet whose response will be the next sample, and its send time. Its retransmission
    /// clears it, because the response could be to either transmission (Karn's algorithm).
    pub(super) timed: Option<(Psn, u64)>,
    /// Send time of the oldest packet in flight, or of a later one that is already acknowledged.
    pub(super) flight_start: u64,
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
            before == 0 || latest != 0,
            "an earlier round trip without a later one"
        );
        debug_assert!(
            (self.min == 0) == (latest == 0),
            "the shortest round trip is that of no period"
        );
        debug_assert!(
            self.min <= latest,
            "the latest period has a shorter round trip"
        );
        debug_assert!(
            (self.base == 0) == (self.min == 0),
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
        match self.packets.srtt {
            0 => self.repairs,
            _ => self.packets,
        }
    }

    /// Returns whether no round trip has been measured, nor is being measured.
    #[inline]
    pub(super) fn is_unknown(&self) -> bool {
        self.min == 0 && self.timed.is_none()
    }

    /// Returns the smoothed round-trip time; 0 before the first sample.
    pub(super) fn srtt(&self) -> u64 {
        self.estimate().srtt
    }

    /// Returns the longest expected time to the answer to a packet, or to a repair: the mean plus
    /// four deviations, and at least `min` nanoseconds. Without a sample it is [`INITIAL_PTO`].
    pub(super) fn rto(&self, repair: bool, min: u64) -> u64 {
        if self.srtt() == 0 {
            return INITIAL_PTO;
        }
        let Estimate { srtt, rttvar } = if repair && self.repairs.srtt != 0 {
            self.repairs
        } else {
            self.estimate()
        };
        let rto = srtt.saturating_add(rttvar.saturating_mul(4)).max(min);
        rto.saturating_mul(1u64.wrapping_shl(self.superfluous))
    }

    /// Handles an acknowledgement of what had been acknowledged: the peer had received the packet
    /// of the last probe before. If the round trip has become longer than the timeout, every probe
    /// is superfluous, and leaves no round trip to measure. So the timeout doubles until there is
    /// one (Karn's algorithm, RFC 6298, 5.7).
    pub(super) fn on_duplicate(&mut self) {
        if core::mem::take(&mut self.probed) {
            self.superfluous = self.superfluous.saturating_add(1).min(MAX_BACK_OFF);
        }
    }

    /// Returns whether a packet sent at that time cannot have been answered yet.
    pub(super) fn is_too_early(&self, sent: u64, now: u64) -> bool {
        now.saturating_sub(sent) < self.min.saturating_mul(7) >> 3
    }

    /// Notes that `len` packets from `first` on are sent again. The answer to the timed packet
    /// could be to either transmission, if it is one of them.
    pub(super) fn retransmitted(&mut self, first: Psn, len: u32) {
        self.timed.take_if(|(psn, _)| psn.since(first) < len);
    }

    /// Handles the acknowledgement of `acknowledged` packets from `first` on. If the timed packet
    /// is one of them, that is a round trip, unless a missing packet has delayed it (`clean`).
    #[inline]
    pub(super) fn on_progress(&mut self, first: Psn, acknowledged: u32, clean: bool, now: u64) {
        let timed = self
            .timed
            .take_if(|(psn, _)| psn.since(first) < acknowledged);
        if let Some((_, sent)) = timed.filter(|_| clean) {
            let time = now.saturating_sub(sent);
            self.superfluous = 0;
            self.packets.sample(time);
            self.sample_latest(time);
            self.sample_min(time, now);
        }
    }

    /// Takes a round trip into account for the shortest ones.
    pub(super) fn sample_min(&mut self, time: u64, now: u64) {
        // A time of 0 (a coarse clock) must not look like "no sample".
        let time = time.max(1);
        let [before, latest] = &mut self.shortest;
        if *latest == 0 || now.saturating_sub(self.period) > MIN_LIFETIME {
            *before = *latest;
            *latest = time;
            self.period = now;
        }
        *latest = time.min(*latest);
        self.min = match *before {
            0 => *latest,
            before => before.min(*latest),
        };
        // The path has become longer if no round trip for a while is near the old ones.
        let longer = self.base != 0 && time >= self.base.saturating_mul(4);
        self.longer = if longer {
            self.longer.saturating_add(1)
        } else {
            0
        };
        if self.base == 0 || time < self.base || self.longer >= MAX_LONGER {
            self.base = time;
            self.longer = 0;
        }
    }

    /// Takes the time from a repair to its answer into account, which may be a round trip.
    pub(super) fn sample_repair(&mut self, time: u64, is_round_trip: bool) {
        self.repairs.sample(time);
        if is_round_trip {
            self.sample_latest(time);
        }
    }

    /// Takes a round trip into account as the latest one, and for the longest recent one.
    fn sample_latest(&mut self, time: u64) {
        self.latest = time;
        let shorter = self.longest.saturating_sub(time);
        self.longest = self.longest.saturating_sub(shorter >> 4).max(time);
    }

    /// Takes the time from a repair to its answer as a round trip, because a path that loses many
    /// packets leaves no others that no missing packet has delayed.
    pub(super) fn sample_packets(&mut self, time: u64) {
        if self.packets.srtt != 0 {
            self.packets.sample(time);
        }
    }

    /// Returns whether packets have waited in queues on the path lately: for more than a quarter of
    /// the shortest round trip.
    pub(super) fn shows_a_queue(&self) -> bool {
        self.min != 0 && self.latest > self.min.saturating_add(self.min >> 2)
    }

    /// Returns whether a loss is likely to be that of a full queue: the last round trip was longer
    /// than the mean of the shortest and the longest one.
    pub(super) fn shows_a_full_queue(&self) -> bool {
        let queue = self.latest.saturating_sub(self.min);
        self.shows_a_queue() && queue >= self.longest.saturating_sub(self.min) >> 1
    }

    /// Takes the time from a probe to an answer as a sample if it is longer than the estimate. (If
    /// the answer is to the original transmission, a round trip takes even longer.)
    pub(super) fn sample_probe(&mut self, time: u64) {
        if self.packets.srtt != 0 && time > self.packets.srtt {
            self.packets.sample(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            rtt.sample_latest(time);
            rtt.sample_min(time, 0);
            assert_eq!(rtt.shows_a_full_queue(), full, "{time}");
        }
        for _ in 0..30 {
            rtt.sample_latest(200);
        }
        assert!(rtt.shows_a_full_queue());
    }

    /// The timeout doubles with each superfluous probe, until there is a round trip.
    #[test]
    fn backs_off_until_a_round_trip() {
        let mut rtt = Rtt::default();
        rtt.packets.sample(4_000);
        for factor in [1, 2, 4] {
            assert_eq!(rtt.rto(false, 0), factor * 12_000);
            rtt.probed = true;
            rtt.on_duplicate();
            rtt.on_duplicate();
        }
        rtt.timed = Some((Psn::new(5), 1_000));
        rtt.on_progress(Psn::new(5), 1, false, 9_000);
        assert_eq!(rtt.rto(false, 0), 8 * 12_000);
        rtt.timed = Some((Psn::new(5), 1_000));
        rtt.on_progress(Psn::new(5), 1, true, 5_000);
        assert!(rtt.rto(false, 0) <= 12_000);
    }

    /// Times from repairs to their answers keep the timeout in step if there are no others.
    #[test]
    fn a_path_that_loses_many_packets() {
        let mut rtt = Rtt::default();
        rtt.sample_packets(1_000);
        assert_eq!(rtt.srtt(), 0);
        rtt.packets.sample(4_000);
        assert_eq!(rtt.rto(false, 0), 12_000);
        for _ in 0..30 {
            rtt.sample_packets(1_000);
        }
        assert!(rtt.rto(false, 0) < 2_000);
    }
}
