// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Acceptance of packets, and their acknowledgement.

use super::*;
use rrxe_testkit::{acknowledge, Random, NO_IP, NO_UDP};

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
    let answers = host.drain(0);
    expect(&answers, 2, ACK);
    let bth = answers[0].0.bth;
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

/// B-13, E-01, E-03: an RNR NAK, and no other answer until it is resolved.
#[test]
fn b_13_rnr() {
    let mut host = host();
    host.responder.min_rnr_timer = 14;
    let rnr = Syndrome::RnrNak { timer: 14 };
    expect(&ask(&mut host, &send(0)), 0, rnr);
    assert!(ask(&mut host, &send(1)).is_empty());
    assert!(ask(&mut host, &send(2)).is_empty());
    expect(&ask(&mut host, &send(0)), 0, rnr);
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    // A WRITE with immediate gets an RNR NAK, too, and writes nothing before.
    let imm = Ext::RethImm(
        Reth {
            va: BASE,
            rkey: RKEY,
            len: 4,
        },
        ImmDt([0; 4]),
    );
    let write = packet(O::WriteOnlyImm, psn(1), imm, 4);
    expect(&ask(&mut host, &write), 1, rnr);
    assert_eq!(host.driver.regions[0].bytes[0], 0);
    host.post_recv(0, 0);
    expect(&ask(&mut host, &write), 1, ACK);
    assert_eq!(
        host.driver.regions[0].bytes[..5],
        [0xaa, 0xaa, 0xaa, 0xaa, 0]
    );
    // G-18
    let done = host.driver.received[1].completion;
    assert_eq!(
        (done.opcode, done.byte_len),
        (RecvOpcode::RecvRdmaWithImm, 4)
    );
}

/// B-04, B-05, D-08, D-09: PSNs and MSN.
#[test]
fn b_04_psns_and_msn() {
    let mut host = host();
    host.post_recv(0, 4 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 0);
    assert_eq!(host.responder.msn.get(), 0);
    give(&mut host, &packet(O::SendLast, psn(1), Ext::None, 1), 0);
    assert_eq!(host.responder.msn.get(), 1);
    give(&mut host, &read(2, BASE, 2 * MTU as u32 + 1), 0);
    assert_eq!(host.responder.expected_psn(), psn(5).get());
    give(&mut host, &read(5, 0, 0), 0);
    give(&mut host, &fetch_add(6, BASE, 1), 0);
    give(&mut host, &packet(O::WriteOnly, psn(7), reth(0, 0), 0), 0);
    assert_eq!(host.responder.expected_psn(), psn(8).get());
    assert_eq!(host.responder.msn.get(), 5);
    // D-03, D-04, D-12: answers in order, and READs with their own.
    let answers = host.drain(0);
    let ack = Some(ACK);
    assert_eq!(
        said(&answers),
        [
            (2, O::ReadResponseFirst, ack),
            (3, O::ReadResponseMiddle, None),
            (4, O::ReadResponseLast, ack),
            (5, O::ReadResponseOnly, ack),
            (6, O::AtomicAcknowledge, ack),
            (7, O::Acknowledge, ack),
        ]
    );
    assert_eq!(msn(&answers[5].0), 5);
    assert!(answers
        .iter()
        .all(|(p, _)| !p.bth.ackreq && !p.bth.solicited));
}

/// D-01, D-20: an acknowledgement requested in the middle of a message.
#[test]
fn d_20_middle() {
    let mut host = host();
    host.post_recv(0, 4 * MTU);
    let mut first = packet(O::SendFirst, psn(0), Ext::None, MTU);
    first.bth.ackreq = false;
    assert!(ask(&mut host, &first).is_empty());
    expect(
        &ask(&mut host, &packet(O::SendMiddle, psn(1), Ext::None, MTU)),
        1,
        ACK,
    );
}

/// If the batch is full, transmission resumes with the same packet.
#[test]
fn no_room() {
    let mut host = host();
    give(&mut host, &read(0, BASE, 3 * MTU as u32), 0);
    host.driver.room = Some(1);
    assert!(host.transmit(0));
    host.driver.room = Some(8);
    let answers = host.drain(0);
    assert_eq!(
        answers.iter().map(|(p, _)| says(p).0).collect::<Vec<_>>(),
        [0, 1, 2]
    );
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
fn j_21_not_by_what_is_out_of_place() {
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
    host.driver.refuse = Some(TxError::RemoteAccess);
    host.post_recv(0, 64);
    assert!(ask(&mut host, &send(0)).is_empty());
    assert!(ask(&mut host, &send(9)).is_empty());
    assert!(ask(&mut host, &read(1, BASE, 4)).is_empty());
    assert!(ask(&mut host, &fetch_add(2, BASE, 4)).is_empty());
    assert!(host.error);
}

/// A READ response acknowledges everything before the READ, without an extra packet.
#[test]
fn a_response_acknowledges() {
    let mut host = host();
    host.post_recv(0, 64);
    give(&mut host, &send(0), 0);
    give(&mut host, &read(1, BASE, 4), 0);
    let answers = host.drain(0);
    assert_eq!(said(&answers), [(1, O::ReadResponseOnly, Some(ACK))]);
}

/// partition and path fields of every answer.
#[test]
fn a_30_a_41_answers() {
    let mut host = host();
    host.post_recv(0, 64);
    let mut answers = ask(&mut host, &send(0));
    answers.extend(ask(&mut host, &read(1, BASE, 3 * MTU as u32)));
    answers.extend(ask(&mut host, &fetch_add(4, BASE, 1)));
    answers.extend(ask(&mut host, &send(6)));
    answers.extend(ask(&mut host, &send(5)));
    assert_eq!(answers.len(), 7);
    for (packet, _) in answers {
        assert_eq!(packet.bth.pkey, 0xffff);
        assert!(packet.bth.migreq);
        assert_eq!((packet.bth.dest_qpn, packet.bth.version), (101, 0));
        assert!(!packet.bth.fecn && !packet.bth.becn);
    }
}

/// the MigReq bit of a peer's packets has no effect.
#[test]
fn a_40_migreq_is_not_looked_at() {
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

/// an unsolicited answer before Ready To Send.
#[test]
fn a_38_responses_before_rts() {
    let mut host = host();
    host.requester.reset();
    host.requester.set_psn(START_PSN[0]);
    let dropped = host.requester.counters.dropped;
    let answer = acknowledge(Psn::new(START_PSN[0]), ACK);
    assert!(ask(&mut host, &answer).is_empty());
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
        let last = |answers: Vec<(Packet, Vec<u8>)>| {
            let [(packet, _)] = &answers[..] else {
                panic!("{answers:?}")
            };
            let Ext::Aeth(aeth) = packet.ext else {
                panic!("{packet:?}")
            };
            (packet.psn(), Syndrome::decode(aeth.syndrome))
        };
        for n in [1, 2, 1 << 23] {
            let answer = last(ask(&mut host, &at(expected.sub(n))));
            assert_eq!(answer, (expected.prev(), ACK), "{n} before {expected:?}");
        }
        for n in [1, 2, (1 << 23) - 1] {
            // Each packet is the first early one.
            host.responder.reset();
            host.responder.set_psn(expected.get());
            host.responder.dest_qpn = 101;
            host.responder.start();
            let answer = last(ask(&mut host, &at(expected.add(n))));
            assert_eq!(answer, (expected, SEQUENCE), "{n} after {expected:?}");
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

/// B-06: PSNs of a READ response across the PSN wrap.
#[test]
fn b_06_read_across_the_wrap() {
    let mut host = host();
    host.responder.set_psn(0xff_fffe);
    for (i, byte) in host.driver.regions[0].bytes.iter_mut().enumerate() {
        *byte = (i / 100) as u8;
    }
    let len = 4 * MTU as u32 + 3;
    let first = Psn::new(0xff_fffe);
    let answers = ask(
        &mut host,
        &packet(O::ReadRequest, first, reth(BASE, len), 0),
    );
    let psns: Vec<u32> = answers.iter().map(|(p, _)| p.psn().get()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    let bytes: Vec<u8> = answers.into_iter().flat_map(|(_, data)| data).collect();
    assert_eq!(bytes, host.driver.regions[0].bytes[..len as usize]);
    assert_eq!(host.responder.expected_psn(), 3);
    // Again, from after the wrap on.
    let rest = packet(
        O::ReadRequest,
        Psn::new(1),
        reth(BASE + 3 * MTU as u64, MTU as u32 + 3),
        0,
    );
    let answers = ask(&mut host, &rest);
    let psns: Vec<u32> = answers.iter().map(|(p, _)| p.psn().get()).collect();
    assert_eq!(psns, [1, 2]);
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

/// B-13: during the RNR wait of its peer, the responder answers only the refused request and
/// duplicates.
#[test]
fn b_13_duplicates_during_an_rnr_wait() {
    let mut host = host();
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    expect(&ask(&mut host, &send(1)), 1, Syndrome::RnrNak { timer: 1 });
    expect(&ask(&mut host, &send(0)), 0, ACK);
    assert!(ask(&mut host, &send(2)).is_empty());
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(1)), 1, ACK);
    // B-10: from here on it sends NAKs again.
    expect(&ask(&mut host, &send(3)), 2, SEQUENCE);
}

/// D-01: every packet that asks for an acknowledgement gets one that covers its PSN, regardless of
/// how many packets were handled before the answer. Packets that do not ask get none.
#[test]
fn d_01_all_that_ask() {
    for mask in 0..64u32 {
        let mut host = host();
        for n in 0..6 {
            host.post_recv(0, 64);
            let mut packet = send(n);
            packet.bth.ackreq = (mask >> n) & 1 != 0;
            give(&mut host, &packet, 0);
        }
        let answers = host.drain(0);
        if mask == 0 {
            assert!(answers.is_empty());
        } else {
            // D-03: coalesced, because no request in between has an answer of its own.
            expect(&answers, 5, ACK);
        }
    }
}

/// D-04: without loss, the PSNs of the answers never go back, for any mix of requests.
#[test]
fn d_04_answers_in_order() {
    let mut random = Random::new(4);
    for _ in 0..200 {
        let mut host = host();
        host.budget = 1 + random.below(4);
        host.responder.set_resources(vec![Resource::default(); 16]);
        let mut n = 0;
        let mut answers = Vec::new();
        for message in 0..30 {
            host.post_recv(0, 64);
            match random.below(4) {
                0 => {
                    give(&mut host, &read(n, BASE, random.below(4000) + 1), 0);
                    n = host.responder.expected_psn().wrapping_sub(psn(0).get());
                }
                1 => {
                    give(&mut host, &fetch_add(n, BASE, 1), 0);
                    n += 1;
                }
                _ => {
                    give(&mut host, &send(n), 0);
                    n += 1;
                }
            }
            // Keep the number of unanswered READs and atomics within the limit.
            if message % 16 == 15 || random.chance(500) {
                answers.extend(host.drain(0));
            }
        }
        answers.extend(host.drain(0));
        assert!(!host.error);
        let psns: Vec<u32> = answers.iter().map(|(p, _)| says(p).0).collect();
        assert!(psns.windows(2).all(|w| w[0] < w[1]), "{psns:?}");
        assert_eq!(psns.last(), Some(&(n - 1)));
        // D-08: the last answer contains the number of messages.
        let last = &answers.last().unwrap().0;
        assert_eq!(msn(last), 30);
    }
}

/// D-08: the MSN has 24 bits.
#[test]
fn d_08_msn_wraps() {
    let mut host = host();
    for n in 0..0x100_0003u32 {
        give(&mut host, &packet(O::WriteOnly, psn(n), reth(0, 0), 0), 0);
    }
    assert_eq!(host.responder.msn.get(), 3);
    let answers = host.drain(0);
    assert_eq!(msn(&answers[0].0), 3);
}

/// D-11: a refused message does not count.
#[test]
fn d_11_refused_messages_do_not_count() {
    let bad = [
        packet(O::SendMiddle, psn(1), Ext::None, MTU),
        packet(O::WriteOnly, psn(1), reth(0, 4), 4),
        read(1, 0, 4),
        fetch_add(1, BASE + 1, 1),
        fetch_add(1, 0, 1),
        // RNR: no receive work request, but no error.
        send(1),
        // Early.
        send(2),
    ];
    for packet in bad {
        let mut host = host();
        host.post_recv(0, 64);
        expect(&ask(&mut host, &send(0)), 0, ACK);
        let answers = ask(&mut host, &packet);
        assert_eq!(answers.len(), 1, "{packet:?}");
        assert_eq!(msn(&answers[0].0), 1, "{packet:?}");
    }
}

/// G-05, G-06: padding of responses.
#[test]
fn g_05_padding_of_responses() {
    let mut host = host();
    host.driver.regions[0].bytes.fill(0x77);
    for len in 0..=9u32 {
        host.responder.set_psn(psn(0).get());
        host.responder.set_resources(vec![Resource::default(); 1]);
        give(&mut host, &read(0, BASE, len), 0);
        host.transmit(0);
        let bytes = host.driver.out.pop().unwrap().bytes(&NO_IP, &NO_UDP);
        let pad = (4 - len as usize % 4) % 4;
        assert_eq!(usize::from((bytes[1] >> 4) & 3), pad);
        assert_eq!(bytes.len(), 12 + 4 + len as usize + pad + 4);
        let body = &bytes[16..bytes.len() - 4];
        assert!(body[..len as usize].iter().all(|&b| b == 0x77));
        assert!(body[len as usize..].iter().all(|&b| b == 0));
    }
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

/// E-01: a WRITE with immediate of several packets waits at its last packet, and continues there.
#[test]
fn e_01_rnr_at_the_end_of_a_write() {
    let mut host = host();
    let first = packet(O::WriteFirst, psn(0), reth(BASE, MTU as u32 + 4), MTU);
    expect(&ask(&mut host, &first), 0, ACK);
    let last = packet(O::WriteLastImm, psn(1), Ext::Imm(ImmDt([5; 4])), 4);
    for _ in 0..3 {
        expect(&ask(&mut host, &last), 1, Syndrome::RnrNak { timer: 1 });
        assert_eq!(host.driver.regions[0].bytes[MTU..MTU + 4], [0; 4]);
    }
    host.post_recv(0, 0);
    expect(&ask(&mut host, &last), 1, ACK);
    assert_eq!(host.driver.regions[0].bytes[MTU..MTU + 4], [0xaa; 4]);
    assert_eq!(host.driver.received[0].completion.byte_len, MTU as u32 + 4);
    assert_eq!(host.responder.msn.get(), 1);
}

/// Longest delay of an acknowledgement in the tests below, and the replies before it.
const DELAY: u64 = 400;
const PROMPT_REPLIES: u32 = 8;

/// Hands in a request at `now`. Returns whether the driver is asked to transmit.
fn request(host: &mut Host, now: u64, packet: &Packet) -> bool {
    host.take(now, packet, &vec![1; packet.payload_len as usize])
        .transmit
}

/// Returns a host whose consumer has answered enough requests in time, and the number of the next
/// request.
fn delaying() -> (Host, u32) {
    let mut host = host();
    host.responder.max_ack_delay = DELAY;
    host.responder.prompt_replies = PROMPT_REPLIES;
    for number in 0..PROMPT_REPLIES + 8 {
        host.post_recv(number.into(), 64);
    }
    for number in 0..PROMPT_REPLIES {
        assert!(request(&mut host, 1, &send(number)));
        expect(&host.drain(1), number, ACK);
        assert_eq!(host.responder.on_reply(DELAY), None);
    }
    (host, PROMPT_REPLIES)
}

#[test]
fn an_acknowledgement_leaves_with_the_reply() {
    let (mut host, next) = delaying();
    for number in next..next + 3 {
        assert!(!request(&mut host, 5, &send(number)));
        assert_eq!(host.responder.next_timeout(), Some(5 + DELAY));
        assert!(host.drain(6).is_empty());
        let taken = host.responder.on_reply(7).expect("it waits");
        let answer = Packet::parse(taken.header(), taken.udp_payload_len()).expect("a packet");
        assert_eq!(says(&answer), (number, O::Acknowledge, Some(ACK)));
        assert_eq!(answer.bth.dest_qpn, 101);
        // The responder considers it sent.
        assert_eq!(host.responder.next_timeout(), None);
        assert!(host.drain(5 + DELAY).is_empty() && host.responder.on_reply(8).is_none());
    }
    // No acknowledgement requested.
    let mut quiet = send(next + 3);
    quiet.bth.ackreq = false;
    assert!(!request(&mut host, 9, &quiet));
    assert!(host.responder.next_timeout().is_none() && host.responder.on_reply(9).is_none());
}

#[test]
fn an_acknowledgement_leaves_at_its_deadline() {
    let (mut host, next) = delaying();
    assert!(!request(&mut host, 5, &send(next)));
    assert!(host.drain(4 + DELAY).is_empty());
    // It waits for room. A timer would expire again and again.
    host.driver.room = Some(0);
    assert!(host.transmit(5 + DELAY) && host.driver.out.is_empty());
    assert_eq!(host.responder.next_timeout(), None);
    host.driver.room = None;
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
        assert!(host.responder.next_timeout().is_none() && host.responder.on_reply(6).is_none());
    }
}

#[test]
fn requests_that_arrive_together_wait_for_one_reply() {
    let (mut host, next) = delaying();
    for number in next..next + 3 {
        assert!(!request(&mut host, 5, &send(number)));
    }
    let taken = host.responder.on_reply(7).expect("it waits");
    let answer = Packet::parse(taken.header(), taken.udp_payload_len()).expect("a packet");
    assert_eq!(says(&answer), (next + 2, O::Acknowledge, Some(ACK)));
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
    host.responder.max_ack_delay = DELAY;
    host.responder.prompt_replies = PROMPT_REPLIES;
    for number in 0..3 * PROMPT_REPLIES {
        host.post_recv(number.into(), 64);
        assert!(request(&mut host, 1, &send(number)));
        expect(&host.drain(1), number, ACK);
        assert_eq!(host.responder.on_reply(1 + DELAY), None);
        // Messages that answer no request do not count.
        assert_eq!(host.responder.on_reply(1), None);
    }
}
