// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The invariants of a responder, which hold between two events. Builds with debug assertions check
//! them after each event.

use super::{Message, ResourceRing, Responder, State};
use crate::psn::MODULUS;
use crate::requester::MAX_MESSAGE;

impl<R: ResourceRing> Responder<R> {
    /// Asserts what holds between two events.
    #[inline]
    pub(super) fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            self.assert_message();
            self.assert_output();
            self.resources.assert_invariants();
        }
    }

    /// Asserts what holds while a message is in progress.
    fn assert_message(&self) {
        debug_assert!(
            self.epsn.get() < MODULUS,
            "an expected PSN of more than 24 bits"
        );
        debug_assert!(
            self.state != State::Idle || self.recv.is_none(),
            "a receive work request before the first request"
        );
        if self.state != State::Ready {
            return;
        }
        match self.message {
            Message::None => {}
            Message::Send { received, .. } => {
                debug_assert!(received != 0, "a SEND in progress without payload");
                debug_assert!(
                    self.recv.is_some_and(|length| received <= length),
                    "a SEND in progress exceeds its receive work request"
                );
                debug_assert!(received <= MAX_MESSAGE, "a SEND of more than 2^31 bytes");
            }
            Message::Write { rest, total } => {
                debug_assert!(rest.len != 0, "a WRITE in progress without a last packet");
                debug_assert!(rest.len < total, "a WRITE in progress without payload");
                debug_assert!(total <= MAX_MESSAGE, "a WRITE of more than 2^31 bytes");
            }
        }
    }

    /// Asserts that the pending packets fit the state.
    fn assert_output(&self) {
        let output = self.ack_due || self.nak_due.is_some() || self.resources.has_pending();
        debug_assert!(
            !output || self.service.is_reliable(),
            "an unreliable service sends a response"
        );
        debug_assert!(
            self.state != State::Error || !output,
            "a failed responder sends a response"
        );
        if self.state == State::Ready {
            debug_assert!(
                self.nak_due.is_none_or(|(psn, _)| psn == self.epsn),
                "a NAK for another packet than the expected one"
            );
            debug_assert!(
                self.nak_due.is_none() || self.nak_outstanding,
                "a second NAK could follow"
            );
        }
        debug_assert!(
            !self.not_ready || self.nak_outstanding,
            "the receiver is not ready without a NAK"
        );
        debug_assert!(
            !self.awaits_memory || self.nak_outstanding && self.nak_due.is_none(),
            "a NAK asks for a packet whose memory is absent"
        );
        debug_assert!(
            self.state != State::Failing || !self.gaps.is_open(),
            "a failing responder reports a gap"
        );
        self.ack_policy.assert_invariants();
    }
}

/// Impossible states, each of which an assertion catches.
#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::responder::Resource;
    use crate::wire::{NakCode, Reth, Syndrome};
    use crate::Service;

    /// Makes a responder that has received nothing impossible, and checks it.
    fn seed(change: impl FnOnce(&mut Responder<Vec<Resource>>)) {
        let mut responder = Responder::new(Service::Rc);
        responder.set_resources(vec![Resource::default(); 2]);
        responder.start();
        responder.assert_invariants();
        change(&mut responder);
        responder.assert_invariants();
    }

    #[test]
    #[should_panic(expected = "a SEND in progress exceeds its receive work request")]
    fn send_without_a_receive() {
        seed(|responder| {
            let (received, xrc_srqn) = (1, 0);
            responder.message = Message::Send { received, xrc_srqn };
        });
    }

    #[test]
    #[should_panic(expected = "a WRITE in progress without a last packet")]
    fn write_without_an_end() {
        seed(|responder| {
            let (va, rkey, len) = (0, 0, 0);
            let rest = Reth { va, rkey, len };
            responder.message = Message::Write { rest, total: 1 };
        });
    }

    #[test]
    #[should_panic(expected = "a NAK for another packet than the expected one")]
    fn misplaced_nak() {
        seed(|responder| {
            let nak = Syndrome::Nak(NakCode::SequenceError);
            responder.nak_due = Some((responder.epsn.next(), nak));
        });
    }

    #[test]
    #[should_panic(expected = "a NAK asks for a packet whose memory is absent")]
    fn nak_without_memory() {
        seed(|responder| responder.awaits_memory = true);
    }

    #[test]
    #[should_panic(expected = "a failed responder sends a response")]
    fn response_after_a_failure() {
        seed(|responder| {
            responder.state = State::Error;
            responder.ack_due = true;
        });
    }
}
