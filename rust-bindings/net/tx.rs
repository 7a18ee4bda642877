// SPDX-License-Identifier: GPL-2.0

//! Packets to send.
//!
//! C header: `include/linux/skbuff.h`.

use super::{
    blocks,
    device::shim_ll_reserved_space,
    skb::{shim_skb_headroom, shim_skb_nr_frags, shim_skb_shinfo, Skb},
    IpVersion, PacketWriter, Route, UDP_HEADER,
};
use crate::raw;
use core::ptr::NonNull;
use kernel::{prelude::*, sync::rcu};

/// A UDP datagram under construction. The payload comes first; the headers are then written in
/// front of it.
///
/// # Invariants
///
/// - `self` owns the only reference to `skb`, whose data is initialised.
/// - Until the headers are written, the packet has the headroom that `new` reserved.
/// - `block` is the memory of the last fragment, and the number of bytes that the fragment uses.
pub struct TxSkb {
    skb: NonNull<raw::sk_buff>,
    block: Option<(NonNull<u8>, usize)>,
}

// SAFETY: A packet belongs to no thread.
unsafe impl Send for TxSkb {}

impl TxSkb {
    /// Allocates a packet with headroom for the headers that the route needs, and with room for
    /// `capacity` bytes of linear payload. More payload goes into page fragments.
    /// Returns `None` if there is no memory. Any context.
    #[inline]
    pub fn new(route: &Route, capacity: usize) -> Option<Self> {
        let guard = rcu::read_lock();
        let link = shim_ll_reserved_space(route.device(&guard));
        let headers = route.version().header_len().wrapping_add(UDP_HEADER);
        let headroom = link.checked_add(headers as u32)?;
        let size = headroom.checked_add(u32::try_from(capacity).ok()?)?;
        Self::linear(headroom, size)
    }

    /// Allocates an empty packet of `size` bytes, the first `headroom` of which are headroom.
    /// Returns `None` if there is no memory, or if `headroom` is larger than
    /// `size`. Any context.
    #[inline]
    pub(super) fn linear(headroom: u32, size: u32) -> Option<Self> {
        if headroom > size {
            return None;
        }
        let skb = Self::allocate(size)?;
        // SAFETY: `skb_reserve` requires an empty packet with that much tailroom, which the
        // allocation has just provided.
        unsafe { raw::shim_skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: This is the only reference, the headroom was reserved just above, and there is
        // no data.
        Some(Self { skb, block: None })
    }

    /// Allocates an empty packet with at least `size` bytes of tailroom, and returns the only
    /// reference to it. The memory is part of a block if possible: the slab allocator would clear
    /// all of it for each packet.
    #[inline]
    fn allocate(size: u32) -> Option<NonNull<raw::sk_buff>> {
        // SAFETY: Any size may be allocated. `napi_build_skb` (net/core/skbuff.c) takes over a part
        // of a page, at whose end it puts `struct skb_shared_info`, for which `SKB_HEAD_ALIGN`
        // (skbuff.h) has added space. It requires softirqs to be disabled, and `take_part` returns
        // nothing unless they are. If it fails, the part is still this function's.
        unsafe {
            let whole = raw::shim_skb_head_align(size);
            // The sum overflows for sizes near 2^32.
            let part = Some(whole).filter(|whole| *whole > size);
            let Some(part) = part.and_then(|whole| blocks::take_part(whole as usize)) else {
                return NonNull::new(raw::shim_alloc_skb(size, raw::GFP_ATOMIC));
            };
            let skb = NonNull::new(raw::napi_build_skb(part.as_ptr().cast(), whole));
            if skb.is_none() {
                blocks::put(part);
            }
            skb
        }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::sk_buff {
        self.skb.as_ptr()
    }

    #[inline]
    pub(super) fn fields(&self) -> &Skb {
        // SAFETY: `self` owns the packet (type invariant).
        unsafe { Skb::from_raw(self.as_raw()) }
    }

    /// Transfers ownership of the C struct to the caller.
    #[inline]
    pub(super) fn into_raw(self) -> NonNull<raw::sk_buff> {
        core::mem::ManuallyDrop::new(self).skb
    }

    /// Takes back ownership of a packet from [`into_raw`](Self::into_raw).
    ///
    /// # Safety
    ///
    /// `skb` came from `into_raw`, and nothing has used it since.
    #[inline]
    pub(super) unsafe fn from_raw(skb: NonNull<raw::sk_buff>) -> Self {
        Self { skb, block: None }
    }

    /// Returns the length of the packet so far, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)] // No caller needs it.
    pub fn len(&self) -> usize {
        self.fields().len() as usize
    }

    /// Appends `len` bytes that `fill` writes. Bytes that it does not write are zero. If `fill`
    /// fails, the packet is unchanged.
    ///
    /// The bytes are linear if there is tailroom for them. Otherwise they go into page fragments,
    /// which come in blocks of 32 KiB. Appends fill a block before a new one is taken, but an
    /// append does not span two blocks.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: `len` does not fit into the linear part, and is 0 or more than a block; or the
    /// packet has the maximum number of fragments. `ENOMEM`.
    #[inline]
    pub fn append<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>> {
        let linear = len <= self.fields().tailroom();
        let before = self.len();
        let (block, used) = match self.block {
            // SAFETY: `self` owns the packet, whose tailroom is at least `len` bytes, so `len` fits
            // in 32 bits. All of these bytes are written or trimmed below.
            _ if linear => unsafe {
                let start = raw::shim___skb_put(self.as_raw(), len as u32);
                (NonNull::new(start.cast()).ok_or(EMSGSIZE)?, 0)
            },
            // A block in use has a byte of the packet, or `add_block` would add it again.
            _ if len == 0 || len > blocks::SIZE => return Err(EMSGSIZE),
            Some((block, used)) if blocks::SIZE.saturating_sub(used) >= len => (block, used),
            _ if u32::from(shim_skb_nr_frags(self.fields())) >= raw::MAX_SKB_FRAGS => {
                return Err(EMSGSIZE)
            }
            _ => (blocks::take()?, 0),
        };
        // SAFETY: `self` owns the memory, and nothing else uses its `len` bytes from `used` on.
        let result = unsafe { PacketWriter::write(block.add(used), len, fill) };
        match (linear, result.is_ok()) {
            (true, true) => {}
            // SAFETY: `self` owns the packet, and it is linear, as `skb_trim` (net/core/skbuff.c)
            // requires.
            (true, false) => unsafe { raw::skb_trim(self.as_raw(), before as u32) },
            (false, true) => self.add_block(block, used, len),
            // SAFETY: `take` returned the block just above, and no fragment refers to it.
            (false, false) if used == 0 => unsafe { blocks::put(block) },
            (false, false) => {}
        }
        Ok(result)
    }

    /// Adds `len` initialised bytes of a block, which follow the `used` ones, to the packet.
    #[inline]
    fn add_block(&mut self, block: NonNull<u8>, used: usize, len: usize) {
        let count = i32::from(shim_skb_nr_frags(self.fields()));
        // SAFETY: The caller has initialised the bytes. A new block becomes a fragment, for which
        // there is a free slot; the fragment takes over the block's reference and accounts for all
        // of its memory. A block in use is the last fragment, which grows.
        unsafe {
            if used != 0 {
                let skb = self.as_raw();
                raw::shim_skb_grow_frag(skb, count.wrapping_sub(1), len as i32);
                (*skb).len = (*skb).len.wrapping_add(len as u32);
                (*skb).data_len = (*skb).data_len.wrapping_add(len as u32);
            } else {
                let (block, size) = (block.as_ptr().cast(), blocks::SIZE as u32);
                raw::shim_skb_add_block(self.as_raw(), count, block, len as i32, size);
            }
        }
        // INVARIANT: The last fragment now uses `used + len` bytes of the block.
        self.block = Some((block, used.wrapping_add(len)));
    }

    /// Returns how many bytes a single [`append`](Self::append) can take, given that it needs room
    /// for at least `len`.
    #[inline]
    pub fn room(&self, len: usize) -> usize {
        match (self.fields().tailroom(), self.block) {
            (linear, _) if linear >= len => linear,
            (_, Some((_, used))) if blocks::SIZE.saturating_sub(used) >= len => {
                blocks::SIZE.saturating_sub(used)
            }
            _ => blocks::SIZE,
        }
    }

    /// Turns a packet with finished headers into a GSO packet of `count` datagrams, each with
    /// `size` bytes of payload except the last. The stack segments it if necessary, and gives each
    /// datagram its lengths, the next IPv4 Identification and a UDP checksum. If the route ends at
    /// the other end of a veth, the packet arrives unsegmented at sockets that accept GSO packets
    /// ([`RxSkb::datagrams`](super::RxSkb::datagrams)). Returns `EINVAL` if the headers were not
    /// written, or if `size` or `count` is 0.
    pub fn segment(&mut self, route: &Route, size: u16, count: u16) -> Result {
        if size == 0 || count == 0 {
            return Err(EINVAL);
        }
        let skb = self.as_raw();
        // SAFETY: `self` owns the packet (type invariant). The checks of `dst` and of the network
        // header show that `finish` has written the headers: an IP header of the route's version,
        // then the UDP header, into which `udp_set_csum` and `udp6_set_csum` write the sum of the
        // pseudo header.
        unsafe {
            let ip = raw::shim_skb_network_header(skb);
            if !raw::shim_skb_has_dst(skb) || ip != (*skb).data {
                return Err(EINVAL);
            }
            let udp = self.len().checked_sub(route.version().header_len());
            let udp = udp.ok_or(EINVAL)? as i32;
            match route.version() {
                IpVersion::V4 => {
                    let source = ip.add(12).cast::<u32>().read_unaligned();
                    let destination = ip.add(16).cast::<u32>().read_unaligned();
                    raw::udp_set_csum(false, skb, source, destination, udp);
                }
                IpVersion::V6 => {
                    raw::udp6_set_csum(false, skb, ip.add(8).cast(), ip.add(24).cast(), udp);
                }
            }
            let shared = shim_skb_shinfo(self.fields());
            (*shared).gso_size = size;
            (*shared).gso_segs = count;
            (*shared).gso_type = raw::SKB_GSO_UDP_L4 as u32;
            if route.ends_at_peer() {
                // Lets an encapsulation socket receive the packet unsegmented
                // (udp_unexpected_gso() in include/linux/udp.h). Drivers that find this bit read
                // the inner headers, which are not there: they must not find anything else than
                // the outer ones. The link-layer header, which comes later, is empty.
                (*shared).gso_type |= raw::SKB_GSO_UDP_TUNNEL as u32;
                raw::shim_skb_reset_inner_headers(skb);
                raw::shim_skb_reset_inner_mac_header(skb);
            }
        }
        Ok(())
    }

    /// Returns the number of IP packets that this becomes on the wire, the bytes of all of them
    /// together, and those of the longest one.
    pub(super) fn on_the_wire(&self) -> (u32, u64, u32) {
        let (skb, len) = (self.fields(), self.fields().len());
        let shared = shim_skb_shinfo(skb);
        // SAFETY: `self` owns the packet (type invariant).
        let (segments, size) = unsafe { ((*shared).gso_segs, (*shared).gso_size) };
        let segments = u32::from(segments).max(1);
        let headers = skb.version().header_len().wrapping_add(UDP_HEADER) as u32;
        let longest = match segments {
            1 => len,
            _ => u32::from(size).wrapping_add(headers),
        };
        // All terms are far below 2^32.
        let more = segments.saturating_sub(1).wrapping_mul(headers);
        (segments, u64::from(len.wrapping_add(more)), longest)
    }

    /// Writes the IP and UDP headers, and sets the route. `ip` has no options or extension headers.
    ///
    /// IP writes its length and the IPv4 header checksum itself, and sends the rest unchanged. A
    /// UDP checksum of zero means none, which RFC 6935 allows for tunnels over IPv6. Returns
    /// `EINVAL` if `ip` is not as long as the header of the route's IP version, or if the headers
    /// have already been written.
    #[inline]
    pub fn finish(&mut self, route: &Route, ip: &[u8], udp: &[u8; UDP_HEADER]) -> Result {
        let version = route.version();
        let headroom = shim_skb_headroom(self.fields()) as usize;
        if ip.len() != version.header_len() || headroom < ip.len().wrapping_add(UDP_HEADER) {
            return Err(EINVAL);
        }
        let skb = self.as_raw();
        // SAFETY: `self` owns the packet, which has headroom for both headers (checked above), and
        // all of that is written. The packet gets its own reference to the route.
        unsafe {
            let start = raw::shim___skb_push(skb, udp.len() as u32).cast::<u8>();
            start.copy_from_nonoverlapping(udp.as_ptr(), udp.len());
            raw::shim_skb_reset_transport_header(skb);
            let start = raw::shim___skb_push(skb, ip.len() as u32).cast::<u8>();
            start.copy_from_nonoverlapping(ip.as_ptr(), ip.len());
            raw::shim_skb_reset_network_header(skb);
            raw::shim_skb_set_protocol(skb, version.ethertype().to_be());
            raw::shim_skb_dst_drop(skb);
            raw::shim_skb_dst_set(skb, route.as_raw());
        }
        Ok(())
    }
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only reference to the packet (type invariant).
        unsafe { raw::shim_consume_skb(self.as_raw()) };
    }
}
