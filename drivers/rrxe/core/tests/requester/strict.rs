// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! [`RecoveryMode::Strict`]: go-back-N, and the timers of the specification.

use super::*;

fn strict_host() -> Host {
    buffering_host().strict()
}

/// Returns a host that has measured a round trip of 50 us, with this many more WRITEs in flight
/// from PSN 1 on, and the current time.
fn measured(writes: u32) -> (Host, u64) {
    let mut host = strict_host();
    post(&mut host, Op::Write, 1);
    host.drain(0);
    let _ = host.take(50_000, &acknowledge(psn(0), ACK), &[]);
    for _ in 0..writes {
        post(&mut host, Op::Write, 1);
    }
    assert_eq!(host.drain(100_000).len() as u32, writes);
    (host, 100_000)
}

/// F-03, LT05, LT34, LT35: even with a known round trip, nothing is sent again before the timeout,
/// and only as often as the retry count permits.
#[test]
fn f_03_no_probes() {
    for retries in [0, 1, 3, 7u8] {
        let (mut host, mut now) = measured(1);
        host.requester.set_retry_count(retries);
        for n in 0..=retries {
            now += TIMEOUT;
            assert_eq!(host.requester.next_timeout().map(Time::ns), Some(now));
            expire(&mut host, now);
            let again: &[u32] = if n < retries { &[1] } else { &[] };
            assert_eq!(psns(&host.drain(now)), again);
        }
        assert_eq!(host.statuses(), [Status::Success, Status::RetryExc]);
        let counters = host.requester.counters;
        assert_eq!(counters.probes, 0);
        assert_eq!(counters.timeouts, u32::from(retries) + 1);
    }
}

/// F-07, LT02: a NAK causes the retransmission of everything from its PSN on, at once, whatever the
/// responses to the first transmission say.
#[test]
fn f_07_nak_goes_back() {
    let (mut host, now) = measured(6);
    let _ = host.take(now, &acknowledge(psn(3), SEQUENCE_ERROR), &[]);
    assert_eq!(psns(&host.drain(now)), [3, 4, 5, 6]);
    // A response beyond the lost packet shows that the peer kept packets: acknowledged packets are
    // not sent again.
    let _ = host.take(now, &acknowledge(psn(4), ACK), &[]);
    let _ = host.take(now, &acknowledge(psn(5), SEQUENCE_ERROR), &[]);
    assert_eq!(psns(&host.drain(now)), [5, 6]);
    assert_eq!(host.requester.counters.sequence_naks, 2);
}

/// LT08, LT22: a lost retransmission waits for the timer.
#[test]
fn f_07_lost_retransmission() {
    let (mut host, now) = measured(3);
    let _ = host.take(now, &acknowledge(psn(1), SEQUENCE_ERROR), &[]);
    assert_eq!(psns(&host.drain(now)), [1, 2, 3]);
    let deadline = now + TIMEOUT;
    assert_eq!(host.requester.next_timeout().map(Time::ns), Some(deadline));
    expire(&mut host, deadline);
    assert_eq!(psns(&host.drain(deadline)), [1, 2, 3]);
}

/// F-11, F-12: after a gap in READ responses the requester asks for the rest again, with everything
/// after it, and keeps no response beyond the gap.
#[test]
fn f_12_gap_in_responses() {
    let mut host = strict_host();
    post(&mut host, Op::Read, 4 * MTU);
    post(&mut host, Op::Write, 1);
    assert_eq!(psns(&host.drain(0)), [0, 4]);
    let first = response(Operation::ReadResponseFirst, 0, 1024);
    let _ = host.take(0, &first, &[0; 1024]);
    let later = response(Operation::ReadResponseMiddle, 2, 1024);
    let outcome = host.take(0, &later, &[0; 1024]);
    assert!(!outcome.buffer && outcome.transmit);
    assert_eq!(psns(&host.drain(0)), [1, 4]);
    assert_eq!(host.requester.counters.implied_naks, 1);
}

/// The mode belongs to the queue pair and survives Reset.
#[test]
fn reset_keeps_the_mode() {
    let mut host = strict_host();
    host.requester.reset();
    host.requester.mtu = rrxe_core::Mtu::from_bytes(MTU).unwrap();
    host.requester.set_psn(psn(0).get());
    host.requester.dest_qpn = 101;
    host.requester.set_retry_count(7);
    host.requester.start();
    for _ in 0..4 {
        post(&mut host, Op::Write, 1);
    }
    host.drain(0);
    ack(&mut host, 1, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(0)), [1, 2, 3]);
}

/// Two strict hosts over a link that drops, duplicates, delays and corrupts packets: all data
/// arrives in its place.
#[test]
fn strict_ends_on_a_bad_link() {
    for seed in 0..20 {
        let mut pair = Pair::new(Service::Rc, MTU, seed);
        pair.hosts = pair.hosts.map(Host::strict);
        pair.link.loss = 3;
        pair.link.duplication = 3;
        pair.link.corruption = 1;
        pair.link.jitter = 20_000;
        for n in 0..20u8 {
            pair.hosts[1].post_recv(n.into(), 5 * MTU as usize);
            let request = Request {
                op: Op::Send,
                length: 5 * MTU,
                ..Default::default()
            };
            let data = (0..5 * MTU).map(|at| n ^ at as u8).collect();
            pair.hosts[0].post(request, data).unwrap();
        }
        pair.run();
        assert_eq!(pair.hosts[0].statuses(), [Status::Success; 20]);
        for (n, done) in pair.hosts[1].driver.received.iter().enumerate() {
            let right = (0..5 * MTU).map(|at| n as u8 ^ at as u8);
            assert!(done.data.iter().copied().eq(right));
        }
        assert_eq!(pair.hosts[0].requester.counters.probes, 0);
    }
}
