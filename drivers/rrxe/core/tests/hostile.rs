// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Hostile input: whatever arrives, nothing panics, nothing is placed out of bounds (the harness
//! would panic), and no work request completes twice.

use proptest::prelude::*;
use rrxe_core::wire::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Opcode, Reth};
use rrxe_core::{Ext, Packet, ParseError, Psn, Service};
use rrxe_testkit::{packet_of, Host, Op, Pair, Random, Request, BASE, RKEY};

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// parsing accepts any input, and reports only ranges within the packet.
    #[test]
    fn any_bytes_parse_or_not(head in prop::collection::vec(any::<u8>(), 0..80), total: u32) {
        for total in [total, head.len() as u32, u32::from(total as u8)] {
            if let Ok(packet) = Packet::parse(&head, total) {
                let parts = u64::from(packet.header_len)
                    + u64::from(packet.payload_len)
                    + u64::from(packet.bth.pad)
                    + 4;
                prop_assert_eq!(parts, u64::from(total));
                prop_assert!(usize::from(packet.header_len) <= head.len());
                prop_assert_eq!(packet.bth.pad, (packet.payload_len as u8).wrapping_neg() & 3);
            }
        }
    }
}

/// one by one.
#[test]
fn refused_by_the_parser() {
    let good = [0x04, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1];
    assert!(Packet::parse(&good, 16).is_ok());
    for len in 0..12 {
        assert_eq!(Packet::parse(&good[..len], 16), Err(ParseError::Length));
    }
    for total in (0..16).chain([17, 18, 19]) {
        assert_eq!(Packet::parse(&good, total), Err(ParseError::Length));
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        bytes
    };
    for version in 1..16 {
        assert_eq!(
            Packet::parse(&with(1, 0x40 | version), 16),
            Err(ParseError::Version)
        );
    }
    // More padding than bytes.
    assert_eq!(Packet::parse(&with(1, 0x70), 16), Err(ParseError::Length));
    assert_eq!(Packet::parse(&with(7, 0), 16), Err(ParseError::DestQp));
    for opcode in (0x80..=0xff).filter(|&o| o != 0x81 && o >> 5 != 5) {
        assert_eq!(Packet::parse(&with(0, opcode), 16), Err(ParseError::Opcode));
    }
    // A header that the opcode requires is missing.
    assert_eq!(Packet::parse(&with(0, 0x0a), 16), Err(ParseError::Length));
}

/// Returns a packet that may or may not be valid.
fn random_packet(random: &mut Random, service: Service, bases: [u32; 2], mtu: usize) -> Packet {
    let opcode = match service {
        Service::Rc => random.below(0x20) as u8,
        Service::Uc => 0x20 | random.below(0x0c) as u8,
        Service::Ud => 0x64 | random.below(2) as u8,
        Service::Xrc => 0xa0 | random.below(0x20) as u8,
    };
    let operation = Opcode(opcode).operation().unwrap();
    // Near the expected PSN, or anywhere.
    let base = bases[usize::from(operation.is_response())];
    let psn = match random.below(10) {
        0 => Psn::new(random.next_u64() as u32),
        1..=3 => Psn::new(base).add(random.below(40)).sub(20),
        _ => Psn::new(base).add(random.below(3)),
    };
    let len = match random.below(5) {
        0 => 0,
        1 => random.below(9) as usize,
        2 => random.below(2 * mtu as u32) as usize,
        _ => mtu,
    };
    let va = match random.below(4) {
        0 => random.next_u64(),
        1 => BASE + u64::from(random.below(8)),
        _ => BASE + 8 * u64::from(random.below(1000)),
    };
    let rkey = if random.chance(900) {
        RKEY
    } else {
        random.next_u64() as u32
    };
    let reth_len = match random.below(4) {
        0 => random.next_u64() as u32,
        1 => len as u32,
        _ => random.below(10 * mtu as u32),
    };
    let reth = Reth {
        va,
        rkey,
        len: reth_len,
    };
    let syndrome = match random.below(4) {
        0 => random.next_u64() as u8,
        1 => 0x60,
        2 => 0x20 | random.below(32) as u8,
        _ => 0x1f,
    };
    let aeth = Aeth {
        syndrome,
        msn: Psn::new(random.next_u64() as u32),
    };
    let imm = ImmDt([1; 4]);
    use rrxe_core::wire::Operation as O;
    let ext = match operation {
        _ if service == Service::Ud => {
            let qkey = if random.chance(900) {
                rrxe_testkit::QKEY
            } else {
                0
            };
            let deth = Deth {
                qkey,
                src_qpn: random.next_u64() as u32 & 0xff_ffff,
            };
            match operation {
                O::SendOnlyImm => Ext::DethImm(deth, imm),
                _ => Ext::Deth(deth),
            }
        }
        O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => Ext::Imm(imm),
        O::SendLastInvalidate | O::SendOnlyInvalidate => Ext::Ieth(Ieth { rkey }),
        O::WriteFirst | O::WriteOnly | O::ReadRequest | O::AtomicWrite => Ext::Reth(reth),
        O::Flush => {
            let feth = Feth {
                placement: random.below(16) as u8,
                level: random.below(4) as u8,
            };
            Ext::Flush(feth, reth)
        }
        O::WriteOnlyImm => Ext::RethImm(reth, imm),
        O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly | O::Acknowledge => {
            Ext::Aeth(aeth)
        }
        O::AtomicAcknowledge => Ext::AtomicAck(aeth, AtomicAckEth { original: 5 }),
        O::CompareSwap | O::FetchAdd => Ext::Atomic(AtomicEth {
            va,
            rkey,
            swap_add: 1,
            compare: 0,
        }),
        _ => Ext::None,
    };
    let mut packet = packet_of(service, operation, psn, ext, len);
    packet.bth.ackreq = random.chance(500);
    packet.bth.solicited = random.chance(500);
    if service == Service::Xrc {
        packet.xrc_srqn = random.below(2);
    }
    packet
}

/// Returns a work request that the service supports.
fn random_request(random: &mut Random, service: Service, mtu: u32) -> Request {
    use Op as O;
    let ops: &[Op] = match service {
        Service::Ud => &[O::Send, O::SendImm],
        Service::Uc => &[O::Send, O::SendImm, O::Write, O::WriteImm, O::LocalInv],
        Service::Rc | Service::Xrc => &[
            O::Send,
            O::SendImm,
            O::SendInv,
            O::Write,
            O::WriteImm,
            O::Read,
            O::CompareSwap,
            O::FetchAdd,
            O::LocalInv,
            O::Flush,
            O::AtomicWrite,
        ],
    };
    let op = random.pick(ops);
    Request {
        op,
        fence: random.chance(200),
        signaled: random.chance(500),
        length: match op {
            Op::AtomicWrite => 8,
            _ => random.below(5 * mtu),
        },
        to: (service == Service::Ud).then_some(rrxe_testkit::DATAGRAM),
        ..Default::default()
    }
}

/// Thousands of random packets in random states. Each seed is a new queue pair.
#[test]
fn random_packets() {
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let service = [Service::Rc, Service::Xrc, Service::Uc, Service::Ud][seed as usize % 4];
        let mtu = [256, 1024][random.below(2) as usize];
        let mut host = Host::new(service, 0, mtu);
        host.requester.set_rnr_retry(random.below(8) as u8);
        host.driver.srq = Some(0);
        let mut now = 0;
        let mut recvs = 0;
        for _ in 0..300 {
            now += u64::from(random.below(300_000));
            match random.below(10) {
                0 => {
                    let request = random_request(&mut random, service, mtu);
                    let size = request.length.max(8) as usize;
                    let _ = host.post(request, vec![0; size]);
                }
                1 => {
                    host.post_recv(recvs, random.below(5000) as usize);
                    recvs += 1;
                }
                2 => {
                    host.driver.space = Some(random.below(5));
                    host.transmit(now);
                    host.driver.space = None;
                }
                3 => {
                    // Not `drain`: a hostile READ may ask for gigabytes.
                    host.transmit(now);
                    host.driver.out.clear();
                }
                4 => {
                    let _ = host.timeout(now);
                }
                _ => {
                    let sent = host.requester.next_psn();
                    let bases = [host.responder.expected_psn(), Psn::new(sent).sub(3).get()];
                    let packet = random_packet(&mut random, service, bases, mtu as usize);
                    let _ = host.take(now, &packet, &vec![0; packet.payload_len as usize]);
                }
            }
            let posted = host.driver.sq.len() as u64;
            let done = host.statuses().len() as u64;
            assert_eq!(posted - done, u64::from(host.requester.outstanding()));
        }
        host.go_to_error();
        assert_eq!(host.statuses().len(), host.driver.sq.len());
        for (i, done) in host.driver.received.iter().enumerate() {
            assert_eq!(done.wr_id, i as u64);
        }
    }
}

/// A connection with packets injected by a third party: it may fail, but each side ends properly
/// with all work requests completed.
#[test]
fn injected_packets() {
    for seed in 0..200 {
        let mut pair = Pair::new(Service::Rc, 256, seed);
        let mut random = Random::new(seed);
        for step in 0..200 {
            for side in 0..2 {
                if random.chance(200) {
                    let request = random_request(&mut random, Service::Rc, 256);
                    let size = request.length.max(8) as usize;
                    let _ = pair.hosts[side].post(request, vec![0; size]);
                }
                pair.hosts[side].post_recv(step, 256 * 5);
            }
            if random.chance(100) {
                let to = random.below(2) as usize;
                let host = &mut pair.hosts[to];
                let sent = host.requester.next_psn();
                let bases = [host.responder.expected_psn(), Psn::new(sent).sub(3).get()];
                let packet = random_packet(&mut random, Service::Rc, bases, 256);
                // A READ of gigabytes would only take time.
                let small = !matches!(packet.ext, Ext::Reth(reth) if reth.len > 1 << 16);
                if small {
                    let _ = host.take(pair.now, &packet, &vec![0; packet.payload_len as usize]);
                }
            }
            pair.step();
        }
        // One side may wait for a peer that has failed: that ends, too.
        pair.run();
        for (side, host) in pair.hosts.iter().enumerate() {
            let posted = host.driver.sq.len();
            assert_eq!(host.statuses().len(), posted, "side {side}");
        }
    }
}
