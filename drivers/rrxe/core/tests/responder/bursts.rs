// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Bursts of packets in the middle of a message.

use super::*;

fn middle(operation: O, n: u32) -> Packet {
    packet(operation, psn(n), Ext::None, MTU)
}

#[test]
fn a_burst_counts_as_its_packets() {
    let mut host = host();
    host.post_recv(1, 6 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 1);
    let first = middle(O::SendMiddle, 1);
    assert!(first.starts_burst());
    // As many as the receive work request has space for.
    assert_eq!(host.responder.accepts_burst(&first), 5);
    give(&mut host, &first.burst(4), 2);
    assert_eq!(host.responder.expected_psn(), psn(5).get());
    give(&mut host, &packet(O::SendLast, psn(5), Ext::None, 5), 3);
    expect(&host.drain(0), 5, ACK);
    let done = &host.driver.received[0];
    assert_eq!(done.completion.byte_len, 5 * MTU as u32 + 5);
    assert_eq!(done.data[MTU..5 * MTU], [2; 4 * MTU]);
    assert_eq!(host.responder.msn.get(), 1);
}

#[test]
fn uncertain_packets_form_no_burst() {
    let mut host = host();
    host.post_recv(1, 3 * MTU + 1);
    let alone = |host: &Host, packet: &Packet| assert_eq!(host.responder.accepts_burst(packet), 1);
    // No message is in progress.
    alone(&host, &middle(O::SendMiddle, 0));
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 1);
    // Out of order, of another message, of another size, for another partition.
    alone(&host, &middle(O::SendMiddle, 2));
    alone(&host, &middle(O::WriteMiddle, 1));
    alone(&host, &packet(O::SendMiddle, psn(1), Ext::None, MTU - 4));
    let mut other = middle(O::SendMiddle, 1);
    other.bth.pkey = 0x8001;
    alone(&host, &other);
    assert_eq!(host.responder.accepts_burst(&middle(O::SendMiddle, 1)), 2);
    // Packets that start or end a message, or have more headers than a BTH.
    for operation in [O::SendFirst, O::SendLast, O::SendOnly, O::WriteFirst] {
        assert!(!middle(operation, 1).starts_burst());
    }
}

#[test]
fn a_burst_of_a_write_leaves_its_last_packet() {
    let mut host = host();
    let reth = Reth {
        va: BASE,
        rkey: RKEY,
        len: 4 * MTU as u32,
    };
    give(
        &mut host,
        &packet(O::WriteFirst, psn(0), Ext::Reth(reth), MTU),
        1,
    );
    assert_eq!(host.responder.accepts_burst(&middle(O::WriteMiddle, 1)), 2);
    give(&mut host, &middle(O::WriteMiddle, 1).burst(2), 2);
    give(&mut host, &packet(O::WriteLast, psn(3), Ext::None, MTU), 3);
    expect(&host.drain(0), 3, ACK);
}

/// The header of the next packet of a burst, also across the PSN wrap.
#[test]
fn headers_of_a_burst() {
    let mut bth = middle(O::WriteMiddle, 0).bth;
    bth.psn = Psn::new(0xff_ffff);
    let next = Packet::next_header(&bth.to_bytes());
    bth.psn = Psn::new(0);
    assert_eq!(next, bth.to_bytes());
}
