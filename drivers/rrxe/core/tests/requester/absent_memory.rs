// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests whose own memory is absent.

use super::*;

/// Makes the memory of a work request absent or present.
fn set_absent(host: &mut Host, wr_id: u64, absent: bool) {
    host.driver.sq[wr_id as usize].fault = absent.then_some(Fault::NotPresent);
}

/// Brings the memory of a work request in, and returns the packets that follow.
fn bring_in(host: &mut Host, now: u64, wr_id: u64) -> Vec<(Packet, Vec<u8>)> {
    set_absent(host, wr_id, false);
    let outcome = host
        .requester
        .on_memory_present(&host.slots, Time::from_ns(now));
    let packets = host.drain(now);
    assert_eq!(outcome.transmit, !packets.is_empty());
    packets
}

/// Transmission stops at a payload that is absent, without an error, and continues with it.
#[test]
fn transmission_stops_at_absent_memory() {
    for op in [Op::Send, Op::Write] {
        let mut host = host();
        post(&mut host, op, 1);
        let absent = post(&mut host, op, 2 * MTU);
        post(&mut host, Op::Read, 1);
        set_absent(&mut host, absent, true);
        assert_eq!(psns(&host.drain(0)), [0]);
        assert!(host.drain(0).is_empty());
        ack(&mut host, 0, ACK);
        assert!(host.drain(0).is_empty());
        assert_eq!(host.requester.next_timeout(), None);
        assert_eq!(psns(&bring_in(&mut host, 0, absent)), [1, 2, 3]);
        assert_eq!(host.statuses(), [Status::Success]);
    }
}

/// A retransmission whose payload is absent is sent as soon as it is present.
#[test]
fn a_repair_waits_for_memory() {
    let mut host = in_flight(3);
    set_absent(&mut host, 1, true);
    ack_at(&mut host, 300_000, 1, SEQUENCE_ERROR);
    assert!(host.drain(300_000).is_empty());
    assert!(host.requester.counters.retransmitted == 0 && !host.error);
    assert_eq!(psns(&bring_in(&mut host, 300_000, 1)), [1]);
}

/// A READ response whose memory is absent is dropped, and asked for again from there. Neither a
/// timer nor a later response causes a retransmission before, and no retry is used up.
#[test]
fn a_read_response_is_asked_for_again() {
    for mut host in [host(), buffering_host()] {
        host.requester.set_retry_count(0);
        let wr_id = post(&mut host, Op::Read, 8 * MTU);
        host.drain(0);
        respond(&mut host, Operation::ReadResponseFirst, 0);
        set_absent(&mut host, wr_id, true);
        for n in 1..7 {
            respond(&mut host, Operation::ReadResponseMiddle, n);
            assert!(host.drain(0).is_empty());
        }
        while let Some(at) = host.requester.next_timeout().map(Time::ns) {
            expire(&mut host, at);
            assert!(host.drain(at).is_empty());
        }
        assert!(host.statuses().is_empty());

        let packets = bring_in(&mut host, 0, wr_id);
        assert_eq!(psns(&packets), [1]);
        let Ext::Reth(reth) = packets[0].0.ext else {
            panic!("a READ request without a RETH");
        };
        assert_eq!((reth.va, reth.len), (BASE + u64::from(MTU), 7 * MTU));
        respond(&mut host, Operation::ReadResponseFirst, 1);
        for n in 2..7 {
            respond(&mut host, Operation::ReadResponseMiddle, n);
        }
        respond(&mut host, Operation::ReadResponseLast, 7);
        assert_eq!(host.statuses(), [Status::Success]);
    }
}

/// The result of an atomic is asked for again: the peer replays it.
#[test]
fn the_result_of_an_atomic_is_asked_for_again() {
    let mut host = host();
    host.requester.set_retry_count(0);
    let wr_id = post(&mut host, Op::FetchAdd, 8);
    post(&mut host, Op::Send, 1);
    assert_eq!(psns(&host.drain(0)), [0, 1]);
    set_absent(&mut host, wr_id, true);
    let _ = host.take(0, &atomic_ack(0, 5), &[]);
    ack(&mut host, 1, ACK);
    assert!(host.drain(0).is_empty());
    assert_eq!(host.requester.next_timeout(), None);
    assert_eq!(psns(&bring_in(&mut host, 0, wr_id)), [0, 1]);
    let _ = host.take(0, &atomic_ack(0, 5), &[]);
    ack(&mut host, 1, ACK);
    assert_eq!(host.statuses(), [Status::Success; 2]);
}

/// The call is harmless in every state, and flushing does not wait for memory.
#[test]
fn a_failed_queue_pair_does_not_wait_for_memory() {
    let mut host = host();
    assert!(
        !host
            .requester
            .on_memory_present(&host.slots, Time::from_ns(0))
            .transmit
    );
    let wr_id = post(&mut host, Op::Read, MTU);
    host.drain(0);
    set_absent(&mut host, wr_id, true);
    respond(&mut host, Operation::ReadResponseOnly, 0);
    host.go_to_error();
    assert_eq!(host.statuses(), [Status::WrFlush]);
    assert!(bring_in(&mut host, 0, wr_id).is_empty());
}
