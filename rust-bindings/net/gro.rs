// SPDX-License-Identifier: GPL-2.0

//! Generic receive offload (GRO): makes chains of the packets of a UDP tunnel socket.
//!
//! Each packet of a chain is complete. The first one refers to the others in its `frag_list`, and
//! its headers have the total length. A chain crosses the stack like one packet, and whatever must
//! see single packets can segment it (`skb_segment_list()`, net/core/skbuff.c): over IPv4,
//! segmentation gives each packet the Identification that it had. [`UdpPacket::datagrams`] takes
//! the chain apart.
//!
//! C header: `include/net/gro.h`.
//!
//! [`UdpPacket::datagrams`]: super::rx::UdpPacket::datagrams

use super::{
    addr::{destination, field},
    skb::{link, shim_skb_dev, shim_skb_shinfo, Skb},
    udp_tunnel::UdpReceive,
    IpVersion, NetDevice, IPV4_HEADER, IPV6_HEADER, UDP_HEADER,
};
use crate::raw;
use core::{ffi::c_int, mem::offset_of, ptr, slice};
use kernel::sync::rcu;

/// Maximum number of packets in a chain.
pub(super) const MAX_PACKETS: u16 = 64;

/// Maximum length of the IP packet that a chain makes, in bytes. It leaves space for headers below
/// 64 KiB, the maximum that the length fields hold.
pub(super) const MAX_LEN: u32 = 65_000;

/// Bytes of a datagram that tell to which chain it belongs.
pub(super) const KEY: usize = 12;

/// The headers of a packet, and the start of its payload.
struct Headers<'a> {
    version: IpVersion,
    ip: &'a [u8],
    /// The length in the UDP header.
    udp_len: u16,
    key: [u8; KEY],
}

/// Returns the packet that contains an entry of a list of packets.
#[inline]
fn of_list(entry: *mut raw::list_head) -> *mut raw::sk_buff {
    let offset = offset_of!(raw::sk_buff, __bindgen_anon_1.list);
    entry.wrapping_byte_sub(offset).cast()
}

impl<'a> Headers<'a> {
    /// Returns the headers in the bytes in front of a payload. The IP header starts at `network`.
    /// Returns `None` if IPv4 options or IPv6 extension headers precede the UDP header, or if the
    /// packet has a UDP checksum.
    #[inline]
    fn new(before: &'a [u8], network: usize, key: [u8; KEY]) -> Option<Self> {
        let (before, udp) = before.split_last_chunk::<UDP_HEADER>()?;
        let ip = before.get(network..)?;
        let version = match (ip.first()? >> 4, ip.len()) {
            (4, IPV4_HEADER) => IpVersion::V4,
            (6, IPV6_HEADER) => IpVersion::V6,
            _ => return None,
        };
        let udp_len = u16::from_be_bytes(field(udp, 4));
        let has_checksum = field(udp, 6) != [0; 2];
        (!has_checksum).then_some(Self {
            version,
            ip,
            udp_len,
            key,
        })
    }

    /// Returns whether a packet with the headers `other` may follow `number` packets, the first of
    /// which has these headers. Both have the same addresses and ports. The fields that the stack
    /// reads from the first packet only must be equal, among them the ECN field.
    #[inline]
    fn may_precede(&self, other: &Self, number: u16) -> bool {
        match (self.version, other.version) {
            (IpVersion::V4, IpVersion::V4) => {
                let ident = |ip| u16::from_be_bytes(field(ip, 4));
                // Version, length, type of service; flags, fragment offset, time to live, protocol.
                let equal = |ip| (field::<2>(ip, 0), field::<4>(ip, 6));
                ident(other.ip) == ident(self.ip).wrapping_add(number)
                    && equal(self.ip) == equal(other.ip)
            }
            (IpVersion::V6, IpVersion::V6) => {
                // Version, traffic class, flow label; next header, hop limit.
                let equal = |ip| (field::<4>(ip, 0), field::<2>(ip, 6));
                equal(self.ip) == equal(other.ip)
            }
            _ => false,
        }
    }
}

/// A packet that GRO processes, or keeps for others to join it.
///
/// # Invariants
///
/// The packet is valid, and it has passed `udp_gro_receive()` (net/ipv4/udp_offload.c). Only this
/// CPU accesses it.
#[derive(Clone, Copy)]
struct GroPacket(*mut raw::sk_buff);

impl GroPacket {
    /// Returns the number of bytes from the start of the packet's data to its UDP payload.
    #[inline]
    fn payload_offset(self) -> usize {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_gro_offset(self.0) as usize }
    }

    /// Returns the headers of a packet that has just been received; `None` if it cannot be in a
    /// chain, for example because its length disagrees with that in the UDP header.
    ///
    /// # Safety
    ///
    /// Nothing changes the packet for `'a`.
    #[inline]
    unsafe fn headers_of_new<'a>(self) -> Option<Headers<'a>> {
        let payload = self.payload_offset();
        let len = payload.saturating_add(KEY);
        // SAFETY: The packet is valid by the type invariant. `skb_gro_header()` (include/net/gro.h)
        // returns the address of `len` bytes, or null if the packet is shorter.
        let start = unsafe {
            let start = raw::shim_skb_gro_header(self.0, len as u32, 0).cast::<u8>();
            if start.is_null() {
                return None;
            }
            slice::from_raw_parts(start, len)
        };
        let (before, key) = start.split_last_chunk()?;
        let headers = Headers::new(before, self.network_offset(), *key)?;
        // SAFETY: The packet is valid by the type invariant.
        let payload_len = unsafe { raw::shim_skb_gro_len(self.0) } as usize;
        let agrees = payload_len.wrapping_add(UDP_HEADER) == headers.udp_len.into();
        agrees.then_some(headers)
    }

    /// Returns the headers of a packet that GRO has kept. `payload` and `network` are the offsets
    /// of a packet of the same flow.
    ///
    /// # Safety
    ///
    /// Nothing changes the packet for `'a`.
    #[inline]
    unsafe fn headers_of_kept<'a>(self, payload: usize, network: usize) -> Option<Headers<'a>> {
        let mut buffer = [0; KEY];
        // SAFETY: The packet is valid by the type invariant. GRO has made its headers linear
        // (`gro_try_pull_from_frag0()`, net/core/gro.c), and compares packets only if their headers
        // have the same length. `skb_header_pointer()` (include/linux/skbuff.h) returns the address
        // of `KEY` bytes, in the packet or the buffer, or null if the packet is shorter.
        let (before, key) = unsafe {
            let to = buffer.as_mut_ptr().cast();
            let key = raw::shim_skb_header_pointer(self.0, payload as i32, KEY as i32, to);
            if key.is_null() {
                return None;
            }
            let before = slice::from_raw_parts((*self.0).data, payload);
            (before, *key.cast())
        };
        Headers::new(before, network, key)
    }

    /// Returns the offset of the IP header.
    #[inline]
    fn network_offset(self) -> usize {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_gro_network_offset(self.0) as usize }
    }

    /// Returns whether a packet of this length and checksum state can be appended to the chain that
    /// this packet starts.
    #[inline]
    fn accepts(self, other: Self) -> bool {
        // SAFETY: The packets are valid by the type invariant. The size is the length of the first
        // packet (`dev_gro_receive()`, net/core/gro.c).
        unsafe {
            let len = raw::shim_skb_gro_len(other.0);
            let size = (*shim_skb_shinfo(Skb::from_raw(self.0))).gso_size;
            len <= size.into()
                && (*self.0).len.saturating_add(len) <= MAX_LEN
                && raw::shim_skb_gro_count(self.0) < MAX_PACKETS
                && raw::shim_skb_ip_summed(self.0) == raw::shim_skb_ip_summed(other.0)
        }
    }

    /// Appends a packet to the chain that this packet starts. Returns false if there is no memory.
    ///
    /// It does what `skb_gro_receive_list()` (net/core/gro.c) does, which is not exported, and
    /// establishes the invariants of [`UdpPacket`](super::rx::UdpPacket) for the appended packet.
    #[inline]
    fn append(self, other: Self, version: IpVersion) -> bool {
        let (first, skb) = (self.0, other.0);
        let payload = other.payload_offset() as u32;
        let udp = UDP_HEADER as c_int;
        let ip = version.header_len() as c_int;
        // SAFETY: The packets are valid, and only this CPU accesses them (type invariant). The
        // chain takes over the packet, as GRO leaves it to the callee that sets `same_flow`. Both
        // lose their sockets, which have been charged for the size of the single packets.
        unsafe {
            if !raw::shim_pskb_may_pull(skb, payload) {
                return false;
            }
            raw::shim___skb_pull(skb, payload);
            raw::shim_skb_set_transport_header(skb, udp.wrapping_neg());
            raw::shim_skb_set_network_header(skb, udp.wrapping_add(ip).wrapping_neg());
            raw::shim_skb_set_protocol(skb, version.ethertype().to_be());
            raw::shim_skb_orphan(first);
            raw::shim_skb_orphan(skb);
            *link(skb) = ptr::null_mut();
            let shared = shim_skb_shinfo(Skb::from_raw(first));
            let last = raw::shim_skb_gro_last(first);
            if last == first {
                (*shared).frag_list = skb;
            } else {
                *link(last) = skb;
            }
            let flags = (*shim_skb_shinfo(Skb::from_raw(skb))).flags;
            (*shared).flags |= flags & raw::SKBFL_SHARED_FRAG as u8;
            (*first).len = (*first).len.wrapping_add((*skb).len);
            (*first).data_len = (*first).data_len.wrapping_add((*skb).len);
            (*first).truesize = (*first).truesize.wrapping_add((*skb).truesize);
            let count = raw::shim_skb_gro_count(first).wrapping_add(1);
            raw::shim_skb_gro_set_count(first, count);
            raw::shim_skb_gro_set_last(first, skb);
            raw::shim_skb_gro_set_same_flow(skb, true);
        }
        true
    }
}

/// Iterates over the packets that GRO keeps and that have the addresses and ports of the packet
/// which it processes.
struct SameFlow {
    list: *mut raw::list_head,
    entry: *mut raw::list_head,
}

impl SameFlow {
    /// Iterates over a list of packets.
    ///
    /// # Safety
    ///
    /// GRO has passed the list to the callback of a socket, which has not returned.
    #[inline]
    unsafe fn of(list: *mut raw::list_head) -> Self {
        // SAFETY: The caller guarantees a valid list.
        let entry = unsafe { (*list).next };
        Self { list, entry }
    }
}

impl Iterator for SameFlow {
    type Item = GroPacket;

    #[inline]
    fn next(&mut self) -> Option<GroPacket> {
        while self.entry != self.list {
            let skb = of_list(self.entry);
            // SAFETY: The list is valid (`of`), belongs to this CPU and holds packets that GRO
            // keeps.
            unsafe {
                self.entry = (*self.entry).next;
                if raw::shim_skb_gro_same_flow(skb) {
                    // INVARIANT: These packets have been in `udp_gro_receive()`.
                    return Some(GroPacket(skb));
                }
            }
        }
        None
    }
}

/// Receives a packet of a tunnel socket: appends it to the chain of its receiver, or leaves it to
/// GRO as the first packet of a new chain, or as one that crosses the stack alone. Returns the
/// chain that ends before this packet, so that the packet does not overtake it, or null.
///
/// # Safety
///
/// Only GRO calls this, for a socket that [`open_udp_tunnel`](super::open_udp_tunnel) has
/// configured with an `H`.
pub(super) unsafe extern "C" fn gro_receive<H: UdpReceive>(
    sk: *mut raw::sock,
    list: *mut raw::list_head,
    skb: *mut raw::sk_buff,
) -> *mut raw::sk_buff {
    // INVARIANT: `udp_gro_receive()` (net/ipv4/udp_offload.c) is the only caller.
    let new = GroPacket(skb);
    let alone = || {
        // SAFETY: GRO passes a valid packet, and the list of packets that it keeps.
        unsafe {
            raw::shim_skb_gro_set_flush(skb);
            SameFlow::of(list).next()
        }
    };
    let end = |chain: Option<GroPacket>| chain.map_or(ptr::null_mut(), |first| first.0);
    // SAFETY: GRO passes a valid packet, which nothing else changes in this function before
    // `append`. It flushes a fragment, a GSO packet, and a packet whose lengths disagree.
    let headers = unsafe {
        let flush = raw::shim_skb_gro_flush(skb) != 0;
        (!flush).then(|| new.headers_of_new()).flatten()
    };
    let Some(headers) = headers else {
        return end(alone());
    };
    let (payload, network) = (new.payload_offset(), new.network_offset());
    // SAFETY: GRO passes the list of packets that it keeps.
    for first in unsafe { SameFlow::of(list) } {
        // SAFETY: The packet is valid, and only the code below changes it.
        let kept = unsafe { first.headers_of_kept(payload, network) };
        let Some(kept) = kept.filter(|kept| H::is_same_receiver(&kept.key, &headers.key)) else {
            // SAFETY: As above.
            unsafe { raw::shim_skb_gro_set_same_flow(first.0, false) };
            continue;
        };
        // SAFETY: As above.
        let number = unsafe { raw::shim_skb_gro_count(first.0) };
        if !kept.may_precede(&headers, number) || !first.accepts(new) {
            return first.0;
        }
        let version = headers.version;
        let appended = first.append(new, version);
        return end(if appended { None } else { alone() });
    }
    // SAFETY: GRO calls inside the RCU read-side section of `dev_gro_receive()` (net/core/gro.c),
    // with a socket that it has looked up, and a packet of a valid device. The user data is null or
    // the `H` that `open_udp_tunnel` set, which lives for a grace period after
    // `udp_tunnel_sock_release()` has cleared the user data.
    let (handler, dev, is_for_host) = unsafe {
        let handler = raw::shim_sk_user_data_rcu(sk).cast::<H>().as_ref();
        let dev = NetDevice::from_raw(shim_skb_dev(Skb::from_raw(skb)));
        (handler, dev, raw::shim_skb_is_for_host(skb))
    };
    let rcu = rcu::read_lock();
    let destination = destination(headers.version, headers.ip);
    let may_chain = |handler: &H| handler.may_chain(dev, &destination, &headers.key, &rcu);
    if is_for_host && !dev.passes_frames_on() && handler.is_some_and(may_chain) {
        return ptr::null_mut();
    }
    end(alone())
}

/// Completes a chain, after GRO has written the total length to its headers. Returns 0.
///
/// # Safety
///
/// Only GRO calls this, with a chain that [`gro_receive`] has made.
pub(super) unsafe extern "C" fn gro_complete(
    _sk: *mut raw::sock,
    skb: *mut raw::sk_buff,
    _offset: c_int,
) -> c_int {
    let kind = raw::SKB_GSO_UDP_L4 | raw::SKB_GSO_FRAGLIST | raw::SKB_GSO_UDP_TUNNEL;
    // SAFETY: GRO passes a valid packet, which it owns. `udp_gro_complete()`
    // (net/ipv4/udp_offload.c) has set `encapsulation`, but there are no inner headers. UDP
    // segments a chain without the bit of tunnels instead of passing it to the socket
    // (`udp_unexpected_gso()`, include/linux/udp.h).
    unsafe {
        raw::shim_skb_clear_encapsulation(skb);
        let shared = shim_skb_shinfo(Skb::from_raw(skb));
        (*shared).gso_type = kind as u32;
        (*shared).gso_segs = raw::shim_skb_gro_count(skb);
        raw::shim___skb_incr_checksum_unnecessary(skb);
    }
    0
}
