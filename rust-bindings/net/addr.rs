// SPDX-License-Identifier: GPL-2.0

//! IP addresses.

use super::{IPV4_HEADER, IPV6_HEADER};
use crate::raw;

/// Version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// RFC 791.
    V4,
    /// RFC 8200.
    V6,
}

impl IpVersion {
    /// Returns the bytes of a header without options or extension headers.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            Self::V4 => IPV4_HEADER,
            Self::V6 => IPV6_HEADER,
        }
    }

    /// Returns the number of the protocol in link-layer headers (`ETH_P_*`).
    #[inline]
    pub(super) const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => raw::ETH_P_IP as u16,
            Self::V6 => raw::ETH_P_IPV6 as u16,
        }
    }
}

/// An IP address, as bytes in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAddr {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6([u8; 16]),
}

impl IpAddr {
    /// Returns the version of the protocol that the address belongs to.
    #[inline]
    pub const fn version(&self) -> IpVersion {
        match self {
            Self::V4(_) => IpVersion::V4,
            Self::V6(_) => IpVersion::V6,
        }
    }

    /// Returns whether this is a multicast address: 224.0.0.0/4 (RFC 1112) or ff00::/8 (RFC 4291).
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        match self {
            Self::V4([first, ..]) => *first & 0xf0 == 0xe0,
            Self::V6([first, ..]) => *first == 0xff,
        }
    }
}

/// Returns an IPv6 address as a C struct.
pub(super) fn in6(address: [u8; 16]) -> raw::in6_addr {
    raw::in6_addr {
        in6_u: raw::in6_addr__bindgen_ty_1 { u6_addr8: address },
    }
}

/// Returns `N` bytes at `offset` of an IP header, or zeros if the header is too short.
#[inline]
pub(super) fn field<const N: usize>(header: &[u8], offset: usize) -> [u8; N] {
    let bytes = header.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.copied().unwrap_or([0; N])
}

/// Returns the source address in an IP header.
#[inline]
pub(super) fn source(version: IpVersion, header: &[u8]) -> IpAddr {
    match version {
        IpVersion::V4 => IpAddr::V4(field(header, 12)),
        IpVersion::V6 => IpAddr::V6(field(header, 8)),
    }
}

/// Returns the destination address in an IP header.
#[inline]
pub(super) fn destination(version: IpVersion, header: &[u8]) -> IpAddr {
    match version {
        IpVersion::V4 => IpAddr::V4(field(header, 16)),
        IpVersion::V6 => IpAddr::V6(field(header, 24)),
    }
}
