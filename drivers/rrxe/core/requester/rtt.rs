// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Round-trip times, and the timeout computed from them (RFC 6298). Times are in nanoseconds.

use crate::psn::Psn;

/// Minimum probe timeout, in nanoseconds: longer than the scheduling delays of a busy host.
pub const MIN_PTO: u64 = 1_000_000;

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
    /// The packet whose answer will be the next sample, and its send time. A retransmission clears
    /// it, because the answer could be to either transmission (Karn's algorithm).
    pub(super) timed: Option<(Psn, u64)>,
    /// Send time of the oldest packet in flight, or of a later one that is already acknowledged.
    pub(super) flight_start: u64,
}

impl Rtt {
    /// Returns the estimate of ordinary packets, or of repairs before the first sample.
    fn estimate(&self) -> Estimate {
        match self.packets.srtt {
            0 => self.repairs,
            _ => self.packets,
        }
    }

    /// Returns the smoothed round-trip time; 0 before the first sample.
    pub(super) fn srtt(&self) -> u64 {
        self.estimate().srtt
    }

    /// Returns the longest expected time to the answer to a packet, or to a repair: the mean plus
    /// four deviations, and at least [`MIN_PTO`].
    pub(super) fn rto(&self, repair: bool) -> u64 {
        let Estimate { srtt, rttvar } = if repair && self.repairs.srtt != 0 {
            self.repairs
        } else {
            self.estimate()
        };
        srtt.saturating_add(rttvar.saturating_mul(4)).max(MIN_PTO)
    }

    /// Returns whether a packet sent at that time cannot have been answered yet.
    pub(super) fn is_too_early(&self, sent: u64, now: u64) -> bool {
        now.saturating_sub(sent) < self.min >> 1
    }

    /// Takes the pending sample if its packet is one of the `acknowledged` ones from `first` on.
    #[inline]
    pub(super) fn on_progress(&mut self, first: Psn, acknowledged: u32, now: u64) {
        if let Some((_, sent)) = self
            .timed
            .take_if(|(psn, _)| psn.since(first) < acknowledged)
        {
            let time = now.saturating_sub(sent);
            self.packets.sample(time);
            self.min = match self.min {
                0 => time,
                min => min.min(time),
            };
        }
    }

    /// Takes the time from a probe to an answer as a sample if it is longer than the estimate. (If
    /// the answer is to the original transmission, a round trip takes even longer.)
    pub(super) fn sample_probe(&mut self, time: u64) {
        if self.packets.srtt != 0 && time > self.packets.srtt {
            self.packets.sample(time);
        }
    }
}
