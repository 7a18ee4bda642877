// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The reaction point: the rate of a sender that has been notified of congestion.
//!
//! The algorithm is that of DCQCN (Zhu and others, "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015), without its byte counter. There is no limit until the first
//! notification. The limit then starts at the measured rate, because software does not know the
//! line rate. Each query computes the rate for the given time.
//!
//! A [`RateLimiter`] also paces the window of a requester after a queue has overflowed.

use crate::lengths::{times, total};
use crate::{Increment, Minus, Span, Time};

/// Minimum rate in bytes per second: 10 Mbit/s. At this rate a packet of 4096 bytes leaves every
/// 3.3 ms, often enough for the usual timeouts of a peer (67 ms).
pub const MIN_RATE: u64 = 10_000_000 / 8;

/// Rate at which the limit is removed, in bytes per second: 100 Gbit/s.
pub const MAX_RATE: u64 = 100_000_000_000 / 8;

/// Minimum time between two reductions of the rate (DCQCN's notification interval).
pub const REDUCE_INTERVAL: Span = Span::from_us(50);

/// Interval without a notification after which the congestion estimate falls (DCQCN's timer).
pub const ALPHA_INTERVAL: Span = Span::from_us(55);

/// Interval without a notification after which the rate rises by a step (the hardware default of
/// `rpg_time_reset`).
pub const RAISE_INTERVAL: Span = Span::from_us(300);

/// Number of steps that halve the distance to the target rate (fast recovery), and then of steps
/// that add [`ADDITIVE_INCREASE`] (DCQCN's F).
pub const RECOVERY_STEPS: u32 = 5;

/// Increase of the target rate by an additive step, in bytes per second: 5 Mbit/s (the hardware
/// default of `rpg_ai_rate`).
pub const ADDITIVE_INCREASE: u64 = 5_000_000 / 8;

/// Increase of the target rate by the first hyper-increase step, in bytes per second: 50 Mbit/s
/// (`rpg_hai_rate`). The n-th step adds n times that, which ends any limit after 25 ms.
pub const HYPER_INCREASE: u64 = 50_000_000 / 8;

/// Burst size as time at the current rate. One packet may always leave.
pub const BURST: Span = Span::from_us(200);

/// Maximum interval between acknowledgement requests of a limited sender: at a low rate, a
/// quarter of a window takes longer than a timeout.
const ACK_INTERVAL: Span = Span::from_us(1_000);

/// Log2 of the measurement window in nanoseconds: 2^20 ns are about a millisecond.
const WINDOW_SHIFT: u32 = 20;

/// Bytes of headers in front of a packet: Ethernet, IPv4, UDP.
const OVERHEAD: usize = 14 + 20 + 8;

/// A congestion estimate of 1.0.
const ONE: u64 = 1 << 16;

/// Log2 of the inverse weight of a new observation in the estimate: 1/256 (DCQCN's g).
const WEIGHT_SHIFT: u32 = 8;

/// The rate after a notification of congestion, until it has recovered (DCQCN).
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    /// Current rate in bytes per second.
    current: u64,
    /// Target rate in bytes per second.
    target: u64,
    /// Congestion estimate: 0 to [`ONE`].
    alpha: u64,
    /// Steps taken since the last notification.
    steps: u32,
    /// Time of the last reduction of the rate.
    reduced: Time,
    /// Start of the current [`ALPHA_INTERVAL`].
    alpha_from: Time,
    /// Start of the current [`RAISE_INTERVAL`].
    raise_from: Time,
    /// Nanoseconds per byte, times 2^16.
    ns_per_byte: u64,
    /// Time of the last acknowledgement request.
    asked: Time,
}

/// Rate limiter of one half of a queue pair, which also paces the packets of a window. By default
/// there is neither a limit nor pacing.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimiter {
    window: u64,
    window_bytes: u64,
    /// Bytes per second in earlier windows.
    measured: u64,
    limit: Option<Limit>,
    /// Mean time between paced packets; zero for no pacing.
    interval: Span,
    /// Time at which the packets handed over would have left at exactly the permitted rate.
    paid_until: Time,
    /// When to poll again for a delayed packet; `None` if no packet is delayed.
    pub wakeup: Option<Time>,
}

impl RateLimiter {
    /// Admits a packet, or notes that it is delayed. Returns whether it may leave now. If not,
    /// [`RateLimiter::wakeup`] says when.
    #[inline]
    pub fn admit(&mut self, now: Time) -> bool {
        self.wakeup = None;
        self.advance(now);
        if self.is_unlimited() {
            return true;
        }
        // Waking up after half of the burst is paid for takes fewer timers, and is never too late.
        let waits = self.paid_until >= now + BURST;
        self.wakeup = waits.then(|| self.paid_until - BURST / 2);
        debug_assert!(
            self.wakeup.is_none_or(|at| at > now),
            "a delayed packet may leave now"
        );
        !waits
    }

    /// Returns whether there is neither a rate limit nor pacing.
    #[inline]
    pub fn is_unlimited(&self) -> bool {
        self.limit.is_none() && self.interval.is_zero()
    }

    /// Returns the number of packets that may leave at once, if one may leave.
    #[inline]
    pub fn burst(&self, now: Time) -> u32 {
        match self.limit {
            Some(_) => 1,
            None => {
                let credit = (now + BURST).since(self.paid_until);
                let packets = credit.checked_div(self.interval);
                packets.map_or(u32::MAX, |packets| packets.clamp(1, 1 << 16) as u32)
            }
        }
    }

    /// Sets the mean time between packets; zero ends pacing.
    #[inline]
    pub fn pace(&mut self, interval: Span) {
        self.interval = interval;
    }

    /// Accounts for `packets` packets handed over, each with a UDP payload of `len` bytes.
    #[inline]
    pub fn sent(&mut self, now: Time, len: u32, packets: u32) {
        let bytes = times(packets, total([len as usize, OVERHEAD]) as u32);
        let window = now.ns() >> WINDOW_SHIFT;
        if window != self.window {
            self.measured = self.measured_at(window);
            self.window = window;
            self.window_bytes = 0;
        }
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        if !self.is_unlimited() {
            let limit = self.limit.map_or(0, |limit| limit.ns_per_byte);
            let time = Span::from_ns(bytes.saturating_mul(limit) >> 16);
            let time = time.max(self.interval * packets);
            self.paid_until = self.paid_until.max(now) + time;
        }
    }

    /// Handles a notification: lowers the rate. Returns whether it did, which it does neither twice
    /// within [`REDUCE_INTERVAL`] nor below [`MIN_RATE`].
    pub fn on_cnp(&mut self, now: Time) -> bool {
        let measured = self.measured_at(now.ns() >> WINDOW_SHIFT);
        if measured == 0 {
            // This sender did not cause the congestion.
            return false;
        }
        self.advance(now);
        let mut limit = match self.limit {
            Some(limit) if now.since(limit.reduced) < REDUCE_INTERVAL => {
                return false;
            }
            Some(limit) => limit,
            None => Limit {
                current: measured,
                alpha: ONE,
                asked: now,
                ..Limit::default()
            },
        };
        // A limit far above the sent rate has no effect, but a pause must not lower it too far.
        limit.current = limit.current.min((measured << 1).max(limit.current >> 1));
        if limit.current <= MIN_RATE && self.limit.is_none() {
            // The sender is already below the minimum rate.
            return false;
        }
        // Several notifications in a row must not lower the rate to which fast recovery returns
        // (the default of hardware, `rpg_clamp_tgt_rate` 0 and `clamp_tgt_rate_after_time_inc` 1).
        if self.limit.is_none() || limit.steps != 0 {
            limit.target = limit.current.max(MIN_RATE);
        }
        let cut = limit.current.saturating_mul(limit.alpha) >> 17;
        limit.current = limit.current.minus(cut);
        limit.alpha = limit
            .alpha
            .saturating_add(ONE.minus(limit.alpha) >> WEIGHT_SHIFT);
        limit.steps = 0;
        limit.reduced = now;
        limit.alpha_from = now;
        limit.raise_from = now;
        limit.set();
        debug_assert!(limit.alpha <= ONE, "an estimate of more than 1.0");
        debug_assert!(limit.target >= MIN_RATE, "a target below the minimum rate");
        debug_assert!(
            limit.current <= limit.target,
            "a notification leaves the rate above its target"
        );
        let before = self.limit.replace(limit);
        before.is_none_or(|before| limit.current < before.current)
    }

    /// Notes that a packet is about to leave. Returns whether it must ask for an acknowledgement
    /// because of the low rate.
    #[inline]
    pub fn take_ackreq(&mut self, now: Time) -> bool {
        match &mut self.limit {
            Some(limit) if now.since(limit.asked) >= ACK_INTERVAL => {
                limit.asked = now;
                true
            }
            _ => false,
        }
    }

    /// Returns the rate limit in bytes per second; `None` without a limit.
    pub fn limit(&self, now: Time) -> Option<u64> {
        let mut then = *self;
        then.advance(now);
        then.limit.map(|limit| limit.current)
    }

    /// Returns the measured sending rate in bytes per second: the maximum over the last windows,
    /// where each window weighs half as much as the one after it.
    fn measured_at(&self, window: u64) -> u64 {
        let scale = |bytes: u64| bytes.saturating_mul(1_000_000_000) >> WINDOW_SHIFT;
        let latest = scale(self.window_bytes);
        let past = window.saturating_sub(self.window).min(63) as u32;
        match past.checked_sub(1) {
            None => latest.max(self.measured),
            Some(halvings) => latest.max(self.measured >> 1) >> halvings,
        }
    }

    /// Applies the steps that are due at `now`.
    fn advance(&mut self, now: Time) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        while now.since(limit.raise_from) >= RAISE_INTERVAL {
            limit.raise_from += RAISE_INTERVAL;
            if limit.raise() {
                self.limit = None;
                return;
            }
        }
        // The number of rounds is bounded by the raise steps of a limited sender.
        while limit.alpha != 0 && now.since(limit.alpha_from) >= ALPHA_INTERVAL {
            limit.alpha_from += ALPHA_INTERVAL;
            limit.alpha = limit.alpha.minus(limit.alpha >> WEIGHT_SHIFT);
        }
        debug_assert!(
            now.since(limit.raise_from) < RAISE_INTERVAL,
            "a step is left that is due"
        );
    }
}

impl Limit {
    /// Raises the rate by a step. Returns whether the limit is removed.
    fn raise(&mut self) -> bool {
        self.steps.increment();
        let increase = match self.steps.checked_sub(2 * RECOVERY_STEPS) {
            Some(hyper @ 1..) => times(hyper, HYPER_INCREASE as u32),
            _ if self.steps > RECOVERY_STEPS => ADDITIVE_INCREASE,
            _ => 0,
        };
        self.target = self.target.saturating_add(increase);
        self.current = self.current.midpoint(self.target);
        self.set();
        self.current >= MAX_RATE
    }

    /// Clamps the rate, and updates the values that depend on it.
    fn set(&mut self) {
        self.current = self.current.max(MIN_RATE);
        const NS_SHIFTED: u64 = 1_000_000_000 << 16;
        self.ns_per_byte = NS_SHIFTED.checked_div(self.current).unwrap_or(NS_SHIFTED);
        debug_assert!(self.ns_per_byte != 0, "a limit that limits nothing");
    }
}
