// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which packets are taken, and how they are acknowledged.

use super::*;

#[test]
fn send_and_its_completion() {
    let mut host = host();
    host.post_recv(1, 4 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 1);
    give(&mut host, &packet(O::SendMiddle, psn(1), Ext::None, MTU), 2);
    let mut last = packet(O::SendLastImm, psn(2), Ext::Imm(ImmDt([9, 8, 7, 6])), 5);
    last.bth.solicited = true;
    give(&mut host, &last, 3);
    // One acknowledgement for all three. D-13
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
    // G-06: what is behind the message is untouched.
    assert_eq!(done.data[2 * MTU..2 * MTU + 6], [3, 3, 3, 3, 3, 0xee]);
    assert_eq!(host.responder.msn(), 1);
}

/// not for us.
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

/// partitions that do not match.
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
    host.responder.set_dest_qpn(101);
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
    // The packet arrives before the NAK leaves: it need not be sent.
    expect(&ask(&mut host, &send(1)), 1, ACK);
    give(&mut host, &send(3), 0);
    give(&mut host, &send(2), 0);
    expect(&host.drain(0), 2, ACK);
}

/// B-12: what is wrong with a packet does not matter as long as it is not its turn.
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

/// B-13, E-01, E-03: RNR, and silence until it is resolved.
#[test]
fn b_13_rnr() {
    let mut host = host();
    host.responder.set_min_rnr_timer(14);
    let rnr = Syndrome::RnrNak { timer: 14 };
    expect(&ask(&mut host, &send(0)), 0, rnr);
    assert!(ask(&mut host, &send(1)).is_empty());
    assert!(ask(&mut host, &send(2)).is_empty());
    expect(&ask(&mut host, &send(0)), 0, rnr);
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    // WRITE with immediate too, and nothing is written before.
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
    assert_eq!(host.driver.memory[0], 0);
    host.post_recv(0, 0);
    expect(&ask(&mut host, &write), 1, ACK);
    assert_eq!(host.driver.memory[..5], [0xaa, 0xaa, 0xaa, 0xaa, 0]);
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
    assert_eq!(host.responder.msn(), 0);
    give(&mut host, &packet(O::SendLast, psn(1), Ext::None, 1), 0);
    assert_eq!(host.responder.msn(), 1);
    give(&mut host, &read(2, BASE, 2 * MTU as u32 + 1), 0);
    assert_eq!(host.responder.expected_psn(), psn(5).get());
    give(&mut host, &read(5, 0, 0), 0);
    give(&mut host, &fetch_add(6, BASE, 1), 0);
    give(&mut host, &packet(O::WriteOnly, psn(7), reth(0, 0), 0), 0);
    assert_eq!(host.responder.expected_psn(), psn(8).get());
    assert_eq!(host.responder.msn(), 5);
    // D-03, D-04, D-12: in order, the READs with their own answers.
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

/// D-01, D-20: an acknowledgement that is asked for in the middle.
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

/// No room in the batch: resumes with the same packet.
#[test]
fn no_room() {
    let mut host = host();
    give(&mut host, &read(0, BASE, 3 * MTU as u32), 0);
    host.driver.room = 1;
    assert!(host.transmit(0));
    host.driver.room = 8;
    let answers = host.drain(0);
    assert_eq!(
        answers.iter().map(|(p, _)| says(p).0).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

/// J-13: the receive work request in use is flushed.
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

/// Whatever a driver says of a packet without payload, the responder comes to an end.
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

/// A READ response acknowledges what came before the READ: no packet more.
#[test]
fn a_response_acknowledges() {
    let mut host = host();
    host.post_recv(0, 64);
    give(&mut host, &send(0), 0);
    give(&mut host, &read(1, BASE, 4), 0);
    let answers = host.drain(0);
    assert_eq!(said(&answers), [(1, O::ReadResponseOnly, Some(ACK))]);
}
