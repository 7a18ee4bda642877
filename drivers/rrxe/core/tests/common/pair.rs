// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two endpoints, an unreliable link between them, and a simulated clock.

use super::{Host, Rng};
use rrxe_core::*;
use std::collections::BinaryHeap;

/// Behaviour of the link. Chances are in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    /// Maximum extra delay in nanoseconds, by which packets overtake each other.
    pub jitter: u64,
    /// Extra delay of packets each way, in nanoseconds.
    pub delay: u64,
    /// Percentage of packets that skip the delay, and so overtake others (netem's `reorder`).
    pub early: u64,
    /// Loss in per mille, added to `loss`.
    pub loss_permille: u64,
    /// Transmission time of a packet in nanoseconds. The link carries one packet at a time each
    /// way.
    pub service: u64,
}

/// Minimum latency of a packet in nanoseconds.
pub const LATENCY: u64 = 5_000;

/// A packet on the link: due time, order of sending, receiver, bytes. A [`BinaryHeap`] returns the
/// earliest first.
type Flight = std::cmp::Reverse<(u64, u64, usize, Vec<u8>)>;

/// Returns whether a packet of this host gets lost.
pub type Filter = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Two hosts and the link between them.
pub struct Pair {
    pub hosts: [Host; 2],
    pub link: Link,
    pub now: u64,
    pub rng: Rng,
    /// Time at which each direction of the link is free again.
    free: [u64; 2],
    flights: BinaryHeap<Flight>,
    sequence: u64,
    /// All packets sent: sender and bytes.
    pub trace: Vec<(usize, Vec<u8>)>,
    /// Drops the packets for which it returns true.
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

    /// Moves the packets that a host has sent to the link.
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
                // Draw random numbers only for enabled features, so that old seeds keep their
                // meaning.
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
                    // The ICRC does not cover the reserved byte of the BTH.
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

    /// Lets both hosts send everything they can now.
    pub fn transmit(&mut self) {
        for from in 0..2 {
            while self.hosts[from].transmit(self.now) {
                self.ship(from);
            }
            self.ship(from);
        }
    }

    /// Advances to the next event: packets arrive, or a timer fires. Returns `false` if there is
    /// none.
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
        // Handles all arrived packets as a batch, like a driver.
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

    /// Runs until no event is left.
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

    /// Runs for this time in nanoseconds.
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

    /// Returns the parsed packets that a host has sent.
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
