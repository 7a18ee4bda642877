// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets of other implementations. Each must parse, serialize to identical bytes, and have the
//! ICRC that the core computes. The ICRC must detect every bit change except in masked fields.

use rrxe_core::wire::{Opcode, Operation};
use rrxe_core::{Ext, Packet};
use rrxe_testkit::capture::{datagrams, Datagram};
use rrxe_testkit::headers_of;
use std::path::Path;

/// Returns every RoCEv2 frame of every capture, with the file name.
fn captured() -> Vec<(String, Datagram)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../selftests/vectors");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "pcap") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let before = all.len();
            let datagrams = datagrams(&std::fs::read(&path).unwrap());
            all.extend(datagrams.into_iter().map(|f| (name.clone(), f)));
            assert!(all.len() > before, "{name} holds no RoCEv2 packet");
        }
    }
    assert!(all.len() > 100);
    all
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect()
}

/// A CNP from ConnectX-4 Lx hardware.
fn hardware_cnp() -> Vec<u8> {
    hex(
        "e4 1d 2d ab 2b c2 7c fe 90 64 3b 32 08 00 45 c2 00 3c 71 8c 40 00 40 11 91 61 0a 00 11 01
         0a 00 12 01 00 00 12 b7 00 28 00 00 81 00 ff ff 40 00 01 18 00 00 00 00 00 00 00 00 00 00
         00 00 00 00 00 00 00 00 00 00 82 fd 00 2a",
    )
}

/// An RC RDMA WRITE ONLY from ConnectX-4 Lx hardware, from the BTH on (captured over RoCEv1).
fn hardware_write() -> Vec<u8> {
    hex(
        "0a 70 ff ff 00 00 01 0a 80 a7 88 bc 00 00 55 d4 c0 72 60 00 00 00 47 b3 00 00 00 05 00 00
         00 00 01 00 00 00 e3 d8 56 bb",
    )
}

/// The ACKNOWLEDGE for that WRITE.
fn hardware_ack() -> Vec<u8> {
    hex("11 40 ff ff 00 00 01 09 00 a7 88 c0 00 00 00 05 25 f0 c0 38")
}

fn parses_and_comes_back(ib: &[u8]) -> Packet {
    let packet = Packet::parse(ib, ib.len() as u32).unwrap();
    let header_len = usize::from(packet.header_len);
    assert_eq!(headers_of(&packet), ib[..header_len]);
    assert_eq!(
        header_len + packet.payload_len as usize + usize::from(packet.bth.pad) + 4,
        ib.len()
    );
    // The bytes after the headers do not matter.
    assert_eq!(
        Packet::parse(&ib[..header_len], ib.len() as u32),
        Ok(packet)
    );
    packet
}

#[test]
fn captured_packets_parse_and_come_back() {
    let mut opcodes = std::collections::BTreeSet::new();
    for (_, frame) in captured() {
        opcodes.insert(parses_and_comes_back(&frame.ib).bth.opcode.0);
    }
    // RC: SEND, WRITE (with immediate too), READ, ACKNOWLEDGE, atomics; UC WRITE; UD SEND.
    let rc = [
        0x00, 0x01, 0x02, 0x04, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0f, 0x11, 0x12,
    ];
    for opcode in rc.into_iter().chain([0x13, 0x14, 0x26, 0x27, 0x28, 0x64]) {
        assert!(opcodes.contains(&opcode), "no {opcode:#x} in {opcodes:x?}");
    }
}

#[test]
fn captured_icrcs_are_right() {
    for (name, frame) in captured() {
        assert!(frame.icrc_is_right(), "{name}");
    }
}

/// A-24, and the MigReq bit of the hardware.
#[test]
fn a_24_hardware() {
    let cnp = Datagram::cut(&hardware_cnp()).unwrap();
    assert_eq!(cnp.icrc(), [0x82, 0xfd, 0x00, 0x2a]);
    assert_eq!(parses_and_comes_back(&cnp.ib).bth.opcode, Opcode::CNP);

    let write = parses_and_comes_back(&hardware_write());
    assert_eq!(
        (write.bth.opcode, write.bth.pad, write.payload_len),
        (Opcode(0x0a), 3, 5)
    );
    assert!(write.bth.migreq);
    let ack = parses_and_comes_back(&hardware_ack());
    assert_eq!((ack.bth.opcode, ack.payload_len), (Opcode(0x11), 0));
    assert!(ack.bth.migreq);
}

/// Returns whether the ICRC masks this bit of the IP header, because it may change on the path.
fn ip_is_masked(ip_len: usize, byte: usize, bit: u8) -> bool {
    match (ip_len, byte) {
        // Type of service, time to live, header checksum.
        (20, 1 | 8 | 10 | 11) => true,
        // Traffic class and flow label; hop limit.
        (40, 0) => bit < 4,
        (40, 1 | 2 | 3 | 7) => true,
        _ => false,
    }
}

/// every bit is either masked, or its change is detected by the ICRC.
#[test]
fn every_bit_counts_or_is_masked() {
    let mut frames = captured();
    frames.push((
        "hardware CNP".into(),
        Datagram::cut(&hardware_cnp()).unwrap(),
    ));
    let mut seen = std::collections::BTreeSet::new();
    for (name, frame) in frames {
        // One packet of each kind and length is enough.
        if !seen.insert((frame.ip.len(), frame.ib[0], frame.ib.len())) {
            continue;
        }
        let check = |what: &str, changed: Datagram, byte: usize, bit: u8, masked: bool| {
            assert_eq!(
                changed.icrc_is_right(),
                masked,
                "{name}: {what} byte {byte} bit {bit}"
            );
        };
        for bit in 0..8 {
            for byte in 0..frame.ip.len() {
                let mut changed = frame.clone();
                changed.ip[byte] ^= 1 << bit;
                check(
                    "IP",
                    changed,
                    byte,
                    bit,
                    ip_is_masked(frame.ip.len(), byte, bit),
                );
            }
            for byte in 0..8 {
                let mut changed = frame.clone();
                changed.udp[byte] ^= 1 << bit;
                check("UDP", changed, byte, bit, byte >= 6);
            }
            // Headers, part of the payload, the padding and the ICRC itself.
            let len = frame.ib.len();
            for byte in (0..len.min(64)).chain(len.saturating_sub(12).max(64)..len) {
                let mut changed = frame.clone();
                changed.ib[byte] ^= 1 << bit;
                check("BTH+", changed, byte, bit, byte == 4);
            }
        }
    }
}

/// BTH, FETH and RETH in the layout of IBA A19. Not captured, but written by hand.
#[test]
fn a_flush() {
    let ib = hex(
        "1c 40 ff ff 00 00 01 0a 80 00 00 07 00 00 00 11 00 00 7f 00 00 00 10 00 12 34 56 78 00 00
         10 00 de ad be ef",
    );
    let packet = parses_and_comes_back(&ib);
    assert_eq!(
        (packet.operation, packet.payload_len),
        (Operation::Flush, 0)
    );
    let Ext::Flush(feth, reth) = packet.ext else {
        panic!()
    };
    assert_eq!((feth.placement, feth.level), (1, 1));
    assert_eq!(
        (reth.va, reth.rkey, reth.len),
        (0x7f00_0000_1000, 0x1234_5678, 0x1000)
    );
}

/// BTH, RETH and eight bytes in the layout of IBA A19. Not captured, but written by hand.
#[test]
fn an_atomic_write() {
    let ib = hex(
        "1d 40 ff ff 00 00 01 0a 80 00 00 07 00 00 7f 00 00 00 10 00 12 34 56 78 00 00 00 08 01 02
         03 04 05 06 07 08 de ad be ef",
    );
    let packet = parses_and_comes_back(&ib);
    assert_eq!(
        (packet.operation, packet.payload_len, packet.bth.pad),
        (Operation::AtomicWrite, 8, 0)
    );
    let Ext::Reth(reth) = packet.ext else {
        panic!()
    };
    assert_eq!(reth.len, 8);
}

/// XRC: the XRCETH follows the BTH of each request, and of no response (IBA A14). Not captured, but
/// RC packets from hardware converted to XRC.
#[test]
fn xrc_packets() {
    let rc = hex(
        "0a 70 ff ff 00 00 01 0a 80 a7 88 bc 00 00 55 d4 c0 72 60 00 00 00 47 b3 00 00 00 05 00 00
         00 00 01 00 00 00 e3 d8 56 bb",
    );
    let mut xrc = rc.clone();
    xrc[0] = 0xaa;
    xrc.splice(12..12, [0, 0x12, 0x34, 0x56]);
    let (rc, xrc) = (parses_and_comes_back(&rc), parses_and_comes_back(&xrc));
    assert_eq!((xrc.operation, xrc.ext), (rc.operation, rc.ext));
    assert_eq!((xrc.xrc_srqn, rc.xrc_srqn), (0x12_3456, 0));
    assert_eq!((xrc.payload_len, xrc.bth.pad), (rc.payload_len, rc.bth.pad));
    let ack = hex("b1 40 ff ff 00 00 01 09 00 a7 88 c0 00 00 00 05 25 f0 c0 38");
    let ack = parses_and_comes_back(&ack);
    assert!(ack.is_response());
    assert_eq!((ack.operation, ack.xrc_srqn), (Operation::Acknowledge, 0));
}
