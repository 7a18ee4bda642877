// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: detection of lost packets, and minimal retransmission.

use super::*;
use rrxe_core::reorder::MAX_DISTANCE;
use rrxe_core::requester::MIN_PTO;

/// A peer that keeps out-of-order packets gets the missing packet, and new ones.
#[test]
fn a_peer_that_buffers() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    post(&mut host, SendOp::Write, 1);
    // No new packet before it is known whether the peer keeps it.
    assert_eq!(psns(&host.drain(300_000)), [2]);
    ack_at(&mut host, 400_000, 6, ACK);
    assert_eq!(host.statuses(), [Status::Success; 7]);
    assert_eq!(psns(&host.drain(400_000)), [7]);
    // Now it is known.
    for _ in 0..3 {
        post(&mut host, SendOp::Write, 1);
    }
    host.drain(400_000);
    ack_at(&mut host, 500_000, 8, SEQUENCE_ERROR);
    post(&mut host, SendOp::Write, 1);
    assert_eq!(psns(&host.drain(500_000)), [8, 11]);
    // The next gap.
    ack_at(&mut host, 600_000, 10, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(600_000)), [10]);
    ack_at(&mut host, 700_000, 11, ACK);
    assert_eq!(host.statuses(), [Status::Success; 12]);
    assert_eq!(host.requester.counters.retransmitted, 3);
}

/// An answer farther ahead than the largest window may be forged, and is not buffered.
#[test]
fn answers_from_far_ahead() {
    let mut host = buffering_host();
    post(&mut host, SendOp::Read, 4096 * MTU);
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
/// there is no room or the send side is busy.
#[test]
fn a_repair_that_is_due_asks_for_no_timer() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    let later = |host: &Host, now| host.requester.next_timeout().is_none_or(|at| at > now);
    assert!(later(&host, 300_000), "it was told of by the outcome");
    for (budget, room) in [(0, 16), (16, 0)] {
        (host.budget, host.driver.room) = (budget, Some(room));
        assert!(host.transmit(310_000), "there is more");
        assert!(host.driver.out.is_empty());
        assert!(later(&host, 310_000));
    }
    // A timer repeats it to the next poll.
    let outcome = host.timeout(320_000);
    assert!(outcome.transmit && later(&host, 320_000));
    host.driver.room = None;
    assert_eq!(psns(&host.drain(320_000)), [2]);
    // A repair that waits for the answer to the next READ uses a timer, for that time only.
    let mut host = in_flight(0);
    for _ in 0..2 {
        post(&mut host, SendOp::Read, 1);
    }
    host.drain(200_000);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    let answer = response(Operation::ReadResponseOnly, 1, 1);
    let _ = host.take(400_000, &answer, &[1]);
    let at = host.requester.next_timeout().unwrap();
    assert!(at > 400_000 && host.drain(400_000).is_empty());
    host.driver.room = Some(0);
    expire(&mut host, at);
    assert!(later(&host, at));
    assert!(host.transmit(at) && later(&host, at));
    host.driver.room = None;
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
fn peer_drops() -> Host {
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

/// If the path has become shorter, the answers to probes come earlier than a round trip. After four
/// of them the rest of the flight counts as lost, and does not cost a probe for each packet.
#[test]
fn probes_on_a_shorter_path() {
    let mut host = in_flight(10);
    host.requester.set_timeout(14);
    let mut now = 0;
    for psn in 1..=4 {
        assert!(host.drain(now).is_empty());
        now = host.requester.next_timeout().unwrap();
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [psn]);
        now += 20_000;
        ack_at(&mut host, now, psn, ACK);
    }
    assert_eq!(psns(&host.drain(now)), [5, 6, 7, 8, 9, 10]);
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
            post(&mut host, SendOp::Write, 1);
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
        post(&mut host, SendOp::Write, 1);
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
        post(&mut host, SendOp::Write, 1);
    }
    host.drain(600_000);
    ack_at(&mut host, 700_000, 17, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(700_000)), [17]);
}

/// A NAK that cannot be about the last transmission of the packet: repeated by the network, or
/// late.
#[test]
fn naks_that_say_nothing_new() {
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
fn a_nak_is_believed_at_once() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    // Too early for an answer to the retransmission.
    ack_at(&mut host, 340_000, 2, ACK);
    ack_at(&mut host, 350_000, 3, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(350_000)), [3]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A lost tail: the oldest packet is sent again after the expected answer time, but no earlier than
/// the floor, and then less and less often. Only the consumer's timer uses up retries.
#[test]
fn a_probe_finds_a_lost_tail() {
    let mut host = in_flight(3);
    let mut now = 200_000;
    assert_eq!(host.requester.next_timeout(), Some(now + MIN_PTO));
    now += MIN_PTO;
    expire(&mut host, now - 1);
    assert!(host.drain(now - 1).is_empty());
    expire(&mut host, now);
    let sent = host.drain(now);
    assert_eq!(psns(&sent), [1]);
    assert!(sent[0].0.bth.ackreq);
    // For its repetition the floor is half of that.
    now += 2 * MIN_PTO / 2;
    assert_eq!(host.requester.next_timeout(), Some(now));
    expire(&mut host, now);
    assert_eq!(psns(&host.drain(now)), [1]);
    // The consumer's timer expires before the next probe.
    assert_eq!(host.requester.next_timeout(), Some(200_000 + TIMEOUT));
    assert_eq!(host.requester.counters.probes, 2);
    assert_eq!(host.requester.counters.timeouts, 0);
    // The answer shows that the whole tail is lost, unless it comes too early to be one.
    now = 200_000 + MIN_PTO;
    for (after, again) in [(40_000, &[][..]), (100_000, &[2, 3])] {
        let mut host = in_flight(3);
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [1]);
        ack_at(&mut host, now + after, 1, ACK);
        assert_eq!(psns(&host.drain(now + after)), again);
    }
}

/// An answer soon after a probe is to the original packet and says nothing about the minimum round
/// trip: a NAK is still recognized as too early for the retransmission.
#[test]
fn a_late_answer_does_not_shorten_the_round_trip() {
    let mut host = in_flight(3);
    let mut now = 200_000 + MIN_PTO;
    expire(&mut host, now);
    assert_eq!(psns(&host.drain(now)), [1]);
    ack_at(&mut host, now + 1_000, 3, ACK);
    now += 100_000;
    for _ in 0..3 {
        post(&mut host, SendOp::Write, 1);
    }
    host.drain(now);
    now += 100_000;
    ack_at(&mut host, now, 5, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [5]);
    ack_at(&mut host, now + 20_000, 5, SEQUENCE_ERROR);
    assert!(host.drain(now + 20_000).is_empty());
    assert_eq!(host.requester.counters.sequence_naks, 1);
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
        post(&mut host, SendOp::Write, 1);
    }
    host.drain(now);
    ack_at(&mut host, now + 100_000, 21, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now + 100_000)), [21]);
}

/// No round trip is measured in the first flight, but a NAK gives an upper bound. If the
/// retransmission is lost again, it does not wait for the consumer's timer.
#[test]
fn a_loss_in_the_first_flight_is_probed_for() {
    let mut host = buffering_host();
    host.requester.set_timeout(14);
    for at in [100_000, 150_000, 200_000] {
        post(&mut host, SendOp::Write, 1);
        assert_eq!(host.drain(at).len(), 1);
    }
    ack_at(&mut host, 1_100_000, 0, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(1_100_000)), [0]);
    // A round trip of 1 ms plus four times its deviation, which is assumed to be half of that.
    assert_eq!(host.requester.next_timeout(), Some(1_100_000 + 3_000_000));
    expire(&mut host, 4_100_000);
    assert_eq!(psns(&host.drain(4_100_000)), [0]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// Before a round trip is measured, the first probe comes after 20 ms, unless the consumer's timer
/// is shorter.
#[test]
fn the_first_flight_is_probed_for() {
    let sent = |timeout, strict| {
        let mut host = buffering_host();
        if strict {
            host = host.strict();
        }
        host.requester.set_timeout(timeout);
        post(&mut host, SendOp::Write, 1);
        host.drain(0);
        host
    };
    let mut host = sent(14, false);
    for (at, probes) in [(20_000_000, 1), (60_000_000, 2), (67_108_864, 2)] {
        assert_eq!(host.requester.next_timeout(), Some(at));
        expire(&mut host, at);
        let again = host.drain(at);
        assert_eq!(psns(&again), [0]);
        assert!(again[0].0.bth.ackreq);
        assert_eq!(host.requester.counters.probes, probes);
    }
    assert_eq!(host.requester.counters.timeouts, 1);
    let timeout = requester::ack_timeout(14);
    assert_eq!(sent(14, true).requester.next_timeout(), timeout);
    assert_eq!(sent(8, false).requester.next_timeout(), Some(TIMEOUT));
}

/// While no round trip is known, one packet asks for an acknowledgement to measure it.
#[test]
fn the_first_packet_measures_the_round_trip() {
    let mut host = buffering_host();
    let asks = |host: &mut Host, now| -> Vec<bool> {
        post(host, SendOp::Write, 4 * MTU);
        host.drain(now).iter().map(|(p, _)| p.bth.ackreq).collect()
    };
    assert_eq!(asks(&mut host, 0), [true, false, false, true]);
    assert_eq!(asks(&mut host, 0), [false, false, false, true]);
    // A retransmission leaves it unknown.
    expire(&mut host, TIMEOUT);
    host.drain(TIMEOUT);
    ack_at(&mut host, TIMEOUT + 100_000, 7, ACK);
    let now = TIMEOUT + 200_000;
    assert_eq!(asks(&mut host, now), [true, false, false, true]);
    ack_at(&mut host, now + 100_000, 11, ACK);
    assert_eq!(asks(&mut host, now), [false, false, false, true]);
}

/// The shortest round trip is forgotten after 10 to 20 s, because the path may have become longer:
/// only then is a NAK that comes sooner than on the new path stale.
#[test]
fn the_shortest_round_trip_ages() {
    let stale_after = |seconds: u64| {
        let mut host = in_flight(0);
        let mut now = 1_000_000;
        // Round trips of 1 ms.
        for n in 1..=seconds as u32 {
            post(&mut host, SendOp::Write, 1);
            host.drain(now);
            ack_at(&mut host, now + 1_000_000, n, ACK);
            now += 1_000_000_000;
        }
        let lost = seconds as u32 + 1;
        for _ in 0..3 {
            post(&mut host, SendOp::Write, 1);
        }
        host.drain(now);
        ack_at(&mut host, now + 1_000_000, lost, SEQUENCE_ERROR);
        now += 1_000_000;
        assert_eq!(psns(&host.drain(now)), [lost]);
        ack_at(&mut host, now + 500_000, lost, SEQUENCE_ERROR);
        host.drain(now + 500_000).is_empty()
    };
    let stale = [0, 5, 10, 15, 25, 30].map(stale_after);
    assert_eq!(stale, [false, false, false, false, true, true]);
}

/// A NAK beyond a READ that is not answered yet is handled when the answer has arrived: if nothing
/// else has acknowledged the packet until then, it is retransmitted. (The NAK is not buffered,
/// because it has the PSN of another answer.)
#[test]
fn a_nak_beyond_an_unanswered_read() {
    for (acknowledged, again) in [(false, &[2][..]), (true, &[])] {
        let mut host = in_flight(0);
        post(&mut host, SendOp::Read, 1);
        for _ in 0..3 {
            post(&mut host, SendOp::Write, 1);
        }
        host.drain(200_000);
        ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
        assert!(host.reorder_buffers[1].is_empty());
        assert!(host.drain(300_000).is_empty());
        let answer = response(Operation::ReadResponseOnly, 1, 1);
        let _ = host.take(350_000, &answer, &[1]);
        assert_eq!(host.statuses(), [Status::Success; 2]);
        // The missing request may have arrived, because the peer keeps those beyond it.
        assert!(host.drain(350_000).is_empty());
        if acknowledged {
            ack_at(&mut host, 449_999, 4, ACK);
        } else {
            assert_eq!(host.requester.next_timeout(), Some(450_000));
        }
        expire(&mut host, 450_000);
        assert_eq!(psns(&host.drain(450_000)), again);
        assert_eq!(host.requester.counters.timeouts, 0);
    }
}

/// If the peer drops out-of-order packets, everything after the READ is retransmitted at once.
#[test]
fn a_nak_of_a_peer_that_drops_beyond_an_unanswered_read() {
    let mut host = peer_drops();
    ack_at(&mut host, 500_000, 16, ACK);
    post(&mut host, SendOp::Read, 1);
    for _ in 0..3 {
        post(&mut host, SendOp::Write, 1);
    }
    assert_eq!(psns(&host.drain(500_000)), [17, 18, 19, 20]);
    ack_at(&mut host, 600_000, 18, SEQUENCE_ERROR);
    assert!(host.drain(600_000).is_empty());
    let answer = response(Operation::ReadResponseOnly, 17, 1);
    let _ = host.take(610_000, &answer, &[1]);
    assert_eq!(psns(&host.drain(610_000)), [18, 19, 20]);
}

/// Gaps in READ responses that close by themselves raise the number of packets beyond a gap that
/// report it: to twice the size of the gap.
#[test]
fn f_12_late_responses_raise_the_tolerance() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = reading(12);
    for (operation, n) in [(F, 0), (M, 2), (M, 3), (M, 1)] {
        respond(&mut host, operation, n);
        assert!(host.drain(0).is_empty());
    }
    for n in [5, 6, 7] {
        respond(&mut host, M, n);
        assert!(host.drain(0).is_empty(), "{n}");
    }
    respond(&mut host, M, 8);
    assert_eq!(psns(&host.drain(0)), [4]);
    for n in [4, 9, 10] {
        respond(&mut host, M, n);
    }
    respond(&mut host, L, 11);
    respond(&mut host, F, 12);
    respond(&mut host, L, 13);
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// Probes back off and use up no retries.
#[test]
fn probes_back_off() {
    let mut host = in_flight(1);
    host.requester.set_timeout(14);
    host.requester.set_retry_count(0);
    post(&mut host, SendOp::Write, 1);
    // Progress restarts the timers.
    ack_at(&mut host, 300_000, 1, ACK);
    host.drain(300_000);
    let (mut now, mut wait) = (300_000, MIN_PTO);
    let end = 300_000 + requester::ack_timeout(14).unwrap();
    for probes in 1.. {
        if now + wait >= end {
            break;
        }
        assert_eq!(host.requester.next_timeout(), Some(now + wait));
        now += wait;
        // From the first repetition on, the floor is half as long.
        wait = (MIN_PTO / 2) << probes;
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [2]);
    }
    assert!(host.requester.counters.probes >= 3);
    assert!(!host.error);
    assert_eq!(host.requester.next_timeout(), Some(end));
    expire(&mut host, end);
    assert_eq!(host.statuses()[2], Status::RetryExc);
}

/// F-02: without the consumer's timer there is no probe either.
#[test]
fn f_02_no_probe_without_a_timer() {
    let mut host = in_flight(0);
    host.requester.set_timeout(0);
    post(&mut host, SendOp::Write, 1);
    host.drain(200_000);
    assert_eq!(host.requester.next_timeout(), None);
}

/// F-03: the consumer's timer takes one timeout each time, in both recovery modes: a work request
/// fails after one timeout for each retry and one more. Progress restores the retries.
#[test]
fn f_03_one_timeout_each() {
    for mut host in [host(), buffering_host(), host().strict()] {
        host.requester.set_retry_count(4);
        for _ in 0..2 {
            post(&mut host, SendOp::Write, 1);
        }
        host.drain(0);
        let mut now = 0;
        for _ in 0..4 {
            assert_eq!(host.requester.next_timeout(), Some(now + TIMEOUT));
            now += TIMEOUT;
            expire(&mut host, now);
            assert_eq!(psns(&host.drain(now)), [0, 1]);
        }
        ack_at(&mut host, now, 0, ACK);
        for _ in 0..4 {
            expire(&mut host, now + TIMEOUT - 1);
            host.drain(now + TIMEOUT - 1);
            assert_eq!(host.requester.next_timeout(), Some(now + TIMEOUT));
            now += TIMEOUT;
            expire(&mut host, now);
            assert_eq!(psns(&host.drain(now)), [1]);
        }
        assert_eq!(host.statuses(), [Status::Success]);
        expire(&mut host, now + TIMEOUT);
        assert_eq!(host.statuses(), [Status::Success, Status::RetryExc]);
        assert_eq!(host.requester.counters.timeouts, 9);
    }
}

/// After an answered READ, the next one is asked for as a test of whether the peer has kept it. A
/// NAK says that it has not: everything is asked for again at once, not one READ at a time.
#[test]
fn a_peer_that_drops_reads() {
    let mut host = in_flight(0);
    for _ in 0..4 {
        post(&mut host, SendOp::Read, 1);
    }
    assert_eq!(psns(&host.drain(200_000)), [1, 2, 3, 4]);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    let only = Operation::ReadResponseOnly;
    let _ = host.take(400_000, &response(only, 1, 1), &[1]);
    assert!(host.drain(400_000).is_empty());
    // Half a round trip later.
    expire(&mut host, 450_000);
    assert_eq!(psns(&host.drain(450_000)), [2]);
    ack_at(&mut host, 550_000, 2, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(550_000)), [2, 3, 4]);
    for n in 2..5 {
        let _ = host.take(650_000, &response(only, n, 1), &[n as u8]);
    }
    assert_eq!(host.statuses(), [Status::Success; 5]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// Returns a host that has sent a READ of `packets` packets and another READ.
fn reading(packets: u32) -> Host {
    let mut host = buffering_host();
    post(&mut host, SendOp::Read, packets * MTU);
    post(&mut host, SendOp::Read, 2 * MTU);
    assert_eq!(psns(&host.drain(0)), [0, packets]);
    host
}

/// F-12: the first missing response is asked for as soon as three beyond it have arrived, and once.
/// Responses beyond it are kept and need not be repeated.
#[test]
fn f_12_responses_beyond_a_gap_are_kept() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = reading(5);
    respond(&mut host, F, 0);
    for (operation, n) in [(M, 2), (M, 3)] {
        respond(&mut host, operation, n);
        assert!(host.drain(0).is_empty(), "it may only be late");
    }
    respond(&mut host, L, 4);
    let again = host.drain(0);
    assert_eq!(psns(&again), [1]);
    let Ext::Reth(reth) = again[0].0.ext else {
        panic!()
    };
    assert_eq!((reth.va, reth.len), (BASE + 1024, 4 * MTU));
    respond(&mut host, F, 5);
    respond(&mut host, L, 6);
    assert!(host.drain(0).is_empty());
    assert!(host.statuses().is_empty());
    respond(&mut host, F, 1);
    assert_eq!(host.statuses(), [Status::Success; 2]);
    let data = &host.driver.sent[0].data;
    assert!((0..5 * 1024).all(|i| data[i] == (i / 1024) as u8));
    // The rest of the second answer contains nothing new.
    respond(&mut host, M, 2);
    respond(&mut host, L, 4);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.counters.retransmitted, 1);
}

/// Some peers (rdma_rxe) answer a request for the middle of a READ with MIDDLE and LAST, not as a
/// READ of its own (C-07). That answer does not count as a late one, which would raise the
/// tolerance of reordering.
#[test]
fn c_07_answers_that_go_on() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    for anew in [false, true] {
        let mut host = in_flight(0);
        for _ in 0..3 {
            post(&mut host, SendOp::Read, 3 * MTU);
        }
        host.drain(200_000);
        let mut now = 300_000;
        // The responses in the middle are missing.
        let answers = [(1, if anew { F } else { M }), (4, M)];
        for (first, again) in answers {
            respond_at(&mut host, now, F, first);
            respond_at(&mut host, now, L, first + 2);
            assert!(host.drain(now).is_empty());
            now += GAP_DELAY;
            assert_eq!(host.requester.next_timeout(), Some(now));
            expire(&mut host, now);
            assert_eq!(psns(&host.drain(now)), [first + 1]);
            now += 100_000;
            respond_at(&mut host, now, again, first + 1);
            assert!(host.drain(now).is_empty());
        }
        assert_eq!(host.statuses(), [Status::Success; 3]);
        respond_at(&mut host, now, F, 7);
        respond_at(&mut host, now, L, 9);
        assert!(host.drain(now).is_empty());
        // From a peer that begins with FIRST otherwise, the last one was a late response.
        let delay = if anew {
            2 * (GAP_DELAY + 100_000)
        } else {
            GAP_DELAY
        };
        assert_eq!(host.requester.next_timeout(), Some(now + delay));
        expire(&mut host, now + delay);
        assert_eq!(psns(&host.drain(now + delay)), [8]);
    }
}

/// A peer that answers a later part of a READ may treat an earlier part as answered (rdma_rxe).
/// Behind a lost packet, a READ is therefore asked for from its first missing response on, or only
/// in its turn.
#[test]
fn f_12_no_gap_before_an_earlier_one() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    // READs of 2, 2 and 5 packets.
    let asked = |answers: &[(Operation, u32)]| {
        let mut host = reading(2);
        post(&mut host, SendOp::Read, 5 * MTU);
        host.drain(0);
        for &(operation, n) in answers {
            respond(&mut host, operation, n);
        }
        psns(&host.drain(0))
    };
    // The start of the third READ arrives, and a later response.
    assert_eq!(asked(&[(L, 1), (F, 2), (L, 3), (M, 5), (M, 7)]), [0, 4]);
    // The start is missing together with the lost packet, or with the end of the READ before.
    assert_eq!(asked(&[(F, 0), (M, 5), (M, 7), (L, 8)]), [1]);
    assert_eq!(asked(&[(L, 1), (F, 2), (M, 5), (M, 7)]), [0, 3]);
}

/// Two gaps in one READ: the second is part of the retransmission. A gap in the next READ is asked
/// for at the same time, and once.
#[test]
fn f_12_several_gaps() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = reading(5);
    for (operation, n) in [(F, 0), (M, 2), (L, 4), (L, 6)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [1, 5]);
    respond(&mut host, F, 1);
    assert!(host.drain(0).is_empty());
    respond(&mut host, M, 2);
    respond(&mut host, M, 3);
    assert_eq!(host.statuses(), [Status::Success]);
    assert!(host.drain(0).is_empty());
    respond(&mut host, F, 5);
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// An early response makes the requester search 64 work requests for the READ whose responses are
/// missing, whatever is queued: the peer decides how often that happens. A READ that the search did
/// not reach is asked for in its turn.
#[test]
fn f_12_the_search_is_bounded() {
    use Operation::{
        ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M,
        ReadResponseOnly as O,
    };
    for (local, asked) in [
        (0, vec![0, 4]),
        (63, vec![0, 4]),
        (64, vec![0]),
        (100, vec![0]),
    ] {
        let mut host = buffering_host();
        post(&mut host, SendOp::Read, 4 * MTU);
        for _ in 0..local {
            post(&mut host, SendOp::RegMr, 0);
        }
        post(&mut host, SendOp::Read, 2 * MTU);
        post(&mut host, SendOp::Read, MTU);
        host.drain(0);
        for (operation, n) in [(M, 1), (M, 2), (L, 3), (O, 6)] {
            respond(&mut host, operation, n);
        }
        assert_eq!(psns(&host.drain(0)), asked, "{local} local operations");
        respond(&mut host, F, 0);
        assert_eq!(host.statuses().len(), local + 1);
        if asked.len() == 1 {
            let next = host.requester.next_timeout().unwrap();
            expire(&mut host, next);
            assert_eq!(psns(&host.drain(next)), [4]);
        }
        respond(&mut host, F, 4);
        respond(&mut host, L, 5);
        assert_eq!(host.statuses(), vec![Status::Success; local + 3]);
    }
}

/// Requests that answers beyond them acknowledge leave no gap: only READs have answers of their
/// own.
#[test]
fn f_12_no_gap_where_no_answers_are() {
    use Operation::{ReadResponseLast as L, ReadResponseOnly as O};
    let mut host = buffering_host();
    for (op, packets) in [
        (SendOp::Read, 2),
        (SendOp::Read, 1),
        (SendOp::Write, 2),
        (SendOp::Read, 1),
    ] {
        post(&mut host, op, packets * MTU);
    }
    host.drain(0);
    for (operation, n) in [(L, 1), (O, 2), (O, 5)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [0]);
}

/// If the response to a retransmission is lost again, the probe asks for it in its turn.
#[test]
fn f_12_a_gap_that_is_lost_again() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = buffering_host();
    for packets in [4, 2] {
        post(&mut host, SendOp::Read, packets * MTU);
    }
    host.drain(0);
    for (operation, n) in [(M, 1), (M, 2), (L, 3), (L, 5)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [0, 4]);
    respond(&mut host, F, 0);
    assert_eq!(host.statuses(), [Status::Success]);
    assert!(host.drain(0).is_empty());
    let mut next = host.requester.next_timeout().unwrap();
    while host.requester.counters.probes == 0 {
        expire(&mut host, next);
        next = host.requester.next_timeout().unwrap_or(next);
    }
    assert_eq!(psns(&host.drain(next)), [4]);
    respond_at(&mut host, next, F, 4);
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// F-11, F-12: answers after an unanswered READ or atomic complete their requests in their turn,
/// and the requests are not sent again.
#[test]
fn f_11_answers_beyond_a_gap_are_kept() {
    let mut host = buffering_host();
    post(&mut host, SendOp::FetchAdd, 8);
    post(&mut host, SendOp::Write, 1);
    post(&mut host, SendOp::FetchAdd, 8);
    host.drain(0);
    ack(&mut host, 1, ACK);
    let _ = host.take(0, &atomic_ack(2, 9), &[]);
    assert!(host.drain(0).is_empty());
    expire(&mut host, GAP_DELAY);
    assert_eq!(psns(&host.drain(GAP_DELAY)), [0]);
    assert!(host.statuses().is_empty());
    let _ = host.take(0, &atomic_ack(0, 7), &[]);
    assert_eq!(host.statuses(), [Status::Success; 3]);
    assert_eq!(host.driver.sent[2].data, 9u64.to_ne_bytes());
}

/// An acknowledgement within a READ without an answer is not kept, because its turn never comes.
#[test]
fn an_ack_for_a_read_is_not_kept() {
    let mut host = buffering_host();
    post(&mut host, SendOp::Read, MTU);
    host.drain(0);
    ack(&mut host, 0, ACK);
    assert!(host.reorder_buffers[1].is_empty());
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.next_timeout(), Some(GAP_DELAY));
    expire(&mut host, GAP_DELAY);
    assert_eq!(psns(&host.drain(GAP_DELAY)), [0]);
}

/// F-06: gaps without progress use up the retries, too.
#[test]
fn f_06_gaps_use_up_retries() {
    let mut host = reading(5);
    host.requester.set_retry_count(0);
    for n in [1, 2] {
        respond(&mut host, Operation::ReadResponseMiddle, n);
        assert!(host.statuses().is_empty());
    }
    respond(&mut host, Operation::ReadResponseMiddle, 3);
    assert_eq!(host.statuses()[0], Status::RetryExc);
    assert!(host.reorder_buffers[1].is_empty());
}
