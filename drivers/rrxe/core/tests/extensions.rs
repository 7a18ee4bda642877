// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! FLUSH, ATOMIC WRITE (IBA A19), SEND with invalidate and XRC (IBA A14): both ends together, and
//! the requester's part.

use rrxe_core::wire::{Aeth, Feth, Operation as O, Syndrome};
use rrxe_core::{Ext, Psn, Service, Status};
use rrxe_testkit::{packet, Host, Op, Pair, Random, Request, BASE, RKEY, START_PSN};

const MTU: u32 = 1024;
const SRQ: u32 = 0x77;

fn feth(placement: u8, level: u8) -> Feth {
    Feth { placement, level }
}

fn request(op: Op, length: u32) -> Request {
    Request {
        op,
        length,
        signaled: true,
        feth: feth(Feth::GLOBAL, Feth::RANGE),
        key: RKEY,
        srqn: SRQ,
        ..Request::default()
    }
}

/// G-25, G-26, B-05: request packets.
#[test]
fn g_26_request_packets() {
    let mut host = Host::new(Service::Rc, 0, MTU);
    let mut whole = request(Op::Flush, 5 * MTU);
    whole.feth = feth(Feth::PERSISTENT, Feth::REGION);
    whole.solicited = true;
    host.post(whole, Vec::new()).unwrap();
    let mut write = request(Op::AtomicWrite, 8);
    write.solicited = true;
    host.post(write, (1..=8).collect()).unwrap();
    let sent = host.drain(0);
    let [(flush, nothing), (write, eight)] = &sent[..] else {
        panic!("{sent:?}")
    };
    let Ext::Flush(feth, reth) = flush.ext else {
        panic!("{flush:?}")
    };
    assert_eq!(
        (feth.placement, feth.level),
        (Feth::PERSISTENT, Feth::REGION)
    );
    assert_eq!((reth.va, reth.rkey, reth.len), (BASE, RKEY, 5 * MTU));
    assert!(nothing.is_empty());
    let Ext::Reth(reth) = write.ext else {
        panic!("{write:?}")
    };
    assert_eq!((reth.va, reth.rkey, reth.len), (BASE, RKEY, 8));
    assert_eq!(*eight, [1, 2, 3, 4, 5, 6, 7, 8]);
    // A FLUSH takes one PSN, whatever its length.
    assert_eq!(write.psn(), flush.psn().next());
    assert!([flush, write]
        .iter()
        .all(|p| p.bth.ackreq && !p.bth.solicited));
}

/// Invalid lengths, and services that do not support the operation.
#[test]
fn refused_requests_fail() {
    let refused = |service, op, length, status| {
        let mut host = Host::new(service, 0, MTU);
        host.post(request(op, length), Vec::new()).unwrap();
        assert!(host.drain(0).is_empty());
        assert_eq!(host.statuses(), [status]);
    };
    refused(Service::Rc, Op::Flush, 1 << 31, Status::LocLen);
    for service in [Service::Uc, Service::Ud] {
        for op in [Op::Flush, Op::AtomicWrite] {
            refused(service, op, 8, Status::LocQpOp);
        }
    }
}

/// F-18: an ACKNOWLEDGE does not complete a FLUSH or atomic write, only the work requests before
/// it. F-14, F-15: nor does a response with a payload.
#[test]
fn f_18_only_their_own_response() {
    for op in [Op::Flush, Op::AtomicWrite] {
        let first = Psn::new(START_PSN[0]);
        let started = || {
            let mut host = Host::new(Service::Rc, 0, MTU);
            host.post(request(Op::Write, 4), vec![0; 4]).unwrap();
            host.post(request(op, 8), vec![0; 8]).unwrap();
            assert_eq!(host.drain(0).len(), 2);
            host
        };
        let response = |operation, len| {
            let aeth = Ext::Aeth(Aeth::new(Syndrome::ACK_UNLIMITED, Psn::new(0)));
            packet(operation, first.next(), aeth, len)
        };
        let mut host = started();
        let ack = response(O::Acknowledge, 0);
        let _ = host.take(0, &ack, &[]);
        assert_eq!(host.statuses(), [Status::Success]);
        let _ = host.take(0, &response(O::ReadResponseOnly, 0), &[]);
        assert_eq!(host.statuses(), [Status::Success; 2]);
        let done = &host.driver.sent[1].completion;
        assert_eq!(done.byte_len, 8);

        // Eight bytes of payload where there must be zero.
        let mut host = started();
        let _ = host.take(0, &response(O::ReadResponseOnly, 8), &[1; 8]);
        assert_eq!(host.statuses(), [Status::Success, Status::LocLen]);
        assert_eq!(host.driver.sent[1].data, [0; 8]);
    }
}

/// F-23, F-24: both count as outstanding like READs, and a fence waits for them.
#[test]
fn f_23_they_count_as_outstanding() {
    for op in [Op::Flush, Op::AtomicWrite] {
        let mut host = Host::new(Service::Rc, 0, MTU);
        host.requester.max_rd_atomic = 3;
        for _ in 0..5 {
            host.post(request(op, 8), vec![0; 8]).unwrap();
        }
        assert_eq!(host.drain(0).len(), 3);
        assert_eq!(u32::from(host.requester.reads), 3);
        let mut host = Host::new(Service::Rc, 0, MTU);
        host.post(request(op, 8), vec![0; 8]).unwrap();
        let fenced = Request {
            fence: true,
            ..request(Op::Write, 4)
        };
        host.post(fenced, vec![0; 4]).unwrap();
        assert_eq!(host.drain(0).len(), 1);
    }
}

/// F-16: the responder refuses a FLUSH.
#[test]
fn f_16_refused_flush() {
    let mut pair = Pair::new(Service::Rc, MTU, 1);
    pair.hosts[1].responder.set_flush_access(true, false);
    let mut persistent = request(Op::Flush, 8);
    persistent.feth = feth(Feth::PERSISTENT, Feth::RANGE);
    pair.hosts[0]
        .post(request(Op::Flush, 8), Vec::new())
        .unwrap();
    pair.hosts[0].post(persistent, Vec::new()).unwrap();
    pair.run();
    assert_eq!(
        pair.hosts[0].statuses(),
        [Status::Success, Status::RemInvReq]
    );
}

/// Posts WRITE, FLUSH, ATOMIC WRITE and SEND with immediate in random order over a link that drops,
/// duplicates, reorders and corrupts packets. Each is executed once, and all data arrives.
fn mixture(service: Service, seed: u64) {
    let mut pair = Pair::new(service, 256, seed);
    pair.link.loss = 5;
    pair.link.duplication = 5;
    pair.link.corruption = 2;
    pair.link.jitter = 20_000;
    pair.hosts[1].driver.srq = Some(SRQ);
    let mut random = Random::new(seed);
    let mut expected = vec![0u8; 4096];
    let (mut flushes, mut writes, mut receives) = (0, 0, 0);
    for n in 0..40u64 {
        let at = 8 * u64::from(random.below(400));
        let mut wanted = request(Op::Flush, 8);
        wanted.va += at;
        let mut data = Vec::new();
        match random.below(4) {
            0 => flushes += 1,
            1 => {
                writes += 1;
                wanted.op = Op::AtomicWrite;
                data = random.bytes(8);
                expected[at as usize..at as usize + 8].copy_from_slice(&data);
            }
            2 => {
                wanted.op = Op::Write;
                data = random.bytes(700);
                wanted.length = 700;
                expected[at as usize..at as usize + 700].copy_from_slice(&data);
            }
            _ => {
                wanted.op = Op::SendImm;
                data = random.bytes(300);
                wanted.length = 300;
                pair.hosts[1].post_recv(receives, 300);
                receives += 1;
            }
        }
        assert_eq!(pair.hosts[0].post(wanted, data), Some(n));
    }
    pair.run();
    assert_eq!(
        pair.hosts[0].statuses(),
        [Status::Success; 40],
        "seed {seed}"
    );
    let there = &pair.hosts[1];
    assert_eq!(there.driver.flushes.len(), flushes, "seed {seed}");
    assert_eq!(there.driver.atomics, writes, "seed {seed}");
    assert_eq!(
        there.driver.regions[0].bytes[..4096],
        expected,
        "seed {seed}"
    );
    assert_eq!(there.driver.received.len() as u64, receives, "seed {seed}");
    assert_eq!(there.responder.msn.get(), 40);
}

#[test]
fn mixture_over_a_bad_link() {
    for seed in 0..60 {
        mixture(Service::Rc, seed);
    }
}

/// XRC: the mixture with the number of a shared receive queue in each request.
#[test]
fn xrc_mixture_over_a_bad_link() {
    for seed in 0..60 {
        mixture(Service::Xrc, seed);
    }
}

/// XRC: each request packet names the shared receive queue of its work request.
#[test]
fn xrc_request_packets() {
    let mut host = Host::new(Service::Xrc, 0, 256);
    for op in [
        Op::Send,
        Op::SendInv,
        Op::WriteImm,
        Op::Read,
        Op::FetchAdd,
        Op::Flush,
    ] {
        host.post(request(op, 600), vec![0; 600]).unwrap();
    }
    let sent = host.drain(0);
    assert_eq!(sent.len(), 3 * 3 + 3);
    for (packet, _) in &sent {
        assert_eq!((packet.bth.opcode.0 >> 5, packet.xrc_srqn), (5, SRQ));
    }
    // The requester drops a response of RC's class.
    let dropped = host.requester.counters.dropped.get();
    let ack = rrxe_testkit::acknowledge(Psn::new(START_PSN[0]), Syndrome::ACK_UNLIMITED);
    let _ = host.take(0, &ack, &[]);
    assert_eq!(host.requester.counters.dropped, dropped + 1);
}

/// G-22 with both ends: the key is invalid when the receive completes.
#[test]
fn g_22_invalidate() {
    for length in [0, 8, 3000] {
        let mut pair = Pair::new(Service::Rc, MTU, 5);
        pair.hosts[1].post_recv(0, 4096);
        let wanted = request(Op::SendInv, length);
        pair.hosts[0]
            .post(wanted, vec![1; length as usize])
            .unwrap();
        pair.run();
        assert_eq!(pair.hosts[0].statuses(), [Status::Success]);
        let done = &pair.hosts[1].driver.received[0].completion;
        assert_eq!((done.invalidated, done.byte_len), (Some(RKEY), length));
        assert!(!pair.hosts[1].driver.regions[0].valid);
    }
}
