// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Timers and retransmission.

use super::*;

/// F-02: without a timeout no timer ever fires.
#[test]
fn f_02_no_timer() {
    let mut host = host();
    host.requester.set_timeout(0);
    post(&mut host, Op::Send, 1);
    assert_eq!(host.drain(0).len(), 1);
    assert_eq!(host.requester.next_timeout(), None);
}

/// F-02: a timeout that is set while packets are in flight, in both recovery modes, starts the
/// timers of those, but only once.
#[test]
fn f_02_a_timer_that_is_enabled_later() {
    for mut host in [host(), buffering_host(), host().strict()] {
        host.requester.set_timeout(0);
        host.requester.start_timers(Time::from_ns(0));
        assert_eq!(host.requester.next_timeout(), None);
        post(&mut host, Op::Write, 1);
        assert_eq!(host.drain(0).len(), 1);
        let now = 50_000_000;
        for at in [now, now + 1_000_000] {
            host.requester.set_timeout(8);
            host.requester.start_timers(Time::from_ns(at));
            let next = host.requester.next_timeout().map(Time::ns);
            assert_eq!(next, Some(now + TIMEOUT));
        }
        expire(&mut host, now + TIMEOUT);
        assert_eq!(psns(&host.drain(now + TIMEOUT)), [0]);
        assert_eq!(host.requester.counters.timeouts, 1);
    }
}

/// F-03, F-04: n retries (up to seven), each after one timeout, then RETRY_EXC, in both recovery
/// modes.
#[test]
fn f_03_retries_are_counted() {
    for (retries, strict) in [0, 1, 3, 7]
        .into_iter()
        .flat_map(|n| [(n, false), (n, true)])
    {
        let mut pair = Pair::new(Service::Rc, MTU, 1);
        if strict {
            pair.hosts = pair.hosts.map(Host::strict);
        }
        pair.filter = Some(Box::new(|_, _| true));
        pair.hosts[0].requester.set_retry_count(retries);
        post(&mut pair.hosts[0], Op::Send, 1);
        post(&mut pair.hosts[0], Op::Send, 1);
        let start = pair.now;
        pair.run();
        let times = pair.sent_by(0).iter().filter(|p| p.psn() == psn(0)).count();
        assert_eq!(times, 1 + usize::from(retries));
        assert_eq!(pair.now - start, (u64::from(retries) + 1) * TIMEOUT);
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
    post(&mut host, Op::Send, 1);
    for _ in 0..3 {
        assert_eq!(psns(&host.drain(0)), [0]);
        ack(&mut host, 0, SEQUENCE_ERROR);
        assert!(!host.error);
        // A repetition of the NAK before the retransmission is ignored.
        ack(&mut host, 0, SEQUENCE_ERROR);
    }
    assert_eq!(psns(&host.drain(0)), [0]);
    ack(&mut host, 0, SEQUENCE_ERROR);
    assert_eq!(host.statuses(), [Status::RetryExc]);
}

/// F-07: a retransmission repeats the packets from the oldest unacknowledged PSN on.
#[test]
fn f_07_retransmission_repeats() {
    let mut host = host();
    post(&mut host, Op::Send, 3 * MTU + 1);
    post(&mut host, Op::Read, 5 * MTU);
    post(&mut host, Op::FetchAdd, 8);
    post(&mut host, Op::WriteImm, 10);
    let sent = host.drain(0);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4, 9, 10]);
    ack(&mut host, 1, ACK);
    expire(&mut host, TIMEOUT);
    let again = host.drain(TIMEOUT);
    assert_eq!(again, sent[2..]);
    assert_eq!(host.requester.counters.retransmitted, 5);
}

/// F-08: a NAK names the first missing packet.
#[test]
fn f_08_a_nak_acknowledges() {
    let mut host = host();
    for _ in 0..4 {
        post(&mut host, Op::Send, 1);
    }
    host.drain(0);
    ack(&mut host, 2, SEQUENCE_ERROR);
    assert_eq!(host.statuses(), [Status::Success; 2]);
    // Whether the other one is missing, too, is not known yet.
    assert_eq!(psns(&host.drain(0)), [2]);
    ack(&mut host, 2, ACK);
    assert_eq!(psns(&host.drain(0)), [3]);
}

/// F-11: an ACK beyond a READ does not complete the work requests after the READ.
#[test]
fn f_11_implied_nak() {
    for (op, length, psns_taken) in [(Op::Read, 3 * MTU, 3), (Op::FetchAdd, 8, 1)] {
        let mut host = host();
        post(&mut host, Op::Send, 1);
        post(&mut host, op, length);
        post(&mut host, Op::Send, 1);
        host.drain(0);
        ack(&mut host, 1 + psns_taken, ACK);
        assert_eq!(host.statuses(), [Status::Success]);
        assert_eq!(psns(&host.drain(0)), [1, 1 + psns_taken]);
        // Only once: repeated ACKs must not use up the retries.
        for _ in 0..20 {
            ack(&mut host, 1 + psns_taken, ACK);
        }
        assert!(host.drain(0).is_empty());
        assert!(!host.error);
    }
}

/// F-12: a gap in READ responses, at a host that does not buffer them.
#[test]
fn f_12_gap_is_asked_for_at_once() {
    let mut host = host();
    post(&mut host, Op::Read, 4 * MTU + 100);
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
    // The rest of the first response is useless, and no reason to ask again.
    let _ = host.take(
        0,
        &response(Operation::ReadResponseMiddle, 3, mtu),
        &[4; 1024],
    );
    let _ = host.take(0, &response(Operation::ReadResponseLast, 4, 100), &[5; 100]);
    assert!(host.drain(0).is_empty());
    // The second response starts in the middle (C-07: with FIRST).
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
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// E-05, E-13: the requester waits at least as long as the RNR NAK says.
#[test]
fn e_05_rnr_wait() {
    for code in 0..32u8 {
        let mut host = host();
        post(&mut host, Op::Send, 1);
        post(&mut host, Op::Send, 1);
        host.drain(0);
        let now = 1_000;
        let _ = host.take(
            now,
            &acknowledge(psn(0), Syndrome::RnrNak { timer: code }),
            &[],
        );
        let deadline = now + wire::rnr_timer(code).ns();
        assert_eq!(host.requester.next_timeout().map(Time::ns), Some(deadline));
        assert!(host.drain(deadline - 1).is_empty());
        // The network may repeat the NAK, which has been handled.
        let _ = host.take(
            now,
            &acknowledge(psn(0), Syndrome::RnrNak { timer: 0 }),
            &[],
        );
        let _ = host.timeout(deadline - 1);
        assert!(host.drain(deadline - 1).is_empty());
        let outcome = host.timeout(deadline);
        assert!(outcome.transmit);
        assert_eq!(psns(&host.drain(deadline)), [0, 1]);
        assert_eq!(host.requester.counters.rnr_naks, 1);
        // Stale: the packet is already acknowledged.
        ack(&mut host, 0, ACK);
        ack(&mut host, 0, Syndrome::RnrNak { timer: 1 });
        assert_eq!(host.requester.counters.rnr_naks, 1);
    }
}

fn rnr_round(host: &mut Host, n: u32) {
    let now = 0;
    let _ = host.take(
        now,
        &acknowledge(psn(n), Syndrome::RnrNak { timer: 1 }),
        &[],
    );
    if let Some(at) = host.requester.next_timeout().map(Time::ns) {
        let _ = host.timeout(at);
    }
    host.drain(now);
}

/// E-07, E-08: RNR retries have their own count; 7 means unlimited.
#[test]
fn e_07_rnr_retries() {
    for retries in 0..=7u8 {
        let mut host = host();
        host.requester.set_retry_count(0);
        host.requester.set_rnr_retry(retries);
        post(&mut host, Op::Send, 1);
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

/// E-05, E-07: endless retries become rare: each wait is at least an eighth of the time for which
/// the peer has not been ready, up to 10 ms. The first waits are as the peer asks, again after
/// progress, and so is one of more than 10 ms.
#[test]
fn e_07_endless_retries_become_rare() {
    const ROUND_TRIP: u64 = 10_000;
    let mut host = host();
    host.requester.set_rnr_retry(7);
    let mut now = 0;
    for message in 0..2 {
        post(&mut host, Op::Send, 1);
        assert_eq!(psns(&host.drain(now)), [message]);
        let since = now + ROUND_TRIP;
        let mut waits = Vec::new();
        while now < since + 1_000_000_000 {
            now += ROUND_TRIP;
            let nak = acknowledge(psn(message), Syndrome::RnrNak { timer: 1 });
            let _ = host.take(now, &nak, &[]);
            let until = host.requester.next_timeout().map(Time::ns).unwrap();
            let longer = ((now - since) / 8).clamp(10_000, 10_000_000);
            assert_eq!(until - now, longer);
            waits.push(longer);
            now = until;
            let _ = host.timeout(now);
            assert_eq!(psns(&host.drain(now)), [message]);
        }
        assert!(waits.starts_with(&[10_000; 5]));
        assert!(waits.len() < 200, "{} retries in a second", waits.len());
        let nak = acknowledge(psn(message), Syndrome::RnrNak { timer: 24 });
        let _ = host.take(now, &nak, &[]);
        now += wire::rnr_timer(24).ns();
        assert_eq!(host.requester.next_timeout().map(Time::ns), Some(now));
        let _ = host.timeout(now);
        assert_eq!(psns(&host.drain(now)), [message]);
        let _ = host.take(now, &acknowledge(psn(message), ACK), &[]);
    }
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// The driver limits the retries of a request whose receiver has not been ready for 80 ms, and only
/// these.
#[test]
fn e_07_the_driver_limits_slow_retries() {
    let mut host = host();
    host.requester.set_rnr_retry(7);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    let nak = acknowledge(psn(0), Syndrome::RnrNak { timer: 1 });
    host.driver.rnr_retry.0 = 1_000_000_000;
    let mut refuse = |now| {
        let _ = host.take(now, &nak, &[]);
        let until = host.requester.next_timeout().map(Time::ns).unwrap();
        let _ = host.timeout(until);
        host.drain(until);
        (until - now, host.driver.rnr_retry.1)
    };
    assert_eq!(refuse(1_000_000), (10_000, 0));
    assert_eq!(refuse(81_000_000), (10_000_000, 0));
    assert_eq!(refuse(100_000_000), (900_000_000, 1));
    // A time in the past does not shorten the longest wait.
    assert_eq!(refuse(2_000_000_000), (10_000_000, 2));
}

/// E-08: a peer that is not ready for a long time and sends Sequence NAKs for the packets after it
/// (B-13 forbids that; rdma_rxe does it) does not use up the retries: its RNR NAKs show that
/// nothing is lost.
#[test]
fn e_08_sequence_naks_behind_rnr_naks() {
    let mut host = host();
    host.requester.set_retry_count(1);
    for _ in 0..3 {
        post(&mut host, Op::Send, 1);
    }
    let mut now = 0;
    host.drain(now);
    for _ in 0..20 {
        let _ = host.take(
            now,
            &acknowledge(psn(0), Syndrome::RnrNak { timer: 1 }),
            &[],
        );
        now = host.requester.next_timeout().map(Time::ns).unwrap();
        let _ = host.timeout(now);
        assert!(!host.drain(now).is_empty());
        now += 1_000_000;
        let _ = host.take(now, &acknowledge(psn(0), SEQUENCE_ERROR), &[]);
        assert!(!host.error);
        host.drain(now);
    }
    // Without RNR NAKs, the Sequence NAKs do.
    for _ in 0..3 {
        now += 1_000_000;
        let _ = host.take(now, &acknowledge(psn(0), SEQUENCE_ERROR), &[]);
        host.drain(now);
    }
    assert_eq!(host.statuses()[0], Status::RetryExc);
}

/// E-09: progress reloads the RNR counter. E-11: for every kind of request.
#[test]
fn e_09_progress_reloads() {
    let mut host = host();
    host.requester.set_rnr_retry(1);
    post(&mut host, Op::Send, 2 * MTU);
    post(&mut host, Op::Read, 1);
    host.drain(0);
    rnr_round(&mut host, 0);
    rnr_round(&mut host, 1);
    rnr_round(&mut host, 2);
    assert!(!host.error);
    assert_eq!(host.statuses(), [Status::Success]);
    rnr_round(&mut host, 2);
    assert!(host.error);
}

/// E-05, F-11: an RNR NAK beyond a READ or atomic without a response does not acknowledge it: the
/// requester asks for the response again, at once unless it buffers responses. The refused request
/// waits as long as the peer has said, from then on.
#[test]
fn e_05_rnr_beyond_an_outstanding_read() {
    let ops = [(Op::FetchAdd, 8, 1), (Op::Read, 3 * MTU, 3)];
    for ((op, len, packets), buffers) in ops.into_iter().flat_map(|op| [(op, true), (op, false)]) {
        let mut host = if buffers { buffering_host() } else { host() };
        post(&mut host, op, len);
        post(&mut host, Op::Send, 1);
        post(&mut host, Op::Send, 1);
        assert_eq!(psns(&host.drain(0)), [0, packets, packets + 1]);
        let nak = acknowledge(psn(packets), Syndrome::RnrNak { timer: 14 });
        let _ = host.take(0, &nak, &[]);
        assert!(host.statuses().is_empty());
        if buffers {
            // The response may only be late.
            assert!(host.drain(0).is_empty());
            assert_eq!(host.requester.next_timeout().map(Time::ns), Some(GAP_DELAY));
            expire(&mut host, GAP_DELAY);
        }
        assert_eq!(host.requester.counters.implied_naks, 1);
        assert_eq!(host.requester.counters.rnr_naks, 0);
        assert_eq!(psns(&host.drain(0)), [0], "the READ or atomic, and no more");
        // Its response does not end the wait.
        let deadline = wire::rnr_timer(14).ns();
        let now = deadline - 10_000;
        if op == Op::Read {
            let operations = [
                Operation::ReadResponseFirst,
                Operation::ReadResponseMiddle,
                Operation::ReadResponseLast,
            ];
            for (n, operation) in operations.into_iter().enumerate() {
                let packet = response(operation, n as u32, MTU as usize);
                let _ = host.take(now, &packet, &[0; MTU as usize]);
            }
        } else {
            let _ = host.take(now, &atomic_ack(0, 7), &[]);
        }
        assert_eq!(host.statuses(), [Status::Success]);
        assert_eq!(host.requester.counters.rnr_naks, u32::from(buffers));
        assert!(host.drain(deadline - 1).is_empty());
        assert_eq!(host.requester.next_timeout().map(Time::ns), Some(deadline));
        let outcome = host.timeout(deadline);
        assert!(outcome.transmit);
        assert_eq!(psns(&host.drain(deadline)), [packets, packets + 1]);
        let _ = host.take(deadline, &acknowledge(psn(packets + 1), ACK), &[]);
        assert_eq!(host.statuses(), [Status::Success; 3]);
    }
}

/// E-05: a timeout of the READ or atomic does not end the wait either.
#[test]
fn e_05_the_acknowledge_timer_does_not_end_the_wait() {
    let mut host = buffering_host();
    post(&mut host, Op::FetchAdd, 8);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    // 655 ms.
    let nak = acknowledge(psn(1), Syndrome::RnrNak { timer: 0 });
    let _ = host.take(0, &nak, &[]);
    while host.requester.counters.timeouts == 0 {
        // The gap in the responses, a probe or the acknowledge timer.
        let expiry = host.requester.next_timeout().map(Time::ns).unwrap();
        assert!(expiry < wire::rnr_timer(0).ns());
        let _ = host.timeout(expiry);
        assert_eq!(psns(&host.drain(expiry)), [0]);
    }
}

/// A NAK that was in flight when the timer expired asks for packets that have been sent again
/// meanwhile: one loss uses up one retry.
#[test]
fn a_nak_that_the_timer_overtook_is_stale() {
    let mut host = buffering_host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    // The round trip: 100 us.
    let _ = host.take(100_000, &acknowledge(psn(0), ACK), &[]);
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Send, 1);
    host.drain(200_000);
    while host.requester.counters.timeouts == 0 {
        let at = host.requester.next_timeout().map(Time::ns).unwrap();
        let _ = host.timeout(at);
    }
    let now = 200_000 + TIMEOUT;
    assert_eq!(psns(&host.drain(now)), [1, 2]);
    let nak = acknowledge(psn(1), SEQUENCE_ERROR);
    let _ = host.take(now + 40_000, &nak, &[]);
    assert!(host.drain(now + 40_000).is_empty());
    assert_eq!(host.statuses(), [Status::Success]);
    // Later, the NAK is about the retransmission, and no retry is left.
    let _ = host.take(now + 90_000, &nak, &[]);
    assert_eq!(host.statuses()[1], Status::RetryExc);
}

/// An acknowledgement overtook an RNR NAK: there is no reason to wait.
#[test]
fn progress_ends_an_rnr_wait() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    ack(&mut host, 0, Syndrome::RnrNak { timer: 1 });
    assert!(host.drain(0).is_empty());
    ack(&mut host, 0, ACK);
    assert_eq!(psns(&host.drain(0)), [1]);
}

/// The timer runs for packets in flight, not for packets that wait for retransmission.
#[test]
fn no_timer_while_nothing_is_in_flight() {
    let mut host = host();
    for _ in 0..3 {
        post(&mut host, Op::Send, 1);
    }
    host.drain(0);
    let outcome = host.take(0, &acknowledge(psn(0), SEQUENCE_ERROR), &[]);
    // The packet must be sent at once, and until then there is nothing to wait for.
    assert!(outcome.transmit);
    assert_eq!(host.requester.next_timeout(), None);
    // Late: the packet had arrived after all.
    ack(&mut host, 0, ACK);
    assert!(host.drain(0).is_empty());
    assert!(host.requester.next_timeout().is_some());
}

/// An ACK within the PSNs of a READ says nothing about the READ.
#[test]
fn an_ack_within_a_read() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    post(&mut host, Op::Read, 3 * MTU);
    host.drain(0);
    ack(&mut host, 2, ACK);
    assert_eq!(host.statuses(), [Status::Success]);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.counters.implied_naks, 0);
}

/// A retransmitted READ counts as one packet of the window, which is small after a timeout.
#[test]
fn window_after_a_retry() {
    let mut host = host();
    post(&mut host, Op::Read, 500 * MTU);
    host.drain(0);
    let deadline = host.requester.next_timeout().map(Time::ns).unwrap();
    let _ = host.timeout(deadline);
    post(&mut host, Op::Write, 1000 * MTU);
    assert_eq!(host.drain(deadline).len(), 16);
}
