// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Acceptance of packets.

use super::*;
use rrxe_testkit::acknowledge;

#[test]
fn send_and_its_completion() {
    let mut host = host();
    host.post_recv(1, 4 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 1);
    give(&mut host, &packet(O::SendMiddle, psn(1), Ext::None, MTU), 2);
    let mut last = packet(O::SendLastImm, psn(2), Ext::Imm(ImmDt([9, 8, 7, 6])), 5);
    last.bth.solicited = true;
    give(&mut host, &last, 3);
    // D-13: one acknowledgement for all three.
    let responses = host.drain(0);
    expect(&responses, 2, ACK);
    let bth = responses[0].0.bth;
    assert!(!bth.solicited && !bth.ackreq && bth.migreq && bth.pad == 0);
    assert_eq!((bth.pkey, bth.dest_qpn), (0xffff, 101));
    let done = &host.driver.received[0];
    assert_eq!(done.completion.status, Status::Success);
    assert_eq!(done.completion.opcode, RecvOpcode::Recv);
    assert_eq!(done.completion.byte_len, 2 * MTU as u32 + 5);
    assert_eq!(done.completion.imm, Some(u32::from_ne_bytes([9, 8, 7, 6])));
    assert!(done.completion.solicited);
    // G-06: the bytes after the message are untouched.
    assert_eq!(done.data[2 * MTU..2 * MTU + 6], [3, 3, 3, 3, 3, 0xee]);
    assert_eq!(host.responder.msn.get(), 1);
}

/// packets of other classes.
#[test]
fn a_06_other_classes_are_dropped() {
    let mut host = host();
    host.post_recv(0, 64);
    for service in [Service::Uc, Service::Ud] {
        assert!(ask(
            &mut host,
            &packet_of(service, O::SendOnly, psn(0), Ext::None, 4)
        )
        .is_empty());
    }
    let mut cnp = packet(O::Cnp, psn(0), Ext::Cnp, 0);
    cnp.bth.opcode = rrxe_core::wire::Opcode::CNP;
    assert!(ask(&mut host, &cnp).is_empty());
    assert_eq!(host.responder.expected_psn(), psn(0).get());
    assert!(statuses(&host).is_empty());
    expect(&ask(&mut host, &send(0)), 0, ACK);
}

/// P_Keys that do not match.
#[test]
fn a_26_pkey() {
    let mut host = host();
    host.post_recv(0, 64);
    let mut packet = send(0);
    packet.bth.pkey = 0x8001;
    assert!(ask(&mut host, &packet).is_empty());
    assert_eq!(host.driver.events, [ResponderEvent::PkeyViolation]);
    packet.bth.pkey = 0x7fff;
    expect(&ask(&mut host, &packet), 0, ACK);
}

/// A-37, J-17
#[test]
fn a_37_not_ready() {
    let mut host = host();
    host.responder.reset();
    assert!(ask(&mut host, &send(0)).is_empty());
    host.responder.set_psn(psn(0).get());
    host.responder.dest_qpn = 101;
    host.post_recv(0, 64);
    assert!(ask(&mut host, &send(0)).is_empty());
    host.responder.start();
    expect(&ask(&mut host, &send(0)), 0, ACK);
}

/// B-08, B-09, B-10, B-14
#[test]
fn b_08_one_sequence_nak() {
    let mut host = host();
    for _ in 0..4 {
        host.post_recv(0, 64);
    }
    expect(&ask(&mut host, &send(1)), 0, SEQUENCE);
    assert!(ask(&mut host, &send(2)).is_empty());
    assert!(statuses(&host).is_empty());
    expect(&ask(&mut host, &send(0)), 0, ACK);
    expect(&ask(&mut host, &send(2)), 1, SEQUENCE);
    // The missing packet arrives before the NAK leaves, so the NAK need not be sent.
    expect(&ask(&mut host, &send(1)), 1, ACK);
    give(&mut host, &send(3), 0);
    give(&mut host, &send(2), 0);
    expect(&host.drain(0), 2, ACK);
}

/// B-12: an invalid packet is not refused while it is out of order.
#[test]
fn b_12_only_sequence_naks_out_of_turn() {
    let mut host = host();
    expect(
        &ask(&mut host, &packet(O::Unsupported, psn(5), Ext::None, 0)),
        0,
        SEQUENCE,
    );
    assert!(ask(&mut host, &packet(O::SendMiddle, psn(6), Ext::None, 1)).is_empty());
    assert!(ask(&mut host, &read(7, 0, 1)).is_empty());
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
}

/// J-13: the current receive work request is flushed.
#[test]
fn j_13_flush() {
    let mut host = host();
    host.post_recv(0, 4 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 0);
    host.go_to_error();
    assert_eq!(statuses(&host), [Status::WrFlush]);
    assert!(host.drain(0).is_empty());
}

/// J-21
#[test]
fn j_21_communication_established() {
    let mut host = host();
    for n in 0..3 {
        host.post_recv(0, 64);
        give(&mut host, &send(n), 0);
    }
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);
}

/// J-21: an unexpected request may be stale or forged, and does not establish communication.
#[test]
fn j_21_not_by_an_out_of_sequence_packet() {
    let mut host = host();
    let before = Psn::new(START_PSN[1]).prev();
    give(&mut host, &packet(O::SendOnly, before, Ext::None, 4), 0);
    for n in [1, 5000, 1 << 22] {
        give(&mut host, &send(n), 0);
    }
    assert!(host.driver.events.is_empty());
    host.post_recv(0, 64);
    give(&mut host, &send(0), 0);
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);

    let mut unreliable = Host::new(Service::Uc, 0, MTU as u32);
    let middle = packet_of(Service::Uc, O::SendMiddle, psn(9), Ext::None, MTU);
    give(&mut unreliable, &middle, 0);
    assert!(unreliable.driver.events.is_empty());
    let only = packet_of(Service::Uc, O::SendOnly, psn(9), Ext::None, 4);
    give(&mut unreliable, &only, 0);
    assert_eq!(unreliable.driver.events, [ResponderEvent::CommEstablished]);
}

/// Several early requests count once, for the NAK that they cause.
#[test]
fn out_of_sequence_counts_naks() {
    let mut host = host();
    for n in [3, 2, 9, 4] {
        give(&mut host, &send(n), 0);
    }
    assert_eq!(host.responder.counters.out_of_sequence, 1);
    host.post_recv(0, 64);
    give(&mut host, &send(0), 0);
    give(&mut host, &send(7), 0);
    assert_eq!(host.responder.counters.out_of_sequence, 2);
}

/// The responder terminates even if the driver returns errors for packets without payload.
#[test]
fn a_driver_that_fails_everything() {
    let mut host = host();
    host.driver.refuse = Some(TxError::Payload(Fault::Protection));
    host.post_recv(0, 64);
    assert!(ask(&mut host, &send(0)).is_empty());
    assert!(ask(&mut host, &send(9)).is_empty());
    assert!(ask(&mut host, &read(1, BASE, 4)).is_empty());
    assert!(ask(&mut host, &fetch_add(2, BASE, 4)).is_empty());
    assert!(host.error);
}

/// the MigReq bit of a peer's packets has no effect.
#[test]
fn a_40_migreq_is_ignored() {
    let mut host = host();
    for n in 0..4 {
        host.post_recv(0, 64);
        let mut packet = send(n);
        packet.bth.migreq = n % 2 == 0;
        expect(&ask(&mut host, &packet), n, ACK);
    }
    assert_eq!(statuses(&host), [Status::Success; 4]);
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);
}

/// an unsolicited response before Ready To Send.
#[test]
fn a_38_responses_before_rts() {
    let mut host = host();
    host.requester.reset();
    host.requester.set_psn(START_PSN[0]);
    let dropped = host.requester.counters.dropped.get();
    let response = acknowledge(Psn::new(START_PSN[0]), ACK);
    assert!(ask(&mut host, &response).is_empty());
    assert_eq!(host.requester.counters.dropped, dropped + 1);
    assert!(!host.error);
}

/// B-01: both borders of each region at the responder, with the expected PSN at the edges of the
/// number space.
#[test]
fn b_01_regions_at_the_responder() {
    for expected in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        let expected = Psn::new(expected);
        let mut host = host();
        host.responder.set_psn(expected.get());
        let at = |psn: Psn| packet(O::SendOnly, psn, Ext::None, 4);
        let last = |responses: Vec<(Packet, Vec<u8>)>| {
            let [(packet, _)] = &responses[..] else {
                panic!("{responses:?}")
            };
            let Ext::Aeth(aeth) = packet.ext else {
                panic!("{packet:?}")
            };
            (packet.psn(), Syndrome::decode(aeth.syndrome))
        };
        for n in [1, 2, 1 << 23] {
            let response = last(ask(&mut host, &at(expected.sub(n))));
            assert_eq!(response, (expected.prev(), ACK), "{n} before {expected:?}");
        }
        for n in [1, 2, (1 << 23) - 1] {
            // Each packet is the first early one.
            host.responder.reset();
            host.responder.set_psn(expected.get());
            host.responder.dest_qpn = 101;
            host.responder.start();
            let response = last(ask(&mut host, &at(expected.add(n))));
            assert_eq!(response, (expected, SEQUENCE), "{n} after {expected:?}");
        }
        host.post_recv(0, 64);
        assert_eq!(last(ask(&mut host, &at(expected))), (expected, ACK));
        assert_eq!(host.responder.expected_psn(), expected.next().get());
    }
}

/// B-02: the first PSN is that of the attribute, of which 24 bits count.
#[test]
fn b_02_first_psn() {
    let mut host = host();
    host.responder.set_psn(0xab00_0000 | psn(0).get());
    host.requester.set_psn(0xcd12_3456);
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    assert_eq!(host.requester.next_psn(), 0x12_3456);
}

/// B-14: an early request of any kind has no effect.
#[test]
fn b_14_too_early() {
    let mut host = host();
    host.post_recv(0, 4 * MTU);
    let early = [
        send(1),
        packet(O::SendFirst, psn(2), Ext::None, MTU),
        packet(O::WriteOnly, psn(3), reth(BASE, 4), 4),
        fetch_add(4, BASE, 1),
        read(5, BASE, 8),
    ];
    for packet in early {
        give(&mut host, &packet, 0xaa);
    }
    // B-08, B-09: one NAK for all of them.
    expect(&host.drain(0), 0, SEQUENCE);
    assert!(host.driver.regions[0].bytes.iter().all(|&b| b == 0));
    assert_eq!(host.driver.atomics, 0);
    assert_eq!(host.driver.rq.len(), 1);
    assert!(statuses(&host).is_empty());
    assert_eq!(
        (host.responder.msn.get(), host.responder.expected_psn()),
        (0, psn(0).get())
    );
}

/// G-06: padding of a SEND or WRITE is neither counted nor copied.
#[test]
fn g_06_padding_is_no_payload() {
    for len in 1..=8usize {
        let mut host = host();
        host.post_recv(0, 64);
        expect(
            &ask(&mut host, &packet(O::SendOnly, psn(0), Ext::None, len)),
            0,
            ACK,
        );
        let done = &host.driver.received[0];
        assert_eq!(done.completion.byte_len, len as u32);
        assert_eq!(done.data[len - 1..len + 3], [0xaa, 0xee, 0xee, 0xee]);
        let write = packet(O::WriteOnly, psn(1), reth(BASE, len as u32), len);
        expect(&ask(&mut host, &write), 1, ACK);
        assert_eq!(
            host.driver.regions[0].bytes[len - 1..len + 3],
            [0xaa, 0, 0, 0]
        );
    }
}

/// G-17: receive work requests that each kind of message uses up.
#[test]
fn g_17_receive_requests_used() {
    let mut host = host();
    for n in 0..8 {
        host.post_recv(n, 4 * MTU);
    }
    let mut left = 8;
    let mut used = |host: &Host, n: usize, what: &str| {
        left -= n;
        assert_eq!(host.driver.rq.len(), left, "{what}");
    };
    give(&mut host, &send(0), 0);
    used(&host, 1, "SEND ONLY");
    give(&mut host, &packet(O::SendFirst, psn(1), Ext::None, MTU), 0);
    give(&mut host, &packet(O::SendMiddle, psn(2), Ext::None, MTU), 0);
    give(&mut host, &packet(O::SendLast, psn(3), Ext::None, 1), 0);
    used(&host, 1, "a SEND of three packets");
    give(&mut host, &packet(O::SendOnly, psn(4), Ext::None, 0), 0);
    used(&host, 1, "a SEND of nothing");
    let write = packet(O::WriteFirst, psn(5), reth(BASE, 2 * MTU as u32), MTU);
    give(&mut host, &write, 0);
    give(&mut host, &packet(O::WriteLast, psn(6), Ext::None, MTU), 0);
    used(&host, 0, "WRITE");
    let write = packet(O::WriteFirst, psn(7), reth(BASE, 2 * MTU as u32), MTU);
    give(&mut host, &write, 0);
    used(&host, 0, "the first packet of a WRITE with immediate");
    let imm = Ext::Imm(ImmDt([1; 4]));
    give(&mut host, &packet(O::WriteLastImm, psn(8), imm, MTU), 0);
    used(&host, 1, "the last packet of a WRITE with immediate");
    give(&mut host, &read(9, BASE, 4), 0);
    give(&mut host, &fetch_add(10, BASE, 1), 0);
    used(&host, 0, "READ and atomic");
    // C-01: the same requests again.
    give(&mut host, &send(0), 0);
    give(&mut host, &packet(O::WriteLastImm, psn(8), imm, MTU), 0);
    used(&host, 0, "duplicates");
    assert_eq!(statuses(&host), [Status::Success; 4]);
    let ids: Vec<u64> = host.driver.received.iter().map(|r| r.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

/// G-20: the solicited bit of the last packet counts.
#[test]
fn g_20_solicited() {
    for (first, last) in [(true, false), (false, true)] {
        let mut host = host();
        host.post_recv(0, 2 * MTU);
        let mut packet1 = packet(O::SendFirst, psn(0), Ext::None, MTU);
        packet1.bth.solicited = first;
        let mut packet2 = packet(O::SendLast, psn(1), Ext::None, MTU);
        packet2.bth.solicited = last;
        give(&mut host, &packet1, 0);
        give(&mut host, &packet2, 0);
        assert_eq!(host.driver.received[0].completion.solicited, last);
    }
    for solicited in [false, true] {
        let mut host = host();
        host.post_recv(0, 64);
        let imm = Ext::RethImm(
            Reth {
                va: BASE,
                rkey: RKEY,
                len: 4,
            },
            ImmDt([0; 4]),
        );
        let mut write = packet(O::WriteOnlyImm, psn(0), imm, 4);
        write.bth.solicited = solicited;
        give(&mut host, &write, 0);
        assert_eq!(host.driver.received[0].completion.solicited, solicited);
    }
}
