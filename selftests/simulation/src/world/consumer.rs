// SPDX-License-Identifier: GPL-2.0

//! The consumers: they post, drain, break, reset and reconnect queue pairs.

use super::{Core, World};
use crate::oracle::*;
use rrxe_core::*;

/// A consumer's next turn comes within this fraction of its longest wait.
const LATEST_TURN: u64 = 50;

impl World {
    /// Runs one turn of a consumer.
    pub(super) fn turn(&mut self, qp: usize) {
        self.next_turn(qp);
        self.post_receives(qp);
        match self.oracle.sides[qp].state {
            State::Reset => return,
            State::Error => {
                self.broken(qp);
                return;
            }
            State::Sqe if self.oracle.random.chance(300) => {
                self.finish_flush(qp);
                self.cores[qp].requester.start();
                self.oracle.sides[qp].state = State::Rts;
                let flow = &mut self.oracle.flows[qp];
                flow.failed = false;
                // Flushed work requests used no PSNs.
                flow.psns = flow.sent;
            }
            State::Sqd if self.oracle.fair || self.oracle.random.chance(200) => {
                trace!(self.oracle, "    {qp} resumes");
                self.cores[qp].requester.start();
                self.oracle.sides[qp].state = State::Rts;
            }
            _ => {}
        }
        if !self.oracle.fair {
            self.trouble(qp);
            self.forge(qp);
        }
        if !matches!(self.oracle.sides[qp].state, State::Error | State::Reset) {
            self.post(qp);
        }
    }

    /// Schedules a consumer's next turn. The delay doubles with each turn without progress.
    fn next_turn(&mut self, qp: usize) {
        let oracle = &mut self.oracle;
        let (seen, idle) = oracle.sides[qp].turns;
        let idle = if seen == oracle.progress {
            (idle + 1).min(20)
        } else {
            0
        };
        oracle.sides[qp].turns = (oracle.progress, idle);
        let pace = u64::from(1 + oracle.random.below(oracle.config.pace));
        let longest = pace.max(oracle.longest_wait(qp) / LATEST_TURN);
        oracle.schedule((pace << idle).min(longest), Event::Turn(qp));
    }

    fn post_receives(&mut self, qp: usize) {
        let side = &self.oracle.sides[qp];
        if !matches!(side.state, State::Error | State::Reset) {
            for queue in side.queues.clone() {
                self.fill(queue);
            }
        }
    }

    /// Posts receive work requests to a queue.
    fn fill(&mut self, index: usize) {
        let oracle = &mut self.oracle;
        let (queue, random) = (&mut oracle.queues[index], &mut oracle.random);
        let bad = oracle.config.trouble.bad_receives;
        let keep = if oracle.fair { 16 } else { queue.keep };
        while queue.waiting() < keep {
            if !oracle.fair && random.chance(300) {
                break;
            }
            let (mut len, mut fault) = (queue.longest + 40, None);
            if !oracle.fair && random.chance(bad) {
                match random.chance(500) {
                    true => {
                        let bound = random.pick(&[300, queue.longest + 1]);
                        len = random.below(bound);
                    }
                    false => fault = Some(Fault::Protection),
                }
            }
            queue.post(index, len, fault);
        }
    }

    /// Posts a few send work requests.
    fn post(&mut self, qp: usize) {
        let max = self.oracle.random.below(6);
        for _ in 0..max {
            if self.oracle.flows[qp].left == 0 {
                break;
            }
            let Core {
                requester, slots, ..
            } = &self.cores[qp];
            if !requester.can_post(slots) {
                break;
            }
            let (message, request) = self.make_up(qp);
            let Core {
                requester, slots, ..
            } = &mut self.cores[qp];
            let slot = requester.free_slot(slots).expect("there is space");
            let oracle = &mut self.oracle;
            let local = oracle.flows[qp].messages.len();
            *slot = SendSlot { local, ..request };
            requester.post(slot);
            trace!(oracle, "    {qp} posts message {local}: {message:?}");
            let flow = &mut oracle.flows[qp];
            flow.psns += message.packets;
            flow.numbered += u32::from(!message.op.typed().is_local());
            flow.messages.push(message);
            flow.left -= 1;
            oracle.requests += 1;
        }
        if max > 0 && !self.oracle.sides[qp].send_pending {
            self.send(qp);
        }
    }

    /// Runs the disruptive actions of a consumer.
    fn trouble(&mut self, qp: usize) {
        let trouble = self.oracle.config.trouble;
        let random = &mut self.oracle.random;
        if random.chance(20) {
            // A spurious timer call is harmless.
            let now = self.oracle.now;
            let outcome = self.with(qp, |core, env| {
                core.requester
                    .handle_timeout(&mut core.slots, Time::from_ns(now), env)
            });
            self.after_send_side(qp, outcome);
        }
        let rts = self.oracle.sides[qp].state == State::Rts;
        if rts && self.oracle.random.chance(trouble.drains) {
            trace!(self.oracle, "    {qp} pauses");
            self.cores[qp].requester.pause();
            // Consumers may change this attribute in SQD. No pending response is lost.
            let count = usize::from(self.oracle.connection(qp).max_dest_rd_atomic);
            let resources = vec![Resource::default(); count];
            self.cores[qp].responder.set_resources(resources);
            self.oracle.sides[qp].state = State::Sqd;
        }
        if self.oracle.random.chance(trouble.deregistrations) {
            trace!(self.oracle, "    {qp} deregisters");
            let peer = self.oracle.sides[qp].peer;
            let host = self.oracle.sides[qp].host;
            let flow = &mut self.oracle.flows[peer];
            flow.deregistered = true;
            let key = flow.rkey;
            self.oracle.hosts[host].regions.retain(|r| r.key != key);
        }
        if self.oracle.random.chance(trouble.errors) {
            self.error(qp);
        } else if self.oracle.random.chance(trouble.resets) {
            let connection = self.oracle.sides[qp].connection;
            self.reset(connection);
            self.connect(connection);
        }
    }

    /// Reconnects a queue pair in Error, or gives it up.
    fn broken(&mut self, qp: usize) {
        let connection = self.oracle.sides[qp].connection;
        if self.oracle.random.chance(200) && self.oracle.flows[qp].left > 0 {
            // Work requests posted in Error are flushed.
            self.post(qp);
        }
        if !self
            .oracle
            .random
            .chance(if self.oracle.fair { 1000 } else { 100 })
        {
            return;
        }
        if self.reconnects[connection] == 0 {
            for end in self.ends(connection) {
                self.error(end);
                self.oracle.flows[end].left = 0;
            }
            return;
        }
        self.reconnects[connection] -= 1;
        self.reset(connection);
        self.connect(connection);
    }
}
