// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: detection of lost packets, and minimal retransmission to peers of each kind.

use super::*;
use rrxe_core::reorder::MAX_DISTANCE;

/// A peer that keeps out-of-order packets gets the missing packet, and new ones.
#[test]
fn a_peer_that_buffers() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    post(&mut host, Op::Write, 1);
    // No new packet before it is known whether the peer keeps it.
    assert_eq!(psns(&host.drain(300_000)), [2]);
    ack_at(&mut host, 400_000, 6, ACK);
    assert_eq!(host.statuses(), [Status::Success; 7]);
    assert_eq!(psns(&host.drain(400_000)), [7]);
    // Now it is known.
    for _ in 0..3 {
        post(&mut host, Op::Write, 1);
    }
    host.drain(400_000);
    ack_at(&mut host, 500_000, 8, SEQUENCE_ERROR);
    post(&mut host, Op::Write, 1);
    assert_eq!(psns(&host.drain(500_000)), [8, 11]);
    // The next gap.
    ack_at(&mut host, 600_000, 10, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(600_000)), [10]);
    ack_at(&mut host, 700_000, 11, ACK);
    assert_eq!(host.statuses(), [Status::Success; 12]);
    assert_eq!(host.requester.counters.retransmitted, 3);
}

/// A response farther ahead than the largest window may be forged, and is not buffered.
#[test]
fn responses_from_far_ahead() {
    let mut host = buffering_host();
    post(&mut host, Op::Read, 4096 * MTU);
    host.drain(0);
    let middle = |n| response(Operation::ReadResponseMiddle, n, MTU as usize);
    for (n, buffered) in [
        (1, true),
        (MAX_DISTANCE, false),
        (4000, false),
        (MAX_DISTANCE - 1, true),
    ] {
        let outcome = host.take(0, &middle(n), &[0; MTU as usize]);
        assert_eq!(outcome.buffer, buffered, "{n}");
    }
    assert_eq!(host.reorder_buffers[1].len(), 2);
}

/// A retransmission counts against the budget like any other packet.
#[test]
fn a_lost_packet_waits_for_the_budget_too() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    host.budget = 0;
    assert!(host.transmit(300_000), "there is more");
    assert!(host.driver.out.is_empty());
    host.budget = 1;
    assert_eq!(psns(&host.drain(300_000)), [2]);
}

/// A pending repair waits for a poll, not for a timer. A timer would fire again and again while
/// there is no space or the send side is busy.
#[test]
fn a_repair_that_is_due_asks_for_no_timer() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    let later = |host: &Host, now| {
        host.requester
            .next_timeout()
            .map(Time::ns)
            .is_none_or(|at| at > now)
    };
    assert!(later(&host, 300_000), "it was told of by the outcome");
    for (budget, space) in [(0, 16), (16, 0)] {
        (host.budget, host.driver.space) = (budget, Some(space));
        assert!(host.transmit(310_000), "there is more");
        assert!(host.driver.out.is_empty());
        assert!(later(&host, 310_000));
    }
    // A timer repeats it to the next poll.
    let outcome = host.timeout(320_000);
    assert!(outcome.transmit && later(&host, 320_000));
    host.driver.space = None;
    assert_eq!(psns(&host.drain(320_000)), [2]);
    // A repair that waits for the response to the next READ uses a timer, for that time only.
    let mut host = in_flight(0);
    for _ in 0..2 {
        post(&mut host, Op::Read, 1);
    }
    host.drain(200_000);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    let packet = response(Operation::ReadResponseOnly, 1, 1);
    let _ = host.take(400_000, &packet, &[1]);
    let at = host.requester.next_timeout().map(Time::ns).unwrap();
    assert!(at > 400_000 && host.drain(400_000).is_empty());
    host.driver.space = Some(0);
    expire(&mut host, at);
    assert!(later(&host, at));
    assert!(host.transmit(at) && later(&host, at));
    host.driver.space = None;
    assert_eq!(psns(&host.drain(at)), [2]);
}

/// Returns a host whose peer has acknowledged the first repair, packet 2, alone. At 300 us the host
/// has sent the second one, packets 3 to 10. Packets 11 to 16 are in flight, too.
fn second_test() -> Host {
    let mut host = in_flight(16);
    ack_at(&mut host, 200_000, 2, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(200_000)), [2]);
    ack_at(&mut host, 300_000, 2, ACK);
    // Packet 3 may have been lost, too.
    assert_eq!(psns(&host.drain(300_000)), [3, 4, 5, 6, 7, 8, 9, 10]);
    host
}

/// Returns a host to which the peer counts as one that drops out-of-order packets, at 400 us, with
/// the packets 11 to 16 in flight.
pub(crate) fn peer_drops() -> Host {
    let mut host = second_test();
    ack_at(&mut host, 400_000, 10, ACK);
    assert_eq!(psns(&host.drain(400_000)), [11, 12, 13, 14, 15, 16]);
    host
}

/// A peer that drops out-of-order packets (rdma_rxe) gets everything from the lost packet on, and
/// from the second time on at once.
#[test]
fn a_peer_that_drops() {
    let mut host = peer_drops();
    ack_at(&mut host, 500_000, 14, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(500_000)), [14, 15, 16]);
    ack_at(&mut host, 600_000, 16, ACK);
    assert_eq!(host.statuses(), [Status::Success; 17]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A peer that drops out-of-order packets may acknowledge each packet of the second repair.
#[test]
fn a_peer_that_drops_and_acknowledges_each_packet() {
    let mut host = second_test();
    for psn in 3..10 {
        ack_at(&mut host, 400_000, psn, ACK);
        assert!(host.drain(400_000).is_empty());
    }
    ack_at(&mut host, 400_000, 10, ACK);
    assert_eq!(psns(&host.drain(400_000)), [11, 12, 13, 14, 15, 16]);
}

/// A peer that has lost two packets in a row acknowledges the repair of the first one alone, and
/// does not count as one that drops out-of-order packets.
#[test]
fn a_peer_that_buffers_loses_two_in_a_row() {
    let mut host = second_test();
    ack_at(&mut host, 400_000, 12, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(400_000)), [12]);
    ack_at(&mut host, 500_000, 16, ACK);
    assert_eq!(host.statuses(), [Status::Success; 17]);
}

/// The loss of a packet of the second repair says nothing about the peer.
#[test]
fn a_packet_of_the_test_is_lost() {
    let mut host = second_test();
    ack_at(&mut host, 400_000, 6, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(400_000)), [6]);
    ack_at(&mut host, 500_000, 6, ACK);
    assert_eq!(
        psns(&host.drain(500_000)),
        [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    );
}

/// A peer that counts as one that drops out-of-order packets is tested again after 200 losses.
#[test]
fn a_peer_is_tested_again() {
    let mut host = peer_drops();
    let mut now = 500_000;
    ack_at(&mut host, now, 16, ACK);
    for n in 0..200u32 {
        for _ in 0..16 {
            post(&mut host, Op::Write, 1);
        }
        let first = 17 + 16 * n;
        assert_eq!(psns(&host.drain(now))[0], first);
        now += 100_000;
        ack_at(&mut host, now, first, SEQUENCE_ERROR);
        let again = if n < 199 { 16 } else { 1 };
        assert_eq!(psns(&host.drain(now)).len(), again, "loss {n}");
        now += 100_000;
        if n < 199 {
            ack_at(&mut host, now, first + 15, ACK);
        }
    }
    // The peer has kept the others.
    ack_at(&mut host, now, 17 + 16 * 200 - 1, ACK);
    for _ in 0..16 {
        post(&mut host, Op::Write, 1);
    }
    let next = psns(&host.drain(now))[0];
    ack_at(&mut host, now + 100_000, next, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now + 100_000)), [next]);
}

/// A peer that was considered to drop out-of-order packets turns out to keep them: an
/// acknowledgement arrives beyond the retransmission.
#[test]
fn a_peer_that_buffers_after_all() {
    let mut host = peer_drops();
    ack_at(&mut host, 500_000, 12, SEQUENCE_ERROR);
    host.budget = 1;
    host.transmit(500_000);
    host.driver.out.clear();
    // Packet 12 was sent again; 13 to 16 were not.
    ack_at(&mut host, 600_000, 15, ACK);
    host.budget = 16;
    assert_eq!(psns(&host.drain(600_000)), [16]);
    for _ in 0..3 {
        post(&mut host, Op::Write, 1);
    }
    host.drain(600_000);
    ack_at(&mut host, 700_000, 17, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(700_000)), [17]);
}

/// A NAK that cannot be about the last transmission of the packet: repeated by the network, or
/// late.
#[test]
fn naks_about_an_earlier_transmission() {
    let mut host = in_flight(3);
    for now in [300_000, 300_000, 310_000] {
        ack_at(&mut host, now, 1, SEQUENCE_ERROR);
    }
    assert_eq!(psns(&host.drain(310_000)), [1]);
    // Less than seven eighths of the shortest round trip later.
    for now in [320_000, 397_499] {
        ack_at(&mut host, now, 1, SEQUENCE_ERROR);
        assert!(host.drain(now).is_empty());
    }
    // This one can.
    ack_at(&mut host, 397_500, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(397_500)), [1]);
    assert_eq!(host.requester.counters.sequence_naks, 2);
}

/// A NAK is believed at once, even if the packet of an earlier one was late, not lost: the peer
/// reports a gap only if it exceeds the reordering that the peer has observed.
#[test]
fn a_nak_causes_a_repair_at_once() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    // Too early for a response to the retransmission.
    ack_at(&mut host, 340_000, 2, ACK);
    ack_at(&mut host, 350_000, 3, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(350_000)), [3]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// If packets were lost in a burst, the number of packets sent again doubles each time, until one
/// was not lost.
#[test]
fn lost_in_a_row() {
    let mut host = in_flight(20);
    let mut now = 300_000;
    for (missing, again) in [(1, 1..2), (2, 2..4), (4, 4..8), (8, 8..16), (11, 11..12)] {
        ack_at(&mut host, now, missing, SEQUENCE_ERROR);
        assert_eq!(psns(&host.drain(now)), again.collect::<Vec<u32>>());
        now += 100_000;
    }
    ack_at(&mut host, now, 20, ACK);
    assert_eq!(host.statuses(), [Status::Success; 21]);
    // The next loss is a single one.
    for _ in 0..3 {
        post(&mut host, Op::Write, 1);
    }
    host.drain(now);
    ack_at(&mut host, now + 100_000, 21, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now + 100_000)), [21]);
}
