// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The share of a bottleneck that queue pairs use, and their fairness, with and without ECN, in
//! simulated time. `--nocapture` prints the table.

use rrxe_core::congestion::NotificationPoint;
use rrxe_core::{Packet, SendOp, SendSlot, Service, Status};
use rrxe_testkit::{Host, Random, BASE, RKEY};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const MTU: u32 = 1024;
const MESSAGE: u32 = 65_536;

#[derive(Clone, Copy, Debug)]
struct Path {
    /// Nanoseconds that a full packet takes on each access link and on the bottleneck.
    service: u64,
    /// One-way delay.
    delay: u64,
    /// Packets that fit into the queue of the bottleneck.
    queue: usize,
    /// Packets in the queue from which on each one is marked; `usize::MAX` for no ECN.
    mark: usize,
    /// Packets in the queue from which on one is marked with a probability that rises to 1 % at
    /// `mark` (RED, as in the DCQCN paper).
    red: usize,
    /// Messages in flight for each queue pair.
    under_way: usize,
}

impl Default for Path {
    fn default() -> Path {
        // 10 Gbit/s, 50 us.
        Path {
            service: 870,
            delay: 25_000,
            queue: 400,
            mark: usize::MAX,
            red: usize::MAX,
            under_way: 16,
        }
    }
}

enum Event {
    /// Reaches the bottleneck.
    Switch(usize, Packet, Vec<u8>),
    /// The bottleneck has sent a packet.
    Departure,
    /// Reaches a receiver; with a mark.
    Receiver(usize, Packet, Vec<u8>, bool),
    /// Reaches a sender.
    Sender(usize, Packet, Vec<u8>),
    Cnp(usize),
    Timer(usize),
    ReceiverTimer(usize),
}

struct Net {
    path: Path,
    now: u64,
    random: Random,
    senders: Vec<Host>,
    receivers: Vec<Host>,
    np: Vec<NotificationPoint>,
    /// Time at which each access link is free.
    free: Vec<u64>,
    queue: VecDeque<(usize, Packet, Vec<u8>, bool)>,
    busy: bool,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    store: Vec<Option<Event>>,
    empty: Vec<usize>,
    sequence: u64,
    armed: Vec<Option<u64>>,
    receiver_armed: Vec<Option<u64>>,
    posted: Vec<usize>,
    done: Vec<u64>,
    dropped: u64,
    sent: u64,
    cnps: u64,
    longest: usize,
}

impl Net {
    fn new(path: Path, flows: usize, seed: u64) -> Net {
        let host = |index| {
            let mut host = Host::new(Service::Rc, index, MTU);
            host.requester.set_timeout(14);
            host.slots = vec![SendSlot::default(); path.under_way.next_power_of_two()];
            host.budget = 64;
            host.driver.regions[0].bytes.truncate(MESSAGE as usize);
            host
        };
        Net {
            path,
            now: 1_000_000,
            random: Random(seed),
            senders: (0..flows).map(|_| host(0)).collect(),
            receivers: (0..flows).map(|_| host(1)).collect(),
            np: vec![NotificationPoint::default(); flows],
            free: vec![0; flows],
            queue: VecDeque::new(),
            busy: false,
            events: BinaryHeap::new(),
            store: Vec::new(),
            empty: Vec::new(),
            sequence: 0,
            armed: vec![None; flows],
            receiver_armed: vec![None; flows],
            posted: vec![0; flows],
            done: vec![0; flows],
            dropped: 0,
            sent: 0,
            cnps: 0,
            longest: 0,
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        let index = match self.empty.pop() {
            Some(index) => index,
            None => {
                self.store.push(None);
                self.store.len() - 1
            }
        };
        self.store[index] = Some(event);
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, index)));
    }

    fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            self.random.next_u64() % n
        }
    }

    /// Posts, sends, arms the timer.
    fn kick(&mut self, flow: usize) {
        while self.posted[flow] < self.path.under_way {
            let request = SendSlot {
                op: SendOp::Write,
                length: MESSAGE,
                remote_addr: BASE,
                rkey_or_qkey: RKEY,
                signaled: true,
                ..SendSlot::default()
            };
            if self.senders[flow]
                .post(request, vec![0; MESSAGE as usize])
                .is_none()
            {
                break;
            }
            self.posted[flow] += 1;
        }
        while self.senders[flow].transmit(self.now) {}
        for frame in std::mem::take(&mut self.senders[flow].driver.out) {
            self.sent += 1;
            let time =
                self.path.service * (u64::from(frame.total_len()) + 60) / (u64::from(MTU) + 80);
            // A sender is never exactly in step with another one.
            let gap = self.below(time / 4 + 1);
            self.free[flow] = self.free[flow].max(self.now) + time + gap;
            let at = self.free[flow] + self.path.delay / 2;
            self.at(at, Event::Switch(flow, frame.packet(), frame.payload));
        }
        let next = self.senders[flow].requester.next_timeout();
        if let Some(at) = next.filter(|&at| self.armed[flow].is_none_or(|armed| at < armed)) {
            self.armed[flow] = Some(at);
            self.at(at.max(self.now), Event::Timer(flow));
        }
    }

    fn answer(&mut self, flow: usize) {
        while self.receivers[flow].transmit(self.now) {}
        for frame in std::mem::take(&mut self.receivers[flow].driver.out) {
            self.at(
                self.now + self.path.delay,
                Event::Sender(flow, frame.packet(), frame.payload),
            );
        }
        let next = self.receivers[flow].responder.next_timeout();
        if let Some(at) =
            next.filter(|&at| self.receiver_armed[flow].is_none_or(|armed| at < armed))
        {
            self.receiver_armed[flow] = Some(at);
            self.at(at.max(self.now), Event::ReceiverTimer(flow));
        }
    }

    fn collect(&mut self, flow: usize) {
        for done in std::mem::take(&mut self.senders[flow].driver.sent) {
            assert_eq!(done.completion.status, Status::Success, "flow {flow}");
            self.posted[flow] -= 1;
            self.done[flow] += 1;
        }
    }

    fn depart(&mut self) {
        if let Some((_, packet, ..)) = self.queue.front() {
            let bytes = u64::from(packet.payload_len) + 80;
            let time = self.path.service * bytes / (u64::from(MTU) + 80);
            self.busy = true;
            self.at(self.now + time, Event::Departure);
        } else {
            self.busy = false;
        }
    }

    fn step(&mut self) {
        let Reverse((at, _, index)) = self.events.pop().expect("nothing happens any more");
        self.now = self.now.max(at);
        let event = self.store[index].take().unwrap();
        self.empty.push(index);
        match event {
            Event::Switch(flow, packet, payload) => {
                if self.queue.len() >= self.path.queue {
                    self.dropped += 1;
                    return;
                }
                let long = self.queue.len();
                let marked = long >= self.path.mark
                    || long > self.path.red && {
                        let part = (long - self.path.red) as u64 * 10_000
                            / (self.path.mark - self.path.red) as u64;
                        self.below(1_000_000) < part
                    };
                self.queue.push_back((flow, packet, payload, marked));
                self.longest = self.longest.max(self.queue.len());
                if !self.busy {
                    self.depart();
                }
            }
            Event::Departure => {
                if let Some((flow, packet, payload, marked)) = self.queue.pop_front() {
                    self.at(
                        self.now + self.path.delay / 2,
                        Event::Receiver(flow, packet, payload, marked),
                    );
                }
                self.depart();
            }
            Event::Receiver(flow, packet, payload, marked) => {
                if marked
                    && self.np[flow].marked(self.now, 50_000)
                    && self.receivers[flow].responder.cnp(&packet).is_some()
                {
                    self.cnps += 1;
                    self.at(self.now + self.path.delay, Event::Cnp(flow));
                }
                let _ = self.receivers[flow].take(self.now, &packet, &payload);
                self.answer(flow);
            }
            Event::ReceiverTimer(flow) => {
                self.receiver_armed[flow] = None;
                self.answer(flow);
            }
            Event::Sender(flow, packet, payload) => {
                let _ = self.senders[flow].take(self.now, &packet, &payload);
                self.collect(flow);
                self.kick(flow);
            }
            Event::Cnp(flow) => {
                self.senders[flow].requester.on_cnp(self.now);
                self.kick(flow);
            }
            Event::Timer(flow) => {
                self.armed[flow] = None;
                if self.senders[flow]
                    .requester
                    .next_timeout()
                    .is_some_and(|at| at <= self.now)
                {
                    let _ = self.senders[flow].timeout(self.now);
                }
                self.collect(flow);
                self.kick(flow);
            }
        }
    }

    /// Runs for this time in nanoseconds. Returns the bytes per second of each flow after the first
    /// fifth of it.
    fn run(&mut self, time: u64) -> Vec<f64> {
        let start = self.now;
        for flow in 0..self.senders.len() {
            let later = self.below(2 * MS);
            self.at(start + later, Event::Timer(flow));
        }
        let mut before = None;
        while self.now < start + time {
            self.step();
            if before.is_none() && self.now >= start + time / 5 {
                before = Some((self.now, self.done.clone()));
            }
        }
        let (since, before) = before.unwrap();
        let seconds = (self.now - since) as f64 / 1e9;
        self.done
            .iter()
            .zip(before)
            .map(|(now, then)| (now - then) as f64 * f64::from(MESSAGE) / seconds)
            .collect()
    }
}

fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|r| r * r).sum();
    if squares == 0.0 {
        0.0
    } else {
        sum * sum / (rates.len() as f64 * squares)
    }
}

/// A row of the table: a path, the number of queue pairs, the smallest share of the link and the
/// largest share of dropped packets, both in percent.
type Row = (&'static str, Path, usize, u64, u64);

/// Runs queue pairs over a path for a second, and prints the result. Returns whether it is within
/// the limits.
fn is_within(row: Row) -> bool {
    let (name, path, flows, min_share, max_dropped) = row;
    let mut net = Net::new(path, flows, 7);
    let rates = net.run(1000 * MS);
    let capacity = f64::from(MTU) / path.service as f64 * 1e9;
    let share = rates.iter().sum::<f64>() / capacity * 100.0;
    let again: u64 = net
        .senders
        .iter()
        .map(|h| u64::from(h.requester.counters.retransmitted))
        .sum();
    let percent = |packets: u64| packets as f64 / net.sent as f64 * 100.0;
    let (fair, dropped) = (jain(&rates), percent(net.dropped));
    println!(
        "{name}, {flows} queue pairs: {share:.1} % of the link (at least {min_share}), Jain {fair:.2}, {dropped:.1} % dropped (at most {max_dropped}), {:.1} % sent again",
        percent(again)
    );
    share >= min_share as f64 && dropped <= max_dropped as f64 && fair >= 0.95
}

const MS: u64 = 1_000_000;

/// Without ECN, losses limit the senders.
#[test]
fn drop_tail() {
    let long = Path::default();
    let short = Path { queue: 100, ..long };
    let rows = [
        ("queue of 400 packets", long, 2, 90, 2),
        ("queue of 400 packets", long, 8, 90, 2),
        ("queue of 400 packets", long, 64, 90, 8),
        ("queue of 100 packets", short, 2, 90, 2),
        ("queue of 100 packets", short, 8, 90, 4),
    ];
    assert_eq!(rows.into_iter().filter(|row| !is_within(*row)).count(), 0);
}

/// A queue that marks packets as in the DCQCN paper.
#[test]
fn marking() {
    let path = Path {
        red: 5,
        mark: 200,
        ..Path::default()
    };
    let rows = [2, 8, 32].map(|flows| {
        let (share, dropped) = if flows == 32 { (90, 3) } else { (93, 2) };
        ("RED from 5 to 200 packets", path, flows, share, dropped)
    });
    assert_eq!(rows.into_iter().filter(|row| !is_within(*row)).count(), 0);
}

/// Returns the share of the link that a queue pair uses over a round trip of 10 ms, after another
/// round trip at first.
fn after(delay: u64) -> f64 {
    let path = Path {
        queue: 8000,
        under_way: 128,
        delay,
        ..Path::default()
    };
    let mut net = Net::new(path, 1, 1);
    net.run(100 * MS);
    net.path.delay = 5 * MS;
    net.run(500 * MS);
    let capacity = f64::from(MTU) / path.service as f64 * 1e9;
    net.run(500 * MS).iter().sum::<f64>() / capacity * 100.0
}

/// A connection whose path becomes longer is as fast as a new one.
#[test]
fn a_path_becomes_longer() {
    let (fresh, longer) = (after(5 * MS), after(25_000));
    println!("round trip 10 ms: {fresh:.1} % of the link, {longer:.1} % after 50 us");
    assert!(longer >= fresh * 0.95);
}

/// Returns the time in which a new queue pair sends this number of messages of 64 KiB over an idle
/// path.
fn first(messages: u64) -> u64 {
    let mut net = Net::new(Path::default(), 1, 1);
    let start = net.now;
    net.at(start, Event::Timer(0));
    while net.done[0] < messages {
        net.step();
    }
    net.now - start
}

/// Slow start costs a new queue pair little: the first 64 KiB are one flight.
#[test]
fn a_new_connection() {
    let (one, sixteen) = (first(1), first(16));
    println!(
        "first 64 KiB: {} us, first MiB: {} us",
        one / 1000,
        sixteen / 1000
    );
    // The time on the link, with the random gaps of the sender, and a round trip.
    assert!(one < 64 * 870 * 5 / 4 + 60_000, "{one}");
    assert!(sixteen < (1024 * 870 * 5 / 4 + 60_000) * 3 / 2, "{sixteen}");
}
