// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Common code of the core's tests.
//!
//! A [`Host`] is one endpoint: a queue pair with a [`Driver`] that has its memory and queues. A
//! [`Pair`] connects two hosts. The seed determines everything that happens.

#![allow(dead_code, reason = "each test file uses its part")]

mod driver;
mod host;
mod pair;

pub use driver::*;
pub use host::*;
pub use pair::*;

use rrxe_core::*;

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

/// SplitMix64.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

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
            opcode: wire::Opcode::new(service, operation),
            solicited: false,
            migreq: true,
            pad,
            version: 0,
            pkey: pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: 100,
            ackreq: !operation.is_response(),
            psn,
        },
        operation,
        xrc_srqn: 0,
        ext,
        header_len: 12,
        pad,
        payload_len: payload_len as u32,
        packets: 1,
    }
}

/// Returns an ACKNOWLEDGE with this syndrome.
pub fn acknowledge(psn: Psn, syndrome: wire::Syndrome) -> Packet {
    let aeth = wire::Aeth::new(syndrome, Psn::new(0));
    packet(wire::Operation::Acknowledge, psn, Ext::Aeth(aeth), 0)
}
