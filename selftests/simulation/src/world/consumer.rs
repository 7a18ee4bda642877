// SPDX-License-Identifier: GPL-2.0

//! The consumers: they post, drain, break, reset and reconnect queue pairs.

use super::{Core, World};
use crate::ground::*;
use rrxe_core::*;

/// A consumer's next turn comes within this fraction of its longest wait.
const LATEST_TURN: u64 = 50;

impl World {
    /// Runs one turn of a consumer.
    pub(super) fn turn(&mut self, qp: usize) {
        self.next_turn(qp);
        self.post_receives(qp);
        match self.ground.sides[qp].state {
            State::Reset => return,
            State::Error => {
                self.broken(qp);
                return;
            }
            State::Sqe if self.ground.random.chance(300) => {
                self.cores[qp].requester.start();
                self.ground.sides[qp].state = State::Rts;
                let flow = &mut self.ground.flows[qp];
                flow.failed = false;
                // Flushed work requests used no PSNs.
                flow.psns = flow.sent;
            }
            State::Sqd if self.ground.fair || self.ground.random.chance(200) => {
                trace!(self.ground, "    {qp} resumes");
                self.cores[qp].requester.resume();
                self.ground.sides[qp].state = State::Rts;
            }
            _ => {}
        }
        if !self.ground.fair {
            self.trouble(qp);
            self.forge(qp);
        }
        if !matches!(self.ground.sides[qp].state, State::Error | State::Reset) {
            self.post(qp);
        }
    }

    /// Schedules a consumer's next turn. The delay doubles with each turn without progress.
    fn next_turn(&mut self, qp: usize) {
        let ground = &mut self.ground;
        let (seen, idle) = ground.sides[qp].turns;
        let idle = match seen == ground.progress {
            true => (idle + 1).min(20),
            false => 0,
        };
        ground.sides[qp].turns = (ground.progress, idle);
        let pace = u64::from(1 + ground.random.below(ground.config.pace));
        let longest = pace.max(ground.longest_wait(qp) / LATEST_TURN);
        ground.schedule((pace << idle).min(longest), Event::Turn(qp));
    }

    fn post_receives(&mut self, qp: usize) {
        let side = &self.ground.sides[qp];
        if !matches!(side.state, State::Error | State::Reset) {
            for queue in side.queues.clone() {
                self.fill(queue);
            }
        }
    }

    /// Posts receive work requests to a queue.
    fn fill(&mut self, index: usize) {
        let ground = &mut self.ground;
        let (queue, random) = (&mut ground.queues[index], &mut ground.random);
        let bad = ground.config.trouble.bad_receives;
        let keep = if ground.fair { 16 } else { queue.keep };
        while queue.waiting() < keep {
            if !ground.fair && random.chance(300) {
                break;
            }
            let (mut len, mut fault) = (queue.longest + 40, None);
            if !ground.fair && random.chance(bad) {
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
        let most = self.ground.random.below(6);
        for _ in 0..most {
            if self.ground.flows[qp].left == 0 {
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
            let slot = requester.post(slots, request).expect("there is room");
            let ground = &mut self.ground;
            trace!(
                ground,
                "    {qp} posts message {}: {message:?}",
                ground.flows[qp].messages.len()
            );
            let flow = &mut ground.flows[qp];
            ground.sides[qp].slots[slot as usize] = flow.messages.len();
            flow.psns += message.packets;
            flow.numbered += u32::from(!message.op.is_local());
            flow.messages.push(message);
            flow.left -= 1;
            ground.requests += 1;
        }
        if most > 0 && !self.ground.sides[qp].send_pending {
            self.send(qp);
        }
    }

    /// Runs the disruptive actions of a consumer.
    fn trouble(&mut self, qp: usize) {
        let trouble = self.ground.config.trouble;
        let random = &mut self.ground.random;
        if random.chance(20) {
            // A spurious timer call is harmless.
            let now = self.ground.now;
            let outcome = self.with(qp, |core, env| {
                core.requester.handle_timeout(&mut core.slots, now, env)
            });
            self.after_send_side(qp, outcome);
        }
        let rts = self.ground.sides[qp].state == State::Rts;
        if rts && self.ground.random.chance(trouble.drains) {
            trace!(self.ground, "    {qp} pauses");
            self.cores[qp].requester.pause();
            // Consumers may change this attribute in SQD. No pending response is lost.
            let count = usize::from(self.ground.connection(qp).max_dest_rd_atomic);
            let resources = vec![Resource::default(); count];
            self.cores[qp].responder.set_resources(resources);
            self.ground.sides[qp].state = State::Sqd;
        }
        if self.ground.random.chance(trouble.deregistrations) {
            trace!(self.ground, "    {qp} deregisters");
            let peer = self.ground.sides[qp].peer;
            let host = self.ground.sides[qp].host;
            let flow = &mut self.ground.flows[peer];
            flow.deregistered = true;
            let key = flow.rkey;
            self.ground.hosts[host].regions.retain(|r| r.key != key);
        }
        if self.ground.random.chance(trouble.errors) {
            self.error(qp);
        } else if self.ground.random.chance(trouble.resets) {
            let connection = self.ground.sides[qp].connection;
            self.reset(connection);
            self.connect(connection);
        }
    }

    /// Reconnects a queue pair in Error, or gives it up.
    fn broken(&mut self, qp: usize) {
        let connection = self.ground.sides[qp].connection;
        if self.ground.random.chance(200) && self.ground.flows[qp].left > 0 {
            // Work requests posted in Error are flushed.
            self.post(qp);
        }
        if !self
            .ground
            .random
            .chance(if self.ground.fair { 1000 } else { 100 })
        {
            return;
        }
        if self.reconnects[connection] == 0 {
            for end in self.ends(connection) {
                self.error(end);
                self.ground.flows[end].left = 0;
            }
            return;
        }
        self.reconnects[connection] -= 1;
        self.reset(connection);
        self.connect(connection);
    }
}
