// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Probes for lost tails, and the round trips that time them.

use super::*;

/// The shortest probe timeout, in nanoseconds.
const MIN_PTO: u64 = requester::MIN_PTO.ns();

/// If the path has become shorter, the responses to probes come earlier than a round trip. After
/// four of them the rest of the flight counts as lost, and does not cost a probe for each packet.
#[test]
fn probes_on_a_shorter_path() {
    let mut host = in_flight(10);
    host.requester.set_timeout(14);
    let mut now = 0;
    for psn in 1..=4 {
        assert!(host.drain(now).is_empty());
        now = host.requester.next_timeout().map(Time::ns).unwrap();
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [psn]);
        now += 20_000;
        ack_at(&mut host, now, psn, ACK);
    }
    assert_eq!(psns(&host.drain(now)), [5, 6, 7, 8, 9, 10]);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A lost tail: the oldest packet is sent again after the expected response time, but no earlier
/// than the floor, and then less and less often. Only the consumer's timer uses up retries.
#[test]
fn a_probe_finds_a_lost_tail() {
    let mut host = in_flight(3);
    let mut now = 200_000;
    assert_eq!(
        host.requester.next_timeout().map(Time::ns),
        Some(now + MIN_PTO)
    );
    now += MIN_PTO;
    expire(&mut host, now - 1);
    assert!(host.drain(now - 1).is_empty());
    expire(&mut host, now);
    let sent = host.drain(now);
    assert_eq!(psns(&sent), [1]);
    assert!(sent[0].0.bth.ackreq);
    // For its repetition the floor is half of that.
    now += 2 * MIN_PTO / 2;
    assert_eq!(host.requester.next_timeout().map(Time::ns), Some(now));
    expire(&mut host, now);
    assert_eq!(psns(&host.drain(now)), [1]);
    // The consumer's timer expires before the next probe.
    assert_eq!(
        host.requester.next_timeout().map(Time::ns),
        Some(200_000 + TIMEOUT)
    );
    assert_eq!(host.requester.counters.probes, 2);
    assert_eq!(host.requester.counters.timeouts, 0);
    // The response shows that the whole tail is lost, unless it comes too early to be one.
    now = 200_000 + MIN_PTO;
    for (after, again) in [(40_000, &[][..]), (100_000, &[2, 3])] {
        let mut host = in_flight(3);
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [1]);
        ack_at(&mut host, now + after, 1, ACK);
        assert_eq!(psns(&host.drain(now + after)), again);
    }
}

/// If the response to a READ was late and not lost, it comes a second time after a probe. So the
/// window is not reduced before the response to a later request (RFC 8985, 7.4).
#[test]
fn a_probed_read_that_was_only_late() {
    use Operation::ReadResponseOnly as Only;
    for (copies, reductions) in [(1, 1), (2, 0)] {
        let mut host = in_flight(0);
        post(&mut host, Op::Read, 1);
        assert_eq!(psns(&host.drain(200_000)), [1]);
        expire(&mut host, 200_000 + MIN_PTO);
        assert_eq!(psns(&host.drain(200_000 + MIN_PTO)), [1]);
        // Five round trips: the queues on the path seem full.
        let now = 700_000 + MIN_PTO;
        for _ in 0..copies {
            let _ = host.take(now, &response(Only, 1, 1), &[1]);
        }
        assert_eq!(host.requester.counters.window_reductions, 0);
        post(&mut host, Op::Read, 1);
        assert_eq!(psns(&host.drain(now)), [2]);
        let _ = host.take(now + 100_000, &response(Only, 2, 1), &[2]);
        assert_eq!(host.statuses(), [Status::Success; 3]);
        assert_eq!(host.requester.counters.window_reductions, reductions);
    }
}

/// A response soon after a probe is to the original packet and says nothing about the minimum round
/// trip: a NAK is still recognized as too early for the retransmission.
#[test]
fn a_late_response_does_not_shorten_the_round_trip() {
    let mut host = in_flight(3);
    let mut now = 200_000 + MIN_PTO;
    expire(&mut host, now);
    assert_eq!(psns(&host.drain(now)), [1]);
    ack_at(&mut host, now + 1_000, 3, ACK);
    now += 100_000;
    for _ in 0..3 {
        post(&mut host, Op::Write, 1);
    }
    host.drain(now);
    now += 100_000;
    ack_at(&mut host, now, 5, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [5]);
    ack_at(&mut host, now + 20_000, 5, SEQUENCE_ERROR);
    assert!(host.drain(now + 20_000).is_empty());
    assert_eq!(host.requester.counters.sequence_naks, 1);
}

/// No round trip is measured in the first flight, but a NAK gives an upper bound. If the
/// retransmission is lost again, it does not wait for the consumer's timer.
#[test]
fn a_loss_in_the_first_flight_is_probed_for() {
    let mut host = buffering_host();
    host.requester.set_timeout(14);
    for at in [100_000, 150_000, 200_000] {
        post(&mut host, Op::Write, 1);
        assert_eq!(host.drain(at).len(), 1);
    }
    ack_at(&mut host, 1_100_000, 0, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(1_100_000)), [0]);
    // A round trip of 1 ms plus four times its deviation, which is assumed to be half of that.
    assert_eq!(
        host.requester.next_timeout().map(Time::ns),
        Some(1_100_000 + 3_000_000)
    );
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
        post(&mut host, Op::Write, 1);
        host.drain(0);
        host
    };
    let mut host = sent(14, false);
    for (at, probes) in [(20_000_000, 1), (60_000_000, 2), (67_108_864, 2)] {
        assert_eq!(host.requester.next_timeout().map(Time::ns), Some(at));
        expire(&mut host, at);
        let again = host.drain(at);
        assert_eq!(psns(&again), [0]);
        assert!(again[0].0.bth.ackreq);
        assert_eq!(host.requester.counters.probes, probes);
    }
    assert_eq!(host.requester.counters.timeouts, 1);
    let timeout = requester::ack_timeout(14).map(Span::ns);
    assert_eq!(
        sent(14, true).requester.next_timeout().map(Time::ns),
        timeout
    );
    assert_eq!(
        sent(8, false).requester.next_timeout().map(Time::ns),
        Some(TIMEOUT)
    );
}

/// While no round trip is known, one packet asks for an acknowledgement to measure it.
#[test]
fn the_first_packet_measures_the_round_trip() {
    let mut host = buffering_host();
    let asks = |host: &mut Host, now| -> Vec<bool> {
        post(host, Op::Write, 4 * MTU);
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
            post(&mut host, Op::Write, 1);
            host.drain(now);
            ack_at(&mut host, now + 1_000_000, n, ACK);
            now += 1_000_000_000;
        }
        let lost = seconds as u32 + 1;
        for _ in 0..3 {
            post(&mut host, Op::Write, 1);
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

/// Probes back off and use up no retries.
#[test]
fn probes_back_off() {
    let mut host = in_flight(1);
    host.requester.set_timeout(14);
    host.requester.set_retry_count(0);
    post(&mut host, Op::Write, 1);
    // Progress restarts the timers.
    ack_at(&mut host, 300_000, 1, ACK);
    host.drain(300_000);
    let (mut now, mut wait) = (300_000, MIN_PTO);
    let end = 300_000 + requester::ack_timeout(14).unwrap().ns();
    for probes in 1.. {
        if now + wait >= end {
            break;
        }
        assert_eq!(
            host.requester.next_timeout().map(Time::ns),
            Some(now + wait)
        );
        now += wait;
        // From the first repetition on, the floor is half as long.
        wait = (MIN_PTO / 2) << probes;
        expire(&mut host, now);
        assert_eq!(psns(&host.drain(now)), [2]);
    }
    assert!(host.requester.counters.probes >= 3);
    assert!(!host.error);
    assert_eq!(host.requester.next_timeout().map(Time::ns), Some(end));
    expire(&mut host, end);
    assert_eq!(host.statuses()[2], Status::RetryExc);
}

/// F-02: without the consumer's timer there is no probe either.
#[test]
fn f_02_no_probe_without_a_timer() {
    let mut host = in_flight(0);
    host.requester.set_timeout(0);
    post(&mut host, Op::Write, 1);
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
            post(&mut host, Op::Write, 1);
        }
        host.drain(0);
        let mut now = 0;
        for _ in 0..4 {
            assert_eq!(
                host.requester.next_timeout().map(Time::ns),
                Some(now + TIMEOUT)
            );
            now += TIMEOUT;
            expire(&mut host, now);
            assert_eq!(psns(&host.drain(now)), [0, 1]);
        }
        ack_at(&mut host, now, 0, ACK);
        for _ in 0..4 {
            expire(&mut host, now + TIMEOUT - 1);
            host.drain(now + TIMEOUT - 1);
            assert_eq!(
                host.requester.next_timeout().map(Time::ns),
                Some(now + TIMEOUT)
            );
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
