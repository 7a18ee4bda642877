// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a responder does, statement by statement: against a peer made of single packets.

mod common;

use common::{packet, packet_of, Host, BASE, MEMORY, QKEY, RKEY, START_PSN};
use rrxe_core::wire::{AtomicEth, Deth, Ieth, ImmDt, NakCode, Operation as O, Reth, Syndrome};
use rrxe_core::{
    Ext, Fault, Packet, Psn, RecvOpcode, ResponderEvent, SendOp, SendRequest, Service, Status,
};

const MTU: usize = 1024;
const ACK: Syndrome = Syndrome::ACK_UNLIMITED;
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
const OPERATIONAL: Syndrome = Syndrome::Nak(NakCode::RemoteOperational);
const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::SequenceError);

fn host() -> Host {
    Host::new(Service::Rc, 0, MTU as u32)
}

/// The PSN with this index, from the first that is expected on.
fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[1]).add(n)
}

fn reth(va: u64, len: u32) -> Ext {
    Ext::Reth(Reth {
        va,
        rkey: RKEY,
        len,
    })
}

fn fetch_add(n: u32, va: u64, add: u64) -> Packet {
    let eth = AtomicEth {
        va,
        rkey: RKEY,
        swap_add: add,
        compare: 0,
    };
    packet(O::FetchAdd, psn(n), Ext::Atomic(eth), 0)
}

fn read(n: u32, va: u64, len: u32) -> Packet {
    packet(O::ReadRequest, psn(n), reth(va, len), 0)
}

fn send(n: u32) -> Packet {
    packet(O::SendOnly, psn(n), Ext::None, 4)
}

/// Takes a packet with a payload of `fill`, without polling for answers.
fn give(host: &mut Host, packet: &Packet, fill: u8) {
    let _ = host.take(0, packet, &vec![fill; packet.payload_len as usize]);
}

/// Takes a packet and returns the answers.
fn ask(host: &mut Host, packet: &Packet) -> Vec<(Packet, Vec<u8>)> {
    give(host, packet, 0xaa);
    host.drain(0)
}

/// What an answer says: index of its PSN, operation, syndrome if any.
fn says(answer: &Packet) -> (u32, O, Option<Syndrome>) {
    let syndrome = match answer.ext {
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => Some(Syndrome::decode(aeth.syndrome)),
        _ => None,
    };
    (answer.psn().since(psn(0)), answer.operation, syndrome)
}

fn said(answers: &[(Packet, Vec<u8>)]) -> Vec<(u32, O, Option<Syndrome>)> {
    answers.iter().map(|(packet, _)| says(packet)).collect()
}

fn msn(answer: &Packet) -> u32 {
    match answer.ext {
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => aeth.msn.get(),
        _ => panic!("no AETH"),
    }
}

/// Expects exactly one ACKNOWLEDGE.
#[track_caller]
fn expect(answers: &[(Packet, Vec<u8>)], n: u32, syndrome: Syndrome) {
    assert_eq!(said(answers), [(n, O::Acknowledge, Some(syndrome))]);
}

fn statuses(host: &Host) -> Vec<Status> {
    host.driver
        .received
        .iter()
        .map(|r| r.completion.status)
        .collect()
}

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

/// C-01, C-02, C-03
#[test]
fn c_01_duplicate_send_and_write() {
    let mut host = host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    let write = packet(O::WriteOnly, psn(1), reth(BASE, 4), 4);
    expect(&ask(&mut host, &write), 1, ACK);
    host.driver.memory[0] = 7;
    let again = ask(&mut host, &send(0));
    expect(&again, 1, ACK);
    assert_eq!(msn(&again[0].0), 2);
    expect(&ask(&mut host, &write), 1, ACK);
    assert_eq!(host.driver.memory[0], 7);
    assert_eq!(statuses(&host), [Status::Success]);
    assert_eq!(host.driver.rq.len(), 1);
    let mut quiet = send(0);
    quiet.bth.ackreq = false;
    assert!(ask(&mut host, &quiet).is_empty());
}

fn filled() -> Host {
    let mut host = host();
    for (i, byte) in host.driver.memory.iter_mut().enumerate() {
        *byte = (i / 256) as u8;
    }
    host
}

/// C-05, C-06, C-07: a READ again, whole or from the middle on.
#[test]
fn c_05_duplicate_read() {
    let mut host = filled();
    let len = 3 * MTU as u32 + 10;
    let first = ask(&mut host, &read(0, BASE + 8, len));
    assert_eq!(first.len(), 4);
    assert_eq!(first[3].1, host.driver.memory[8 + 3 * MTU..][..10]);
    assert_eq!(ask(&mut host, &read(0, BASE + 8, len)), first);
    let mtu = MTU as u64;
    let tail = ask(&mut host, &read(1, BASE + 8 + mtu, len - MTU as u32));
    assert_eq!(
        said(&tail),
        [
            (1, O::ReadResponseFirst, Some(ACK)),
            (2, O::ReadResponseMiddle, None),
            (3, O::ReadResponseLast, Some(ACK))
        ]
    );
    assert!(tail.iter().zip(&first[1..]).all(|(a, b)| a.1 == b.1));
    let end = ask(&mut host, &read(3, BASE + 8 + 3 * mtu, 10));
    assert_eq!(said(&end), [(3, O::ReadResponseOnly, Some(ACK))]);
    // Another start, another end, another key.
    assert!(ask(&mut host, &read(1, BASE + 9 + mtu, len - MTU as u32)).is_empty());
    assert!(ask(&mut host, &read(1, BASE + 8 + mtu, len - MTU as u32 - 1)).is_empty());
    assert!(ask(&mut host, &read(1, BASE + 8, len)).is_empty());
    let mut other = read(0, BASE + 8, len);
    other.ext = Ext::Reth(Reth {
        va: BASE + 8,
        rkey: RKEY + 1,
        len,
    });
    assert!(ask(&mut host, &other).is_empty());
    assert_eq!(host.responder.msn(), 1);
}

/// C-09, C-13: the last max_dest_rd_atomic can be replayed, no older ones.
#[test]
fn c_13_replayable() {
    for max in [1u8, 3, 16] {
        let mut host = filled();
        host.responder.set_max_dest_rd_atomic(max);
        for n in 0..40u32 {
            let packet = match n % 2 {
                0 => read(n, BASE, 4),
                _ => fetch_add(n, BASE + 4096, 1),
            };
            assert_eq!(ask(&mut host, &packet).len(), 1);
        }
        for n in 0..40u32 {
            let again = match n % 2 {
                0 => ask(&mut host, &read(n, BASE, 4)),
                _ => ask(&mut host, &fetch_add(n, BASE + 4096, 1)),
            };
            assert_eq!(
                again.len(),
                usize::from(n + u32::from(max) >= 40),
                "{n} of {max}"
            );
        }
    }
}

/// C-10, C-11
#[test]
fn c_10_duplicate_atomic() {
    let mut host = host();
    let first = ask(&mut host, &fetch_add(0, BASE + 16, 5));
    let Ext::AtomicAck(_, ack) = first[0].0.ext else {
        panic!()
    };
    assert_eq!(ack.original, 0);
    host.driver.memory[16] = 77;
    assert_eq!(ask(&mut host, &fetch_add(0, BASE + 16, 5)), first);
    assert_eq!((host.driver.memory[16], host.driver.atomics), (77, 1));
}

/// C-14, C-15
#[test]
fn c_14_too_many() {
    for max in 0..=16u8 {
        let mut host = host();
        host.responder.set_max_dest_rd_atomic(max);
        let max = u32::from(max);
        for n in 0..=max {
            give(&mut host, &read(n, BASE, 1), 0);
        }
        let answers = host.drain(0);
        assert_eq!(answers.len() as u32, max + 1);
        assert_eq!(
            says(&answers[max as usize].0),
            (max, O::Acknowledge, Some(INVALID))
        );
        assert!(host.error);
    }
}

/// C-17: the same READ again while its answer is being made. Every run of responses is in order,
/// and every byte is right.
#[test]
fn c_17_duplicate_during_the_answer() {
    let mut host = filled();
    let len = 10 * MTU as u32;
    give(&mut host, &read(0, BASE, len), 0);
    host.budget = 4;
    host.transmit(0);
    give(&mut host, &read(0, BASE, len), 0);
    let answers = host.drain(0);
    let indices: Vec<u32> = answers.iter().map(|(p, _)| says(p).0).collect();
    assert_eq!(indices, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(answers[4].0.operation, O::ReadResponseFirst);
    assert_eq!(answers[13].0.operation, O::ReadResponseLast);
    for (packet, payload) in &answers {
        let at = says(packet).0 as usize * MTU;
        assert_eq!(*payload, host.driver.memory[at..at + MTU]);
    }
}

/// C-18: the memory is gone.
#[test]
fn c_18_replay_without_memory() {
    let mut host = host();
    assert_eq!(ask(&mut host, &read(0, BASE, 4)).len(), 1);
    host.driver.rkey = None;
    assert!(ask(&mut host, &read(0, BASE, 4)).is_empty());
    assert!(!host.error);
}

/// G-28: the memory goes in the middle of the answer.
#[test]
fn g_28_memory_goes_during_the_answer() {
    let mut host = host();
    give(&mut host, &read(0, BASE, 10 * MTU as u32), 0);
    host.budget = 3;
    host.transmit(0);
    host.driver.rkey = None;
    let answers = host.drain(0);
    assert_eq!(answers.len(), 4);
    assert_eq!(says(&answers[3].0), (3, O::Acknowledge, Some(ACCESS)));
    assert!(host.error);
    assert!(host.driver.events.contains(&ResponderEvent::AccessError));
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

/// G-01, G-02: opcodes out of order; and every other request that is refused as invalid.
#[test]
fn g_01_invalid_requests() {
    let imm = Ext::Imm(ImmDt([0; 4]));
    let mtu = MTU as u32;
    let open_send = || {
        let mut host = host();
        host.post_recv(0, 8 * MTU);
        assert_eq!(
            ask(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU)).len(),
            1
        );
        (host, 1)
    };
    let open_write = || {
        let mut host = host();
        host.post_recv(0, 8 * MTU);
        let first = packet(O::WriteFirst, psn(0), reth(BASE, 3 * mtu), MTU);
        assert_eq!(ask(&mut host, &first).len(), 1);
        (host, 1)
    };
    let fresh = || {
        let mut host = host();
        host.post_recv(0, 8 * MTU);
        (host, 0)
    };
    type Start<'a> = &'a dyn Fn() -> (Host, u32);
    let cases: Vec<(Start<'_>, O, Ext, usize)> = vec![
        (&fresh, O::SendMiddle, Ext::None, MTU),
        (&fresh, O::SendLast, Ext::None, 1),
        (&fresh, O::SendLastImm, imm, 1),
        (&fresh, O::WriteMiddle, Ext::None, MTU),
        (&fresh, O::WriteLast, Ext::None, 1),
        (&fresh, O::WriteLastImm, imm, 1),
        (&fresh, O::Unsupported, Ext::None, 0),
        (&open_send, O::SendFirst, Ext::None, MTU),
        (&open_send, O::SendOnly, Ext::None, 1),
        (&open_send, O::WriteMiddle, Ext::None, MTU),
        (&open_send, O::WriteLast, Ext::None, 1),
        (&open_send, O::WriteFirst, reth(BASE, 2 * mtu), MTU),
        (&open_send, O::WriteOnly, reth(BASE, 1), 1),
        (&open_send, O::ReadRequest, reth(BASE, 1), 0),
        (&open_write, O::SendMiddle, Ext::None, MTU),
        (&open_write, O::SendLast, Ext::None, 1),
        (&open_write, O::SendOnly, Ext::None, 1),
        (&open_write, O::WriteFirst, reth(BASE, 2 * mtu), MTU),
        (&open_write, O::WriteOnly, reth(BASE, 1), 1),
        (&open_write, O::ReadRequest, reth(BASE, 1), 0),
        // Lengths: G-04, and the sum of a WRITE.
        (&fresh, O::SendOnly, Ext::None, MTU + 4),
        (&fresh, O::SendFirst, Ext::None, MTU - 4),
        (&fresh, O::SendFirst, Ext::None, MTU + 4),
        (&open_send, O::SendMiddle, Ext::None, MTU - 4),
        (&open_send, O::SendLast, Ext::None, 0),
        (&open_send, O::SendLast, Ext::None, MTU + 4),
        (&fresh, O::WriteOnly, reth(BASE, 5), 4),
        (&fresh, O::WriteOnly, reth(BASE, 3), 4),
        (&fresh, O::WriteOnly, reth(BASE, 0), 4),
        (&fresh, O::WriteFirst, reth(BASE, mtu), MTU),
        (&fresh, O::WriteFirst, reth(BASE, 1), MTU),
        (&open_write, O::WriteLast, Ext::None, MTU),
        (&open_write, O::WriteLast, Ext::None, 1),
        // G-08
        (&fresh, O::ReadRequest, reth(BASE, (1 << 31) + 1), 0),
        (&fresh, O::WriteFirst, reth(BASE, (1 << 31) + 1), MTU),
        // A READ has no payload.
        (&fresh, O::ReadRequest, reth(BASE, 4), 4),
    ];
    for (start, operation, ext, len) in cases {
        let (mut host, n) = start();
        let open = n == 1 && host.driver.memory[0] == 0;
        let answers = ask(&mut host, &packet(operation, psn(n), ext, len));
        let what = format!("{operation:?} {ext:?} {len} at {n}");
        assert_eq!(
            said(&answers),
            [(n, O::Acknowledge, Some(INVALID))],
            "{what}"
        );
        assert!(host.error, "{what}");
        if open {
            assert_eq!(statuses(&host), [Status::RemInvReq], "{what}");
        } else {
            assert!(
                host.driver.events.contains(&ResponderEvent::RequestError),
                "{what}"
            );
        }
        // Nothing is answered any more.
        assert!(ask(&mut host, &send(n)).is_empty(), "{what}");
    }
}

/// G-09: no key is needed where nothing is accessed.
#[test]
fn g_09_zero_length() {
    let mut host = host();
    host.driver.rkey = None;
    host.post_recv(0, 0);
    expect(
        &ask(&mut host, &packet(O::WriteOnly, psn(0), reth(1, 0), 0)),
        0,
        ACK,
    );
    let imm = Ext::RethImm(
        Reth {
            va: 1,
            rkey: 2,
            len: 0,
        },
        ImmDt([1; 4]),
    );
    expect(
        &ask(&mut host, &packet(O::WriteOnlyImm, psn(1), imm, 0)),
        1,
        ACK,
    );
    let answers = ask(&mut host, &read(2, 1, 0));
    assert_eq!(said(&answers), [(2, O::ReadResponseOnly, Some(ACK))]);
    assert_eq!(host.driver.received[0].completion.byte_len, 0);
}

/// G-10, G-12
#[test]
fn g_10_remote_access() {
    let end = BASE + MEMORY as u64;
    let cases = [
        packet(O::WriteOnly, psn(0), reth(end - 3, 4), 4),
        packet(
            O::WriteFirst,
            psn(0),
            reth(end - MTU as u64, MTU as u32 + 1),
            MTU,
        ),
        packet(
            O::WriteOnly,
            psn(0),
            Ext::Reth(Reth {
                va: BASE,
                rkey: 1,
                len: 4,
            }),
            4,
        ),
        packet(O::WriteOnly, psn(0), reth(u64::MAX, 4), 4),
        read(0, end - 3, 4),
        read(0, BASE - 1, 4),
        read(0, u64::MAX, 1 << 31),
        fetch_add(0, end, 1),
    ];
    for packet in cases {
        let mut host = host();
        expect(&ask(&mut host, &packet), 0, ACCESS);
        assert!(host.error);
        assert!(host.driver.events.contains(&ResponderEvent::AccessError));
        assert!(host.driver.memory.iter().all(|&b| b == 0));
    }
}

/// G-13
#[test]
fn g_13_access_flags() {
    let write = packet(O::WriteOnly, psn(0), reth(BASE, 4), 4);
    let cases = [
        ((false, true, true), read(0, BASE, 4)),
        ((true, false, true), write),
        ((true, true, false), fetch_add(0, BASE, 1)),
    ];
    for ((read, write, atomic), packet) in cases {
        let mut host = host();
        host.responder.set_access(read, write, atomic);
        expect(&ask(&mut host, &packet), 0, INVALID);
    }
}

/// G-14
#[test]
fn g_14_alignment() {
    for offset in 1..8 {
        let mut host = host();
        expect(&ask(&mut host, &fetch_add(0, BASE + offset, 1)), 0, INVALID);
        assert_eq!(host.driver.atomics, 0);
    }
}

/// G-16, J-13
#[test]
fn g_16_bad_receive_request() {
    for (fault, status) in [
        (Fault::Protection, Status::LocProt),
        (Fault::Malformed, Status::LocQpOp),
    ] {
        let mut host = host();
        host.post_recv(0, 64);
        host.driver.recv_fault = Some(fault);
        expect(&ask(&mut host, &send(0)), 0, OPERATIONAL);
        assert_eq!(statuses(&host), [status]);
        assert!(host.error);
    }
}

/// A SEND that is too long for the receive work request.
#[test]
fn send_too_long() {
    let mut host = host();
    host.post_recv(0, MTU + 3);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 0);
    give(&mut host, &packet(O::SendLast, psn(1), Ext::None, 4), 0);
    expect(&host.drain(0), 1, INVALID);
    assert_eq!(statuses(&host), [Status::LocLen]);
    assert!(host.error);
}

/// G-22
#[test]
fn g_22_send_with_invalidate() {
    let mut host = host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    let invalidate = Ext::Ieth(Ieth { rkey: RKEY });
    expect(
        &ask(
            &mut host,
            &packet(O::SendOnlyInvalidate, psn(0), invalidate, 4),
        ),
        0,
        ACK,
    );
    assert_eq!(host.driver.invalidated, [RKEY]);
    assert_eq!(host.driver.received[0].completion.invalidated, Some(RKEY));
    // It is gone now.
    assert!(ask(
        &mut host,
        &packet(O::SendOnlyInvalidate, psn(1), invalidate, 4)
    )
    .is_empty());
    assert!(host.error);
    assert_ne!(statuses(&host)[1], Status::Success);
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

fn uc() -> Host {
    Host::new(Service::Uc, 0, MTU as u32)
}

fn uc_packet(operation: O, n: u32, ext: Ext, len: usize) -> Packet {
    packet_of(Service::Uc, operation, psn(n), ext, len)
}

/// H-01, H-03, H-04: a lost packet costs its message, not the next.
#[test]
fn h_03_resynchronises() {
    let mut host = uc();
    let three = |at: u32| {
        [
            uc_packet(O::WriteFirst, at, reth(BASE, 3 * MTU as u32), MTU),
            uc_packet(O::WriteMiddle, at + 1, Ext::None, MTU),
            uc_packet(O::WriteLastImm, at + 2, Ext::Imm(ImmDt([1; 4])), MTU),
        ]
    };
    host.post_recv(0, 0);
    let [first, _, last] = three(0);
    assert!(ask(&mut host, &first).is_empty());
    assert!(ask(&mut host, &last).is_empty());
    assert!(statuses(&host).is_empty());
    for packet in three(3) {
        assert!(ask(&mut host, &packet).is_empty());
    }
    assert_eq!(statuses(&host), [Status::Success]);
    // After a gap that takes the start of a message along, too.
    assert!(ask(&mut host, &uc_packet(O::WriteMiddle, 90, Ext::None, MTU)).is_empty());
    host.post_recv(0, 0);
    for packet in three(92) {
        assert!(ask(&mut host, &packet).is_empty());
    }
    assert_eq!(statuses(&host), [Status::Success; 2]);
    assert_eq!(host.responder.expected_psn(), psn(95).get());
}

/// H-05
#[test]
fn h_05_receive_request_is_used_again() {
    let mut host = uc();
    host.post_recv(1, 2 * MTU);
    host.post_recv(2, 2 * MTU);
    give(&mut host, &uc_packet(O::SendFirst, 0, Ext::None, MTU), 1);
    give(&mut host, &uc_packet(O::SendOnly, 5, Ext::None, 8), 2);
    let done = &host.driver.received[0];
    assert_eq!((done.wr_id, done.completion.byte_len), (1, 8));
    assert_eq!(done.data[..8], [2; 8]);
    assert_eq!(host.driver.rq.len(), 1);
}

/// E-12, H-01: nothing is answered whatever is wrong.
#[test]
fn e_12_uc_drops() {
    let mut host = uc();
    let bad = [
        uc_packet(O::SendOnly, 0, Ext::None, 4),
        uc_packet(
            O::WriteOnly,
            1,
            Ext::Reth(Reth {
                va: BASE,
                rkey: 1,
                len: 4,
            }),
            4,
        ),
        uc_packet(O::WriteOnly, 2, reth(BASE, 9), 4),
        uc_packet(O::SendLast, 3, Ext::None, 4),
    ];
    for packet in bad {
        assert!(ask(&mut host, &packet).is_empty());
        assert!(!host.error);
    }
    host.post_recv(0, 3);
    assert!(ask(&mut host, &uc_packet(O::SendOnly, 4, Ext::None, 4)).is_empty());
    assert!(ask(&mut host, &uc_packet(O::SendOnly, 5, Ext::None, 3)).is_empty());
    assert_eq!(statuses(&host), [Status::Success]);
}

fn datagram(qkey: u32, n: u32, len: usize) -> Packet {
    let ext = Ext::Deth(Deth {
        qkey,
        src_qpn: 0x77,
    });
    packet_of(Service::Ud, O::SendOnly, Psn::new(n), ext, len)
}

/// I-01, I-03, I-04, I-05, A-33, E-12
#[test]
fn i_01_datagrams() {
    let mut host = Host::new(Service::Ud, 0, MTU as u32);
    // Nobody waits for it.
    assert!(ask(&mut host, &datagram(QKEY, 5, 4)).is_empty());
    host.post_recv(1, 40 + 8);
    // Too long for what waits.
    assert!(ask(&mut host, &datagram(QKEY, 99, 9)).is_empty());
    // The wrong key.
    assert!(ask(&mut host, &datagram(QKEY + 1, 99, 8)).is_empty());
    assert_eq!(host.driver.events, [ResponderEvent::QkeyViolation]);
    // Longer than the MTU.
    assert!(ask(&mut host, &datagram(QKEY, 99, MTU + 4)).is_empty());
    assert!(statuses(&host).is_empty());
    for n in [7, 7, 3] {
        host.post_recv(2, 4096);
        assert!(ask(&mut host, &datagram(QKEY, n, 8)).is_empty());
    }
    assert_eq!(statuses(&host), [Status::Success; 3]);
    let done = &host.driver.received[0];
    assert_eq!(
        (done.wr_id, done.completion.byte_len, done.completion.src_qp),
        (1, 48, 0x77)
    );
    assert_eq!(
        done.data[39..],
        [0xee, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]
    );
}

/// Both ends together: UC and UD over a clean link.
#[test]
fn unreliable_services_end_to_end() {
    for service in [Service::Uc, Service::Ud] {
        let mut pair = common::Pair::new(service, MTU as u32, 3);
        let len = if service == Service::Uc {
            5 * MTU + 1
        } else {
            MTU
        };
        let data = pair.rng.bytes(len);
        for _ in 0..10 {
            pair.hosts[1].post_recv(0, len + 40);
            let request = SendRequest {
                op: SendOp::SendImm,
                length: len as u32,
                signaled: true,
                remote_qpn: 101,
                qkey: QKEY,
                pkey: 0xffff,
                ..Default::default()
            };
            pair.hosts[0].post(request, data.clone()).unwrap();
        }
        pair.run();
        let at = if service == Service::Ud { 40 } else { 0 };
        assert_eq!(pair.hosts[1].driver.received.len(), 10);
        for done in &pair.hosts[1].driver.received {
            assert_eq!(done.completion.status, Status::Success);
            assert_eq!(done.data[at..at + len], data);
        }
    }
}
