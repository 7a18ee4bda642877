// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two hosts and a bad link, for statements that need a case of their own. The simulation
//! (selftests/simulation) covers everything else at random.

use rrxe_core::{Service, Status};
use rrxe_testkit::{Op, Pair, Random, Request, BASE, MEMORY, RKEY};

/// B-06: a READ whose responses cross the PSN wrap, over a link with losses.
#[test]
fn b_06_read_across_the_wrap() {
    for seed in 0..20 {
        let mut pair = Pair::new(Service::Rc, 256, seed);
        pair.link.loss = 5;
        let data = pair.random.bytes(MEMORY);
        pair.hosts[1].driver.regions[0].bytes.copy_from_slice(&data);
        let read = Request {
            op: Op::Read,
            length: 100_000,
            va: BASE + 77,
            ..Request::default()
        };
        pair.hosts[0].post(read, vec![0; 100_000]).unwrap();
        pair.run();
        assert_eq!(pair.hosts[0].statuses(), [Status::Success]);
        assert!(pair.hosts[0].driver.sent[0].data == data[77..100_077]);
    }
}

/// One of many work requests is refused: earlier ones succeed, later ones are flushed in order, at
/// both ends (J-13, F-16, G-10).
#[test]
fn a_refused_request_among_others() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(Service::Rc, 1024, seed);
        let count = 2 + random.below(30);
        let bad = random.below(count);
        for i in 0..count {
            let op = [Op::Send, Op::Write, Op::Read, Op::FetchAdd];
            let op = match op[random.below(4) as usize] {
                Op::Send if i == bad => Op::Write,
                op => op,
            };
            let length = 1 + random.below(5000);
            let request = Request {
                op,
                length,
                rkey: if i == bad { RKEY + 1 } else { RKEY },
                ..Request::default()
            };
            pair.hosts[0]
                .post(request, vec![0; length as usize])
                .unwrap();
            pair.hosts[1].post_recv(i.into(), 5000);
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
