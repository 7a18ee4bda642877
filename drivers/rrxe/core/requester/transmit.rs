// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The transmit direction of the requester.

use super::request::{DriverPart, Fence, Remote, SendExt, SendOp, SendSlot, SlotState};
use super::{Ctx, Requester, RequesterEnv as Env, State, GSI_QPN, MAX_RESPONSES};
use crate::congestion::CongestionControl;
use crate::psn::{self, Psn};
use crate::wire::{AtomicEth, Bth, Deth, Ieth, Opcode, Reth, XrcEth};
use crate::{
    AtomicOp, Fault, Increment, Minus, Mtu, Payload, Progress, RingCounter, Service, Status, Time,
    TxError, TxPacket,
};

/// A call of [`Requester::poll_transmit`]: the number of packets that it may send, and its result.
pub(super) struct Poll {
    pub(super) budget: u32,
    pub(super) progress: Progress,
}

impl<C: CongestionControl> Requester<C> {
    /// Sends at most `budget` packets. A work request that needs no packet counts as one. In the
    /// states SQE and Error, flushes at most [`MAX_FLUSH`](super::MAX_FLUSH) work requests.
    pub fn poll_transmit<E: Env>(
        &mut self,
        slots: &mut [SendSlot<E::Local>],
        now: Time,
        budget: u32,
        env: &mut E,
    ) -> Progress {
        let cx = &mut Ctx { slots, now, env };
        let mut progress = Progress::default();
        self.congestion.stop_waiting();
        if matches!(self.state, State::SendError | State::Error) {
            self.flush(cx);
            progress.more = self.is_flushing();
        }
        if self.state != State::Ready || self.awaits_memory || self.waits_for_ready(self.psn.una) {
            return progress;
        }
        let poll = &mut Poll { budget, progress };
        let mut proceed = true;
        if self.release_repair(cx.now) {
            proceed = self.send_repair(cx, poll);
        }
        if proceed {
            proceed = self.send_gaps(cx, poll);
        }
        let mut without_packet = 0_u32;
        while proceed && self.queue.next != self.queue.head && !self.waits_for_ready(self.psn.next)
        {
            if poll.progress.left(poll.budget) <= without_packet {
                poll.progress.more = self.can_send(cx.slots);
                break;
            }
            let sent = poll.progress.sent;
            proceed = self.execute_next(cx, poll);
            if poll.progress.sent == sent {
                without_packet.increment();
            }
        }
        let outcome = self.complete_failed(cx);
        poll.progress.fatal = outcome.fatal;
        poll.progress.sqe = outcome.sqe;
        poll.progress.more |= self.is_flushing();
        debug_assert!(
            poll.progress.sent <= poll.budget,
            "more packets were sent than permitted"
        );
        self.assert_invariants(cx.slots);
        poll.progress
    }

    /// Sends packets of the work request at `next`, or executes it locally. Returns whether the
    /// queue can go on.
    #[inline]
    fn execute_next(&mut self, cx: &mut Ctx<'_, impl Env>, poll: &mut Poll) -> bool {
        debug_assert!(
            self.queue.next != self.queue.head,
            "no work request is left to execute"
        );
        debug_assert!(poll.progress.sent < poll.budget, "no packet is permitted");
        let Some(slot) = Self::slot_mut(cx.slots, self.queue.next) else {
            return false;
        };
        if slot.op.is_local() {
            if !self.run_local(slot, cx.env) {
                return false;
            }
            self.queue.next.advance();
            self.complete_local(cx);
            return true;
        }
        if !self.may_send(slot) {
            if slot.op.is_read_or_atomic() && self.max_rd_atomic == 0 {
                slot.progress.state = SlotState::Failed(Status::LocQpOp);
            }
            return false;
        }
        // A datagram is one packet (IBA 9.8.3). A longer one is not sent, but completes without an
        // error (C10-93.1.1, I-02).
        if self.service == Service::Ud && slot.length > self.mtu.bytes() {
            slot.progress.state = SlotState::Started;
            self.credits.on_sent(&slot.op);
            self.queue.next.advance();
            self.complete_sent(cx);
            return true;
        }
        if !self.congestion.admit(cx.now) {
            return false;
        }
        if let SendOp::Invalid(fault) = slot.op {
            slot.progress.state = SlotState::Failed(fault.status());
            return false;
        }
        let max = poll.progress.left(poll.budget);
        let (sent, result) = self.send_packets(slot, cx.now, max, cx.env);
        poll.progress.note_sent(sent);
        match result {
            Ok(false) => {}
            Ok(true) => {
                self.credits.on_sent(&slot.op);
                self.queue.next.advance();
                if !self.service.is_reliable() {
                    self.complete_sent(cx);
                }
            }
            Err(error) => match error.permanent() {
                Some(fault) => slot.progress.state = SlotState::Failed(fault.status()),
                None => poll.progress.more |= error == TxError::Full,
            },
        }
        result.is_ok()
    }

    /// Retransmits the oldest unacknowledged packet, if the rate limit permits. Returns whether the
    /// queue can go on.
    fn send_repair(&mut self, cx: &mut Ctx<'_, impl Env>, poll: &mut Poll) -> bool {
        if poll.budget == 0 {
            poll.progress.more = true;
            return false;
        }
        let tail = self.slot(cx.slots, self.queue.tail);
        if self.psn.next == self.psn.una || tail.is_none_or(|slot| !slot.is_started()) {
            self.loss.repair = None;
            return true;
        }
        if !self.congestion.admit(cx.now) {
            // The rate limiter holds back all other packets, too.
            return true;
        }
        let sent = self.send_again(cx, poll, self.queue.tail, self.psn.una);
        let Some(slot) = Self::slot_mut(cx.slots, self.queue.tail) else {
            return false;
        };
        if let Err(error) = sent {
            if let Some(fault) = error.permanent() {
                slot.progress.state = SlotState::Failed(fault.status());
            }
            return false;
        }
        if self.retry.deadline.is_none() {
            self.arm_ack_timer(cx.now);
        }
        let len = self.on_repair_sent(cx.now, slot);
        if !slot.op.is_read_or_atomic() {
            self.extend_repair(cx, poll, len);
        }
        true
    }

    /// Retransmits the packets after the lost one that are believed to be missing, too.
    fn extend_repair(&mut self, cx: &mut Ctx<'_, impl Env>, poll: &mut Poll, len: u32) {
        let mut number = self.queue.tail;
        let mut psn = self.psn.una.next();
        let max = len.min(self.psn.next.since(self.psn.una));
        while psn.since(self.psn.una) < max
            && poll.progress.sent < poll.budget
            && self.congestion.admit(cx.now)
        {
            let slot = self.slot(cx.slots, number);
            let slot = slot.filter(|slot| slot.is_started() && !slot.op.is_read_or_atomic());
            let Some(slot) = slot else {
                return;
            };
            if slot.op.is_local() || psn.since(slot.progress.first_psn) >= slot.progress.packets {
                number.advance();
                continue;
            }
            // A packet that cannot be sent now is retransmitted when nothing before it is missing.
            if self.send_again(cx, poll, number, psn).is_err() {
                return;
            }
            psn = psn.next();
        }
    }

    /// Retransmits a packet of the started work request at this counter value.
    pub(super) fn send_again(
        &mut self,
        cx: &mut Ctx<'_, impl Env>,
        poll: &mut Poll,
        number: RingCounter,
        psn: Psn,
    ) -> Result<(), TxError> {
        let Some(slot) = Self::slot_mut(cx.slots, number) else {
            return Err(Fault::Malformed.into());
        };
        debug_assert!(slot.contains(psn), "a retransmission of what was not sent");
        let packet = self.build(slot, psn, true);
        if let Err(error) = cx.env.transmit(&packet, 1, slot).1 {
            poll.progress.more |= error == TxError::Full;
            return Err(error);
        }
        self.congestion.on_sent(cx.now, packet.udp_payload_len(), 1);
        slot.progress.retried = true;
        poll.progress.note_sent(1);
        self.counters.retransmitted.increment();
        Ok(())
    }

    /// Returns whether [`Requester::poll_transmit`] would do something now.
    pub(super) fn can_send<P: DriverPart>(&self, slots: &[SendSlot<P>]) -> bool {
        if self.state != State::Ready || self.awaits_memory || self.waits_for_ready(self.psn.next) {
            return false;
        }
        match self.slot(slots, self.queue.next) {
            Some(slot) if slot.op.is_local() => self.local_may_run(slot),
            Some(slot) => self.may_send(slot),
            None => false,
        }
    }

    /// Returns whether the work request at `next` may send a packet.
    #[inline]
    fn may_send<P: DriverPart>(&self, slot: &SendSlot<P>) -> bool {
        let may = match slot.progress.state {
            SlotState::Failed(_) => false,
            SlotState::Started => true,
            SlotState::Posted => {
                let outstanding = self.psn.next.since(self.psn.una);
                // READ responses fill the path, too. A single READ may exceed the window, and a
                // second one keeps the path busy while the first one ends.
                let responses_full = outstanding >= MAX_RESPONSES && self.reads > 0
                    || outstanding >= self.flight_limit() && self.reads > 1;
                let reads_full = slot.op.is_read_or_atomic() && self.reads >= self.max_rd_atomic
                    || slot.op.is_read() && responses_full;
                let fenced = !self.passes_fence(slot);
                let psns = psn::MAX_OUTSTANDING.checked_sub(outstanding);
                let fits = psns.is_some_and(|left| slot.progress.packets <= left);
                !self.paused && !fenced && !reads_full && fits
            }
        };
        may && self.in_flight() < self.flight_limit()
            && !self.awaits_peer_test()
            && self.has_credit(slot)
    }

    /// Returns whether an RNR NAK forbids sending this unacknowledged PSN for now.
    #[inline]
    fn waits_for_ready(&self, psn: Psn) -> bool {
        self.retry
            .rnr_wait
            .is_some_and(|wait| psn.since(self.psn.una) >= wait.from.since(self.psn.una))
    }

    /// Returns the number of request packets sent and not acknowledged.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        let outstanding = self.psn.next.since(self.psn.una);
        outstanding.saturating_sub(self.psn.responses)
    }

    /// Returns the number of packets before the next one that asks for an acknowledgement.
    #[inline]
    fn until_ackreq(&self) -> u32 {
        let before = self.congestion.ackreq_after().saturating_sub(1);
        before.saturating_sub(self.psn.since_ackreq)
    }

    /// Returns how many packets from `psn.next` on, in the middle of a message, have the same
    /// headers and so form a burst.
    #[inline]
    fn burst_length<P: DriverPart>(&self, slot: &SendSlot<P>, at: u32, max: u32, now: Time) -> u32 {
        if !slot.is_started() || at == 0 || !slot.op.carries_data() || self.retry.rnr_wait.is_some()
        {
            return 1;
        }
        // The last packet has another header, and so has one that asks for an acknowledgement.
        let middle = slot.last_psn().since(self.psn.next);
        let until_ackreq = if self.service.is_reliable() {
            self.until_ackreq()
        } else {
            middle
        };
        let space = self.flight_limit().saturating_sub(self.in_flight());
        // Only retransmissions are counted, so a burst must not mix them with new packets.
        let alike = match self.psn.end.since(self.psn.next) {
            0 => middle,
            again => again,
        };
        let sendable = until_ackreq
            .min(space)
            .min(max)
            .min(self.congestion.burst(now));
        let burst = middle.min(alike).min(sendable).max(1);
        debug_assert!(burst <= max.max(1), "a burst exceeds the budget");
        burst
    }

    /// Sends the packet at `psn.next`, or a burst of up to `max` packets. Returns how many were
    /// sent, and whether they ended the message or why the next one was not sent.
    #[inline]
    fn send_packets<E: Env>(
        &mut self,
        slot: &mut SendSlot<E::Local>,
        now: Time,
        max: u32,
        env: &mut E,
    ) -> (u32, Result<bool, TxError>) {
        if !slot.is_started() {
            // If the batch is full, the next attempt may start at another PSN.
            slot.progress.first_psn = self.psn.next;
        }
        let at = self.psn.next.since(slot.progress.first_psn);
        let last = slot.ends_at(at);
        let burst = self.burst_length(slot, at, max, now);
        let ackreq = burst == 1
            && self.service.is_reliable()
            && (last
                || self.rtt.is_unknown() && self.psn.next == self.psn.end
                || self.until_ackreq() == 0
                || self.congestion.take_ackreq(now));
        debug_assert!(
            burst == 1 || !last,
            "the last packet is in the middle of a message"
        );
        let packet = self.build(slot, self.psn.next, ackreq);
        let (sent, result) = env.transmit(&packet, burst, slot);
        debug_assert!(sent <= burst, "more packets were accepted than offered");
        debug_assert!(
            result.is_err() || sent == burst,
            "packets were refused without a reason"
        );
        if sent != 0 {
            self.congestion.on_sent(now, packet.udp_payload_len(), sent);
            self.note_sent(slot, now, sent, ackreq);
        }
        (sent, result.map(|()| last))
    }

    /// Notes that `packets` packets from `psn.next` on were handed over.
    #[inline]
    fn note_sent<P: DriverPart>(
        &mut self,
        slot: &mut SendSlot<P>,
        now: Time,
        packets: u32,
        ackreq: bool,
    ) {
        // A READ request takes a PSN for each response, but is one packet.
        let psns = if slot.op.is_read() {
            slot.last_psn().next().since(self.psn.next)
        } else {
            packets
        };
        debug_assert!(psns >= packets, "a packet without a PSN");
        debug_assert!(
            !slot.op.is_read() || packets == 1,
            "a READ is one request packet"
        );
        let since_ackreq = self.psn.since_ackreq.wrapping_add(packets);
        self.psn.since_ackreq = if ackreq { 0 } else { since_ackreq };
        if !slot.is_started() {
            slot.progress.state = SlotState::Started;
            if slot.op.is_read_or_atomic() {
                self.reads.increment();
            }
        }
        let sent_before = self.psn.next != self.psn.end;
        if sent_before {
            slot.progress.retried = true;
            self.counters.retransmitted.add(packets);
        } else if ackreq
            && (self.rtt.is_unknown() || self.reads <= u8::from(slot.op.is_read_or_atomic()))
        {
            // After a READ, whose time is part of the sample, only to have any.
            self.rtt.timed.get_or_insert((self.psn.next, now));
        }
        let begins = self.psn.next == self.psn.una;
        self.psn.next = self.psn.next.add(psns);
        if self.psn.next.since(self.psn.una) > self.psn.end.since(self.psn.una) {
            self.psn.end = self.psn.next;
        }
        if self.service.is_reliable() {
            if begins {
                self.rtt.flight_start = now;
                self.congestion.on_flight(self.psn.una, now);
            }
            self.psn.responses = self.psn.responses.wrapping_add(psns.minus(packets));
            if self.retry.deadline.is_none() {
                self.arm_ack_timer(now);
                self.arm_probe(now);
            }
        } else {
            // Unreliable services have no responses (H-07): the packets are done.
            self.psn.una = self.psn.next;
        }
    }

    // Inlined because otherwise the packet is returned through memory and copied twice.
    #[inline(always)]
    fn build<P: DriverPart>(&self, slot: &SendSlot<P>, psn: Psn, ackreq: bool) -> TxPacket {
        let at = psn.since(slot.progress.first_psn);
        debug_assert!(at < slot.progress.packets, "a packet beyond the message");
        debug_assert!(!slot.op.is_local(), "a local operation has no packet");
        debug_assert!(
            !matches!(slot.op, SendOp::Invalid(_)),
            "a malformed work request is sent"
        );
        let last = slot.ends_at(at);
        let operation = slot.operation(at == 0, last);
        let offset = self.mtu.offset(at);
        let dest_qpn = match slot.op {
            SendOp::Datagram { to, .. } => to.qpn,
            _ => self.dest_qpn,
        };
        let bth = Bth {
            // Only a message that consumes a receive work request can be solicited (G-20).
            solicited: last && slot.solicited && slot.op.uses_receive(),
            ackreq,
            ..Bth::new(Opcode::new(self.service, operation), dest_qpn, psn)
        };
        let mut packet = TxPacket::new(bth, slot.payload(offset, self.mtu), last);
        if self.service == Service::Xrc {
            packet.push(XrcEth { srqn: slot.srqn }.to_bytes());
        }
        match slot.op {
            SendOp::Datagram { imm, to } => {
                packet.push(self.deth(to.qkey).to_bytes());
                if let Some(imm) = imm {
                    packet.push(imm.0);
                }
            }
            SendOp::Send { ext } if last => match ext {
                SendExt::None => {}
                SendExt::Imm(imm) => packet.push(imm.0),
                SendExt::Invalidate(rkey) => packet.push(Ieth { rkey }.to_bytes()),
            },
            SendOp::Write { to, imm } => {
                if at == 0 {
                    packet.push(slot.reth(to, offset).to_bytes());
                }
                if let (Some(imm), true) = (imm, last) {
                    packet.push(imm.0);
                }
            }
            SendOp::Read { from: at } | SendOp::AtomicWrite { to: at, .. } => {
                packet.push(slot.reth(at, offset).to_bytes());
            }
            SendOp::Flush { at, feth } => {
                packet.push(feth.to_bytes());
                packet.push(slot.reth(at, offset).to_bytes());
            }
            SendOp::Atomic { at, op } => packet.push(atomic_eth(at, op).to_bytes()),
            SendOp::Send { .. } | SendOp::Local(_) | SendOp::Invalid(_) => {}
        }
        packet
    }

    /// Returns the DETH. A Q_Key with the top bit set stands for the queue pair's own, which
    /// the general services queue pair always sends (IBA 10.2.5).
    #[inline]
    fn deth(&self, qkey: u32) -> Deth {
        let own = qkey & 0x8000_0000 != 0 || self.src_qpn == GSI_QPN;
        Deth {
            qkey: if own { self.qkey } else { qkey },
            src_qpn: self.src_qpn,
        }
    }

    /// Returns whether the work requests for which this one at `next` waits are complete.
    #[inline]
    fn passes_fence<P: DriverPart>(&self, slot: &SendSlot<P>) -> bool {
        match slot.fence {
            Fence::None => true,
            Fence::Reads => self.reads == 0,
            Fence::All => self.queue.next == self.queue.tail,
        }
    }

    #[inline]
    fn local_may_run<P: DriverPart>(&self, slot: &SendSlot<P>) -> bool {
        match slot.progress.state {
            SlotState::Posted => !self.paused && self.passes_fence(slot),
            SlotState::Started => true,
            SlotState::Failed(_) => false,
        }
    }

    /// Executes a local operation, unless that was done before a retransmission. Returns whether
    /// the queue can go on.
    fn run_local<E: Env>(&self, slot: &mut SendSlot<E::Local>, env: &mut E) -> bool {
        debug_assert!(slot.op.is_local(), "a packet is executed locally");
        if !self.local_may_run(slot) {
            return false;
        }
        if slot.is_started() {
            return true;
        }
        // It has a position among the PSNs, but takes none.
        slot.progress.first_psn = self.psn.next;
        slot.progress.state = match env.local_op(slot) {
            Ok(()) => SlotState::Started,
            Err(status) => SlotState::Failed(status),
        };
        slot.is_started()
    }

    /// Completes every work request handed over (UC and UD).
    fn complete_sent(&mut self, cx: &mut Ctx<'_, impl Env>) {
        while self.queue.tail != self.queue.next && self.complete_tail(cx, Status::Success, 0) {}
    }

    /// Starts the timers of the packets in flight that have none, because their timer was disabled
    /// when they were sent. The driver calls this after [`Requester::set_timeout`].
    pub fn start_timers(&mut self, now: Time) {
        let in_flight = self.service.is_reliable() && self.psn.next != self.psn.una;
        if in_flight && self.retry.deadline.is_none() {
            self.arm_ack_timer(now);
            self.arm_probe(now);
        }
    }

    /// Starts the acknowledge timer if a sent packet awaits an acknowledgement.
    ///
    /// IBA 9.7.6.1.3 allows one to four times the consumer's timeout. The timer takes one, as
    /// hardware does: programs choose the timeout and the number of retries so that they learn of a
    /// dead peer in time.
    pub(super) fn arm_ack_timer(&mut self, now: Time) {
        let timeout = self
            .attr
            .ack_timeout
            .filter(|_| self.psn.una != self.psn.end);
        self.retry.deadline = timeout.map(|time| now + time);
        debug_assert!(
            self.service.is_reliable(),
            "an unreliable service waits for a response"
        );
    }

    /// Returns whether this PSN was sent and is not acknowledged.
    #[inline]
    pub(super) fn is_outstanding(&self, psn: Psn) -> bool {
        psn.since(self.psn.una) < self.psn.end.since(self.psn.una)
    }
}

impl<P: DriverPart> SendSlot<P> {
    /// Returns whether the request packet with this index is the last one. A READ request is one
    /// packet, from any index on.
    #[inline]
    fn ends_at(&self, at: u32) -> bool {
        at >= self.last_index() || self.op.is_read()
    }

    #[inline]
    fn payload(&self, offset: u32, mtu: Mtu) -> Payload {
        if !self.op.carries_data() {
            return Payload::None;
        }
        match self.length.saturating_sub(offset).min(mtu.bytes()) {
            0 => Payload::None,
            len => Payload::Send { offset, len },
        }
    }

    /// Returns the RETH. A retransmitted READ starts at its first missing byte.
    #[inline]
    fn reth(&self, start: Remote, offset: u32) -> Reth {
        Reth {
            va: start.va.wrapping_add(u64::from(offset)),
            rkey: start.rkey,
            len: self.length.saturating_sub(offset),
        }
    }
}

#[inline]
fn atomic_eth(Remote { va, rkey }: Remote, op: AtomicOp) -> AtomicEth {
    let (swap_add, compare) = match op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd { add } => (add, 0),
    };
    AtomicEth {
        va,
        rkey,
        swap_add,
        compare,
    }
}
