// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: detection of lost packets, and minimal retransmission.

use super::*;
use rrxe_core::reorder::MAX_DISTANCE;
use rrxe_core::requester::MIN_PTO;

fn ack_at(host: &mut Host, now: u64, n: u32, syndrome: Syndrome) {
    let _ = host.take(now, &acknowledge(psn(n), syndrome), &[]);
}

/// Returns a host with `count` single-packet WRITEs in flight and a measured round trip of 100 us.
fn in_flight(count: u32) -> Host {
    let mut host = buffering_host();
    post(&mut host, SendOp::Write, 1);
    host.drain(0);
    ack_at(&mut host, 100_000, 0, ACK);
    for _ in 0..count {
        post(&mut host, SendOp::Write, 1);
    }
    assert_eq!(host.drain(200_000).len(), count as usize);
    host
}

fn expire(host: &mut Host, at: u64) {
    let _ = host.timeout(at);
}

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
    // A repair that waits for reordered packets uses a timer, for that time only.
    ack_at(&mut host, 330_000, 2, ACK);
    ack_at(&mut host, 340_000, 4, SEQUENCE_ERROR);
    let at = host.requester.next_timeout().unwrap();
    assert!(at > 340_000 && host.drain(340_000).is_empty());
    host.driver.room = Some(0);
    expire(&mut host, at);
    assert!(later(&host, at));
    assert!(host.transmit(at) && later(&host, at));
    host.driver.room = None;
    assert_eq!(psns(&host.drain(at)), [4]);
}

/// A peer that drops out-of-order packets (rdma_rxe) gets everything from the lost packet on, and
/// from the second time on at once.
#[test]
fn a_peer_that_drops() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [2]);
    ack_at(&mut host, 400_000, 2, ACK);
    assert_eq!(psns(&host.drain(400_000)), [3, 4, 5, 6]);
    ack_at(&mut host, 500_000, 4, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(500_000)), [4, 5, 6]);
    ack_at(&mut host, 600_000, 6, ACK);
    assert_eq!(host.statuses(), [Status::Success; 7]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A peer that was considered to drop out-of-order packets turns out to keep them: an
/// acknowledgement arrives beyond the retransmission.
#[test]
fn a_peer_that_buffers_after_all() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    host.drain(300_000);
    ack_at(&mut host, 400_000, 1, ACK);
    host.budget = 1;
    host.transmit(400_000);
    host.driver.out.clear();
    // Packet 2 was sent again; 3 to 6 were not.
    ack_at(&mut host, 500_000, 5, ACK);
    host.budget = 16;
    assert_eq!(psns(&host.drain(500_000)), [6]);
    for _ in 0..3 {
        post(&mut host, SendOp::Write, 1);
    }
    host.drain(500_000);
    ack_at(&mut host, 600_000, 7, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(600_000)), [7]);
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
    ack_at(&mut host, 320_000, 1, SEQUENCE_ERROR);
    assert!(host.drain(320_000).is_empty());
    // This one can.
    ack_at(&mut host, 420_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(420_000)), [1]);
    assert_eq!(host.requester.counters.sequence_naks, 2);
}

/// For a packet that is late, not lost, the next repair waits as long as that packet took.
#[test]
fn late_packets_get_their_time() {
    let mut host = in_flight(6);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(300_000)), [1]);
    // Too early for an answer to the retransmission.
    ack_at(&mut host, 340_000, 2, ACK);
    ack_at(&mut host, 350_000, 3, SEQUENCE_ERROR);
    assert!(host.drain(350_000).is_empty());
    assert_eq!(host.requester.next_timeout(), Some(400_000));
    expire(&mut host, 400_000);
    assert_eq!(psns(&host.drain(400_000)), [3]);
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
    // The consumer's timer expires before the next probe.
    assert_eq!(host.requester.next_timeout(), Some(200_000 + TIMEOUT));
    assert_eq!(host.requester.counters.probes, 1);
    assert_eq!(host.requester.counters.timeouts, 0);
    // The answer shows that the whole tail is lost.
    ack_at(&mut host, now + 40_000, 1, ACK);
    assert!(
        host.drain(now + 40_000).is_empty(),
        "not an answer to the probe"
    );
    let mut host = in_flight(3);
    expire(&mut host, now);
    host.drain(now);
    ack_at(&mut host, now + 100_000, 1, ACK);
    assert_eq!(psns(&host.drain(now + 100_000)), [2, 3]);
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

/// The window grows to twice the capacity of the path: the packets acknowledged in the shortest
/// round trip. Queued packets do not enlarge it.
#[test]
fn the_window_follows_the_path() {
    let mut host = in_flight(0);
    host.budget = 2048;
    post(&mut host, SendOp::Write, 4000 * MTU);
    assert_eq!(host.drain(1_000_000).len(), 256);
    // 100 us may be a burst.
    ack_at(&mut host, 1_100_000, 255, ACK);
    assert_eq!(host.drain(1_100_000).len(), 255);
    ack_at(&mut host, 1_200_000, 511, ACK);
    assert_eq!(host.drain(1_200_000).len(), 510);
    // 200 us: half of the packets were in queues.
    ack_at(&mut host, 1_400_000, 1021, ACK);
    assert_eq!(host.drain(1_400_000).len(), 510);
    // Packets that the peer keeps beyond a lost one are no longer in flight.
    ack_at(&mut host, 1_500_000, 1022, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(1_500_000)), [1022]);
    ack_at(&mut host, 1_600_000, 1531, ACK);
    assert_eq!(host.drain(1_600_000).len(), 510);
    ack_at(&mut host, 1_700_000, 1532, SEQUENCE_ERROR);
    let sent = psns(&host.drain(1_700_000));
    assert_eq!((sent[0], sent.len()), (1532, 1 + 510));
    // When the lost packet is acknowledged, the larger window ends.
    ack_at(&mut host, 1_800_000, 2041, ACK);
    assert_eq!(host.drain(1_800_000).len(), 0);
}

/// If the peer turns out to drop out-of-order packets, queued packets no longer count as capacity.
#[test]
fn the_window_to_a_peer_that_drops_is_without_queues() {
    let mut host = buffering_host();
    host.budget = 2048;
    post(&mut host, SendOp::Write, 4000 * MTU);
    // Round trips of 1 ms, most of which is queueing delay.
    let mut now = 1_000_000;
    let mut sent = psns(&host.drain(now));
    for _ in 0..4 {
        now += 1_000_000;
        // All but one packet.
        ack_at(&mut host, now, *sent.last().unwrap() - 1, ACK);
        sent = psns(&host.drain(now));
    }
    assert!(sent.len() > 256);
    let first = sent[0];
    ack_at(&mut host, now + 500_000, first + 8, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now + 500_000)), [first + 8]);
    // A tenth of a round trip seems too short for an answer, but this was one.
    ack_at(&mut host, now + 600_000, first + 8, ACK);
    host.drain(now + 600_000);
    ack_at(&mut host, now + 700_000, first + 9, SEQUENCE_ERROR);
    let due = host.requester.next_timeout().unwrap();
    assert_eq!(psns(&host.drain(due)), [first + 9]);
    ack_at(&mut host, due + 100_000, first + 9, ACK);
    let again = psns(&host.drain(due + 100_000));
    assert_eq!((again[0], again.len()), (first + 10, 32));
    // Another loss costs nothing more.
    ack_at(&mut host, due + 200_000, first + 25, ACK);
    assert!((16..20).contains(&host.drain(due + 200_000).len()));
    ack_at(&mut host, due + 300_000, first + 28, SEQUENCE_ERROR);
    let again = psns(&host.drain(due + 300_000));
    assert_eq!((again[0], again.len()), (first + 28, 32));
}

/// READs start while the path has room for their responses, but a single READ may always start.
#[test]
fn the_window_is_for_read_responses_too() {
    let mut host = buffering_host();
    host.requester.max_rd_atomic = 16;
    for _ in 0..6 {
        post(&mut host, SendOp::Read, 100 * MTU);
    }
    post(&mut host, SendOp::Read, 1000 * MTU);
    post(&mut host, SendOp::Read, 1);
    assert_eq!(psns(&host.drain(0)), [0, 100, 200]);
    for n in 0..600 {
        let kind = match n % 100 {
            0 => Operation::ReadResponseFirst,
            99 => Operation::ReadResponseLast,
            _ => Operation::ReadResponseMiddle,
        };
        respond(&mut host, kind, n);
        let next = psns(&host.drain(0));
        // One more READ whenever fewer than 256 packets are outstanding.
        let expected: &[u32] = match n {
            44 => &[300],
            144 => &[400],
            244 => &[500],
            344 => &[600],
            _ => &[],
        };
        assert_eq!(next, expected, "after response {n}");
    }
    assert_eq!(host.statuses(), [Status::Success; 6]);
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
    while now + wait < end {
        assert_eq!(host.requester.next_timeout(), Some(now + wait));
        now += wait;
        wait *= 4;
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

/// The consumer's timer expires after its value, then after twice, then after four times the value.
#[test]
fn f_03_the_timer_backs_off() {
    let mut host = host();
    host.requester.set_retry_count(4);
    post(&mut host, SendOp::Write, 1);
    let mut now = 0;
    for factor in [1, 2, 4, 4] {
        assert_eq!(psns(&host.drain(now)), [0]);
        assert_eq!(host.requester.next_timeout(), Some(now + factor * TIMEOUT));
        now += factor * TIMEOUT;
        expire(&mut host, now);
    }
    assert_eq!(psns(&host.drain(now)), [0]);
    // Progress starts again with the first value.
    post(&mut host, SendOp::Write, 1);
    host.drain(now);
    ack_at(&mut host, now, 0, ACK);
    let next = host.requester.next_timeout().unwrap();
    assert!(next <= now + TIMEOUT);
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
    ack_at(&mut host, 510_000, 2, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(510_000)), [2, 3, 4]);
    for n in 2..5 {
        let _ = host.take(610_000, &response(only, n, 1), &[n as u8]);
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

fn respond(host: &mut Host, operation: Operation, n: u32) {
    let _ = host.take(0, &response(operation, n, 1024), &[n as u8; 1024]);
}

/// F-12: the first missing response is asked for at once, and once. Responses beyond it are kept
/// and need not be repeated.
#[test]
fn f_12_responses_beyond_a_gap_are_kept() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = reading(5);
    respond(&mut host, F, 0);
    respond(&mut host, M, 2);
    let again = host.drain(0);
    assert_eq!(psns(&again), [1]);
    let Ext::Reth(reth) = again[0].0.ext else {
        panic!()
    };
    assert_eq!((reth.va, reth.len), (BASE + 1024, 4 * MTU));
    respond(&mut host, M, 3);
    respond(&mut host, L, 4);
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
/// READ of its own (C-07). That answer does not count as a late one, and the next repair does not
/// wait.
#[test]
fn c_07_answers_that_go_on() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    for anew in [false, true] {
        let mut host = in_flight(0);
        for _ in 0..3 {
            post(&mut host, SendOp::Read, 3 * MTU);
        }
        host.drain(200_000);
        let mut answer = |now, operation, n| {
            let _ = host.take(now, &response(operation, n, 1024), &[n as u8; 1024]);
            psns(&host.drain(now))
        };
        assert_eq!(answer(300_000, F, 1), []);
        assert_eq!(answer(300_000, L, 3), [2]);
        assert_eq!(answer(400_000, if anew { F } else { M }, 2), []);
        assert_eq!(answer(500_000, F, 4), []);
        assert_eq!(answer(500_000, L, 6), [5]);
        // From a peer that begins with FIRST otherwise, this is a late response.
        assert_eq!(answer(600_000, M, 5), []);
        assert_eq!(answer(700_000, F, 7), []);
        let asked = answer(700_000, L, 9);
        assert_eq!(asked, if anew { vec![] } else { vec![8] });
        if anew {
            expire(&mut host, 850_000);
            assert_eq!(psns(&host.drain(850_000)), [8]);
        }
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
    assert_eq!(asked(&[(F, 0), (M, 5), (M, 7)]), [1]);
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
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseOnly as O};
    for (local, asked) in [
        (0, vec![0, 2]),
        (63, vec![0, 2]),
        (64, vec![0]),
        (100, vec![0]),
    ] {
        let mut host = buffering_host();
        post(&mut host, SendOp::Read, 2 * MTU);
        for _ in 0..local {
            post(&mut host, SendOp::RegMr, 0);
        }
        post(&mut host, SendOp::Read, 2 * MTU);
        post(&mut host, SendOp::Read, MTU);
        host.drain(0);
        for (operation, n) in [(L, 1), (O, 4)] {
            respond(&mut host, operation, n);
        }
        assert_eq!(psns(&host.drain(0)), asked, "{local} local operations");
        respond(&mut host, F, 0);
        assert_eq!(host.statuses().len(), local + 1);
        if asked.len() == 1 {
            let next = host.requester.next_timeout().unwrap();
            expire(&mut host, next);
            assert_eq!(psns(&host.drain(next)), [2]);
        }
        respond(&mut host, F, 2);
        respond(&mut host, L, 3);
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
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L};
    let mut host = buffering_host();
    for _ in 0..2 {
        post(&mut host, SendOp::Read, 2 * MTU);
    }
    host.drain(0);
    for (operation, n) in [(L, 1), (L, 3)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [0, 2]);
    respond(&mut host, F, 0);
    assert_eq!(host.statuses(), [Status::Success]);
    assert!(host.drain(0).is_empty());
    let next = host.requester.next_timeout().unwrap();
    expire(&mut host, next);
    assert_eq!(psns(&host.drain(next)), [2]);
    let _ = host.take(next, &response(F, 2, 1024), &[2; 1024]);
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
    assert_eq!(psns(&host.drain(0)), [0]);
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
    assert_eq!(psns(&host.drain(0)), [0]);
}

/// F-06: gaps without progress use up the retries, too.
#[test]
fn f_06_gaps_use_up_retries() {
    let mut host = reading(5);
    host.requester.set_retry_count(0);
    respond(&mut host, Operation::ReadResponseMiddle, 2);
    assert_eq!(host.statuses()[0], Status::RetryExc);
    assert!(host.reorder_buffers[1].is_empty());
}
