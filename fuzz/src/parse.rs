// SPDX-License-Identifier: GPL-2.0

//! The packet parser: it accepts any input, and accepted packets survive a round trip.

use crate::script::{extensions, Extension};
use rrxe_core::{Ext, Packet};

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
        let mut expected: usize = extensions(opcode).iter().map(|e| length(*e)).sum();
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
        + u64::from(packet.pad)
        + u64::from(rrxe_core::wire::ICRC_LEN);
    assert_eq!(parts, u64::from(total), "the parts are not the whole");
    assert!(packet.pad <= 3);
    assert_eq!(packet.pad, (packet.payload_len as u8).wrapping_neg() & 3);
    assert_ne!(packet.bth.dest_qpn, 0);

    let mut emitted = packet.bth.to_bytes().to_vec();
    if has_xrceth(packet) {
        let srqn = packet.xrc_srqn;
        emitted.extend(rrxe_core::wire::XrcEth { srqn }.to_bytes());
    } else {
        assert_eq!(packet.xrc_srqn, 0);
    }
    emit(&packet.ext, &mut emitted);
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

fn length(extension: Extension) -> usize {
    match extension {
        Extension::Imm | Extension::Key | Extension::Aeth | Extension::Feth => 4,
        Extension::Deth | Extension::Original => 8,
        Extension::Reth => 16,
        Extension::Atomic => 28,
    }
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

fn emit(ext: &Ext, to: &mut Vec<u8>) {
    match ext {
        Ext::None => {}
        Ext::Imm(imm) => to.extend(imm.0),
        Ext::Ieth(ieth) => to.extend(ieth.to_bytes()),
        Ext::Reth(reth) => to.extend(reth.to_bytes()),
        Ext::RethImm(reth, imm) => {
            to.extend(reth.to_bytes());
            to.extend(imm.0);
        }
        Ext::Atomic(eth) => to.extend(eth.to_bytes()),
        Ext::Aeth(aeth) => to.extend(aeth.to_bytes()),
        Ext::AtomicAck(aeth, ack) => {
            to.extend(aeth.to_bytes());
            to.extend(ack.to_bytes());
        }
        Ext::Deth(deth) => to.extend(deth.to_bytes()),
        Ext::DethImm(deth, imm) => {
            to.extend(deth.to_bytes());
            to.extend(imm.0);
        }
        Ext::Flush(feth, reth) => {
            to.extend(feth.to_bytes());
            to.extend(reth.to_bytes());
        }
        Ext::Cnp => to.extend([0; 16]),
    }
}
