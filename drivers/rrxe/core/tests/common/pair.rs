// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two end points, a link between them that misbehaves as told, and a clock of its own.

use super::{Host, Rng};
use rrxe_core::*;
use std::collections::BinaryHeap;

/// How the link treats packets: chances in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    /// Packets are late by up to this, in nanoseconds, and so overtake each other.
    pub jitter: u64,
    /// Nanoseconds that packets are delayed, each way.
    pub delay: u64,
    /// Percent of packets that skip the delay, and so overtake others (netem's `reorder`).
    pub early: u64,
    /// Loss in thousandths, added to `loss`.
    pub loss_permille: u64,
    /// Nanoseconds that a packet takes on the link, which carries one at a time each way.
    pub service: u64,
}

/// Nanoseconds that a packet travels at least.
pub const LATENCY: u64 = 5_000;

/// A packet on the link: due time, order of sending, receiver, bytes. Ordered by time, earliest
/// first in a [`BinaryHeap`].
type Flight = std::cmp::Reverse<(u64, u64, usize, Vec<u8>)>;

/// Says of a packet, and the host that sends it, whether it gets lost.
pub type Filter = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Two hosts and the link between them.
pub struct Pair {
    pub hosts: [Host; 2],
    pub link: Link,
    pub now: u64,
    pub rng: Rng,
    /// When each direction of the link is free again.
    free: [u64; 2],
    flights: BinaryHeap<Flight>,
    sequence: u64,
    /// Everything that was put on the link: sender and bytes.
    pub trace: Vec<(usize, Vec<u8>)>,
    /// Drops the packets that it says.
    pub filter: Option<Filter>,
}

impl Pair {
    pub fn new(service: Service, mtu: u32, seed: u64) -> Pair {
        Pair {
            hosts: [Host::new(service, 0, mtu), Host::new(service, 1, mtu)],
            link: Link::default(),
            now: 1_000_000,
            rng: Rng(seed),
            free: [0; 2],
            flights: BinaryHeap::new(),
            sequence: 0,
            trace: Vec::new(),
            filter: None,
        }
    }

    /// Puts a packet on the link.
    pub fn inject(&mut self, to: usize, bytes: Vec<u8>, delay: u64) {
        self.sequence += 1;
        self.flights.push(std::cmp::Reverse((
            self.now + delay,
            self.sequence,
            to,
            bytes,
        )));
    }

    /// Moves what a host has sent onto the link.
    fn ship(&mut self, from: usize) {
        for bytes in std::mem::take(&mut self.hosts[from].driver.out) {
            self.trace.push((from, bytes.clone()));
            if let Some(filter) = &mut self.filter {
                let packet = Packet::parse(&bytes, bytes.len() as u32).unwrap();
                if filter(from, &packet) {
                    continue;
                }
            }
            let copies = if self.rng.chance(self.link.duplication) {
                2
            } else {
                1
            };
            for _ in 0..copies {
                let start = self.free[from].max(self.now);
                self.free[from] = start + self.link.service;
                let mut delay = self.free[from] - self.now;
                // Nothing is drawn for what the link doesn't do: seeds mean what they always did.
                let Link {
                    delay: late,
                    early,
                    loss_permille,
                    ..
                } = self.link;
                if late != 0 && !self.rng.chance(early) {
                    delay += late;
                }
                if self.rng.chance(self.link.loss)
                    || loss_permille != 0 && self.rng.below(1000) < loss_permille
                {
                    continue;
                }
                let mut bytes = bytes.clone();
                if self.rng.chance(self.link.corruption) {
                    // The reserved byte of the BTH is not covered by the ICRC.
                    let len = bytes.len() as u64;
                    let at = loop {
                        let at = self.rng.below(len) as usize;
                        if at != wire::Bth::RESV8A {
                            break at;
                        }
                    };
                    bytes[at] ^= 1 << self.rng.below(8);
                }
                let jitter = if self.link.jitter == 0 {
                    0
                } else {
                    self.rng.below(self.link.jitter)
                };
                self.inject(1 - from, bytes, LATENCY + delay + jitter);
            }
        }
    }

    /// Lets both hosts send all they can now.
    pub fn transmit(&mut self) {
        for from in 0..2 {
            while self.hosts[from].transmit(self.now) {
                self.ship(from);
            }
            self.ship(from);
        }
    }

    /// Goes on to the next thing that happens: packets arrive, or a timer fires. `false` if
    /// nothing ever will.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flights.peek().map(|f| f.0 .0);
        let timer = self
            .hosts
            .iter()
            .filter_map(|h| h.requester.next_timeout())
            .min();
        let Some(next) = [arrival, timer].into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        // A batch of what has arrived, as a driver would handle it.
        while self.flights.peek().is_some_and(|f| f.0 .0 <= self.now) {
            let std::cmp::Reverse((_, _, to, bytes)) = self.flights.pop().unwrap();
            let _ = self.hosts[to].receive(self.now, &bytes);
        }
        for host in &mut self.hosts {
            if host
                .requester
                .next_timeout()
                .is_some_and(|at| at <= self.now)
            {
                let outcome =
                    host.requester
                        .handle_timeout(&mut host.slots, self.now, &mut host.driver);
                host.note(outcome.fatal, outcome.sqe);
            }
        }
        true
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "no end in sight");
        }
        for host in &self.hosts {
            assert_eq!(
                host.requester.outstanding(),
                0,
                "a work request never completed"
            );
        }
    }

    /// Runs for this long, in nanoseconds.
    pub fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            self.transmit();
            let arrival = self.flights.peek().map(|f| f.0 .0);
            let timer = self
                .hosts
                .iter()
                .filter_map(|h| h.requester.next_timeout())
                .min();
            match [arrival, timer].into_iter().flatten().min() {
                Some(next) if next <= end => assert!(self.step()),
                _ => break,
            }
        }
        self.now = end;
    }

    /// The packets that a host has put on the link, parsed.
    pub fn sent_by(&self, host: usize) -> Vec<Packet> {
        let bytes = self
            .trace
            .iter()
            .filter(|(from, _)| *from == host)
            .map(|(_, bytes)| bytes);
        bytes
            .map(|b| Packet::parse(b, b.len() as u32).unwrap())
            .collect()
    }
}
