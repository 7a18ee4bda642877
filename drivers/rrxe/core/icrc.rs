// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The invariant CRC of RoCEv2 (IBA 7.8.1, A17.3.3).
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones (in place of an InfiniBand local route
//! header), the IP header, the UDP header, BTH, extension headers, payload and padding. Ones
//! replace the fields that change on the path: IPv4 type of service, time to live and header
//! checksum; IPv6 traffic class, flow label and hop limit; the UDP checksum; the BTH's FECN, BECN
//! and the six reserved bits beside them.
//!
//! The CRC function is a parameter with the signature of the kernel's `crc32_le`: state in, state
//! out, no inversion at either end. [`crc32_le`] is a portable implementation. The caller passes
//! the state along, so that it can feed a scattered payload piece by piece:
//!
//! ```
//! use rrxe_core::icrc;
//! # let (ip, udp, headers, payload) = ([0u8; 20], [0u8; 8], [0u8; 12], [[0u8; 8], [1u8; 8]]);
//! let mut state = icrc::ipv4(icrc::crc32_le, &ip, &udp, &headers);
//! for piece in &payload {
//!     state = icrc::crc32_le(state, piece);
//! }
//! let icrc: [u8; 4] = icrc::finish(state);
//! ```

use crate::wire::Bth;

/// Bytes of the ICRC at the end of each packet.
pub const ICRC: usize = crate::wire::ICRC_LEN as usize;

/// The ICRC field of a packet without an ICRC.
pub const NO_ICRC: [u8; ICRC] = [0; ICRC];

/// Initial state of [`crc32_le`].
const SEED: u32 = !0;

/// Number of leading bytes of ones.
const ONES: usize = 8;

/// Longest IP header of a RoCEv2 packet (A17.3).
const IP: usize = 40;

const UDP: usize = 8;

/// Masked bytes that an ICRC covers up to and including the BTH. Successive packets of one size on
/// a path share them, except for the IPv4 Identification and the BTH.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// In the IPv6 layout. An IPv4 prefix starts [`SHORTER`] bytes later.
    bytes: [u8; ONES + IP + UDP + Bth::LEN],
    is_ipv4: bool,
}

/// Bytes by which an IPv4 header is shorter than an IPv6 header.
const SHORTER: usize = IP - 20;

impl Prefix {
    /// Returns the prefix of IPv4 packets with these headers.
    #[inline]
    pub fn ipv4(ip: &[u8; 20], udp: &[u8; 8]) -> Prefix {
        let mut prefix = Prefix {
            bytes: [0xff; ONES + IP + UDP + Bth::LEN],
            is_ipv4: true,
        };
        let (to_ip, to_udp, _) = prefix.parts();
        let (_, to_ip) = to_ip.split_at_mut(SHORTER);
        to_ip.copy_from_slice(ip);
        // Type of service, time to live, header checksum.
        for masked in [1, 8, 10, 11] {
            mask(to_ip, masked);
        }
        set_udp(to_udp, udp);
        prefix
    }

    /// Returns the prefix of IPv6 packets with these headers.
    #[inline]
    pub fn ipv6(ip: &[u8; 40], udp: &[u8; 8]) -> Prefix {
        let mut prefix = Prefix {
            bytes: [0xff; ONES + IP + UDP + Bth::LEN],
            is_ipv4: false,
        };
        let (to_ip, to_udp, _) = prefix.parts();
        to_ip.copy_from_slice(ip);
        // Traffic class and flow label, but not the version; hop limit.
        if let Some(version) = to_ip.first_mut() {
            *version |= 0x0f;
        }
        for masked in [1, 2, 3, 7] {
            mask(to_ip, masked);
        }
        set_udp(to_udp, udp);
        prefix
    }

    /// Returns the IP header, UDP header and BTH.
    #[inline]
    fn parts(&mut self) -> (&mut [u8], &mut [u8], &mut [u8]) {
        let (_, rest) = self.bytes.split_at_mut(ONES);
        let (ip, rest) = rest.split_at_mut(IP);
        let (udp, bth) = rest.split_at_mut(UDP);
        (ip, udp, bth)
    }

    /// Sets the IPv4 Identification. Does nothing for IPv6.
    #[inline]
    pub fn set_ident(&mut self, ident: u16) {
        if self.is_ipv4 {
            let (ip, _, _) = self.parts();
            let (_, ip) = ip.split_at_mut(SHORTER);
            if let [_, _, _, _, i0, i1, ..] = ip {
                [*i0, *i1] = ident.to_be_bytes();
            }
        }
    }

    /// Starts the ICRC of a packet: everything up to and including `headers`, which are the BTH and
    /// extension headers of the packet. The caller then feeds payload and padding, and calls
    /// [`finish`]. If `headers` is shorter than a BTH, which no packet is, ones replace the BTH.
    #[inline]
    pub fn start(&mut self, crc: impl Fn(u32, &[u8]) -> u32, headers: &[u8]) -> u32 {
        let (_, _, to_bth) = self.parts();
        let rest = match headers.split_first_chunk::<{ Bth::LEN }>() {
            Some((bth, rest)) => {
                to_bth.copy_from_slice(bth);
                mask(to_bth, Bth::RESV8A);
                rest
            }
            None => {
                to_bth.fill(0xff);
                &[]
            }
        };
        let from = if self.is_ipv4 { SHORTER } else { 0 };
        let state = crc(SEED, self.bytes.get(from..).unwrap_or_default());
        crc(state, rest)
    }
}

/// Cache of the last packet's prefix. The next packet on the same path shares it if it has the same
/// length.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastPrefix(Option<(usize, Prefix)>);

impl LastPrefix {
    /// Returns the prefix of a packet with `len` bytes of UDP payload and this Identification.
    /// Calls `make` if the cached prefix is of another length.
    #[inline]
    pub fn prefix(
        &mut self,
        len: usize,
        ident: u16,
        make: impl FnOnce() -> Option<Prefix>,
    ) -> Option<&mut Prefix> {
        match &mut self.0 {
            Some((last, prefix)) if *last == len => prefix.set_ident(ident),
            other => *other = Some((len, make()?)),
        }
        self.0.as_mut().map(|(_, prefix)| prefix)
    }
}

/// Starts the ICRC of an IPv4 packet. See [`Prefix::start`].
#[inline]
pub fn ipv4(crc: impl Fn(u32, &[u8]) -> u32, ip: &[u8; 20], udp: &[u8; 8], headers: &[u8]) -> u32 {
    Prefix::ipv4(ip, udp).start(crc, headers)
}

/// Starts the ICRC of an IPv6 packet. See [`Prefix::start`].
#[inline]
pub fn ipv6(crc: impl Fn(u32, &[u8]) -> u32, ip: &[u8; 40], udp: &[u8; 8], headers: &[u8]) -> u32 {
    Prefix::ipv6(ip, udp).start(crc, headers)
}

/// Returns the four ICRC bytes at the end of the packet.
#[inline]
pub const fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

#[inline]
fn mask(bytes: &mut [u8], index: usize) {
    if let Some(byte) = bytes.get_mut(index) {
        *byte = 0xff;
    }
}

#[inline]
fn set_udp(to: &mut [u8], udp: &[u8; UDP]) {
    to.copy_from_slice(udp);
    // The checksum.
    mask(to, 6);
    mask(to, 7);
}

static TABLES: [[u32; 256]; 8] = tables();

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "evaluated at compile time"
)]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 8 {
        let mut i = 0;
        while i < 256 {
            let previous = tables[t - 1][i];
            tables[t][i] = (previous >> 8) ^ tables[0][(previous & 0xff) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
}

/// Computes CRC-32 as the kernel's `crc32_le` does, eight bytes at a time.
pub fn crc32_le(mut crc: u32, bytes: &[u8]) -> u32 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    // An eight-bit index is always in range, and the compiler removes the check.
    let at = |table: &[u32; 256], i: u8| table.get(usize::from(i)).copied().unwrap_or(0);
    let mut rest = bytes;
    while let Some((chunk, tail)) = rest.split_first_chunk::<8>() {
        let [b0, b1, b2, b3, b4, b5, b6, b7] = *chunk;
        let [c0, c1, c2, c3] = crc.to_le_bytes();
        crc = at(t7, b0 ^ c0)
            ^ at(t6, b1 ^ c1)
            ^ at(t5, b2 ^ c2)
            ^ at(t4, b3 ^ c3)
            ^ at(t3, b4)
            ^ at(t2, b5)
            ^ at(t1, b6)
            ^ at(t0, b7);
        rest = tail;
    }
    for byte in rest {
        let [low, ..] = crc.to_le_bytes();
        crc = (crc >> 8) ^ at(t0, low ^ byte);
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_crc() {
        assert_eq!(!crc32_le(!0, b"123456789"), 0xcbf4_3926);
    }

    proptest! {
        #[test]
        fn pieces_make_the_whole(bytes: std::vec::Vec<u8>, at: prop::sample::Index) {
            let (a, b) = bytes.split_at(at.index(bytes.len() + 1));
            prop_assert_eq!(crc32_le(crc32_le(!0, a), b), crc32_le(!0, &bytes));
        }
    }
}
