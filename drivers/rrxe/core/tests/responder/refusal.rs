// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Refused requests.

use super::*;

/// G-01, G-02: opcodes out of order, and all other invalid requests.
#[test]
fn g_01_invalid_requests() {
    let imm = Ext::Imm(ImmDt([0; 4]));
    let atomic = Ext::Atomic(AtomicEth {
        va: BASE,
        rkey: RKEY,
        swap_add: 1,
        compare: 0,
    });
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
        (&open_send, O::FetchAdd, atomic, 0),
        (&open_send, O::CompareSwap, atomic, 0),
        (&open_write, O::FetchAdd, atomic, 0),
        (&open_write, O::CompareSwap, atomic, 0),
        (&open_send, O::Unsupported, Ext::None, 0),
        (&open_write, O::Unsupported, Ext::None, 0),
        // Lengths: G-04, and the total of a WRITE.
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
        (&fresh, O::WriteOnly, reth(BASE, (1 << 31) + 1), MTU),
        // A READ or atomic request has no payload.
        (&fresh, O::ReadRequest, reth(BASE, 4), 4),
        (&fresh, O::FetchAdd, atomic, 8),
        (&fresh, O::CompareSwap, atomic, 1),
    ];
    for (start, operation, ext, len) in cases {
        let (mut host, n) = start();
        let open = n == 1 && host.driver.regions[0].bytes[0] == 0;
        let responses = ask(&mut host, &packet(operation, psn(n), ext, len));
        let what = format!("{operation:?} {ext:?} {len} at {n}");
        assert_eq!(
            said(&responses),
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
        // No request gets a response anymore.
        assert!(ask(&mut host, &send(n)).is_empty(), "{what}");
    }
}

/// G-09: an access to 0 bytes needs no key.
#[test]
fn g_09_zero_length() {
    let mut host = host();
    host.driver.regions[0].valid = false;
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
    let responses = ask(&mut host, &read(2, 1, 0));
    assert_eq!(said(&responses), [(2, O::ReadResponseOnly, Some(ACK))]);
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
        assert!(host.driver.regions[0].bytes.iter().all(|&b| b == 0));
    }
}

/// G-10: the refusal of the packet with the immediate completes a receive. The refusal of an
/// earlier packet does not, because the responder does not know of the immediate yet.
#[test]
fn g_10_write_with_immediate() {
    let (mtu, imm) = (MTU as u32, ImmDt([1; 4]));
    let only = |rkey| {
        let (va, len) = (BASE, 4);
        let ext = Ext::RethImm(Reth { va, rkey, len }, imm);
        packet(O::WriteOnlyImm, psn(0), ext, 4)
    };
    let mut host = host();
    host.post_recv(0, 0);
    host.post_recv(1, 0);
    expect(&ask(&mut host, &only(RKEY + 1)), 0, ACCESS);
    assert_eq!(statuses(&host), [Status::LocAccess]);
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);
    assert_eq!(host.driver.rq.len(), 1);
    assert!(host.error);

    // Without a receive, the event reports it.
    let mut host = self::host();
    expect(&ask(&mut host, &only(RKEY + 1)), 0, ACCESS);
    assert_eq!(statuses(&host), []);
    assert!(host.driver.events.contains(&ResponderEvent::AccessError));

    // The key becomes invalid before the last packet arrives, so that the copy fails.
    let first = packet(O::WriteFirst, psn(0), reth(BASE, mtu + 4), MTU);
    let last = packet(O::WriteLastImm, psn(1), Ext::Imm(imm), 4);
    let mut host = self::host();
    host.post_recv(0, 0);
    expect(&ask(&mut host, &first), 0, ACK);
    host.driver.regions[0].valid = false;
    expect(&ask(&mut host, &last), 1, ACCESS);
    assert_eq!(statuses(&host), [Status::LocAccess]);

    let mut host = self::host();
    host.post_recv(0, 0);
    host.driver.regions[0].valid = false;
    expect(&ask(&mut host, &first), 0, ACCESS);
    assert!(ask(&mut host, &last).is_empty());
    assert_eq!(statuses(&host), []);
    assert_eq!(host.driver.rq.len(), 1);
    assert!(host.driver.events.contains(&ResponderEvent::AccessError));
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
        host.driver.rq[0].fault = Some(fault);
        expect(&ask(&mut host, &send(0)), 0, OPERATIONAL);
        assert_eq!(statuses(&host), [status]);
        assert!(host.error);
    }
}

/// A SEND longer than the receive work request.
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
    // The key is invalid now.
    assert!(ask(
        &mut host,
        &packet(O::SendOnlyInvalidate, psn(1), invalidate, 4)
    )
    .is_empty());
    assert!(host.error);
    assert_ne!(statuses(&host)[1], Status::Success);
}

/// G-22: requests before a failed invalidation get their responses, and there is no NAK.
#[test]
fn g_22_responses_before_a_failed_invalidation() {
    let mut host = host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    give(&mut host, &send(0), 0);
    give(&mut host, &read(1, BASE, 4), 0);
    let invalidate = Ext::Ieth(Ieth { rkey: RKEY + 1 });
    give(
        &mut host,
        &packet(O::SendOnlyInvalidate, psn(2), invalidate, 4),
        0,
    );
    let responses = host.drain(0);
    assert_eq!(said(&responses), [(1, O::ReadResponseOnly, Some(ACK))]);
    assert!(host.error);
    assert_eq!(statuses(&host), [Status::Success, Status::RemInvReq]);
    assert!(host.driver.regions[0].valid);
}

/// G-08: 2^31 bytes are allowed.
#[test]
fn g_08_longest() {
    let mut host = host();
    let longest = packet(O::WriteFirst, psn(0), reth(BASE, 1 << 31), MTU);
    // Refused because of its range, not its length.
    expect(&ask(&mut host, &longest), 0, ACCESS);
}

/// G-10: a refused request leaves earlier ones unaffected, and ends the queue pair.
#[test]
fn g_10_nothing_more_is_taken() {
    let mut host = host();
    host.post_recv(0, 64);
    let good = packet(O::WriteOnly, psn(0), reth(BASE, 4), 4);
    expect(&ask(&mut host, &good), 0, ACK);
    give(&mut host, &read(1, 0, 4), 0);
    // Even before the NAK has left.
    give(
        &mut host,
        &packet(O::WriteOnly, psn(1), reth(BASE, 4), 4),
        7,
    );
    give(&mut host, &send(2), 7);
    give(&mut host, &good, 7);
    expect(&host.drain(0), 1, ACCESS);
    assert_eq!(
        host.driver.regions[0].bytes[..5],
        [0xaa, 0xaa, 0xaa, 0xaa, 0]
    );
    assert_eq!(statuses(&host), []);
    assert!(ask(&mut host, &good).is_empty());
}

/// G-12: no event if a receive work request reports the error.
#[test]
fn g_12_one_report_of_an_error() {
    let mut host = host();
    host.post_recv(0, 2 * MTU);
    give(&mut host, &packet(O::SendFirst, psn(0), Ext::None, MTU), 0);
    give(&mut host, &read(1, BASE, 4), 0);
    expect(&host.drain(0), 1, INVALID);
    assert_eq!(statuses(&host), [Status::RemInvReq]);
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);
}

/// G-13: a disabled operation is refused as such, with or without bytes.
#[test]
fn g_13_empty_messages_need_rights_too() {
    let imm = Ext::RethImm(
        Reth {
            va: 0,
            rkey: 0,
            len: 0,
        },
        ImmDt([0; 4]),
    );
    for packet in [
        packet(O::WriteOnly, psn(0), reth(0, 0), 0),
        packet(O::WriteOnlyImm, psn(0), imm, 0),
        read(0, 0, 0),
    ] {
        let mut host = host();
        host.post_recv(0, 64);
        host.responder.set_access(false, false, true);
        expect(&ask(&mut host, &packet), 0, INVALID);
        assert_eq!(host.driver.rq.len(), 1);
    }
}
