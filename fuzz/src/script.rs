// SPDX-License-Identifier: GPL-2.0

//! Inputs: how they are read, and how they encode packets.
//!
//! This file implements the wire format a second time, from the specification (IBA 9.2, 9.3), so
//! that the core's implementation is checked against an independent one.

use arbitrary::Unstructured;
use rrxe_testkit::layout::{extensions, Header};

/// An input, read from the front. After its end it continues with zeros.
pub struct Script<'a>(Unstructured<'a>);

macro_rules! integers {
    ($($name:ident)*) => {
        $(
            /// Returns the next integer, little-endian.
            pub fn $name(&mut self) -> $name {
                self.0.arbitrary().unwrap_or_default()
            }
        )*
    };
}

impl<'a> Script<'a> {
    /// Creates a script from the fuzzer's bytes.
    pub fn new(data: &'a [u8]) -> Script<'a> {
        Script(Unstructured::new(data))
    }

    /// Returns whether the input has ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    integers!(u8 u16 u32 u64);

    /// Returns the next `n` bytes, or fewer at the end of the input.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let n = n.min(self.0.len());
        self.0.bytes(n).unwrap_or_default()
    }
}

/// Transport services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// Decodes a service. Most values mean RC, which has the most features.
    pub fn read(byte: u8) -> Service {
        match byte & 7 {
            5 => Service::Xrc,
            6 => Service::Uc,
            7 => Service::Ud,
            _ => Service::Rc,
        }
    }

    /// Returns the core's value for the service.
    pub fn core(self) -> rrxe_core::Service {
        match self {
            Service::Rc => rrxe_core::Service::Rc,
            Service::Uc => rrxe_core::Service::Uc,
            Service::Ud => rrxe_core::Service::Ud,
            Service::Xrc => rrxe_core::Service::Xrc,
        }
    }

    /// Returns the top three bits of the service's opcodes.
    pub fn class(self) -> u8 {
        match self {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
            Service::Xrc => 0xa0,
        }
    }
}

/// Context that packets refer to.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The service of the queue pair.
    pub service: Service,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// Base of relative PSNs: the PSN that is expected, or the one that was sent last.
    pub psn: u32,
    /// Start address of the memory region that requests name.
    pub base: u64,
    /// Key of the memory region.
    pub key: u32,
    /// The Q_Key.
    pub qkey: u32,
    /// The destination queue pair.
    pub qpn: u32,
}

/// Upper bound on the bytes of headers.
pub const HEADERS: usize = 64;

/// A packet to feed to the code under test.
#[derive(Clone, Copy, Debug)]
pub struct Fed {
    head: [u8; HEADERS],
    len: usize,
    /// Bytes of payload.
    pub payload: u32,
    /// First byte of the payload; each further byte is greater by one.
    pub first_byte: u8,
}

/// Flags in the third byte of an encoded packet.
pub mod flag {
    /// Requests an acknowledgement.
    pub const ACKREQ: u8 = 1;
    /// Requests a solicited event.
    pub const SOLICITED: u8 = 2;
    /// Uses another partition.
    pub const PARTITION: u8 = 4;
    /// Adds wrong padding.
    pub const PADDING: u8 = 8;
    /// Length of the payload: empty, a full packet, the next byte, or about a full packet.
    pub const LENGTH: u8 = 0x30;
    /// The value of [`LENGTH`] for a full packet.
    pub const LENGTH_FULL: u8 = 0x10;
    /// The value of [`LENGTH`] for the number of bytes that the next byte gives.
    pub const LENGTH_BYTE: u8 = 0x20;
    /// Uses a key other than the region's.
    pub const KEY: u8 = 0x40;
    /// Spells out addresses, lengths and keys.
    pub const RAW: u8 = 0x80;
}

/// Offset of the region's start in encoded offsets, so that scripts can name bytes before the
/// region.
pub const BEFORE: u16 = 16;

impl Fed {
    /// Reads arbitrary packet bytes. Returns them and the claimed length of the UDP payload.
    pub fn raw(script: &mut Script<'_>) -> (Fed, u32) {
        let len = usize::from(script.u8()) % (HEADERS + 1);
        let beyond = script.u8();
        let mut head = [0; HEADERS];
        let bytes = script.bytes(len);
        head[..bytes.len()].copy_from_slice(bytes);
        let fed = Fed {
            head,
            len: bytes.len(),
            payload: 0,
            first_byte: 0,
        };
        // The claimed length is close to the actual one, or far beyond it.
        let total = (bytes.len() as u32).wrapping_add(match beyond {
            0..=0xbf => u32::from(beyond) * 4,
            _ => u32::from(beyond) << 12,
        });
        (fed, total)
    }

    /// Reads the next packet of a script.
    pub fn read(script: &mut Script<'_>, frame: &Frame) -> Fed {
        let [op, psn, flags, len] = [script.u8(), script.u8(), script.u8(), script.u8()];
        let opcode = match op >> 5 {
            7 => script.u8(),
            _ => frame.service.class() | op & 0x1f,
        };
        let psn = match psn as i8 {
            i8::MIN => script.u32(),
            delta => frame.psn.wrapping_add_signed(delta.into()),
        } & 0xff_ffff;
        let raw = flags & flag::RAW != 0;
        let payload = match flags & flag::LENGTH {
            0 => 0,
            flag::LENGTH_FULL => frame.mtu,
            flag::LENGTH_BYTE => u32::from(len),
            _ => frame.mtu - 128 + u32::from(len),
        };
        let mut pad = (payload as u8).wrapping_neg() & 3;
        if flags & flag::PADDING != 0 {
            pad = (pad + 1) & 3;
        }
        let mut fed = Fed {
            head: [0; HEADERS],
            len: 0,
            payload,
            first_byte: psn as u8 ^ len,
        };
        let pkey: u16 = match flags & flag::PARTITION {
            0 => 0xffff,
            _ => 0x8001,
        };
        let key = |script: &mut Script<'_>| match (raw, flags & flag::KEY) {
            (true, _) => script.u32(),
            (false, 0) => frame.key,
            _ => frame.key ^ 1,
        };
        fed.push(&[opcode, ((flags & flag::SOLICITED) << 6) | 0x40 | (pad << 4)]);
        fed.push(&pkey.to_be_bytes());
        fed.push(&frame.qpn.to_be_bytes());
        fed.push(&((u32::from(flags & flag::ACKREQ) << 31) | psn).to_be_bytes());
        // XRCETH: the number of the shared receive queue. Some queues do not exist.
        let response = (0x0d..=0x12).contains(&(opcode & 0x1f));
        if opcode >> 5 == 5 && !response {
            fed.push(&u32::from(len & 3).to_be_bytes());
        }
        for header in extensions(opcode) {
            match header {
                Header::Imm => fed.push(&u32::from(script.u16()).to_be_bytes()),
                Header::Ieth => {
                    let key = key(script);
                    fed.push(&key.to_be_bytes());
                }
                Header::Reth | Header::AtomicEth => {
                    let va = match raw {
                        true => script.u64(),
                        false => {
                            let offset = u64::from(script.u16());
                            frame.base.wrapping_add(offset).wrapping_sub(BEFORE.into())
                        }
                    };
                    fed.push(&va.to_be_bytes());
                    let key = key(script);
                    fed.push(&key.to_be_bytes());
                    if *header == Header::AtomicEth {
                        fed.push(&u64::from(script.u16()).to_be_bytes());
                        fed.push(&u64::from(script.u16()).to_be_bytes());
                        continue;
                    }
                    let len = match (raw, script.u16()) {
                        (true, n) => (u32::from(n) << 16) | u32::from(script.u16()),
                        // A number of full packets plus a number of bytes.
                        (false, n) if n & 0x8000 != 0 => {
                            u32::from(n & 0x1f) * frame.mtu + u32::from((n >> 8) & 0x7f)
                        }
                        (false, n) => n.into(),
                    };
                    fed.push(&len.to_be_bytes());
                }
                Header::Aeth => {
                    let syndrome = script.u8();
                    fed.push(&((u32::from(syndrome) << 24) | u32::from(len)).to_be_bytes());
                }
                Header::AtomicAck => fed.push(&u64::from(script.u16()).to_be_bytes()),
                Header::Deth => {
                    let qkey = frame.qkey ^ u32::from(flags & flag::KEY);
                    fed.push(&qkey.to_be_bytes());
                    fed.push(&u32::from(script.u16()).to_be_bytes());
                }
                Header::Feth => fed.push(&u32::from(script.u8()).to_be_bytes()),
                other => unreachable!("{other:?} is no extension header"),
            }
        }
        fed
    }

    fn push(&mut self, bytes: &[u8]) {
        self.head[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Returns BTH and extension headers.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.len]
    }

    /// Returns the bytes of payload and padding.
    fn padded(&self) -> u32 {
        self.payload + u32::from((self.head[1] >> 4) & 3)
    }

    /// Returns the length of the UDP payload, with padding and ICRC.
    pub fn total_len(&self) -> u32 {
        self.len as u32 + self.padded() + 4
    }

    /// Returns the bytes of the payload.
    pub fn payload(&self) -> impl Iterator<Item = u8> {
        let first = self.first_byte;
        (0..self.payload).map(move |i| first.wrapping_add(i as u8))
    }
}

/// A script under construction, for seeds.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

/// Upper bound on the bytes of a partial packet in a seed.
const REST: u32 = 0x7f;

/// Splits a length into full packets and a rest, with the limits of seeds: the fuzz target may use
/// another MTU.
pub fn parts(length: u32, mtu: u32) -> (u32, u32) {
    ((length / mtu).min(15), (length % mtu).min(REST))
}

impl Writer {
    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends the packet with these header bytes in the format of [`Fed::read`]: relative to the
    /// PSN and MTU of the frame, with addresses relative to the region.
    pub fn packet(&mut self, head: &[u8], payload: u32, frame: &Frame) {
        let opcode = head[0];
        let psn = u32::from_be_bytes([0, head[9], head[10], head[11]]);
        // A signed number of 24 bits.
        let delta = (psn.wrapping_sub(frame.psn) << 8) as i32 >> 8;
        let delta = i8::try_from(delta).unwrap_or(i8::MAX);
        let mut flags = (head[8] >> 7) | (head[1] >> 7 << 1);
        let mut len = 0;
        if payload == frame.mtu {
            flags |= flag::LENGTH_FULL;
        } else if payload != 0 {
            flags |= flag::LENGTH_BYTE;
            len = payload.min(REST) as u8;
        }
        self.put(&[opcode & 0x1f, delta as u8, flags, len]);
        let mut rest = &head[12..];
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at(n);
            rest = left;
            taken
        };
        for header in extensions(opcode) {
            match header {
                Header::Imm => {
                    let imm = take(4);
                    self.put(&[imm[3], imm[2]]);
                }
                Header::Ieth => {
                    take(4);
                }
                Header::Reth => {
                    let length = u32::from_be_bytes(take(16)[12..].try_into().expect("four bytes"));
                    let (full, rest) = parts(length, frame.mtu);
                    self.put(&BEFORE.to_le_bytes());
                    self.put(&(0x8000 | ((rest << 8) | full) as u16).to_le_bytes());
                }
                Header::AtomicEth => {
                    let operands = &take(28)[12..];
                    self.put(&BEFORE.to_le_bytes());
                    self.put(&[operands[7], operands[6], operands[15], operands[14]]);
                }
                Header::Aeth => self.put(&take(4)[..1]),
                Header::AtomicAck => {
                    let original = take(8);
                    self.put(&[original[7], original[6]]);
                }
                Header::Deth => {
                    let deth = take(8);
                    self.put(&[deth[7], deth[6]]);
                }
                Header::Feth => self.put(&take(4)[3..]),
                other => unreachable!("{other:?} is no extension header"),
            }
        }
    }
}
