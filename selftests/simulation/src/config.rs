// SPDX-License-Identifier: GPL-2.0

//! The configuration that a seed selects before the first event.

use rrxe_core::{reorder, Mtu, Service};
use rrxe_testkit::Random;

/// Network impairments. Probabilities are per mille.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// One-way latency of every packet, in nanoseconds.
    pub latency: u64,
    /// Maximum extra delay of a late packet, in nanoseconds; other packets may overtake it.
    pub jitter: u32,
    /// Packet loss.
    pub loss: u32,
    /// Packet duplication.
    pub duplication: u32,
    /// Extra delay of a packet.
    pub reorder: u32,
    /// Corruption of one bit of a packet.
    pub corruption: u32,
    /// ECN congestion marks.
    pub marks: u32,
}

/// Consumer actions besides posting. Probabilities are per mille.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// A posted work request that must fail.
    pub traps: u32,
    /// Per turn: drain to SQD and resume.
    pub drains: u32,
    /// Per turn: transition to Error.
    pub errors: u32,
    /// Per turn: transition to Reset with work requests outstanding.
    pub resets: u32,
    /// Per turn: deregistration of the region that the peer accesses.
    pub deregistrations: u32,
    /// A receive work request that is too short for some messages, or whose memory is invalid.
    pub bad_receives: u32,
    /// A transmit batch that is full.
    pub no_space: u32,
    /// Per turn: a forged packet, or a stale packet of an earlier connection.
    pub forgeries: u32,
    /// Per access: an absent page.
    pub absences: u32,
    /// Per packet: the driver drops all buffered packets of this half, as if they had expired.
    pub expiries: u32,
}

/// A pair of connected queue pairs, or a single queue pair for datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub service: Service,
    /// End points of both queue pairs. UD uses only the first.
    pub hosts: [usize; 2],
    /// Index of the host's shared receive queue for each queue pair; `None` for a queue of its own.
    pub shared: [Option<usize>; 2],
    pub mtu: Mtu,
    /// Log2 of the send queue depth.
    pub depth: u32,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// Number of work requests that each queue pair posts.
    pub requests: u32,
    /// Maximum number of packets that one call of `poll_transmit` may send.
    pub budget: u32,
    /// Number of packets of the longest message.
    pub packets: u32,
    /// Receive work requests that a consumer keeps posted before the end; small values cause RNR
    /// NAKs.
    pub receives: u32,
    /// Reorder buffer capacity in packets, a power of two; 0 drops every out-of-order packet.
    pub places: usize,
    /// Both ends recover by plain go-back-N and buffer no out-of-order packets.
    pub strict: bool,
    /// Both ends respond to a READ repeated from within with MIDDLE and LAST, and then refuse its
    /// earlier parts, as rdma_rxe does (rxe_resp.c, duplicate_request()).
    pub continues_reads: bool,
}

/// The whole configuration of one seed.
#[derive(Clone, Debug)]
pub struct Config {
    pub hosts: usize,
    /// Number of shared receive queues per end point: for RC, UC and UD, and for XRC.
    pub shared: usize,
    pub xrc_shared: usize,
    pub network: Network,
    pub trouble: Trouble,
    pub connections: Vec<Connection>,
    /// Maximum time between the turns of a consumer, in nanoseconds.
    pub pace: u32,
    /// Call `poll_transmit` of a requester only if the core asked for it.
    pub strict: bool,
    /// Number of times that a broken connection may be reestablished.
    pub reconnects: u32,
    /// Nanoseconds that the network impairments last after the last work request was posted.
    pub afterwards: u64,
    /// Merge consecutive packets into a burst before they reach the core.
    pub bursts: bool,
    /// Let the core delay ACKs until their queue pair sends a packet.
    pub piggyback: bool,
    /// Source of randomness for forged packets.
    pub attacker: Random,
    /// Source of randomness for absent pages.
    pub pager: Random,
    /// Source of randomness for the peers' properties and for buffered packets that expire.
    pub peers: Random,
}

/// Returns an ACK timeout code that covers every delay of this network.
fn timeout_for(network: &Network) -> u8 {
    // A round trip with both packets late, plus delays of consumers and batches.
    let worst = 2 * (network.latency + u64::from(network.jitter)) + 30_000;
    // Under congestion control, the rate may drop to one packet in several milliseconds, and ACKs
    // may wait behind READ responses.
    if network.marks != 0 {
        return 16;
    }
    (5..31)
        .find(|&code| 4096u64 << code >= worst * 3 / 2)
        .unwrap_or(31)
}

impl Config {
    /// Derives a configuration from the random state of a seed.
    pub fn new(random: &mut Random) -> Config {
        let mut network = network(random);
        let trouble = trouble(random);
        let hosts = random.pick(&[1, 2, 2, 2, 2, 3, 4]);
        let shared = random.pick(&[0, 0, 1, 1, 2]);
        let xrc_shared = random.pick(&[1, 2, 3]);
        let count = random.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let mut connections: Vec<_> = (0..count)
            .map(|_| connection(random, hosts, shared, &network))
            .collect();
        // Draw newer options from a copy, so that all older choices of a seed stay the same.
        let mut aside = random.clone();
        let (bursts, piggyback) = (aside.chance(500), aside.chance(500));
        for connection in &mut connections {
            connection.strict = aside.chance(250);
        }
        let trouble = Trouble {
            forgeries: aside.pick(&[0, 0, 10, 100, 500]),
            ..trouble
        };
        // A copy again, to keep the choices of the attacker.
        let mut pager = aside.clone();
        let trouble = Trouble {
            absences: pager.pick(&[0, 0, 5, 50, 300]),
            ..trouble
        };
        let mut peers = pager.clone();
        for connection in &mut connections {
            let reads = matches!(connection.service, Service::Rc | Service::Xrc);
            if connection.strict || !reads || !peers.chance(250) {
                continue;
            }
            connection.continues_reads = true;
            // Several READs at a time, each of several packets.
            connection.depth = connection.depth.max(3);
            connection.packets = connection.packets.max(8);
            connection.max_rd_atomic = 16;
            connection.max_dest_rd_atomic = 16;
            // A requester that has met with late packets asks for no gaps.
            if peers.chance(500) {
                network.reorder = 0;
            }
        }
        let trouble = Trouble {
            expiries: peers.pick(&[0, 0, 0, 5, 50]),
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
            bursts,
            piggyback,
            attacker: aside,
            pager,
            peers,
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
    trouble.no_space = some(random, 300, 300);
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
    // Occasionally both queue pairs are on the same host.
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
        places: random.pick(&[0, 0, 4, reorder::MAX_BUFFERED, reorder::MAX_BUFFERED]),
        strict: false,
        continues_reads: false,
    }
}
