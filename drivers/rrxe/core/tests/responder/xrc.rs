// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Extended reliable connections (IBA A14): the target.

use super::*;

const SRQ: u32 = 0x12_3456;

fn target() -> Host {
    let mut host = Host::new(Service::Xrc, 0, MTU as u32);
    host.driver.srq = Some(SRQ);
    host
}

fn xrc(operation: O, n: u32, srqn: u32, ext: Ext, len: usize) -> Packet {
    let mut packet = packet_of(Service::Xrc, operation, psn(n), ext, len);
    packet.xrc_srqn = srqn;
    packet
}

/// Each request is executed like one of RC, receive work requests come from the queue that it
/// names, and the responses have XRC's class.
#[test]
fn requests_of_every_kind() {
    let mut host = target();
    for n in 0..4 {
        host.post_recv(n, 2 * MTU);
    }
    let mut responses = Vec::new();
    let atomic = AtomicEth {
        va: BASE,
        rkey: RKEY,
        swap_add: 3,
        compare: 0,
    };
    let imm = Ext::Imm(ImmDt([1; 4]));
    let mtu = MTU as u32;
    for packet in [
        xrc(O::SendOnly, 0, SRQ, Ext::None, 4),
        xrc(O::SendFirst, 1, SRQ, Ext::None, MTU),
        xrc(O::SendLastImm, 2, SRQ, imm, 4),
        xrc(O::WriteFirst, 3, SRQ, reth(BASE + 64, mtu + 4), MTU),
        xrc(O::WriteLastImm, 4, SRQ, imm, 4),
        xrc(O::ReadRequest, 5, SRQ, reth(BASE, mtu + 4), 0),
        xrc(O::FetchAdd, 7, SRQ, Ext::Atomic(atomic), 0),
        // A plain WRITE takes no receive work request from any queue.
        xrc(O::WriteOnly, 8, 0, reth(BASE, 4), 4),
    ] {
        responses.extend(ask(&mut host, &packet));
    }
    let operations: Vec<O> = responses.iter().map(|(p, _)| p.operation).collect();
    assert_eq!(
        operations,
        [
            O::Acknowledge,
            O::Acknowledge,
            O::Acknowledge,
            O::Acknowledge,
            O::Acknowledge,
            O::ReadResponseFirst,
            O::ReadResponseLast,
            O::AtomicAcknowledge,
            O::Acknowledge,
        ]
    );
    for (packet, _) in &responses {
        assert_eq!(packet.bth.opcode.0 >> 5, 5);
        assert_eq!(packet.xrc_srqn, 0);
    }
    assert_eq!(statuses(&host), [Status::Success; 3]);
    assert_eq!((host.driver.atomics, host.responder.msn.get()), (1, 6));
    //
    assert!(ask(&mut host, &send(9)).is_empty());
}

/// B-13, E-01: a queue without receive work requests.
#[test]
fn e_01_empty_shared_queue() {
    let mut host = target();
    let rnr = Syndrome::RnrNak { timer: 1 };
    let packet = xrc(O::SendOnly, 0, SRQ, Ext::None, 4);
    expect(&ask(&mut host, &packet), 0, rnr);
    host.post_recv(0, 64);
    expect(&ask(&mut host, &packet), 0, ACK);
}

/// A queue that does not exist, or another queue in the middle of a message.
#[test]
fn wrong_shared_queues() {
    let mut host = target();
    host.post_recv(0, 64);
    expect(
        &ask(&mut host, &xrc(O::SendOnly, 0, SRQ + 1, Ext::None, 4)),
        0,
        INVALID,
    );
    assert!(host.error);
    assert_eq!(host.driver.rq.len(), 1);
    assert!(host.driver.events.contains(&ResponderEvent::RequestError));

    let mut host = target();
    host.post_recv(0, 2 * MTU);
    give(&mut host, &xrc(O::SendFirst, 0, SRQ, Ext::None, MTU), 0);
    give(&mut host, &xrc(O::SendLast, 1, SRQ + 1, Ext::None, 4), 0);
    expect(&host.drain(0), 1, INVALID);
    assert_eq!(statuses(&host), [Status::RemInvReq]);
}
