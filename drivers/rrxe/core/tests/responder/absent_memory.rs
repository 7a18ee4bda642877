// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Requests whose memory is absent.

use super::*;

fn write(n: u32, va: u64) -> Packet {
    packet(O::WriteOnly, psn(n), reth(va, 4), 4)
}

/// Brings the memory in, and returns the responses that follow.
fn bring_in(host: &mut Host) -> Vec<(Packet, Vec<u8>)> {
    host.driver.absent = false;
    let outcome = host.responder.on_memory_present();
    let responses = host.drain(0);
    assert_eq!(outcome.transmit, !responses.is_empty());
    responses
}

/// The request is dropped without a NAK, and so are those after it. A NAK asks for it as soon as
/// its memory is present, and only once.
#[test]
fn a_nak_asks_for_the_packet_when_its_memory_is_present() {
    for mut host in [host(), buffering_host()] {
        host.driver.absent = true;
        assert!(ask(&mut host, &write(0, BASE)).is_empty());
        for n in 1..6 {
            assert!(ask(&mut host, &write(n, BASE + u64::from(4 * n))).is_empty());
        }
        // The requester's timeout.
        assert!(ask(&mut host, &write(0, BASE)).is_empty());
        assert_eq!(host.responder.counters.rnr_naks, 0);
        assert_eq!(host.responder.counters.out_of_sequence, 0);

        expect(&bring_in(&mut host), 0, SEQUENCE);
        assert!(bring_in(&mut host).is_empty());
        let responses = ask(&mut host, &write(0, BASE));
        let kept = if host.responder.buffering { 5 } else { 0 };
        expect(&responses, kept, ACK);
        assert_eq!(host.driver.regions[0].bytes[..4], [0xaa; 4]);
    }
}

/// A message whose memory is found absent when its beginning is checked is dropped like a packet,
/// and no part of it is accessed.
#[test]
fn memory_is_absent_when_a_message_begins() {
    let begin = packet(O::WriteFirst, psn(0), reth(BASE, 2 * MTU as u32), MTU);
    for request in [write(0, BASE), begin, read(0, BASE, 2 * MTU as u32)] {
        let mut host = host();
        (host.driver.absent, host.driver.checks_presence) = (true, true);
        assert!(ask(&mut host, &request).is_empty());
        assert!(!host.error);
        expect(&bring_in(&mut host), 0, SEQUENCE);
        ask(&mut host, &request);
        assert_ne!(host.responder.expected_psn(), psn(0).get());
        assert_eq!(host.responder.counters.access_errors, 0);
    }
}

/// A gap before the absent memory does not hide the NAK, nor does the late packet cause another.
#[test]
fn memory_that_stays_absent_is_asked_for_again() {
    let mut host = host();
    host.driver.absent = true;
    for _ in 0..3 {
        assert!(ask(&mut host, &write(0, BASE)).is_empty());
        expect(&bring_in(&mut host), 0, SEQUENCE);
        host.driver.absent = true;
    }
    host.driver.absent = false;
    expect(&ask(&mut host, &write(0, BASE)), 0, ACK);
}

/// An atomic is executed once, however often its memory is absent, and replayed afterwards.
#[test]
fn an_atomic_is_executed_once() {
    let mut host = host();
    host.driver.absent = true;
    assert!(ask(&mut host, &fetch_add(0, BASE, 4)).is_empty());
    assert_eq!(host.driver.atomics, 0);
    expect(&bring_in(&mut host), 0, SEQUENCE);
    for _ in 0..2 {
        let responses = said(&ask(&mut host, &fetch_add(0, BASE, 4)));
        assert_eq!(responses, [(0, O::AtomicAcknowledge, Some(ACK))]);
        // The response to the duplicate needs no memory.
        host.driver.absent = true;
    }
    assert_eq!(host.driver.atomics, 1);
}

/// A SEND keeps its receive work request, which completes once.
#[test]
fn a_receive_is_consumed_once() {
    let mut host = host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    host.driver.rq[0].fault = Some(Fault::NotPresent);
    assert!(ask(&mut host, &send(0)).is_empty());
    assert!(ask(&mut host, &send(0)).is_empty());
    assert!(statuses(&host).is_empty());
    host.driver.current.as_mut().unwrap().fault = None;
    expect(&bring_in(&mut host), 0, SEQUENCE);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    expect(&ask(&mut host, &send(1)), 1, ACK);
    let ids: Vec<_> = host.driver.received.iter().map(|r| r.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    assert_eq!(statuses(&host), [Status::Success; 2]);
}

/// The responses to a READ wait for its memory, and acknowledgements keep their place behind them.
#[test]
fn read_responses_wait_for_memory() {
    let mut host = host();
    host.post_recv(0, 64);
    host.driver.absent = true;
    assert!(ask(&mut host, &read(0, BASE, 2 * MTU as u32)).is_empty());
    assert!(ask(&mut host, &send(2)).is_empty());
    assert!(!host.error);
    assert_eq!(
        said(&bring_in(&mut host)),
        [
            (0, O::ReadResponseFirst, Some(ACK)),
            (1, O::ReadResponseLast, Some(ACK)),
            (2, O::Acknowledge, Some(ACK)),
        ]
    );
}

/// A FLUSH or an atomic write whose memory is absent is executed when it comes again.
#[test]
fn memory_of_an_atomic_write_is_absent() {
    let mut host = host();
    let request = packet(O::AtomicWrite, psn(0), reth(BASE, 8), 8);
    host.driver.absent = true;
    assert!(ask(&mut host, &request).is_empty());
    expect(&bring_in(&mut host), 0, SEQUENCE);
    let responses = said(&ask(&mut host, &request));
    assert_eq!(responses, [(0, O::ReadResponseOnly, Some(ACK))]);
    assert_eq!(host.driver.atomics, 1);
}

/// A datagram, or a message of an unreliable connection, whose memory is absent is lost. The
/// receive work request is used for the next one.
#[test]
fn unreliable_services_lose_the_message() {
    for service in [Service::Uc, Service::Ud] {
        let mut host = Host::new(service, 0, MTU as u32);
        host.post_recv(0, 64);
        host.driver.rq[0].fault = Some(Fault::NotPresent);
        let deth = Ext::Deth(Deth {
            qkey: QKEY,
            src_qpn: 7,
        });
        let ext = if service == Service::Ud {
            deth
        } else {
            Ext::None
        };
        give(
            &mut host,
            &packet_of(service, O::SendOnly, psn(0), ext, 4),
            1,
        );
        assert!(!host.error && statuses(&host).is_empty());
        host.driver.current.as_mut().unwrap().fault = None;
        assert!(!host.responder.on_memory_present().transmit);
        give(
            &mut host,
            &packet_of(service, O::SendOnly, psn(1), ext, 4),
            2,
        );
        assert_eq!(statuses(&host), [Status::Success]);
    }
}

/// The call is harmless in every state.
#[test]
fn memory_of_a_failed_queue_pair_comes() {
    let mut host = host();
    assert!(!host.responder.on_memory_present().transmit);
    host.driver.absent = true;
    give(&mut host, &write(0, BASE), 0);
    host.go_to_error();
    assert!(bring_in(&mut host).is_empty());
}
