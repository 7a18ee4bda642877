// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The transmit direction of the responder.

use super::resources::{Kind, Resource};
use super::{ResourceRing, Responder, ResponderEnv as Env, ResponderEvent, State};
use crate::psn::Psn;
use crate::wire::{Aeth, AtomicAckEth, Bth, NakCode, Opcode, Operation, Reth, Syndrome};
use crate::{Increment, Payload, Progress, Time, TxError, TxPacket};

/// Whether the acknowledgement of a new request waits for the consumer's reply.
///
/// An acknowledgement that is sent alone costs a packet. If the consumer replies to each request
/// with a message soon afterwards, the acknowledgement can be sent together with that message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AckPolicy {
    /// Acknowledgements wait for the consumer's reply. Otherwise they leave at once.
    delays: bool,
    /// Consecutive requests that the consumer has replied to in time, up to the number that delays
    /// acknowledgements.
    prompt_replies: u32,
    /// Arrival time of the last request, unless the consumer has replied to it or `delays` is set.
    request_at: Option<Time>,
    /// Deadline of the acknowledgement that waits now. `None` unless `delays` is set.
    pub(super) until: Option<Time>,
}

impl AckPolicy {
    /// Asserts what holds between two events.
    pub(super) fn assert_invariants(&self) {
        debug_assert!(
            self.until.is_none() || self.delays,
            "an acknowledgement is delayed against the policy"
        );
        debug_assert!(
            self.request_at.is_none() || !self.delays,
            "replies are measured although acknowledgements are delayed"
        );
    }

    /// Notes that the pending acknowledgement leaves without a reply. If it has waited, the
    /// consumer has failed to reply in time, and the next ones leave at once. Returns whether it
    /// has waited.
    #[inline]
    fn on_sent_alone(&mut self) -> bool {
        let waited = self.until.is_some();
        if waited {
            *self = AckPolicy::default();
        }
        waited
    }
}

impl<R: ResourceRing> Responder<R> {
    /// Sends responses and acknowledgements, at most `budget` packets.
    pub fn poll_transmit(&mut self, now: Time, budget: u32, env: &mut impl Env) -> Progress {
        let mut progress = Progress::default();
        self.rate.wakeup = None;
        if self.state == State::Failing {
            // Without the limit, the consumer and the peer learn of the error soon.
            self.stop_waiting();
        }
        if !matches!(self.state, State::Ready | State::Failing) || !self.service.is_reliable() {
            return progress;
        }
        self.report_late_gap(now);
        // At its deadline, an acknowledgement leaves without a reply.
        if self.ack_policy.until.is_some_and(|until| until <= now) {
            self.ack_policy.on_sent_alone();
        }
        while self.has_output() && !self.awaits_reply() {
            if progress.sent >= budget {
                progress.more = true;
                break;
            }
            // A NAK or acknowledgement behind READ responses keeps its place.
            if self.resources.has_pending() && !self.rate.admit(now) {
                break;
            }
            let (sent, result) = self.send_some(now, progress.left(budget), env);
            progress.note_sent(sent);
            // After a permanent error, the failed READ has been handled.
            if result.is_err_and(|error| error.permanent().is_none()) {
                progress.more = result == Err(TxError::Full);
                break;
            }
        }
        if self.state == State::Failing && !self.has_output() {
            self.state = State::Error;
            progress.fatal = true;
        }
        debug_assert!(
            progress.sent <= budget,
            "more packets were sent than permitted"
        );
        self.assert_invariants();
        progress
    }

    /// Returns whether there is something to send, even if it must wait for
    /// [`Responder::next_timeout`].
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.resources.has_pending() || self.nak_due.is_some() || self.ack_due
    }

    /// Sends the next packet, if there is one, or a burst of up to `max` packets. Returns how many
    /// were sent, and why the next one was not.
    #[inline]
    fn send_some(&mut self, now: Time, max: u32, env: &mut impl Env) -> (u32, Result<(), TxError>) {
        if let Some((index, resource)) = self.resources.oldest_pending() {
            let packet = self.response(&resource);
            let burst = match packet.opcode.operation() {
                Some(Operation::ReadResponseMiddle) if self.rate.is_unlimited() => {
                    // The last response has another header.
                    resource.after().min(max)
                }
                _ => 1,
            };
            let (sent, result) = env.transmit(&packet, burst);
            debug_assert!(sent <= burst, "more packets were accepted than offered");
            debug_assert!(
                result.is_err() || sent == burst,
                "packets were refused without a reason"
            );
            if sent != 0 {
                self.rate.sent(now, packet.udp_payload_len(), sent);
                self.resources.advance(index, sent);
            }
            if result.is_err_and(|error| error.permanent().is_some()) {
                let mut resource = resource;
                resource.advance(sent);
                self.memory_gone(index, &resource, env);
            }
            return (sent, result);
        }
        self.send_acknowledge(env)
    }

    /// Sends the pending acknowledgement or NAK.
    #[inline]
    fn send_acknowledge(&mut self, env: &mut impl Env) -> (u32, Result<(), TxError>) {
        let packet = match self.nak_due {
            Some((psn, syndrome)) => self.acknowledge(psn, syndrome),
            None => self.acknowledge_all(),
        };
        let (sent, result) = env.transmit(&packet, 1);
        // A packet without payload cannot fail on memory: any error but a full batch counts as a
        // loss.
        if result == Err(TxError::Full) {
            return (sent, result);
        }
        self.nak_due = None;
        // A NAK acknowledges everything before it.
        self.ack_due = false;
        self.ack_policy.on_sent_alone();
        (1, Ok(()))
    }

    /// Returns whether the only thing to send is an acknowledgement that is delayed until the
    /// consumer replies.
    #[inline]
    fn awaits_reply(&self) -> bool {
        self.ack_policy.until.is_some() && self.has_only_acknowledgement()
    }

    /// Decides whether the acknowledgement of a new request waits for the consumer's reply.
    #[inline]
    pub(super) fn delay_acknowledgement(&mut self, now: Time) -> bool {
        debug_assert!(
            self.state == State::Ready,
            "a failed responder delays an acknowledgement"
        );
        let is_alone = self.has_only_acknowledgement();
        let due = now + self.max_ack_delay;
        let policy = &mut self.ack_policy;
        if !policy.delays {
            policy.request_at = Some(now);
            return false;
        }
        // If it arrived together with the previous request, one reply acknowledges both.
        let waits = is_alone && policy.until.is_none_or(|until| until == due);
        if waits {
            policy.until = Some(due);
        } else {
            // The consumer has not replied to the previous request, if that waits.
            policy.on_sent_alone();
        }
        waits
    }

    /// Notes that the consumer has posted messages. Returns an acknowledgement that has waited for
    /// them, which the driver sends after them.
    pub fn on_reply(&mut self, now: Time) -> Option<TxPacket> {
        let awaited = self.awaits_reply();
        if self.ack_policy.delays {
            // The acknowledgement counts as sent.
            self.ack_due &= !awaited;
            return awaited.then(|| {
                self.ack_policy.until = None;
                self.acknowledge_all()
            });
        }
        let policy = &mut self.ack_policy;
        let request_at = policy.request_at.take()?;
        if now.since(request_at) >= self.max_ack_delay {
            policy.prompt_replies = 0;
            return None;
        }
        policy.prompt_replies.increment();
        policy.delays = policy.prompt_replies >= self.prompt_replies;
        None
    }

    /// Notes that the consumer's messages were sent without the acknowledgement that has waited for
    /// them. Returns whether one has waited: the driver calls [`Responder::poll_transmit`] then.
    pub fn on_reply_alone(&mut self) -> bool {
        self.ack_policy.until.take().is_some()
    }

    /// Ends the wait of an acknowledgement for a reply. Returns whether one has waited: the driver
    /// calls [`Responder::poll_transmit`] then.
    pub fn stop_delay(&mut self) -> bool {
        self.ack_policy.on_sent_alone()
    }

    /// Returns whether the only thing to send is an acknowledgement.
    #[inline]
    fn has_only_acknowledgement(&self) -> bool {
        // With packets buffered beyond a gap, it would be a NAK.
        let other = self.resources.has_pending() || self.nak_due.is_some() || self.gaps.is_open();
        self.ack_due && !other && self.state == State::Ready && self.service.is_reliable()
    }

    fn bth(&self, operation: Operation, psn: Psn) -> Bth {
        Bth::new(Opcode::new(self.service, operation), self.dest_qpn, psn)
    }

    /// Returns the acknowledgement of everything received.
    fn acknowledge_all(&self) -> TxPacket {
        self.acknowledge(self.epsn.prev(), Syndrome::ACK_UNLIMITED)
    }

    fn acknowledge(&self, psn: Psn, syndrome: Syndrome) -> TxPacket {
        let mut packet = TxPacket::new(self.bth(Operation::Acknowledge, psn), Payload::None, true);
        packet.push(Aeth::new(syndrome, self.msn).to_bytes());
        packet
    }

    /// Returns the next response packet of a READ or atomic.
    // Inlined because otherwise the packet is returned through memory and copied twice.
    #[inline(always)]
    fn response(&self, resource: &Resource) -> TxPacket {
        let psn = resource.first.add(resource.at);
        let aeth = Aeth::new(Syndrome::ACK_UNLIMITED, self.msn).to_bytes();
        if let Kind::Atomic { original, .. } = resource.kind {
            let bth = self.bth(Operation::AtomicAcknowledge, psn);
            let mut packet = TxPacket::new(bth, Payload::None, true);
            packet.push(aeth);
            packet.push(AtomicAckEth { original }.to_bytes());
            return packet;
        }
        debug_assert!(
            resource.kind != Kind::Empty,
            "an unused entry has a response"
        );
        // A response that starts in the middle of a READ starts with FIRST or ONLY (C-07).
        debug_assert!(
            resource.start <= resource.at && resource.at < resource.packets,
            "a packet outside of the response"
        );
        let first = resource.at == resource.start;
        let last = resource.after() == 0;
        let operation = match (first, last) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, false) => Operation::ReadResponseMiddle,
            (false, true) => Operation::ReadResponseLast,
        };
        let offset = self.mtu.offset(resource.at);
        let payload = match resource.kind {
            Kind::Read { domain, reth } if reth.len > offset => {
                let Reth { rkey, va, len } = reth.rest(offset);
                Payload::Read {
                    domain,
                    rkey,
                    va,
                    len: len.min(self.mtu.bytes()),
                }
            }
            // The response to a FLUSH or an ATOMIC WRITE is that to an empty READ (IBA A19).
            _ => Payload::None,
        };
        let mut packet = TxPacket::new(self.bth(operation, psn), payload, last);
        if first || last {
            packet.push(aeth);
        }
        packet
    }

    /// Handles the loss of access to a READ's memory: an error of the original READ that was found
    /// late (G-28). A duplicate READ is dropped (C-18).
    fn memory_gone(&mut self, index: u8, resource: &Resource, env: &mut impl Env) {
        debug_assert!(
            matches!(resource.kind, Kind::Read { .. }),
            "the memory of no READ is gone"
        );
        self.resources.forget(index);
        if !resource.unsent {
            return;
        }
        self.resources.clear();
        self.ack_due = false;
        self.gaps.forget();
        self.awaits_memory = false;
        let psn = resource.first.add(resource.at);
        self.nak_due = Some((psn, Syndrome::Nak(NakCode::RemoteAccess)));
        self.state = State::Failing;
        env.event(ResponderEvent::AccessError);
    }
}
