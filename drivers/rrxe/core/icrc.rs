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
//! out, no inversion at either end. The caller passes the state along, so that it can feed a
//! scattered payload piece by piece.
//!
//! The state is linear: changing bytes of the input changes it by an exclusive or that depends on
//! the changed bits and on their distance from the end. The headers of successive packets differ in
//! a few bytes, so tables give the difference of their states.

use crate::wire::Bth;

/// Bytes of the ICRC at the end of each packet.
pub const ICRC: usize = crate::wire::ICRC_LEN as usize;

/// Initial state of the CRC.
const SEED: u32 = !0;

/// Number of leading bytes of ones.
const ONES: usize = 8;

/// Longest IP header of a RoCEv2 packet (A17.3).
const IP: usize = 40;

const UDP: usize = 8;

/// Returns the state after a byte that is `1 << bit` and `zeros` bytes of zeros, from state 0.
#[allow(clippy::arithmetic_side_effects)] // The compiler evaluates it.
const fn of_bit(bit: u32, zeros: usize) -> u32 {
    let (mut state, mut bits) = (1u32 << bit, 8 * (zeros + 1));
    while bits > 0 {
        let polynomial = if state & 1 != 0 { 0xedb8_8320 } else { 0 };
        state = (state >> 1) ^ polynomial;
        bits -= 1;
    }
    state
}

/// Returns the differences of the state that the lowest 0, 1, 2, … bits of a big-endian number
/// make, which precedes `behind` bytes.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // The compiler evaluates it.
const fn differences<const N: usize>(behind: usize) -> [u32; N] {
    let (mut all, mut bits) = ([0; N], 1);
    while bits < N {
        let last = bits - 1;
        all[bits] = all[last] ^ of_bit(last as u32 % 8, behind + last / 8);
        bits += 1;
    }
    all
}

/// Bytes at the end of a BTH that have the PSN and the acknowledge request.
const PSN_WORD: usize = 4;

/// Differences for the last bytes of the BTH, which ends the prefix.
static OF_PSN_WORD: [u32; 33] = differences(0);

/// Differences for the first bytes of the BTH.
static OF_BTH: [u32; 65] = differences(PSN_WORD);

/// Differences for the IPv4 Identification.
static OF_IDENT: [u32; 17] = differences(20 - 6 + UDP + Bth::LEN);

/// Returns the difference of the state that changed bits of a number make.
#[inline]
fn difference(changed: u64, table: &[u32]) -> u32 {
    let lowest = |bits: u32| {
        let difference = table.get(bits as usize);
        debug_assert!(difference.is_some(), "the number is wider than its table");
        difference.copied().unwrap_or(0)
    };
    // An increment changes the lowest bits.
    if changed & changed.wrapping_add(1) == 0 {
        return lowest(changed.trailing_ones());
    }
    let (mut left, mut sum) = (changed, 0);
    while left != 0 {
        let bit = left.trailing_zeros();
        sum ^= lowest(bit) ^ lowest(bit.wrapping_add(1));
        left &= left.wrapping_sub(1);
    }
    sum
}

/// Returns the first bytes of a BTH as a number, and its last four.
#[inline]
fn words(bth: &[u8]) -> (u64, u64) {
    debug_assert!(bth.len() == Bth::LEN, "not a BTH");
    let Some((first, last)) = bth.split_last_chunk::<PSN_WORD>() else {
        return (0, 0);
    };
    let first = first.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    (first.unwrap_or(0), u32::from_be_bytes(*last).into())
}

/// Masked bytes that an ICRC covers up to and including the BTH. Successive packets of one size on
/// a path share them, except for the IPv4 Identification and the BTH.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// In the IPv6 layout. An IPv4 prefix starts [`SHORTER`] bytes later.
    bytes: [u8; ONES + IP + UDP + Bth::LEN],
    is_ipv4: bool,
    /// The state after all bytes, once it has been computed.
    state: Option<u32>,
}

/// Bytes by which an IPv4 header is shorter than an IPv6 header.
const SHORTER: usize = IP - 20;

impl Prefix {
    /// Returns the prefix of IPv4 packets with these headers.
    #[inline]
    pub fn ipv4(ip: &[u8; 20], udp: &[u8; UDP]) -> Prefix {
        // Type of service, time to live, header checksum.
        Prefix::new(ip, [1, 8, 10, 11], udp)
    }

    /// Returns the prefix of IPv6 packets with these headers.
    #[inline]
    pub fn ipv6(ip: &[u8; IP], udp: &[u8; UDP]) -> Prefix {
        // Traffic class and flow label; hop limit.
        let mut prefix = Prefix::new(ip, [1, 2, 3, 7], udp);
        // The rest of the traffic class, but not the version.
        if let Some(version) = prefix.parts().0.first_mut() {
            *version |= 0x0f;
        }
        prefix
    }

    /// Returns a prefix with ones in the `masked` bytes of the IP header.
    #[inline(always)]
    fn new<const N: usize>(ip: &[u8; N], masked: [usize; 4], udp: &[u8; UDP]) -> Prefix {
        debug_assert!(
            N == IP || N == IP - SHORTER,
            "not the length of an IP header"
        );
        let mut ip = *ip;
        for index in masked {
            mask(&mut ip, index);
        }
        let mut prefix = Prefix {
            bytes: [0xff; ONES + IP + UDP + Bth::LEN],
            is_ipv4: N < IP,
            state: None,
        };
        let (to_ip, to_udp, _) = prefix.parts();
        let (_, to_ip) = to_ip.split_at_mut(IP.saturating_sub(N));
        to_ip.copy_from_slice(&ip);
        to_udp.copy_from_slice(udp);
        // The checksum.
        mask(to_udp, 6);
        mask(to_udp, 7);
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
        if !self.is_ipv4 {
            return;
        }
        let (ip, _, _) = self.parts();
        let (_, ip) = ip.split_at_mut(SHORTER);
        if let [_, _, _, _, i0, i1, ..] = ip {
            let old = u16::from_be_bytes([*i0, *i1]);
            [*i0, *i1] = ident.to_be_bytes();
            if let Some(state) = &mut self.state {
                *state ^= difference((old ^ ident).into(), &OF_IDENT);
            }
        }
    }

    /// Returns the state after all bytes.
    #[cold]
    #[inline(never)]
    fn whole(&self, crc: &impl Fn(u32, &[u8]) -> u32) -> u32 {
        let from = if self.is_ipv4 { SHORTER } else { 0 };
        crc(SEED, self.bytes.get(from..).unwrap_or_default())
    }

    /// Starts the ICRC of a packet: everything up to and including `headers`, its BTH and extension
    /// headers. The caller then feeds payload and padding, and calls [`finish`]. If `headers` is
    /// shorter than a BTH, which no packet is, ones replace the BTH.
    #[inline]
    pub fn start(&mut self, crc: impl Fn(u32, &[u8]) -> u32, headers: &[u8]) -> u32 {
        debug_assert!(headers.len() >= Bth::LEN, "a packet without a BTH");
        let (bth, rest) = headers
            .split_first_chunk()
            .unwrap_or((&[0xff; Bth::LEN], &[]));
        let mut bth: [u8; Bth::LEN] = *bth;
        mask(&mut bth, Bth::RESV8A);
        let (_, _, to_bth) = self.parts();
        let (old, new) = (words(to_bth), words(&bth));
        to_bth.copy_from_slice(&bth);
        let state = match self.state {
            Some(state) => {
                state ^ difference(old.0 ^ new.0, &OF_BTH) ^ difference(old.1 ^ new.1, &OF_PSN_WORD)
            }
            None => self.whole(&crc),
        };
        self.state = Some(state);
        if rest.is_empty() {
            state
        } else {
            crc(state, rest)
        }
    }
}

/// Cache of the last packet's prefix, for packets of the same length on the same path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastPrefix(Option<(usize, Prefix)>);

impl LastPrefix {
    /// Returns the prefix of a packet with `len` bytes of UDP payload and this Identification, made
    /// by `make` unless the cached one has this length.
    #[inline]
    pub fn prefix(
        &mut self,
        len: usize,
        ident: u16,
        make: impl FnOnce() -> Option<Prefix>,
    ) -> Option<&mut Prefix> {
        match &mut self.0 {
            Some((last, prefix)) if *last == len => prefix.set_ident(ident),
            _ => self.replace(len, make)?,
        }
        self.0.as_mut().map(|(_, prefix)| prefix)
    }

    #[cold]
    #[inline(never)]
    fn replace(&mut self, len: usize, make: impl FnOnce() -> Option<Prefix>) -> Option<()> {
        self.0 = Some((len, make()?));
        Some(())
    }
}

/// Returns the four ICRC bytes at the end of the packet.
#[inline]
pub const fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

#[inline]
fn mask(bytes: &mut [u8], index: usize) {
    debug_assert!(index < bytes.len(), "a masked byte beyond the header");
    if let Some(byte) = bytes.get_mut(index) {
        *byte = 0xff;
    }
}
