// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Out-of-order requests at a host that buffers them.

use super::*;
use rrxe_core::reorder::{self, MAX_DISTANCE};

fn write(n: u32, at: u64, ackreq: bool) -> Packet {
    let mut packet = packet(O::WriteOnly, psn(n), reth(BASE + at, 4), 4);
    packet.bth.ackreq = ackreq;
    packet
}

/// Time after which a gap is reported.
const GAP_DELAY: u64 = 100_000;

/// Takes a packet at this time and returns the responses.
fn ask_at(host: &mut Host, now: u64, packet: &Packet) -> Vec<(Packet, Vec<u8>)> {
    let _ = host.take(now, packet, &vec![0xaa; packet.payload_len as usize]);
    host.drain(now)
}

/// Expects no response to WRITEs with these numbers.
#[track_caller]
fn silent(host: &mut Host, numbers: impl IntoIterator<Item = u32>) {
    for n in numbers {
        assert!(ask(host, &write(n, 0, false)).is_empty(), "{n}");
    }
}

/// B-08, B-09, B-14: one NAK for a gap, as soon as three requests beyond it have arrived. These
/// have no effect before their turn, and then need not be sent again.
#[test]
fn b_14_buffered_until_its_turn() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    assert!(ask(&mut host, &send(1)).is_empty());
    assert!(ask(&mut host, &write(3, 24, true)).is_empty());
    expect(&ask(&mut host, &write(2, 16, true)), 0, SEQUENCE);
    assert!(ask(&mut host, &write(4, 32, true)).is_empty());
    assert!(host.driver.regions[0].bytes.iter().all(|byte| *byte == 0));
    assert!(host.driver.received.is_empty());
    assert_eq!(host.responder.msn.get(), 0);
    let responses = ask(&mut host, &write(0, 0, true));
    expect(&responses, 4, ACK);
    assert_eq!(msn(&responses[0].0), 5);
    assert_eq!(statuses(&host), [Status::Success]);
    for n in [0, 2, 3, 4] {
        assert_eq!(host.driver.regions[0].bytes[n * 8], 0xaa);
    }
}

/// B-08, B-10: each gap is reported once, and the second one after the first is closed. The
/// acknowledgement that the peer asks for between them is one.
#[test]
fn b_10_a_nak_for_each_gap() {
    let mut host = buffering_host();
    silent(&mut host, [0, 2, 4]);
    expect(&ask(&mut host, &write(5, 0, true)), 1, SEQUENCE);
    expect(&ask(&mut host, &write(1, 0, true)), 2, ACK);
    expect(&ask(&mut host, &write(6, 0, true)), 3, SEQUENCE);
    silent(&mut host, [7]);
    expect(&ask(&mut host, &write(3, 0, true)), 7, ACK);
    // More than three are buffered already when the first gap closes.
    silent(&mut host, [9, 11]);
    expect(&ask(&mut host, &write(12, 0, false)), 8, SEQUENCE);
    silent(&mut host, [13]);
    expect(&ask(&mut host, &write(8, 0, true)), 10, SEQUENCE);
    expect(&ask(&mut host, &write(10, 0, true)), 13, ACK);
}

/// B-08: a gap near the end of a stream is reported after some time.
#[test]
fn b_08_a_gap_at_the_end() {
    let mut host = buffering_host();
    assert_eq!(host.responder.next_timeout(), None);
    for (now, n) in [(500, 1), (600, 2)] {
        assert!(ask_at(&mut host, now, &write(n, 0, true)).is_empty());
    }
    let due = 500 + GAP_DELAY;
    assert_eq!(host.responder.next_timeout().map(Time::ns), Some(due));
    assert!(host.drain(due - 1).is_empty());
    expect(&host.drain(due), 0, SEQUENCE);
    // Once.
    assert_eq!(host.responder.next_timeout(), None);
    assert!(host.drain(10 * due).is_empty());
    expect(&ask_at(&mut host, 10 * due, &write(0, 0, true)), 2, ACK);
}

/// B-08: a gap that closes in time is not reported. One that was open for longer than half the time
/// raises it: twice as long is tolerated from then on.
#[test]
fn b_08_time_of_late_requests() {
    let mut host = buffering_host();
    let mut now = 0;
    for (n, (open, tolerated)) in [
        (10_000, GAP_DELAY),
        (80_000, GAP_DELAY),
        (150_000, 160_000),
        (10_000, 300_000),
        (299_999, 300_000),
    ]
    .into_iter()
    .enumerate()
    {
        let n = 2 * n as u32;
        assert!(ask_at(&mut host, now, &write(n + 1, 0, false)).is_empty());
        assert_eq!(
            host.responder.next_timeout().map(Time::ns),
            Some(now + tolerated)
        );
        now += open;
        expect(&ask_at(&mut host, now, &write(n, 0, true)), n + 1, ACK);
        assert_eq!(host.responder.next_timeout(), None);
    }
    assert_eq!(host.responder.counters.out_of_sequence, 0);
}

/// Takes requests beyond the missing one with this number until the host reports the gap, and then
/// the missing one, which asks for an acknowledgement like any retransmission. Returns the number
/// of requests that reported the gap, and the next one.
fn lose(host: &mut Host, missing: u32) -> (u32, u32) {
    let mut next = missing + 1;
    while host.driver.out.is_empty() {
        give(host, &write(next, 0, false), 0xaa);
        host.transmit(0);
        next += 1;
    }
    expect(&host.drain(0), missing, SEQUENCE);
    expect(&ask(host, &write(missing, 0, true)), next - 1, ACK);
    (next - missing - 1, next)
}

/// B-08: gaps that close by themselves raise the number of requests beyond a gap that report it to
/// twice their size. Each reported gap lowers it by a quarter, down to three.
#[test]
fn b_08_number_of_late_requests() {
    let mut host = buffering_host();
    let mut next = 0;
    for size in [2, 3, 5, 9] {
        silent(&mut host, next + 1..=next + size);
        expect(&ask(&mut host, &write(next, 0, true)), next + size, ACK);
        next += size + 1;
    }
    assert_eq!(host.responder.counters.out_of_sequence, 0);
    for expected in [18, 14, 11, 9, 7, 6, 5, 4, 3, 3] {
        let (size, after) = lose(&mut host, next);
        assert_eq!(size, expected);
        next = after;
    }
}

/// B-08: a gap that a retransmission closes unreported says nothing about late requests.
#[test]
fn b_08_closed_by_a_retransmission() {
    let mut host = buffering_host();
    silent(&mut host, [1, 2]);
    expect(&ask(&mut host, &write(4, 0, false)), 0, SEQUENCE);
    silent(&mut host, [5]);
    // The peer retransmits both, and the second one closes a gap of two requests.
    let _ = ask(&mut host, &write(0, 0, true));
    expect(&ask(&mut host, &write(3, 0, true)), 5, ACK);
    assert_eq!(host.responder.counters.out_of_sequence, 1);
    assert_eq!(lose(&mut host, 6).0, 3);
}

/// B-08: a retransmission of a request that was only late shows that its gap was reported too
/// early, and raises the tolerance. One of a request that was lost does not.
#[test]
fn b_08_reported_too_early() {
    for (late, expected) in [(true, 8), (false, 3)] {
        let mut host = buffering_host();
        for n in 1..=4 {
            let _ = ask(&mut host, &write(n, 0, false));
        }
        assert_eq!(host.responder.counters.out_of_sequence, 1);
        let _ = ask(&mut host, &write(0, 0, !late));
        expect(&ask(&mut host, &write(0, 0, true)), 4, ACK);
        assert_eq!(lose(&mut host, 5).0, expected);
    }
}

/// B-08: if the driver could not buffer the request beyond a gap, the gap is reported at once.
#[test]
fn b_08_without_room_to_buffer() {
    let mut host = buffering_host();
    host.reorder_buffers = [0; 2].map(rrxe_testkit::ReorderBuffer::new);
    expect(&ask(&mut host, &write(1, 0, true)), 0, SEQUENCE);
    assert!(ask(&mut host, &write(2, 0, true)).is_empty());
    assert_eq!(host.responder.next_timeout(), None);
    expect(&ask(&mut host, &write(0, 0, true)), 0, ACK);
}

/// An error and Reset forget the gap.
#[test]
fn b_08_no_report_after_an_error() {
    for reset in [false, true] {
        let mut host = buffering_host();
        silent(&mut host, [1]);
        if reset {
            host.responder.reset();
        } else {
            host.go_to_error();
        }
        assert_eq!(host.responder.next_timeout(), None);
        assert!(host.drain(GAP_DELAY).is_empty());
    }
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
    assert!(ask(&mut host, &send(MAX_DISTANCE - 1)).is_empty());
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

/// A gap of several packets: the rest of it is reported if it stays. A requested acknowledgement is
/// one of what was executed.
#[test]
fn a_wide_gap() {
    let mut host = buffering_host();
    silent(&mut host, [4, 5]);
    expect(&ask(&mut host, &write(6, 0, true)), 0, SEQUENCE);
    // The first of the missing packets arrives without those after it.
    expect(&ask(&mut host, &write(0, 0, false)), 1, SEQUENCE);
    expect(&ask(&mut host, &write(1, 0, false)), 2, SEQUENCE);
    expect(&ask(&mut host, &write(2, 0, false)), 3, SEQUENCE);
    expect(&ask(&mut host, &write(3, 0, false)), 6, ACK);
    let mut host = buffering_host();
    silent(&mut host, [3]);
    expect(&ask(&mut host, &write(0, 0, true)), 0, ACK);
    silent(&mut host, [1]);
    assert_eq!(host.responder.next_timeout().map(Time::ns), Some(GAP_DELAY));
    expect(&host.drain(GAP_DELAY), 2, SEQUENCE);
}

/// Duplicates of buffered packets, before and after their turn.
#[test]
fn duplicates_of_buffered_requests() {
    let mut host = buffering_host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    assert!(ask(&mut host, &send(1)).is_empty());
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
    assert!(ask(&mut host, &send(1)).is_empty());
    let _ = host.take(0, &send(1), &[0x66; 4]);
    // No packet that showed the gap is left.
    expect(&host.drain(0), 0, SEQUENCE);
    let mut again = write(2, 8, false);
    give(&mut host, &again, 0xaa);
    again.bth.ackreq = true;
    give(&mut host, &again, 0xaa);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    // The packet buffered beyond the first one shows that it is missing.
    expect(&host.drain(GAP_DELAY), 1, SEQUENCE);
    expect(&ask(&mut host, &send(1)), 2, ACK);
    assert_eq!(host.driver.regions[0].bytes[8], 0xaa);
    assert_eq!(statuses(&host), [Status::Success; 2]);
    assert!(host.driver.received[1].data.starts_with(&[0xaa; 4]));
}

/// A request buffered for too long is dropped: it has no effect.
#[test]
fn buffered_for_too_long() {
    let mut host = buffering_host();
    for n in 0..3 {
        host.post_recv(n, 64);
    }
    assert!(ask(&mut host, &send(2)).is_empty());
    expect(&ask(&mut host, &send(0)), 0, ACK);
    let _ = host.take(reorder::MAX_AGE.ns(), &send(1), &[0; 4]);
    expect(&host.drain(reorder::MAX_AGE.ns()), 1, ACK);
    assert_eq!(statuses(&host), [Status::Success; 2]);
}

/// B-12: an invalid packet that is buffered is refused in its turn.
#[test]
fn b_12_refused_in_its_turn() {
    let mut host = buffering_host();
    let mut wrong = write(1, 0, true);
    wrong.ext = reth(0, 4);
    assert!(ask(&mut host, &wrong).is_empty());
    expect(&ask(&mut host, &write(0, 0, true)), 1, ACCESS);
    assert!(host.error);
}

/// B-12: the report of an error that does not fit into the driver's batch is sent later, even if
/// requests beyond the refused one have been buffered for longer than a gap is tolerated.
#[test]

fn b_12_no_gap_after_an_error() {
    let mut host = buffering_host();
    silent(&mut host, [1]);
    let mut wrong = write(0, 0, true);
    wrong.ext = reth(0, 4);
    host.driver.space = Some(0);
    give(&mut host, &wrong, 0xaa);
    assert!(host.transmit(0));
    host.driver.space = None;
    expect(&host.drain(2 * GAP_DELAY), 0, ACCESS);
    assert!(host.error);
}

/// A READ takes many PSNs at once, so the next request is far ahead, and buffered, too.
#[test]
fn beyond_a_read() {
    let mut host = buffering_host();
    let len = 600 * MTU as u32;
    assert!(ask(&mut host, &write(600, 0, true)).is_empty());
    let responses = ask(&mut host, &read(0, BASE, len));
    assert_eq!(responses.len(), 601);
    assert_eq!(says(&responses[600].0), (600, O::Acknowledge, Some(ACK)));
}

/// B-13: after an RNR NAK the peer retransmits everything: no request is buffered or gets a
/// response.
#[test]
fn b_13_nothing_is_buffered_after_an_rnr_nak() {
    let mut host = buffering_host();
    let responses = ask(&mut host, &send(0));
    assert!(matches!(
        said(&responses)[..],
        [(0, O::Acknowledge, Some(Syndrome::RnrNak { .. }))]
    ));
    assert!(ask(&mut host, &send(1)).is_empty());
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    expect(&ask(&mut host, &send(1)), 1, ACK);
}
