// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transmission of requests, and requests that are refused.

use super::*;

#[test]
fn packets_of_a_message() {
    let mut host = host();
    post_with(
        &mut host,
        Request {
            op: Op::WriteImm,
            length: 2 * MTU + 5,
            imm: wire::ImmDt([1, 2, 3, 4]),
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
    assert_eq!((first.bth.pad, middle.bth.pad, last.bth.pad), (0, 0, 3));
    assert!(!first.bth.solicited && !middle.bth.solicited && last.bth.solicited);
    // The first packet measures the round trip.
    assert!(first.bth.ackreq && !middle.bth.ackreq && last.bth.ackreq);
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
    let request = Request {
        op: Op::Write,
        length: 1,
        solicited: true,
        ..Default::default()
    };
    post_with(&mut host, request);
    assert!(!host.drain(0)[0].0.bth.solicited);
}

/// A request that the service does not support, or of a wrong length, fails without a packet.
#[test]
fn refused_requests_fail() {
    use Op as O;
    use Service as S;
    for (service, op, length, status) in [
        (S::Rc, O::Write, (1 << 31) + 1, Status::LocLen),
        (S::Uc, O::Read, 8, Status::LocQpOp),
        (S::Uc, O::CompareSwap, 8, Status::LocQpOp),
        (S::Uc, O::FetchAdd, 8, Status::LocQpOp),
        (S::Uc, O::SendInv, 8, Status::LocQpOp),
        (S::Ud, O::Write, 8, Status::LocQpOp),
    ] {
        let mut host = Host::new(service, 0, MTU);
        let request = Request {
            op,
            length,
            ..Default::default()
        };
        host.post(request, vec![]).unwrap();
        assert!(host.drain(0).is_empty());
        assert_eq!(host.statuses(), [status]);
        assert_eq!(host.error, service == S::Rc);
    }
}

#[test]
fn a_full_queue_takes_nothing() {
    let mut rc = host();
    for _ in 0..rrxe_testkit::DEPTH {
        post(&mut rc, Op::Send, 0);
    }
    assert!(!rc.requester.can_post(&rc.slots));
    assert_eq!(rc.post(SendSlot::default(), vec![]), None);
    // A queue without slots is full and sends nothing.
    let mut none = host();
    none.slots.clear();
    assert_eq!(none.post(SendSlot::default(), vec![]), None);
    assert!(none.drain(0).is_empty());
}

/// A work request that the driver declares malformed fails in its turn, without a packet.
#[test]
fn malformed_requests_fail_in_their_turn() {
    let mut host = host();
    post(&mut host, Op::Write, 8);
    let malformed = SendSlot {
        op: SendOp::Invalid(Fault::Length),
        length: 8,
        ..SendSlot::default()
    };
    host.post(malformed, vec![]).unwrap();
    assert_eq!(psns(&host.drain(0)), [0]);
    assert!(host.statuses().is_empty() && !host.error);
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success, Status::LocLen]);
    let completion = host.driver.sent[1].completion;
    assert!(completion.report() && completion.byte_len == 0);
    assert!(host.error);
}

/// F-23, for every value.
#[test]
fn f_23_reads_outstanding() {
    for max in 1..=16u8 {
        let mut host = host();
        host.requester.max_rd_atomic = max;
        for i in 0..40 {
            post(
                &mut host,
                if i % 3 == 0 { Op::FetchAdd } else { Op::Read },
                8,
            );
        }
        let max = u32::from(max);
        assert_eq!(host.drain(0).len() as u32, max);
        for i in 0..40 {
            assert_eq!(u32::from(host.requester.reads), max.min(40 - i));
            let _ = match i % 3 {
                0 => host.take(0, &atomic_ack(i, 0), &[]),
                _ => host.take(0, &response(Operation::ReadResponseOnly, i, 8), &[0; 8]),
            };
            assert_eq!(host.drain(0).len(), usize::from(i + max < 40));
        }
        assert_eq!(host.statuses(), [Status::Success; 40]);
    }
}

/// A READ that could never start fails, after everything before it.
#[test]
fn no_reads_at_all() {
    let mut host = host();
    host.requester.max_rd_atomic = 0;
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Read, 1);
    assert_eq!(psns(&host.drain(0)), [0]);
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success, Status::LocQpOp]);
}

/// F-24
#[test]
fn f_24_fence() {
    let mut host = host();
    post(&mut host, Op::Read, 8);
    let fenced = Request {
        op: Op::Write,
        fence: true,
        ..Default::default()
    };
    post_with(&mut host, fenced);
    post(&mut host, Op::Send, 0);
    assert_eq!(psns(&host.drain(0)), [0]);
    let outcome = host.take(0, &response(Operation::ReadResponseOnly, 0, 8), &[0; 8]);
    assert!(outcome.transmit);
    assert_eq!(psns(&host.drain(0)), [1, 2]);
}

/// F-28, B-04, B-05: PSNs that READs take.
#[test]
fn f_28_zero_length_read() {
    let mut host = host();
    post(&mut host, Op::Read, 0);
    post(&mut host, Op::Read, 2 * MTU + 1);
    post(&mut host, Op::CompareSwap, 8);
    post(&mut host, Op::Send, 0);
    assert_eq!(psns(&host.drain(0)), [0, 1, 4, 5]);
    let _ = host.take(0, &response(Operation::ReadResponseOnly, 0, 0), &[]);
    assert_eq!(host.statuses(), [Status::Success]);
}

/// The largest READ with the smallest packets takes every PSN that may be outstanding.
#[test]
fn largest_read() {
    let mut host = Host::new(Service::Rc, 0, 256);
    host.requester.max_rd_atomic = 4;
    let read = Request {
        op: Op::Read,
        length: 1 << 31,
        ..Default::default()
    };
    host.post(read, vec![]).unwrap();
    post(&mut host, Op::Send, 0);
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

/// The window, and the acknowledgements that keep it open.
#[test]
fn window() {
    let mut host = host();
    post(&mut host, Op::Write, 1000 * MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 64);
    let asking: Vec<u32> = sent
        .iter()
        .filter(|(p, _)| p.bth.ackreq)
        .map(|(p, _)| p.psn().since(psn(0)))
        .collect();
    // The first one measures the round trip, and then each quarter of the window asks.
    assert_eq!(asking, [0, 16, 32, 48]);
    // The window grows by the acknowledged packets.
    ack(&mut host, 32, ACK);
    assert_eq!(host.drain(0).len(), 2 * 33);
}

/// For other requests a READ counts as one packet of the window, whatever its length.
#[test]
fn reads_do_not_fill_the_window() {
    let mut host = host();
    post(&mut host, Op::Read, 500 * MTU);
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::FetchAdd, 8);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 500, 501, 502]);
}

/// READ responses do not let more request packets into a window that has stopped growing.
#[test]
fn responses_do_not_widen_the_window() {
    let mut host = host();
    post(&mut host, Op::Write, 256 * MTU);
    let before = 256;
    while host.statuses().is_empty() {
        let sent = psns(&host.drain(0));
        ack(&mut host, *sent.last().unwrap(), ACK);
    }
    post(&mut host, Op::Read, 500 * MTU);
    post(&mut host, Op::Write, 1000 * MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 256);
    // The acknowledgement that opens the window was requested recently.
    assert!(sent[192..].iter().any(|(packet, _)| packet.bth.ackreq));
    for n in 0..499 {
        let operation = match n {
            0 => Operation::ReadResponseFirst,
            _ => Operation::ReadResponseMiddle,
        };
        let _ = host.take(0, &response(operation, before + n, 1024), &[0; 1024]);
        assert!(host.drain(0).is_empty());
    }
    let _ = host.take(
        0,
        &response(Operation::ReadResponseLast, before + 499, 1024),
        &[0; 1024],
    );
    assert_eq!(host.drain(0).len(), 1);
}

/// If the batch is full, transmission resumes with the same packet.
#[test]
fn no_room() {
    let mut host = host();
    post(&mut host, Op::Send, 3 * MTU);
    host.driver.space = Some(1);
    let progress =
        host.requester
            .poll_transmit(&mut host.slots, Time::from_ns(0), 16, &mut host.driver);
    assert!(progress.more);
    assert_eq!(progress.sent, 1);
    host.driver.space = Some(8);
    assert_eq!(psns(&host.drain(0)), [0, 1, 2]);
}

/// Work requests without packets use up the budget, too.
#[test]
fn budget_without_packets() {
    let mut host = host();
    for _ in 0..6 {
        post(&mut host, Op::RegMr, 0);
    }
    host.budget = 4;
    assert!(host.transmit(0));
    assert_eq!(host.statuses(), [Status::Success; 4]);
    assert!(!host.transmit(0));
    assert_eq!(host.statuses(), [Status::Success; 6]);
    // Packets and local operations share the budget.
    for op in [Op::Send, Op::RegMr, Op::Send, Op::RegMr, Op::Send] {
        post(&mut host, op, 0);
    }
    assert!(host.transmit(0));
    assert_eq!(host.driver.out.len(), 2);
    assert_eq!(psns(&host.drain(0)), [0, 1, 2]);
}

/// Datagrams that are too long to be sent use up the budget.
#[test]
fn budget_of_long_datagrams() {
    let mut host = Host::new(Service::Ud, 0, MTU);
    for _ in 0..6 {
        post(&mut host, Op::Send, MTU + 1);
    }
    host.budget = 4;
    assert!(host.transmit(0));
    assert_eq!(host.statuses(), [Status::Success; 4]);
    assert!(!host.transmit(0));
    assert_eq!(host.statuses(), [Status::Success; 6]);
}

/// Local operations run once, in their turn, and complete in order.
#[test]
fn local_operations() {
    let mut host = host();
    post(&mut host, Op::LocalInv, 0);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.statuses(), [Status::Success]);
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::RegMr, 0);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 1]);
    assert_eq!(host.statuses(), [Status::Success]);
    // A retransmission skips it.
    let deadline = host.requester.next_timeout().map(Time::ns).unwrap();
    let _ = host.timeout(deadline);
    assert_eq!(psns(&host.drain(deadline)), [0, 1]);
    assert_eq!(host.driver.local_ops.len(), 2);
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success; 3]);
    host.driver.local_fault = Some(Status::MwBind);
    post(&mut host, Op::BindMw, 0);
    host.drain(0);
    assert!(!host.error);
    ack(&mut host, 1, ACK);
    assert_eq!(host.statuses()[3..], [Status::Success, Status::MwBind]);
    assert!(host.error);
}

/// F-25: a local invalidate waits until everything before it is acknowledged, because a
/// retransmission may need the key. Work requests after it wait, too. A registration waits for
/// nothing.
#[test]
fn f_25_local_invalidate() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Read, 1);
    post(&mut host, Op::LocalInv, 0);
    post(&mut host, Op::RegMr, 0);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 1]);
    assert!(host.driver.local_ops.is_empty());
    ack(&mut host, 0, ACK);
    assert!(host.drain(0).is_empty());
    // Retransmitted, and the key is still valid.
    let deadline = host.requester.next_timeout().map(Time::ns).unwrap();
    let _ = host.timeout(deadline);
    assert_eq!(psns(&host.drain(deadline)), [1]);
    assert!(host.driver.local_ops.is_empty());
    let outcome = host.take(deadline, &response(Operation::ReadResponseOnly, 1, 1), &[7]);
    assert!(outcome.transmit);
    assert_eq!(psns(&host.drain(deadline)), [2]);
    assert_eq!(host.driver.local_ops, [2, 3]);
    assert_eq!(host.statuses(), [Status::Success; 4]);
    // With nothing before it, it is executed at once.
    let _ = host.take(deadline, &acknowledge(psn(2), ACK), &[]);
    post(&mut host, Op::LocalInv, 0);
    assert!(host.drain(deadline).is_empty());
    assert_eq!(host.statuses(), [Status::Success; 6]);
}

/// H-07: a UC message is complete when it has been handed over.
#[test]
fn h_07_uc_sends() {
    let mut host = Host::new(Service::Uc, 0, MTU);
    post(&mut host, Op::Write, 400 * MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 400);
    assert!(sent.iter().all(|(p, _)| !p.bth.ackreq));
    assert_eq!(host.statuses(), [Status::Success]);
    assert_eq!(host.requester.next_timeout(), None);
}

/// A-34, I-05: contents of a datagram.
#[test]
fn a_34_datagrams() {
    let mut host = Host::new(Service::Ud, 0, MTU);
    for qkey in [0x77, 0x8000_0077] {
        post_with(
            &mut host,
            Request {
                op: Op::SendImm,
                length: 5,
                to: Some(Destination { qkey, ..DATAGRAM }),
                ..Default::default()
            },
        );
    }
    let sent = host.drain(0);
    for ((packet, payload), qkey) in sent.iter().zip([0x77, rrxe_testkit::QKEY]) {
        assert_eq!(packet.operation, Operation::SendOnlyImm);
        assert_eq!((packet.bth.dest_qpn, packet.bth.pkey), (101, 0xffff));
        let Ext::DethImm(deth, _) = packet.ext else {
            panic!()
        };
        assert_eq!((deth.qkey, deth.src_qpn), (qkey, 100));
        assert_eq!(payload.len(), 5);
    }
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// the general services queue pair sends its own Q_Key, whatever the work request says.
#[test]
fn a_34_general_services() {
    let mut host = Host::new(Service::Ud, 0, MTU);
    host.requester.src_qpn = 1;
    host.requester.qkey = 0x8001_0000;
    post_with(
        &mut host,
        Request {
            op: Op::Send,
            length: 5,
            to: Some(DATAGRAM),
            ..Default::default()
        },
    );
    let sent = host.drain(0);
    let Ext::Deth(deth) = sent[0].0.ext else {
        panic!()
    };
    assert_eq!((deth.qkey, deth.src_qpn), (0x8001_0000, 1));
}
