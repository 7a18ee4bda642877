// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The rules of the wire format, for each opcode.

use rrxe_core::wire::{Bth, Opcode};
use rrxe_core::{Packet, ParseError, MAX_HEADER};
use rrxe_testkit::layout;

/// Returns the length of the extension headers that an opcode requires (IBA 9.2.1 and A17, tables
/// of the opcodes); `None` for unknown opcodes.
fn extension(opcode: u8) -> Option<usize> {
    let length = layout::extensions(opcode).iter().map(|h| h.size()).sum();
    match opcode {
        // Unsupported opcodes of RC get a NAK Invalid Request, whatever follows the BTH.
        0x00..=0x2b | 0x64 | 0x65 => Some(length),
        // Congestion notification.
        0x81 => Some(16),
        // XRC: the responses, the requests with an XRCETH, and unsupported opcodes.
        0xad..=0xb2 => Some(length),
        0xa0..=0xac | 0xb3 | 0xb4 | 0xb6 | 0xb7 | 0xbc | 0xbd => Some(4 + length),
        0xa0..=0xbf => Some(0),
        _ => None,
    }
}

/// Returns a packet of `len` bytes: a BTH and arbitrary bytes.
fn bytes(opcode: u8, pad: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; len.max(Bth::LEN)];
    bytes[..Bth::LEN].copy_from_slice(&[
        opcode,
        0x40 | (pad << 4),
        0xff,
        0xff,
        0,
        0,
        0,
        9,
        0x80,
        0,
        0,
        1,
    ]);
    bytes.truncate(len);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Packet, ParseError> {
    Packet::parse(bytes, bytes.len() as u32)
}

/// for each opcode, a packet is accepted if it holds BTH, extension headers, padding and
/// ICRC, and not if it is one byte shorter.
#[test]
fn a_10_shortest_packets() {
    for opcode in 0..=255u8 {
        for pad in 0..4u8 {
            for len in 0..80 {
                let result = parse(&bytes(opcode, pad, len));
                let Some(extension) = extension(opcode) else {
                    assert!(result.is_err(), "{opcode:#x} of {len} bytes");
                    continue;
                };
                let headers = Bth::LEN + extension;
                assert!(headers <= MAX_HEADER);
                let payload = len.checked_sub(headers + usize::from(pad) + 4);
                let Some(payload) = payload.filter(|_| len % 4 == 0) else {
                    let error = result.unwrap_err();
                    assert_eq!(error, ParseError::Length, "{opcode:#x} of {len} bytes");
                    continue;
                };
                let packet = result.unwrap_or_else(|e| panic!("{opcode:#x} of {len}: {e:?}"));
                assert_eq!(usize::from(packet.header_len), headers);
                assert_eq!(
                    (packet.payload_len as usize, packet.bth.pad),
                    (payload, pad)
                );
                // G-05: every accepted packet has the padding that its length requires.
                assert_eq!(usize::from(pad), (4 - payload % 4) % 4);
            }
        }
    }
}

/// any other version, with any opcode.
#[test]
fn a_02_versions() {
    for opcode in 0..=255u8 {
        for version in 1..16 {
            let mut packet = bytes(opcode, 0, 64);
            packet[1] |= version;
            assert_eq!(parse(&packet), Err(ParseError::Version));
        }
    }
}

/// queue pair 0, with any opcode.
#[test]
fn a_04_queue_pair_0() {
    for opcode in 0..=255u8 {
        let mut packet = bytes(opcode, 0, 64);
        packet[7] = 0;
        assert_eq!(parse(&packet), Err(ParseError::DestQp));
    }
}

/// classes and opcodes without a meaning are dropped. Reserved opcodes of RC and XRC are not,
/// because they have a response (G-01).
#[test]
fn a_09_opcodes() {
    for opcode in 0..=255u8 {
        let result = parse(&bytes(opcode, 0, 64));
        match extension(opcode) {
            Some(_) => assert_eq!(result.unwrap().bth.opcode, Opcode(opcode)),
            None => assert_eq!(result, Err(ParseError::Opcode), "{opcode:#x}"),
        }
    }
}

/// the reserved bits of the BTH have no effect. A-40: MigReq, FECN and BECN do not change the
/// kind of a packet.
#[test]
fn a_42_reserved_bits() {
    for opcode in (0..=255u8).filter(|&o| extension(o).is_some()) {
        let plain = bytes(opcode, 0, 64);
        let expected = parse(&plain).unwrap();
        for (at, mask) in [(4, 0x3f), (8, 0x7f)] {
            for bit in (0..8).filter(|bit| (mask >> bit) & 1 != 0) {
                let mut changed = plain.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(parse(&changed), Ok(expected));
            }
        }
        for (at, bit) in [(1, 0x40), (4, 0x80), (4, 0x40)] {
            let mut changed = plain.clone();
            changed[at] ^= bit;
            let packet = parse(&changed).unwrap();
            assert_eq!(
                (packet.operation, packet.ext, packet.payload_len),
                (expected.operation, expected.ext, expected.payload_len)
            );
        }
    }
}
