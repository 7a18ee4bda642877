// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The limit of packets in flight.

use super::*;

/// Returns a host with a long WRITE to send from PSN 1 on, a measured round trip of 100 us, and a
/// window of 65 packets.
fn writing() -> Host {
    let mut host = in_flight(0);
    host.budget = 2048;
    post(&mut host, Op::Write, 20_000 * MTU);
    host
}

/// Lets the host send, acknowledges all but one packet after `time` nanoseconds, and so on. Returns
/// the number of packets sent each time, the last PSN sent, and the current time.
fn rounds(host: &mut Host, mut now: u64, time: u64, count: usize) -> (Vec<usize>, u32, u64) {
    let (mut lengths, mut last) = (Vec::new(), 0);
    for _ in 0..count {
        let sent = psns(&host.drain(now));
        lengths.push(sent.len());
        last = *sent.last().expect("space in the window");
        now += time;
        ack_at(host, now, last - 1, ACK);
    }
    (lengths, last, now)
}

/// The first flight is 64 KiB, or 16 packets.
#[test]
fn the_first_flight() {
    for (mtu, packets) in [(256, 256), (512, 128), (1024, 64), (2048, 32), (4096, 16)] {
        let mut host = Host::new(Service::Rc, 0, mtu);
        post(&mut host, Op::Write, 300 * mtu);
        assert_eq!(host.drain(0).len(), packets, "MTU {mtu}");
    }
}

/// The window doubles in each round trip until it is 256 packets, or twice the capacity of the
/// path: the packets acknowledged in the shortest round trip. Queued packets do not enlarge it.
#[test]
fn the_window_follows_the_path() {
    let mut host = writing();
    let (lengths, _, now) = rounds(&mut host, 1_000_000, 100_000, 5);
    assert_eq!(lengths, [65, 128, 255, 255, 255]);
    // Half of the packets wait in queues.
    let (lengths, _, now) = rounds(&mut host, now, 200_000, 4);
    assert_eq!(lengths, [509; 4]);
    let (lengths, ..) = rounds(&mut host, now, 100_000, 10);
    assert_eq!(lengths[0], 509);
    assert!(lengths.is_sorted() && lengths[9] > 1000, "{lengths:?}");
}

/// Packets that the peer keeps beyond a lost one are no longer in flight.
#[test]
fn kept_packets_are_not_in_flight() {
    let mut host = writing();
    let (_, last, now) = rounds(&mut host, 1_000_000, 100_000, 3);
    let sent = psns(&host.drain(now));
    assert_eq!(sent.len(), 255);
    // Whether the peer keeps packets is not known yet.
    ack_at(&mut host, now, last, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [last]);
    ack_at(&mut host, now + 100_000, last + 255, ACK);
    assert_eq!(host.drain(now + 100_000).len(), 256);
    let next = last + 256;
    ack_at(&mut host, now + 200_000, next, SEQUENCE_ERROR);
    let sent = psns(&host.drain(now + 200_000));
    assert_eq!((sent[0], sent.len()), (next, 1 + 256));
    // When the lost packet is acknowledged, the others are in flight again. The window has grown to
    // 510 packets meanwhile.
    ack_at(&mut host, now + 300_000, next + 255, ACK);
    assert_eq!(host.drain(now + 300_000).len(), 510 - 256);
}

/// Returns a host with a full window of 256 packets and round trips of 200 us, half of which is
/// queueing delay, the oldest packet in flight, and the current time.
fn queueing() -> (Host, u32, u64) {
    let mut host = writing();
    let (_, _, now) = rounds(&mut host, 1_000_000, 100_000, 2);
    let (lengths, last, now) = rounds(&mut host, now, 200_000, 12);
    assert_eq!(lengths, [255; 12]);
    assert_eq!(host.drain(now).len(), 255);
    (host, last, now)
}

/// A loss while packets wait in queues shrinks the window.
#[test]
fn a_loss_behind_a_queue_shrinks_the_window() {
    let (mut host, first, now) = queueing();
    ack_at(&mut host, now, first, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first]);
    ack_at(&mut host, now + 200_000, first + 255, ACK);
    let flight = host.drain(now + 200_000).len();
    assert!((150..=200).contains(&flight), "{flight}");
    assert_eq!(host.requester.counters.window_reductions, 1);
}

/// All losses of a window shrink it once. Then it grows by a packet for each window.
#[test]
fn losses_of_one_window_shrink_it_once() {
    let (mut host, first, now) = queueing();
    ack_at(&mut host, now, first, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first]);
    ack_at(&mut host, now + 200_000, first + 255, ACK);
    let (lengths, ..) = rounds(&mut host, now + 200_000, 200_000, 4);
    assert_eq!(lengths, [191, 191, 192, 193]);
    assert_eq!(host.requester.counters.window_reductions, 1);
}

/// After a loss behind a queue, a window leaves spread over four fifths of the round trip, and not
/// as a burst that might overflow the queue again.
#[test]
fn a_window_is_paced_after_a_loss() {
    let mut host = writing();
    let (_, _, now) = rounds(&mut host, 1_000_000, 100_000, 2);
    let (_, first, now) = rounds(&mut host, now, 390_000, 20);
    assert_eq!(host.drain(now).len(), 255);
    ack_at(&mut host, now, first, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first]);
    let start = now + 390_000;
    ack_at(&mut host, start, first + 255, ACK);
    // The burst of 200 us.
    let (mut now, mut sent) = (start, host.drain(start).len());
    assert!((110..130).contains(&sent), "{sent} packets at once");
    while sent < 175 {
        now = host
            .requester
            .next_timeout()
            .map(Time::ns)
            .expect("nothing is sent");
        let more = host.drain(now).len();
        assert!((1..65).contains(&more), "{more} packets at once");
        sent += more;
    }
    assert!(
        (90_000..130_000).contains(&(now - start)),
        "{} ns",
        now - start
    );
}

/// A loss without a queue has another cause than congestion, and leaves the window.
#[test]
fn a_loss_without_a_queue_leaves_the_window() {
    let mut host = writing();
    let (_, first, now) = rounds(&mut host, 1_000_000, 100_000, 3);
    host.drain(now);
    ack_at(&mut host, now, first, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first]);
    ack_at(&mut host, now + 100_000, first + 255, ACK);
    assert_eq!(host.drain(now + 100_000).len(), 256);
    assert_eq!(host.requester.counters.window_reductions, 0);
}

/// If the response to a repair shows that the packet was late, not lost, the window has its old
/// size again. The reduction has been counted.
#[test]
fn a_late_packet_does_not_shrink_the_window() {
    let (mut host, first, now) = queueing();
    ack_at(&mut host, now, first, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first]);
    // Too early for a response to the retransmission.
    ack_at(&mut host, now + 40_000, first + 255, ACK);
    assert_eq!(host.drain(now + 40_000).len(), 256);
    assert_eq!(host.requester.counters.window_reductions, 1);
}

/// After a timeout the window starts again, and doubles up to half its old size.
#[test]
fn a_timeout_starts_the_window_again() {
    let mut host = writing();
    let (_, first, now) = rounds(&mut host, 1_000_000, 100_000, 4);
    assert_eq!(host.drain(now).len(), 255);
    // The acknowledge timer, not a probe.
    expire(&mut host, now + TIMEOUT);
    let now = now + TIMEOUT;
    let sent = psns(&host.drain(now));
    assert_eq!((sent[0], sent.len()), (first, 16));
    assert_eq!(host.requester.counters.window_reductions, 1);
    ack_at(&mut host, now + 100_000, first + 14, ACK);
    let (lengths, ..) = rounds(&mut host, now + 100_000, 100_000, 6);
    assert_eq!(lengths, [30, 60, 120, 127, 127, 128]);
}

/// Returns a host with more than 256 packets in flight and round trips of 1 ms, the oldest packet
/// in flight, and the current time. `shortest` is the shortest measured round trip.
fn long_queues(shortest: u64) -> (Host, u32, u64) {
    let mut host = buffering_host();
    host.budget = 2048;
    post(&mut host, Op::Write, 1);
    host.drain(0);
    ack_at(&mut host, shortest, 0, ACK);
    post(&mut host, Op::Write, 20_000 * MTU);
    let mut now = 1_000_000;
    let mut sent = psns(&host.drain(now));
    while sent.len() <= 256 {
        now += 1_000_000;
        // All but one packet.
        ack_at(&mut host, now, *sent.last().unwrap() - 1, ACK);
        sent = psns(&host.drain(now));
    }
    (host, sent[0], now)
}

/// If the peer turns out to drop out-of-order packets, queued packets no longer count as capacity.
#[test]
fn the_window_to_a_peer_that_drops_is_without_queues() {
    let (mut host, first, mut now) = long_queues(100_000);
    now += 500_000;
    ack_at(&mut host, now, first + 8, SEQUENCE_ERROR);
    assert_eq!(psns(&host.drain(now)), [first + 8]);
    // The queues have drained.
    now += 100_000;
    ack_at(&mut host, now, first + 8, ACK);
    let again = psns(&host.drain(now));
    assert_eq!((again[0], again.len()), (first + 9, 8));
    now += 100_000;
    ack_at(&mut host, now, first + 16, ACK);
    let again = psns(&host.drain(now));
    assert_eq!((again[0], again.len()), (first + 17, 32));
    // Once by the loss, and once because the peer drops packets.
    assert_eq!(host.requester.counters.window_reductions, 2);
    // Another loss costs nothing more.
    now += 100_000;
    ack_at(&mut host, now, first + 32, ACK);
    assert!((16..20).contains(&host.drain(now).len()));
    now += 100_000;
    ack_at(&mut host, now, first + 35, SEQUENCE_ERROR);
    let again = psns(&host.drain(now));
    assert_eq!((again[0], again.len()), (first + 35, 32));
    assert_eq!(host.requester.counters.window_reductions, 2);
}

/// A peer that drops out-of-order packets is recognized even if all measured round trips contained
/// queueing delay, so that the responses to repairs seem to come too early.
#[test]
fn a_peer_that_drops_is_recognized_behind_queues() {
    let (mut host, mut missing, mut now) = long_queues(1_000_000);
    now += 500_000;
    for _ in 0..4 {
        ack_at(&mut host, now, missing, SEQUENCE_ERROR);
        assert_eq!(psns(&host.drain(now))[0], missing);
        now += 100_000;
        ack_at(&mut host, now, missing, ACK);
        missing += 1;
        if psns(&host.drain(now)).starts_with(&[missing, missing + 1]) {
            return;
        }
        now += 100_000;
    }
    panic!("not recognized");
}

/// READs start while the path has space for their responses, but a second READ may always start: it
/// keeps the path busy while the first one ends.
#[test]
fn the_window_is_for_read_responses_too() {
    let mut host = buffering_host();
    host.requester.max_rd_atomic = 16;
    for _ in 0..6 {
        post(&mut host, Op::Read, 100 * MTU);
    }
    post(&mut host, Op::Read, 1000 * MTU);
    post(&mut host, Op::Read, 1);
    assert_eq!(psns(&host.drain(0)), [0, 100]);
    for n in 0..600 {
        let kind = match n % 100 {
            0 => Operation::ReadResponseFirst,
            99 => Operation::ReadResponseLast,
            _ => Operation::ReadResponseMiddle,
        };
        respond(&mut host, kind, n);
        let next = psns(&host.drain(0));
        // One more READ whenever fewer packets are outstanding than fit into the window, which
        // grows from 64 to 256.
        let expected: &[u32] = match n {
            68 => &[200],
            118 => &[300],
            168 => &[400],
            244 => &[500],
            344 => &[600],
            // The second one.
            599 => &[1600],
            _ => &[],
        };
        assert_eq!(next, expected, "after response {n}");
    }
    assert_eq!(host.statuses(), [Status::Success; 6]);
}
