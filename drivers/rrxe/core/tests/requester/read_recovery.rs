// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery of READs, atomics and their responses.

use super::recovery::peer_drops;
use super::*;

/// A NAK beyond a READ whose response is missing is handled when that has arrived: if nothing
/// else has acknowledged the packet until then, it is retransmitted. (The NAK is not buffered,
/// because it has the PSN of another response.)
#[test]
fn a_nak_beyond_an_outstanding_read() {
    for (acknowledged, again) in [(false, &[2][..]), (true, &[])] {
        let mut host = in_flight(0);
        post(&mut host, Op::Read, 1);
        for _ in 0..3 {
            post(&mut host, Op::Write, 1);
        }
        host.drain(200_000);
        ack_at(&mut host, 300_000, 2, SEQUENCE_ERROR);
        assert!(host.reorder_buffers[1].is_empty());
        assert!(host.drain(300_000).is_empty());
        let packet = response(Operation::ReadResponseOnly, 1, 1);
        let _ = host.take(350_000, &packet, &[1]);
        assert_eq!(host.statuses(), [Status::Success; 2]);
        // The missing request may have arrived, because the peer keeps those beyond it.
        assert!(host.drain(350_000).is_empty());
        if acknowledged {
            ack_at(&mut host, 449_999, 4, ACK);
        } else {
            assert_eq!(host.requester.next_timeout().map(Time::ns), Some(450_000));
        }
        expire(&mut host, 450_000);
        assert_eq!(psns(&host.drain(450_000)), again);
        assert_eq!(host.requester.counters.timeouts, 0);
    }
}

/// If the peer drops out-of-order packets, everything after the READ is retransmitted at once.
#[test]
fn a_nak_of_a_peer_that_drops_beyond_an_outstanding_read() {
    let mut host = peer_drops();
    ack_at(&mut host, 500_000, 16, ACK);
    post(&mut host, Op::Read, 1);
    for _ in 0..3 {
        post(&mut host, Op::Write, 1);
    }
    assert_eq!(psns(&host.drain(500_000)), [17, 18, 19, 20]);
    ack_at(&mut host, 600_000, 18, SEQUENCE_ERROR);
    assert!(host.drain(600_000).is_empty());
    let packet = response(Operation::ReadResponseOnly, 17, 1);
    let _ = host.take(610_000, &packet, &[1]);
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

/// After the response to a READ, the next one is asked for as a test of whether the peer has kept
/// it. A NAK says that it has not: everything is asked for again at once, not one READ at a time.
#[test]
fn a_peer_that_drops_reads() {
    let mut host = in_flight(0);
    for _ in 0..4 {
        post(&mut host, Op::Read, 1);
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
    post(&mut host, Op::Read, packets * MTU);
    post(&mut host, Op::Read, 2 * MTU);
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
    // The rest of the second response contains nothing new.
    respond(&mut host, M, 2);
    respond(&mut host, L, 4);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.counters.retransmitted, 1);
}

/// Some peers (rdma_rxe) respond to a request for the middle of a READ with MIDDLE and LAST, not as
/// a READ of its own (C-07). That response does not count as a late one, which would raise the
/// tolerance of reordering.
#[test]
fn c_07_responses_that_continue() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    for anew in [false, true] {
        let mut host = in_flight(0);
        for _ in 0..3 {
            post(&mut host, Op::Read, 3 * MTU);
        }
        host.drain(200_000);
        let mut now = 300_000;
        // The responses in the middle are missing.
        let responses = [(1, if anew { F } else { M }), (4, M)];
        for (first, again) in responses {
            respond_at(&mut host, now, F, first);
            respond_at(&mut host, now, L, first + 2);
            assert!(host.drain(now).is_empty());
            now += GAP_DELAY;
            assert_eq!(host.requester.next_timeout().map(Time::ns), Some(now));
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
        assert_eq!(
            host.requester.next_timeout().map(Time::ns),
            Some(now + delay)
        );
        expire(&mut host, now + delay);
        assert_eq!(psns(&host.drain(now + delay)), [8]);
    }
}

/// Returns a host whose peer has responded to a READ repeated from its second packet on: with
/// FIRST, as it should (C-07), or with MIDDLE. The next PSN is 3.
fn with_known_peer(restarts: bool) -> Host {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = buffering_host();
    post(&mut host, Op::Read, 3 * MTU);
    host.drain(0);
    respond(&mut host, F, 0);
    respond(&mut host, L, 2);
    expire(&mut host, GAP_DELAY);
    assert_eq!(psns(&host.drain(GAP_DELAY)), [1]);
    respond(&mut host, if restarts { F } else { M }, 1);
    assert_eq!(host.statuses(), [Status::Success]);
    host
}

/// A peer that continues with MIDDLE takes a READ repeated from a later part on for a confirmation
/// that the earlier part has arrived (rdma_rxe). Behind a lost packet, the requester asks it only
/// for whole READs, because the driver may drop buffered responses.
#[test]
fn f_12_parts_of_reads_from_peers_that_restart() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    // READs of 2, 2 and 5 packets.
    let asked = |restarts, responses: &[(Operation, u32)]| {
        let mut host = with_known_peer(restarts);
        for packets in [2, 2, 5] {
            post(&mut host, Op::Read, packets * MTU);
        }
        host.drain(0);
        for &(operation, n) in responses {
            respond(&mut host, operation, 3 + n);
        }
        let asked = psns(&host.drain(0));
        asked.iter().map(|psn| psn - 3).collect::<Vec<_>>()
    };
    // The start of the third READ is missing, and a later part.
    let responses = [(L, 1), (F, 2), (L, 3), (M, 5), (M, 7)];
    assert_eq!(asked(true, &responses), [0, 4]);
    assert_eq!(asked(false, &responses), [0, 4]);
    // The start of the third READ is missing together with the lost packet, and a later part.
    let responses = [(F, 0), (M, 5), (M, 7), (L, 8)];
    assert_eq!(asked(true, &responses), [1, 6]);
    assert_eq!(asked(false, &responses), [1]);
    // The end of the second READ is missing, and two parts of the third.
    let responses = [(L, 1), (F, 2), (M, 5), (M, 7)];
    assert_eq!(asked(true, &responses), [0, 3, 6]);
    assert_eq!(asked(false, &responses), [0]);
}

/// Two gaps in one READ: the second is part of the retransmission. A gap in the next READ is asked
/// for at the same time, and once.
#[test]
fn f_12_several_gaps() {
    use Operation::{ReadResponseFirst as F, ReadResponseLast as L, ReadResponseMiddle as M};
    let mut host = with_known_peer(true);
    for packets in [5, 2] {
        post(&mut host, Op::Read, packets * MTU);
    }
    assert_eq!(psns(&host.drain(0)), [3, 8]);
    for (operation, n) in [(F, 3), (M, 5), (L, 7), (L, 9)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [4, 8]);
    respond(&mut host, F, 4);
    assert!(host.drain(0).is_empty());
    respond(&mut host, M, 5);
    respond(&mut host, M, 6);
    assert_eq!(host.statuses(), [Status::Success; 2]);
    assert!(host.drain(0).is_empty());
    respond(&mut host, F, 8);
    assert_eq!(host.statuses(), [Status::Success; 3]);
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
        post(&mut host, Op::Read, 4 * MTU);
        for _ in 0..local {
            post(&mut host, Op::RegMr, 0);
        }
        post(&mut host, Op::Read, 2 * MTU);
        post(&mut host, Op::Read, MTU);
        host.drain(0);
        for (operation, n) in [(M, 1), (M, 2), (L, 3), (O, 6)] {
            respond(&mut host, operation, n);
        }
        assert_eq!(psns(&host.drain(0)), asked, "{local} local operations");
        respond(&mut host, F, 0);
        assert_eq!(host.statuses().len(), local + 1);
        if asked.len() == 1 {
            let next = host.requester.next_timeout().map(Time::ns).unwrap();
            expire(&mut host, next);
            assert_eq!(psns(&host.drain(next)), [4]);
        }
        respond(&mut host, F, 4);
        respond(&mut host, L, 5);
        assert_eq!(host.statuses(), vec![Status::Success; local + 3]);
    }
}

/// Requests that responses beyond them acknowledge leave no gap: only READs have responses of their
/// own.
#[test]
fn f_12_no_gap_without_responses() {
    use Operation::{ReadResponseLast as L, ReadResponseOnly as O};
    let mut host = buffering_host();
    for (op, packets) in [(Op::Read, 2), (Op::Read, 1), (Op::Write, 2), (Op::Read, 1)] {
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
        post(&mut host, Op::Read, packets * MTU);
    }
    host.drain(0);
    for (operation, n) in [(M, 1), (M, 2), (L, 3), (L, 5)] {
        respond(&mut host, operation, n);
    }
    assert_eq!(psns(&host.drain(0)), [0, 4]);
    respond(&mut host, F, 0);
    assert_eq!(host.statuses(), [Status::Success]);
    assert!(host.drain(0).is_empty());
    let mut next = host.requester.next_timeout().map(Time::ns).unwrap();
    while host.requester.counters.probes == 0 {
        expire(&mut host, next);
        next = host.requester.next_timeout().map(Time::ns).unwrap_or(next);
    }
    assert_eq!(psns(&host.drain(next)), [4]);
    respond_at(&mut host, next, F, 4);
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// F-11, F-12: responses beyond a READ or atomic without one complete their requests in their turn,
/// and the requests are not sent again.
#[test]
fn f_11_responses_beyond_a_gap_are_kept() {
    let mut host = buffering_host();
    post(&mut host, Op::FetchAdd, 8);
    post(&mut host, Op::Write, 1);
    post(&mut host, Op::FetchAdd, 8);
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

/// An acknowledgement within a READ without a response is not kept, because its turn never comes.
#[test]
fn an_ack_for_a_read_is_not_kept() {
    let mut host = buffering_host();
    post(&mut host, Op::Read, MTU);
    host.drain(0);
    ack(&mut host, 0, ACK);
    assert!(host.reorder_buffers[1].is_empty());
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.next_timeout().map(Time::ns), Some(GAP_DELAY));
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
