// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sent packets, and their ICRCs.

use crate::crc32_le;
use rrxe_core::{icrc::Prefix, *};

/// A sent packet, as its receiver sees it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The BTH and the extension headers, followed by zeros.
    pub head: [u8; MAX_HEADER],
    /// Bytes of BTH and extension headers.
    pub header_len: usize,
    /// Bytes of padding.
    pub pad: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns a packet of the core with its payload.
    pub fn new(packet: &TxPacket, payload: Vec<u8>) -> Frame {
        assert_eq!(payload.len(), packet.payload.len() as usize);
        let mut head = [0; MAX_HEADER];
        head[..packet.header().len()].copy_from_slice(packet.header());
        Frame {
            head,
            header_len: packet.header().len(),
            pad: packet.pad,
            payload,
        }
    }

    /// Returns the BTH and the extension headers.
    pub fn header(&self) -> &[u8] {
        &self.head[..self.header_len]
    }

    /// Returns the length of the UDP payload, with padding and ICRC.
    pub fn total_len(&self) -> u32 {
        (self.header_len + self.payload.len() + usize::from(self.pad)) as u32 + wire::ICRC_LEN
    }

    /// Returns the parsed packet.
    pub fn packet(&self) -> Packet {
        Packet::parse(self.header(), self.total_len()).expect("the core parses its own packets")
    }

    /// Returns the UDP payload behind these headers, from the BTH to the ICRC.
    pub fn bytes(&self, ip: &[u8], udp: &[u8]) -> Vec<u8> {
        let mut bytes = self.header().to_vec();
        bytes.extend(&self.payload);
        bytes.extend(std::iter::repeat_n(0, self.pad.into()));
        bytes.extend(icrc_of(ip, udp, &bytes));
        bytes
    }
}

/// Serializes the headers of a packet.
pub fn headers_of(packet: &Packet) -> Vec<u8> {
    let mut out = packet.bth.to_bytes().to_vec();
    let known = packet.operation != wire::Operation::Unsupported;
    if packet.bth.opcode.service() == Some(Service::Xrc) && known && !packet.is_response() {
        let srqn = packet.xrc_srqn;
        out.extend(wire::XrcEth { srqn }.to_bytes());
    }
    match packet.ext {
        Ext::None => {}
        Ext::Imm(imm) => out.extend(imm.0),
        Ext::Ieth(ieth) => out.extend(ieth.to_bytes()),
        Ext::Reth(reth) => out.extend(reth.to_bytes()),
        Ext::RethImm(reth, imm) => {
            out.extend(reth.to_bytes());
            out.extend(imm.0);
        }
        Ext::Flush(feth, reth) => {
            out.extend(feth.to_bytes());
            out.extend(reth.to_bytes());
        }
        Ext::Atomic(eth) => out.extend(eth.to_bytes()),
        Ext::Aeth(aeth) => out.extend(aeth.to_bytes()),
        Ext::AtomicAck(aeth, ack) => {
            out.extend(aeth.to_bytes());
            out.extend(ack.to_bytes());
        }
        Ext::Deth(deth) => out.extend(deth.to_bytes()),
        Ext::DethImm(deth, imm) => {
            out.extend(deth.to_bytes());
            out.extend(imm.0);
        }
        Ext::Cnp => out.extend([0; 16]),
    }
    out
}

/// Returns the ICRC of a packet from these IPv4 or IPv6 and UDP headers. `ib` is the UDP payload
/// without the ICRC.
pub fn icrc_of(ip: &[u8], udp: &[u8], ib: &[u8]) -> [u8; 4] {
    let udp = udp.try_into().expect("8 bytes");
    let mut prefix = match ip.try_into() {
        Ok(ip) => Prefix::ipv4(ip, udp),
        Err(_) => Prefix::ipv6(ip.try_into().expect("40 bytes"), udp),
    };
    icrc::finish(prefix.start(crc32_le, ib))
}
