// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets in the queues of the requester's own host.

use super::*;

/// Lets the host's timer expire. `waiting`: packets are in a queue of the host.
fn expire_next(host: &mut Host, waiting: bool) {
    let now = host.requester.next_timeout().map(Time::ns).unwrap();
    if waiting {
        host.requester.restart_timers(Time::from_ns(now));
    }
    let _ = host.timeout(now);
    host.drain(now);
}

/// Returns a host whose packet has waited locally for as long as the requester allows.
fn impatient_host() -> Host {
    let mut host = host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    for _ in 0..100 {
        expire_next(&mut host, true);
    }
    host
}

/// The acknowledge timer restarts while packets wait in a queue of this host: nothing is sent
/// again, and no retry is used up.
#[test]
fn packets_that_wait_here_use_up_no_retry() {
    let mut host = host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0]);
    for _ in 0..10 {
        expire_next(&mut host, true);
    }
    assert_eq!(host.requester.counters.timeouts, 0);
    assert_eq!(host.requester.counters.retransmitted, 0);
    expire_next(&mut host, false);
    assert_eq!(host.requester.counters.retransmitted, 1);
    expire_next(&mut host, false);
    assert_eq!(host.statuses(), [Status::RetryExc]);
}

/// A packet that never leaves this host is an error in the end.
#[test]
fn uncounted_retries_are_bounded() {
    let mut host = impatient_host();
    assert_eq!(host.requester.counters.timeouts, 0);
    expire_next(&mut host, true);
    assert_eq!(host.requester.counters.timeouts, 1);
    expire_next(&mut host, true);
    assert_eq!(host.statuses(), [Status::RetryExc]);
}

/// Progress resets the limit of local waits.
#[test]
fn progress_restores_uncounted_retries() {
    let mut host = impatient_host();
    ack(&mut host, 0, ACK);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    expire_next(&mut host, true);
    assert_eq!(host.requester.counters.timeouts, 0);
}

/// A packet dropped by this host is sent again as often as necessary. The next one has all its
/// retries.
#[test]
fn packets_dropped_here_use_up_no_retry() {
    let mut host = host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0]);
    for _ in 0..10 {
        host.requester.dropped_locally();
        expire_next(&mut host, false);
    }
    assert_eq!(host.requester.counters.retransmitted, 10);
    ack(&mut host, 0, ACK);
    assert_eq!(host.statuses(), [Status::Success]);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    expire_next(&mut host, false);
    expire_next(&mut host, false);
    assert_eq!(host.statuses(), [Status::Success, Status::RetryExc]);
}

/// NAKs for packets dropped by this host use up no retry either.
#[test]
fn naks_for_packets_dropped_here_use_up_no_retry() {
    let mut host = host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    host.requester.dropped_locally();
    for _ in 0..5 {
        host.drain(0);
        host.requester.dropped_locally();
        ack(&mut host, 0, SEQUENCE_ERROR);
        assert!(!host.error);
    }
}

/// A timer that this host handles more than half a timeout too late uses up no retry: the response
/// may have arrived meanwhile, too. The timer starts again.
#[test]
fn a_late_timer_uses_up_no_retry() {
    for mut host in [host(), host().strict()] {
        host.requester.set_retry_count(1);
        post(&mut host, Op::Send, 1);
        assert_eq!(psns(&host.drain(0)), [0]);
        let mut now = TIMEOUT + TIMEOUT / 2 + 1;
        for _ in 0..3 {
            expire(&mut host, now);
            assert_eq!(host.requester.counters.timeouts, 0);
            assert!(host.drain(now).is_empty());
            assert_eq!(
                host.requester.next_timeout().map(Time::ns),
                Some(now + TIMEOUT)
            );
            now += 10 * TIMEOUT;
        }
        // The last time, just in time.
        now -= 9 * TIMEOUT;
        for (n, again) in [(1, &[0][..]), (2, &[])] {
            now += TIMEOUT / 2;
            expire(&mut host, now);
            assert_eq!(host.requester.counters.timeouts, n);
            assert_eq!(psns(&host.drain(now)), again);
            now += TIMEOUT;
        }
        assert_eq!(host.statuses(), [Status::RetryExc]);
    }
}

/// A host that is always late notices in the end that the peer does not respond.
#[test]
fn late_timers_are_bounded() {
    let mut host = host();
    host.requester.set_retry_count(1);
    post(&mut host, Op::Send, 1);
    host.drain(0);
    let mut now = 0;
    for timeouts in [vec![0; 100], vec![1, 2]].concat() {
        now += 2 * TIMEOUT;
        expire(&mut host, now);
        assert_eq!(host.requester.counters.timeouts, timeouts);
        host.drain(now);
    }
    assert_eq!(host.statuses(), [Status::RetryExc]);
}
