// SPDX-License-Identifier: GPL-2.0

//! Chains of packets to send.
//!
//! The packets of a chain cross the stack as one: it looks up a neighbour and calls netfilter once.
//! Just above the network device, the stack takes the chain apart (`skb_segment_list()`,
//! net/core/skbuff.c), unless the device accepts it whole.
//!
//! C header: `include/linux/skbuff.h`.

use super::{
    gro::{MAX_LEN, MAX_PACKETS},
    skb::{link, shim_skb_is_encapsulated, shim_skb_shinfo, Skb},
    Headroom, IpVersion, PacketWriter, Route, TxSkb, IPV4_HEADER, IPV6_HEADER, UDP_HEADER,
};
use crate::raw;
use core::{ffi::c_int, ops::Range, ptr};
use kernel::{prelude::*, sync::rcu};

/// A complete UDP datagram.
///
/// # Invariants
///
/// The data of `skb` is linear and starts at the UDP payload. Its headroom ends with an IP header
/// of the version of `headroom` and the UDP header, and has that space in front of them.
pub struct TxDatagram {
    skb: TxSkb,
    headroom: Headroom,
}

impl TxDatagram {
    /// Makes a datagram from IP and UDP headers, and `len` bytes of payload that `fill` writes. The
    /// IP header has no options or extension headers. The stack writes its length and checksum
    /// again. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `headers` does not have the length of the headers of the IP version. `ENOMEM`. The
    /// inner result is that of `fill`.
    #[inline]
    pub fn new<E>(
        headroom: Headroom,
        headers: &[u8],
        len: usize,
        fill: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), E>,
    ) -> Result<Result<Self, E>> {
        let before = headroom.version.header_len().wrapping_add(UDP_HEADER);
        if headers.len() != before {
            return Err(EINVAL);
        }
        let reserved = headroom.len.checked_add(before as u32).ok_or(EINVAL)?;
        let size = u32::try_from(len)
            .ok()
            .and_then(|len| reserved.checked_add(len));
        let mut skb = TxSkb::linear(reserved, size.ok_or(EINVAL)?).ok_or(ENOMEM)?;
        let raw = skb.as_raw();
        // SAFETY: `skb` owns the packet, which has at least `reserved` bytes of headroom, and the
        // headers are no longer. The offsets of the headers are in the headroom.
        unsafe {
            let start = (*raw).data.sub(before);
            // A copy of constant length needs no function call.
            match headroom.version {
                IpVersion::V4 => copy::<{ IPV4_HEADER + UDP_HEADER }>(start, headers),
                IpVersion::V6 => copy::<{ IPV6_HEADER + UDP_HEADER }>(start, headers),
            }
            raw::shim_skb_set_network_header(raw, (before as c_int).wrapping_neg());
            raw::shim_skb_set_transport_header(raw, (UDP_HEADER as c_int).wrapping_neg());
            raw::shim_skb_set_protocol(raw, headroom.version.ethertype().to_be());
        }
        let filled = skb.append(len, fill)?;
        // INVARIANT: The headers and the headroom in front of them are as written just above. The
        // payload was appended to the linear part, which has capacity for it.
        Ok(filled.map(|()| Self { skb, headroom }))
    }

    /// Returns the length of the payload, in bytes.
    #[inline]
    fn payload_len(&self) -> usize {
        self.skb.len()
    }
}

/// Copies `N` bytes to `to`, or none if `from` has another length.
///
/// # Safety
///
/// `to` is valid for writes of `N` bytes.
#[inline]
unsafe fn copy<const N: usize>(to: *mut u8, from: &[u8]) {
    if let Ok(from) = <&[u8; N]>::try_from(from) {
        // SAFETY: The caller guarantees valid memory.
        unsafe { to.cast::<[u8; N]>().write_unaligned(*from) };
    }
}

/// Copies the fields of the IP header that a rule of netfilter may have changed from the first
/// packet of a chain to the others: DSCP, ECN field, IPv6 flow label, time to live. The stack does
/// the same with addresses and ports (`__udp_gso_segment_list()`, net/ipv4/udp_offload.c), and
/// computes header checksums. Does nothing for other packets.
///
/// # Safety
///
/// `first` is a packet that this host sends and that has passed the hooks of netfilter. It has a
/// linear IP header of the version that its `protocol` says.
#[inline]
pub(super) unsafe fn spread_changes(first: &Skb) {
    let shared = shim_skb_shinfo(first);
    // SAFETY: The shared info is valid as long as the packet.
    let (kind, mut next) = unsafe { ((*shared).gso_type, (*shared).frag_list) };
    let own = (raw::SKB_GSO_UDP_L4 | raw::SKB_GSO_FRAGLIST) as u32;
    let is_chain = kind & !(raw::SKB_GSO_UDP_TUNNEL as u32) == own;
    // In a tunnel, only the first packet has an outer header.
    let is_encapsulated = shim_skb_is_encapsulated(first);
    while is_chain && !is_encapsulated && !next.is_null() {
        // SAFETY: On this host only `TxChain` makes chains, and packets that were received and are
        // forwarded get here only in tunnels. So each packet of the list has the headers of
        // `TxDatagram` in front of its data, of the version of the first one. A copy of the first
        // packet may share the others, which then get the same values twice.
        let is_spread = unsafe {
            let (from, to) = (
                raw::shim_skb_network_header(first.as_raw()),
                raw::shim_skb_network_header(next),
            );
            next = *link(next);
            match first.version() {
                // Type of service; time to live.
                IpVersion::V4 => spread(from, to, 1..2) | spread(from, to, 8..9),
                // Traffic class and flow label; hop limit.
                IpVersion::V6 => spread(from, to, 0..4) | spread(from, to, 7..8),
            }
        };
        if !is_spread {
            return;
        }
    }
}

/// Copies a range of bytes. Returns whether they differed.
///
/// # Safety
///
/// The range is valid for reads from `from` and for writes to `to`.
#[inline]
unsafe fn spread(from: *const u8, to: *mut u8, range: Range<usize>) -> bool {
    let mut differed = false;
    for at in range {
        // SAFETY: The caller guarantees valid memory.
        unsafe {
            differed |= *from.add(at) != *to.add(at);
            *to.add(at) = *from.add(at);
        }
    }
    differed
}

/// A packet, or several of one flow that cross the stack together.
///
/// # Invariants
///
/// - `first` satisfies the invariants of [`TxDatagram`]. All packets have its headroom.
/// - If there are others, `first` refers to them in its `frag_list`. They are linked by `next`, and
///   `last` is the last of them. Each satisfies the invariants of [`TxDatagram`], and is no longer
///   than the first.
/// - `count` is the number of all packets. `others_len` and `others_truesize` are sums over the
///   packets after the first.
pub struct TxChain {
    first: TxDatagram,
    last: *mut raw::sk_buff,
    count: u16,
    others_len: u32,
    others_truesize: u32,
}

// SAFETY: Packets do not belong to a thread.
unsafe impl Send for TxChain {}

impl TxChain {
    /// Returns a chain of one packet.
    #[inline]
    pub fn new(first: TxDatagram) -> Self {
        // INVARIANT: There are no other packets.
        Self {
            last: first.skb.as_raw(),
            first,
            count: 1,
            others_len: 0,
            others_truesize: 0,
        }
    }

    /// Returns the number of packets.
    #[inline]
    pub fn packets(&self) -> u16 {
        self.count
    }

    /// Returns whether a packet with this length of payload, in bytes, can be appended. The stack
    /// requires that no packet is longer than the first.
    #[inline]
    pub fn accepts(&self, len: usize) -> bool {
        let size = self.first.payload_len();
        let headers = self
            .first
            .headroom
            .version
            .header_len()
            .wrapping_add(UDP_HEADER);
        let total = (self.others_len as usize)
            .saturating_add(size)
            .saturating_add(headers)
            .saturating_add(len);
        len != 0 && len <= size && self.count < MAX_PACKETS && total <= MAX_LEN as usize
    }

    /// Appends a packet. Its IPv4 Identification must be that of the first packet plus
    /// [`packets`](Self::packets), because the stack gives it that one.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the packet has another IP version, or the chain does not
    /// [accept](Self::accepts) it. The packet is dropped.
    #[inline]
    pub fn push(&mut self, packet: TxDatagram) -> Result {
        if packet.headroom.version != self.first.headroom.version
            || !self.accepts(packet.payload_len())
        {
            return Err(EINVAL);
        }
        let headroom = &mut self.first.headroom;
        headroom.len = headroom.len.min(packet.headroom.len);
        let skb = packet.skb.into_raw().as_ptr();
        // SAFETY: The packet was just taken from a `TxSkb`. By the type invariant, the chain owns
        // `last` and the first packet, whose shared info is valid as long as the packet.
        unsafe {
            *link(skb) = ptr::null_mut();
            if self.count == 1 {
                (*shim_skb_shinfo(self.first.skb.fields())).frag_list = skb;
            } else {
                *link(self.last) = skb;
            }
            self.others_len = self.others_len.wrapping_add((*skb).len);
            self.others_truesize = self.others_truesize.wrapping_add((*skb).truesize);
        }
        // INVARIANT: The list has one more packet, which is its last, and no longer than the first.
        // The sums are far below 2^32: `accepts` limits both.
        self.last = skb;
        self.count = self.count.wrapping_add(1);
        Ok(())
    }

    /// Turns the chain into one packet of the stack, and sets its route and its priority
    /// (`SO_PRIORITY` of socket(7)). Returns `EINVAL` if the route is of another IP version, or if
    /// its packets need more headroom.
    #[inline]
    pub fn finish(self, route: &Route, priority: u8, guard: &rcu::Guard) -> Result<TxSkb> {
        let (version, size) = (self.first.headroom.version, self.first.payload_len());
        if route.version() != version || route.headroom(guard).len > self.first.headroom.len {
            return Err(EINVAL);
        }
        let headers = version.header_len().wrapping_add(UDP_HEADER);
        let skb = self.first.skb.into_raw();
        let raw = skb.as_ptr();
        // SAFETY: The packet was just taken from a `TxSkb`, and has the headers and no page
        // fragments (type invariant). It gets its own reference to the route. The fields become
        // those that `gro_receive_skb()` (net/core/gro.c) leaves in a chain: the lengths cover all
        // packets, and `skb_segment_list()` undoes that. The checksum state is that of a packet
        // whose checksum the device need not write (`skb_needs_check()`, net/core/dev.c).
        unsafe {
            let start = raw::shim___skb_push(raw, headers as u32).cast::<u8>();
            if self.count > 1 {
                (*raw).len = (*raw).len.wrapping_add(self.others_len);
                (*raw).data_len = (*raw).data_len.wrapping_add(self.others_len);
                (*raw).truesize = (*raw).truesize.wrapping_add(self.others_truesize);
                let shared = shim_skb_shinfo(Skb::from_raw(raw));
                (*shared).gso_size = size as u16;
                (*shared).gso_segs = self.count;
                (*shared).gso_type = (raw::SKB_GSO_UDP_L4 | raw::SKB_GSO_FRAGLIST) as u32;
                if route.ends_at_peer() {
                    // Lets an encapsulation socket receive the chain: see `TxSkb::segment`.
                    (*shared).gso_type |= raw::SKB_GSO_UDP_TUNNEL as u32;
                    raw::shim_skb_reset_inner_headers(raw);
                    raw::shim_skb_reset_inner_mac_header(raw);
                }
                raw::shim_skb_set_checksum_unnecessary(raw);
                let udp_len = (*raw).len.wrapping_sub(version.header_len() as u32) as u16;
                let field = start.add(version.header_len()).add(4);
                field.cast::<[u8; 2]>().write(udp_len.to_be_bytes());
            }
            raw::shim_skb_set_priority(raw, u32::from(priority));
            raw::shim_skb_dst_set(raw, route.as_raw());
            Ok(TxSkb::from_raw(skb))
        }
    }
}
