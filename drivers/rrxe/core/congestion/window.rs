// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The limit of packets in flight, and its adaptation to the path.
//!
//! To a peer that keeps out-of-order packets, a loss costs only the lost packets. The window starts
//! with slow start (RFC 5681), which a queue on the path slows down to a quarter (HyStart++, RFC
//! 9406), and grows up to [`WINDOW`] packets, or twice the measured capacity of the path. A loss is
//! a sign of congestion if the last round trip shows a full queue on the path, or if more than an
//! eighth of the packets is lost. It then reduces the window once for each window, to 0.7 of its
//! size as in CUBIC (RFC 9438), but not below 1.5 times what the path delivers in its shortest
//! round trip (TCP Westwood): a path that loses packets for another reason stays full. After a
//! reduction the window grows by one packet for each window (RFC 5681), and its packets are paced
//! (RFC 9002, 7.7). Without losses nothing reduces it.
//!
//! A peer that drops out-of-order packets causes the retransmission of everything after a loss. Its
//! window is at most twice the measured capacity, is halved by a loss, and grows with the
//! acknowledgements between losses.

use super::{Acknowledgement, PacketLoss};
use crate::lengths::times;
use crate::psn::Psn;
use crate::{Increment, Minus, Mtu, Span, Time};

/// Limit of packets in flight, unless the path holds more.
pub const WINDOW: u32 = 256;

/// Largest limit of packets in flight.
pub const MAX_WINDOW: u32 = 2048;

/// Payload of the first flight in bytes.
const INITIAL_BYTES: u32 = 65_536;

/// Smallest number of packets of the first flight.
const MIN_INITIAL: u32 = 16;

/// Smallest window after losses, to a peer that keeps out-of-order packets: the packet whose
/// acknowledgement is on its way, and three that let the peer report its loss.
const MIN_SHARE: u32 = 4;

/// Largest number of packets between two that ask for an acknowledgement, in a small window.
const MAX_ACKREQ_DISTANCE: u32 = 16;

/// Smallest window for a peer that drops out-of-order packets: two messages of 64 KiB, one of which
/// waits for its acknowledgement while the other is in flight.
const MIN_WINDOW: u32 = 32;

/// Packets without a loss after which the window for such a peer grows by half of the acknowledged
/// packets instead of an eighth.
const LOSS_FREE: u32 = 256;

/// Minimum time of a measurement for such a peer: on a short path a burst lasts
/// several round trips.
const MIN_MEASUREMENT: Span = Span::from_us(2_000);

/// Counts of the lost and the acknowledged packets, of the last few hundred.
#[derive(Clone, Copy, Debug)]
struct LossRate {
    lost: u32,
    acknowledged: u32,
}

impl Default for LossRate {
    /// Returns counts that a few losses in the first packets do not turn into a high rate.
    fn default() -> LossRate {
        LossRate {
            lost: 0,
            acknowledged: 64,
        }
    }
}

impl LossRate {
    fn on_ack(&mut self, packets: u32) {
        self.acknowledged = self.acknowledged.saturating_add(packets);
        if self.acknowledged > WINDOW {
            self.acknowledged >>= 1;
            self.lost >>= 1;
        }
    }

    fn on_loss(&mut self, packets: u32) {
        self.lost = self.lost.saturating_add(packets);
    }

    /// Returns whether more than an eighth of the packets is lost.
    fn is_high(&self) -> bool {
        self.lost > self.acknowledged / 8
    }
}

/// A reduction of the window.
#[derive(Clone, Copy, Debug)]
struct Reduction {
    /// The missing packet.
    una: Psn,
    /// One beyond the last packet sent before. The losses of earlier packets have the same cause.
    until: Psn,
    /// The size and the threshold before, unless the packet is known to be lost.
    before: Option<(u32, u32)>,
}

/// The window of a requester, in packets.
#[derive(Clone, Debug)]
pub struct Window {
    size: u32,
    /// The peer drops out-of-order packets.
    drops: bool,
    /// Largest size while there are no losses.
    ceiling: u32,
    /// Size from which on the window grows by one packet for each window: that after the last
    /// reduction.
    threshold: u32,
    /// Acknowledged packets that have not enlarged the window yet.
    acknowledged: u32,
    loss_rate: LossRate,
    reduction: Option<Reduction>,
    /// Packets that were sent before the last reduction are not acknowledged yet.
    is_recovering: bool,
    /// Packets that the path delivers in the shortest round trip, as last measured.
    delivered: u32,
    /// Measured capacity of the path: the largest such number.
    capacity: u32,
    /// Shortest round trip at the time of that measurement.
    round_trip: Span,
    /// Packets acknowledged since the last loss.
    loss_free: u32,
    /// Start of the count of acknowledged packets that measures the capacity.
    count_since: Time,
    count_from: Psn,
    /// A packet was lost: packets that had arrived earlier may be counted only now.
    disturbed: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            size: MIN_INITIAL,
            drops: false,
            ceiling: WINDOW,
            threshold: u32::MAX,
            acknowledged: 0,
            loss_rate: LossRate::default(),
            reduction: None,
            is_recovering: false,
            delivered: 0,
            capacity: 0,
            round_trip: Span::ZERO,
            loss_free: 0,
            count_since: Time::default(),
            count_from: Psn::default(),
            disturbed: false,
        }
    }
}

impl Window {
    /// Returns the limit of packets in flight.
    #[inline]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the limit of packets in flight while a lost packet is repaired: twice the window, or
    /// 1.5 times if a queue has overflowed, because the packets that this permits form a burst.
    #[inline]
    pub(super) fn beyond_loss(&self) -> u32 {
        let more = if self.is_recovering {
            self.size >> 1
        } else {
            self.size
        };
        self.enlarged(more, MAX_WINDOW)
    }

    /// Returns the size with `more` packets, up to a maximum.
    #[inline]
    fn enlarged(&self, more: u32, max: u32) -> u32 {
        self.size.saturating_add(more).min(max)
    }

    /// Sets the size of the first flight: 64 KiB, or as for any peer if the peer is known to drop
    /// out-of-order packets.
    pub(super) fn start(&mut self, mtu: Mtu) {
        let packets = INITIAL_BYTES.checked_div(mtu.bytes());
        let packets = packets.unwrap_or(MIN_INITIAL);
        self.size = if self.drops {
            WINDOW
        } else {
            packets.clamp(MIN_INITIAL, WINDOW)
        };
    }

    /// Returns the number of packets after which one asks for an acknowledgement: a quarter of the
    /// window, so that acknowledgements are always on their way. In a window of less than 64
    /// packets it is up to a third of the window, because acknowledgements cost the peer time. A
    /// peer that drops out-of-order packets reports a gap at once, so even fewer do.
    #[inline]
    pub(super) fn ackreq_after(&self) -> u32 {
        debug_assert!(self.size != 0, "the window is closed");
        let few = if self.drops {
            MAX_ACKREQ_DISTANCE
        } else {
            (self.size / 3).clamp(1, MAX_ACKREQ_DISTANCE)
        };
        (self.size >> 2).max(few)
    }

    /// Returns whether packets are spread over the round trip: a queue on the path has overflowed,
    /// and a burst might overflow it again.
    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.threshold != u32::MAX && !self.drops
    }

    /// Returns the time between two packets, if they are paced: a window takes four
    /// fifths of a round trip (RFC 9002, 7.7).
    #[inline]
    pub(super) fn interval(&self, srtt: Span) -> Option<Span> {
        self.is_paced().then(|| srtt * 4 / 5 / self.size)
    }

    /// Handles an acknowledgement.
    #[inline]
    pub(super) fn on_ack(&mut self, ack: &Acknowledgement) {
        let recovers = |reduction: Reduction| reduction.until.is_after(ack.una);
        self.is_recovering &= self.reduction.is_some_and(recovers);
        if self.drops {
            self.grow_dropping(ack.packets);
        } else {
            self.grow(ack.packets, ack.queues);
        }
        if ack.restarts {
            self.count_from(ack.una, ack.now, true);
        } else {
            self.measure(ack);
        }
        self.assert_invariants();
    }

    /// Asserts what holds between two events.
    #[inline]
    fn assert_invariants(&self) {
        debug_assert!(
            (MIN_SHARE..=MAX_WINDOW).contains(&self.size),
            "the window is out of bounds"
        );
        debug_assert!(
            (WINDOW..=MAX_WINDOW).contains(&self.ceiling),
            "the ceiling of the window is out of bounds"
        );
        debug_assert!(
            self.threshold >= MIN_SHARE,
            "the threshold is below every window"
        );
        debug_assert!(
            self.capacity <= MAX_WINDOW / 2,
            "the measured capacity is out of bounds"
        );
        debug_assert!(
            self.delivered <= MAX_WINDOW / 2,
            "the measured delivery is out of bounds"
        );
        debug_assert!(
            !self.is_recovering || self.reduction.is_some(),
            "a recovery without a reduction"
        );
    }

    /// Applies a change. Returns whether it reduces the window: its size, or the size up to which
    /// it grows quickly.
    pub(super) fn is_reduced_by(&mut self, change: impl FnOnce(&mut Window)) -> bool {
        let (size, threshold) = (self.size, self.threshold);
        change(self);
        self.size < size || self.threshold < threshold
    }

    /// Handles a loss.
    pub(super) fn on_loss(&mut self, loss: &PacketLoss) {
        if self.drops {
            self.loss_free = 0;
            self.capacity = self.capacity.minus(self.capacity >> 4);
            self.size = (self.size >> 1).max(MIN_WINDOW).max(self.capacity);
            return;
        }
        self.loss_rate.on_loss(loss.packets);
        let same = |reduction: Reduction| reduction.until.is_after(loss.una);
        let congested = loss.full_queue || self.loss_rate.is_high();
        if !congested || self.reduction.is_some_and(same) {
            return;
        }
        self.reduction = Some(Reduction {
            una: loss.una,
            until: loss.max,
            before: Some((self.size, self.threshold)),
        });
        let reduced = (times(7, self.size) / 10) as u32;
        let delivered = self.delivered.saturating_add(self.delivered >> 1);
        self.size = reduced.max(delivered.min(self.size)).max(MIN_SHARE);
        self.threshold = self.size;
        self.acknowledged = 0;
        self.is_recovering = true;
        self.assert_invariants();
    }

    /// Takes the reduction for this packet back.
    pub(super) fn on_late(&mut self, una: Psn) {
        let reduction = self.reduction.as_mut().filter(|one| one.una == una);
        if let Some((size, threshold)) = reduction.and_then(|one| one.before.take()) {
            self.size = self.size.max(size);
            self.threshold = self.threshold.max(threshold);
            self.is_recovering = false;
            self.assert_invariants();
        }
    }

    /// Shrinks the window to that of a new connection.
    pub(super) fn on_timeout(&mut self) {
        if !self.drops {
            self.threshold = (self.size >> 1).max(MIN_SHARE);
            self.size = self.size.min(MIN_INITIAL);
            self.reduction = None;
            self.is_recovering = false;
        }
    }

    /// Notes whether the peer keeps or drops out-of-order packets.
    pub(super) fn on_peer(&mut self, drops: bool) {
        match (self.drops, drops) {
            (false, true) => {
                // With a large window, bursts inflated the measured capacity.
                self.capacity >>= 1;
                self.size = MIN_WINDOW.max(self.capacity);
            }
            (true, false) => {
                self.ceiling = WINDOW;
                self.threshold = u32::MAX;
            }
            _ => {}
        }
        self.drops = drops;
    }

    /// Scales the measured capacity, which included queued packets, to a newly measured shortest
    /// round trip.
    pub(super) fn on_drained(&mut self, time: Span) {
        let shorter = time.min(self.round_trip);
        let capacity = within(self.capacity, self.round_trip, shorter);
        debug_assert!(
            capacity <= self.capacity,
            "a shorter round trip raises the capacity"
        );
        self.capacity = capacity;
        self.round_trip = shorter;
    }

    /// Grows the window by the acknowledged packets, to a peer that keeps out-of-order packets.
    #[inline]
    fn grow(&mut self, packets: u32, queues: bool) {
        debug_assert!(packets != 0, "an acknowledgement of no packet");
        self.loss_rate.on_ack(packets);
        let acknowledged = self.acknowledged.saturating_add(packets);
        if self.size < self.threshold {
            let first = self.threshold == u32::MAX;
            let more = if queues && first {
                self.acknowledged = acknowledged & 3;
                acknowledged >> 2
            } else {
                packets
            };
            self.size = self.enlarged(more, self.threshold);
        } else {
            self.acknowledged = acknowledged;
            if acknowledged >= self.size {
                self.acknowledged = acknowledged.minus(self.size);
                self.size.increment();
            }
        }
        self.size = self.size.min(self.ceiling);
    }

    /// Grows the window by the acknowledged packets, to a peer that drops out-of-order packets.
    fn grow_dropping(&mut self, packets: u32) {
        self.loss_free = self.loss_free.saturating_add(packets);
        let more = if self.loss_free > LOSS_FREE {
            packets >> 1
        } else {
            packets.div_ceil(8)
        };
        // On a short path, whose capacity is about one burst, the measured value may be just a
        // burst.
        let twice = self.capacity << 1;
        let burst = (twice << 1).saturating_sub(MIN_WINDOW << 1);
        let max = twice.min(burst).max(MIN_WINDOW).max(self.size);
        self.size = self.enlarged(more, max);
    }

    /// Starts a count of acknowledged packets.
    #[inline]
    pub(super) fn count_from(&mut self, una: Psn, now: Time, disturbed: bool) {
        self.count_since = now;
        self.count_from = una;
        self.disturbed = disturbed;
    }

    /// Measures the packets that the path delivers in the shortest round trip, as an average over
    /// two round trips, or four if a packet was missing: packets that had arrived earlier matter
    /// little then.
    ///
    /// The window may grow to twice that. (The second half is for packets in queues, so that they
    /// never run empty.) To a peer that drops out-of-order packets it grows to that only.
    #[inline]
    fn measure(&mut self, ack: &Acknowledgement) {
        let time = ack.now.since(self.count_since);
        if time.is_zero() {
            // These were acknowledged before the count began.
            self.count_from = ack.una;
            return;
        }
        let round_trips = if self.disturbed { 4 } else { 2 };
        let least = if self.drops {
            (ack.min_rtt * round_trips).max(MIN_MEASUREMENT)
        } else {
            ack.srtt * round_trips
        };
        if ack.min_rtt.is_zero() || time < least {
            return;
        }
        let acknowledged = ack.una.since(self.count_from);
        let measured = within(acknowledged, time, ack.min_rtt);
        // Times in which a missing packet delayed acknowledgements make it look smaller.
        let lower = self.delivered.div_ceil(8);
        self.delivered = measured.max(self.delivered.minus(lower));
        if measured >= self.capacity {
            self.capacity = measured;
            self.round_trip = ack.min_rtt;
        }
        if self.drops {
            self.size = self.size.max(measured);
        } else {
            let twice = within(acknowledged, time, ack.base_rtt) << 1;
            self.ceiling = self.ceiling.max(twice);
        }
        self.count_from(ack.una, ack.now, ack.disturbed);
    }
}

/// Returns how many packets are in `part` of a time, if the `whole` time has `packets`: at most
/// half of the largest window.
#[inline]
fn within(packets: u32, whole: Span, part: Span) -> u32 {
    let packets = u64::from(packets).saturating_mul(part.ns());
    let packets = packets.checked_div(whole.ns()).unwrap_or(0);
    packets.min(u64::from(MAX_WINDOW >> 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    /// Returns a window of this size, on a path that delivers this number of packets in a round
    /// trip.
    fn window(size: u32, delivered: u32) -> Window {
        Window {
            size,
            delivered,
            ..Window::default()
        }
    }

    /// Loses the packet `una`, after the packets before `max` were sent. Returns whether that
    /// counts as a reduction of the window.
    fn lose(window: &mut Window, una: u32, max: u32, packets: u32, full_queue: bool) -> bool {
        let loss = PacketLoss {
            una: psn(una),
            max: psn(max),
            packets,
            full_queue,
        };
        window.is_reduced_by(|window| window.on_loss(&loss))
    }

    /// A loss behind a queue reduces the window to 0.7, but neither below 1.5 times the packets
    /// that the path delivers nor below four packets, and never enlarges it.
    #[test]
    fn reduction() {
        for (size, delivered, reduced) in [
            (200, 0, 140),
            (200, 93, 140),
            (200, 100, 150),
            (200, 134, 200),
            (200, 1000, 200),
            (5, 0, 4),
            (4, 0, 4),
        ] {
            let mut window = window(size, delivered);
            // At least, it ends slow start.
            assert!(lose(&mut window, 10, 20, 1, true));
            assert_eq!(window.size, reduced, "{size} {delivered}");
            assert_eq!(window.threshold, reduced);
            let again = lose(&mut window, 30, 40, 1, true);
            assert_eq!(again, window.size < reduced, "{size} {delivered}");
        }
    }

    /// No rule reduces the window below four packets.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the window is out of bounds")]
    fn window_out_of_bounds() {
        window(MIN_SHARE - 1, 0).assert_invariants();
    }

    /// Losses of packets that were sent before a reduction have the same cause, and count with it.
    #[test]
    fn reduced_once_for_each_window() {
        let mut window = window(200, 0);
        for (una, size, counts) in [
            (10, 140, true),
            (11, 140, false),
            (109, 140, false),
            (110, 98, true),
        ] {
            assert_eq!(lose(&mut window, una, una + 100, 1, true), counts);
            assert_eq!(window.size, size, "at {una}");
        }
    }

    /// A timeout counts as a reduction unless the window is that of a new connection already.
    #[test]
    fn reduced_by_a_timeout() {
        for (size, threshold, counts) in [(200, u32::MAX, true), (16, 8, false)] {
            let mut window = window(size, 0);
            window.threshold = threshold;
            assert_eq!(window.is_reduced_by(Window::on_timeout), counts);
            assert_eq!((window.size, window.threshold), (16, size / 2));
        }
    }

    /// To a peer that drops out-of-order packets, each loss counts that halves the window.
    #[test]
    fn reduced_for_a_peer_that_drops() {
        let mut window = window(200, 0);
        assert!(window.is_reduced_by(|window| window.on_peer(true)));
        assert_eq!(window.size, MIN_WINDOW);
        window.size = 100;
        assert!(!window.is_reduced_by(|window| window.on_peer(true)));
        for (size, counts) in [(50, true), (32, true), (32, false)] {
            assert_eq!(lose(&mut window, 10, 20, 1, true), counts);
            assert_eq!(window.size, size);
        }
        assert!(!window.is_reduced_by(|window| window.on_peer(false)));
    }

    /// Without a queue, only the loss of more than one packet in eight reduces the window.
    #[test]
    fn many_losses() {
        let mut window = window(200, 0);
        window.loss_rate.acknowledged = 128;
        for (lost, size) in [(1, 200), (15, 200), (1, 140)] {
            assert_eq!(lose(&mut window, 10, 20, lost, false), size == 140);
            assert_eq!(window.size, size);
        }
    }

    /// The last reduction is taken back if the packet was late, and only that one.
    #[test]
    fn undo() {
        let mut window = window(200, 0);
        lose(&mut window, 10, 20, 1, true);
        window.on_late(psn(9));
        assert_eq!(window.size, 140);
        window.on_late(psn(10));
        assert_eq!((window.size, window.threshold), (200, u32::MAX));
        lose(&mut window, 30, 40, 1, true);
        window.on_late(psn(10));
        assert_eq!(window.size, 140);
    }

    /// The window grows by the acknowledged packets up to the threshold, and then by one packet for
    /// each window, up to the ceiling.
    #[test]
    fn growth() {
        let mut window = window(20, 0);
        window.threshold = 30;
        for (acknowledged, size) in [(8, 28), (8, 30), (29, 30), (1, 31), (31, 32)] {
            window.grow(acknowledged, false);
            assert_eq!(window.size, size);
        }
        window.threshold = u32::MAX;
        window.acknowledged = 0;
        window.grow(8, true);
        assert_eq!(window.size, 34);
        for size in [34, 34, 34, 35, 35] {
            window.grow(1, true);
            assert_eq!(window.size, size);
        }
        window.grow(1000, false);
        assert_eq!(window.size, WINDOW);
    }

    /// Small windows ask for an acknowledgement at least three times, large ones four times.
    #[test]
    fn acknowledgement_requests() {
        for (size, after) in [(1, 1), (4, 1), (16, 5), (32, 10), (64, 16), (256, 64)] {
            assert_eq!(window(size, 0).ackreq_after(), after);
        }
    }
}
