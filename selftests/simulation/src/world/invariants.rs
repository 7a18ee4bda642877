// SPDX-License-Identifier: GPL-2.0

//! Invariants of queue pairs after each step, and bounds on time.

use super::World;
use crate::backing::Half;
use crate::data::data;
use crate::flow::Trap;
use crate::oracle::*;
use rrxe_core::*;
use rrxe_testkit::Op;

/// Longest time, in nanoseconds, after which a responder reports a gap.
const MAX_GAP_DELAY: u64 = 4_000_000;

impl World {
    /// Checks the invariants of a queue pair after a step.
    pub(super) fn check(&mut self, qp: usize) {
        let core = &self.cores[qp];
        let oracle = &mut self.oracle;
        let wait = oracle.longest_wait(qp);
        let (side, flow) = (&mut oracle.sides[qp], &oracle.flows[qp]);
        let outstanding = flow.messages.len() - flow.completed;
        assert_eq!(core.requester.outstanding() as usize, outstanding);
        side.timer = core.requester.next_timeout().map(Time::ns);
        side.responder_timer = core.responder.next_timeout().map(Time::ns);
        if side.state == State::Reset {
            return;
        }
        if let Some(at) = side.timer {
            assert!(at > oracle.now, "the timer of {qp} is to fire at once");
            assert!(at <= oracle.now + wait, "the timer of {qp} is too far away");
            assert!(outstanding > 0, "the timer of {qp} waits for nothing");
        }
        if !flow.service.is_reliable() {
            return;
        }
        if oracle.config.connections[side.connection].strict {
            assert_eq!(
                core.requester.counters.probes, 0,
                "a strict requester probes"
            );
        }
        assert_eq!(
            core.requester.next_psn(),
            flow.psn(flow.sent).get(),
            "the next PSN of queue pair {qp}"
        );
        let waits = flow.messages.get(flow.completed);
        let waits = waits.is_some_and(|m| m.started && !m.op.typed().is_local());
        let absent = oracle.backing.is_awaited_by(qp, Half::Send);
        let timed = side.timer.is_some() || side.send_pending;
        assert!(
            !waits || timed || absent || oracle.handling.is_some(),
            "queue pair {qp} waits without a timer"
        );
        assert_eq!(u32::from(core.requester.reads), flow.reads);
        // A gap that was not reported is reported later.
        let incoming = &oracle.flows[oracle.sides[qp].peer];
        let alive = matches!(oracle.sides[qp].state, State::Rts | State::Sqd);
        if let Some(since) = incoming.gap.filter(|_| !incoming.nak_open && alive) {
            let side = &oracle.sides[qp];
            // A NAK is sent after the READ responses before it, which a rate limit or absent memory
            // may delay.
            let last = since + MAX_GAP_DELAY;
            let limited = oracle.config.network.marks != 0;
            let absent = oracle.backing.is_awaited_by(qp, Half::Recv);
            let reports = side.responder_timer.is_some_and(|at| at <= last || limited);
            assert!(
                reports || side.response_pending || absent || oracle.handling.is_some(),
                "queue pair {qp} never reports a gap"
            );
        }
        // Other queue pairs may need the receive work request.
        assert!(
            oracle.sides[qp].current.is_none() || incoming.is_inside_of_send() || incoming.dropped,
            "queue pair {qp} has a receive work request, and no message for it"
        );
    }

    /// Checks the progress of the responder of `qp` after a packet.
    pub(super) fn executed(&mut self, qp: usize, expected: bool) {
        let incoming = self.oracle.sides[qp].peer;
        let epsn = Psn::new(self.cores[qp].responder.expected_psn());
        let oracle = &mut self.oracle;
        let host = oracle.sides[qp].host;
        let flow = &mut oracle.flows[incoming];
        let reached = flow.relative(epsn);
        if reached == flow.executed {
            return;
        }
        assert!(
            expected,
            "queue pair {qp} executed a packet that was not next"
        );
        assert!(
            flow.executed < reached && reached <= flow.sent,
            "queue pair {qp} expects PSN {reached}, after {}, of {}",
            flow.executed,
            flow.sent
        );
        flow.executed = reached;
        oracle.progress += 1;
        while let Some(message) = flow.messages.get_mut(flow.cursor) {
            if message.op.typed().is_local() {
                flow.cursor += 1;
                continue;
            }
            let end = message.first + message.packets;
            if end > reached {
                let inside = reached > message.first && !message.op.typed().is_read_or_atomic();
                assert!(
                    inside || reached == message.first,
                    "queue pair {qp} expects PSN {reached}, inside of a READ or atomic"
                );
                break;
            }
            let refused = matches!(
                message.trap,
                Trap::Access | Trap::Alignment | Trap::Invalidate | Trap::Queue
            );
            assert!(!refused, "a wrong request was executed: {message:?}");
            let bytes = message.place..message.place + message.len as usize;
            match message.op {
                Op::Read => {
                    message.result = oracle.hosts[host].memory[bytes].to_vec();
                }
                Op::Write | Op::WriteImm => {
                    let there = &oracle.hosts[host].memory[bytes];
                    assert!(
                        there == data(message.data, message.len),
                        "a WRITE was executed, and its bytes are not there"
                    );
                }
                Op::CompareSwap | Op::FetchAdd | Op::SendInv | Op::Flush | Op::AtomicWrite => {
                    assert!(message.done, "passed over: {message:?}");
                }
                _ => {}
            }
            if message.receives() {
                assert!(flow.receiving > flow.cursor, "passed over: {message:?}");
            }
            flow.msn = message.number + 1;
            flow.cursor += 1;
        }
        assert_eq!(
            self.cores[qp].responder.msn.get(),
            flow.msn,
            "the MSN of queue pair {qp}"
        );
    }

    /// Checks that a gap is reported exactly once until the missing packet arrives (B-08 to B-10,
    /// B-13): at once, or later if packets beyond it may be buffered.
    pub(super) fn check_nak(&mut self, qp: usize, truth: &Truth, executed: u32, outcome: &Outcome) {
        let side = &self.oracle.sides[qp];
        let alive = matches!(side.state, State::Rts | State::Sqd);
        // The NAK may already be pending because the batch had no space for it.
        let pending = side.response_pending;
        let connection = &self.oracle.config.connections[side.connection];
        let may_wait = connection.places > 0 && !connection.strict;
        let now = self.oracle.now;
        let flow = &mut self.oracle.flows[truth.flow];
        if truth.relative == executed {
            // Without a receive work request, or with absent memory, the requester must send it
            // again.
            flow.nak_open = flow.executed == executed;
            flow.naks = 0;
            flow.gap = None;
        } else if truth.relative > executed && !flow.nak_open {
            let told = outcome.transmit || pending || !alive;
            let waits = may_wait && outcome.buffer;
            assert!(told || waits, "queue pair {qp} does not report a gap");
            flow.nak_open = told;
            flow.gap = flow.gap.or((!told).then_some(now));
        }
    }

    /// Ends the network impairments at some time, and then checks that every flow makes progress.
    pub(super) fn check_time(&mut self) {
        let oracle = &mut self.oracle;
        if !oracle.fair {
            let end = match self.end {
                Some(end) => end,
                None if oracle.flows.iter().all(|f| f.left == 0) => {
                    oracle.now + oracle.config.afterwards
                }
                // A limit on the time that consumers take to post.
                None if oracle.now > 10_000_000_000 => oracle.now,
                None => return,
            };
            self.end = Some(end);
            if oracle.now >= end {
                oracle.fair = true;
                trace!(oracle, "the network is fair from here on");
            }
            self.progress = (oracle.progress, oracle.now);
            return;
        }
        if oracle.progress != self.progress.0 {
            self.progress = (oracle.progress, oracle.now);
            return;
        }
        let mut bound = 0;
        for (qp, flow) in oracle.flows.iter().enumerate() {
            let dead = oracle.sides[oracle.sides[qp].peer].state == State::Error;
            let silent = dead || flow.deregistered || flow.mismatched;
            let wait = oracle.longest_wait(qp);
            bound = bound.max(if silent { 10 * wait } else { 2 * wait });
        }
        bound += 200_000 + 4 * u64::from(oracle.config.pace);
        assert!(
            oracle.now - self.progress.1 <= bound,
            "nothing gets on for {} ns, although the network is fair",
            oracle.now - self.progress.1
        );
    }
}
