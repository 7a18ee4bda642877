// SPDX-License-Identifier: GPL-2.0

//! RoCEv2 packets over IPv4 with named fields that may hold any value.
//!
//! This module does no validation, and does not interpret packets by the code under test.

use rrxe_testkit::icrc_of;
pub use rrxe_testkit::layout::Header;
use rrxe_testkit::layout::{self, CNP, OPERATIONS};
use std::fmt;
use std::fmt::Write as _;

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u64 = 4791;

/// Bytes of a BTH.
const BTH_LEN: usize = 12;

/// A field of a header.
pub struct Field {
    pub name: &'static str,
    pub header: Header,
    /// First bit, relative to the start of the header.
    pub bit: usize,
    pub width: usize,
}

const fn field(name: &'static str, header: Header, bit: usize, width: usize) -> Field {
    Field {
        name,
        header,
        bit,
        width,
    }
}

/// All fields that a script can name.
pub const FIELDS: &[Field] = &[
    field("ip-version", Header::Ip, 0, 4),
    field("ip-ihl", Header::Ip, 4, 4),
    field("tos", Header::Ip, 8, 8),
    field("ip-len", Header::Ip, 16, 16),
    field("ip-id", Header::Ip, 32, 16),
    field("ip-flags", Header::Ip, 48, 16),
    field("ttl", Header::Ip, 64, 8),
    field("ip-checksum", Header::Ip, 80, 16),
    field("ip-src", Header::Ip, 96, 32),
    field("ip-dst", Header::Ip, 128, 32),
    field("udp-src", Header::Udp, 0, 16),
    field("udp-dst", Header::Udp, 16, 16),
    field("udp-len", Header::Udp, 32, 16),
    field("udp-checksum", Header::Udp, 48, 16),
    field("opcode", Header::Bth, 0, 8),
    field("solicited", Header::Bth, 8, 1),
    field("migreq", Header::Bth, 9, 1),
    field("pad", Header::Bth, 10, 2),
    field("version", Header::Bth, 12, 4),
    field("pkey", Header::Bth, 16, 16),
    field("fecn", Header::Bth, 32, 1),
    field("becn", Header::Bth, 33, 1),
    field("resv6", Header::Bth, 34, 6),
    field("qpn", Header::Bth, 40, 24),
    field("ackreq", Header::Bth, 64, 1),
    field("resv7", Header::Bth, 65, 7),
    field("psn", Header::Bth, 72, 24),
    field("qkey", Header::Deth, 0, 32),
    field("src-qpn", Header::Deth, 40, 24),
    field("srqn", Header::Xrceth, 8, 24),
    field("va", Header::Reth, 0, 64),
    field("rkey", Header::Reth, 64, 32),
    field("dlen", Header::Reth, 96, 32),
    field("feth", Header::Feth, 0, 32),
    field("va", Header::AtomicEth, 0, 64),
    field("rkey", Header::AtomicEth, 64, 32),
    field("swap", Header::AtomicEth, 96, 64),
    field("add", Header::AtomicEth, 96, 64),
    field("compare", Header::AtomicEth, 160, 64),
    field("syndrome", Header::Aeth, 0, 8),
    field("credit", Header::Aeth, 3, 5),
    field("timer", Header::Aeth, 3, 5),
    field("msn", Header::Aeth, 8, 24),
    field("original", Header::AtomicAck, 0, 64),
    field("imm", Header::Imm, 0, 32),
    field("key", Header::Ieth, 0, 32),
];

/// Service classes, by the top three bits of the opcode.
const CLASSES: &[(&str, u8)] = &[
    ("rc", 0x00),
    ("uc", 0x20),
    ("rd", 0x40),
    ("ud", 0x60),
    ("xrc", 0xa0),
];

/// Returns the opcode of a name such as `send-only` or `uc.send-only`. The default class is
/// `class`.
pub fn opcode(name: &str, class: &str) -> Option<u8> {
    if name == "cnp" {
        return Some(CNP);
    }
    let (class, operation) = name.split_once('.').unwrap_or((class, name));
    let (_, top) = CLASSES.iter().find(|(known, _)| *known == class)?;
    let (_, low, _) = OPERATIONS.iter().find(|(known, ..)| *known == operation)?;
    Some(top | low)
}

/// Returns the names of all operations.
pub fn names() -> Vec<&'static str> {
    OPERATIONS.iter().map(|(name, ..)| *name).collect()
}

/// Returns the name of an opcode, prefixed with its class unless that is `class`.
pub fn name(opcode: u8, class: &str) -> String {
    if opcode == CNP {
        return "cnp".into();
    }
    let top = CLASSES.iter().find(|(_, top)| *top == opcode & 0xe0);
    let operation = OPERATIONS.iter().find(|(_, low, _)| *low == opcode & 0x1f);
    match (top, operation) {
        (Some((its, _)), Some((name, ..))) if *its == class => (*name).into(),
        (Some((its, _)), Some((name, ..))) => format!("{its}.{name}"),
        _ => format!("opcode-{opcode:#04x}"),
    }
}

/// Returns the headers of a packet with this opcode, starting with the IP header.
pub fn headers(opcode: u8) -> Vec<Header> {
    let mut headers = vec![Header::Ip, Header::Udp, Header::Bth];
    headers.extend(layout::headers(opcode));
    headers
}

/// Returns the first bit and the width of a field in a packet with this opcode.
fn place(opcode: u8, name: &str) -> Option<(usize, usize)> {
    let mut at = 0;
    for header in headers(opcode) {
        let found = FIELDS.iter().find(|f| f.header == header && f.name == name);
        if let Some(field) = found {
            return Some((at * 8 + field.bit, field.width));
        }
        at += header.size();
    }
    None
}

fn get_bits(bytes: &[u8], bit: usize, width: usize) -> Option<u64> {
    let mut value = 0;
    for at in bit..bit + width {
        value = (value << 1) | u64::from((bytes.get(at / 8)? >> (7 - at % 8)) & 1);
    }
    Some(value)
}

fn set_bits(bytes: &mut [u8], bit: usize, width: usize, value: u64) {
    for n in 0..width {
        let at = bit + n;
        let mask = 0x80 >> (at % 8);
        if (value >> (width - 1 - n)) & 1 != 0 {
            bytes[at / 8] |= mask;
        } else {
            bytes[at / 8] &= !mask;
        }
    }
}

/// Returns the width in bits of a field.
pub fn width(name: &str) -> Option<usize> {
    FIELDS.iter().find(|f| f.name == name).map(|f| f.width)
}

/// Returns whether packets with this opcode have the field.
pub fn has(opcode: u8, name: &str) -> bool {
    place(opcode, name).is_some()
}

/// A description of a packet to build.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub opcode: u8,
    /// Field values. Overwriting `opcode` does not change the set of headers.
    pub fields: Vec<(String, u64)>,
    pub payload: Vec<u8>,
    /// Value of the padding bytes.
    pub pad_byte: u8,
    /// Number of padding bytes; `None` for the number that the payload needs.
    pub pad_len: Option<usize>,
    /// Bytes truncated before the ICRC is appended.
    pub cut: usize,
    /// Omit the ICRC.
    pub no_icrc: bool,
    /// Bytes after the UDP datagram, inside the IP datagram.
    pub tail: usize,
    /// Fields overwritten after the ICRC was computed.
    pub later: Vec<(String, u64)>,
    /// Index of a bit to flip after the ICRC was computed, relative to the start of the BTH.
    pub flip: Option<usize>,
    /// Flip a bit of the ICRC.
    pub bad_icrc: bool,
}

impl Recipe {
    /// Builds the IP datagram. The IP checksum covers the final header unless a field overrides it.
    pub fn build(&self) -> Vec<u8> {
        let headers = headers(self.opcode);
        let mut bytes: Vec<u8> = Vec::new();
        for header in &headers {
            bytes.resize(bytes.len() + header.size(), 0);
        }
        let pad = self
            .pad_len
            .unwrap_or(self.payload.len().wrapping_neg() & 3);
        let mut put = |name: &str, value: u64| {
            if let Some((bit, width)) = place(self.opcode, name) {
                set_bits(&mut bytes, bit, width, value);
            }
        };
        for (name, value) in [
            ("ip-version", 4),
            ("ip-ihl", 5),
            ("ip-flags", 0x4000),
            ("ip-id", 0x1234),
            ("ttl", 64),
            ("udp-src", 0xc123),
            ("udp-dst", ROCE_PORT),
            ("opcode", self.opcode.into()),
            ("migreq", 1),
            ("pkey", 0xffff),
            ("pad", pad as u64),
        ] {
            put(name, value);
        }
        for (name, value) in &self.fields {
            put(name, *value);
        }
        bytes[9] = 17;
        bytes.extend(&self.payload);
        bytes.resize(bytes.len() + pad, self.pad_byte);
        bytes.truncate(bytes.len() - self.cut.min(bytes.len() - 28));
        let icrc_len = if self.no_icrc { 0 } else { 4 };
        let said = |name: &str| self.fields.iter().any(|(known, _)| known == name);
        let datagram = (bytes.len() + icrc_len + self.tail) as u64;
        if !said("ip-len") {
            set_bits(&mut bytes, 16, 16, datagram);
        }
        if !said("udp-len") {
            set_bits(
                &mut bytes,
                20 * 8 + 32,
                16,
                datagram - 20 - self.tail as u64,
            );
        }
        if !self.no_icrc {
            // The ICRC of a datagram without a whole BTH has ones in its place.
            let roce = bytes.get(28..).filter(|roce| roce.len() >= BTH_LEN);
            let icrc = icrc_of(
                &bytes[..20],
                &bytes[20..28],
                roce.unwrap_or(&[0xff; BTH_LEN]),
            );
            bytes.extend(icrc);
        }
        for (name, value) in &self.later {
            if let Some((bit, width)) = place(self.opcode, name) {
                set_bits(&mut bytes, bit, width, *value);
            }
        }
        if let Some(bit) = self.flip {
            let len = bytes.len() - 28;
            bytes[28 + bit / 8 % len] ^= 0x80 >> (bit % 8);
        }
        if self.bad_icrc {
            let end = bytes.len() - 1;
            bytes[end] ^= 1;
        }
        bytes.resize(bytes.len() + self.tail, 0xdd);
        let fixed = said("ip-checksum") || self.later.iter().any(|(name, _)| name == "ip-checksum");
        if !fixed {
            set_bits(&mut bytes, 80, 16, 0);
            let sum = checksum(&bytes[..20]);
            set_bits(&mut bytes, 80, 16, sum.into());
        }
        bytes
    }
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks(2)
        .map(|pair| (u32::from(pair[0]) << 8) | u32::from(pair[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A received packet.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The IP datagram.
    pub bytes: Vec<u8>,
    /// The default service class, which names omit.
    pub class: &'static str,
}

impl Seen {
    /// Returns the opcode, or 0xff if the packet is too short.
    pub fn opcode(&self) -> u8 {
        self.bytes.get(28).copied().unwrap_or(0xff)
    }

    /// Returns the value of a field, or `None` if the packet has no such field.
    pub fn get(&self, name: &str) -> Option<u64> {
        let (bit, width) = place(self.opcode(), name)?;
        get_bits(&self.bytes, bit, width)
    }

    fn header_len(&self) -> usize {
        headers(self.opcode()).iter().map(|h| h.size()).sum()
    }

    /// Returns the payload including padding.
    fn body(&self) -> &[u8] {
        let end = self.bytes.len().saturating_sub(4);
        self.bytes.get(self.header_len()..end).unwrap_or(&[])
    }

    /// Returns the payload without padding.
    pub fn payload(&self) -> &[u8] {
        let body = self.body();
        let pad = self.get("pad").unwrap_or(0) as usize;
        &body[..body.len().saturating_sub(pad)]
    }

    /// Returns the padding.
    pub fn padding(&self) -> &[u8] {
        &self.body()[self.payload().len()..]
    }

    /// Returns whether the ICRC is correct.
    pub fn icrc_is_right(&self) -> bool {
        match self.bytes.split_last_chunk::<4>() {
            Some((rest, icrc)) if rest.len() >= 40 => {
                icrc_of(&rest[..20], &rest[20..28], &rest[28..]) == *icrc
            }
            _ => false,
        }
    }

    /// Returns the name that a script would use. ACKs and NAKs are named by their syndrome.
    pub fn name(&self) -> String {
        let name = name(self.opcode(), self.class);
        match (name.as_str(), self.get("syndrome")) {
            ("acknowledge", Some(syndrome)) => match syndrome {
                0..=0x1f => "ack".into(),
                0x20..=0x3f => format!("rnr-nak timer {}", syndrome & 0x1f),
                0x60..=0x64 => format!("nak {}", NAKS[syndrome as usize - 0x60]),
                _ => format!("acknowledge syndrome {syndrome:#04x}"),
            },
            _ => name,
        }
    }
}

/// The names of NAK codes, starting at 0.
pub const NAKS: [&str; 5] = ["sequence", "invalid", "access", "operational", "rd"];

/// Formats the value of a field.
pub fn show(name: &str, value: u64) -> String {
    match name {
        "ip-src" | "ip-dst" => std::net::Ipv4Addr::from(value as u32).to_string(),
        "va" | "rkey" | "qkey" | "qpn" | "pkey" | "syndrome" | "opcode" | "ip-flags" => {
            format!("{value:#x}")
        }
        _ => value.to_string(),
    }
}

impl fmt::Display for Seen {
    /// Formats the packet in the notation of scripts and omits fields with default values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        let as_always = [
            ("migreq", 1),
            ("pkey", 0xffff),
            ("fecn", 0),
            ("becn", 0),
            ("resv6", 0),
            ("resv7", 0),
            ("version", 0),
            ("solicited", 0),
            ("ackreq", 0),
            ("pad", 0),
        ];
        for field in FIELDS {
            if matches!(field.header, Header::Ip | Header::Udp)
                || matches!(
                    field.name,
                    "opcode" | "qpn" | "syndrome" | "timer" | "credit" | "add"
                )
            {
                continue;
            }
            match self.get(field.name) {
                Some(value)
                    if !as_always.contains(&(field.name, value))
                        && headers(self.opcode()).contains(&field.header) =>
                {
                    write!(f, " {} {}", field.name, show(field.name, value))?;
                }
                _ => {}
            }
        }
        let payload = self.payload();
        if !payload.is_empty() {
            write!(f, " len {} [{}", payload.len(), hex(payload, 8))?;
            write!(f, "{}]", if payload.len() > 8 { "…" } else { "" })?;
        }
        if !self.icrc_is_right() {
            write!(f, " icrc bad")?;
        }
        Ok(())
    }
}

/// Returns the first `max` bytes as hexadecimal digits.
pub fn hex(bytes: &[u8], max: usize) -> String {
    let mut digits = String::new();
    for byte in bytes.iter().take(max) {
        // Writing to a string can't fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Converts hexadecimal digits to bytes.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 != 0 || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
