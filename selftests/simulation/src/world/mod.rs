// SPDX-License-Identifier: GPL-2.0

//! The world of one seed: end points, connections, and time. [`consumer`] implements the consumers,
//! [`driver`] the driver around the core, and [`invariants`] the invariants.

mod attacker;
mod consumer;
mod driver;
mod invariants;
mod work_request;

use crate::config::Config;
use crate::data::data;
use crate::env::Env;
use crate::flow::Flow;
use crate::oracle::*;
use attacker::Attacker;
use driver::MAX_ACK_DELAY;
use rrxe_core::{psn, Psn, RecoveryMode, Requester, SendSlot, Service, Span};
use rrxe_testkit::{Attributes, Random, ReorderBuffer, Responder};

/// Maximum number of events per seed; no seed comes close.
const MAX_EVENTS: u64 = 500_000;

/// The transport core of a queue pair.
struct Core {
    requester: Requester,
    responder: Responder,
    slots: Vec<SendSlot>,
    /// Reorder buffers for requests and responses, with their origins and payloads.
    reorder_buffers: [ReorderBuffer<(Truth, Vec<u8>)>; 2],
}

/// Statistics of one seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub packets: u64,
    pub requests: u64,
    pub nanoseconds: u64,
}

/// Runs a seed. Panics on any violation.
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
    oracle: Oracle,
    attacker: Attacker,
    /// Number of reconnects left for each connection.
    reconnects: Vec<u32>,
    /// The last value of `Oracle::progress`, and the time at which it was seen.
    progress: (u64, u64),
    /// When the network impairments end.
    end: Option<u64>,
}

impl World {
    fn new(config: Config, random: Random, trace: bool) -> World {
        let connections = config.connections.clone();
        let reconnects = vec![config.reconnects; connections.len()];
        let attacker = Attacker::new(config.attacker.clone());
        let mut oracle = Oracle::new(config, random, trace);
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
                    reorder_buffers: [connection.places; 2].map(ReorderBuffer::new),
                });
                let peer = if ends == 1 { first } else { first + 1 - end };
                let queues = oracle.queues_of(connection, end);
                oracle.sides.push(Side {
                    host: connection.hosts[end],
                    connection: index,
                    peer,
                    state: State::Reset,
                    queues,
                    current: None,
                    partial: None,
                    send_pending: false,
                    response_pending: false,
                    timer: None,
                    responder_timer: None,
                    turns: (0, 0),
                    emitted: 0,
                    rate: None,
                    paid: 0,
                });
                let mut flow = Flow::new(service, connection.mtu);
                flow.left = connection.requests;
                let host = &mut oracle.hosts[connection.hosts[ends - 1 - end]];
                flow.window = host.memory.len() + GUARD;
                host.memory.resize(flow.window, 0xee);
                let place = oracle.random.next_u64() as u32;
                host.memory.extend_from_slice(data(place, READ_ONLY as u32));
                host.memory.resize(flow.window + WINDOW, 0);
                oracle.flows.push(flow);
                oracle.last.push(0);
            }
        }
        for host in &mut oracle.hosts {
            host.shadow = host.memory.clone();
        }
        let mut world = World {
            cores,
            oracle,
            attacker,
            reconnects,
            progress: (0, 0),
            end: None,
        };
        for index in 0..connections.len() {
            world.connect(index);
        }
        for qp in 0..world.cores.len() {
            let delay = world.oracle.random.below(1000);
            world.oracle.schedule(delay.into(), Event::Turn(qp));
        }
        world
    }

    /// Returns the queue pairs of a connection.
    fn ends(&self, connection: usize) -> impl Iterator<Item = usize> {
        let of = |side: &Side| side.connection == connection;
        let first = self.oracle.sides.iter().position(of).unwrap_or(0);
        let count = self.oracle.sides.iter().filter(|side| of(side)).count();
        first..first + count
    }

    /// Takes the queue pairs of a connection from Reset to RTS.
    fn connect(&mut self, index: usize) {
        let connection = self.oracle.config.connections[index];
        for qp in self.ends(index) {
            let oracle = &mut self.oracle;
            let base = match oracle.random.below(3) {
                0 => oracle.random.next_u64() as u32,
                1 => 0u32.wrapping_sub(oracle.random.below(64)),
                _ => (psn::MAX_OUTSTANDING).wrapping_sub(oracle.random.below(64)),
            };
            let rkey = oracle.new_key();
            let flow = &mut oracle.flows[qp];
            flow.restart(Psn::new(base));
            flow.rkey = rkey;
            flow.mismatched = connection.max_rd_atomic > connection.max_dest_rd_atomic;
            let (window, peer) = (flow.window, oracle.sides[qp].peer);
            let region = Region {
                key: rkey,
                start: window,
                len: WINDOW,
            };
            let host = oracle.sides[peer].host;
            oracle.hosts[host].regions.push(region);
        }
        for qp in self.ends(index) {
            let oracle = &mut self.oracle;
            let peer = oracle.sides[qp].peer;
            let (mine, theirs) = (oracle.flows[qp].base, oracle.flows[peer].base);
            let attributes = Attributes {
                service: connection.service,
                src_qpn: FIRST_QPN + qp as u32,
                dest_qpn: FIRST_QPN + peer as u32,
                mtu: connection.mtu,
                sq_psn: mine.get(),
                rq_psn: theirs.get(),
                timeout: connection.timeout,
                retry_count: connection.retry_count,
                rnr_retry: connection.rnr_retry,
                rnr_timer: connection.rnr_timer,
                max_rd_atomic: connection.max_rd_atomic,
                max_dest_rd_atomic: connection.max_dest_rd_atomic,
                qkey: QKEY,
                buffering: connection.places > 0,
                recovery: if connection.strict {
                    RecoveryMode::Strict
                } else {
                    RecoveryMode::Selective
                },
            };
            attributes.connect_responder(&mut self.cores[qp].responder);
            attributes.connect_requester(&mut self.cores[qp].requester);
            if oracle.config.piggyback {
                let responder = &mut self.cores[qp].responder;
                responder.max_ack_delay = Span::from_ns(MAX_ACK_DELAY);
                responder.prompt_replies = 1;
            }
            oracle.sides[qp].state = State::Rts;
            trace!(
                oracle,
                "{qp} connects to {peer}: PSN {:#x}, {connection:?}",
                mine.get()
            );
        }
    }

    /// Moves both queue pairs to Reset, which drops everything outstanding.
    fn reset(&mut self, connection: usize) {
        for qp in self.ends(connection) {
            trace!(self.oracle, "    {qp} is reset");
            self.cores[qp].requester.reset();
            self.cores[qp].responder.reset();
            self.forget_buffered(qp);
            assert_eq!(self.cores[qp].requester.next_timeout(), None);
            let oracle = &mut self.oracle;
            let side = &mut oracle.sides[qp];
            side.state = State::Reset;
            side.partial = None;
            side.timer = None;
            side.responder_timer = None;
            if let Some(receive) = side.current.take() {
                oracle.queues[receive.queue].forget(qp, receive.number);
            }
            for &queue in &side.queues {
                oracle.queues[queue].discard();
            }
            let key = oracle.flows[qp].rkey;
            let host = oracle.sides[oracle.sides[qp].peer].host;
            oracle.hosts[host].regions.retain(|r| r.key != key);
            oracle.flows[qp].messages.clear();
            oracle.flows[qp].completed = 0;
            oracle.backing.forget(qp);
            oracle.progress += 1;
            // A poll in Reset is harmless and sends nothing.
            self.send(qp);
            self.respond(qp);
        }
    }

    fn run(&mut self) -> Summary {
        let start = self.oracle.now;
        let mut events = 0;
        while !self.is_done() {
            assert!(self.step(), "nothing will ever happen, and not all is done");
            events += 1;
            assert!(events < MAX_EVENTS, "no end in sight");
        }
        for (number, host) in self.oracle.hosts.iter().enumerate() {
            let differs = host
                .memory
                .iter()
                .zip(&host.shadow)
                .position(|(a, b)| a != b);
            assert_eq!(differs, None, "memory of host {number}");
        }
        let current = |qp: usize| self.oracle.sides[qp].current;
        for (number, queue) in self.oracle.queues.iter().enumerate() {
            queue.check(|qp| {
                let receive = current(qp).filter(|receive| receive.queue == number);
                receive.map(|receive| receive.number)
            });
        }
        Summary {
            packets: self.oracle.packets,
            requests: self.oracle.requests,
            nanoseconds: self.oracle.now - start,
        }
    }

    fn is_done(&self) -> bool {
        self.oracle.fair
            && self.oracle.flying == 0
            && self.oracle.flows.iter().all(|f| f.left == 0 && f.is_idle())
            && !self
                .oracle
                .sides
                .iter()
                .any(|s| s.send_pending || s.response_pending)
    }

    /// Executes the next event. Returns false if no event is left.
    fn step(&mut self) -> bool {
        let event = self.oracle.events.next_time();
        let timers = |side: &Side| side.timer.into_iter().chain(side.responder_timer);
        let timer = self.oracle.sides.iter().flat_map(timers).min();
        match (event, timer) {
            (None, None) => return false,
            (event, Some(at)) if event.is_none_or(|event| at <= event) => {
                self.oracle.now = self.oracle.now.max(at);
                let of = |side: &Side| timers(side).any(|timer| timer == at);
                let qp = self.oracle.sides.iter().position(of).unwrap_or(0);
                trace!(self.oracle, "    {qp} timer");
                if self.oracle.sides[qp].timer == Some(at) {
                    self.timer(qp)
                } else {
                    self.respond(qp)
                }
            }
            _ => {
                self.oracle.now = self.oracle.now.max(event.unwrap_or(0));
                match self.oracle.take_event() {
                    Some(Event::Arrival(flight)) => self.arrival(*flight),
                    Some(Event::Turn(qp)) => self.turn(qp),
                    Some(Event::Send(qp)) => self.send(qp),
                    Some(Event::Respond(qp)) => self.respond(qp),
                    Some(Event::Notification(qp)) => self.congestion(qp),
                    Some(Event::Present(page)) => self.present(page),
                    None => {}
                }
            }
        }
        self.check_time();
        true
    }

    fn with<R>(&mut self, qp: usize, f: impl FnOnce(&mut Core, &mut Env<'_>) -> R) -> R {
        let oracle = &mut self.oracle;
        f(&mut self.cores[qp], &mut Env { oracle, qp })
    }
}
