// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Acknowledgements that wait for a reply of the consumer.

use super::*;

/// Longest delay of an acknowledgement in the tests below, and the replies before it.
const DELAY: u64 = 400;
const PROMPT_REPLIES: u32 = 8;

/// Hands in a request at `now`. Returns whether the driver is asked to transmit.
fn request(host: &mut Host, now: u64, packet: &Packet) -> bool {
    host.take(now, packet, &vec![1; packet.payload_len as usize])
        .transmit
}

/// Returns a host whose consumer has replied to enough requests in time, and the number of the next
/// request.
fn delaying() -> (Host, u32) {
    let mut host = host();
    host.responder.max_ack_delay = Span::from_ns(DELAY);
    host.responder.prompt_replies = PROMPT_REPLIES;
    for number in 0..PROMPT_REPLIES + 8 {
        host.post_recv(number.into(), 64);
    }
    for number in 0..PROMPT_REPLIES {
        assert!(request(&mut host, 1, &send(number)));
        expect(&host.drain(1), number, ACK);
        assert_eq!(host.responder.on_reply(Time::from_ns(DELAY)), None);
    }
    (host, PROMPT_REPLIES)
}

#[test]
fn an_acknowledgement_is_sent_with_the_reply() {
    let (mut host, next) = delaying();
    for number in next..next + 3 {
        assert!(!request(&mut host, 5, &send(number)));
        assert_eq!(host.responder.next_timeout().map(Time::ns), Some(5 + DELAY));
        assert!(host.drain(6).is_empty());
        let taken = host.responder.on_reply(Time::from_ns(7)).expect("it waits");
        let ack = Packet::parse(taken.header(), taken.udp_payload_len()).expect("a packet");
        assert_eq!(says(&ack), (number, O::Acknowledge, Some(ACK)));
        assert_eq!(ack.bth.dest_qpn, 101);
        // The responder considers it sent.
        assert_eq!(host.responder.next_timeout(), None);
        assert!(
            host.drain(5 + DELAY).is_empty() && host.responder.on_reply(Time::from_ns(8)).is_none()
        );
    }
    // No acknowledgement requested.
    let mut quiet = send(next + 3);
    quiet.bth.ackreq = false;
    assert!(!request(&mut host, 9, &quiet));
    assert!(
        host.responder.next_timeout().is_none()
            && host.responder.on_reply(Time::from_ns(9)).is_none()
    );
}

#[test]
fn an_acknowledgement_is_sent_at_its_deadline() {
    let (mut host, next) = delaying();
    assert!(!request(&mut host, 5, &send(next)));
    assert!(host.drain(4 + DELAY).is_empty());
    // It waits for space. A timer would expire again and again.
    host.driver.space = Some(0);
    assert!(host.transmit(5 + DELAY) && host.driver.out.is_empty());
    assert_eq!(host.responder.next_timeout(), None);
    host.driver.space = None;
    expect(&host.drain(5 + DELAY), next, ACK);
    // The consumer was late: the following ones leave at once.
    assert_eq!(host.responder.next_timeout(), None);
    assert!(request(&mut host, 6 + DELAY, &send(next + 1)));
    expect(&host.drain(6 + DELAY), next + 1, ACK);
}

#[test]
fn other_packets_end_the_delay() {
    // A second request, a READ, the same request again, and a gap, which needs a NAK.
    let others: [fn(u32) -> Packet; 4] = [
        |number| send(number + 1),
        |number| read(number + 1, BASE, 8),
        send,
        |number| send(number + 2),
    ];
    for other in others {
        let (mut host, next) = delaying();
        assert!(!request(&mut host, 5, &send(next)));
        assert!(request(&mut host, 6, &other(next)));
        assert_eq!(host.drain(6).len(), 1);
        assert!(
            host.responder.next_timeout().is_none()
                && host.responder.on_reply(Time::from_ns(6)).is_none()
        );
    }
}

#[test]
fn requests_that_arrive_together_wait_for_one_reply() {
    let (mut host, next) = delaying();
    for number in next..next + 3 {
        assert!(!request(&mut host, 5, &send(number)));
    }
    let taken = host.responder.on_reply(Time::from_ns(7)).expect("it waits");
    let ack = Packet::parse(taken.header(), taken.udp_payload_len()).expect("a packet");
    assert_eq!(says(&ack), (next + 2, O::Acknowledge, Some(ACK)));
    assert!(host.drain(5 + DELAY).is_empty() && host.responder.next_timeout().is_none());
}

#[test]
fn an_acknowledgement_follows_the_reply() {
    let (mut host, next) = delaying();
    assert!(!host.responder.on_reply_alone());
    for number in next..next + 3 {
        assert!(!request(&mut host, 5, &send(number)));
        assert!(host.responder.on_reply_alone() && !host.responder.on_reply_alone());
        assert_eq!(host.responder.next_timeout(), None);
        expect(&host.drain(5), number, ACK);
    }
}

#[test]
fn the_driver_ends_the_delay() {
    let (mut host, next) = delaying();
    assert!(!host.responder.stop_delay());
    assert!(!request(&mut host, 5, &send(next)));
    assert!(host.responder.stop_delay() && !host.responder.stop_delay());
    expect(&host.drain(5), next, ACK);
    let (mut host, next) = delaying();
    assert!(!request(&mut host, 5, &send(next)));
    host.responder.stop_waiting();
    expect(&host.drain(5), next, ACK);
}

#[test]
fn a_late_consumer_gets_no_delay() {
    let mut host = host();
    host.responder.max_ack_delay = Span::from_ns(DELAY);
    host.responder.prompt_replies = PROMPT_REPLIES;
    for number in 0..3 * PROMPT_REPLIES {
        host.post_recv(number.into(), 64);
        assert!(request(&mut host, 1, &send(number)));
        expect(&host.drain(1), number, ACK);
        assert_eq!(host.responder.on_reply(Time::from_ns(1 + DELAY)), None);
        // Messages that reply to no request do not count.
        assert_eq!(host.responder.on_reply(Time::from_ns(1)), None);
    }
}
