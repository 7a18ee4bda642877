// SPDX-License-Identifier: GPL-2.0

//! The world of one seed: end points, their consumers, and time.

use crate::config::Config;
use crate::env::{operands, qkey, Env};
use crate::flow::{Flow, Message, Trap};
use crate::ground::*;
use crate::random::{data, Random, LONGEST};
use rrxe_core::wire::Syndrome;
use rrxe_core::*;
use std::collections::VecDeque;

/// Events that a seed may take at most; none comes near.
const MAX_EVENTS: u64 = 500_000;

/// A consumer comes back after this part of its longest wait.
const LATEST_TURN: u64 = 50;

/// A packet that came before its turn: what it is, and its payload.
type Early = (Packet, Truth, Vec<u8>);

/// What came before its turn.
struct HoldBack {
    reorder: Reorder,
    ring: Vec<Option<Held<Early>>>,
}

impl HoldBack {
    fn new(places: usize) -> HoldBack {
        HoldBack {
            reorder: Reorder::new(),
            ring: (0..places).map(|_| None).collect(),
        }
    }
}

/// The core's part of a queue pair.
struct Core {
    requester: Requester,
    responder: Responder,
    slots: Vec<SendSlot>,
    /// Requests and responses that came before their turn.
    held: [HoldBack; 2],
}

/// What a seed did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub packets: u64,
    pub requests: u64,
    pub nanoseconds: u64,
}

/// Runs a seed. Panics where something is not as it must be.
pub fn run(seed: u64, trace: bool) -> Summary {
    let mut random = Random::new(seed);
    let config = Config::new(&mut random);
    if trace {
        println!("{config:#?}");
    }
    let mut world = World::new(config, random, trace);
    world.run()
}

struct World {
    cores: Vec<Core>,
    ground: Ground,
    /// Times that each connection may still be made anew.
    reconnects: Vec<u32>,
    /// When the network became fair, and when something last got on since.
    progress: (u64, u64),
    /// When the disturbances end.
    end: Option<u64>,
}

impl World {
    fn new(config: Config, random: Random, trace: bool) -> World {
        let connections = config.connections.clone();
        let reconnects = vec![config.reconnects; connections.len()];
        let mut ground = Ground::new(config, random, trace);
        let mut cores = Vec::new();
        for (index, connection) in connections.iter().enumerate() {
            let service = connection.service;
            let ends = if service == Service::Ud { 1 } else { 2 };
            let first = cores.len();
            for end in 0..ends {
                cores.push(Core {
                    requester: Requester::new(service),
                    responder: Responder::new(service),
                    slots: vec![SendSlot::default(); 1 << connection.depth],
                    held: [(); 2].map(|()| HoldBack::new(connection.places)),
                });
                let peer = if ends == 1 { first } else { first + 1 - end };
                ground.sides.push(Side {
                    host: connection.hosts[end],
                    connection: index,
                    peer,
                    state: State::Reset,
                    slots: vec![usize::MAX; 1 << connection.depth],
                    receives: VecDeque::new(),
                    current: None,
                    posted: 0,
                    taken: 0,
                    partial: None,
                    send_pending: false,
                    answer_pending: false,
                    timer: None,
                    answer_timer: None,
                    turns: (0, 0),
                    emitted: 0,
                });
                let mut flow = Flow::new(service, connection.mtu);
                flow.left = connection.requests;
                let host = &mut ground.hosts[connection.hosts[ends - 1 - end]];
                flow.window = host.memory.len() + GUARD;
                host.memory.resize(flow.window, 0xee);
                let place = ground.random.next() as u32;
                host.memory.extend_from_slice(data(place, READ_ONLY as u32));
                host.memory.resize(flow.window + WINDOW, 0);
                ground.flows.push(flow);
                ground.last.push(0);
            }
        }
        for host in &mut ground.hosts {
            host.shadow = host.memory.clone();
        }
        let mut world = World {
            cores,
            ground,
            reconnects,
            progress: (0, 0),
            end: None,
        };
        for index in 0..connections.len() {
            world.connect(index);
        }
        for qp in 0..world.cores.len() {
            let delay = world.ground.random.below(1000);
            world.ground.schedule(delay.into(), Event::Turn(qp));
        }
        world
    }

    /// The queue pairs of a connection.
    fn ends(&self, connection: usize) -> impl Iterator<Item = usize> {
        let of = |side: &Side| side.connection == connection;
        let first = self.ground.sides.iter().position(of).unwrap_or(0);
        let count = self.ground.sides.iter().filter(|side| of(side)).count();
        first..first + count
    }

    /// Takes the queue pairs of a connection from Reset to Ready To Send.
    fn connect(&mut self, index: usize) {
        let connection = self.ground.config.connections[index];
        for qp in self.ends(index) {
            let ground = &mut self.ground;
            let base = match ground.random.below(3) {
                0 => ground.random.next() as u32,
                1 => 0u32.wrapping_sub(ground.random.below(64)),
                _ => (psn::MAX_OUTSTANDING).wrapping_sub(ground.random.below(64)),
            };
            let rkey = ground.new_key();
            let flow = &mut ground.flows[qp];
            flow.restart(Psn::new(base));
            flow.rkey = rkey;
            flow.mismatched = connection.max_rd_atomic > connection.max_dest_rd_atomic;
            let (window, peer) = (flow.window, ground.sides[qp].peer);
            let region = Region {
                key: rkey,
                start: window,
                len: WINDOW,
            };
            let host = ground.sides[peer].host;
            ground.hosts[host].regions.push(region);
        }
        for qp in self.ends(index) {
            let ground = &mut self.ground;
            let peer = ground.sides[qp].peer;
            let (mine, theirs) = (ground.flows[qp].base, ground.flows[peer].base);
            let (own, dest) = (FIRST_QPN + qp as u32, FIRST_QPN + peer as u32);
            let Core {
                requester,
                responder,
                ..
            } = &mut self.cores[qp];
            requester.set_src_qpn(own);
            requester.set_holding(connection.places > 0);
            requester.set_dest_qpn(dest);
            requester.set_mtu(connection.mtu);
            requester.set_psn(mine.get());
            requester.set_timeout(connection.timeout);
            requester.set_retry_count(connection.retry_count);
            requester.set_rnr_retry(connection.rnr_retry);
            requester.set_max_rd_atomic(connection.max_rd_atomic);
            requester.set_qkey(QKEY);
            responder.set_dest_qpn(dest);
            responder.set_mtu(connection.mtu);
            responder.set_psn(theirs.get());
            responder.set_max_dest_rd_atomic(connection.max_dest_rd_atomic);
            responder.set_min_rnr_timer(connection.rnr_timer);
            responder.set_access(true, true, true);
            responder.set_flush_access(true, true);
            responder.set_qkey(QKEY);
            responder.start();
            requester.start();
            ground.sides[qp].state = State::Rts;
            trace!(
                ground,
                "{qp} connects to {peer}: PSN {:#x}, {connection:?}",
                mine.get()
            );
        }
    }

    fn run(&mut self) -> Summary {
        let start = self.ground.now;
        let mut events = 0;
        while !self.is_done() {
            assert!(self.step(), "nothing will ever happen, and not all is done");
            events += 1;
            assert!(events < MAX_EVENTS, "no end in sight");
        }
        for (number, host) in self.ground.hosts.iter().enumerate() {
            let differs = host
                .memory
                .iter()
                .zip(&host.shadow)
                .position(|(a, b)| a != b);
            assert_eq!(differs, None, "memory of host {number}");
        }
        Summary {
            packets: self.ground.packets,
            requests: self.ground.requests,
            nanoseconds: self.ground.now - start,
        }
    }

    fn is_done(&self) -> bool {
        self.ground.fair
            && self.ground.flying == 0
            && self.ground.flows.iter().all(|f| f.left == 0 && f.is_idle())
            && !self
                .ground
                .sides
                .iter()
                .any(|s| s.send_pending || s.answer_pending)
    }

    /// Goes on to the next thing that happens.
    fn step(&mut self) -> bool {
        let event = self.ground.next_event();
        let timers = |side: &Side| side.timer.into_iter().chain(side.answer_timer);
        let timer = self.ground.sides.iter().flat_map(timers).min();
        match (event, timer) {
            (None, None) => return false,
            (event, Some(at)) if event.is_none_or(|event| at <= event) => {
                self.ground.now = self.ground.now.max(at);
                let of = |side: &Side| timers(side).any(|timer| timer == at);
                let qp = self.ground.sides.iter().position(of).unwrap_or(0);
                trace!(self.ground, "    {qp} timer");
                match self.ground.sides[qp].timer == Some(at) {
                    true => self.timer(qp),
                    false => self.answer(qp),
                }
            }
            _ => {
                self.ground.now = self.ground.now.max(event.unwrap_or(0));
                match self.ground.take_event() {
                    Some(Event::Arrival(index)) => self.arrival(index),
                    Some(Event::Turn(qp)) => self.turn(qp),
                    Some(Event::Send(qp)) => self.send(qp),
                    Some(Event::Answer(qp)) => self.answer(qp),
                    Some(Event::Notification(qp)) => self.congestion(qp),
                    None => {}
                }
            }
        }
        self.check_time();
        true
    }

    /// The disturbances end at some time, and then everything gets on.
    fn check_time(&mut self) {
        let ground = &mut self.ground;
        if !ground.fair {
            let end = match self.end {
                Some(end) => end,
                None if ground.flows.iter().all(|f| f.left == 0) => {
                    ground.now + ground.config.afterwards
                }
                // However long it takes consumers to post.
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

    fn with<R>(&mut self, qp: usize, f: impl FnOnce(&mut Core, &mut Env<'_>) -> R) -> R {
        let ground = &mut self.ground;
        f(&mut self.cores[qp], &mut Env { ground, qp })
    }

    fn timer(&mut self, qp: usize) {
        let now = self.ground.now;
        let outcome = self.with(qp, |core, env| {
            core.requester.handle_timeout(&mut core.slots, now, env)
        });
        self.after_send_side(qp, outcome);
        let next = self.cores[qp].requester.next_timeout();
        assert!(
            self.ground.sides[qp].send_pending || next.is_none_or(|at| at > now),
            "the timer of {qp} never ends"
        );
    }

    /// What a driver does after the requester had an event.
    fn after_send_side(&mut self, qp: usize, outcome: Outcome) {
        self.react(qp, outcome.fatal, outcome.sqe);
        if outcome.transmit || !self.ground.config.strict {
            self.send(qp);
        }
        self.check(qp);
    }

    fn react(&mut self, qp: usize, fatal: bool, sqe: bool) {
        if fatal {
            self.error(qp);
        } else if sqe {
            self.ground.sides[qp].state = State::Sqe;
            self.ground.flows[qp].failed = true;
        }
    }

    /// The Error state: everything is flushed.
    fn error(&mut self, qp: usize) {
        if matches!(self.ground.sides[qp].state, State::Error | State::Reset) {
            return;
        }
        trace!(self.ground, "    {qp} goes to Error");
        self.ground.sides[qp].state = State::Error;
        self.ground.flows[qp].failed = true;
        self.with(qp, |core, env| {
            core.requester.enter_error(&mut core.slots, env);
            core.responder.enter_error(env);
        });
        self.forget_held(qp);
        let side = &mut self.ground.sides[qp];
        assert!(
            side.current.is_none(),
            "the current receive is flushed first"
        );
        side.taken += side.receives.len() as u32;
        side.receives.clear();
        assert!(
            self.ground.flows[qp].is_idle(),
            "queue pair {qp} did not flush everything"
        );
        self.check(qp);
    }

    fn forget_held(&mut self, qp: usize) {
        for HoldBack { reorder, ring } in &mut self.cores[qp].held {
            reorder.clear(ring);
        }
    }

    fn send(&mut self, qp: usize) {
        self.ground.sides[qp].send_pending = false;
        loop {
            let (now, budget) = (self.ground.now, self.ground.connection(qp).budget);
            self.new_batch(qp);
            let progress = self.with(qp, |core, env| {
                core.requester
                    .poll_transmit(&mut core.slots, now, budget, env)
            });
            let more = self.after_batch(qp, budget, &progress);
            self.react(qp, progress.fatal, progress.sqe);
            if !more || matches!(self.ground.sides[qp].state, State::Error) {
                break;
            }
            if self.ground.refused || self.ground.random.chance(50) {
                self.ground.sides[qp].send_pending = true;
                let delay = self.ground.random.below(500);
                self.ground.schedule(delay.into(), Event::Send(qp));
                break;
            }
        }
        self.check(qp);
    }

    fn answer(&mut self, qp: usize) {
        self.ground.sides[qp].answer_pending = false;
        loop {
            let (now, budget) = (self.ground.now, self.ground.connection(qp).budget);
            self.new_batch(qp);
            let progress = self.with(qp, |core, env| {
                core.responder.poll_transmit(now, budget, env)
            });
            let more = self.after_batch(qp, budget, &progress);
            self.react(qp, progress.fatal, progress.sqe);
            if !more || matches!(self.ground.sides[qp].state, State::Error) {
                break;
            }
            if self.ground.refused || self.ground.random.chance(50) {
                self.ground.sides[qp].answer_pending = true;
                let delay = self.ground.random.below(500);
                self.ground.schedule(delay.into(), Event::Answer(qp));
                break;
            }
        }
        self.check(qp);
    }

    fn new_batch(&mut self, qp: usize) {
        let ground = &mut self.ground;
        ground.sides[qp].emitted = 0;
        ground.refused = false;
        ground.room = u32::MAX;
        if !ground.fair && ground.random.chance(ground.config.trouble.no_room) {
            ground.room = ground.random.below(4);
        }
    }

    fn after_batch(&mut self, qp: usize, budget: u32, progress: &Progress) -> bool {
        let emitted = self.ground.sides[qp].emitted;
        assert_eq!(progress.sent, emitted, "packets of a batch of {qp}");
        assert!(emitted <= budget, "the budget of {qp}");
        assert!(
            progress.more || !self.ground.refused,
            "refused, and nothing left"
        );
        progress.more
    }

    fn arrival(&mut self, index: usize) {
        let flight = self.ground.land(index);
        let truth = flight.truth;
        let current = self.ground.flows[truth.flow].epoch == truth.epoch;
        let connected = self.ground.sides[flight.to].state != State::Reset;
        if current && connected {
            self.receive(&flight);
        }
        self.ground.landed(index, flight);
    }

    fn receive(&mut self, flight: &Flight) {
        let (qp, truth) = (flight.to, flight.truth);
        let len = flight.header_len + flight.payload.len() + usize::from(flight.pad) + 4;
        let header = &flight.header[..flight.header_len];
        let packet = Packet::parse(header, len as u32).expect("what was sent can be parsed");
        assert_eq!(packet.payload_len as usize, flight.payload.len());
        assert_eq!(usize::from(packet.header_len), flight.header_len);
        trace!(
            self.ground,
            "    {qp} takes {:?} psn {}",
            packet.operation,
            truth.relative
        );
        if flight.congested {
            let core = &self.cores[qp];
            let notification = match truth.response {
                true => core.requester.notification(&packet),
                false => core.responder.notification(&packet),
            };
            if notification.is_some() {
                let from = self.ground.sides[qp].peer;
                let delay = self.ground.config.network.latency;
                self.ground.schedule(delay, Event::Notification(from));
            }
        }
        let mut outcome = self.handle(qp, packet, truth, &flight.payload);
        outcome.merge(self.handle_held(qp, truth.response));
        if truth.response {
            self.after_send_side(qp, outcome);
            return;
        }
        // As a driver does: first what is to be sent, then the state.
        if outcome.transmit {
            self.answer(qp);
        }
        self.react(qp, outcome.fatal, outcome.sqe);
        self.check(qp);
    }

    /// Hands a packet to the core, and holds it back if the core wants that.
    fn handle(&mut self, qp: usize, packet: Packet, truth: Truth, payload: &[u8]) -> Outcome {
        let now = self.ground.now;
        self.ground.payload.clear();
        self.ground.payload.extend_from_slice(payload);
        self.ground.handling = Some(truth);
        let (outcome, expected) = if truth.response {
            let outcome = self.take_response(qp, &packet, &truth);
            (outcome, self.cores[qp].requester.expected_psn())
        } else {
            let executed = self.ground.flows[truth.flow].executed;
            let outcome = self.with(qp, |core, env| {
                core.responder.handle_packet(now, &packet, env)
            });
            self.ground.handling = None;
            if self.ground.flows[truth.flow].service.is_reliable() {
                self.executed(qp, truth.relative == executed);
                self.check_nak(qp, &truth, executed, outcome.transmit);
            }
            let expected = self.cores[qp].responder.expected_psn();
            (outcome, Psn::new(expected))
        };
        self.ground.handling = None;
        if outcome.hold && self.ground.connection(qp).places > 0 {
            trace!(self.ground, "    {qp} holds psn {}", truth.relative);
            let HoldBack { reorder, ring } = &mut self.cores[qp].held[usize::from(truth.response)];
            let held = (packet, truth, payload.to_vec());
            let lost = reorder.hold(ring, expected, packet.psn(), held);
            if let Some((_, truth, _)) = lost {
                self.ground.flows[truth.flow].disturb(now);
            }
        }
        outcome
    }

    /// Hands over what was held back and whose turn has come.
    fn handle_held(&mut self, qp: usize, responses: bool) -> Outcome {
        let now = self.ground.now;
        let mut outcome = Outcome::default();
        let mut taken = false;
        let side = usize::from(responses);
        loop {
            let Core {
                requester,
                responder,
                slots,
                held,
            } = &mut self.cores[qp];
            let HoldBack { reorder, ring } = &mut held[side];
            let next = if responses {
                let due = |psn| requester.is_due(slots, psn);
                reorder.next(ring, requester.expected_psn(), due)
            } else {
                let expected = Psn::new(responder.expected_psn());
                reorder.next(ring, expected, |psn| responder.is_due(psn))
            };
            let Some((packet, truth, payload)) = next else {
                break;
            };
            trace!(
                self.ground,
                "    {qp} takes {:?} psn {}, which was held",
                packet.operation,
                truth.relative
            );
            taken = true;
            outcome.merge(self.handle(qp, packet, truth, &payload));
        }
        let left = !self.cores[qp].held[side].reorder.is_empty();
        let told = match responses {
            true if left => self.with(qp, |core, env| {
                core.requester.held(&mut core.slots, now, left, env)
            }),
            true => Outcome::default(),
            false => self.cores[qp].responder.held(taken, left),
        };
        if !responses && told.transmit {
            let incoming = self.ground.sides[qp].peer;
            self.ground.flows[incoming].nak_open = true;
        }
        outcome.merge(told);
        outcome
    }

    fn take_response(&mut self, qp: usize, packet: &Packet, truth: &Truth) -> Outcome {
        let now = self.ground.now;
        let before = self.cores[qp].requester.counters().rnr_naks;
        let rnr = match packet.ext {
            Ext::Aeth(aeth) => Syndrome::decode(aeth.syndrome),
            _ => Syndrome::Reserved(0),
        };
        if let Syndrome::RnrNak { .. } = rnr {
            self.ground.flows[qp].rnr_naks += 1;
            self.ground.flows[qp].rnr_now = 1;
        }
        let outcome = self.with(qp, |core, env| {
            core.requester
                .handle_packet(&mut core.slots, now, packet, env)
        });
        let after = self.cores[qp].requester.counters().rnr_naks;
        let flow = &mut self.ground.flows[qp];
        flow.rnr_now = 0;
        if let Syndrome::RnrNak { timer } = rnr {
            // It acknowledges what is before it.
            if flow.rnr.is_some_and(|(_, from)| truth.relative > from) {
                flow.rnr = None;
            }
            if after != before && !outcome.fatal {
                flow.rnr = Some((now + timeout::rnr_timer(timer), truth.relative));
            }
            return outcome;
        }
        // What acknowledges the packet that was to wait ends the wait.
        if flow.rnr.is_some_and(|(_, from)| truth.relative >= from) {
            flow.rnr = None;
        }
        outcome
    }

    /// Looks at how far the responder of `qp` has come, after it was given a packet.
    fn executed(&mut self, qp: usize, expected: bool) {
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
                Trap::Access | Trap::Alignment | Trap::Invalidate
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

    /// A gap is told of once, until the missing packet comes (B-08 to B-10, B-13).
    fn check_nak(&mut self, qp: usize, truth: &Truth, executed: u32, transmit: bool) {
        let side = &self.ground.sides[qp];
        let alive = matches!(side.state, State::Rts | State::Sqd);
        // It may have been told of already, by what the batch had no room for.
        let pending = side.answer_pending;
        let flow = &mut self.ground.flows[truth.flow];
        if truth.relative == executed {
            // Without a receive work request it has to come again.
            flow.nak_open = flow.executed == executed;
            flow.naks = 0;
        } else if truth.relative > executed && !flow.nak_open {
            let told = transmit || pending || !alive;
            assert!(told, "queue pair {qp} keeps a gap to itself");
            flow.nak_open = true;
        }
    }

    /// What must hold after every step.
    fn check(&mut self, qp: usize) {
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
        // A limited rate may have had something wait that need not be sent any more.
        let limited = ground.config.network.marks != 0;
        if let Some(at) = side.timer {
            assert!(at <= ground.now + wait, "the timer of {qp} is too far away");
            assert!(
                outstanding > 0 || limited,
                "the timer of {qp} waits for nothing"
            );
        }
        if !flow.service.is_reliable() {
            return;
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
    }

    /// A consumer has its next turn; the later, the longer nothing has happened.
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

    /// A consumer does something.
    fn turn(&mut self, qp: usize) {
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
                // What was flushed took no PSNs.
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
        }
        if !matches!(self.ground.sides[qp].state, State::Error | State::Reset) {
            self.post(qp);
        }
    }

    fn post_receives(&mut self, qp: usize) {
        let ground = &mut self.ground;
        let connection = *ground.connection(qp);
        let longest = (connection.packets * connection.mtu.bytes()).min(WRITTEN as u32);
        let bad = ground.config.trouble.bad_receives;
        let keep = if ground.fair { 16 } else { connection.receives };
        let state = ground.sides[qp].state;
        if matches!(state, State::Error | State::Reset) {
            return;
        }
        while (ground.sides[qp].receives.len() as u32) < keep {
            if !ground.fair && ground.random.chance(300) {
                break;
            }
            let mut receive = Receive {
                number: ground.sides[qp].posted,
                len: longest + 40,
                fault: None,
            };
            if !ground.fair && ground.random.chance(bad) {
                match ground.random.chance(500) {
                    true => receive.len = ground.random.below(longest + 1),
                    false => receive.fault = Some(Fault::Protection),
                }
            }
            ground.sides[qp].posted += 1;
            ground.sides[qp].receives.push_back(receive);
        }
    }

    /// Things that consumers do to queue pairs, and networks to consumers.
    fn trouble(&mut self, qp: usize) {
        let trouble = self.ground.config.trouble;
        let random = &mut self.ground.random;
        if random.chance(20) {
            // A timer that fires too early does no harm.
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

    /// A congestion notification arrives: nothing changes but the rate (A-08, L-07).
    fn congestion(&mut self, qp: usize) {
        let now = self.ground.now;
        trace!(self.ground, "    {qp} is notified of congestion");
        let core = &mut self.cores[qp];
        core.requester.notified(now);
        core.responder.notified(now);
        self.check(qp);
    }

    /// A queue pair is in Error: it is connected anew, or given up.
    fn broken(&mut self, qp: usize) {
        let connection = self.ground.sides[qp].connection;
        if self.ground.random.chance(200) && self.ground.flows[qp].left > 0 {
            // What is posted now is flushed.
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

    /// The Reset state: everything outstanding is forgotten.
    fn reset(&mut self, connection: usize) {
        for qp in self.ends(connection) {
            trace!(self.ground, "    {qp} is reset");
            self.cores[qp].requester.reset();
            self.cores[qp].responder.reset();
            self.forget_held(qp);
            assert_eq!(self.cores[qp].requester.next_timeout(), None);
            let ground = &mut self.ground;
            let side = &mut ground.sides[qp];
            side.state = State::Reset;
            side.receives.clear();
            side.current = None;
            side.partial = None;
            side.taken = side.posted;
            side.timer = None;
            side.answer_timer = None;
            let key = ground.flows[qp].rkey;
            let host = ground.sides[ground.sides[qp].peer].host;
            ground.hosts[host].regions.retain(|r| r.key != key);
            ground.flows[qp].messages.clear();
            ground.flows[qp].completed = 0;
            ground.progress += 1;
            // Nothing is sent, and polling does no harm.
            self.send(qp);
            self.answer(qp);
        }
    }

    /// Posts some work requests.
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

    /// Makes up a work request.
    fn make_up(&mut self, qp: usize) -> (Message, SendRequest) {
        use SendOp as O;
        let ground = &mut self.ground;
        let connection = *ground.connection(qp);
        let (flow, random) = (&mut ground.flows[qp], &mut ground.random);
        let mtu = connection.mtu.bytes();
        let op = match connection.service {
            Service::Ud => random.pick(&[O::Send, O::SendImm]),
            Service::Uc => random.pick(&[O::Send, O::SendImm, O::Write, O::WriteImm]),
            Service::Rc | Service::Xrc => random.pick(&[
                O::Send,
                O::Send,
                O::SendImm,
                O::SendInv,
                O::Write,
                O::Write,
                O::WriteImm,
                O::Read,
                O::Read,
                O::Read,
                O::CompareSwap,
                O::FetchAdd,
                O::FetchAdd,
                O::Flush,
                O::AtomicWrite,
                O::LocalInv,
                O::RegMr,
                O::BindMw,
            ]),
        };
        let longest = match connection.service {
            Service::Ud => mtu,
            _ => (connection.packets * mtu).min(WRITTEN as u32),
        };
        let mut len = match random.below(8) {
            0 => 0,
            1 => random.below(16),
            2 => mtu - 1 + random.below(3),
            3 => mtu * random.between(1, connection.packets),
            4 => 1 + random.below(mtu),
            _ => random.below(longest) + 1,
        }
        .min(longest);
        if op.is_atomic() || op.is_local() {
            len = 0;
        }
        if op == O::AtomicWrite {
            len = 8;
        }
        let mut fence = random.chance(100) || flow.fence_next;
        flow.fence_next = false;
        let part = match op {
            O::Read if random.chance(600) => 0..READ_ONLY,
            O::CompareSwap | O::FetchAdd | O::AtomicWrite => READ_ONLY + WRITTEN..WINDOW,
            _ => READ_ONLY..READ_ONLY + WRITTEN,
        };
        if op == O::Read && part.start != 0 {
            flow.fence_next = true;
            // What was written is not read before it is there, which the order of packets sees to.
            fence |= random.chance(100);
        }
        let room = (part.end - part.start) as u32 - len;
        let place = match op {
            O::CompareSwap | O::FetchAdd | O::AtomicWrite => {
                part.start + 8 * random.below(8) as usize
            }
            _ => part.start + random.below(room + 1) as usize,
        };
        let mut message = Message {
            op,
            len,
            data: random.below(LONGEST),
            place: flow.window + place,
            imm_or_key: random.next() as u32,
            fence,
            signaled: random.chance(500),
            solicited: random.chance(200),
            trap: Trap::None,
            to: ground.sides[qp].peer,
            first: flow.psns,
            packets: match op.is_local() {
                true => 0,
                false if op == O::Flush => 1,
                false => connection.mtu.packets(len),
            },
            number: flow.numbered,
            started: false,
            result: Vec::new(),
            done: false,
            placed: 0,
        };
        if connection.service == Service::Ud {
            let datagrams = |(_, side): &(usize, &Side)| {
                ground.config.connections[side.connection].service == Service::Ud
            };
            let others = ground.sides.iter().enumerate().filter(datagrams);
            let others: Vec<usize> = others.map(|(index, _)| index).collect();
            message.to = random.pick(&others);
        }
        let mut rkey = flow.rkey;
        if !ground.fair && random.chance(ground.config.trouble.traps) {
            let fault = random.pick(&[Fault::Protection, Fault::Malformed, Fault::Length]);
            let local = Trap::Local(fault, random.below(message.packets.max(1)));
            let remote = len > 0 && matches!(op, O::Write | O::WriteImm | O::Read);
            message.trap = match (connection.service, op) {
                (Service::Ud, _) if random.chance(500) => Trap::Qkey,
                (_, O::LocalInv | O::RegMr | O::BindMw) => local,
                (_, O::CompareSwap | O::FetchAdd | O::AtomicWrite) => {
                    random.pick(&[Trap::Alignment, Trap::Access, local])
                }
                (_, O::SendInv) => Trap::Invalidate,
                (_, O::Flush) => Trap::Access,
                (Service::Rc | Service::Xrc, _) if remote && random.chance(500) => Trap::Access,
                _ if len > 0 => local,
                _ => Trap::None,
            };
            match message.trap {
                Trap::Alignment => message.place += 1,
                Trap::Access if random.chance(500) => rkey += 1,
                // Beyond the window.
                Trap::Access => message.place = flow.window + WINDOW,
                _ => {}
            }
        }
        if op == O::SendInv {
            let host = ground.sides[message.to].host;
            message.imm_or_key = ground.new_key();
            if message.trap != Trap::Invalidate {
                ground.hosts[host].keys.push(message.imm_or_key);
            }
        }
        if op == O::Flush {
            let random = &mut ground.random;
            message.imm_or_key = random.between(1, 3) | (random.below(2) << 4);
            if message.trap == Trap::Access {
                // Also an empty one, of the whole region.
                rkey += 1;
            }
        }
        let (compare_add, swap) = operands(&message);
        let request = SendRequest {
            op,
            fence: message.fence,
            signaled: message.signaled,
            solicited: message.solicited,
            length: len,
            remote_addr: ADDRESS + message.place as u64,
            rkey,
            imm_or_key: message.imm_or_key,
            compare_add,
            swap,
            remote_qpn: FIRST_QPN + message.to as u32,
            qkey: qkey(&message),
            pkey: pkey::DEFAULT,
        };
        (message, request)
    }
}
