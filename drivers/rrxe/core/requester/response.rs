// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receive direction of the requester: applies responses and timers to the outstanding work
//! requests (IBA 9.7.6, which calls this side the completer).

use super::credits::credit_code;
use super::loss::{Cause, Repaired};
use super::request::SlotState;
use super::{
    Ctx, DriverPart, Requester, RequesterEnv as Env, RnrWait, SendSlot, State, MAX_FLUSH,
    MAX_RNR_BACKOFF, RNR_RETRY_INFINITE,
};
use crate::congestion::CongestionControl;
use crate::psn::Psn;
use crate::reorder::MAX_DISTANCE;
use crate::wire::{rnr_timer, Aeth, NakCode, Operation, Syndrome};
use crate::{Ext, Fault, Outcome, Packet, Span, Status, Time};

/// Result of processing an acknowledgement.
struct Acked {
    /// The response to a READ or atomic before it is missing, and only that response completes the
    /// request (F-11, F-18).
    missing_response: bool,
    /// The repair that it acknowledges.
    repaired: Option<Repaired>,
}

impl<C: CongestionControl> Requester<C> {
    /// Handles a response. Drops any other packet.
    pub fn handle_packet<E: Env>(
        &mut self,
        slots: &mut [SendSlot<E::Local>],
        now: Time,
        packet: &Packet,
        env: &mut E,
    ) -> Outcome {
        let cx = &mut Ctx { slots, now, env };
        if !self.is_mine(packet) {
            return self.drop_packet();
        }
        if !packet.bth.is_in_partition() {
            self.counters.bad_pkeys.increment();
            return Outcome::default();
        }
        let credit = credit_code(packet);
        if !self.is_outstanding(packet.psn()) {
            if packet.operation == Operation::Acknowledge && packet.psn().next() == self.psn.una {
                self.rtt.on_duplicate();
            }
            if let Some(code) = self.credit_update(packet, credit) {
                self.credits.grant(code);
                return Outcome::transmit(self.can_send(cx.slots));
            }
            self.on_response_within_read(packet);
            self.gaps.duplicate(packet.psn());
            self.loss.duplicate(packet);
            return self.drop_packet();
        }
        debug_assert!(
            packet.packets == 1 || packet.operation == Operation::ReadResponseMiddle,
            "a burst of other packets than READ responses"
        );
        use Operation as O;
        // Only a positive acknowledgement has credits.
        let handled = match (packet.operation, packet.ext) {
            (O::Acknowledge, Ext::Aeth(aeth)) => Ok(self.on_acknowledge(cx, packet.psn(), aeth)),
            (O::AtomicAcknowledge, Ext::AtomicAck(_, ack)) if credit.is_some() => {
                self.on_atomic_ack(cx, packet, ack.original)
            }
            (O::ReadResponseMiddle, _) => self.on_read_response(cx, packet),
            (O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly, _)
                if credit.is_some() =>
            {
                self.on_read_response(cx, packet)
            }
            _ => Ok(self.drop_packet()),
        };
        let mut outcome = handled.unwrap_or_else(|status| self.fail_tail(cx, status, 0));
        // A packet farther away may be forged. The requester asks for missing packets again.
        outcome.buffer &= packet.psn().since(self.psn.una) < MAX_DISTANCE;
        // Credits of a response beyond an outstanding READ or atomic count from there, and are
        // fewer than granted.
        if let Some(code) = credit {
            self.credits.grant(code);
        }
        outcome.merge(self.process_refused(cx));
        outcome.merge(self.complete_failed(cx));
        outcome.transmit |= self.release_repair(cx.now);
        outcome.transmit |= self.can_send(cx.slots);
        self.assert_invariants(cx.slots);
        outcome
    }

    /// Handles a NAK Sequence Error that arrived before the responses to earlier READs, if these
    /// have arrived now. A peer that keeps out-of-order requests may have received the missing one
    /// meanwhile, so its response may be late only.
    fn process_refused(&mut self, cx: &mut Ctx<'_, impl Env>) -> Outcome {
        if self.loss.refused != Some(self.psn.una) || self.state != State::Ready {
            return Outcome::default();
        }
        self.loss.refused = None;
        if self.loss.repair.is_some() || self.psn.next == self.psn.una {
            return Outcome::default();
        }
        if self.note_nak(None) {
            return self.retry(cx);
        }
        self.gaps.on_beyond(self.psn.una, self.psn.una, cx.now);
        Outcome::default()
    }

    /// Returns how many packets of a burst that starts with this one ([`Packet::starts_burst`]) may
    /// be handled at once: those certain to be expected, and at least 1.
    #[inline]
    pub fn accepts_burst<P: DriverPart>(&self, slots: &[SendSlot<P>], packet: &Packet) -> u32 {
        if !self.is_mine(packet)
            || !packet.bth.is_in_partition()
            || packet.operation != Operation::ReadResponseMiddle
            || packet.psn() != self.psn.una
            || packet.payload_len != self.mtu.bytes()
        {
            return 1;
        }
        let read = self.slot(slots, self.queue.tail);
        let read = read.filter(|slot| slot.op.is_read() && slot.is_within(packet.psn()));
        // The last response has another header, and a PSN not yet asked for again is not
        // outstanding.
        read.map_or(1, |slot| {
            let middle = slot.last_psn().since(packet.psn());
            middle.min(self.psn.end.since(packet.psn())).max(1)
        })
    }

    /// Returns whether a buffered packet with this PSN can be handled now: nothing that must
    /// precede it is missing.
    #[inline]
    pub fn is_due<P: DriverPart>(&self, slots: &[SendSlot<P>], psn: Psn) -> bool {
        let tail = self.slot(slots, self.queue.tail);
        psn == self.psn.una || tail.is_none_or(|slot| !slot.op.is_read_or_atomic())
    }

    /// Notes that `beyond` packets are buffered ([`crate::Reorder`]) after the driver has handled
    /// those that were due. If the gap before them exceeds the tolerated reordering, the requester
    /// asks for the missing responses (F-12), unless that has been done.
    pub fn on_buffered<E: Env>(
        &mut self,
        slots: &mut [SendSlot<E::Local>],
        now: Time,
        beyond: u32,
        env: &mut E,
    ) -> Outcome {
        let cx = &mut Ctx { slots, now, env };
        let awaits_response = |slot: &SendSlot<_>| slot.op.is_read_or_atomic() && slot.is_started();
        let awaits_response = self
            .slot(cx.slots, self.queue.tail)
            .is_some_and(awaits_response);
        if beyond == 0 || !awaits_response || self.state != State::Ready {
            return Outcome::default();
        }
        if !self.gaps.observe(self.psn.una, beyond, now) {
            return Outcome::default();
        }
        let outcome = self.report_gap(cx);
        self.assert_invariants(cx.slots);
        outcome
    }

    /// Handles expired timers. An early call is harmless.
    pub fn handle_timeout<E: Env>(
        &mut self,
        slots: &mut [SendSlot<E::Local>],
        now: Time,
        env: &mut E,
    ) -> Outcome {
        let cx = &mut Ctx { slots, now, env };
        let mut outcome = Outcome::default();
        self.retry.rnr_wait = self.retry.rnr_wait.filter(|wait| wait.until > cx.now);
        if self.congestion.wakeup().is_some_and(|at| at <= cx.now) {
            self.congestion.stop_waiting();
        }
        if self.loss.probe_at.is_some_and(|at| at <= cx.now) {
            self.probe();
        }
        if self.gaps.is_due(cx.now) {
            outcome.merge(self.report_gap(cx));
        }
        let expired = self.retry.deadline.is_some_and(|at| at <= cx.now);
        let restarted = expired && self.restart_late_timer(cx.now);
        if expired && !restarted {
            self.retry.deadline = None;
            self.implied_nak = false;
            self.counters.timeouts.increment();
            let reduced = self.congestion.on_timeout();
            self.note_reduction(reduced);
            outcome.merge(self.retry(cx));
        }
        outcome.transmit |= self.release_repair(cx.now);
        outcome.transmit |= self.can_send(cx.slots);
        debug_assert!(
            self.next_timeout().is_none_or(|at| at > cx.now),
            "an expired timer is still armed"
        );
        self.assert_invariants(cx.slots);
        outcome
    }

    /// Restarts the acknowledge timer if this host is so late to handle its expiry that it may not
    /// have handled the response either. Returns whether it did.
    fn restart_late_timer(&mut self, now: Time) -> bool {
        let late = |at: Time| {
            let timeout = self.attr.ack_timeout.unwrap_or_default();
            now.since(at) > timeout / 2
        };
        let late = self.retry.deadline.is_some_and(late) && self.retry.excuse();
        if late {
            self.arm_ack_timer(now);
        }
        late
    }

    /// Drops a response whose memory is absent, and stops transmission and all timers until
    /// [`Requester::on_memory_present`]. It arrived in order, so nothing is lost, and the retry
    /// count starts again.
    #[cold]
    fn await_memory(&mut self) -> Outcome {
        self.rewind();
        self.awaits_memory = true;
        self.retry.left = self.attr.retry_count;
        self.drop_packet()
    }

    /// Notes that the memory of an access that failed with [`Fault::NotPresent`] is present now.
    /// Transmission continues: with the packet whose payload was absent, or with the oldest
    /// unacknowledged one if a response was dropped. A superfluous call is harmless.
    pub fn on_memory_present<P: DriverPart>(
        &mut self,
        slots: &[SendSlot<P>],
        now: Time,
    ) -> Outcome {
        self.awaits_memory = false;
        let outcome = Outcome::transmit(self.release_repair(now) || self.can_send(slots));
        self.assert_invariants(slots);
        outcome
    }

    /// Enters the Error state and forgets the packets in flight. [`Requester::poll_transmit`] then
    /// completes all outstanding work requests as flushed, in order (J-13).
    pub fn enter_error(&mut self) {
        self.state = State::Error;
        self.stop();
    }

    fn drop_packet(&mut self) -> Outcome {
        self.counters.dropped.increment();
        Outcome::default()
    }

    /// Handles an ACKNOWLEDGE packet whose PSN is outstanding.
    fn on_acknowledge(&mut self, cx: &mut Ctx<'_, impl Env>, psn: Psn, aeth: Aeth) -> Outcome {
        match Syndrome::decode(aeth.syndrome) {
            Syndrome::Ack { .. } => {
                let acked = self.acknowledge(cx, psn.next());
                let read = self.slot(cx.slots, self.queue.tail).filter(|slot| {
                    let ends_by = slot.last_psn().since(self.psn.una) <= psn.since(self.psn.una);
                    acked.missing_response && ends_by
                });
                if let Some(read) = read {
                    let own = read.contains(psn);
                    let mut outcome = self.implied_nak(cx, psn);
                    // An acknowledgement within the READ is useless once the READ has its response,
                    // so it is not buffered.
                    outcome.buffer &= !own;
                    return outcome;
                }
                if let Some(repaired) = acked.repaired {
                    self.after_repair(repaired, cx.now);
                }
                Outcome::default()
            }
            // The requested retransmission is already arranged, and nothing was sent since.
            Syndrome::RnrNak { .. } if psn == self.psn.una && self.psn.next == self.psn.una => {
                self.drop_packet()
            }
            Syndrome::RnrNak { timer } => self.on_rnr_nak(cx, psn, timer),
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::SequenceError => return self.on_sequence_nak(cx, psn),
                    NakCode::InvalidRequest => Status::RemInvReq,
                    NakCode::RemoteAccess => Status::RemAccess,
                    NakCode::RemoteOperational => Status::RemOp,
                };
                // A responder may refuse a READ in the middle of its responses (G-28), which come
                // in order. If an earlier response is missing, it was lost, or the NAK is forged.
                if self.acknowledge(cx, psn).missing_response {
                    return self.implied_nak(cx, psn);
                }
                self.fail_tail(cx, status, aeth.syndrome)
            }
            Syndrome::Reserved(_) => self.drop_packet(),
        }
    }

    fn on_rnr_nak(&mut self, cx: &mut Ctx<'_, impl Env>, psn: Psn, timer: u8) -> Outcome {
        let acked = self.acknowledge(cx, psn);
        self.wait_for_ready(cx, psn, rnr_timer(timer));
        if acked.missing_response {
            return self.implied_nak(cx, psn);
        }
        self.counters.rnr_naks.increment();
        if self.attr.rnr_retry != RNR_RETRY_INFINITE {
            let Some(left) = self.retry.rnr_left.checked_sub(1) else {
                let syndrome = Syndrome::RnrNak { timer }.encode();
                return self.fail_tail(cx, Status::RnrRetryExc, syndrome);
            };
            self.retry.rnr_left = left;
        }
        // The packet arrived in order, so nothing is lost and the retry count starts again. (Peers
        // that violate B-13 by sending Sequence NAKs for the packets after it would use up the
        // retries.)
        self.retry.left = self.attr.retry_count;
        self.rewind();
        Outcome::default()
    }

    fn on_sequence_nak(&mut self, cx: &mut Ctx<'_, impl Env>, psn: Psn) -> Outcome {
        if psn == self.psn.una && self.nak_is_stale(cx.now) {
            return self.drop_packet();
        }
        let acked = self.acknowledge(cx, psn);
        if acked.missing_response {
            // The NAK is not buffered: it has the PSN of the response to the missing request.
            self.loss.refused = self.buffers().then_some(psn);
            return Outcome {
                buffer: false,
                ..self.implied_nak(cx, psn)
            };
        }
        self.counters.sequence_naks.increment();
        if self.psn.next == self.psn.una || self.note_nak(acked.repaired) {
            return self.retry(cx);
        }
        let len = self.next_repair_len(acked.repaired);
        self.repair_loss(cx, Cause::Nak, len)
    }

    /// Handles a READ response whose PSN is outstanding. Returns the status with which the oldest
    /// work request fails, if it does.
    #[inline]
    fn on_read_response(
        &mut self,
        cx: &mut Ctx<'_, impl Env>,
        packet: &Packet,
    ) -> Result<Outcome, Status> {
        let psn = packet.psn();
        // A response acknowledges everything before it. If an outstanding READ or atomic (this one
        // included) stops that, something in between is missing: ask for it at once (F-12).
        if psn != self.psn.una && self.acknowledge(cx, psn).missing_response {
            if self.buffers() && !self.awaits_memory {
                self.note_response(cx.slots, psn);
            }
            let mut outcome = self.implied_nak(cx, psn);
            outcome.transmit |= self.loss.gaps_are_due();
            return Ok(outcome);
        }
        let read = self.slot(cx.slots, self.queue.tail).filter(|slot| {
            slot.contains(psn) && slot.op.is_read_or_atomic() && !slot.op.is_atomic()
        });
        let slot = read.ok_or(Status::BadResp)?;
        let at = psn.since(slot.progress.first_psn);
        let last = at == slot.last_index();
        debug_assert!(
            packet.packets == 1 || packet.packets <= slot.last_psn().since(psn),
            "a burst includes the last response"
        );
        if !slot.accepts_response(packet.operation, at == 0, last) {
            // A responder that lost a response on its own side may continue with the opcode of the
            // next one (rdma_rxe does if its host's queue is full). Its payload may not be the
            // requested one, so ask again.
            if self.retry.left == 0 {
                return Err(Status::BadResp);
            }
            return Ok(self.ask_again(cx));
        }
        let offset = self.mtu.offset(at);
        // The response to a FLUSH or atomic write only confirms completion (G-25, G-26).
        let length = if slot.op.is_read() { slot.length } else { 0 };
        let max = self.mtu.offset(packet.packets);
        if packet.payload_len != length.saturating_sub(offset).min(max) {
            return Err(Status::LocLen);
        }
        if packet.payload_len != 0 {
            let written = cx.env.write_read_response(slot, offset);
            if written == Err(Fault::NotPresent) {
                return Ok(self.await_memory());
            }
            written.map_err(Fault::status)?;
        }
        let starts = matches!(
            packet.operation,
            Operation::ReadResponseFirst | Operation::ReadResponseOnly
        );
        let again = starts && slot.progress.retried;
        let original = at != 0 && self.on_response_within_read(packet);
        let before = self.psn.una;
        self.psn.una = psn.add(packet.packets);
        if last {
            self.complete_acknowledged(cx);
        } else {
            self.psn.responses = self.psn.responses.saturating_sub(packet.packets);
        }
        self.on_progress(before, original, again, cx.now);
        if original {
            // Asking for it again was superfluous.
            self.gaps.duplicate(psn);
        }
        if last {
            self.after_read(cx.now);
        }
        Ok(Outcome::default())
    }

    /// Handles an ATOMIC ACKNOWLEDGE whose PSN is outstanding. Returns the status with which the
    /// oldest work request fails, if it does.
    fn on_atomic_ack(
        &mut self,
        cx: &mut Ctx<'_, impl Env>,
        packet: &Packet,
        original: u64,
    ) -> Result<Outcome, Status> {
        let psn = packet.psn();
        if self.acknowledge(cx, psn).missing_response {
            return Ok(self.implied_nak(cx, psn));
        }
        let slot = self
            .slot(cx.slots, self.queue.tail)
            .filter(|slot| packet.payload_len == 0 && slot.op.is_atomic() && slot.contains(psn))
            .ok_or(Status::BadResp)?;
        let written = cx.env.write_atomic_result(slot, original);
        if written == Err(Fault::NotPresent) {
            return Ok(self.await_memory());
        }
        written.map_err(Fault::status)?;
        let before = self.psn.una;
        self.psn.una = psn.next();
        self.complete_acknowledged(cx);
        self.on_progress(before, false, false, cx.now);
        self.after_read(cx.now);
        Ok(Outcome::default())
    }

    /// Acknowledges everything before `limit`, which is at most one beyond the last PSN sent:
    /// completes SENDs and WRITEs, and stops at a READ or atomic.
    fn acknowledge(&mut self, cx: &mut Ctx<'_, impl Env>, limit: Psn) -> Acked {
        debug_assert!(
            limit.since(self.psn.una) <= self.psn.end.since(self.psn.una),
            "an acknowledgement of what was not sent"
        );
        let before = self.psn.una;
        let mut missing_response = false;
        while self.psn.una != limit && !missing_response {
            let Some(slot) = self.slot(cx.slots, self.queue.tail) else {
                debug_assert!(false, "a PSN is outstanding without a work request");
                break;
            };
            debug_assert!(!slot.op.is_local(), "a local operation is outstanding");
            let end = slot.last_psn().next();
            if slot.op.is_read_or_atomic() {
                missing_response = true;
            } else if slot.is_started() && end.since(self.psn.una) <= limit.since(self.psn.una) {
                self.psn.una = end;
                self.complete_acknowledged(cx);
            } else {
                self.psn.una = limit;
            }
        }
        let mut repaired = None;
        if self.psn.una != before {
            repaired = self.on_progress(before, false, false, cx.now);
        }
        Acked {
            missing_response,
            repaired,
        }
    }

    /// Handles an RNR NAK for this PSN: delays the packet and its successors by at least `time`
    /// (E-05), and by an eighth of the time for which the peer has not been ready.
    ///
    /// Otherwise two queue pairs of one host that retry without end, with the shortest timer, would
    /// keep a CPU busy in softirqs, which are charged to no program. Once the delay has reached
    /// [`MAX_RNR_BACKOFF`], the driver also limits the retries of all queue pairs of a user.
    fn wait_for_ready(&mut self, cx: &mut Ctx<'_, impl Env>, from: Psn, time: Span) {
        if self.retry.rnr_wait.is_some_and(|wait| wait.from == from) {
            // The NAK was repeated, or held back for reordering.
            return;
        }
        let since = *self.retry.rnr_since.get_or_insert(cx.now);
        let longer = cx.now.since(since) / 8;
        let mut until = cx.now + time.max(longer.min(MAX_RNR_BACKOFF));
        if longer > MAX_RNR_BACKOFF {
            until = until.max(cx.env.reserve_rnr_retry(cx.now));
        }
        debug_assert!(until >= cx.now, "a wait until a time that is over");
        self.retry.rnr_wait = Some(RnrWait { from, until });
    }

    /// Handles a later response while that to the oldest READ or atomic is missing: has the driver
    /// buffer the later one, or asks for the missing one once.
    fn implied_nak(&mut self, cx: &mut Ctx<'_, impl Env>, psn: Psn) -> Outcome {
        if !self.buffers() {
            return self.ask_again(cx);
        }
        self.gaps.on_beyond(self.psn.una, psn, cx.now);
        Outcome {
            buffer: true,
            ..Outcome::default()
        }
    }

    /// Asks for the missing responses before the buffered ones.
    #[cold]
    fn report_gap(&mut self, cx: &mut Ctx<'_, impl Env>) -> Outcome {
        self.gaps.report();
        // A pending retransmission of everything includes this packet.
        if self.loss.repair.is_some() || self.is_asked() || self.psn.next == self.psn.una {
            return Outcome::default();
        }
        self.counters.implied_naks.increment();
        self.repair_loss(cx, Cause::Gap, 1)
    }

    /// Asks again for everything from the oldest READ or atomic on, once until there is progress.
    fn ask_again(&mut self, cx: &mut Ctx<'_, impl Env>) -> Outcome {
        if self.implied_nak || self.awaits_memory {
            return Outcome::default();
        }
        self.counters.implied_naks.increment();
        let outcome = self.retry(cx);
        self.implied_nak = true;
        outcome
    }

    /// Retransmits `len` packets from the oldest unacknowledged one on, or gives up (F-06).
    fn repair_loss(&mut self, cx: &mut Ctx<'_, impl Env>, cause: Cause, len: u32) -> Outcome {
        if !self.use_retry() {
            return self.fail_tail(cx, Status::RetryExc, 0);
        }
        // The timer restarts when the packet is sent.
        self.retry.deadline = None;
        self.declare_lost(cx.now, cause, len);
        Outcome::transmit(true)
    }

    /// Retransmits from the oldest unacknowledged packet on, or gives up (F-03, F-06).
    fn retry(&mut self, cx: &mut Ctx<'_, impl Env>) -> Outcome {
        if !self.use_retry() {
            return self.fail_tail(cx, Status::RetryExc, 0);
        }
        self.rewind();
        Outcome::transmit(true)
    }

    /// Completes the oldest work request. Returns whether there was one.
    pub(super) fn complete_tail(
        &mut self,
        cx: &mut Ctx<'_, impl Env>,
        status: Status,
        syndrome: u8,
    ) -> bool {
        let Some(slot) = self.slot(cx.slots, self.queue.tail) else {
            return false;
        };
        if slot.op.is_read_or_atomic() && slot.is_started() {
            debug_assert!(
                self.reads != 0 || self.state != State::Ready,
                "READs and atomics are miscounted"
            );
            self.reads = self.reads.saturating_sub(1);
        }
        let completion = slot.completion(status, syndrome);
        cx.env.complete(slot, completion);
        if self.queue.next == self.queue.tail {
            self.credits.on_sent(&slot.op);
            self.queue.next.advance();
        }
        self.credits.on_completed(&slot.op);
        self.queue.tail.advance();
        true
    }

    /// Completes the oldest work request, which is acknowledged or has its response, and the
    /// executed local operations after it.
    fn complete_acknowledged(&mut self, cx: &mut Ctx<'_, impl Env>) {
        let completed = self.complete_tail(cx, Status::Success, 0);
        debug_assert!(completed, "no work request completes");
        self.complete_local(cx);
    }

    /// Completes the executed local operations at the tail.
    pub(super) fn complete_local(&mut self, cx: &mut Ctx<'_, impl Env>) {
        let executed = |slot: &SendSlot<_>| slot.op.is_local() && slot.is_started();
        while self.slot(cx.slots, self.queue.tail).is_some_and(executed) {
            self.complete_tail(cx, Status::Success, 0);
        }
    }

    /// Completes the oldest work request if it failed locally.
    pub(super) fn complete_failed(&mut self, cx: &mut Ctx<'_, impl Env>) -> Outcome {
        let tail = self.slot(cx.slots, self.queue.tail);
        match tail.map(|slot| slot.progress.state) {
            Some(SlotState::Failed(status)) => self.fail_tail(cx, status, 0),
            _ => Outcome::default(),
        }
    }

    /// Completes the oldest work request with an error, which stops the queue: RC enters Error, UC
    /// and UD enter SQE (J-09, J-11). [`Requester::poll_transmit`] flushes the work requests after
    /// it.
    fn fail_tail(&mut self, cx: &mut Ctx<'_, impl Env>, status: Status, syndrome: u8) -> Outcome {
        debug_assert!(status != Status::Success, "a failure without a reason");
        let failed = self.complete_tail(cx, status, syndrome);
        debug_assert!(failed, "no work request fails");
        let fatal = self.service.is_reliable();
        self.state = if fatal {
            State::Error
        } else {
            State::SendError
        };
        self.stop();
        Outcome {
            fatal,
            sqe: !fatal,
            transmit: self.is_flushing(),
            ..Outcome::default()
        }
    }

    /// Completes at most [`MAX_FLUSH`] work requests as flushed.
    pub(super) fn flush(&mut self, cx: &mut Ctx<'_, impl Env>) {
        debug_assert!(
            matches!(self.state, State::SendError | State::Error),
            "work requests are flushed in a state that executes them"
        );
        for _ in 0..MAX_FLUSH {
            let Some(slot) = self.slot(cx.slots, self.queue.tail) else {
                return;
            };
            let status = match slot.progress.state {
                SlotState::Failed(status) => status,
                _ => Status::WrFlush,
            };
            self.complete_tail(cx, status, 0);
        }
    }

    /// Forgets the packets in flight and all timers.
    fn stop(&mut self) {
        self.psn.una = self.psn.end;
        self.rewind();
        self.reads = 0;
        self.implied_nak = false;
        self.awaits_memory = false;
        self.retry.rnr_wait = None;
        self.retry.rnr_since = None;
        self.congestion.stop_waiting();
    }
}

impl<P: DriverPart> SendSlot<P> {
    /// Returns whether the opcode of a READ response fits its place in the whole response. The
    /// response to a retransmitted READ may start anywhere (C-07); delayed responses to the
    /// original are valid.
    #[inline]
    fn accepts_response(&self, response: Operation, first: bool, last: bool) -> bool {
        match response {
            Operation::ReadResponseFirst => (first || self.progress.retried) && !last,
            Operation::ReadResponseMiddle => !first && !last,
            Operation::ReadResponseLast => !first && last,
            Operation::ReadResponseOnly => (first || self.progress.retried) && last,
            _ => false,
        }
    }
}
