// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! UC and UD.

use super::*;

fn uc() -> Host {
    Host::new(Service::Uc, 0, MTU as u32)
}

fn uc_packet(operation: O, n: u32, ext: Ext, len: usize) -> Packet {
    packet_of(Service::Uc, operation, psn(n), ext, len)
}

/// H-01, H-03, H-04: a lost packet costs its message, but not the next one.
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
    // Also after a gap that includes the start of a message.
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

/// An invalid R_Key on an unreliable connection has a counter of its own, and no other effect.
#[test]
fn access_errors_are_counted() {
    let mut host = uc();
    let wrong = |at: u32| {
        let ext = Ext::Reth(Reth {
            va: BASE,
            rkey: RKEY ^ 1,
            len: 4,
        });
        uc_packet(O::WriteOnly, at, ext, 4)
    };
    for at in 0..3 {
        assert!(ask(&mut host, &wrong(at)).is_empty());
    }
    // A range beyond the region counts, too.
    let beyond = uc_packet(O::WriteOnly, 3, reth(BASE + MEMORY as u64, 4), 4);
    assert!(ask(&mut host, &beyond).is_empty());
    let counters = host.responder.counters;
    assert_eq!(
        (counters.access_errors.get(), counters.dropped.get()),
        (4, 0)
    );
    assert!(!host.error);
    ask(&mut host, &uc_packet(O::WriteOnly, 4, reth(BASE, 4), 4));
    assert_eq!(host.driver.regions[0].bytes[..4], [0xaa; 4]);
}

/// E-12, H-01: no error causes a response.
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
    // No receive work request.
    assert!(ask(&mut host, &datagram(QKEY, 5, 4)).is_empty());
    host.post_recv(1, 40 + 8);
    // Too long for the receive work request.
    assert!(ask(&mut host, &datagram(QKEY, 99, 9)).is_empty());
    // The invalid R_Key.
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

/// Both hosts together: UC and UD over a clean link.
#[test]
fn unreliable_services_end_to_end() {
    for service in [Service::Uc, Service::Ud] {
        let mut pair = rrxe_testkit::Pair::new(service, MTU as u32, 3);
        let len = if service == Service::Uc {
            5 * MTU + 1
        } else {
            MTU
        };
        let data = pair.random.bytes(len);
        for _ in 0..10 {
            pair.hosts[1].post_recv(0, len + 40);
            let request = Request {
                op: Op::SendImm,
                length: len as u32,
                signaled: true,
                to: (service == Service::Ud).then_some(rrxe_testkit::DATAGRAM),
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

/// H-01: no opcode has a response, in any state of a message.
#[test]
fn h_01_never_a_response() {
    for operation in [
        O::SendFirst,
        O::SendMiddle,
        O::SendLast,
        O::SendOnly,
        O::WriteMiddle,
        O::WriteLast,
    ] {
        for n in [0, 1, 5, 1 << 23, (1 << 24) - 1] {
            for len in [0, 1, MTU, MTU + 4] {
                let mut host = uc();
                assert!(ask(&mut host, &uc_packet(operation, n, Ext::None, len)).is_empty());
                assert!(!host.error);
            }
        }
    }
}

/// H-03: after a gap, the expected PSN follows that of the accepted packet, in either direction.
#[test]
fn h_03_any_psn() {
    let mut host = uc();
    for n in [0, 7, 3, 1 << 23, 1] {
        host.post_recv(0, 64);
        give(&mut host, &uc_packet(O::SendOnly, n, Ext::None, 4), 0);
        assert_eq!(host.responder.expected_psn(), psn(n + 1).get());
    }
    assert_eq!(statuses(&host), [Status::Success; 5]);
}

/// H-05: a SEND that loses its middle does not complete, and its data is overwritten.
#[test]
fn h_05_after_a_lost_middle() {
    let mut host = uc();
    host.post_recv(1, 3 * MTU);
    give(&mut host, &uc_packet(O::SendFirst, 0, Ext::None, MTU), 1);
    give(&mut host, &uc_packet(O::SendLast, 2, Ext::None, 8), 1);
    assert!(statuses(&host).is_empty());
    give(&mut host, &uc_packet(O::SendFirst, 3, Ext::None, MTU), 2);
    give(&mut host, &uc_packet(O::SendLast, 4, Ext::None, 8), 3);
    let done = &host.driver.received[0];
    assert_eq!((done.wr_id, done.completion.byte_len), (1, MTU as u32 + 8));
    assert_eq!(done.data[..MTU], [2; MTU]);
    assert_eq!(done.data[MTU..MTU + 8], [3; 8]);
}

/// I-01: any PSN is accepted. A-33: all bits of the Q_Key are compared.
#[test]
fn i_01_any_psn() {
    let mut host = Host::new(Service::Ud, 0, MTU as u32);
    let mut taken = 0;
    for n in [5, 4, 4, 0xff_ffff, 0, 0x80_0000] {
        host.post_recv(0, 64);
        assert!(ask(&mut host, &datagram(QKEY, n, 4)).is_empty());
        taken += 1;
        assert_eq!(statuses(&host), vec![Status::Success; taken]);
    }
    for bit in 0..32 {
        host.post_recv(0, 64);
        assert!(ask(&mut host, &datagram(QKEY ^ (1 << bit), 0, 4)).is_empty());
        assert_eq!(host.driver.events.len(), bit + 1);
    }
    assert_eq!(statuses(&host).len(), taken);
}

/// I-05: immediate data, the sender and the solicited bit in the completion of a datagram.
#[test]
fn i_05_contents_of_a_completion() {
    let mut host = Host::new(Service::Ud, 0, MTU as u32);
    host.post_recv(3, 4096);
    let deth = Deth {
        qkey: QKEY,
        src_qpn: 0xab_cdef,
    };
    let ext = Ext::DethImm(deth, ImmDt([1, 2, 3, 4]));
    let mut packet = packet_of(Service::Ud, O::SendOnlyImm, psn(0), ext, 6);
    packet.bth.solicited = true;
    assert!(ask(&mut host, &packet).is_empty());
    let done = host.driver.received[0].completion;
    assert_eq!(done.src_qp, 0xab_cdef);
    assert_eq!(done.imm, Some(u32::from_ne_bytes([1, 2, 3, 4])));
    assert_eq!(done.byte_len, 46);
    assert!(done.solicited);
}
