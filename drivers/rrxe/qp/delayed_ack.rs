// SPDX-License-Identifier: GPL-2.0

//! Delayed ACKs.
//!
//! An ACK sent alone costs a packet through two stacks. If the program answers each request with a
//! message soon afterwards, the ACK can follow that message in the same GSO packet. After
//! [`PROMPT_REPLIES`] consecutive requests that were answered in time, the receive side therefore
//! defers an ACK if it has nothing else to send.
//!
//! An ACK waits at most for `ack_delay_us` (a module parameter). If the program once fails to
//! answer in that time, ACKs leave at once again.
//!
//! The only cost falls on a peer that waits for the completion of its send and not for the answer.

use crate::limits::path::{MAX_ACK_DELAY_US, PROMPT_REPLIES};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Returns the longest time, in nanoseconds, for which an ACK is deferred.
fn max_delay() -> u64 {
    let wait = linux_rdma::parameter::<u32>(crate::module_parameters::ack_delay_us.value());
    u64::from(wait.min(MAX_ACK_DELAY_US)).saturating_mul(1000)
}

/// State of the delayed ACK of a queue pair.
///
/// A deferred ACK is claimed exactly once, by [`DelayedAck::claim`]. The claimant takes the ACK
/// itself from the responder under the receive lock, which also covers the handling of requests:
/// while one CPU still handles a request, another CPU may send the answer and receive the next
/// request.
pub(super) struct DelayedAck {
    /// Consecutive requests that were answered in time; at most [`PROMPT_REPLIES`].
    prompt_replies: Atomic<u32>,
    /// Arrival time of the last unanswered request, in nanoseconds of CLOCK_MONOTONIC; 0 if none.
    request_at: Atomic<u64>,
    /// Time at which the deferred ACK must leave, in nanoseconds of CLOCK_MONOTONIC; 0 if none.
    deadline: Atomic<u64>,
}

/// When the ACK of a received request is sent.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AckAction {
    /// At once.
    #[default]
    SendNow,
    /// Later: the ACK is deferred.
    Defer,
    /// At once. The caller also sends the ACK that was deferred before.
    FlushDeferred,
}

impl DelayedAck {
    pub(super) const fn new() -> Self {
        Self {
            prompt_replies: Atomic::new(0),
            request_at: Atomic::new(0),
            deadline: Atomic::new(0),
        }
    }

    /// Decides when the ACK of a request is sent. Must be called before the request is handled,
    /// because the program may answer as soon as handling begins.
    ///
    /// If it returns [`AckAction::Defer`], the next send takes the ACK, and the caller checks
    /// [`DelayedAck::deadline`] after the request was handled.
    #[inline]
    pub(super) fn on_request(&self, now: u64) -> AckAction {
        if self.prompt_replies.load(Relaxed) < PROMPT_REPLIES {
            return AckAction::SendNow;
        }
        let deadline = now.saturating_add(max_delay());
        if self.deadline.cmpxchg(0, deadline, Full).is_ok() {
            return AckAction::Defer;
        }
        // The program has not answered the request whose ACK is deferred.
        self.prompt_replies.store(0, Relaxed);
        if self.claim() {
            AckAction::FlushDeferred
        } else {
            AckAction::SendNow
        }
    }

    /// Returns the time at which the deferred ACK must leave, if there is one.
    #[inline]
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Records the arrival of a request whose ACK is sent at once. Must be called before the
    /// request is handled.
    #[inline]
    pub(super) fn note_request(&self, at: u64) {
        self.request_at.store(at, Relaxed);
    }

    /// Records that the queue pair sends messages of its own.
    #[inline]
    pub(super) fn on_send(&self, now: u64) {
        let at = self.request_at.load(Relaxed);
        if at != 0 {
            self.request_at.store(0, Relaxed);
            let soon = now.saturating_sub(at) < max_delay();
            let before = if soon {
                self.prompt_replies.load(Relaxed)
            } else {
                0
            };
            let prompt_replies = before.saturating_add(soon.into());
            self.prompt_replies
                .store(prompt_replies.min(PROMPT_REPLIES), Relaxed);
        }
    }

    /// Returns whether the caller must send an ACK whose time is up, and the time for the next
    /// check if the ACK stays deferred.
    pub(super) fn expired(&self, now: u64) -> (bool, Option<u64>) {
        match self.deadline.load(Relaxed) {
            0 => (false, None),
            at if at > now => (false, Some(at)),
            _ => {
                self.prompt_replies.store(0, Relaxed);
                (self.claim(), None)
            }
        }
    }

    /// Claims the deferred ACK, if there is one. If this returns true, the caller must send it.
    #[inline]
    pub(super) fn claim(&self) -> bool {
        self.deadline.load(Relaxed) != 0 && self.deadline.xchg(0, Full) != 0
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_delayed_ack)]
mod tests {
    use super::*;

    /// Returns the state after enough requests that were answered in time.
    fn deferring() -> DelayedAck {
        let ack = DelayedAck::new();
        for _ in 0..PROMPT_REPLIES {
            assert!(ack.on_request(1) == AckAction::SendNow);
            assert!(ack.deadline().is_none() && !ack.claim());
            ack.note_request(1);
            ack.on_send(max_delay());
        }
        ack
    }

    #[test]
    fn defers_for_a_prompt_program() {
        let ack = deferring();
        for _ in 0..3 {
            let due = 5 + max_delay();
            assert!(ack.on_request(5) == AckAction::Defer);
            assert_eq!(ack.deadline(), Some(due));
            assert_eq!(ack.expired(6), (false, Some(due)));
            assert!(ack.claim());
            ack.on_send(7);
            assert_eq!(ack.expired(due), (false, None));
            assert!(ack.deadline().is_none() && !ack.claim());
        }
    }

    #[test]
    fn sends_after_the_delay() {
        let ack = deferring();
        assert!(ack.on_request(5) == AckAction::Defer);
        assert_eq!(ack.expired(5 + max_delay()), (true, None));
        assert!(!ack.claim());
        assert!(ack.on_request(7 + max_delay()) == AckAction::SendNow);
    }

    #[test]
    fn a_second_request_flushes() {
        let ack = deferring();
        assert!(ack.on_request(5) == AckAction::Defer);
        // The caller has the ACK that was deferred.
        assert!(ack.on_request(6) == AckAction::FlushDeferred);
        assert!(!ack.claim());
        assert!(ack.on_request(7) == AckAction::SendNow);
    }

    #[test]
    fn a_late_program_gets_no_delay() {
        let ack = DelayedAck::new();
        for _ in 0..3 * PROMPT_REPLIES {
            assert!(ack.on_request(1) == AckAction::SendNow);
            ack.note_request(1);
            ack.on_send(1 + max_delay());
        }
        // Messages that answer no request do not count.
        for _ in 0..3 * PROMPT_REPLIES {
            ack.on_send(1);
        }
        assert!(ack.on_request(1) == AckAction::SendNow);
    }
}
