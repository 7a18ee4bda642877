// SPDX-License-Identifier: GPL-2.0

//! What a seed decides before anything happens.

use crate::random::Random;
use rrxe_core::{reorder, Mtu, Service};

/// How the network treats packets: chances in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// Nanoseconds that every packet travels.
    pub latency: u64,
    /// Nanoseconds that a late packet is late by at most; others may overtake it.
    pub jitter: u32,
    /// It is lost.
    pub loss: u32,
    /// It arrives twice.
    pub duplication: u32,
    /// It is late.
    pub reorder: u32,
    /// One of its bits is another one.
    pub corruption: u32,
    /// It is marked by a congested switch, or loses its mark where nobody looks.
    pub marks: u32,
}

/// What consumers do besides posting: chances in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// A work request that must fail.
    pub traps: u32,
    /// At each turn: SQD and back.
    pub drains: u32,
    /// At each turn: to Error.
    pub errors: u32,
    /// At each turn: to Reset with work outstanding.
    pub resets: u32,
    /// At each turn: the region of the peer's accesses is deregistered.
    pub deregistrations: u32,
    /// A receive work request that is too short for some messages, or whose memory is gone.
    pub bad_receives: u32,
    /// A batch has no room.
    pub no_room: u32,
    /// At each turn: a packet that nobody sent, or one of an earlier connection.
    pub forgeries: u32,
}

/// A pair of connected queue pairs, or a single one for datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub service: Service,
    /// End points of both queue pairs; for datagrams the first counts.
    pub hosts: [usize; 2],
    /// Which of its host's shared receive queues each queue pair takes from; without, it has its own.
    pub shared: [Option<usize>; 2],
    pub mtu: Mtu,
    /// Log 2 of the send queue's depth.
    pub depth: u32,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// Work requests that each queue pair posts.
    pub requests: u32,
    /// Packets that one call of `poll_transmit` may send.
    pub budget: u32,
    /// Packets that the longest message has.
    pub packets: u32,
    /// Receive work requests that a consumer keeps posted before the end; few make for RNR.
    pub receives: u32,
    /// Packets that may be held back before their turn, a power of two; without, all are dropped.
    pub places: usize,
    /// Both ends recover by plain go-back-N, and hold nothing back.
    pub strict: bool,
}

/// Everything together.
#[derive(Clone, Debug)]
pub struct Config {
    pub hosts: usize,
    /// Shared receive queues of each end point: for RC, UC and UD, and for XRC.
    pub shared: usize,
    pub xrc_shared: usize,
    pub network: Network,
    pub trouble: Trouble,
    pub connections: Vec<Connection>,
    /// Nanoseconds between the turns of a consumer, at most.
    pub pace: u32,
    /// `poll_transmit` of a requester is called only if the core asked for it.
    pub strict: bool,
    /// Connections are made anew so many times after they broke.
    pub reconnects: u32,
    /// The network goes on to disturb so long after the last work request was posted.
    pub afterwards: u64,
    /// Packets that may make a run are handed over as one.
    pub rows: bool,
    /// An acknowledgement may leave behind what its queue pair sends.
    pub carries: bool,
    /// The randomness of what nobody sent.
    pub forger: Random,
}

/// The acknowledge timeout's code that allows for every delay of this network.
fn timeout_for(network: &Network) -> u8 {
    // There and back, both late; consumers and batches that take their time.
    let worst = 2 * (network.latency + u64::from(network.jitter)) + 30_000;
    // Congestion may leave no more of the rate than a packet in milliseconds, and READ responses
    // that others wait behind.
    if network.marks != 0 {
        return 16;
    }
    (5..31)
        .find(|&code| 4096u64 << code >= worst * 3 / 2)
        .unwrap_or(31)
}

impl Config {
    /// From a seed's randomness.
    pub fn new(random: &mut Random) -> Config {
        let network = network(random);
        let trouble = trouble(random);
        let hosts = random.pick(&[1, 2, 2, 2, 2, 3, 4]);
        let shared = random.pick(&[0, 0, 1, 1, 2]);
        let xrc_shared = random.pick(&[1, 2, 3]);
        let count = random.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let mut connections: Vec<_> = (0..count)
            .map(|_| connection(random, hosts, shared, &network))
            .collect();
        // Whatever else follows from the seed stays the same.
        let mut aside = random.clone();
        let (rows, carries) = (aside.chance(500), aside.chance(500));
        for connection in &mut connections {
            connection.strict = aside.chance(250);
        }
        let trouble = Trouble {
            forgeries: aside.pick(&[0, 0, 10, 100, 500]),
            ..trouble
        };
        Config {
            hosts,
            shared,
            xrc_shared,
            network,
            trouble,
            connections,
            pace: random.pick(&[200, 2_000, 2_000, 20_000]),
            strict: random.chance(500),
            reconnects: random.below(3),
            afterwards: random.pick(&[0, 100_000, 1_000_000]),
            rows,
            carries,
            forger: aside,
        }
    }
}

fn network(random: &mut Random) -> Network {
    let mut network = Network {
        latency: random.pick(&[0, 500, 5_000, 5_000, 20_000]),
        jitter: random.pick(&[1, 100, 2_000, 30_000]),
        ..Network::default()
    };
    let hard = random.chance(100);
    let level = |random: &mut Random| match random.below(8) {
        0..=2 => 0,
        3 => 1,
        4 | 5 => random.between(5, 30),
        6 => random.between(30, 100),
        _ if hard => random.between(100, 400),
        _ => random.between(50, 150),
    };
    network.loss = level(random);
    network.duplication = level(random);
    network.reorder = level(random);
    network.corruption = level(random) / 2;
    network.marks = level(random) / 2;
    network
}

fn trouble(random: &mut Random) -> Trouble {
    let mut trouble = Trouble::default();
    let some = |random: &mut Random, of: u32, level: u32| {
        if random.chance(of) {
            random.between(1, level)
        } else {
            0
        }
    };
    trouble.no_room = some(random, 300, 300);
    trouble.drains = some(random, 200, 100);
    // Half of the seeds have no reason to fail.
    if random.chance(500) {
        trouble.traps = some(random, 400, 60);
        trouble.errors = some(random, 200, 20);
        trouble.resets = some(random, 200, 20);
        trouble.deregistrations = some(random, 300, 20);
        trouble.bad_receives = some(random, 300, 100);
    }
    trouble
}

fn connection(random: &mut Random, hosts: usize, shared: usize, network: &Network) -> Connection {
    use Service::{Rc, Uc, Ud, Xrc};
    let service = random.pick(&[Rc, Rc, Rc, Rc, Rc, Xrc, Uc, Ud]);
    let mtu = random.pick(&[256, 256, 256, 256, 512, 1024, 2048, 4096]);
    let a = random.below(hosts as u32) as usize;
    // Now and then both are of the same host.
    let b = match random.below(10) {
        0 => a,
        _ => (a + 1) % hosts,
    };
    let max_rd_atomic = random.pick(&[1, 1, 2, 3, 4, 7, 16]);
    Connection {
        service,
        hosts: [a, b],
        shared: [(); 2].map(|()| {
            let one = shared > 0 && random.chance(800);
            one.then(|| random.below(shared as u32) as usize)
        }),
        mtu: Mtu::from_bytes(mtu).expect("it is one"),
        depth: random.between(0, 5),
        timeout: timeout_for(network) + random.pick(&[0, 0, 1]),
        retry_count: random.pick(&[7, 7, 7, 7, 3, 1, 0]),
        rnr_retry: random.pick(&[7, 7, 7, 7, 6, 2, 0]),
        rnr_timer: random.pick(&[1, 1, 2, 5, 8]),
        max_rd_atomic,
        max_dest_rd_atomic: match random.below(30) {
            0 => max_rd_atomic / 2,
            1 => 16,
            _ => max_rd_atomic,
        },
        requests: random.pick(&[5, 10, 20, 20, 40]),
        budget: random.pick(&[1, 2, 5, 16, 32]),
        packets: random.pick(&[1, 3, 3, 8, 8, 24]),
        receives: random.pick(&[1, 4, 8, 16, 16]),
        places: random.pick(&[0, 0, 4, reorder::HELD, reorder::HELD]),
        strict: false,
    }
}
