// SPDX-License-Identifier: GPL-2.0

//! The headers of each opcode, written from the specification (IBA 9.2.1, 9.3, A14, A17, A19), so
//! that a test does not interpret packets by the code under test.

/// A header of a RoCEv2 packet over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Ip,
    Udp,
    Bth,
    /// Q_Key and source queue pair.
    Deth,
    /// The shared receive queue of an XRC request.
    Xrceth,
    /// Address, R_Key and length.
    Reth,
    /// Placement type and selectivity level of a FLUSH.
    Feth,
    /// Address, R_Key and two operands.
    AtomicEth,
    /// Syndrome and MSN.
    Aeth,
    /// The original value.
    AtomicAck,
    /// Immediate data.
    Imm,
    /// R_Key to invalidate.
    Ieth,
    /// The reserved bytes of a congestion notification packet.
    Cnp,
}

impl Header {
    /// Returns the length in bytes.
    pub const fn size(self) -> usize {
        match self {
            Header::Ip => 20,
            Header::Udp | Header::Deth | Header::AtomicAck => 8,
            Header::Bth => 12,
            Header::Reth | Header::Cnp => 16,
            Header::AtomicEth => 28,
            Header::Xrceth | Header::Feth | Header::Aeth | Header::Imm | Header::Ieth => 4,
        }
    }
}

/// Operations: name, low five bits of the opcode, and extension headers.
pub const OPERATIONS: &[(&str, u8, &[Header])] = &[
    ("send-first", 0x00, &[]),
    ("send-middle", 0x01, &[]),
    ("send-last", 0x02, &[]),
    ("send-last-imm", 0x03, &[Header::Imm]),
    ("send-only", 0x04, &[]),
    ("send-only-imm", 0x05, &[Header::Imm]),
    ("write-first", 0x06, &[Header::Reth]),
    ("write-middle", 0x07, &[]),
    ("write-last", 0x08, &[]),
    ("write-last-imm", 0x09, &[Header::Imm]),
    ("write-only", 0x0a, &[Header::Reth]),
    ("write-only-imm", 0x0b, &[Header::Reth, Header::Imm]),
    ("read-request", 0x0c, &[Header::Reth]),
    ("read-first", 0x0d, &[Header::Aeth]),
    ("read-middle", 0x0e, &[]),
    ("read-last", 0x0f, &[Header::Aeth]),
    ("read-only", 0x10, &[Header::Aeth]),
    ("acknowledge", 0x11, &[Header::Aeth]),
    ("atomic-ack", 0x12, &[Header::Aeth, Header::AtomicAck]),
    ("compare-swap", 0x13, &[Header::AtomicEth]),
    ("fetch-add", 0x14, &[Header::AtomicEth]),
    ("send-last-inv", 0x16, &[Header::Ieth]),
    ("send-only-inv", 0x17, &[Header::Ieth]),
    ("flush", 0x1c, &[Header::Feth, Header::Reth]),
    ("atomic-write", 0x1d, &[Header::Reth]),
];

/// The opcode of a congestion notification packet.
pub const CNP: u8 = 0x81;

fn of_operation(opcode: u8) -> &'static [Header] {
    let found = OPERATIONS.iter().find(|(_, low, _)| *low == opcode & 0x1f);
    found.map_or(&[], |(_, _, headers)| *headers)
}

/// Returns the extension headers of an opcode, without the XRCETH of requests of XRC.
pub fn extensions(opcode: u8) -> &'static [Header] {
    match (opcode >> 5, opcode & 0x1f) {
        (3, 0x05) => &[Header::Deth, Header::Imm],
        (3, _) => &[Header::Deth],
        _ => of_operation(opcode),
    }
}

/// Returns the headers that follow the BTH of an opcode, which may belong to another service than
/// its operation.
pub fn headers(opcode: u8) -> Vec<Header> {
    let mut headers = match opcode & 0xe0 {
        _ if opcode == CNP => return vec![Header::Cnp],
        0x60 => vec![Header::Deth],
        0xa0 if !matches!(opcode & 0x1f, 0x0d..=0x12) => vec![Header::Xrceth],
        0x00 | 0x20 | 0xa0 => Vec::new(),
        _ => return Vec::new(),
    };
    headers.extend(of_operation(opcode));
    headers
}
