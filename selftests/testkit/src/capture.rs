// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Captured packets.

use crate::icrc_of;

/// A RoCEv2 packet, split into its layers.
#[derive(Clone)]
pub struct Datagram {
    /// The IPv4 or IPv6 header.
    pub ip: Vec<u8>,
    pub udp: [u8; 8],
    /// UDP payload: BTH to ICRC.
    pub ib: Vec<u8>,
}

impl Datagram {
    /// Returns the layers of an Ethernet frame; `None` if it is not RoCEv2.
    pub fn cut(eth: &[u8]) -> Option<Datagram> {
        let (ip_len, total) = match (eth[12], eth[13]) {
            (0x08, 0x00) => (20, usize::from(u16::from_be_bytes([eth[16], eth[17]]))),
            (0x86, 0xdd) => (40, 40 + usize::from(u16::from_be_bytes([eth[18], eth[19]]))),
            _ => return None,
        };
        let (ip, rest) = eth[14..14 + total].split_at(ip_len);
        let protocol = if ip_len == 20 { ip[9] } else { ip[6] };
        if protocol != 17 || rest[2..4] != 4791u16.to_be_bytes() {
            return None;
        }
        let (udp, ib) = rest.split_first_chunk()?;
        Some(Datagram {
            ip: ip.to_vec(),
            udp: *udp,
            ib: ib.to_vec(),
        })
    }

    /// Returns the ICRC that the packet should have.
    pub fn icrc(&self) -> [u8; 4] {
        icrc_of(&self.ip, &self.udp, &self.ib[..self.ib.len() - 4])
    }

    /// Returns whether the ICRC is correct.
    pub fn icrc_is_right(&self) -> bool {
        self.ib[self.ib.len() - 4..] == self.icrc()
    }
}

/// Returns the RoCEv2 packets of a capture (classic pcap, little-endian, link type Ethernet).
pub fn datagrams(pcap: &[u8]) -> Vec<Datagram> {
    assert_eq!(pcap[..4], 0xa1b2_c3d4u32.to_le_bytes());
    let mut datagrams = Vec::new();
    let mut rest = &pcap[24..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        datagrams.extend(Datagram::cut(&rest[16..16 + len]));
        rest = &rest[16 + len..];
    }
    datagrams
}
