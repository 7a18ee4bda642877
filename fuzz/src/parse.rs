// SPDX-License-Identifier: GPL-2.0

//! The packet parser: it accepts any input, and accepted packets survive a round trip.

use rrxe_core::Packet;
use rrxe_testkit::{headers_of, layout};

/// Input: the length of the UDP payload in two bytes, then the start of that payload.
pub fn run(data: &[u8]) {
    let Some((total, head)) = data.split_first_chunk() else {
        return;
    };
    let total = u16::from_le_bytes(*total);
    // Parses with the length that the input claims, and with its actual length.
    for total in [u32::from(total), head.len() as u32] {
        if let Ok(packet) = Packet::parse(head, total) {
            check(&packet, head, total);
        }
    }
}

/// Checks an accepted packet.
fn check(packet: &Packet, head: &[u8], total: u32) {
    let header_len = usize::from(packet.header_len);
    assert!(
        header_len <= rrxe_core::MAX_HEADER,
        "longer than any header"
    );
    let opcode = head[0];
    let known = packet.operation != rrxe_core::wire::Operation::Unsupported;
    if known && opcode != 0x81 {
        let mut expected: usize = layout::extensions(opcode).iter().map(|h| h.size()).sum();
        if has_xrceth(packet) {
            expected += 4;
        }
        assert_eq!(
            header_len,
            12 + expected,
            "extension headers of {opcode:#x}"
        );
    }
    let parts = header_len as u64
        + u64::from(packet.payload_len)
        + u64::from(packet.bth.pad)
        + u64::from(rrxe_core::wire::ICRC_LEN);
    assert_eq!(parts, u64::from(total), "the parts are not the whole");
    assert!(packet.bth.pad <= 3);
    assert_eq!(
        packet.bth.pad,
        (packet.payload_len as u8).wrapping_neg() & 3
    );
    assert_ne!(packet.bth.dest_qpn, 0);

    if !has_xrceth(packet) {
        assert_eq!(packet.xrc_srqn, 0);
    }
    let emitted = headers_of(packet);
    assert_eq!(emitted.len(), header_len, "emitted with other headers");
    for (at, (a, b)) in emitted.iter().zip(head).enumerate() {
        let ignored = match at {
            12 if has_xrceth(packet) => 0xff,
            13..16 if has_xrceth(packet) => 0,
            16.. if has_xrceth(packet) => ignored(opcode & 0x1f, at - 4),
            _ => ignored(opcode, at),
        };
        assert_eq!(
            a & !ignored,
            b & !ignored,
            "byte {at} of {opcode:#x} is emitted otherwise"
        );
    }
    // The emitted packet has the original's meaning, without the ignored bits.
    if let Ok(again) = Packet::parse(&emitted, total) {
        assert_eq!(again, *packet);
    } else {
        panic!("what was emitted is not accepted");
    }
}

/// Returns whether an XRCETH with the number of a shared receive queue follows the BTH (IBA A14).
fn has_xrceth(packet: &Packet) -> bool {
    let known = packet.operation != rrxe_core::wire::Operation::Unsupported;
    packet.bth.opcode.0 >> 5 == 5 && known && !packet.is_response()
}

/// Returns the bits of a header byte that have no meaning: reserved ones, sent as zero.
fn ignored(opcode: u8, at: usize) -> u8 {
    match at {
        // FECN and BECN are kept; the other six bits are reserved.
        4 => 0x3f,
        8 => 0x7f,
        12..28 if opcode == 0x81 => 0xff,
        // In the DETH of a datagram.
        16 if opcode >> 5 == 3 => 0xff,
        // In a FETH, all but the lowest six bits of the last byte.
        12..15 if opcode == 0x1c => 0xff,
        15 if opcode == 0x1c => 0xc0,
        _ => 0,
    }
}
