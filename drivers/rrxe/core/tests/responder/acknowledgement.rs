// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Acknowledgements, RNR NAKs and other responses: their PSNs, message numbers and header fields.

use super::*;
use rrxe_testkit::{Random, NO_IP, NO_UDP};

/// B-13, E-01, E-03: an RNR NAK, and no other response until it is resolved.
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
    // D-03, D-04, D-12: responses in order, and READs with their own.
    let responses = host.drain(0);
    let ack = Some(ACK);
    assert_eq!(
        said(&responses),
        [
            (2, O::ReadResponseFirst, ack),
            (3, O::ReadResponseMiddle, None),
            (4, O::ReadResponseLast, ack),
            (5, O::ReadResponseOnly, ack),
            (6, O::AtomicAcknowledge, ack),
            (7, O::Acknowledge, ack),
        ]
    );
    assert_eq!(msn(&responses[5].0), 5);
    assert!(responses
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
    host.driver.space = Some(1);
    assert!(host.transmit(0));
    host.driver.space = Some(8);
    let responses = host.drain(0);
    assert_eq!(
        responses.iter().map(|(p, _)| says(p).0).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

/// A READ response acknowledges everything before the READ, without an extra packet.
#[test]
fn a_response_acknowledges() {
    let mut host = host();
    host.post_recv(0, 64);
    give(&mut host, &send(0), 0);
    give(&mut host, &read(1, BASE, 4), 0);
    let responses = host.drain(0);
    assert_eq!(said(&responses), [(1, O::ReadResponseOnly, Some(ACK))]);
}

/// partition and path fields of every response.
#[test]
fn a_30_a_41_responses() {
    let mut host = host();
    host.post_recv(0, 64);
    let mut responses = ask(&mut host, &send(0));
    responses.extend(ask(&mut host, &read(1, BASE, 3 * MTU as u32)));
    responses.extend(ask(&mut host, &fetch_add(4, BASE, 1)));
    responses.extend(ask(&mut host, &send(6)));
    responses.extend(ask(&mut host, &send(5)));
    assert_eq!(responses.len(), 7);
    for (packet, _) in responses {
        assert_eq!(packet.bth.pkey, 0xffff);
        assert!(packet.bth.migreq);
        assert_eq!((packet.bth.dest_qpn, packet.bth.version), (101, 0));
        assert!(!packet.bth.fecn && !packet.bth.becn);
    }
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
    let responses = ask(
        &mut host,
        &packet(O::ReadRequest, first, reth(BASE, len), 0),
    );
    let psns: Vec<u32> = responses.iter().map(|(p, _)| p.psn().get()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    let bytes: Vec<u8> = responses.into_iter().flat_map(|(_, data)| data).collect();
    assert_eq!(bytes, host.driver.regions[0].bytes[..len as usize]);
    assert_eq!(host.responder.expected_psn(), 3);
    // Again, from after the wrap on.
    let rest = packet(
        O::ReadRequest,
        Psn::new(1),
        reth(BASE + 3 * MTU as u64, MTU as u32 + 3),
        0,
    );
    let responses = ask(&mut host, &rest);
    let psns: Vec<u32> = responses.iter().map(|(p, _)| p.psn().get()).collect();
    assert_eq!(psns, [1, 2]);
}

/// B-13: during the RNR wait of its peer, the responder responds only to the refused request and
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
/// how many packets were handled before the response. Packets that do not ask get none.
#[test]
fn d_01_each_request_for_an_acknowledgement() {
    for mask in 0..64u32 {
        let mut host = host();
        for n in 0..6 {
            host.post_recv(0, 64);
            let mut packet = send(n);
            packet.bth.ackreq = (mask >> n) & 1 != 0;
            give(&mut host, &packet, 0);
        }
        let responses = host.drain(0);
        if mask == 0 {
            assert!(responses.is_empty());
        } else {
            // D-03: coalesced, because no request in between has a response of its own.
            expect(&responses, 5, ACK);
        }
    }
}

/// D-04: without loss, the PSNs of the responses never go back, for any mix of requests.
#[test]
fn d_04_responses_in_order() {
    let mut random = Random::new(4);
    for _ in 0..200 {
        let mut host = host();
        host.budget = 1 + random.below(4);
        host.responder.set_resources(vec![Resource::default(); 16]);
        let mut n = 0;
        let mut responses = Vec::new();
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
            // Keep the number of outstanding READs and atomics within the limit.
            if message % 16 == 15 || random.chance(500) {
                responses.extend(host.drain(0));
            }
        }
        responses.extend(host.drain(0));
        assert!(!host.error);
        let psns: Vec<u32> = responses.iter().map(|(p, _)| says(p).0).collect();
        assert!(psns.windows(2).all(|w| w[0] < w[1]), "{psns:?}");
        assert_eq!(psns.last(), Some(&(n - 1)));
        // D-08: the last response contains the number of messages.
        let last = &responses.last().unwrap().0;
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
    let responses = host.drain(0);
    assert_eq!(msn(&responses[0].0), 3);
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
        let responses = ask(&mut host, &packet);
        assert_eq!(responses.len(), 1, "{packet:?}");
        assert_eq!(msn(&responses[0].0), 1, "{packet:?}");
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
