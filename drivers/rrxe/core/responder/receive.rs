// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive direction of the responder: checks packets, and handles errors.

use super::message::{MessagePart, Refusal, Result};
use super::{
    Message, RecvOpcode, ResourceRing, Responder, ResponderEnv as Env, ResponderEvent, State,
};
use crate::lengths::total;
use crate::psn::{Psn, Region};
use crate::reorder::MAX_DISTANCE;
use crate::wire::{NakCode, Operation, Syndrome};
use crate::{requester, Ext, Fault, Outcome, Packet, Service, Status, Time};
use core::mem::take;

/// Bytes in front of a datagram's payload, for the GRH or the IPv4 header (I-03).
pub const GRH_LEN: u32 = 40;

impl<R: ResourceRing> Responder<R> {
    /// Handles a request. Drops any other packet.
    pub fn handle_packet(&mut self, now: Time, packet: &Packet, env: &mut impl Env) -> Outcome {
        let outcome = self.handle(now, packet, env);
        debug_assert!(
            !outcome.buffer || !self.is_due(packet.psn()),
            "the expected packet is buffered"
        );
        self.assert_invariants();
        outcome
    }

    #[inline(always)]
    fn handle(&mut self, now: Time, packet: &Packet, env: &mut impl Env) -> Outcome {
        debug_assert!(packet.packets != 0, "a burst without packets");
        debug_assert!(
            packet.packets == 1 || self.accepts(packet),
            "a burst that the responder has not accepted"
        );
        if !self.is_mine(packet) {
            return self.drop_packet();
        }
        if !packet.bth.is_in_partition() {
            env.event(ResponderEvent::PkeyViolation);
            return Outcome::default();
        }
        if self.service == Service::Ud {
            return self.on_datagram(packet, env);
        }
        if self.service == Service::Uc {
            return self.on_unreliable(packet, env);
        }
        match packet.psn().region(self.epsn) {
            Region::Expected => {
                self.nak_due = None;
                self.nak_outstanding = false;
                self.not_ready = false;
                self.awaits_memory = false;
                self.gaps.close(packet.bth.ackreq, now);
                self.note_established(env);
                let result = self.execute(packet, env);
                self.respond(now, packet, result, env)
            }
            Region::Future => {
                // A request farther away may be stale or forged. The peer retransmits a genuine
                // one.
                let buffer = !self.not_ready && packet.psn().since(self.epsn) < MAX_DISTANCE;
                let waits = self.buffering && buffer;
                if waits {
                    self.gaps.on_beyond(self.epsn, packet.psn(), now);
                }
                Outcome {
                    transmit: !waits && self.nak_gap(),
                    buffer,
                    ..Outcome::default()
                }
            }
            Region::Duplicate => {
                self.counters.duplicates.increment();
                self.gaps.duplicate(packet.psn());
                let outcome = self.on_duplicate(packet);
                if outcome.transmit {
                    // The peer waits for the acknowledgement.
                    self.stop_delay();
                }
                outcome
            }
        }
    }

    /// Returns how many packets of a burst that starts with this one ([`Packet::starts_burst`]) may
    /// be handled at once: those certain to be expected and to fit, and at least 1.
    #[inline]
    pub fn accepts_burst(&self, packet: &Packet) -> u32 {
        let mtu = self.mtu.bytes();
        if !self.is_mine(packet)
            || !packet.bth.is_in_partition()
            || packet.psn() != self.epsn
            || packet.payload_len != mtu
        {
            return 1;
        }
        let space = match (packet.operation, self.message, self.recv) {
            (Operation::SendMiddle, Message::Send { received, .. }, Some(length)) => {
                length.min(requester::MAX_MESSAGE).saturating_sub(received)
            }
            // At least one byte must be left for the last packet.
            (Operation::WriteMiddle, Message::Write { rest, .. }, _) => rest.len.saturating_sub(1),
            _ => 0,
        };
        space.checked_div(mtu).unwrap_or(0).max(1)
    }

    /// Returns whether [`Responder::accepts_burst`] permits this burst.
    fn accepts(&self, burst: &Packet) -> bool {
        let payload_len = burst.payload_len.checked_div(burst.packets);
        let first = Packet {
            packets: 1,
            payload_len: payload_len.unwrap_or(0),
            ..*burst
        };
        burst.packets <= self.accepts_burst(&first)
    }

    /// Returns whether a buffered packet with this PSN can be handled now.
    #[inline]
    pub fn is_due(&self, psn: Psn) -> bool {
        psn == self.epsn
    }

    /// Notes that `beyond` packets are buffered ([`crate::Reorder`]) after the driver has handled
    /// those that were due. The responder reports the gap before them if it exceeds the tolerated
    /// reordering, or if none of the packets that showed it could be buffered.
    pub fn on_buffered(&mut self, now: Time, beyond: u32) -> Outcome {
        if !self.buffering || self.state != State::Ready {
            return Outcome::default();
        }
        let due = match beyond {
            0 => self.gaps.is_open(),
            _ => self.gaps.observe(self.epsn, beyond, now),
        };
        let outcome = Outcome::transmit(due && self.nak_gap());
        self.assert_invariants();
        outcome
    }

    /// Schedules a NAK for the gap, unless there was one before (B-08, B-09). Returns whether a NAK
    /// must be sent.
    fn nak_gap(&mut self) -> bool {
        self.gaps.report();
        if self.nak_outstanding {
            return false;
        }
        debug_assert!(self.nak_due.is_none(), "a NAK replaces another one");
        self.nak_outstanding = true;
        self.counters.out_of_sequence.increment();
        self.nak_due = Some((self.epsn, Syndrome::Nak(NakCode::SequenceError)));
        true
    }

    /// Reports the gap if the missing packet is too late.
    #[inline]
    pub(super) fn report_late_gap(&mut self, now: Time) {
        if self.gaps.is_due(now) && self.state == State::Ready {
            self.nak_gap();
        }
    }

    /// Reports the first request of the peer that is expected, and so not stale or forged (J-21).
    #[inline]
    fn note_established(&mut self, env: &mut impl Env) {
        if !self.established {
            self.established = true;
            env.event(ResponderEvent::CommEstablished);
        }
    }

    pub(super) fn drop_packet(&mut self) -> Outcome {
        self.counters.dropped.increment();
        Outcome::default()
    }

    fn count_access_error(&mut self) {
        self.counters.access_errors.increment();
    }

    /// Executes the expected request of a reliable connection.
    #[inline]
    fn execute(&mut self, packet: &Packet, env: &mut impl Env) -> Result {
        use Operation as O;
        match packet.operation {
            O::ReadRequest | O::CompareSwap | O::FetchAdd | O::Flush | O::AtomicWrite => {
                self.on_read_or_atomic(packet, env)
            }
            // This refuses all other operations.
            _ => {
                self.on_send_or_write(packet, env)?;
                self.epsn = self.epsn.add(packet.packets);
                self.ack_due |= packet.bth.ackreq;
                Ok(())
            }
        }
    }

    /// Prepares the response of a reliable connection to a request.
    #[inline]
    fn respond(
        &mut self,
        now: Time,
        packet: &Packet,
        result: Result,
        env: &mut impl Env,
    ) -> Outcome {
        use {NakCode as N, ResponderEvent as E};
        let refusal = match result {
            Ok(()) => {
                if !packet.bth.ackreq && !self.resources.has_pending() {
                    return Outcome::default();
                }
                let delayed = self.delay_acknowledgement(now);
                return Outcome::transmit(!delayed);
            }
            Err(refusal) => refusal,
        };
        let (code, status, event) = match refusal {
            Refusal::Rnr => {
                self.counters.rnr_naks.increment();
                self.nak_outstanding = true;
                self.not_ready = true;
                self.gaps.forget();
                let timer = self.min_rnr_timer;
                self.nak_due = Some((self.epsn, Syndrome::RnrNak { timer }));
                return Outcome::transmit(true);
            }
            // The peer will retransmit the request.
            Refusal::Busy => {
                let _ = self.drop_packet();
                return Outcome::transmit(self.resources.has_pending());
            }
            Refusal::NotPresent => return self.await_memory(),
            Refusal::Invalidate => {
                self.count_access_error();
                // G-22: the peer gets no NAK for this request, but still the responses to earlier
                // ones.
                self.fail_recv(Status::RemInvReq, env);
                self.message = Message::None;
                self.state = State::Failing;
                self.gaps.forget();
                return Outcome::transmit(true);
            }
            Refusal::Access => {
                self.count_access_error();
                let status = self.recv_of_refused_write(packet, env);
                (N::RemoteAccess, status, E::AccessError)
            }
            Refusal::Invalid => (N::InvalidRequest, Status::RemInvReq, E::RequestError),
            Refusal::Length => (N::InvalidRequest, Status::LocLen, E::RequestError),
            Refusal::Local(fault) => (N::RemoteOperational, fault.status(), E::Fatal),
        };
        if !self.fail_recv(status, env) {
            env.event(event);
        }
        self.message = Message::None;
        self.state = State::Failing;
        self.gaps.forget();
        self.nak_due = Some((self.epsn, Syndrome::Nak(code)));
        Outcome::transmit(true)
    }

    /// Drops the expected packet, whose memory is absent, as if it had been lost. Later packets may
    /// be buffered, but no NAK asks for the packet before its memory is present: each would use up
    /// a retry of the peer.
    #[cold]
    fn await_memory(&mut self) -> Outcome {
        self.awaits_memory = true;
        self.nak_outstanding = true;
        let _ = self.drop_packet();
        Outcome::transmit(self.resources.has_pending())
    }

    /// Notes that the memory of an access that failed with [`Fault::NotPresent`] is present now.
    /// Asks for the dropped packet with a NAK Sequence Error, and continues with the READ responses
    /// whose payload was absent. A superfluous call is harmless.
    pub fn on_memory_present(&mut self) -> Outcome {
        if take(&mut self.awaits_memory) && self.state == State::Ready {
            self.nak_outstanding = false;
            self.nak_gap();
        }
        self.assert_invariants();
        Outcome::transmit(self.has_output())
    }

    /// Returns the status of the receive work request that reports a refused access. If the refused
    /// packet carries the immediate of a WRITE, that is the receive that the WRITE would have
    /// completed (IBA 11.6.2), and becomes the current one if there is any.
    #[cold]
    fn recv_of_refused_write(&mut self, packet: &Packet, env: &mut impl Env) -> Status {
        if !matches!(packet.ext, Ext::Imm(_) | Ext::RethImm(..)) {
            return Status::RemAccess;
        }
        // Without a receive, an event reports the refusal.
        let _ = self.current_recv(packet, env);
        Status::LocAccess
    }

    /// Handles a request of an unreliable connection, which has no response (H-01). A gap ends
    /// the message (H-03, H-04).
    fn on_unreliable(&mut self, packet: &Packet, env: &mut impl Env) -> Outcome {
        if MessagePart::of(packet.operation).is_some_and(|part| part.is_first) {
            // The receive work request of a broken SEND stays current and is reused (H-05).
            self.message = Message::None;
        } else if packet.psn() != self.epsn {
            self.message = Message::None;
            self.counters.out_of_sequence.increment();
            return Outcome::default();
        }
        self.note_established(env);
        self.epsn = packet.psn().add(packet.packets);
        match self.on_send_or_write(packet, env) {
            Ok(()) => Outcome::default(),
            Err(Refusal::Local(fault)) => self.fail(fault, env),
            Err(refusal) => {
                self.message = Message::None;
                if refusal != Refusal::Access {
                    return self.drop_packet();
                }
                self.count_access_error();
                Outcome::default()
            }
        }
    }

    /// Enters the Error state: the receive work request of an unreliable service has failed.
    fn fail(&mut self, fault: Fault, env: &mut impl Env) -> Outcome {
        debug_assert!(
            !self.service.is_reliable(),
            "a reliable connection fails without a NAK"
        );
        debug_assert!(self.recv.is_some(), "no receive work request fails");
        self.fail_recv(fault.status(), env);
        self.state = State::Error;
        Outcome {
            fatal: true,
            ..Outcome::default()
        }
    }

    fn on_datagram(&mut self, packet: &Packet, env: &mut impl Env) -> Outcome {
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = packet.ext else {
            return self.drop_packet();
        };
        if deth.qkey != self.qkey {
            env.event(ResponderEvent::QkeyViolation);
            return Outcome::default();
        }
        if packet.payload_len > self.mtu.bytes() {
            return self.drop_packet();
        }
        let byte_len = total([packet.payload_len as usize, GRH_LEN as usize]) as u32;
        // If there is no receive work request (E-12), or it is too small (I-04), the datagram is
        // lost. A work request that is too small waits for the next datagram.
        match self.current_recv(packet, env) {
            Ok(length) if length >= byte_len => {}
            _ => return self.drop_packet(),
        }
        match env.write_recv(GRH_LEN) {
            Ok(()) => {}
            Err(Fault::NotPresent) => return self.drop_packet(),
            Err(fault) => return self.fail(fault, env),
        }
        self.complete(packet, RecvOpcode::Recv, byte_len, env);
        Outcome::default()
    }
}
