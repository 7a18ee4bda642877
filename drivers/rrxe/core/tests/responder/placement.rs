// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The memory placement extensions (IBA A19): FLUSH and ATOMIC WRITE.

use super::*;
use rrxe_core::wire::{Feth, Opcode};
use rrxe_core::Flush;

fn flush_of(n: u32, feth: Feth, reth: Reth) -> Packet {
    packet(O::Flush, psn(n), Ext::Flush(feth, reth), 0)
}

/// Returns a FLUSH of a range for global visibility.
fn flush(n: u32, va: u64, len: u32) -> Packet {
    let feth = Feth {
        placement: Feth::GLOBAL,
        level: Feth::RANGE,
    };
    let rkey = RKEY;
    flush_of(n, feth, Reth { va, rkey, len })
}

fn atomic_write(n: u32, va: u64, len: u32, payload: usize) -> Packet {
    packet(O::AtomicWrite, psn(n), reth(va, len), payload)
}

/// Expects the response to both: an empty READ RESPONSE ONLY.
#[track_caller]
fn expect_done(responses: &[(Packet, Vec<u8>)], n: u32, messages: u32) {
    assert_eq!(said(responses), [(n, O::ReadResponseOnly, Some(ACK))]);
    assert!(responses[0].1.is_empty());
    assert_eq!(msn(&responses[0].0), messages);
}

/// G-26, B-05, D-08: a FLUSH takes a PSN, counts as a message, and is executed before its response.
#[test]
fn g_26_flush() {
    let mut host = host();
    host.post_recv(0, 64);
    expect_done(&ask(&mut host, &flush(0, BASE, 4096)), 0, 1);
    let whole = Feth {
        placement: Feth::PERSISTENT | Feth::GLOBAL,
        level: Feth::REGION,
    };
    // Address and length are ignored for the whole region.
    let anything = Reth {
        va: 3,
        rkey: RKEY,
        len: u32::MAX,
    };
    expect_done(&ask(&mut host, &flush_of(1, whole, anything)), 1, 2);
    assert_eq!(
        host.driver.flushes,
        [
            Flush {
                global: true,
                persistent: false,
                range: Some((BASE, 4096))
            },
            Flush {
                global: true,
                persistent: true,
                range: None
            }
        ]
    );
    // There are no other effects.
    assert_eq!(host.driver.rq.len(), 1);
    assert_eq!(host.responder.expected_psn(), psn(2).get());
    assert!(host.driver.regions[0].bytes.iter().all(|&b| b == 0));
    assert_eq!(host.driver.events, [ResponderEvent::CommEstablished]);
}

/// G-26: the FLUSH is executed after the earlier WRITEs.
#[test]
fn g_26_flush_comes_after_writes() {
    let mut host = host();
    let write = packet(O::WriteOnly, psn(0), reth(BASE, 4), 4);
    give(&mut host, &write, 5);
    assert!(host.driver.flushes.is_empty());
    give(&mut host, &flush(1, BASE, 4), 0);
    assert_eq!(host.driver.regions[0].bytes[..4], [5; 4]);
    assert_eq!(host.driver.flushes.len(), 1);
    // D-03: its response acknowledges the WRITE.
    expect_done(&host.drain(0), 1, 2);
}

/// G-26, G-13: invalid FLUSHes.
#[test]
fn g_26_invalid_flushes() {
    let rkey = RKEY;
    let (va, len) = (BASE, 64);
    let with =
        |placement, level, len| flush_of(0, Feth { placement, level }, Reth { va, rkey, len });
    let mut payload = flush(0, va, len);
    payload.payload_len = 4;
    let cases = [
        // Reserved levels.
        with(1, 2, len),
        with(1, 3, len),
        // No guarantee, or only reserved ones.
        with(0, 0, len),
        with(0x0c, 0, len),
        // oA19: less than 2^31 bytes.
        with(1, 0, 1 << 31),
        with(1, 0, u32::MAX),
        payload,
    ];
    for packet in cases {
        let mut host = host();
        expect(&ask(&mut host, &packet), 0, INVALID);
        assert!(host.driver.flushes.is_empty());
        assert!(host.error);
    }
    // Guarantees that the queue pair does not allow.
    for (global, persistent, placement, right) in [
        (false, true, Feth::GLOBAL, false),
        (true, false, Feth::PERSISTENT, false),
        (true, false, Feth::PERSISTENT | Feth::GLOBAL, false),
        (false, true, Feth::PERSISTENT | Feth::GLOBAL, false),
        (true, false, Feth::GLOBAL, true),
        (false, true, Feth::PERSISTENT, true),
        (true, true, Feth::PERSISTENT | Feth::GLOBAL, true),
    ] {
        let mut host = host();
        host.responder.set_access(false, false, false);
        host.responder.set_flush_access(global, persistent);
        let responses = ask(&mut host, &with(placement, Feth::RANGE, len));
        if right {
            expect_done(&responses, 0, 1);
        } else {
            expect(&responses, 0, INVALID);
        }
    }
    // G-02: in the middle of a message.
    let mut host = host();
    let first = packet(O::WriteFirst, psn(0), reth(BASE, 2 * MTU as u32), MTU);
    give(&mut host, &first, 0);
    give(&mut host, &flush(1, BASE, 4), 0);
    expect(&host.drain(0), 1, INVALID);
}

/// G-10: a FLUSH needs a valid key, and a valid range if it has one, even if empty.
#[test]
fn g_10_flush_of_foreign_memory() {
    let end = BASE + MEMORY as u64;
    for (va, len, key) in [
        (BASE, 0, RKEY + 1),
        (BASE, 4, RKEY + 1),
        (end - 4, 5, RKEY),
        (BASE - 1, 4, RKEY),
    ] {
        let mut host = host();
        let mut packet = flush(0, va, len);
        if let Ext::Flush(_, reth) = &mut packet.ext {
            reth.rkey = key;
        }
        expect(&ask(&mut host, &packet), 0, ACCESS);
        assert!(host.driver.events.contains(&ResponderEvent::AccessError));
    }
    let mut host = host();
    expect_done(&ask(&mut host, &flush(0, BASE, 0)), 0, 1);
}

/// G-25, B-05, D-08
#[test]
fn g_25_atomic_write() {
    let mut host = host();
    host.post_recv(0, 64);
    expect_done(&ask(&mut host, &atomic_write(0, BASE + 8, 8, 8)), 0, 1);
    assert_eq!(host.driver.regions[0].bytes[8..16], [0xaa; 8]);
    assert!(host.driver.regions[0].bytes[16..].iter().all(|&b| b == 0));
    assert_eq!(host.driver.rq.len(), 1);
    assert_eq!(host.responder.expected_psn(), psn(1).get());
}

/// G-25: exactly 8 bytes, announced as such, and aligned. It requires WRITE access.
#[test]
fn g_25_invalid_atomic_writes() {
    let mut cases: Vec<Packet> = (0..=16)
        .chain([MTU])
        .filter(|&n| n != 8)
        .flat_map(|n| {
            [
                atomic_write(0, BASE, 8, n),
                atomic_write(0, BASE, n as u32, n),
                atomic_write(0, BASE, n as u32, 8),
            ]
        })
        .collect();
    cases.extend((1..8).map(|offset| atomic_write(0, BASE + offset, 8, 8)));
    for packet in cases {
        let mut host = host();
        expect(&ask(&mut host, &packet), 0, INVALID);
        assert_eq!(host.driver.atomics, 0, "{packet:?}");
    }
    // G-13
    for (write, atomic) in [(false, true), (true, false)] {
        let mut host = host();
        host.responder.set_access(true, write, atomic);
        let responses = ask(&mut host, &atomic_write(0, BASE, 8, 8));
        if write {
            expect_done(&responses, 0, 1);
        } else {
            expect(&responses, 0, INVALID);
        }
    }
    // G-10
    let mut host = host();
    let end = BASE + MEMORY as u64;
    expect(&ask(&mut host, &atomic_write(0, end, 8, 8)), 0, ACCESS);
}

/// C-10: neither is executed again. C-09, C-13: both responses are repeated while stored.
#[test]
fn c_10_duplicates() {
    let mut host = host();
    let write = atomic_write(0, BASE, 8, 8);
    let first = ask(&mut host, &write);
    host.driver.regions[0].bytes[0] = 7;
    assert_eq!(ask(&mut host, &write), first);
    assert_eq!(
        (host.driver.regions[0].bytes[0], host.driver.atomics),
        (7, 1)
    );
    let flush_it = flush(1, BASE, 8);
    let first = ask(&mut host, &flush_it);
    assert_eq!(ask(&mut host, &flush_it), first);
    assert_eq!(host.driver.flushes.len(), 1);
    // Another request with the PSN of the executed one.
    assert!(ask(&mut host, &flush(0, BASE, 8)).is_empty());
    assert!(ask(&mut host, &atomic_write(1, BASE, 8, 8)).is_empty());
    assert!(ask(&mut host, &read(0, BASE, 8)).is_empty());
    // Four later requests replace them.
    for n in 2..6 {
        assert_eq!(ask(&mut host, &read(n, BASE, 8)).len(), 1);
    }
    assert!(ask(&mut host, &write).is_empty());
    assert!(ask(&mut host, &flush_it).is_empty());
    assert!(!host.error);
}

/// C-14, C-15: both need a free resource. A FLUSH beyond the limit is dropped, not refused.
#[test]
fn c_14_outstanding() {
    for packet in [flush(0, BASE, 8), atomic_write(0, BASE, 8, 8)] {
        let mut host = host();
        host.responder.set_resources(Vec::new());
        expect(&ask(&mut host, &packet), 0, INVALID);
    }
    let mut host = host();
    host.responder.set_resources(vec![Resource::default(); 2]);
    for n in 0..4 {
        give(&mut host, &flush(n, BASE, 8), 0);
    }
    assert_eq!(host.driver.flushes.len(), 2);
    let responses: Vec<u32> = host.drain(0).iter().map(|(p, _)| says(p).0).collect();
    // The third was dropped; the fourth was early.
    assert_eq!(responses, [0, 1, 2]);
    for n in 2..4 {
        expect_done(&ask(&mut host, &flush(n, BASE, 8)), n, n + 1);
    }
    assert!(!host.error);
    give(&mut host, &read(4, BASE, 8), 0);
    give(&mut host, &read(5, BASE, 8), 0);
    give(&mut host, &atomic_write(6, BASE, 8, 8), 0);
    let responses = host.drain(0);
    assert_eq!(says(&responses[2].0), (6, O::Acknowledge, Some(INVALID)));
}

/// A driver that implements neither refuses both.
#[test]
fn without_the_extensions() {
    struct Plain;
    impl rrxe_core::ResponderEnv for Plain {
        fn fetch_recv(&mut self) -> Option<u32> {
            None
        }
        fn write_recv(&mut self, _: u32) -> Result<(), Fault> {
            Ok(())
        }
        fn check_remote(
            &mut self,
            _: u32,
            _: u64,
            _: u32,
            _: rrxe_core::RemoteAccess,
        ) -> Result<rrxe_core::DomainId, Fault> {
            Ok(rrxe_core::DomainId::default())
        }
        fn write_remote(&mut self, _: u32, _: u64) -> Result<(), Fault> {
            Ok(())
        }
        fn atomic(&mut self, _: u32, _: u64, _: rrxe_core::AtomicOp) -> Result<u64, Fault> {
            Ok(0)
        }
        fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
            Ok(())
        }
        fn complete_recv(&mut self, _: rrxe_core::RecvCompletion) {}
        fn event(&mut self, _: ResponderEvent) {}
        fn transmit(
            &mut self,
            packet: &rrxe_core::TxPacket,
            count: u32,
        ) -> (u32, Result<(), TxError>) {
            assert_eq!((packet.opcode, count), (Opcode(0x11), 1));
            (1, Ok(()))
        }
    }
    for packet in [flush(0, BASE, 8), atomic_write(0, BASE, 8, 8)] {
        let mut responder = host().responder;
        let outcome = responder.handle_packet(Time::from_ns(0), &packet, &mut Plain);
        assert!(outcome.transmit);
        assert!(
            responder
                .poll_transmit(Time::from_ns(0), 8, &mut Plain)
                .fatal
        );
        assert_eq!(responder.msn.get(), 0);
    }
}
