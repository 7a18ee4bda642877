// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Valid and invalid responses, and completions.

use super::*;

/// F-10, and F-30 and D-16: old acknowledgements, and those for packets never sent.
#[test]
fn f_10_strange_acknowledgements() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Send, 1);
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

/// F-14: responses of the wrong kind.
#[test]
fn f_14_bad_responses() {
    let cases: [(Op, u32, Packet); 4] = [
        (Op::Send, 1, response(Operation::ReadResponseOnly, 0, 1)),
        (Op::Send, 1, atomic_ack(0, 0)),
        (Op::Read, 1, atomic_ack(0, 0)),
        (Op::FetchAdd, 8, response(Operation::ReadResponseOnly, 0, 8)),
    ];
    for (op, length, packet) in cases {
        let mut host = host();
        bad_response(&mut host, op, length, &packet);
    }
}

/// Checks that the response fails the work request and the queue.
fn bad_response(host: &mut Host, op: Op, length: u32, packet: &Packet) {
    post(host, op, length);
    post(host, Op::Send, 1);
    host.drain(0);
    let _ = host.take(0, packet, &vec![0; packet.payload_len as usize]);
    assert_eq!(
        host.statuses(),
        [Status::BadResp, Status::WrFlush],
        "{op:?} {packet:?}"
    );
    assert!(host.error);
}

/// F-14: a READ response out of sequence makes the requester ask again, because of rdma_rxe. It
/// fails the READ when no retry is left.
#[test]
fn f_14_read_responses_out_of_sequence() {
    let mtu = MTU as usize;
    let cases: [(u32, Operation, usize); 4] = [
        (3 * MTU, Operation::ReadResponseMiddle, mtu),
        (3 * MTU, Operation::ReadResponseOnly, mtu),
        (1, Operation::ReadResponseLast, 1),
        (1, Operation::ReadResponseFirst, 1),
    ];
    for (length, operation, len) in cases {
        let packet = response(operation, 0, len);
        let mut patient = host();
        post(&mut patient, Op::Read, length);
        patient.drain(0);
        let _ = patient.take(0, &packet, &vec![0; len]);
        assert!(patient.statuses().is_empty(), "{operation:?}");
        let again = patient.drain(0);
        assert_eq!(again.len(), 1, "{operation:?}");
        assert_eq!(again[0].0.operation, Operation::ReadRequest);
        // The wrong response was not placed; the right one still is.
        let right = if length == 1 {
            Operation::ReadResponseOnly
        } else {
            Operation::ReadResponseFirst
        };
        let _ = patient.take(0, &response(right, 0, len), &vec![7; len]);
        assert!(!patient.error);

        let mut last_try = host();
        last_try.requester.set_retry_count(0);
        bad_response(&mut last_try, Op::Read, length, &packet);
    }
    // FIRST in the middle of a READ that was asked for only once.
    let mut host = host();
    host.requester.set_retry_count(0);
    post(&mut host, Op::Read, 3 * MTU);
    host.drain(0);
    for at in 0..2 {
        let _ = host.take(
            0,
            &response(Operation::ReadResponseFirst, at, mtu),
            &[0; 1024],
        );
    }
    assert_eq!(host.statuses(), [Status::BadResp]);
}

/// F-15: responses of the wrong length. (The harness panics if anything is placed out of bounds.)
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
        post(&mut host, Op::Read, length);
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
            post(&mut host, Op::Send, 1);
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

/// A READ that is refused in the middle of its response (the requester's side of G-28). Responses
/// come in order, so the requester accepts only a NAK of the oldest missing one. A later NAK makes
/// it ask for the READ again.
#[test]
fn a_nak_within_a_read() {
    let refused = Syndrome::Nak(NakCode::RemoteAccess);
    for buffers in [false, true] {
        let mut host = if buffers { buffering_host() } else { host() };
        post(&mut host, Op::Read, 4 * MTU);
        host.drain(0);
        for later in 1..4 {
            ack(&mut host, later, refused);
        }
        assert!(host.statuses().is_empty());
        assert_eq!(host.requester.counters.implied_naks, 1);
        assert_eq!(psns(&host.drain(0)), [0]);
        let first = response(Operation::ReadResponseFirst, 0, 1024);
        let _ = host.take(0, &first, &[0; 1024]);
        // A buffered NAK is handled now.
        if !buffers {
            assert!(host.statuses().is_empty());
            ack(&mut host, 1, refused);
        }
        assert_eq!(host.statuses(), [Status::RemAccess]);
    }
}

/// D-07: reserved syndromes and codes.
#[test]
fn d_07_reserved_syndromes() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
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

/// F-18, F-19, F-20, F-22: one response completes several work requests, in order.
#[test]
fn f_19_one_response_completes_many() {
    let mut host = host();
    post(&mut host, Op::Send, 3 * MTU);
    host.post(
        Request {
            op: Op::Write,
            ..Default::default()
        },
        vec![],
    )
    .unwrap();
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::FetchAdd, 8);
    host.drain(0);
    ack(&mut host, 1, ACK);
    assert!(host.statuses().is_empty());
    // The response to the atomic acknowledges everything before it.
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

/// D-15: with any credit value, one message after the other gets through.
#[test]
fn d_15_finite_credits() {
    let mut host = host();
    for n in 0..32u32 {
        post(&mut host, Op::Send, 1);
        assert_eq!(psns(&host.drain(0)), [n]);
        ack(&mut host, n, Syndrome::Ack { credit: n as u8 });
        // Again, as a credit update.
        ack(&mut host, n, Syndrome::Ack { credit: 31 });
    }
    assert_eq!(host.statuses(), [Status::Success; 32]);
}
