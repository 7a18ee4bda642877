// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two endpoints, an unreliable link between them, and a simulated clock.

use crate::{Host, Random, Schedule, NO_IP, NO_UDP};
use rrxe_core::*;

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

/// Returns whether a packet of this host gets lost.
pub type Filter = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Returns true with a probability of `n` percent.
fn percent(random: &mut Random, n: u64) -> bool {
    random.next_u64() % 100 < n
}

/// Two hosts and the link between them.
pub struct Pair {
    pub hosts: [Host; 2],
    pub link: Link,
    pub now: u64,
    pub random: Random,
    /// Time at which each direction of the link is free again.
    free: [u64; 2],
    /// Packets on the link: receiver and bytes.
    flights: Schedule<(usize, Vec<u8>)>,
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
            random: Random(seed),
            free: [0; 2],
            flights: Schedule::default(),
            trace: Vec::new(),
            filter: None,
        }
    }

    /// Puts a packet on the link.
    pub fn inject(&mut self, to: usize, bytes: Vec<u8>, delay: u64) {
        self.flights.push(self.now + delay, (to, bytes));
    }

    /// Moves the packets that a host has sent to the link.
    fn ship(&mut self, from: usize) {
        for frame in std::mem::take(&mut self.hosts[from].driver.out) {
            let bytes = frame.bytes(&NO_IP, &NO_UDP);
            self.trace.push((from, bytes.clone()));
            if let Some(filter) = &mut self.filter {
                if filter(from, &frame.packet()) {
                    continue;
                }
            }
            let copies = if percent(&mut self.random, self.link.duplication) {
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
                if late != 0 && !percent(&mut self.random, early) {
                    delay += late;
                }
                if percent(&mut self.random, self.link.loss)
                    || loss_permille != 0 && self.random.next_u64() % 1000 < loss_permille
                {
                    continue;
                }
                let mut bytes = bytes.clone();
                if percent(&mut self.random, self.link.corruption) {
                    // The ICRC does not cover the reserved byte of the BTH.
                    let len = bytes.len() as u64;
                    let at = loop {
                        let at = (self.random.next_u64() % len) as usize;
                        if at != wire::Bth::RESV8A {
                            break at;
                        }
                    };
                    bytes[at] ^= 1 << (self.random.next_u64() % 8);
                }
                let jitter = if self.link.jitter == 0 {
                    0
                } else {
                    self.random.next_u64() % self.link.jitter
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

    /// Returns the time of the next event.
    fn next_event(&self) -> Option<u64> {
        let requesters = self
            .hosts
            .iter()
            .map(|host| host.requester.next_timeout().map(Time::ns));
        let responders = self
            .hosts
            .iter()
            .map(|host| host.responder.next_timeout().map(Time::ns));
        let events = requesters
            .chain(responders)
            .chain([self.flights.next_time()]);
        events.flatten().min()
    }

    /// Advances to the next event: packets arrive, or a timer fires. Returns `false` if there is
    /// none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(next) = self.next_event() else {
            return false;
        };
        self.now = self.now.max(next);
        // Handles all arrived packets as a batch, like a driver.
        while self.flights.next_time().is_some_and(|at| at <= self.now) {
            if let Some((to, bytes)) = self.flights.pop() {
                let _ = self.hosts[to].receive(self.now, &bytes);
            }
        }
        for host in &mut self.hosts {
            if host
                .requester
                .next_timeout()
                .map(Time::ns)
                .is_some_and(|at| at <= self.now)
            {
                let _ = host.timeout(self.now);
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
            match self.next_event() {
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
