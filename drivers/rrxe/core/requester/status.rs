// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The status of a requester: the cause of a standstill, for a person to read.

use super::{DriverPart, Requester, RequesterCounters, SendSlot, State};
use crate::congestion::CongestionControl;
use crate::{Psn, Span};

/// The reason why a requester sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendLimit {
    /// None: it sends.
    Nothing,
    /// The queue pair is not ready to send.
    NotReady,
    /// The queue pair has failed.
    Error,
    /// No work request is posted.
    NoRequest,
    /// The send queue is drained (SQD).
    Drained,
    /// Memory of a work request is absent.
    PageFault,
    /// The peer had no receive work request (RNR NAK).
    Rnr,
    /// The rate, which congestion notifications have reduced.
    Rate,
    /// The peer has reported that it has no receive work request left (credits).
    Credits,
    /// The window: packets are in flight.
    Window,
    /// A fence, or the number of READs and atomics in flight.
    Order,
    /// All packets are sent, and acknowledgements or responses are due.
    Acknowledgement,
}

impl SendLimit {
    /// Returns the name, which `rdma resource show qp -dd` prints.
    pub const fn name(self) -> &'static core::ffi::CStr {
        match self {
            Self::Nothing => c"nothing",
            Self::NotReady => c"not-ready",
            Self::Error => c"error",
            Self::NoRequest => c"no-request",
            Self::Drained => c"drained",
            Self::PageFault => c"page-fault",
            Self::Rnr => c"rnr",
            Self::Rate => c"rate",
            Self::Credits => c"credits",
            Self::Window => c"window",
            Self::Order => c"order",
            Self::Acknowledgement => c"ack",
        }
    }
}

/// The status of a requester.
#[derive(Clone, Copy, Debug)]
pub struct RequesterStatus {
    /// The reason why it sends nothing.
    pub limit: SendLimit,
    /// Work requests that are not complete.
    pub requests: u32,
    /// The oldest PSN without an acknowledgement.
    pub una: Psn,
    /// The PSN to send next.
    pub next: Psn,
    /// Request packets in flight.
    pub in_flight: u32,
    /// Maximum number of packets in flight.
    pub window: u32,
    /// READs and atomics in flight.
    pub reads: u8,
    /// Retries left after a timeout or a NAK Sequence Error.
    pub retries_left: u8,
    /// Retries left after an RNR NAK; 7 means no limit.
    pub rnr_retries_left: u8,
    /// Smoothed round-trip time; 0 before the first sample.
    pub srtt: Span,
    /// Mean deviation of the round-trip time.
    pub rttvar: Span,
    /// The shortest round trip.
    pub min_rtt: Span,
}

impl<C: CongestionControl> Requester<C> {
    /// Returns the status.
    pub fn status<P: DriverPart>(&self, slots: &[SendSlot<P>]) -> RequesterStatus {
        RequesterStatus {
            limit: self.limit(slots),
            requests: self.outstanding(),
            una: self.psn.una,
            next: self.psn.next,
            in_flight: self.in_flight(),
            window: self.flight_limit(),
            reads: self.reads,
            retries_left: self.retry.left,
            rnr_retries_left: self.retry.rnr_left,
            srtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min,
        }
    }

    /// Returns the reason why nothing is sent.
    fn limit<P: DriverPart>(&self, slots: &[SendSlot<P>]) -> SendLimit {
        match self.state {
            State::Idle => return SendLimit::NotReady,
            State::SendError | State::Error => return SendLimit::Error,
            State::Ready => {}
        }
        if self.queue.head == self.queue.tail {
            return SendLimit::NoRequest;
        }
        if self.awaits_memory {
            return SendLimit::PageFault;
        }
        if self.retry.rnr_wait.is_some() {
            return SendLimit::Rnr;
        }
        if self.is_throttled() {
            return SendLimit::Rate;
        }
        if self.queue.next == self.queue.head {
            return SendLimit::Acknowledgement;
        }
        let Some(slot) = self.slot(slots, self.queue.next) else {
            return SendLimit::Nothing;
        };
        if self.paused && !slot.is_started() {
            SendLimit::Drained
        } else if self.in_flight() >= self.flight_limit() {
            SendLimit::Window
        } else if !self.has_credit(slot) {
            SendLimit::Credits
        } else if !self.can_send(slots) {
            SendLimit::Order
        } else {
            SendLimit::Nothing
        }
    }
}

impl RequesterCounters {
    /// Adds other counts.
    pub fn add(&mut self, new: &Self) {
        for (total, new) in [
            (&mut self.retransmitted, new.retransmitted),
            (&mut self.probes, new.probes),
            (&mut self.timeouts, new.timeouts),
            (&mut self.sequence_naks, new.sequence_naks),
            (&mut self.rnr_naks, new.rnr_naks),
            (&mut self.implied_naks, new.implied_naks),
            (&mut self.window_reductions, new.window_reductions),
            (&mut self.bad_pkeys, new.bad_pkeys),
            (&mut self.dropped, new.dropped),
        ] {
            total.add(new.get());
        }
    }
}
