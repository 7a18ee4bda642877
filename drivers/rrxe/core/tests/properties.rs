// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties that hold for all values: the ICRC equals a slow implementation of the specification,
//! however the payload is split; headers survive a round trip.

use proptest::prelude::*;
use rrxe_core::icrc::{self, LastPrefix, Prefix};
use rrxe_core::wire::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use rrxe_testkit::crc32_le;

/// Computes the CRC-32 of Ethernet bit by bit, without inversion at either end.
fn crc(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state, _| {
            (state >> 1) ^ (0xedb8_8320 & (state & 1).wrapping_neg())
        })
    })
}

/// Computes the ICRC of IBA 7.8.1 and A17.3.3 literally: ones in place of a local route header and
/// of the fields that change on the path.
fn plain(ip: &[u8], udp: &[u8; 8], ib: &[u8]) -> [u8; 4] {
    let mut bytes = vec![0xff; 8];
    bytes.extend(ip);
    let changing: &[usize] = match ip.len() {
        20 => &[1, 8, 10, 11],
        _ => &[1, 2, 3, 7],
    };
    changing.iter().for_each(|at| bytes[8 + at] = 0xff);
    if ip.len() == 40 {
        bytes[8] |= 0x0f;
    }
    bytes.extend(udp);
    let end = bytes.len();
    bytes[end - 2..].fill(0xff);
    bytes.extend(ib);
    bytes[end + 4] = 0xff;
    (!crc(!0, &bytes)).to_le_bytes()
}

#[test]
fn known_crc() {
    assert_eq!(!crc32_le(!0, b"123456789"), 0xcbf4_3926);
}

proptest! {
    /// A-24, with the payload in pieces, like in the fragments of a packet in the driver.
    #[test]
    fn a_24_icrc_is_the_plain_one(
        ip4: [u8; 20],
        ip6 in prop::array::uniform32(any::<u8>()),
        ip6_end: [u8; 8],
        udp: [u8; 8],
        head in prop::collection::vec(any::<u8>(), 12..45),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1usize..50, 1..8),
    ) {
        let mut ip = ip6.to_vec();
        ip.extend(ip6_end);
        let ip6: [u8; 40] = ip.try_into().unwrap();
        let ib = [&head[..], &payload[..]].concat();
        let feed = |mut state| {
            let (mut rest, mut sizes) = (&payload[..], pieces.iter().cycle());
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                state = crc32_le(state, piece);
                rest = left;
            }
            icrc::finish(state)
        };
        let state = Prefix::ipv4(&ip4, &udp).start(crc32_le, &head);
        prop_assert_eq!(feed(state), plain(&ip4, &udp, &ib));
        let state = Prefix::ipv6(&ip6, &udp).start(crc32_le, &head);
        prop_assert_eq!(feed(state), plain(&ip6, &udp, &ib));
    }

    /// A-24, for packets whose prefix is that of the previous packet with some bytes changed.
    #[test]
    fn a_24_successive_prefixes(
        ip4: [u8; 20],
        ip6 in prop::array::uniform32(any::<u8>()),
        udp: [u8; 8],
        packets in prop::collection::vec((any::<u16>(), any::<u128>(), any::<u128>()), 1..20),
    ) {
        let mut ip6 = ip6.to_vec();
        ip6.extend([1; 8]);
        let ip6: [u8; 40] = ip6.try_into().unwrap();
        let (mut last4, mut last6, mut bth) = (LastPrefix::default(), LastPrefix::default(), 0);
        for (ident, changed, mask) in packets {
            // About a quarter of the bits change.
            bth ^= changed & mask;
            let head = &bth.to_be_bytes()[..12];
            let mut ip4 = ip4;
            ip4[4..6].copy_from_slice(&ident.to_be_bytes());
            let prefix = last4.prefix(100, ident, || Some(Prefix::ipv4(&ip4, &udp))).unwrap();
            let state = prefix.start(crc32_le, head);
            prop_assert_eq!(icrc::finish(state), plain(&ip4, &udp, head));
            let prefix = last6.prefix(100, ident, || Some(Prefix::ipv6(&ip6, &udp))).unwrap();
            let state = prefix.start(crc32_le, head);
            prop_assert_eq!(icrc::finish(state), plain(&ip6, &udp, head));
        }
    }

    #[test]
    fn crc_pieces_make_the_whole(bytes: Vec<u8>, at: prop::sample::Index) {
        let (a, b) = bytes.split_at(at.index(bytes.len() + 1));
        prop_assert_eq!(crc32_le(crc32_le(!0, a), b), crc32_le(!0, &bytes));
    }

    /// all bits that are not reserved survive a round trip.
    #[test]
    fn a_42_headers_come_back(b in prop::array::uniform28(any::<u8>())) {
        let first = |n: usize| &b[..n];
        macro_rules! comes_back {
            ($($header:ty: $reserved:expr;)*) => {
                $({
                    let mut bytes = <[u8; <$header>::LEN]>::try_from(first(<$header>::LEN)).unwrap();
                    let header = <$header>::from_bytes(&bytes);
                    let reserved: &[(usize, u8)] = &$reserved;
                    reserved.iter().for_each(|(at, bits)| bytes[*at] &= !bits);
                    prop_assert_eq!(header.to_bytes(), bytes);
                    prop_assert_eq!(<$header>::from_bytes(&bytes), header);
                })*
            };
        }
        comes_back! {
            Reth: [];
            Aeth: [];
            AtomicEth: [];
            AtomicAckEth: [];
            Ieth: [];
            Deth: [(4, 0xff)];
            XrcEth: [(0, 0xff)];
            Feth: [(0, 0xff), (1, 0xff), (2, 0xff), (3, 0xc0)];
        }
        let imm: [u8; 4] = first(4).try_into().unwrap();
        prop_assert_eq!(ImmDt::from_verbs(ImmDt(imm).to_verbs()), ImmDt(imm));
    }
}
