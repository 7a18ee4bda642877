// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Congestion control and congestion management (IBA A17.9).
//!
//! A switch with a growing queue marks packets: it sets the ECN field of their IP header to CE (RFC
//! 3168). The receiver of a marked packet is the *notification point*. Its [`NotificationPoint`]
//! decides when to send a congestion notification packet (CNP) to the packet's sender, the
//! *reaction point*, which lowers the rate of that queue pair ([`RateLimiter`]).
//!
//! A switch without ECN drops packets. A requester then reduces its [`Window`]. A
//! [`CongestionControl`] is the whole of the rules that limit a requester.

mod dcqcn;
mod fixed;
mod window;

use crate::psn::Psn;
use crate::wire::{Bth, Opcode};
use crate::{packet::CNP_RESERVED, Mtu, Payload, Span, Time, TxPacket};
use core::fmt::Debug;

pub use dcqcn::{
    RateLimiter, ADDITIVE_INCREASE, ALPHA_INTERVAL, BURST, HYPER_INCREASE, MAX_RATE, MIN_RATE,
    RAISE_INTERVAL, RECOVERY_STEPS, REDUCE_INTERVAL,
};
pub use fixed::FixedWindow;
pub use window::{Window, MAX_WINDOW, WINDOW};

/// Returns the congestion notification packet for a queue pair (IBA A17.9.3): BECN set, PSN 0, and
/// MigReq 0 as hardware sends it.
pub(crate) fn cnp(dest_qpn: u32) -> TxPacket {
    let bth = Bth {
        migreq: false,
        becn: true,
        ..Bth::new(Opcode::CNP, dest_qpn, Psn::new(0))
    };
    let mut packet = TxPacket::new(bth, Payload::None, true);
    packet.push([0; CNP_RESERVED]);
    packet
}

/// Decides which marked packets of a queue pair cause a notification.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    last: Option<Time>,
}

impl NotificationPoint {
    /// Handles a marked packet that arrived at `now`. Returns whether to send a notification, at
    /// most one per `interval` (L-02).
    pub fn marked(&mut self, now: Time, interval: Span) -> bool {
        let is_over = |last: Time| now.since(last) >= interval;
        let due = self.last.is_none_or(is_over);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// An acknowledgement of packets that had not been acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledgement {
    /// Time of its arrival.
    pub now: Time,
    /// The oldest PSN that is not acknowledged now.
    pub una: Psn,
    /// Number of packets acknowledged.
    pub packets: u32,
    /// The shortest round trip; zero if unknown.
    pub min_rtt: Span,
    /// The shortest round trip of the present path, which may have become longer.
    pub base_rtt: Span,
    /// The smoothed round trip.
    pub srtt: Span,
    /// Packets have waited in a queue on the path lately.
    pub queues: bool,
    /// Packets that had arrived earlier may be acknowledged only now, because one was missing.
    pub disturbed: bool,
    /// It acknowledges packets that were to be sent again: the count starts anew.
    pub restarts: bool,
}

/// A loss of packets, as far as known.
#[derive(Clone, Copy, Debug)]
pub struct PacketLoss {
    /// The oldest PSN that is not acknowledged, which is missing.
    pub una: Psn,
    /// One beyond the last PSN sent.
    pub max: Psn,
    /// Number of packets that are considered lost now.
    pub packets: u32,
    /// A queue on the path was nearly as long as ever lately, so it may have overflowed.
    pub full_queue: bool,
}

/// The rules that limit the packets in flight and the rate of a requester.
pub trait CongestionControl: Clone + Debug + Default {
    /// Starts a connection with this path MTU.
    fn start(&mut self, mtu: Mtu);

    /// Returns the maximum number of packets in flight. A READ or atomic request counts as one
    /// packet, whatever the size of its response.
    fn window(&self) -> u32;

    /// Returns the maximum number of packets in flight while a lost packet is repaired, to a peer
    /// that keeps the packets beyond it, which have left the path.
    fn window_beyond_loss(&self) -> u32;

    /// Returns the number of packets after which one asks for an acknowledgement.
    fn ackreq_after(&self) -> u32;

    /// Admits a packet, or notes that the rate delays it. Returns whether it may leave now. If not,
    /// [`CongestionControl::wakeup`] says when.
    fn admit(&mut self, now: Time) -> bool;

    /// Returns when to poll again for a packet that the rate has delayed; `None` if no
    /// packet is delayed.
    fn wakeup(&self) -> Option<Time>;

    /// Forgets that a packet is delayed.
    fn stop_waiting(&mut self);

    /// Returns the number of packets that may be sent at once; 1 or more if one may be sent.
    fn burst(&self, now: Time) -> u32;

    /// Notes that a packet is about to leave. Returns whether it must ask for an acknowledgement
    /// because of a low rate.
    fn take_ackreq(&mut self, now: Time) -> bool;

    /// Accounts for `packets` packets handed over, each with a UDP payload of `len` bytes.
    fn on_sent(&mut self, now: Time, len: u32, packets: u32);

    /// Notes that a flight begins: `una` is sent, and nothing is in flight.
    fn on_flight(&mut self, una: Psn, now: Time);

    /// Handles an acknowledgement.
    fn on_ack(&mut self, acknowledgement: &Acknowledgement);

    /// Handles a loss. Returns whether it reduces the window.
    fn on_loss(&mut self, loss: &PacketLoss) -> bool;

    /// Notes that the packet `una`, which was considered lost, was only late.
    fn on_late(&mut self, una: Psn);

    /// Notes that nothing was acknowledged for an acknowledge timeout. Returns whether that reduces
    /// the window.
    fn on_timeout(&mut self) -> bool;

    /// Notes whether the peer keeps or drops out-of-order packets. Returns whether that reduces the
    /// window.
    fn on_peer(&mut self, drops: bool) -> bool;

    /// Notes how long the response to a repair took while the queues on the path were empty.
    fn on_drained(&mut self, time: Span);

    /// Handles a congestion notification. Returns whether it reduces the rate.
    fn on_cnp(&mut self, now: Time) -> bool;
}

/// The congestion control of rrxe: a window that losses reduce, and the rate of DCQCN.
#[derive(Clone, Debug, Default)]
pub struct Congestion {
    /// The limit of packets in flight.
    pub window: Window,
    /// The rate limit set by congestion notifications.
    pub rate: RateLimiter,
}

impl CongestionControl for Congestion {
    fn start(&mut self, mtu: Mtu) {
        self.window.start(mtu);
    }

    #[inline]
    fn window(&self) -> u32 {
        self.window.size()
    }

    #[inline]
    fn window_beyond_loss(&self) -> u32 {
        self.window.beyond_loss()
    }

    #[inline]
    fn ackreq_after(&self) -> u32 {
        self.window.ackreq_after()
    }

    #[inline]
    fn admit(&mut self, now: Time) -> bool {
        self.rate.admit(now)
    }

    #[inline]
    fn wakeup(&self) -> Option<Time> {
        self.rate.wakeup
    }

    #[inline]
    fn stop_waiting(&mut self) {
        self.rate.wakeup = None;
    }

    #[inline]
    fn burst(&self, now: Time) -> u32 {
        self.rate.burst(now)
    }

    #[inline]
    fn take_ackreq(&mut self, now: Time) -> bool {
        self.rate.take_ackreq(now)
    }

    #[inline]
    fn on_sent(&mut self, now: Time, len: u32, packets: u32) {
        self.rate.sent(now, len, packets);
    }

    #[inline]
    fn on_flight(&mut self, una: Psn, now: Time) {
        self.window.count_from(una, now, false);
    }

    #[inline]
    fn on_ack(&mut self, acknowledgement: &Acknowledgement) {
        self.window.on_ack(acknowledgement);
        let interval = self.window.interval(acknowledgement.srtt);
        debug_assert!(
            interval.is_none() || self.window.is_paced(),
            "a window without pacing has an interval"
        );
        self.rate.pace(interval.unwrap_or_default());
    }

    fn on_loss(&mut self, loss: &PacketLoss) -> bool {
        self.window.is_reduced_by(|window| window.on_loss(loss))
    }

    fn on_late(&mut self, una: Psn) {
        self.window.on_late(una);
        if !self.window.is_paced() {
            self.rate.pace(Span::ZERO);
        }
    }

    fn on_timeout(&mut self) -> bool {
        self.window.is_reduced_by(Window::on_timeout)
    }

    fn on_peer(&mut self, drops: bool) -> bool {
        self.window.is_reduced_by(|window| window.on_peer(drops))
    }

    fn on_drained(&mut self, time: Span) {
        self.window.on_drained(time);
    }

    fn on_cnp(&mut self, now: Time) -> bool {
        self.rate.on_cnp(now)
    }
}
