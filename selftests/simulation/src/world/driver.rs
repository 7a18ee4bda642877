// SPDX-License-Identifier: GPL-2.0

//! The driver around the core: passes packets, time and notifications to it, buffers out-of-order
//! packets, transmits, and follows the core into Error.

use super::World;
use crate::backing::{Half, Page};
use crate::oracle::*;
use rrxe_core::wire::Syndrome;
use rrxe_core::*;
use rrxe_testkit::Frame;

/// Maximum time that a packet waits for the rest of its burst, in nanoseconds.
const MAX_BURST_GAP: u64 = 1000;

/// Maximum time that an ACK waits for an outgoing packet, in nanoseconds.
pub(super) const MAX_ACK_DELAY: u64 = 20_000;

impl World {
    pub(super) fn timer(&mut self, qp: usize) {
        let now = self.oracle.now;
        let outcome = self.with(qp, |core, env| {
            core.requester
                .handle_timeout(&mut core.slots, Time::from_ns(now), env)
        });
        // The timer must not stay expired, even if the batch is full at the retransmission.
        let next = self.cores[qp].requester.next_timeout().map(Time::ns);
        assert!(
            next.is_none_or(|at| at > now),
            "the timer of {qp} never ends"
        );
        self.after_send_side(qp, outcome);
    }

    /// Handles the outcome of a requester event.
    pub(super) fn after_send_side(&mut self, qp: usize, outcome: Outcome) {
        self.react(qp, outcome.fatal, outcome.sqe);
        if outcome.transmit || !self.oracle.config.strict {
            self.send(qp);
        }
        self.check(qp);
    }

    fn react(&mut self, qp: usize, fatal: bool, sqe: bool) {
        if fatal {
            self.error(qp);
        } else if sqe {
            self.oracle.sides[qp].state = State::Sqe;
            self.oracle.flows[qp].failed = true;
        }
    }

    /// Moves a queue pair to Error, which flushes everything.
    pub(super) fn error(&mut self, qp: usize) {
        if matches!(self.oracle.sides[qp].state, State::Error | State::Reset) {
            return;
        }
        trace!(self.oracle, "    {qp} goes to Error");
        self.oracle.sides[qp].state = State::Error;
        self.oracle.flows[qp].failed = true;
        self.cores[qp].requester.enter_error();
        self.finish_flush(qp);
        self.with(qp, |core, env| core.responder.enter_error(env));
        self.forget_buffered(qp);
        let side = &self.oracle.sides[qp];
        assert!(
            side.current.is_none(),
            "the current receive is flushed first"
        );
        for &queue in &side.queues {
            self.oracle.queues[queue].flush();
        }
        assert!(
            self.oracle.flows[qp].is_idle(),
            "queue pair {qp} did not flush everything"
        );
        self.check(qp);
    }

    /// Flushes all work requests of a requester in the state SQE or Error.
    pub(super) fn finish_flush(&mut self, qp: usize) {
        self.with(qp, |core, env| {
            while core.requester.is_flushing() {
                let progress =
                    core.requester
                        .poll_transmit(&mut core.slots, Time::from_ns(0), 0, env);
                assert_eq!(progress.more, core.requester.is_flushing());
            }
        });
    }

    pub(super) fn forget_buffered(&mut self, qp: usize) {
        for buffer in &mut self.cores[qp].reorder_buffers {
            buffer.clear();
        }
    }

    pub(super) fn send(&mut self, qp: usize) {
        self.oracle.sides[qp].send_pending = false;
        loop {
            let (now, budget) = (self.oracle.now, self.oracle.connection(qp).budget);
            self.new_batch(qp);
            self.oracle.sides[qp].rate = self.cores[qp]
                .requester
                .congestion
                .rate
                .limit(Time::from_ns(now));
            let progress = self.with(qp, |core, env| {
                core.requester
                    .poll_transmit(&mut core.slots, Time::from_ns(now), budget, env)
            });
            let more = self.after_batch(qp, budget, &progress);
            self.reply(qp);
            self.react(qp, progress.fatal, progress.sqe);
            if !more || matches!(self.oracle.sides[qp].state, State::Error) {
                break;
            }
            if self.oracle.refused || self.oracle.random.chance(50) {
                self.oracle.sides[qp].send_pending = true;
                let delay = self.oracle.random.below(500);
                self.oracle.schedule(delay.into(), Event::Send(qp));
                break;
            }
        }
        self.check(qp);
    }

    /// Sends an ACK that has waited for the packets of the requester after them.
    fn reply(&mut self, qp: usize) {
        let now = self.oracle.now;
        if self.oracle.space == 0 || self.oracle.sides[qp].emitted == 0 {
            return;
        }
        if let Some(packet) = self.cores[qp].responder.on_reply(Time::from_ns(now)) {
            trace!(self.oracle, "    {qp} has waited with its acknowledgement");
            self.with(qp, |_, env| env.send_response(&packet))
                .expect("there is space");
            let progress = self.with(qp, |core, env| {
                core.responder.poll_transmit(Time::from_ns(now), 0, env)
            });
            assert!(!progress.more, "the acknowledgement of {qp} is sent");
        }
    }

    pub(super) fn respond(&mut self, qp: usize) {
        self.oracle.sides[qp].response_pending = false;
        loop {
            let (now, budget) = (self.oracle.now, self.oracle.connection(qp).budget);
            self.new_batch(qp);
            let progress = self.with(qp, |core, env| {
                core.responder
                    .poll_transmit(Time::from_ns(now), budget, env)
            });
            let more = self.after_batch(qp, budget, &progress);
            self.react(qp, progress.fatal, progress.sqe);
            if !more || matches!(self.oracle.sides[qp].state, State::Error) {
                break;
            }
            if self.oracle.refused || self.oracle.random.chance(50) {
                self.oracle.sides[qp].response_pending = true;
                let delay = self.oracle.random.below(500);
                self.oracle.schedule(delay.into(), Event::Respond(qp));
                break;
            }
        }
        self.check(qp);
    }

    fn new_batch(&mut self, qp: usize) {
        let oracle = &mut self.oracle;
        oracle.sides[qp].emitted = 0;
        oracle.refused = false;
        oracle.space = u32::MAX;
        if !oracle.fair && oracle.random.chance(oracle.config.trouble.no_space) {
            oracle.space = oracle.random.below(4);
        }
    }

    fn after_batch(&mut self, qp: usize, budget: u32, progress: &Progress) -> bool {
        let emitted = self.oracle.sides[qp].emitted;
        assert_eq!(progress.sent, emitted, "packets of a batch of {qp}");
        assert!(emitted <= budget, "the budget of {qp}");
        assert!(
            progress.more || !self.oracle.refused,
            "refused, and nothing left"
        );
        progress.more
    }

    pub(super) fn arrival(&mut self, flight: Flight) {
        let truth = flight.truth;
        let current = self.oracle.flows[truth.flow].epoch == truth.epoch;
        let connected = self.oracle.sides[flight.to].state != State::Reset;
        if current && connected {
            self.receive(flight);
        }
    }

    fn receive(&mut self, mut flight: Flight) {
        let (qp, truth) = (flight.to, flight.truth);
        let mut packet = flight.frame.packet();
        if let Ext::Aeth(aeth) = &mut packet.ext {
            if let Syndrome::Ack { .. } = Syndrome::decode(aeth.syndrome) {
                // A peer may grant any number of credits, or none: no request may wait for them
                // forever (D-15).
                let credit = self.oracle.random.below(32) as u8;
                aeth.syndrome = Syndrome::Ack { credit }.encode();
            }
        }
        assert_eq!(packet.payload_len as usize, flight.frame.payload.len());
        assert_eq!(usize::from(packet.header_len), flight.frame.header_len);
        self.attacker
            .see(qp, &truth, &packet, &flight.frame.payload);
        self.expire_buffered(qp, &truth);
        trace!(
            self.oracle,
            "    {qp} takes {:?} psn {}",
            packet.operation,
            truth.relative
        );
        if flight.congested {
            let core = &self.cores[qp];
            let notification = if truth.response {
                core.requester.cnp(&packet)
            } else {
                core.responder.cnp(&packet)
            };
            if notification.is_some() {
                let from = self.oracle.sides[qp].peer;
                let delay = self.oracle.config.network.latency;
                self.oracle.schedule(delay, Event::Notification(from));
            }
        }
        if self.refuse_read(qp, &packet, &truth) {
            return;
        }
        if self.oracle.config.bursts && !flight.congested && packet.starts_burst() {
            packet = self.join(packet, &mut flight);
        }
        let mut outcome = self.handle(qp, packet, truth, &flight.frame.payload);
        outcome.merge(self.handle_buffered(qp, truth.response));
        if truth.response {
            self.after_send_side(qp, outcome);
            return;
        }
        // A driver first transmits and then changes the state.
        if outcome.transmit {
            self.respond(qp);
        }
        self.react(qp, outcome.fatal, outcome.sqe);
        self.check(qp);
    }

    /// Notes where a repeated READ begins. Returns whether the queue pair drops it, because the
    /// last repetition of this READ began at a later packet ([`Connection::continues_reads`]).
    ///
    /// [`Connection::continues_reads`]: crate::config::Connection::continues_reads
    fn refuse_read(&mut self, qp: usize, packet: &Packet, truth: &Truth) -> bool {
        let repeated = packet.operation == wire::Operation::ReadRequest
            && !truth.response
            && truth.relative < self.oracle.flows[truth.flow].executed;
        if !repeated || !self.oracle.connection(qp).continues_reads {
            return false;
        }
        let read = &mut self.oracle.flows[truth.flow].messages[truth.message];
        let at = truth.relative - read.first;
        let refused = at < read.repeated_from;
        read.repeated_from = read.repeated_from.max(at);
        if refused {
            trace!(self.oracle, "    {qp} refuses the repeated READ");
        }
        refused
    }

    /// Drops the buffered packets that have expired.
    fn expire_buffered(&mut self, qp: usize, truth: &Truth) {
        let now = self.oracle.now;
        let buffer = &mut self.cores[qp].reorder_buffers[usize::from(truth.response)];
        let before = buffer.len();
        buffer.expire(now);
        let config = &mut self.oracle.config;
        if !self.oracle.fair && config.peers.chance(config.trouble.expiries) {
            buffer.clear();
        }
        if buffer.len() != before {
            self.oracle.flows[truth.flow].disturb(now);
        }
    }

    /// Merges a packet with those that follow it into a burst: the next arrivals within
    /// `MAX_BURST_GAP`, with an equal header except for consecutive PSNs.
    fn join(&mut self, packet: Packet, flight: &mut Flight) -> Packet {
        let core = &self.cores[flight.to];
        let side = usize::from(flight.truth.response);
        let max = match flight.truth.response {
            _ if !core.reorder_buffers[side].is_empty() => 1,
            true => core.requester.accepts_burst(&core.slots, &packet),
            false => core.responder.accepts_burst(&packet),
        };
        let len = flight.frame.payload.len();
        let header = |frame: &Frame| *frame.head.first_chunk().expect("longer than a BTH");
        let mut next = header(&flight.frame);
        let mut packets = 1;
        while packets < max {
            next = Packet::next_header(&next);
            let Some((at, Event::Arrival(other))) = self.oracle.events.peek() else {
                break;
            };
            let alike = header(&other.frame) == next
                && (other.to, other.frame.header_len) == (flight.to, flight.frame.header_len)
                && (other.frame.pad, other.frame.payload.len()) == (flight.frame.pad, len)
                && other.truth.epoch == flight.truth.epoch
                && !other.congested;
            if !alike || at > self.oracle.now + MAX_BURST_GAP {
                break;
            }
            flight.frame.payload.extend(&other.frame.payload);
            self.oracle.take_event();
            packets += 1;
        }
        if packets > 1 {
            trace!(self.oracle, "    {} takes {packets} as a burst", flight.to);
        }
        packet.burst(packets)
    }

    /// Hands a packet to the core, and buffers it if the core asks for that.
    fn handle(&mut self, qp: usize, packet: Packet, truth: Truth, payload: &[u8]) -> Outcome {
        let now = self.oracle.now;
        self.oracle.payload.clear();
        self.oracle.payload.extend_from_slice(payload);
        self.oracle.handling = Some(truth);
        let (outcome, expected) = if truth.response {
            let outcome = self.take_response(qp, &packet, &truth);
            (outcome, self.cores[qp].requester.expected_psn())
        } else {
            let flow = &mut self.oracle.flows[truth.flow];
            let executed = flow.executed;
            if truth.relative == executed {
                flow.dropped = false;
                flow.absent = false;
            }
            let outcome = self.with(qp, |core, env| {
                core.responder
                    .handle_packet(Time::from_ns(now), &packet, env)
            });
            self.oracle.handling = None;
            if self.oracle.flows[truth.flow].service.is_reliable() {
                self.executed(qp, truth.relative == executed);
                self.check_nak(qp, &truth, executed, &outcome);
            }
            let expected = self.cores[qp].responder.expected_psn();
            (outcome, Psn::new(expected))
        };
        self.oracle.handling = None;
        let connection = self.oracle.connection(qp);
        if truth.response && connection.strict {
            assert!(
                !outcome.buffer,
                "a strict requester has {qp} buffer a response"
            );
        }
        assert!(
            !outcome.buffer || packet.packets == 1,
            "queue pair {qp} has a burst buffered"
        );
        if outcome.buffer && connection.places > 0 && !connection.strict {
            trace!(self.oracle, "    {qp} buffers psn {}", truth.relative);
            let buffer = &mut self.cores[qp].reorder_buffers[usize::from(truth.response)];
            let data = (truth, payload.to_vec());
            if !buffer.insert(now, expected, &packet, data, |a, b| a.1 == b.1) {
                self.oracle.flows[truth.flow].disturb(now);
            }
        }
        outcome
    }

    /// Hands buffered packets to the core as their turn comes.
    fn handle_buffered(&mut self, qp: usize, responses: bool) -> Outcome {
        let now = self.oracle.now;
        let mut outcome = Outcome::default();
        let side = usize::from(responses);
        loop {
            let core = &mut self.cores[qp];
            let buffer = &mut core.reorder_buffers[side];
            let next = if responses {
                buffer.next_response(&core.requester, &core.slots)
            } else {
                buffer.next_request(&core.responder)
            };
            let Some((packet, (truth, payload))) = next else {
                break;
            };
            trace!(
                self.oracle,
                "    {qp} takes {:?} psn {}, which was buffered",
                packet.operation,
                truth.relative
            );
            outcome.merge(self.handle(qp, packet, truth, &payload));
        }
        let beyond = self.cores[qp].reorder_buffers[side].len();
        let reported = if responses {
            self.with(qp, |core, env| {
                core.requester
                    .on_buffered(&mut core.slots, Time::from_ns(now), beyond, env)
            })
        } else {
            self.cores[qp]
                .responder
                .on_buffered(Time::from_ns(now), beyond)
        };
        if !responses && reported.transmit {
            let incoming = self.oracle.sides[qp].peer;
            self.oracle.flows[incoming].nak_open = true;
        }
        outcome.merge(reported);
        outcome
    }

    fn take_response(&mut self, qp: usize, packet: &Packet, truth: &Truth) -> Outcome {
        let now = self.oracle.now;
        let before = self.cores[qp].requester.counters;
        let syndrome = match packet.ext {
            Ext::Aeth(aeth) => Syndrome::decode(aeth.syndrome),
            _ => Syndrome::Reserved(0),
        };
        if let Syndrome::RnrNak { .. } = syndrome {
            self.oracle.flows[qp].rnr_naks += 1;
            self.oracle.flows[qp].rnr_now = 1;
        }
        let outstanding = self.cores[qp].requester.expected_psn();
        let outcome = self.with(qp, |core, env| {
            core.requester
                .handle_packet(&mut core.slots, Time::from_ns(now), packet, env)
        });
        self.take_credits(qp, packet, outstanding);
        let after = self.cores[qp].requester.counters;
        let expected = self.cores[qp].requester.expected_psn();
        let flow = &mut self.oracle.flows[qp];
        flow.rnr_now = 0;
        if let Syndrome::RnrNak { timer } = syndrome {
            // An RNR NAK acknowledges every packet before its PSN.
            if flow.rnr.is_some_and(|(_, from)| truth.relative > from) {
                flow.rnr = None;
            }
            // The wait begins with the first RNR NAK, even if that was itself buffered.
            let waits = flow
                .rnr
                .is_some_and(|(until, from)| from == truth.relative && until > now);
            if after.dropped == before.dropped && !waits && !outcome.fatal {
                flow.rnr = Some((now + wire::rnr_timer(timer).ns(), truth.relative));
            }
            return outcome;
        }
        // An ACK of the delayed packet ends the wait. A NAK acknowledges only the packets before
        // it. A buffered response acknowledges only the packets before the READ or atomic that it
        // waits for.
        let reached = match syndrome {
            _ if outcome.buffer => flow.relative(expected),
            Syndrome::Nak(_) => truth.relative,
            // The PSN before the first acknowledges nothing.
            _ => flow.relative(packet.psn().next()),
        };
        if flow.rnr.is_some_and(|(_, from)| reached > from) {
            flow.rnr = None;
        }
        outcome
    }

    /// Notes the credits of a response, which was handled when `una` was the oldest outstanding
    /// PSN. The requester may drop a response to another PSN, so that one only raises the limit.
    pub(super) fn take_credits(&mut self, qp: usize, packet: &Packet, una: Psn) {
        let (Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _)) = packet.ext else {
            return;
        };
        let Syndrome::Ack { credit } = Syndrome::decode(aeth.syndrome) else {
            return;
        };
        let flow = &mut self.oracle.flows[qp];
        let is_new = (flow.relative(una)..flow.sent).contains(&flow.relative(packet.psn()));
        let completed = flow.messages[..flow.completed].iter();
        let completed = completed.filter(|message| message.receives()).count();
        match wire::credits(credit) {
            None => flow.unlimited = true,
            Some(more) => {
                flow.granted = flow.granted.max(completed + more as usize);
                flow.unlimited &= !is_new;
            }
        }
    }

    /// Brings an absent page in, and notifies the halves whose accesses have failed.
    pub(super) fn present(&mut self, page: Page) {
        let now = self.oracle.now;
        for (qp, half) in self.oracle.backing.bring_in(page) {
            trace!(self.oracle, "    {qp} can access {page:?}");
            if half == Half::Send {
                self.oracle.flows[qp].response_absent = false;
                let outcome = self.with(qp, |core, _| {
                    core.requester
                        .on_memory_present(&core.slots, Time::from_ns(now))
                });
                self.after_send_side(qp, outcome);
                continue;
            }
            let state = self.oracle.sides[qp].state;
            let incoming = self.oracle.sides[qp].peer;
            let flow = &mut self.oracle.flows[incoming];
            if self.oracle.backing.is_awaited_by(qp, half) {
                // The NAK may be for a packet whose memory is still absent.
                flow.disturb(now);
            }
            let absent = std::mem::take(&mut flow.absent) && flow.service.is_reliable();
            let outcome = self.with(qp, |core, _| core.responder.on_memory_present());
            assert!(
                outcome.transmit || !absent || !matches!(state, State::Rts | State::Sqd),
                "queue pair {qp} does not ask for the packet that it has dropped"
            );
            if outcome.transmit {
                self.respond(qp);
            }
            self.check(qp);
        }
    }

    /// Handles a congestion notification, which may change only the rate (A-08, L-07).
    pub(super) fn congestion(&mut self, qp: usize) {
        let now = self.oracle.now;
        trace!(self.oracle, "    {qp} is notified of congestion");
        let core = &mut self.cores[qp];
        if core
            .requester
            .congestion
            .rate
            .limit(Time::from_ns(now))
            .is_none()
        {
            self.oracle.sides[qp].paid = now;
        }
        core.requester.on_cnp(Time::from_ns(now));
        core.responder.on_cnp(Time::from_ns(now));
        self.check(qp);
    }
}
