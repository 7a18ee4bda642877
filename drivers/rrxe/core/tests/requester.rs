// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a requester does, statement by statement: against a peer made of single packets.

mod common;

use common::{acknowledge, packet, Host, Pair, BASE, RKEY, START_PSN};
use rrxe_core::wire::{Aeth, AtomicAckEth, NakCode, Operation, Syndrome};
use rrxe_core::{
    timeout, Ext, Fault, Packet, PostError, Psn, SendOp, SendRequest, Service, Status,
};

const MTU: u32 = 1024;
const ACK: Syndrome = Syndrome::ACK_UNLIMITED;
const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::SequenceError);

/// The acknowledge timeout of the hosts (code 8).
const TIMEOUT: u64 = 4_096 << 8;

fn host() -> Host {
    Host::new(Service::Rc, 0, MTU)
}

/// The requester's PSN with this index.
fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[0]).add(n)
}

fn post(host: &mut Host, op: SendOp, length: u32) -> u64 {
    post_with(
        host,
        SendRequest {
            op,
            length,
            ..Default::default()
        },
    )
}

fn post_with(host: &mut Host, mut request: SendRequest) -> u64 {
    request.remote_addr = BASE;
    request.rkey = RKEY;
    request.signaled = true;
    request.remote_qpn = 42;
    let room = request.length.max(8) as usize;
    host.post(request, vec![0x5a; room]).unwrap()
}

fn response(operation: Operation, n: u32, len: usize) -> Packet {
    let ext = match operation {
        Operation::ReadResponseMiddle => Ext::None,
        _ => Ext::Aeth(Aeth::new(ACK, Psn::new(0))),
    };
    packet(operation, psn(n), ext, len)
}

fn atomic_ack(n: u32, original: u64) -> Packet {
    let ext = Ext::AtomicAck(Aeth::new(ACK, Psn::new(0)), AtomicAckEth { original });
    packet(Operation::AtomicAcknowledge, psn(n), ext, 0)
}

fn ack(host: &mut Host, n: u32, syndrome: Syndrome) {
    let _ = host.take(0, &acknowledge(psn(n), syndrome), &[]);
}

fn psns(packets: &[(Packet, Vec<u8>)]) -> Vec<u32> {
    packets.iter().map(|(p, _)| p.psn().since(psn(0))).collect()
}

#[test]
fn packets_of_a_message() {
    let mut host = host();
    post_with(
        &mut host,
        SendRequest {
            op: SendOp::WriteImm,
            length: 2 * MTU + 5,
            imm_or_key: u32::from_ne_bytes([1, 2, 3, 4]),
            solicited: true,
            ..Default::default()
        },
    );
    let sent = host.drain(0);
    let [(first, a), (middle, b), (last, c)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(psns(&sent), [0, 1, 2]);
    assert_eq!((a.len(), b.len(), c.len()), (1024, 1024, 5));
    assert_eq!(first.operation, Operation::WriteFirst);
    let Ext::Reth(reth) = first.ext else { panic!() };
    assert_eq!((reth.va, reth.rkey, reth.len), (BASE, RKEY, 2 * MTU + 5));
    assert_eq!(middle.operation, Operation::WriteMiddle);
    assert_eq!(last.operation, Operation::WriteLastImm);
    let Ext::Imm(imm) = last.ext else { panic!() };
    assert_eq!(imm.0, [1, 2, 3, 4]);
    // G-05, G-20, D-19, A-30, A-41
    assert_eq!((first.pad, middle.pad, last.pad), (0, 0, 3));
    assert!(!first.bth.solicited && !middle.bth.solicited && last.bth.solicited);
    assert!(!first.bth.ackreq && !middle.bth.ackreq && last.bth.ackreq);
    assert!(sent
        .iter()
        .all(|(p, _)| p.bth.migreq && p.bth.pkey == 0xffff));
    assert!(sent.iter().all(|(p, _)| p.bth.dest_qpn == 101));
    // J-18
    assert_eq!(host.requester.next_psn(), psn(3).get());
}

#[test]
fn a_plain_write_is_never_solicited() {
    let mut host = host();
    let request = SendRequest {
        op: SendOp::Write,
        length: 1,
        solicited: true,
        ..Default::default()
    };
    post_with(&mut host, request);
    assert!(!host.drain(0)[0].0.bth.solicited);
}

#[test]
fn post_refuses() {
    let mut rc = host();
    let post = |host: &mut Host, op, length| {
        host.post(
            SendRequest {
                op,
                length,
                ..Default::default()
            },
            vec![],
        )
    };
    assert_eq!(
        post(&mut rc, SendOp::Write, (1 << 31) + 1),
        Err(PostError::Length)
    );
    for _ in 0..common::DEPTH {
        post(&mut rc, SendOp::Send, 0).unwrap();
    }
    assert!(!rc.requester.can_post(&rc.slots));
    assert_eq!(post(&mut rc, SendOp::Send, 0), Err(PostError::QueueFull));
    // H-08
    let mut uc = Host::new(Service::Uc, 0, MTU);
    for op in [
        SendOp::Read,
        SendOp::CompareSwap,
        SendOp::FetchAdd,
        SendOp::SendInv,
    ] {
        assert_eq!(post(&mut uc, op, 8), Err(PostError::Operation));
    }
    let mut ud = Host::new(Service::Ud, 0, MTU);
    assert_eq!(post(&mut ud, SendOp::Write, 8), Err(PostError::Operation));
    assert_eq!(post(&mut ud, SendOp::Send, MTU + 1), Err(PostError::Length));
    // A queue without slots is full, and asks nothing of anybody.
    let mut none = Host::new(Service::Rc, 0, MTU);
    none.slots.clear();
    assert_eq!(post(&mut none, SendOp::Send, 0), Err(PostError::QueueFull));
    assert!(none.drain(0).is_empty());
}

/// F-02: without a timeout nothing ever fires.
#[test]
fn f_02_no_timer() {
    let mut host = host();
    host.requester.set_timeout(0);
    post(&mut host, SendOp::Send, 1);
    assert_eq!(host.drain(0).len(), 1);
    assert_eq!(host.requester.next_timeout(), None);
}

/// F-03, F-04: n retries, seven too, then RETRY_EXC; the timer fires between one and four times
/// the timeout.
#[test]
fn f_03_retries_are_counted() {
    for retries in [0, 1, 3, 7] {
        let mut pair = Pair::new(Service::Rc, MTU, 1);
        pair.filter = Some(Box::new(|_, _| true));
        pair.hosts[0].requester.set_retry_count(retries);
        post(&mut pair.hosts[0], SendOp::Send, 1);
        post(&mut pair.hosts[0], SendOp::Send, 1);
        let start = pair.now;
        pair.run();
        let times = pair.sent_by(0).iter().filter(|p| p.psn() == psn(0)).count();
        assert_eq!(times, 1 + usize::from(retries));
        let waited = (pair.now - start) / (u64::from(retries) + 1);
        assert!((TIMEOUT..=4 * TIMEOUT).contains(&waited));
        assert_eq!(
            pair.hosts[0].statuses(),
            [Status::RetryExc, Status::WrFlush]
        );
        assert!(pair.hosts[0].error);
        // J-11
        assert!(!pair.hosts[0].sqe);
    }
}

/// F-06: NAKs without progress use up the retries.
#[test]
fn f_06_sequence_naks_use_up_retries() {
    let mut host = host();
    host.requester.set_retry_count(3);
    post(&mut host, SendOp::Send, 1);
    for _ in 0..3 {
        assert_eq!(psns(&host.drain(0)), [0]);
        ack(&mut host, 0, SEQUENCE_ERROR);
        assert!(!host.error);
        // The same NAK once more, before anything was sent again, means nothing.
        ack(&mut host, 0, SEQUENCE_ERROR);
    }
    assert_eq!(psns(&host.drain(0)), [0]);
    ack(&mut host, 0, SEQUENCE_ERROR);
    assert_eq!(host.statuses(), [Status::RetryExc]);
}

/// F-07: from the oldest unacknowledged PSN, the same packets.
#[test]
fn f_07_retransmission_repeats() {
    let mut host = host();
    post(&mut host, SendOp::Send, 3 * MTU + 1);
    post(&mut host, SendOp::Read, 5 * MTU);
    post(&mut host, SendOp::FetchAdd, 8);
    post(&mut host, SendOp::WriteImm, 10);
    let sent = host.drain(0);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4, 9, 10]);
    ack(&mut host, 1, ACK);
    let deadline = host.requester.next_timeout().unwrap();
    let _ = host
        .requester
        .handle_timeout(&mut host.slots, deadline, &mut host.driver);
    let again = host.drain(deadline);
    assert_eq!(again, sent[2..]);
    assert_eq!(host.requester.counters().retransmitted, 5);
}

/// F-08: what a NAK names is the first that is missing.
#[test]
fn f_08_a_nak_acknowledges() {
    let mut host = host();
    for _ in 0..4 {
        post(&mut host, SendOp::Send, 1);
    }
    host.drain(0);
    ack(&mut host, 2, SEQUENCE_ERROR);
    assert_eq!(host.statuses(), [Status::Success; 2]);
    assert_eq!(psns(&host.drain(0)), [2, 3]);
}

/// F-10: also F-30 and D-16: old acknowledgements, and those for what was never sent.
#[test]
fn f_10_strange_acknowledgements() {
    let mut host = host();
    post(&mut host, SendOp::Send, 1);
    post(&mut host, SendOp::Send, 1);
    host.drain(0);
    for n in [2, 3, 1 << 22, 1 << 23, 0xff_ffff] {
        for syndrome in [ACK, SEQUENCE_ERROR, Syndrome::Nak(NakCode::RemoteAccess)] {
            ack(&mut host, n, syndrome);
        }
    }
    assert!(host.statuses().is_empty());
    for _ in 0..3 {
        ack(&mut host, 0, ACK);
        assert_eq!(host.statuses().len(), 1);
    }
    ack(&mut host, 1, ACK);
    ack(&mut host, 0, ACK);
    ack(&mut host, 1, ACK);
    assert_eq!(host.statuses(), [Status::Success; 2]);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.next_timeout(), None);
}

/// F-11: an ACK beyond a READ does not complete what is behind it.
#[test]
fn f_11_implied_nak() {
    for (op, length, psns_taken) in [(SendOp::Read, 3 * MTU, 3), (SendOp::FetchAdd, 8, 1)] {
        let mut host = host();
        post(&mut host, SendOp::Send, 1);
        post(&mut host, op, length);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        ack(&mut host, 1 + psns_taken, ACK);
        assert_eq!(host.statuses(), [Status::Success]);
        assert_eq!(psns(&host.drain(0)), [1, 1 + psns_taken]);
        // Only once: more of the same must not use up the retries.
        for _ in 0..20 {
            ack(&mut host, 1 + psns_taken, ACK);
        }
        assert!(host.drain(0).is_empty());
        assert!(!host.error);
    }
}

/// F-12: a gap in READ responses.
#[test]
fn f_12_gap_is_asked_for_at_once() {
    let mut host = host();
    post(&mut host, SendOp::Read, 4 * MTU + 100);
    assert_eq!(host.drain(0).len(), 1);
    let mtu = MTU as usize;
    let _ = host.take(
        0,
        &response(Operation::ReadResponseFirst, 0, mtu),
        &[1; 1024],
    );
    let outcome = host.take(
        0,
        &response(Operation::ReadResponseMiddle, 2, mtu),
        &[3; 1024],
    );
    assert!(outcome.transmit);
    let sent = host.drain(0);
    let [(again, _)] = &sent[..] else {
        panic!("{sent:?}")
    };
    let Ext::Reth(reth) = again.ext else { panic!() };
    assert_eq!(again.psn(), psn(1));
    assert_eq!((reth.va, reth.len), (BASE + 1024, 3 * MTU + 100));
    // The rest of the first answer is of no use, and no reason to ask again.
    let _ = host.take(
        0,
        &response(Operation::ReadResponseMiddle, 3, mtu),
        &[4; 1024],
    );
    let _ = host.take(0, &response(Operation::ReadResponseLast, 4, 100), &[5; 100]);
    assert!(host.drain(0).is_empty());
    // The second answer starts in the middle. (C-07: with FIRST.)
    let _ = host.take(
        0,
        &response(Operation::ReadResponseFirst, 1, mtu),
        &[2; 1024],
    );
    let _ = host.take(
        0,
        &response(Operation::ReadResponseMiddle, 2, mtu),
        &[3; 1024],
    );
    let _ = host.take(
        0,
        &response(Operation::ReadResponseMiddle, 3, mtu),
        &[4; 1024],
    );
    assert!(host.statuses().is_empty());
    let _ = host.take(0, &response(Operation::ReadResponseLast, 4, 100), &[5; 100]);
    assert_eq!(host.statuses(), [Status::Success]);
    let expected: Vec<u8> = (0..4 * mtu + 100).map(|i| 1 + (i / mtu) as u8).collect();
    assert!(host.driver.sent[0].data == expected);
    assert_eq!(host.requester.counters().timeouts, 0);
}

/// F-14: answers of the wrong kind.
#[test]
fn f_14_bad_responses() {
    let mtu = MTU as usize;
    let cases: [(SendOp, u32, Packet); 8] = [
        (SendOp::Send, 1, response(Operation::ReadResponseOnly, 0, 1)),
        (SendOp::Send, 1, atomic_ack(0, 0)),
        (SendOp::Read, 1, atomic_ack(0, 0)),
        (
            SendOp::FetchAdd,
            8,
            response(Operation::ReadResponseOnly, 0, 8),
        ),
        (
            SendOp::Read,
            3 * MTU,
            response(Operation::ReadResponseMiddle, 0, mtu),
        ),
        (
            SendOp::Read,
            3 * MTU,
            response(Operation::ReadResponseOnly, 0, mtu),
        ),
        (SendOp::Read, 1, response(Operation::ReadResponseLast, 0, 1)),
        (
            SendOp::Read,
            1,
            response(Operation::ReadResponseFirst, 0, 1),
        ),
    ];
    for (op, length, packet) in cases {
        let mut host = host();
        post(&mut host, op, length);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        let _ = host.take(0, &packet, &vec![0; packet.payload_len as usize]);
        assert_eq!(
            host.statuses(),
            [Status::BadResp, Status::WrFlush],
            "{op:?} {packet:?}"
        );
        assert!(host.error);
    }
    // FIRST in the middle of a READ that was asked for only once.
    let mut host = host();
    post(&mut host, SendOp::Read, 3 * MTU);
    host.drain(0);
    let _ = host.take(
        0,
        &response(Operation::ReadResponseFirst, 0, mtu),
        &[0; 1024],
    );
    let _ = host.take(
        0,
        &response(Operation::ReadResponseFirst, 1, mtu),
        &[0; 1024],
    );
    assert_eq!(host.statuses(), [Status::BadResp]);
}

/// F-15: answers of the wrong length. (The harness panics if anything is placed outside.)
#[test]
fn f_15_wrong_lengths() {
    let mtu = MTU as usize;
    let cases = [
        (Operation::ReadResponseOnly, 100, 101),
        (Operation::ReadResponseOnly, 100, 99),
        (Operation::ReadResponseOnly, 100, 0),
        (Operation::ReadResponseOnly, 0, 1),
        (Operation::ReadResponseFirst, 3 * MTU, mtu - 1),
        (Operation::ReadResponseFirst, 3 * MTU, mtu + 1),
        (Operation::ReadResponseFirst, 3 * MTU, 0),
    ];
    for (operation, length, len) in cases {
        let mut host = host();
        post(&mut host, SendOp::Read, length);
        host.drain(0);
        let _ = host.take(0, &response(operation, 0, len), &vec![0; len]);
        assert_eq!(
            host.statuses(),
            [Status::LocLen],
            "{operation:?} {length} {len}"
        );
    }
}

/// F-16, D-11
#[test]
fn f_16_naks_end_the_queue() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemInvReq),
        (NakCode::RemoteAccess, Status::RemAccess),
        (NakCode::RemoteOperational, Status::RemOp),
    ] {
        let mut host = host();
        for _ in 0..3 {
            post(&mut host, SendOp::Send, 1);
        }
        host.drain(0);
        ack(&mut host, 1, Syndrome::Nak(code));
        assert_eq!(host.statuses(), [Status::Success, status, Status::WrFlush]);
        assert!(host.error);
        assert_eq!(
            host.driver.sent[1].completion.vendor_err,
            0x60 | code as u32
        );
    }
}

/// A READ that is refused in the middle of its answer (the other side of G-28).
#[test]
fn a_nak_within_a_read() {
    for arrived in [0, 1] {
        let mut host = host();
        post(&mut host, SendOp::Read, 4 * MTU);
        host.drain(0);
        if arrived == 1 {
            let first = response(Operation::ReadResponseFirst, 0, 1024);
            let _ = host.take(0, &first, &[0; 1024]);
        }
        ack(&mut host, 1, Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(host.statuses(), [Status::RemAccess]);
    }
}

/// D-07: reserved syndromes and codes.
#[test]
fn d_07_reserved_syndromes() {
    let mut host = host();
    post(&mut host, SendOp::Send, 1);
    host.drain(0);
    for byte in (0x40..=0x5f).chain(0x64..=0xff) {
        let aeth = Aeth {
            syndrome: byte,
            msn: Psn::new(0),
        };
        let _ = host.take(
            0,
            &packet(Operation::Acknowledge, psn(0), Ext::Aeth(aeth), 0),
            &[],
        );
    }
    assert!(host.statuses().is_empty());
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success]);
}

/// F-18, F-19, F-20, F-22: completions, all together and in order.
#[test]
fn f_19_one_answer_completes_many() {
    let mut host = host();
    post(&mut host, SendOp::Send, 3 * MTU);
    host.post(
        SendRequest {
            op: SendOp::Write,
            ..Default::default()
        },
        vec![],
    )
    .unwrap();
    post(&mut host, SendOp::Send, 1);
    post(&mut host, SendOp::FetchAdd, 8);
    host.drain(0);
    ack(&mut host, 1, ACK);
    assert!(host.statuses().is_empty());
    // The answer to the atomic acknowledges everything before it.
    let _ = host.take(0, &atomic_ack(5, 77), &[]);
    assert_eq!(host.statuses(), [Status::Success; 4]);
    let reported: Vec<bool> = host
        .driver
        .sent
        .iter()
        .map(|d| d.completion.report())
        .collect();
    assert_eq!(reported, [true, false, true, true]);
    assert_eq!(host.driver.sent[3].data, 77u64.to_ne_bytes());
    assert_eq!(host.driver.sent[3].completion.byte_len, 8);
}

/// F-23, for every value.
#[test]
fn f_23_reads_outstanding() {
    for max in 1..=16u8 {
        let mut host = host();
        host.requester.set_max_rd_atomic(max);
        for i in 0..40 {
            post(
                &mut host,
                if i % 3 == 0 {
                    SendOp::FetchAdd
                } else {
                    SendOp::Read
                },
                8,
            );
        }
        let max = u32::from(max);
        assert_eq!(host.drain(0).len() as u32, max);
        for i in 0..40 {
            assert_eq!(host.requester.outstanding_reads(), max.min(40 - i));
            let _ = match i % 3 {
                0 => host.take(0, &atomic_ack(i, 0), &[]),
                _ => host.take(0, &response(Operation::ReadResponseOnly, i, 8), &[0; 8]),
            };
            assert_eq!(host.drain(0).len(), usize::from(i + max < 40));
        }
        assert_eq!(host.statuses(), [Status::Success; 40]);
    }
}

/// F-24
#[test]
fn f_24_fence() {
    let mut host = host();
    post(&mut host, SendOp::Read, 8);
    let fenced = SendRequest {
        op: SendOp::Write,
        fence: true,
        ..Default::default()
    };
    post_with(&mut host, fenced);
    post(&mut host, SendOp::Send, 0);
    assert_eq!(psns(&host.drain(0)), [0]);
    let outcome = host.take(0, &response(Operation::ReadResponseOnly, 0, 8), &[0; 8]);
    assert!(outcome.transmit);
    assert_eq!(psns(&host.drain(0)), [1, 2]);
}

/// F-28, B-04, B-05: what READs take of the PSNs.
#[test]
fn f_28_zero_length_read() {
    let mut host = host();
    post(&mut host, SendOp::Read, 0);
    post(&mut host, SendOp::Read, 2 * MTU + 1);
    post(&mut host, SendOp::CompareSwap, 8);
    post(&mut host, SendOp::Send, 0);
    assert_eq!(psns(&host.drain(0)), [0, 1, 4, 5]);
    let _ = host.take(0, &response(Operation::ReadResponseOnly, 0, 0), &[]);
    assert_eq!(host.statuses(), [Status::Success]);
}

/// The largest READ with the smallest packets takes all PSNs that may be outstanding.
#[test]
fn largest_read() {
    let mut host = Host::new(Service::Rc, 0, 256);
    host.requester.set_max_rd_atomic(4);
    let read = SendRequest {
        op: SendOp::Read,
        length: 1 << 31,
        ..Default::default()
    };
    host.post(read, vec![]).unwrap();
    post(&mut host, SendOp::Send, 0);
    assert_eq!(psns(&host.drain(0)), [0]);
    assert_eq!(host.requester.next_psn(), psn(1 << 23).get());
    host.driver.sq[0].data = vec![0; 256];
    let _ = host.take(
        0,
        &response(Operation::ReadResponseFirst, 0, 256),
        &[0; 256],
    );
    // One PSN is free again.
    assert_eq!(psns(&host.drain(0)), [1 << 23]);
}

/// E-05, E-13: waits at least as long as told.
#[test]
fn e_05_rnr_wait() {
    for code in 0..32u8 {
        let mut host = host();
        post(&mut host, SendOp::Send, 1);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        let now = 1_000;
        let _ = host.take(
            now,
            &acknowledge(psn(0), Syndrome::RnrNak { timer: code }),
            &[],
        );
        let deadline = now + timeout::rnr_timer(code);
        assert_eq!(host.requester.next_timeout(), Some(deadline));
        assert!(host.drain(deadline - 1).is_empty());
        // The network may repeat it: it has been heard.
        let _ = host.take(
            now,
            &acknowledge(psn(0), Syndrome::RnrNak { timer: 0 }),
            &[],
        );
        let _ = host
            .requester
            .handle_timeout(&mut host.slots, deadline - 1, &mut host.driver);
        assert!(host.drain(deadline - 1).is_empty());
        let outcome = host
            .requester
            .handle_timeout(&mut host.slots, deadline, &mut host.driver);
        assert!(outcome.transmit);
        assert_eq!(psns(&host.drain(deadline)), [0, 1]);
        assert_eq!(host.requester.counters().rnr_naks, 1);
        // Stale: already acknowledged.
        ack(&mut host, 0, ACK);
        ack(&mut host, 0, Syndrome::RnrNak { timer: 1 });
        assert_eq!(host.requester.counters().rnr_naks, 1);
    }
}

fn rnr_round(host: &mut Host, n: u32) {
    let now = 0;
    let _ = host.take(
        now,
        &acknowledge(psn(n), Syndrome::RnrNak { timer: 1 }),
        &[],
    );
    if let Some(at) = host.requester.next_timeout() {
        let _ = host
            .requester
            .handle_timeout(&mut host.slots, at, &mut host.driver);
    }
    host.drain(now);
}

/// E-07, E-08: RNR retries are counted on their own; 7 is for ever.
#[test]
fn e_07_rnr_retries() {
    for retries in 0..=7u8 {
        let mut host = host();
        host.requester.set_retry_count(0);
        host.requester.set_rnr_retry(retries);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        for _ in 0..retries {
            rnr_round(&mut host, 0);
            assert!(!host.error);
        }
        rnr_round(&mut host, 0);
        if retries == 7 {
            for _ in 0..100 {
                rnr_round(&mut host, 0);
            }
            assert!(!host.error);
        } else {
            assert_eq!(host.statuses(), [Status::RnrRetryExc]);
        }
    }
}

/// E-09: progress reloads the RNR counter. E-11: for any request.
#[test]
fn e_09_progress_reloads() {
    let mut host = host();
    host.requester.set_rnr_retry(1);
    post(&mut host, SendOp::Send, 2 * MTU);
    post(&mut host, SendOp::Read, 1);
    host.drain(0);
    rnr_round(&mut host, 0);
    rnr_round(&mut host, 1);
    rnr_round(&mut host, 2);
    assert!(!host.error);
    assert_eq!(host.statuses(), [Status::Success]);
    rnr_round(&mut host, 2);
    assert!(host.error);
}

/// The window, and the acknowledgements that keep it open.
#[test]
fn window() {
    let mut host = host();
    post(&mut host, SendOp::Write, 1000 * MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 256);
    let asking: Vec<u32> = sent
        .iter()
        .filter(|(p, _)| p.bth.ackreq)
        .map(|(p, _)| p.psn().since(psn(0)))
        .collect();
    assert_eq!(asking, [63, 127, 191, 255]);
    ack(&mut host, 63, ACK);
    assert_eq!(host.drain(0).len(), 64);
}

/// READs count once in the window, however much they bring.
#[test]
fn reads_do_not_fill_the_window() {
    let mut host = host();
    for _ in 0..4 {
        post(&mut host, SendOp::Read, 500 * MTU);
    }
    post(&mut host, SendOp::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 500, 1000, 1500, 2000]);
}

/// No room in the batch: resumes with the same packet.
#[test]
fn no_room() {
    let mut host = host();
    post(&mut host, SendOp::Send, 3 * MTU);
    host.driver.room = 1;
    let progress = host
        .requester
        .poll_transmit(&mut host.slots, 0, 16, &mut host.driver);
    assert!(progress.more);
    assert_eq!(progress.sent, 1);
    host.driver.room = 8;
    assert_eq!(psns(&host.drain(0)), [0, 1, 2]);
}

/// A local protection error is reported when its turn has come, not before what is older.
#[test]
fn local_fault_waits_for_its_turn() {
    for (fault, status) in [
        (Fault::Protection, Status::LocProt),
        (Fault::Malformed, Status::LocQpOp),
    ] {
        let mut host = host();
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        host.driver.send_fault = Some(fault);
        post(&mut host, SendOp::Send, 1);
        post(&mut host, SendOp::Send, 1);
        assert!(host.drain(0).is_empty());
        assert!(!host.error);
        ack(&mut host, 0, ACK);
        assert_eq!(host.statuses(), [Status::Success, status, Status::WrFlush]);
        assert!(host.error);
    }
}

/// Local operations run in their turn, once, and complete in order.
#[test]
fn local_operations() {
    let mut host = host();
    post(&mut host, SendOp::LocalInv, 0);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.statuses(), [Status::Success]);
    post(&mut host, SendOp::Send, 1);
    post(&mut host, SendOp::RegMr, 0);
    post(&mut host, SendOp::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 1]);
    assert_eq!(host.statuses(), [Status::Success]);
    // A retransmission passes over it.
    ack(&mut host, 0, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(0)), [0, 1]);
    assert_eq!(host.driver.local_ops.len(), 2);
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success; 3]);
    host.driver.local_fault = Some(Fault::Protection);
    post(&mut host, SendOp::LocalInv, 0);
    host.drain(0);
    assert!(!host.error);
    ack(&mut host, 1, ACK);
    assert_eq!(host.statuses()[3..], [Status::Success, Status::LocQpOp]);
    assert!(host.error);
}

/// J-05, J-06, J-07
#[test]
fn j_05_send_queue_drained() {
    let mut host = host();
    post(&mut host, SendOp::Send, 300 * MTU);
    post(&mut host, SendOp::Send, 1);
    assert_eq!(host.drain(0).len(), 256);
    host.requester.pause();
    assert!(!host.requester.is_drained(&host.slots));
    ack(&mut host, 255, ACK);
    // The message in progress goes on to its end.
    assert_eq!(host.drain(0).len(), 44);
    assert!(!host.requester.is_drained(&host.slots));
    ack(&mut host, 299, ACK);
    assert!(host.drain(0).is_empty());
    assert!(host.requester.is_drained(&host.slots));
    post(&mut host, SendOp::Send, 1);
    assert!(host.drain(0).is_empty());
    host.requester.resume();
    assert_eq!(psns(&host.drain(0)), [300, 301]);
}

/// J-09, J-10: UC and UD go to SQE, flush, and come back.
#[test]
fn j_09_send_queue_error() {
    for service in [Service::Uc, Service::Ud] {
        let mut host = Host::new(service, 0, MTU);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        host.driver.send_fault = Some(Fault::Protection);
        post(&mut host, SendOp::Send, 1);
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        let expected = [Status::Success, Status::LocProt, Status::WrFlush];
        assert_eq!(host.statuses(), expected);
        assert!(host.sqe && !host.error);
        host.driver.send_fault = None;
        post(&mut host, SendOp::Send, 1);
        host.drain(0);
        assert_eq!(host.statuses()[3..], [Status::WrFlush]);
        host.requester.start();
        post(&mut host, SendOp::Send, 1);
        assert_eq!(host.drain(0).len(), 1);
        assert_eq!(host.statuses()[4..], [Status::Success]);
    }
}

/// J-13, J-14: each once, in order; and after the error too.
#[test]
fn j_13_flush() {
    let mut host = host();
    for _ in 0..3 {
        post(&mut host, SendOp::Send, 1);
    }
    host.drain(0);
    ack(&mut host, 0, ACK);
    host.go_to_error();
    assert_eq!(
        host.statuses(),
        [Status::Success, Status::WrFlush, Status::WrFlush]
    );
    assert_eq!(host.requester.next_timeout(), None);
    ack(&mut host, 2, ACK);
    post(&mut host, SendOp::Send, 1);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.statuses()[3..], [Status::WrFlush]);
    host.requester.start();
    post(&mut host, SendOp::Send, 1);
    assert!(host.drain(0).is_empty());
}

/// J-17: the same queue pair again, from Reset.
#[test]
fn j_17_reset() {
    let mut host = host();
    post(&mut host, SendOp::Send, 1);
    host.drain(0);
    host.go_to_error();
    host.requester.reset();
    host.requester.set_psn(0x77);
    host.requester.set_dest_qpn(101);
    // not before it is ready to send.
    post(&mut host, SendOp::Send, 1);
    assert!(host.drain(0).is_empty());
    host.requester.start();
    let sent = host.drain(0);
    assert_eq!(sent[0].0.psn(), Psn::new(0x77));
}

/// H-07: a UC message is complete when it has been handed over.
#[test]
fn h_07_uc_sends() {
    let mut host = Host::new(Service::Uc, 0, MTU);
    post(&mut host, SendOp::Write, 400 * MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 400);
    assert!(sent.iter().all(|(p, _)| !p.bth.ackreq));
    assert_eq!(host.statuses(), [Status::Success]);
    assert_eq!(host.requester.next_timeout(), None);
}

/// A-34, I-05: what a datagram says.
#[test]
fn a_34_datagrams() {
    let mut host = Host::new(Service::Ud, 0, MTU);
    for qkey in [0x77, 0x8000_0077] {
        post_with(
            &mut host,
            SendRequest {
                op: SendOp::SendImm,
                length: 5,
                qkey,
                pkey: 0x8123,
                ..Default::default()
            },
        );
    }
    let sent = host.drain(0);
    for ((packet, payload), qkey) in sent.iter().zip([0x77, common::QKEY]) {
        assert_eq!(packet.operation, Operation::SendOnlyImm);
        assert_eq!((packet.bth.dest_qpn, packet.bth.pkey), (42, 0x8123));
        let Ext::DethImm(deth, _) = packet.ext else {
            panic!()
        };
        assert_eq!((deth.qkey, deth.src_qpn), (qkey, 100));
        assert_eq!(payload.len(), 5);
    }
    assert_eq!(host.statuses(), [Status::Success; 2]);
}
