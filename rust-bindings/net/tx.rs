// SPDX-License-Identifier: GPL-2.0

//! Packets to send.
//!
//! C header: `include/linux/skbuff.h`.

use super::{blocks, origin, IpVersion, Room, Route, IPV4_HEADER, IPV6_HEADER, UDP_HEADER};
use crate::{raw, vector::Vector};
use core::{ptr::NonNull, slice};
use kernel::{
    page::{Page, PAGE_SIZE},
    prelude::*,
    sync::rcu,
};

/// A UDP datagram that is being put together: first the payload, then the headers in front of it.
///
/// # Invariants
///
/// - We own the only reference to `skb`, and its data are initialised.
/// - It has the headroom that `new` made, as long as the headers are not written.
/// - `block` is the memory of its last fragment, and how many bytes of it the fragment has.
pub struct TxSkb {
    skb: NonNull<raw::sk_buff>,
    block: Option<(NonNull<u8>, usize)>,
    /// Nothing but headers is to be linear.
    paged: bool,
}

// SAFETY: A packet belongs to no thread.
unsafe impl Send for TxSkb {}

/// What a packet is on the wire.
#[derive(Clone, Copy)]
pub(super) struct OnTheWire {
    /// Datagrams.
    pub(super) packets: u32,
    /// Bytes of all their IP packets.
    pub(super) bytes: u64,
    /// Bytes of the longest IP packet.
    pub(super) longest: u32,
}

impl TxSkb {
    /// Allocates a packet with room for `capacity` bytes of linear payload, and before it for the
    /// headers of its way. `None` where there is no memory. Any context.
    #[inline]
    pub fn new(route: &Route, capacity: usize) -> Option<Self> {
        let guard = rcu::read_lock();
        // SAFETY: The device is valid under RCU.
        let link = unsafe { raw::shim_ll_reserved_space(route.device(&guard).as_raw()) };
        let ip = match route.version() {
            IpVersion::V4 => IPV4_HEADER,
            IpVersion::V6 => IPV6_HEADER,
        };
        let headroom = link.checked_add(ip.wrapping_add(UDP_HEADER) as u32)?;
        let size = headroom.checked_add(u32::try_from(capacity).ok()?)?;
        // SAFETY: Any size may be asked for. `skb_reserve` is for an empty packet, which it is,
        // with as much tailroom at least.
        unsafe {
            let skb = NonNull::new(raw::shim_alloc_skb(size, raw::GFP_ATOMIC))?;
            raw::shim_skb_reserve(skb.as_ptr(), headroom as i32);
            // INVARIANT: Allocated and reserved just above; there are no data.
            Some(Self {
                skb,
                block: None,
                paged: false,
            })
        }
    }

    /// As [`new`](Self::new), for a payload that is all in page fragments.
    #[inline]
    pub fn new_paged(route: &Route) -> Option<Self> {
        let mut new = Self::new(route, 0)?;
        new.paged = true;
        Some(new)
    }

    /// The C struct.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::sk_buff {
        self.skb.as_ptr()
    }

    /// Gives the C struct to the caller.
    #[inline]
    pub(super) fn into_raw(self) -> *mut raw::sk_buff {
        core::mem::ManuallyDrop::new(self).as_raw()
    }

    /// Takes over what [`into_raw`](Self::into_raw) gave.
    ///
    /// # Safety
    ///
    /// `skb` came from `into_raw`, and nobody has used it since.
    #[inline]
    pub(super) unsafe fn from_raw(skb: NonNull<raw::sk_buff>) -> Self {
        Self {
            skb,
            block: None,
            paged: true,
        }
    }

    /// Bytes so far.
    #[inline]
    #[expect(clippy::len_without_is_empty)] // Nobody asks.
    pub fn len(&self) -> usize {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { (*self.as_raw()).len as usize }
    }

    /// Appends `len` bytes, which `fill` writes; what it leaves out is zero. Where `fill` fails, the packet stays as it was.
    ///
    /// They are linear where there is room for that, and in memory behind it otherwise, which comes in blocks of 32 KiB:
    /// each takes as much as fits.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: more than a block, or there are as many blocks as a packet can have. `ENOMEM`.
    #[inline]
    pub fn append<E>(
        &mut self,
        len: usize,
        vector: &Vector,
        fill: impl FnOnce(&mut Room<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>> {
        let linear = !self.paged && len <= self.tailroom();
        let before = self.len();
        let (block, used) = match self.block {
            // SAFETY: There is room for `len` bytes, which fits in 32 bits thus; it is ours. All of it is written below, or
            // cut off again.
            _ if linear => unsafe {
                let start = raw::shim___skb_put(self.as_raw(), len as u32);
                (NonNull::new(start.cast()).ok_or(EMSGSIZE)?, 0)
            },
            _ if len > blocks::SIZE => return Err(EMSGSIZE),
            Some((block, used)) if blocks::SIZE.saturating_sub(used) >= len => (block, used),
            _ if self.fragments() >= raw::MAX_SKB_FRAGS => return Err(EMSGSIZE),
            _ => (blocks::take()?, 0),
        };
        // SAFETY: The memory is ours, and nobody uses it from `used` on, where there are `len` bytes left.
        let mut room = unsafe { Room::new(block.as_ptr().add(used), len, vector) };
        let result = fill(&mut room);
        room.finish();
        match (linear, result.is_ok()) {
            (true, true) => {}
            // SAFETY: The packet is valid by the type invariant, and linear.
            (true, false) => unsafe { raw::skb_trim(self.as_raw(), before as u32) },
            (false, true) => self.add_block(block, used, len),
            // SAFETY: Taken just above; no fragment refers to it.
            (false, false) if used == 0 => unsafe { blocks::give_back(block) },
            (false, false) => {}
        }
        Ok(result)
    }

    /// Makes `len` initialised bytes of a block behind the `used` ones a part of the packet.
    #[inline]
    fn add_block(&mut self, block: NonNull<u8>, used: usize, len: usize) {
        let count = self.fragments() as i32;
        // SAFETY: The bytes are initialised, as the caller says. A new block becomes a fragment, for which there is a place,
        // and which owns it from now on and accounts for all of it; an old one is the last fragment, which grows.
        unsafe {
            if used != 0 {
                let skb = self.as_raw();
                raw::shim_skb_grow_frag(skb, count.wrapping_sub(1), len as i32);
                (*skb).len = (*skb).len.wrapping_add(len as u32);
                (*skb).data_len = (*skb).data_len.wrapping_add(len as u32);
            } else {
                let page = raw::shim_virt_to_page(block.as_ptr().cast());
                let (skb, size) = (self.as_raw(), blocks::SIZE as u32);
                raw::shim_skb_add_page(skb, count, page, 0, len as i32, size);
            }
        }
        // INVARIANT: It is the last fragment's.
        self.block = Some((block, used.wrapping_add(len)));
    }

    /// Page fragments so far.
    #[inline]
    fn fragments(&self) -> u32 {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_nr_frags(self.as_raw()) }.into()
    }

    /// Bytes of linear data that there is room for.
    #[inline]
    fn tailroom(&self) -> usize {
        // SAFETY: The packet is valid by the type invariant. `skb_tailroom` is zero where there are
        // page fragments.
        usize::try_from(unsafe { raw::shim_skb_tailroom(self.as_raw()) }).unwrap_or(0)
    }

    /// Bytes that [`append`](Self::append) takes at once, if it is to be `len` at least.
    #[inline]
    pub fn room(&self, len: usize) -> usize {
        match (self.tailroom(), self.block) {
            (linear, _) if linear >= len && !self.paged => linear,
            (_, Some((_, used))) if blocks::SIZE.saturating_sub(used) >= len => {
                blocks::SIZE.saturating_sub(used)
            }
            _ => blocks::SIZE,
        }
    }

    /// Marks a packet whose headers are written as `count` datagrams in a row, each but the last
    /// of `size` bytes of payload: the stack segments it where it must, gives each its lengths and
    /// the next IPv4 Identification, and a UDP checksum. Where it arrives whole, as on a veth, it
    /// is for who accepts it so ([`RxSkb::datagrams`](super::RxSkb::datagrams)).
    ///
    /// # Errors
    ///
    /// `EINVAL`: the headers were not written, or `size` or `count` is 0.
    pub fn segment(&mut self, route: &Route, size: u16, count: u16) -> Result {
        if size == 0 || count == 0 {
            return Err(EINVAL);
        }
        let skb = self.as_raw();
        // SAFETY: The packet is valid by the type invariant; `finish` has put the headers in front,
        // which the header offsets tell: an IP header of the route's version, and behind it the UDP
        // header that `udp_set_csum` and `udp6_set_csum` write the pseudo header's sum to.
        unsafe {
            let ip = raw::shim_skb_network_header(skb);
            if !raw::shim_skb_has_dst(skb) || ip != (*skb).data {
                return Err(EINVAL);
            }
            let len = (*skb).len as usize;
            match route.version() {
                IpVersion::V4 => {
                    let udp = len.checked_sub(IPV4_HEADER).ok_or(EINVAL)?;
                    let source = ip.add(12).cast::<u32>().read_unaligned();
                    let destination = ip.add(16).cast::<u32>().read_unaligned();
                    raw::udp_set_csum(false, skb, source, destination, udp as i32);
                }
                IpVersion::V6 => {
                    let udp = len.checked_sub(IPV6_HEADER).ok_or(EINVAL)?;
                    raw::udp6_set_csum(false, skb, ip.add(8).cast(), ip.add(24).cast(), udp as i32);
                }
            }
            raw::shim_skb_set_gso_size(skb, size);
            raw::shim_skb_set_gso_segs(skb, count);
            // The second bit says that an encapsulation socket may have it whole (udp_unexpected_gso()
            // in include/linux/udp.h).
            let kind = raw::SKB_GSO_UDP_L4 | raw::SKB_GSO_UDP_TUNNEL;
            raw::shim_skb_set_gso_type(skb, kind as u32);
        }
        Ok(())
    }

    /// What the packet is on the wire.
    pub(super) fn on_the_wire(&self) -> OnTheWire {
        // SAFETY: The packet is valid by the type invariant.
        let (segments, len, version) = unsafe {
            (
                u32::from(raw::shim_skb_gso_segs(self.as_raw())).max(1),
                (*self.as_raw()).len,
                u16::from_be(raw::shim_skb_protocol(self.as_raw())),
            )
        };
        let ip = if u32::from(version) == raw::ETH_P_IPV6 {
            IPV6_HEADER
        } else {
            IPV4_HEADER
        };
        let headers = ip.wrapping_add(UDP_HEADER) as u32;
        let longest = match segments {
            1 => len,
            // SAFETY: The packet is valid by the type invariant.
            _ => u32::from(unsafe { raw::shim_skb_gso_size(self.as_raw()) }).wrapping_add(headers),
        };
        OnTheWire {
            packets: segments,
            // Both are far below 2^32.
            bytes: u64::from(segments.saturating_sub(1))
                .wrapping_mul(headers.into())
                .wrapping_add(len.into()),
            longest,
        }
    }

    /// Appends a part of a page without copying it; takes a reference to the page.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the part is not inside the page. `EMSGSIZE`: there are as many fragments as a
    /// packet can have.
    pub fn append_page(&mut self, page: &Page, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= PAGE_SIZE => {}
            _ => return Err(EINVAL),
        }
        // SAFETY: The page is valid, and the part is inside it.
        unsafe { self.append_page_raw(page.as_ptr(), offset, len) }
    }

    /// As [`append_page`](Self::append_page), for a page that is not a [`Page`], or several
    /// pages that follow each other.
    ///
    /// # Errors
    ///
    /// As [`append_page`](Self::append_page).
    ///
    /// # Safety
    ///
    /// `page` is a valid page of which a reference may be taken (`get_page`), and `offset` and
    /// `len` are inside it, or inside the compound page that it is the head of.
    pub unsafe fn append_page_raw(
        &mut self,
        page: *mut kernel::bindings::page,
        offset: usize,
        len: usize,
    ) -> Result {
        let (offset, len) = (i32::try_from(offset)?, i32::try_from(len)?);
        // SAFETY: The packet is valid by the type invariant.
        let count = unsafe { raw::shim_skb_nr_frags(self.as_raw()) };
        if u32::from(count) >= raw::MAX_SKB_FRAGS {
            return Err(EMSGSIZE);
        }
        // SAFETY: There is room for a fragment, which owns the reference that is taken here.
        unsafe {
            raw::shim_get_page(page);
            raw::shim_skb_add_page(
                self.as_raw(),
                i32::from(count),
                page,
                offset,
                len,
                len as u32,
            );
        }
        Ok(())
    }

    /// The linear data so far.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        // SAFETY: By the type invariant they are valid and initialised.
        unsafe {
            slice::from_raw_parts(
                (*self.as_raw()).data,
                raw::shim_skb_headlen(self.as_raw()) as usize,
            )
        }
    }

    /// The linear data so far, to be changed.
    #[inline]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        // SAFETY: By the type invariant they are valid and initialised, and ours alone.
        unsafe {
            slice::from_raw_parts_mut(
                (*self.as_raw()).data,
                raw::shim_skb_headlen(self.as_raw()) as usize,
            )
        }
    }

    /// Writes the headers of a packet over IPv4, and sets its way.
    ///
    /// IP writes total length and header checksum itself; all else is sent as it is given. A
    /// UDP checksum of zero means none.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the route is not of this version, or the headers were written before.
    #[inline]
    pub fn finish_v4(
        &mut self,
        route: &Route,
        ip: &[u8; IPV4_HEADER],
        udp: &[u8; UDP_HEADER],
    ) -> Result {
        if route.version() != IpVersion::V4 {
            return Err(EINVAL);
        }
        self.finish(route, ip, udp, raw::ETH_P_IP as u16)
    }

    /// Writes the headers of a packet over IPv6, and sets its way.
    ///
    /// IP writes the payload length itself; all else is sent as it is given. A UDP checksum of
    /// zero means none, which RFC 6935 allows for tunnels.
    ///
    /// # Errors
    ///
    /// As [`finish_v4`](Self::finish_v4).
    #[inline]
    pub fn finish_v6(
        &mut self,
        route: &Route,
        ip: &[u8; IPV6_HEADER],
        udp: &[u8; UDP_HEADER],
    ) -> Result {
        if route.version() != IpVersion::V6 {
            return Err(EINVAL);
        }
        self.finish(route, ip, udp, raw::ETH_P_IPV6 as u16)
    }

    #[inline]
    fn finish(&mut self, route: &Route, ip: &[u8], udp: &[u8], protocol: u16) -> Result {
        // SAFETY: The packet is valid by the type invariant.
        if (unsafe { raw::shim_skb_headroom(self.as_raw()) } as usize)
            < ip.len().saturating_add(udp.len())
        {
            return Err(EINVAL);
        }
        let skb = self.as_raw();
        // SAFETY: There is headroom for both headers, all of which is written. The packet gets a
        // reference to the route of its own.
        unsafe {
            let start = raw::shim___skb_push(skb, udp.len() as u32).cast::<u8>();
            start.copy_from_nonoverlapping(udp.as_ptr(), udp.len());
            raw::shim_skb_reset_transport_header(skb);
            let start = raw::shim___skb_push(skb, ip.len() as u32).cast::<u8>();
            start.copy_from_nonoverlapping(ip.as_ptr(), ip.len());
            raw::shim_skb_reset_network_header(skb);
            raw::shim_skb_set_protocol(skb, protocol.to_be());
            raw::shim_skb_dst_drop(skb);
            raw::shim_dst_hold(route.as_raw());
            raw::shim_skb_dst_set(skb, route.as_raw());
            origin::mark(skb);
        }
        Ok(())
    }

    /// Sets the priority that queueing disciplines and VLANs use.
    #[inline]
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_set_priority(self.as_raw(), priority) }
    }

    /// Sets the firewall mark.
    #[inline]
    pub fn set_mark(&mut self, mark: u32) {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_set_mark(self.as_raw(), mark) }
    }

    /// Sets the flow hash, which transmit queues are chosen by: the same for packets whose order
    /// matters.
    #[inline]
    pub fn set_hash(&mut self, hash: u32) {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_set_hash(self.as_raw(), hash) }
    }
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: The packet is ours by the type invariant.
        unsafe { raw::consume_skb(self.as_raw()) };
    }
}
