// SPDX-License-Identifier: GPL-2.0

//! The flows and the path that a seed selects.

use rrxe_core::requester::{MIN_PTO, WINDOW};
use rrxe_testkit::{Op, Random};

/// Bytes of headers in front of a full packet.
pub const HEADERS: u64 = 80;

/// READs of a flow that may be outstanding.
pub const READS: usize = 16;

/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;

/// Which packets the bottleneck marks (ECN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    None,
    /// From 5 packets in the queue on with a probability that rises to 1 % at 200, and then all
    /// (RED, as in the DCQCN paper).
    Red,
    /// All, from this number of packets in the queue on.
    Step(usize),
}

/// The treatment of out-of-order packets by the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// All hosts buffer them.
    Buffer,
    /// The receivers of requests drop them.
    Drop,
    /// All hosts drop them, and the senders recover by plain go-back-N.
    Strict,
}

/// The disturbance of the flows between warm-up and quiet period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// Packets overtake each other.
    Reordering,
    /// Packets and acknowledgements are lost.
    Loss,
    /// The queue of the bottleneck overflows, from the start to the end.
    Overflow,
    /// The bottleneck marks packets, from the start to the end.
    Marks,
    /// The path becomes another one.
    Change,
    /// Everything at once.
    All,
}

/// The path of all flows.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Nanoseconds that the bottleneck needs for a full packet.
    pub service: u64,
    /// Delay of data in nanoseconds: one half before the bottleneck, the other one behind it.
    pub delay: u64,
    /// Delay of the opposite direction.
    pub back: u64,
    /// Packets that fit into the queue.
    pub queue: usize,
    pub marking: Marking,
    /// Loss of data, and of packets of the opposite direction, per mille.
    pub loss: u32,
    pub back_loss: u32,
    /// Maximum extra delay of packets behind the bottleneck, and of the opposite direction.
    pub spray: u64,
}

impl Path {
    /// Returns the time from a packet to its response, without queues.
    pub fn round_trip(&self) -> u64 {
        self.delay + self.back + 2 * self.service
    }

    /// Returns the number of packets that fit into the path without its queue.
    pub fn capacity(&self) -> u64 {
        self.round_trip() / self.service + 1
    }
}

/// The whole configuration of one seed.
#[derive(Clone, Debug)]
pub struct Config {
    pub flows: usize,
    pub op: Op,
    pub mtu: u32,
    /// Bytes of a message.
    pub message: u32,
    /// Number of work requests of each flow that are under way.
    pub depth: usize,
    pub peers: Peers,
    pub trouble: Trouble,
    /// The path of the warm-up, of the disturbance, and of the quiet period.
    pub paths: [Path; 3],
    /// Length of these phases in nanoseconds. The quiet period starts with time to settle.
    pub times: [u64; 3],
    pub settle: u64,
    /// Time within which the flows start.
    pub spread: u64,
    /// Time for which hosts collect packets before they process up to 64 at once; 0 for none.
    pub poll: u64,
    pub timeout: u8,
    pub retry_count: u8,
    /// Longest expected round trip in nanoseconds, queues included.
    pub longest: u64,
}

impl Config {
    /// Returns the number of packets of a message.
    pub fn packets(&self) -> u64 {
        u64::from(self.message / self.mtu)
    }

    /// Returns whether all flows together may have twice the packets in flight that any of the
    /// paths holds.
    pub fn fills_the_path(&self) -> bool {
        let depth = match self.op {
            Op::Read => self.depth.min(READS),
            _ => self.depth,
        };
        let in_flight = (depth as u64 * self.packets()).min(WINDOW.into()) * self.flows as u64;
        let holds = |path: &Path| {
            let waits = 3 * self.poll + 2 * path.spray;
            2 * (path.round_trip() + waits) <= in_flight * path.service
        };
        self.paths.iter().all(holds)
    }

    /// Returns whether every round trip is shorter than any probe timeout.
    pub fn is_short(&self) -> bool {
        self.longest < MIN_PTO.ns() * 9 / 10
    }

    /// Derives a configuration from the random state of a seed.
    pub fn new(random: &mut Random) -> Config {
        use Trouble as T;
        let trouble = random.pick(&[
            T::Nothing,
            T::Reordering,
            T::Reordering,
            T::Loss,
            T::Loss,
            T::Overflow,
            T::Overflow,
            T::Marks,
            T::Marks,
            T::Change,
            T::Change,
            T::All,
        ]);
        let peers = random.pick(&[
            Peers::Buffer,
            Peers::Buffer,
            Peers::Buffer,
            Peers::Drop,
            Peers::Strict,
        ]);
        let flows = random.pick(&[1, 1, 2, 2, 3, 4, 6, 8]);
        let op = match trouble {
            // The window does not limit READ responses, so READs may overflow any queue for good.
            T::Overflow => random.pick(&[Op::Write, Op::Send]),
            _ => random.pick(&[Op::Write, Op::Write, Op::Send, Op::Read]),
        };
        // Gbit/s and MTU; slower paths cost less time to simulate.
        let (rate, mtu) = random.pick(&[
            (1, 1024),
            (1, 1024),
            (1, 4096),
            (1, 4096),
            (10, 1024),
            (10, 4096),
            (10, 4096),
            (25, 4096),
        ]);
        let service = (u64::from(mtu) + HEADERS) * 8 / rate;
        let poll = random.pick(&[0, 0, 5_000, 20_000, 50_000]);
        // A path that holds more packets would take too long to simulate.
        let trips: Vec<u64> = [10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000]
            .into_iter()
            .filter(|trip| trip / service <= 300)
            .collect();
        let trip = random.pick(&trips);
        let spray = match random.below(3) {
            0 => service * u64::from(random.between(1, 4)),
            1 => trip / u64::from(random.between(2, 10)),
            _ => trip,
        };
        let first = Path {
            service,
            delay: trip / 2,
            back: trip / 2,
            queue: usize::MAX,
            marking: Marking::None,
            loss: 0,
            back_loss: 0,
            spray: 0,
        };
        let mut paths = [first; 3];
        let message = random.pick(&[mtu, 16_384, 65_536, 65_536, 262_144]);
        let packets = u64::from(message / mtu);
        let all = (first.capacity() + 2 * poll / service) * u64::from(random.between(2, 4)) + 32;
        let flights = all.div_ceil(flows as u64).max(2 * packets);
        let depth = flights.div_ceil(packets).clamp(2, 128);
        let mut under_way = depth * packets * flows as u64;
        match trouble {
            T::Nothing => {}
            T::Reordering => paths[1].spray = spray,
            T::Loss => {
                paths[1].loss = random.pick(&[0, 1, 1, 10]);
                paths[1].back_loss = random.pick(&[0, 1, 10, 100]);
                paths[1].spray = random.pick(&[0, 0, spray]);
            }
            T::Overflow => {
                let queue = first.capacity() * u64::from(random.between(1, 6)) / 2;
                for path in &mut paths {
                    path.queue = queue.clamp(64, 1000) as usize;
                }
            }
            T::Marks => {
                let marking = random.pick(&[Marking::Red, Marking::Red, Marking::Step(40)]);
                for path in &mut paths {
                    path.marking = marking;
                    path.queue = 4000;
                }
                if random.chance(300) {
                    paths[2].marking = Marking::None;
                }
            }
            T::Change => {
                let path = &mut paths[1];
                match random.below(4) {
                    0 => path.service *= u64::from(random.between(2, 4)),
                    1 => path.delay *= u64::from(random.between(2, 5)),
                    2 => path.back *= u64::from(random.between(2, 5)),
                    _ => {
                        path.delay /= 2;
                        path.back /= 2;
                    }
                }
                paths[2] = paths[1];
                paths[1].spray = random.pick(&[0, spray]);
            }
            T::All => {
                paths[1].loss = random.pick(&[0, 1, 10]);
                paths[1].back_loss = random.pick(&[0, 1, 10, 100]);
                paths[1].spray = random.pick(&[0, spray]);
                paths[1].queue = random.pick(&[20, 100, 400]);
                paths[1].marking = random.pick(&[Marking::None, Marking::Red]);
                paths[1].service *= u64::from(random.between(1, 3));
            }
        }
        under_way = under_way.min(2048 * flows as u64);
        let longest = (paths.iter())
            .map(|path| {
                let queued = under_way.min(path.queue as u64) * path.service;
                path.round_trip() + 2 * path.spray + queued + 2 * poll
            })
            .max()
            .unwrap_or(0);
        let unit = (longest * 6).max(3000 * service).max(6 * MS);
        // The acknowledge timeout must not expire before the response arrives.
        let min_timeout = if matches!(trouble, T::Marks | T::Overflow | T::All) {
            14
        } else {
            8
        };
        let timeout = (min_timeout..31)
            .find(|&code| 4096u64 << code >= 6 * longest)
            .unwrap_or(30);
        Config {
            flows,
            op,
            mtu,
            message,
            depth: depth as usize,
            peers,
            trouble,
            paths,
            times: [unit, unit * 2, unit * 2],
            settle: unit,
            spread: random.pick(&[0, unit / 4]),
            poll,
            timeout,
            retry_count: random.pick(&[0, 1, 3, 7]),
            longest,
        }
    }
}
