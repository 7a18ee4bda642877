// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random work over a link that loses, duplicates, corrupts and reorders: every work request
//! completes once, in order, with every byte right, and atomics happen exactly once.
//!
//! A run follows from its seed, which a failure prints. `RRXE_SIM_ROUNDS=n` runs n times as many.

mod common;

use common::{Link, Pair, Rng, BASE, MEMORY, RKEY};
use rrxe_core::{SendOp, SendRequest, Service, Status};
use std::collections::VecDeque;

/// Memory of a host, by what is done to it: WRITEs go to the first part, READs come from the
/// second, atomics work on the third.
const READ_FROM: u64 = (MEMORY / 2) as u64;
const ATOMICS: u64 = (MEMORY - 64) as u64;

/// What must come of a send work request.
enum Expect {
    Nothing,
    Data(Vec<u8>),
}

/// One side's plan: what is posted and what it must lead to.
struct Plan {
    left: u32,
    expect: VecDeque<(SendRequest, Expect)>,
    /// The peer's memory as it must be in the end.
    memory: Vec<u8>,
    /// Messages that the peer must receive, in order: data and immediate.
    messages: VecDeque<(Vec<u8>, u32, Option<u32>)>,
    checked: usize,
}

fn random_length(rng: &mut Rng, mtu: u64) -> usize {
    (match rng.below(6) {
        0 => rng.below(4),
        1 => rng.below(64),
        2 => mtu + rng.below(3) - 1,
        3 => mtu * rng.below(5),
        4 => rng.below(mtu * 8),
        _ => rng.below(mtu * 40),
    }) as usize
}

/// Makes up a work request, and what must come of it.
fn make_up(rng: &mut Rng, plan: &mut Plan, mtu: u64) -> (SendRequest, Vec<u8>) {
    let mut request = SendRequest {
        rkey: RKEY,
        signaled: rng.chance(50),
        fence: rng.chance(10),
        solicited: rng.chance(20),
        imm_or_key: rng.next() as u32,
        ..SendRequest::default()
    };
    let len = random_length(rng, mtu);
    let mut local = Vec::new();
    let mut expect = Expect::Nothing;
    match rng.below(8) {
        n @ (0 | 1) => {
            request.op = if n == 0 {
                SendOp::Send
            } else {
                SendOp::SendImm
            };
            request.length = len as u32;
            local = rng.bytes(len);
            let imm = (n == 1).then_some(request.imm_or_key);
            plan.messages.push_back((local.clone(), len as u32, imm));
        }
        n @ (2..=4) => {
            request.op = if n == 4 {
                SendOp::WriteImm
            } else {
                SendOp::Write
            };
            request.length = len as u32;
            local = rng.bytes(len);
            let at = rng.below(READ_FROM - len as u64 + 1);
            request.remote_addr = BASE + at;
            plan.memory[at as usize..at as usize + len].copy_from_slice(&local);
            if n == 4 {
                plan.messages
                    .push_back((Vec::new(), len as u32, Some(request.imm_or_key)));
            }
        }
        5 | 6 => {
            request.op = SendOp::Read;
            request.length = len as u32;
            let at = READ_FROM + rng.below(ATOMICS - READ_FROM - len as u64 + 1);
            request.remote_addr = BASE + at;
            local = vec![0; len];
            expect = Expect::Data(plan.memory[at as usize..at as usize + len].to_vec());
        }
        _ => {
            let at = ATOMICS + 8 * rng.below(8);
            request.remote_addr = BASE + at;
            let word: &mut [u8; 8] = (&mut plan.memory[at as usize..at as usize + 8])
                .try_into()
                .unwrap();
            let original = u64::from_ne_bytes(*word);
            expect = Expect::Data(word.to_vec());
            request.compare_add = rng.next();
            let new = if rng.chance(50) {
                request.op = SendOp::FetchAdd;
                original.wrapping_add(request.compare_add)
            } else {
                request.op = SendOp::CompareSwap;
                request.swap = rng.next();
                if rng.chance(70) {
                    request.compare_add = original;
                }
                if request.compare_add == original {
                    request.swap
                } else {
                    original
                }
            };
            *word = new.to_ne_bytes();
        }
    }
    plan.expect.push_back((request, expect));
    (request, local)
}

/// Looks at everything that has completed since the last time.
fn check(pair: &mut Pair, side: usize, plan: &mut Plan) {
    for done in &pair.hosts[side].driver.sent[plan.checked..] {
        let (request, expect) = plan.expect.pop_front().expect("completed twice");
        assert_eq!(done.wr_id, plan.checked as u64, "out of order");
        assert_eq!(done.completion.status, Status::Success);
        assert_eq!(done.completion.op, request.op);
        assert_eq!(done.completion.signaled, request.signaled);
        if let Expect::Data(data) = expect {
            assert!(done.data == data, "wrong data of {request:?}");
        }
        plan.checked += 1;
    }
    for done in pair.hosts[1 - side].driver.received.drain(..) {
        let (data, len, imm) = plan.messages.pop_front().expect("received twice");
        assert_eq!(done.completion.status, Status::Success);
        assert_eq!((done.completion.byte_len, done.completion.imm), (len, imm));
        assert!(done.data[..data.len()] == data, "wrong data received");
    }
}

/// The seeds of a test: `count` from `first` on, or a multiple of that many.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let rounds = std::env::var("RRXE_SIM_ROUNDS").map_or(1, |n| n.parse().unwrap());
    // Regions that do not overlap.
    let first = if rounds == 1 { first } else { first << 32 };
    first..first + count * rounds
}

/// Prints the seed if the test fails.
struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed is {}", self.0);
        }
    }
}

/// Both sides do `requests` work requests each. Seven retries are enough for these links: progress
/// reloads them.
fn run(seed: u64, mtu: u32, link: Link, requests: u32) -> Pair {
    let _print = PrintSeed(seed);
    let mut rng = Rng(seed);
    let mut pair = Pair::new(Service::Rc, mtu, seed);
    pair.link = link;
    let mut plans: Vec<Plan> = (0..2)
        .map(|side| {
            let memory = rng.bytes(MEMORY);
            pair.hosts[1 - side].driver.memory.copy_from_slice(&memory);
            pair.hosts[side].budget = 1 + rng.below(40) as u32;
            Plan {
                left: requests,
                expect: VecDeque::new(),
                memory,
                messages: VecDeque::new(),
                checked: 0,
            }
        })
        .collect();
    loop {
        for (side, plan) in plans.iter_mut().enumerate() {
            while plan.left > 0
                && rng.chance(80)
                && pair.hosts[side].requester.can_post(&pair.hosts[side].slots)
            {
                let (request, local) = make_up(&mut rng, plan, mtu.into());
                pair.hosts[side].post(request, local).unwrap();
                plan.left -= 1;
            }
            // Sometimes the receiver lags behind.
            if rng.chance(60) && pair.hosts[side].driver.rq.len() < 8 {
                pair.hosts[side].post_recv(0, mtu as usize * 40);
            }
            // Sometimes the driver has no room.
            pair.hosts[side].driver.room = if rng.chance(10) {
                rng.below(4) as u32
            } else {
                u32::MAX
            };
        }
        let now = pair.now;
        for host in &mut pair.hosts {
            // A driver with no room would be polled again.
            host.transmit(now);
            host.driver.room = u32::MAX;
        }
        let alive = pair.step();
        for (side, plan) in plans.iter_mut().enumerate() {
            check(&mut pair, side, plan);
            assert!(!pair.hosts[side].error, "gave up");
        }
        if !alive && plans.iter().all(|p| p.left == 0 && p.messages.is_empty()) {
            break;
        }
        if !alive {
            // Both wait for work or for a receive work request.
            pair.now += 1_000;
        }
    }
    for (side, plan) in plans.iter().enumerate() {
        assert!(plan.expect.is_empty(), "a work request never completed");
        assert!(
            pair.hosts[1 - side].driver.memory == plan.memory,
            "memory differs"
        );
    }
    pair
}

#[test]
fn clean_link() {
    for seed in seeds(0, 20) {
        let pair = run(
            seed,
            [256, 512, 1024, 2048, 4096][seed as usize % 5],
            Link::default(),
            200,
        );
        for host in &pair.hosts {
            let counters = host.requester.counters();
            assert_eq!(counters.timeouts, 0);
            assert_eq!(counters.sequence_naks + counters.implied_naks, 0);
            assert_eq!(host.responder.counters().duplicates, 0);
        }
    }
}

#[test]
fn loss() {
    for seed in seeds(100, 30) {
        let link = Link {
            loss: 1 + seed % 5,
            ..Link::default()
        };
        run(seed, [256, 1024, 4096][seed as usize % 3], link, 150);
    }
}

#[test]
fn duplication() {
    for seed in seeds(200, 20) {
        let link = Link {
            duplication: 20,
            ..Link::default()
        };
        run(seed, [256, 1024, 4096][seed as usize % 3], link, 150);
    }
}

#[test]
fn reordering() {
    for seed in seeds(300, 20) {
        let link = Link {
            jitter: 1_000,
            ..Link::default()
        };
        run(seed, [256, 1024, 4096][seed as usize % 3], link, 100);
    }
}

#[test]
fn everything_at_once() {
    for seed in seeds(400, 40) {
        let link = Link {
            loss: 2,
            duplication: 5,
            corruption: 2,
            jitter: 200,
        };
        let pair = run(
            seed,
            [256, 512, 1024, 2048, 4096][seed as usize % 5],
            link,
            120,
        );
        assert!(pair.hosts.iter().any(|h| h.bad_icrc > 0));
    }
}

/// B-06: a READ whose responses cross the end of the PSN space, over a link that loses some.
#[test]
fn b_06_read_across_the_wrap() {
    for seed in seeds(500, 20) {
        let mut pair = Pair::new(Service::Rc, 256, seed);
        pair.link.loss = 5;
        let data = pair.rng.bytes(MEMORY);
        pair.hosts[1].driver.memory.copy_from_slice(&data);
        let read = SendRequest {
            op: SendOp::Read,
            length: 100_000,
            remote_addr: BASE + 77,
            rkey: RKEY,
            ..SendRequest::default()
        };
        pair.hosts[0].post(read, vec![0; 100_000]).unwrap();
        pair.run();
        assert_eq!(pair.hosts[0].statuses(), [Status::Success]);
        assert!(pair.hosts[0].driver.sent[0].data == data[77..100_077]);
    }
}

/// One work request among many is refused: what is before it succeeds, what is behind it is
/// flushed, in order, at both ends (J-13, F-16, G-10).
#[test]
fn a_refused_request_among_others() {
    for seed in seeds(600, 40) {
        let mut rng = Rng(seed);
        let mut pair = Pair::new(Service::Rc, 1024, seed);
        let count = 2 + rng.below(30);
        let bad = rng.below(count);
        for i in 0..count {
            let op = [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd];
            let op = match op[rng.below(4) as usize] {
                SendOp::Send if i == bad => SendOp::Write,
                op => op,
            };
            let length = 1 + rng.below(5000) as u32;
            let request = SendRequest {
                op,
                length,
                remote_addr: BASE,
                rkey: if i == bad { RKEY + 1 } else { RKEY },
                ..SendRequest::default()
            };
            pair.hosts[0]
                .post(request, vec![0; length as usize])
                .unwrap();
            pair.hosts[1].post_recv(i, 5000);
        }
        pair.run();
        let statuses = pair.hosts[0].statuses();
        for (i, status) in (0..).zip(statuses) {
            let expected = match i {
                i if i < bad => Status::Success,
                i if i == bad => Status::RemAccess,
                _ => Status::WrFlush,
            };
            assert_eq!(status, expected, "work request {i} of seed {seed}");
        }
        assert!(pair.hosts[0].error && pair.hosts[1].error);
    }
}
