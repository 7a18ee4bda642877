// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Congestion management (IBA A17.9): who tells of congestion, and who reacts.
//!
//! A switch that is filling up marks packets (the ECN field of their IP header becomes CE, RFC
//! 3168). Who receives a marked packet is the *notification point*: [`NotificationPoint`] decides
//! when it sends a congestion notification packet (CNP, [`notification`]) to the packet's sender.
//! The sender is the *reaction point*: [`RateLimiter`] lowers the rate of that queue pair, and
//! raises it again once no more notifications come.
//!
//! The reaction is that of DCQCN (Zhu and others, "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015), without its byte counter: a queue pair is unlimited until the first
//! notification; this takes the rate that was measured for the rate to start from, since software
//! knows no line rate. What the steps are is in the constants below.
//!
//! Nothing here runs by itself: the rate at a time is worked out when somebody asks for it.

use crate::psn::Psn;
use crate::wire::{Bth, Opcode};
use crate::{Payload, TxPacket};

/// The least rate, in bytes per second: 10 Mbit/s. At it a packet of 4096 bytes leaves every 3.3 ms,
/// often enough for the peer's usual timeouts (67 ms). Hardware goes down to 1 Mbit/s.
pub const MIN_RATE: u64 = 10_000_000 / 8;

/// The rate from which on there is no limit, in bytes per second: 100 Gbit/s, more than this
/// implementation can send on a queue pair.
pub const MAX_RATE: u64 = 100_000_000_000 / 8;

/// The rate is lowered once in this time at most, whatever comes, in nanoseconds: the interval in
/// which a notification point of DCQCN notifies once.
pub const REDUCE_INTERVAL: u64 = 50_000;

/// After each of these intervals without a notification the estimate of congestion falls, in
/// nanoseconds (DCQCN's timer of 55 us).
pub const ALPHA_INTERVAL: u64 = 55_000;

/// After each of these intervals without a notification the rate rises a step, in nanoseconds
/// (as the default of hardware, `rpg_time_reset`).
pub const RAISE_INTERVAL: u64 = 300_000;

/// Steps that go half of the way back to where the rate was (fast recovery), and then steps that
/// add [`ADDITIVE_INCREASE`] (DCQCN's F).
pub const RECOVERY_STEPS: u32 = 5;

/// What an additive step adds to the rate aimed at, in bytes per second: 5 Mbit/s (as the default of
/// hardware, `rpg_ai_rate`).
pub const ADDITIVE_INCREASE: u64 = 5_000_000 / 8;

/// What the first step after that adds, the second twice, the third thrice, in bytes per second: 50
/// Mbit/s (`rpg_hai_rate`). So a queue pair is free again after 25 ms, whatever its rate was.
pub const HYPER_INCREASE: u64 = 50_000_000 / 8;

/// How much may leave at once: what the rate allows for in this time, in nanoseconds, and a packet
/// at least.
pub const BURST: u64 = 200_000;

/// A limited sender asks for an acknowledgement at least this often, in nanoseconds: at a low rate
/// a quarter of a window takes longer than a timeout.
const ACK_INTERVAL: u64 = 1_000_000;

/// The sent bytes are measured in windows of 2^20 ns, about a millisecond.
const WINDOW_SHIFT: u32 = 20;

/// Bytes that Ethernet, IPv4 and UDP put in front of a packet.
const OVERHEAD: u64 = 14 + 20 + 8;

/// 1.0 as an estimate of congestion.
const ONE: u64 = 1 << 16;

/// The weight of a new observation in the estimate: 1/256 (DCQCN's g).
const WEIGHT_SHIFT: u32 = 8;

/// What is behind the BTH of a notification.
const RESERVED: [u8; 16] = [0; 16];

/// The congestion notification packet to a queue pair (IBA A17.9.3): BECN set, PSN 0, MigReq 0, as
/// hardware sends it.
pub(crate) fn notification(dest_qpn: u32, pkey: u16) -> TxPacket {
    let bth = Bth {
        opcode: Opcode::CNP,
        solicited: false,
        migreq: false,
        pad: 0,
        version: 0,
        pkey,
        fecn: false,
        becn: true,
        dest_qpn,
        ackreq: false,
        psn: Psn::new(0),
    };
    let mut packet = TxPacket::new(bth, Payload::None);
    packet.first = true;
    packet.last = true;
    packet.push(RESERVED);
    packet
}

/// Decides which marked packets of a queue pair are worth a notification.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    last: Option<u64>,
}

impl NotificationPoint {
    /// One that has sent nothing.
    pub const fn new() -> NotificationPoint {
        NotificationPoint { last: None }
    }

    /// A marked packet came in at `now`: whether a notification is to be sent, which is at most once
    /// in `interval` (both in nanoseconds); with 0, for every packet (L-02).
    pub fn marked(&mut self, now: u64, interval: u64) -> bool {
        let due = match self.last {
            Some(last) => now.saturating_sub(last) >= interval,
            None => true,
        };
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// A limit of the rate.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Bytes per second.
    current: u64,
    /// What it is on its way to.
    target: u64,
    /// How much congestion there seems to be: 0 to [`ONE`].
    alpha: u64,
    /// Steps taken since the last notification.
    steps: u32,
    reduced: u64,
    alpha_from: u64,
    raise_from: u64,
    /// When what was sent would have left at the rate exactly.
    paid_until: u64,
    /// Nanoseconds for a byte, times 2^16.
    ns_per_byte: u64,
    /// When an acknowledgement was last asked for.
    asked: u64,
}

/// Limits the rate of one half of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimiter {
    window: u64,
    window_bytes: u64,
    /// Bytes per second, from the windows before.
    measured: u64,
    limit: Option<Limit>,
    /// When the next packet may leave, where one had to wait.
    wake: Option<u64>,
}

impl RateLimiter {
    /// Without a limit.
    pub const fn new() -> RateLimiter {
        RateLimiter {
            window: 0,
            window_bytes: 0,
            measured: 0,
            limit: None,
            wake: None,
        }
    }

    /// Whether a packet may leave now. If not, [`RateLimiter::wake`] says when.
    #[inline]
    pub fn ready(&mut self, now: u64) -> bool {
        self.wake = None;
        if self.limit.is_none() {
            return true;
        }
        self.advance(now);
        let Some(limit) = &self.limit else {
            return true;
        };
        if limit.paid_until < now.saturating_add(BURST) {
            return true;
        }
        // Not before half of the burst is paid for: fewer timers, and none is late.
        let half = BURST >> 1;
        self.wake = Some(limit.paid_until.saturating_sub(half));
        false
    }

    /// Whether packets may leave as they come.
    #[inline]
    pub fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    /// So many packets were handed over: `len` is the length of the UDP payload of each.
    #[inline]
    pub fn sent(&mut self, now: u64, len: u32, packets: u32) {
        let bytes = u64::from(len)
            .saturating_add(OVERHEAD)
            .saturating_mul(packets.into());
        let window = now >> WINDOW_SHIFT;
        if window != self.window {
            self.measured = self.measured_at(window);
            self.window = window;
            self.window_bytes = 0;
        }
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        if let Some(limit) = &mut self.limit {
            let ns = bytes.saturating_mul(limit.ns_per_byte) >> 16;
            limit.paid_until = limit.paid_until.max(now).saturating_add(ns);
        }
    }

    /// A notification came in.
    pub fn notified(&mut self, now: u64) {
        let measured = self.measured_at(now >> WINDOW_SHIFT);
        if measured == 0 {
            // What is congested is not from here.
            return;
        }
        self.advance(now);
        let mut limit = match self.limit {
            Some(limit) => {
                if now.saturating_sub(limit.reduced) < REDUCE_INTERVAL {
                    return;
                }
                limit
            }
            None => Limit {
                current: measured,
                target: measured,
                alpha: ONE,
                steps: 0,
                reduced: now,
                alpha_from: now,
                raise_from: now,
                paid_until: now,
                ns_per_byte: 0,
                asked: now,
            },
        };
        // A limit far above what is sent means nothing, but a pause is no reason to fall far.
        let twice = measured.saturating_mul(2);
        limit.current = limit.current.min(twice.max(limit.current >> 1));
        if limit.current <= MIN_RATE && self.limit.is_none() {
            // It sends too little to be lowered.
            return;
        }
        limit.target = limit.current.max(MIN_RATE);
        let cut = limit.current.saturating_mul(limit.alpha) >> 17;
        limit.current = limit.current.saturating_sub(cut);
        limit.alpha = limit
            .alpha
            .saturating_add(ONE.saturating_sub(limit.alpha) >> WEIGHT_SHIFT);
        limit.steps = 0;
        limit.reduced = now;
        limit.alpha_from = now;
        limit.raise_from = now;
        limit.set();
        self.limit = Some(limit);
    }

    /// When to poll again, where a packet had to wait.
    #[inline]
    pub fn wake(&self) -> Option<u64> {
        self.wake
    }

    /// Nothing waits any more.
    #[inline]
    pub fn rest(&mut self) {
        self.wake = None;
    }

    /// Whether the next packet is to ask for an acknowledgement for the rate's sake.
    #[inline]
    pub fn wants_ack(&mut self, now: u64) -> bool {
        match &mut self.limit {
            Some(limit) if now.saturating_sub(limit.asked) >= ACK_INTERVAL => {
                limit.asked = now;
                true
            }
            _ => false,
        }
    }

    /// The rate in bytes per second; `None` where there is no limit.
    pub fn rate(&mut self, now: u64) -> Option<u64> {
        self.advance(now);
        self.limit.map(|limit| limit.current)
    }

    /// What is being sent, in bytes per second: the busiest of the last windows, of which each
    /// counts half as much as the one after it.
    fn measured_at(&self, window: u64) -> u64 {
        let scale = |bytes: u64| bytes.saturating_mul(1_000_000_000) >> WINDOW_SHIFT;
        let latest = scale(self.window_bytes);
        match window.saturating_sub(self.window).min(63) as u32 {
            0 => latest.max(self.measured),
            past => latest.max(self.measured >> 1) >> past.saturating_sub(1),
        }
    }

    /// Brings the limit up to date.
    fn advance(&mut self, now: u64) {
        let Some(limit) = &mut self.limit else {
            return;
        };
        while now.saturating_sub(limit.raise_from) >= RAISE_INTERVAL {
            limit.raise_from = limit.raise_from.saturating_add(RAISE_INTERVAL);
            if limit.raise() {
                self.limit = None;
                return;
            }
        }
        // As many times as fit into the raises of a limited sender.
        while limit.alpha != 0 && now.saturating_sub(limit.alpha_from) >= ALPHA_INTERVAL {
            limit.alpha_from = limit.alpha_from.saturating_add(ALPHA_INTERVAL);
            limit.alpha = limit.alpha.saturating_sub(limit.alpha >> WEIGHT_SHIFT);
        }
    }
}

impl Limit {
    /// A step up. Whether the limit is none any more.
    fn raise(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        let additive = self.steps.saturating_sub(RECOVERY_STEPS);
        let hyper = additive.saturating_sub(RECOVERY_STEPS);
        let increase = match (additive, hyper) {
            (0, _) => 0,
            (_, 0) => ADDITIVE_INCREASE,
            _ => HYPER_INCREASE.saturating_mul(hyper.into()),
        };
        self.target = self.target.saturating_add(increase);
        self.current = self.current.saturating_add(self.target) >> 1;
        self.set();
        self.current >= MAX_RATE
    }

    /// The rate was changed.
    fn set(&mut self) {
        self.current = self.current.max(MIN_RATE);
        const NS_SHIFTED: u64 = 1_000_000_000 << 16;
        self.ns_per_byte = NS_SHIFTED.checked_div(self.current).unwrap_or(NS_SHIFTED);
    }
}
