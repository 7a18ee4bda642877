// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The common parts of the tests of the transport core.
//!
//! A [`Host`] is one endpoint: a queue pair with a [`Driver`] that has its memory and queues. A
//! [`Pair`] connects two hosts by a bad link in simulated time.

mod attributes;
pub mod capture;
mod crc32;
mod driver;
mod frame;
mod host;
pub mod layout;
mod pair;
mod random;
mod reorder_buffer;
mod request;
mod schedule;

pub use attributes::*;
pub use crc32::crc32_le;
pub use driver::*;
pub use frame::*;
pub use host::*;
pub use pair::*;
pub use random::Random;
pub use reorder_buffer::ReorderBuffer;
pub use request::{Op, Operands, Request, DATAGRAM};
pub use schedule::Schedule;

use rrxe_core::{wire, Ext, Packet, Psn, Service};

/// The remote key of a host's memory.
pub const RKEY: u32 = 0x1234_5600;
/// The virtual address at which a host's memory starts.
pub const BASE: u64 = 0x7f00_0000_1000;
/// Bytes of a host's memory.
pub const MEMORY: usize = 1 << 20;
/// Depth of a send queue.
pub const DEPTH: usize = 128;
/// The Q_Key of the datagram tests.
pub const QKEY: u32 = 0x1122_3344;

/// The IP and UDP headers of packets whose headers do not matter.
pub const NO_IP: [u8; 20] = [0; 20];
pub const NO_UDP: [u8; 8] = [0; 8];

/// Returns a packet for a host, as the peer of a reliable connection would send it.
pub fn packet(operation: wire::Operation, psn: Psn, ext: Ext, payload_len: usize) -> Packet {
    packet_of(Service::Rc, operation, psn, ext, payload_len)
}

/// Returns a packet for a host. It asks for an acknowledgement.
pub fn packet_of(
    service: Service,
    operation: wire::Operation,
    psn: Psn,
    ext: Ext,
    payload_len: usize,
) -> Packet {
    let pad = (payload_len as u8).wrapping_neg() & 3;
    Packet {
        bth: wire::Bth {
            pad,
            ackreq: !operation.is_response(),
            ..wire::Bth::new(wire::Opcode::new(service, operation), 100, psn)
        },
        operation,
        xrc_srqn: 0,
        ext,
        header_len: 12,
        payload_len: payload_len as u32,
        packets: 1,
    }
}

/// Returns an ACKNOWLEDGE with this syndrome.
pub fn acknowledge(psn: Psn, syndrome: wire::Syndrome) -> Packet {
    let aeth = wire::Aeth::new(syndrome, Psn::new(0));
    packet(wire::Operation::Acknowledge, psn, Ext::Aeth(aeth), 0)
}
