// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Out-of-order requests at a host that buffers them.

use super::*;
use rrxe_core::reorder::{self, MAX_DISTANCE};

fn write(n: u32, at: u64, ackreq: bool) -> Packet {
    let mut packet = packet(O::WriteOnly, psn(n), reth(BASE + at, 4), 4);
    packet.bth.ackreq = ackreq;
    packet
}

/// B-08, B-09, B-14: one NAK for a gap. Requests beyond it have no effect before their turn, and
/// then need not be sent again.
#[test]
fn b_14_buffered_until_its_turn() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(1)), 0, SEQUENCE);
    for n in [3, 2, 4] {
        assert!(ask(&mut host, &write(n, u64::from(n) * 8, true)).is_empty());
    }
    assert!(host.driver.regions[0].bytes.iter().all(|byte| *byte == 0));
    assert!(host.driver.received.is_empty());
    assert_eq!(host.responder.msn.get(), 0);
    let answers = ask(&mut host, &write(0, 0, true));
    expect(&answers, 4, ACK);
    assert_eq!(msn(&answers[0].0), 5);
    assert_eq!(statuses(&host), [Status::Success]);
    for n in [0, 2, 3, 4] {
        assert_eq!(host.driver.regions[0].bytes[n * 8], 0xaa);
    }
}

/// B-08, B-10: each gap is reported once, the second one as soon as the first is closed.
#[test]
fn b_10_a_nak_for_each_gap() {
    let mut host = buffering_host();
    assert!(ask(&mut host, &write(0, 0, false)).is_empty());
    expect(&ask(&mut host, &write(2, 0, true)), 1, SEQUENCE);
    assert!(ask(&mut host, &write(4, 0, true)).is_empty());
    expect(&ask(&mut host, &write(1, 0, true)), 3, SEQUENCE);
    assert!(ask(&mut host, &write(5, 0, true)).is_empty());
    expect(&ask(&mut host, &write(3, 0, true)), 5, ACK);
}

/// A request farther ahead than any window is reported as a gap and not buffered. It does not
/// affect later acknowledgements, and has no effect when its turn comes.
#[test]
fn b_08_far_ahead() {
    for far in [MAX_DISTANCE, 3000, 1 << 22, (1 << 23) - 1] {
        let mut host = buffering_host();
        for n in 0..2 {
            host.post_recv(n, 64);
        }
        expect(&ask(&mut host, &send(far)), 0, SEQUENCE);
        expect(&ask(&mut host, &send(0)), 0, ACK);
        expect(&ask(&mut host, &send(1)), 1, ACK);
        assert_eq!(statuses(&host), [Status::Success; 2]);
    }
}

/// A request that was not buffered is not executed in its turn; only the peer's own request is.
#[test]
fn b_14_nothing_from_far_ahead_in_its_turn() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    let _ = host.take(0, &send(3000), &[0x66; 4]);
    expect(&host.drain(0), 0, SEQUENCE);
    for n in 0..3000 {
        assert!(ask(&mut host, &write(n, 0, false)).is_empty());
    }
    assert!(host.driver.received.is_empty());
    expect(&ask(&mut host, &send(3000)), 3000, ACK);
    assert!(host.driver.received[0].data.starts_with(&[0xaa; 4]));
}

/// The farthest request that is buffered is executed in its turn.
#[test]
fn b_14_buffered_at_the_largest_distance() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(MAX_DISTANCE - 1)), 0, SEQUENCE);
    for n in 0..MAX_DISTANCE - 2 {
        assert!(ask(&mut host, &write(n, 0, false)).is_empty());
    }
    expect(
        &ask(&mut host, &write(MAX_DISTANCE - 2, 0, true)),
        MAX_DISTANCE - 1,
        ACK,
    );
    assert_eq!(statuses(&host), [Status::Success]);
}

/// A gap of several packets: a requested acknowledgement becomes a NAK for the rest of the gap.
/// Without a request there is no NAK, because the packets may only be late.
#[test]
fn a_wide_gap() {
    let mut host = buffering_host();
    expect(&ask(&mut host, &write(4, 0, true)), 0, SEQUENCE);
    expect(&ask(&mut host, &write(0, 0, true)), 1, SEQUENCE);
    assert!(ask(&mut host, &write(1, 0, false)).is_empty());
    expect(&ask(&mut host, &write(2, 0, true)), 3, SEQUENCE);
    expect(&ask(&mut host, &write(3, 0, false)), 4, ACK);
}

/// Duplicates of buffered packets, before and after their turn.
#[test]
fn duplicates_of_buffered_requests() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(1)), 0, SEQUENCE);
    assert!(ask(&mut host, &send(1)).is_empty());
    expect(&ask(&mut host, &send(0)), 1, ACK);
    expect(&ask(&mut host, &send(1)), 1, ACK);
    assert_eq!(statuses(&host), [Status::Success; 2]);
    assert_eq!(host.responder.msn.get(), 2);
}

/// B-14: of two different requests with one PSN, neither is accepted; the peer retransmits its own.
/// A retransmission that asks for an acknowledgement does not count as different.
#[test]
fn two_of_one_number() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(1)), 0, SEQUENCE);
    let _ = host.take(0, &send(1), &[0x66; 4]);
    let mut again = write(2, 8, false);
    give(&mut host, &again, 0xaa);
    again.bth.ackreq = true;
    give(&mut host, &again, 0xaa);
    // Packets buffered beyond the first one reveal that it is missing.
    expect(&ask(&mut host, &send(0)), 1, SEQUENCE);
    expect(&ask(&mut host, &send(1)), 2, ACK);
    assert_eq!(host.driver.regions[0].bytes[8], 0xaa);
    assert_eq!(statuses(&host), [Status::Success; 2]);
    assert!(host.driver.received[1].data.starts_with(&[0xaa; 4]));
}

/// A request buffered for too long is dropped: it has no effect, and acknowledgements are no longer
/// replaced by NAKs.
#[test]
fn buffered_for_too_long() {
    let mut host = buffering_host();
    for n in 0..3 {
        host.post_recv(n, 64);
    }
    expect(&ask(&mut host, &send(2)), 0, SEQUENCE);
    expect(&ask(&mut host, &send(0)), 1, SEQUENCE);
    let _ = host.take(reorder::MAX_AGE, &send(1), &[0; 4]);
    expect(&host.drain(reorder::MAX_AGE), 1, ACK);
    assert_eq!(statuses(&host), [Status::Success; 2]);
}

/// B-12: an invalid packet that is buffered is refused in its turn.
#[test]
fn b_12_refused_in_its_turn() {
    let mut host = buffering_host();
    let mut wrong = write(1, 0, true);
    wrong.ext = reth(0, 4);
    expect(&ask(&mut host, &wrong), 0, SEQUENCE);
    expect(&ask(&mut host, &write(0, 0, true)), 1, ACCESS);
    assert!(host.error);
}

/// A READ takes many PSNs at once, so the next request is far ahead, and buffered, too.
#[test]
fn beyond_a_read() {
    let mut host = buffering_host();
    let len = 600 * MTU as u32;
    expect(&ask(&mut host, &write(600, 0, true)), 0, SEQUENCE);
    let answers = ask(&mut host, &read(0, BASE, len));
    assert_eq!(answers.len(), 601);
    assert_eq!(says(&answers[600].0), (600, O::Acknowledge, Some(ACK)));
}

/// B-13: after an RNR NAK the peer retransmits everything: no request is buffered or answered.
#[test]
fn b_13_nothing_is_buffered_after_an_rnr_nak() {
    let mut host = buffering_host();
    let answers = ask(&mut host, &send(0));
    assert!(matches!(
        said(&answers)[..],
        [(0, O::Acknowledge, Some(Syndrome::RnrNak { .. }))]
    ));
    assert!(ask(&mut host, &send(1)).is_empty());
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    expect(&ask(&mut host, &send(1)), 1, ACK);
}
