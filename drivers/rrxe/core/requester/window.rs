// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limit of packets in flight, and its adaptation to the path.
//!
//! If the peer keeps out-of-order packets, a loss costs only the lost packets, so the window is
//! twice the measured capacity of the path. A peer that drops them causes the retransmission of
//! everything after a loss. Its window is at most twice the measured capacity, is halved by a loss,
//! and grows with the acknowledgements between losses.

use crate::psn::Psn;

/// Initial limit of packets in flight, until it adapts to the path. A READ or atomic request counts
/// as one packet, whatever the size of its answer.
pub const WINDOW: u32 = 256;

/// Largest limit of packets in flight.
pub const MAX_WINDOW: u32 = 2048;

/// Smallest window for a peer that drops out-of-order packets: two messages of 64 KiB, one of which
/// waits for its acknowledgement while the other is in flight.
const MIN_WINDOW: u32 = 32;

/// Packets without a loss after which the window for such a peer grows by half of the acknowledged
/// packets instead of an eighth.
const LOSS_FREE: u32 = 256;

/// Minimum time of a measurement in nanoseconds: on a short path a burst lasts several round trips.
const MIN_MEASUREMENT: u64 = 2_000_000;

/// The window of a requester, in packets.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) size: u32,
    /// Measured capacity of the path, in packets.
    capacity: u32,
    /// Shortest round trip at the time of that measurement, in nanoseconds.
    round_trip: u64,
    /// Packets acknowledged since the last loss.
    loss_free: u32,
    /// Start of the count of acknowledged packets that measures the capacity, in nanoseconds.
    count_since: u64,
    count_from: Psn,
    /// A packet was lost: packets that had arrived earlier may be counted only now.
    disturbed: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            size: WINDOW,
            capacity: 0,
            round_trip: 0,
            loss_free: 0,
            count_since: 0,
            count_from: Psn::default(),
            disturbed: false,
        }
    }
}

impl Window {
    /// Returns the limit of packets in flight. It doubles while the peer keeps packets beyond a
    /// lost one, which have left the path.
    #[inline]
    pub(super) fn limit(&self, kept_beyond: bool) -> u32 {
        if kept_beyond {
            self.size.saturating_mul(2).min(MAX_WINDOW)
        } else {
            self.size
        }
    }

    /// Returns the number of packets after which one asks for an acknowledgement: few enough that
    /// acknowledgements are always on their way, but not one every few packets.
    #[inline]
    pub(super) fn ackreq_after(&self) -> u32 {
        (self.size >> 2).max(MIN_WINDOW >> 1)
    }

    /// Scales the measured capacity, which included queued packets, to a newly measured shortest
    /// round trip, in nanoseconds.
    pub(super) fn on_queues_drained(&mut self, min_rtt: u64) {
        let shorter = min_rtt.min(self.round_trip);
        let capacity = u64::from(self.capacity).saturating_mul(shorter);
        // The result is at most the old value.
        self.capacity = capacity.checked_div(self.round_trip).unwrap_or(0) as u32;
        self.round_trip = shorter;
    }

    /// Shrinks the window: the peer turned out to drop out-of-order packets.
    pub(super) fn on_peer_drops(&mut self) {
        // With a large window, bursts inflated the measured capacity.
        self.capacity >>= 1;
        self.size = MIN_WINDOW.max(self.capacity);
    }

    /// Halves the window after a loss, for a peer that drops out-of-order packets.
    pub(super) fn on_loss(&mut self) {
        self.loss_free = 0;
        self.capacity = self.capacity.saturating_sub(self.capacity >> 4);
        self.size = (self.size >> 1).max(MIN_WINDOW).max(self.capacity);
    }

    /// Grows the window by the acknowledged packets, for a peer that drops out-of-order packets.
    pub(super) fn grow(&mut self, acknowledged: u32) {
        self.loss_free = self.loss_free.saturating_add(acknowledged);
        let more = if self.loss_free > LOSS_FREE {
            acknowledged >> 1
        } else {
            acknowledged.saturating_add(7) >> 3
        };
        // On a short path, whose capacity is about one burst, the measured value may be just a
        // burst.
        let twice = self.capacity.saturating_mul(2);
        let burst = (twice.saturating_mul(2)).saturating_sub(MIN_WINDOW << 1);
        let max = twice.min(burst).max(MIN_WINDOW).max(self.size);
        self.size = self.size.saturating_add(more).min(max);
    }

    /// Starts a count of acknowledged packets.
    #[inline]
    pub(super) fn count_from(&mut self, una: Psn, now: u64, disturbed: bool) {
        self.count_since = now;
        self.count_from = una;
        self.disturbed = disturbed;
    }

    /// Notes that everything before `una` has been acknowledged. `min_rtt` is the shortest round
    /// trip, 0 if unknown.
    ///
    /// The window grows to twice the capacity of the path: twice the average number of packets
    /// acknowledged within the shortest round trip. (The second half is for packets in queues, so
    /// that they never run empty.) For a peer that drops out-of-order packets it grows to the
    /// capacity only.
    pub(super) fn count(&mut self, una: Psn, now: u64, min_rtt: u64, disturbed: bool, drops: bool) {
        let time = now.saturating_sub(self.count_since);
        if time == 0 {
            // These were acknowledged before the count began.
            self.count_from = una;
            return;
        }
        // One round trip may be a burst. Over a longer time, packets that had arrived earlier
        // matter little.
        let round_trips = if self.disturbed { 4 } else { 2 };
        let steady = if drops { MIN_MEASUREMENT } else { 0 };
        if min_rtt == 0 || time < min_rtt.saturating_mul(round_trips).max(steady) {
            return;
        }
        let acknowledged = u64::from(una.since(self.count_from)).saturating_mul(min_rtt);
        let measured = acknowledged.checked_div(time).unwrap_or(0);
        let measured = measured.min(u64::from(MAX_WINDOW >> 1)) as u32;
        if measured >= self.capacity {
            self.capacity = measured;
            self.round_trip = min_rtt;
        }
        let size = measured.saturating_mul(if drops { 1 } else { 2 });
        self.size = self.size.max(size);
        self.count_from(una, now, disturbed);
    }
}
