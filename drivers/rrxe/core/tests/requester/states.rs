// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The states of the send queue.

use super::*;

/// A local protection error is reported in its turn, after older work requests.
#[test]
fn local_fault_waits_for_its_turn() {
    for (fault, status) in [
        (Fault::Protection, Status::LocProt),
        (Fault::Malformed, Status::LocQpOp),
    ] {
        let mut host = host();
        post(&mut host, Op::Send, 1);
        host.drain(0);
        post(&mut host, Op::Send, 1);
        host.driver.sq[1].fault = Some(fault);
        post(&mut host, Op::Send, 1);
        assert!(host.drain(0).is_empty());
        assert!(!host.error);
        ack(&mut host, 0, ACK);
        assert_eq!(host.statuses(), [Status::Success, status, Status::WrFlush]);
        assert!(host.error);
    }
}

/// J-09, J-10, J-13: a call flushes a limited number of work requests, in order and without a
/// budget of packets.
#[test]
fn j_13_flushed_in_parts() {
    const COUNT: usize = 3 * MAX_FLUSH as usize / 2;
    for service in [Service::Rc, Service::Uc] {
        let mut host = Host::new(service, 0, MTU);
        host.slots
            .resize(2 * MAX_FLUSH as usize, SendSlot::default());
        for _ in 0..=COUNT {
            post(&mut host, Op::Send, 1);
        }
        host.driver.sq[0].fault = Some(Fault::Protection);
        let mut poll = || {
            let driver = &mut host.driver;
            let progress =
                host.requester
                    .poll_transmit(&mut host.slots, Time::from_ns(0), 16, driver);
            (progress, driver.sent.len())
        };
        let (failed, done) = poll();
        assert!(failed.more && failed.fatal != failed.sqe);
        assert_eq!(done, 1);
        let (first, done) = poll();
        assert!(first.more);
        assert_eq!(done, 1 + MAX_FLUSH as usize);
        let (second, done) = poll();
        assert_eq!((second, done), (Progress::default(), 1 + COUNT));
        assert!(!host.requester.is_flushing());
        assert_eq!(host.statuses()[1..], [Status::WrFlush; COUNT]);
    }
}

/// J-05, J-06, J-07
#[test]
fn j_05_send_queue_drained() {
    let mut host = host();
    post(&mut host, Op::Send, 100 * MTU);
    post(&mut host, Op::Send, 1);
    assert_eq!(host.drain(0).len(), 64);
    host.requester.pause();
    assert!(!host.requester.is_drained(&host.slots));
    ack(&mut host, 63, ACK);
    // The message in progress continues to its end.
    assert_eq!(host.drain(0).len(), 36);
    assert!(!host.requester.is_drained(&host.slots));
    ack(&mut host, 99, ACK);
    assert!(host.drain(0).is_empty());
    assert!(host.requester.is_drained(&host.slots));
    post(&mut host, Op::Send, 1);
    assert!(host.drain(0).is_empty());
    host.requester.start();
    assert_eq!(psns(&host.drain(0)), [100, 101]);
}

/// I-02: a datagram longer than a packet is not sent and completes with success, even if it was
/// posted before the MTU was set. The next datagram takes the PSN.
#[test]
fn i_02_datagrams_longer_than_the_mtu() {
    let mut host = Host::new(Service::Ud, 0, MTU);
    host.requester.reset();
    host.requester.mtu = rrxe_core::Mtu::from_bytes(MTU).unwrap();
    let first = host.requester.next_psn();
    post(&mut host, Op::Send, MTU + 1);
    host.requester.start();
    assert!(host.drain(0).is_empty());
    post(&mut host, Op::Send, 5000);
    post(&mut host, Op::Send, MTU);
    let sent = host.drain(0);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0.psn().get(), first);
    assert_eq!(host.statuses(), [Status::Success; 3]);
    assert!(!host.sqe);
}

/// J-09, J-10: UC and UD enter SQE, flush, and recover.
#[test]
fn j_09_send_queue_error() {
    for service in [Service::Uc, Service::Ud] {
        let mut host = Host::new(service, 0, MTU);
        post(&mut host, Op::Send, 1);
        host.drain(0);
        post(&mut host, Op::Send, 1);
        host.driver.sq[1].fault = Some(Fault::Protection);
        post(&mut host, Op::Send, 1);
        host.drain(0);
        let expected = [Status::Success, Status::LocProt, Status::WrFlush];
        assert_eq!(host.statuses(), expected);
        assert!(host.sqe && !host.error);
        post(&mut host, Op::Send, 1);
        host.drain(0);
        assert_eq!(host.statuses()[3..], [Status::WrFlush]);
        host.requester.start();
        post(&mut host, Op::Send, 1);
        assert_eq!(host.drain(0).len(), 1);
        assert_eq!(host.statuses()[4..], [Status::Success]);
    }
}

/// J-13, J-14: each work request is flushed once, in order, also if posted after the error.
#[test]
fn j_13_flush() {
    let mut host = host();
    for _ in 0..3 {
        post(&mut host, Op::Send, 1);
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
    post(&mut host, Op::Send, 1);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.statuses()[3..], [Status::WrFlush]);
    host.requester.start();
    post(&mut host, Op::Send, 1);
    assert!(host.drain(0).is_empty());
}

/// J-17: the queue pair is reused after Reset.
#[test]
fn j_17_reset() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    host.drain(0);
    host.go_to_error();
    host.requester.reset();
    host.requester.set_psn(0x77);
    host.requester.dest_qpn = 101;
    // nothing is sent before it is ready to send.
    post(&mut host, Op::Send, 1);
    assert!(host.drain(0).is_empty());
    host.requester.start();
    let sent = host.drain(0);
    assert_eq!(sent[0].0.psn(), Psn::new(0x77));
}
