// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! End-to-end credits (IBA 9.7.7).

use super::*;

/// Returns the syndrome of a credit code (D-17): 0 to 3 stand for themselves.
fn credit(code: u8) -> Syndrome {
    Syndrome::Ack { credit: code }
}

/// Returns a host whose peer has just acknowledged PSN 0 with this credit code.
fn host_with(code: u8) -> Host {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0]);
    ack(&mut host, 0, credit(code));
    host
}

/// D-15: without credits, only one message that needs a receive work request is in flight. It is
/// sent completely, and its last packet asks for an acknowledgement.
#[test]
fn d_15_one_message_without_credits() {
    let mut host = host_with(0);
    for _ in 0..3 {
        post(&mut host, Op::Send, 2 * MTU);
    }
    for n in 0..3 {
        let sent = host.drain(0);
        assert_eq!(psns(&sent), [1 + 2 * n, 2 + 2 * n]);
        assert!(sent[1].0.bth.ackreq);
        assert!(host.drain(0).is_empty());
        // An acknowledgement of a part of it permits nothing new.
        ack(&mut host, 1 + 2 * n, credit(0));
        assert!(host.drain(0).is_empty());
        ack(&mut host, 2 + 2 * n, credit(0));
    }
    assert_eq!(host.statuses(), [Status::Success; 4]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// D-15, D-17: credits count from the acknowledged message on.
#[test]
fn d_15_as_many_as_granted() {
    for (code, granted) in [(0, 1), (1, 1), (2, 2), (3, 3), (5, 6), (31, 9)] {
        let mut host = host_with(code);
        for _ in 0..9 {
            post(&mut host, Op::Send, 1);
        }
        assert_eq!(host.drain(0).len(), granted);
        // A grant is never revoked.
        ack(&mut host, 0, credit(0));
        assert!(host.drain(0).is_empty());
    }
}

/// A request that uses up no receive work request needs no credit. A request that waits for a
/// credit blocks those after it.
#[test]
fn d_15_other_requests_need_no_credit() {
    let mut host = host_with(0);
    let ops = [
        Op::Send,
        Op::Write,
        Op::Read,
        Op::FetchAdd,
        Op::WriteImm,
        Op::Write,
    ];
    for op in ops {
        post(&mut host, op, 8);
    }
    assert_eq!(psns(&host.drain(0)), [1, 2, 3, 4]);
    ack(&mut host, 1, credit(0));
    assert_eq!(psns(&host.drain(0)), [5, 6]);
}

/// D-16: a repetition of the last acknowledgement brings credits and has no other effect.
#[test]
fn d_16_credit_updates() {
    for code in [2, 31] {
        let mut host = host_with(0);
        for _ in 0..3 {
            post(&mut host, Op::Send, 1);
        }
        assert_eq!(psns(&host.drain(0)), [1]);
        // Stale: older than the last acknowledgement.
        let outcome = host.take(0, &acknowledge(psn(0).prev(), credit(8)), &[]);
        assert!(!outcome.transmit);
        assert!(host.drain(0).is_empty());
        let outcome = host.take(0, &acknowledge(psn(0), credit(code)), &[]);
        assert!(outcome.transmit);
        assert_eq!(host.drain(0).len(), if code == 2 { 1 } else { 2 });
        assert_eq!(host.statuses(), [Status::Success]);
    }
}

/// READ responses and atomic acknowledgements bring credits as well.
#[test]
fn d_15_responses_bring_credits() {
    for op in [Op::Read, Op::FetchAdd] {
        let mut host = host_with(0);
        post(&mut host, op, 8);
        for _ in 0..3 {
            post(&mut host, Op::Send, 1);
        }
        assert_eq!(psns(&host.drain(0)), [1, 2]);
        let aeth = Aeth::new(credit(2), Psn::new(2));
        let (operation, ext, len) = match op {
            Op::Read => (Operation::ReadResponseOnly, Ext::Aeth(aeth), 8),
            _ => {
                let ack = AtomicAckEth { original: 7 };
                (Operation::AtomicAcknowledge, Ext::AtomicAck(aeth, ack), 0)
            }
        };
        let response = packet(operation, psn(1), ext, len);
        let outcome = host.take(0, &response, &vec![0; len]);
        assert!(outcome.transmit);
        assert_eq!(psns(&host.drain(0)), [3]);
    }
}

/// Retransmissions need credits, too: after an RNR NAK only one message is sent.
#[test]
fn d_15_retransmissions_need_credits() {
    let mut host = host();
    for _ in 0..4 {
        post(&mut host, Op::Send, 2 * MTU);
    }
    assert_eq!(host.drain(0).len(), 8);
    ack(&mut host, 1, credit(0));
    let mut now = 0;
    for n in 1..4 {
        let nak = acknowledge(psn(2 * n), Syndrome::RnrNak { timer: 1 });
        let _ = host.take(now, &nak, &[]);
        assert!(host.drain(now).is_empty());
        now = host.requester.next_timeout().map(Time::ns).unwrap();
        let _ = host.timeout(now);
        assert_eq!(psns(&host.drain(now)), [2 * n, 2 * n + 1]);
        let _ = host.take(now, &acknowledge(psn(2 * n + 1), credit(0)), &[]);
        host.drain(now);
    }
    assert_eq!(host.statuses(), [Status::Success; 4]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A reset queue pair has a new peer, which has not reported credits yet.
#[test]
fn reset_forgets_the_credits() {
    let mut host = host_with(0);
    host.requester.reset();
    host.slots.fill(Default::default());
    host.requester.mtu = rrxe_core::Mtu::from_bytes(MTU).unwrap();
    host.requester.dest_qpn = 101;
    host.requester.start();
    for _ in 0..3 {
        post(&mut host, Op::Send, 1);
    }
    assert_eq!(host.drain(0).len(), 3);
}
