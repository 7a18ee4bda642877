// SPDX-License-Identifier: GPL-2.0

//! Invariants of queue pairs after each step, and bounds on time.

use super::World;
use crate::flow::Trap;
use crate::ground::*;
use crate::random::data;
use rrxe_core::*;

impl World {
    /// Checks the invariants of a queue pair after a step.
    pub(super) fn check(&mut self, qp: usize) {
        let core = &self.cores[qp];
        let ground = &mut self.ground;
        let wait = ground.longest_wait(qp);
        let (side, flow) = (&mut ground.sides[qp], &ground.flows[qp]);
        let outstanding = flow.messages.len() - flow.completed;
        assert_eq!(core.requester.outstanding() as usize, outstanding);
        side.timer = core.requester.next_timeout();
        side.answer_timer = core.responder.next_timeout();
        if side.state == State::Reset {
            return;
        }
        // A rate limit may have delayed a retransmission that is no longer needed.
        let limited = ground.config.network.marks != 0;
        if let Some(at) = side.timer {
            assert!(at > ground.now, "the timer of {qp} is to fire at once");
            assert!(at <= ground.now + wait, "the timer of {qp} is too far away");
            assert!(
                outstanding > 0 || limited,
                "the timer of {qp} waits for nothing"
            );
        }
        if !flow.service.is_reliable() {
            return;
        }
        if ground.config.connections[side.connection].strict {
            assert_eq!(
                core.requester.counters().probes,
                0,
                "a strict requester probes"
            );
        }
        assert_eq!(
            core.requester.next_psn(),
            flow.psn(flow.sent).get(),
            "the next PSN of queue pair {qp}"
        );
        let waits = flow.messages.get(flow.completed);
        let waits = waits.is_some_and(|m| m.started && !m.op.is_local());
        assert!(
            !waits || side.timer.is_some() || side.send_pending || ground.handling.is_some(),
            "queue pair {qp} waits without a timer"
        );
        assert_eq!(core.requester.outstanding_reads(), flow.reads);
        // Other queue pairs may need the receive work request.
        let incoming = &ground.flows[ground.sides[qp].peer];
        assert!(
            ground.sides[qp].current.is_none() || incoming.is_inside_of_send(),
            "queue pair {qp} has a receive work request, and no message for it"
        );
    }

    /// Checks the progress of the responder of `qp` after a packet.
    pub(super) fn executed(&mut self, qp: usize, expected: bool) {
        let incoming = self.ground.sides[qp].peer;
        let epsn = Psn::new(self.cores[qp].responder.expected_psn());
        let ground = &mut self.ground;
        let host = ground.sides[qp].host;
        let flow = &mut ground.flows[incoming];
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
        ground.progress += 1;
        while let Some(message) = flow.messages.get_mut(flow.cursor) {
            if message.op.is_local() {
                flow.cursor += 1;
                continue;
            }
            let end = message.first + message.packets;
            if end > reached {
                let inside = reached > message.first && !message.op.is_read_or_atomic();
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
                SendOp::Read => {
                    message.result = ground.hosts[host].memory[bytes].to_vec();
                }
                SendOp::Write | SendOp::WriteImm => {
                    let there = &ground.hosts[host].memory[bytes];
                    assert!(
                        there == data(message.data, message.len),
                        "a WRITE was executed, and its bytes are not there"
                    );
                }
                SendOp::CompareSwap
                | SendOp::FetchAdd
                | SendOp::SendInv
                | SendOp::Flush
                | SendOp::AtomicWrite => {
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
            self.cores[qp].responder.msn(),
            flow.msn,
            "the MSN of queue pair {qp}"
        );
    }

    /// Checks that a gap is reported exactly once until the missing packet arrives (B-08 to B-10,
    /// B-13).
    pub(super) fn check_nak(&mut self, qp: usize, truth: &Truth, executed: u32, transmit: bool) {
        let side = &self.ground.sides[qp];
        let alive = matches!(side.state, State::Rts | State::Sqd);
        // The NAK may already be pending because the batch had no room for it.
        let pending = side.answer_pending;
        let flow = &mut self.ground.flows[truth.flow];
        if truth.relative == executed {
            // Without a receive work request, the requester must send it again.
            flow.nak_open = flow.executed == executed;
            flow.naks = 0;
        } else if truth.relative > executed && !flow.nak_open {
            let told = transmit || pending || !alive;
            assert!(told, "queue pair {qp} keeps a gap to itself");
            flow.nak_open = true;
        }
    }

    /// Ends the network impairments at some time, and then checks that every flow makes progress.
    pub(super) fn check_time(&mut self) {
        let ground = &mut self.ground;
        if !ground.fair {
            let end = match self.end {
                Some(end) => end,
                None if ground.flows.iter().all(|f| f.left == 0) => {
                    ground.now + ground.config.afterwards
                }
                // A limit on the time that consumers take to post.
                None if ground.now > 10_000_000_000 => ground.now,
                None => return,
            };
            self.end = Some(end);
            if ground.now >= end {
                ground.fair = true;
                trace!(ground, "the network is fair from here on");
            }
            self.progress = (ground.progress, ground.now);
            return;
        }
        if ground.progress != self.progress.0 {
            self.progress = (ground.progress, ground.now);
            return;
        }
        let mut bound = 0;
        for (qp, flow) in ground.flows.iter().enumerate() {
            let dead = ground.sides[ground.sides[qp].peer].state == State::Error;
            let silent = dead || flow.deregistered || flow.mismatched;
            let wait = ground.longest_wait(qp);
            bound = bound.max(if silent { 10 * wait } else { 2 * wait });
        }
        bound += 200_000 + 4 * u64::from(ground.config.pace);
        assert!(
            ground.now - self.progress.1 <= bound,
            "nothing gets on for {} ns, although the network is fair",
            ground.now - self.progress.1
        );
    }
}
