// SPDX-License-Identifier: GPL-2.0

//! The datagrams of a received packet and access to their bytes.

use super::{
    addr::field,
    rx::{RxSkb, UdpPacket},
    skb::{link, shim_skb_shinfo},
    UDP_HEADER,
};
use crate::{crc32, raw, shared_bytes};
use core::{marker::PhantomData, num::NonZero, ptr::NonNull};
use kernel::prelude::*;

impl UdpPacket {
    /// Returns the datagrams in the packet, in order. There is one, unless
    ///
    /// - the sender's stack has passed on several without segmenting them (`SKB_GSO_UDP_L4`), for
    ///   example over a veth, or
    /// - GRO or the sender has made a chain of packets (`SKB_GSO_FRAGLIST`), each of which has its
    ///   own headers.
    ///
    #[inline]
    pub fn datagrams(&self) -> Datagrams<'_> {
        let total = self.payload_len();
        let shared = shim_skb_shinfo(self.fields());
        // SAFETY: The packet is valid by the type invariant.
        let (size, kind) = unsafe { ((*shared).gso_size, (*shared).gso_type) };
        let segmented = kind & raw::SKB_GSO_UDP_L4 as u32 != 0;
        let size = NonZero::new(size.into()).filter(|size| segmented && size.get() < total);
        let several = size.is_some();
        // If something has made the payload of a chain linear, its parts have the size of the first
        // packet, except perhaps for the last one.
        let members = size.and_then(|size| self.first_member(size.get()));
        // An empty packet holds one empty datagram.
        let parts = |size: NonZero<usize>| (total.wrapping_sub(1) / size).wrapping_add(1);
        let count = size.filter(|_| members.is_none()).map_or(1, parts);
        Datagrams {
            packet: self,
            pieces: Pieces::new(self),
            total,
            size: size.map_or(total, NonZero::get),
            several,
            next: 0,
            count,
            members,
        }
    }

    /// Returns the packet that follows this one in a chain, if this is the first one, with `size`
    /// bytes of payload of its own.
    #[inline]
    fn first_member(&self, size: usize) -> Option<&UdpPacket> {
        let shared = shim_skb_shinfo(self.fields());
        // SAFETY: The packet is valid by the type invariant, and the packets of its list live as
        // long as it does. UDP passes on chains with the bit of tunnels only, and segments others
        // (`udp_unexpected_gso()`, include/linux/udp.h). Such a chain was made by GRO for a socket
        // of this crate, or by `TxChain` for the other end of a veth. `GroPacket::append` and
        // `TxDatagram` establish the invariants of `UdpPacket` for the packets of the list.
        unsafe {
            let is_chain = (*shared).gso_type & raw::SKB_GSO_FRAGLIST as u32 != 0;
            let own = raw::shim_skb_pagelen(self.as_raw()) as usize;
            let first = (*shared).frag_list;
            (is_chain && own == size && !first.is_null()).then(|| UdpPacket::from_raw(first))
        }
    }

    /// Returns the packet that follows this one in a chain, of which this is not the first one.
    ///
    /// # Safety
    ///
    /// The chain exists for as long as `self` is borrowed.
    #[inline]
    unsafe fn next_member(&self) -> Option<&UdpPacket> {
        // SAFETY: The caller guarantees that the chain exists, so that the field links the packets
        // of its list; see `first_member`.
        unsafe {
            let next = *link(self.as_raw());
            (!next.is_null()).then(|| UdpPacket::from_raw(next))
        }
    }
}

/// Iterates over the datagrams of a packet; see [`UdpPacket::datagrams`].
pub struct Datagrams<'a> {
    packet: &'a UdpPacket,
    pieces: Pieces<'a>,
    /// Bytes of payload of the whole packet, and of each part of it but the last.
    total: usize,
    size: usize,
    several: bool,
    /// Number of the next part, and the number of parts.
    next: usize,
    count: usize,
    /// The next packet of a chain, after the parts of the first one.
    members: Option<&'a UdpPacket>,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        if self.next == self.count {
            let member = self.members?;
            // SAFETY: The first packet of the chain is borrowed for `'a`, and so the chain exists.
            self.members = unsafe { member.next_member() };
            return Some(Datagram::of_member(member));
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        // The start is inside the packet, whose length fits in 32 bits.
        let start = index.wrapping_mul(self.size);
        let len = self.size.min(self.total.saturating_sub(start));
        let chain = self.members.map_or(Chain::None, |_| Chain::First);
        Some(Datagram {
            skb: self.packet,
            part: Part {
                start,
                len,
                contiguous: self.pieces.contiguous(start, len),
                // It wraps like the Identification.
                index: index as u16,
                several: self.several,
                chain,
            },
        })
    }
}

/// Iterates over the areas of memory that hold a packet's payload: the linear part, then the page
/// fragments.
struct Pieces<'a> {
    skb: &'a UdpPacket,
    /// Offset of the current piece in the payload. `len` and `data` are its length and address,
    /// which is `None` if the CPU cannot read the memory.
    start: usize,
    len: usize,
    data: Option<NonNull<u8>>,
    /// Number of fragments up to and including the current piece.
    taken: i32,
}

impl<'a> Pieces<'a> {
    #[inline]
    fn new(skb: &'a UdpPacket) -> Self {
        let head = skb.head();
        Self {
            skb,
            start: 0,
            len: head.len(),
            data: NonNull::new(head.as_ptr().cast_mut()),
            taken: 0,
        }
    }

    /// Returns the address of `len` bytes of the payload at `start` if they are in one piece, valid
    /// as long as the packet. Calls must be in ascending order of `start`.
    #[inline]
    fn contiguous(&mut self, start: usize, len: usize) -> Option<NonNull<u8>> {
        while start >= self.start.saturating_add(self.len) {
            let skb = self.skb.as_raw();
            // SAFETY: The packet is valid by its type invariant, and `taken` is less than its
            // number of fragments. `skb_frag_address_safe` (skbuff.h) returns null for memory that
            // the CPU cannot always read.
            unsafe {
                if self.taken >= i32::from(raw::shim_skb_nr_frags(skb)) {
                    return None;
                }
                self.start = self.start.saturating_add(self.len);
                self.len = raw::shim_skb_frag_size(skb, self.taken) as usize;
                self.data = NonNull::new(raw::shim_skb_frag_address_safe(skb, self.taken).cast());
            }
            self.taken = self.taken.saturating_add(1);
        }
        let at = start.checked_sub(self.start)?;
        if len > self.len.saturating_sub(at) {
            return None;
        }
        // SAFETY: The offset is inside the piece.
        Some(unsafe { self.data?.add(at) })
    }
}

/// The place of a datagram in a chain of packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chain {
    /// There is no chain, or it may be gone.
    None,
    /// The first packet, which refers to the others.
    First,
    /// Another packet.
    Member,
}

/// The part of a packet that a datagram occupies.
#[derive(Clone, Copy)]
struct Part {
    /// Offset of the datagram's payload in the packet's payload.
    start: usize,
    len: usize,
    /// Address of the payload if it is in one piece of memory, valid for reads of `len` bytes as
    /// long as the packet.
    contiguous: Option<NonNull<u8>>,
    /// Number of datagrams before it in the packet.
    index: u16,
    /// The packet holds more than one datagram, and so its headers have the total length.
    several: bool,
    chain: Chain,
}

/// One UDP datagram of a received packet.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    skb: &'a UdpPacket,
    part: Part,
}

impl<'a> Datagram<'a> {
    /// Returns the datagram in a packet of a chain, other than the first one.
    #[inline]
    fn of_member(skb: &'a UdpPacket) -> Self {
        let len = skb.payload_len();
        Self {
            skb,
            part: Part {
                start: 0,
                len,
                contiguous: Pieces::new(skb).contiguous(0, len),
                index: 0,
                several: false,
                chain: Chain::Member,
            },
        }
    }

    /// Returns the next packet of the chain.
    #[inline]
    fn next_in_chain(&self) -> Option<&'a UdpPacket> {
        match self.part.chain {
            Chain::None => None,
            Chain::First => self.skb.first_member(self.part.len),
            // SAFETY: Only `Datagrams` makes such a datagram, and the first packet of the chain is
            // borrowed for `'a`.
            Chain::Member => unsafe { self.skb.next_member() },
        }
    }

    /// Returns the packet. Its addresses, marks and other metadata apply to all of its datagrams.
    #[inline]
    pub fn packet(&self) -> &'a UdpPacket {
        self.skb
    }

    /// Returns the bytes of UDP payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.part.len
    }

    /// Returns the bytes of the IP header.
    #[inline]
    pub fn ip_header_len(&self) -> usize {
        self.skb.ip_header().len()
    }

    /// Returns the Identification over IPv4: the one that segmentation would assign if the packet
    /// holds several datagrams.
    #[inline]
    pub fn ident(&self) -> u16 {
        let first = u16::from_be_bytes(field(self.skb.ip_header(), 4));
        first.wrapping_add(self.part.index)
    }

    /// Returns the IPv4 header, or `None` over IPv6 or if the header has options. If the packet
    /// holds several datagrams, this is the header that segmentation would give this datagram
    /// (`inet_gso_segment`, net/ipv4/af_inet.c), except for the header checksum.
    #[inline]
    pub fn ipv4_header(&self) -> Option<[u8; 20]> {
        let mut header: [u8; 20] = self.skb.ip_header().try_into().ok()?;
        if self.part.several {
            let [_, _, l0, l1, i0, i1, ..] = &mut header;
            let ident = u16::from_be_bytes([*i0, *i1]).wrapping_add(self.part.index);
            [*i0, *i1] = ident.to_be_bytes();
            [*l0, *l1] = self.len_after_ip().wrapping_add(20).to_be_bytes();
        }
        Some(header)
    }

    /// Returns the IPv6 header, or `None` over IPv4 or if extension headers follow. If the packet
    /// holds several datagrams, it has the payload length of this datagram.
    #[inline]
    pub fn ipv6_header(&self) -> Option<[u8; 40]> {
        let mut header: [u8; 40] = self.skb.ip_header().try_into().ok()?;
        if self.part.several {
            let [_, _, _, _, l0, l1, ..] = &mut header;
            [*l0, *l1] = self.len_after_ip().to_be_bytes();
        }
        Some(header)
    }

    /// Returns the UDP header, with the length that segmentation would give it. The checksum is
    /// unchanged.
    #[inline]
    pub fn udp_header(&self) -> [u8; UDP_HEADER] {
        let mut header = *self.skb.udp_header();
        if self.part.several {
            let [_, _, _, _, l0, l1, ..] = &mut header;
            [*l0, *l1] = self.len_after_ip().to_be_bytes();
        }
        header
    }

    /// Returns the bytes after the IP header. They fit in 16 bits even for all datagrams of a
    /// packet together.
    #[inline]
    fn len_after_ip(&self) -> u16 {
        self.part.len.wrapping_add(UDP_HEADER) as u16
    }

    /// Returns the offset in the packet's payload of byte `offset` of the datagram, if `len` bytes
    /// from there are inside the datagram. Otherwise returns `EINVAL`.
    #[inline]
    fn position(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.part.len => Ok(self.part.start.wrapping_add(offset)),
            _ => Err(EINVAL),
        }
    }

    /// Copies `destination.len()` bytes of the payload, starting at `offset`. Returns `EINVAL` if
    /// they are not inside the payload, `EFAULT` if only the device can read their memory.
    // A copy of constant length then needs no function call.
    #[inline(always)]
    pub fn copy_bits(&self, offset: usize, destination: &mut [u8]) -> Result {
        let at = self.position(offset, destination.len())?;
        let Some(data) = self.part.contiguous else {
            return self.skb.copy_bits(at, destination);
        };
        // SAFETY: `position` has checked that the range is inside the datagram, which is valid for
        // reads at `data`. The slice does not overlap a packet.
        unsafe {
            let data = data.add(offset).as_ptr();
            shared_bytes::copy(destination.as_mut_ptr(), data, destination.len());
        };
        Ok(())
    }

    /// Calls `f` in order for each piece of memory that holds `len` bytes of the payload at
    /// `offset`. `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range is not inside the payload. `EFAULT`: a part of it is in memory that only
    /// the device can read; `f` may have been called for the bytes before that part.
    #[inline]
    pub fn for_each(&self, offset: usize, len: usize, mut f: impl FnMut(Fragment<'_>)) -> Result {
        let at = self.position(offset, len)?;
        let Some(data) = self.part.contiguous else {
            return self.skb.for_each(at, len, f);
        };
        if len != 0 {
            // SAFETY: `position` has checked that the range is inside the datagram, which is valid
            // for reads at `data` as long as its packet.
            f(unsafe { Fragment::new(data.add(offset).as_ptr(), len) });
        }
        Ok(())
    }

    /// Returns whether another datagram follows in the packet or the chain.
    #[inline]
    pub fn is_followed(&self) -> bool {
        match self.part.chain {
            Chain::None => self.part.start.saturating_add(self.part.len) < self.skb.payload_len(),
            Chain::First | Chain::Member => self.next_in_chain().is_some(),
        }
    }

    /// Calls `f` for payload bytes of this datagram and those after it in the packet or the chain.
    /// Each datagram contributes the `each` bytes that follow its first `skip` bytes. The function
    /// visits `len` bytes of that sequence, starting at `offset`. `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range is not inside the packet or the chain, or a datagram is shorter than
    /// `skip + each` bytes. `EFAULT`: a part of the range is in memory that only the device can
    /// read; `f` may have been called for the bytes before that part.
    #[inline]
    pub fn for_each_in_burst(
        &self,
        skip: usize,
        each: usize,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        self.position(skip, each)?;
        if self.part.chain == Chain::None {
            return self.for_each_in_gso_packet(skip, each, offset, len, f);
        }
        let mut before = offset.checked_div(each).ok_or(EINVAL)?;
        let mut at = offset.checked_rem(each).ok_or(EINVAL)?;
        let mut left = len;
        let mut datagram = *self;
        while left != 0 {
            if before == 0 {
                let n = left.min(each.saturating_sub(at));
                datagram.for_each(skip.saturating_add(at), n, &mut f)?;
                left = left.saturating_sub(n);
                at = 0;
            }
            before = before.saturating_sub(1);
            if left != 0 {
                let next = datagram.next_in_chain().ok_or(EINVAL)?;
                datagram = Datagram::of_member(next);
            }
        }
        Ok(())
    }

    /// Does the work of [`for_each_in_burst`](Self::for_each_in_burst) in a packet that has not
    /// been segmented.
    fn for_each_in_gso_packet(
        &self,
        skip: usize,
        each: usize,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        let stride = self.part.len;
        let number = offset.checked_div(each).ok_or(EINVAL)?;
        let before = number.checked_mul(stride).ok_or(EINVAL)?;
        let mut start = self.part.start.checked_add(before).ok_or(EINVAL)?;
        let mut at = offset.checked_rem(each).ok_or(EINVAL)?;
        let mut left = len;
        let mut pieces = Pieces::new(self.skb);
        while left != 0 {
            let n = left.min(each.saturating_sub(at));
            let from = start.saturating_add(skip).saturating_add(at);
            match pieces.contiguous(from, n) {
                // SAFETY: `Pieces::contiguous` has found these `n` bytes in one piece of the
                // packet, which `self` borrows.
                Some(data) => f(unsafe { Fragment::new(data.as_ptr(), n) }),
                // This refuses a range that extends beyond the packet.
                None => self.skb.for_each(from, n, &mut f)?,
            }
            start = start.saturating_add(stride);
            at = 0;
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Keeps the datagram after the receive call has returned, along with the memory of the whole
    /// packet.
    pub fn keep(&self) -> KeptDatagram {
        let chain = Chain::None;
        KeptDatagram {
            skb: self.skb.keep(),
            part: Part { chain, ..self.part },
        }
    }
}

/// A datagram that outlives the receive call; see [`Datagram::keep`].
pub struct KeptDatagram {
    skb: RxSkb,
    part: Part,
}

// SAFETY: The packet, whose memory `part` refers to, belongs to no thread.
unsafe impl Send for KeptDatagram {}

impl KeptDatagram {
    /// Returns the datagram.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            skb: &self.skb,
            part: self.part,
        }
    }

    /// Returns the bytes of memory that this datagram keeps allocated: those of the whole packet.
    pub fn memory(&self) -> usize {
        // SAFETY: The packet is valid by its type invariant. Its size does not change once it was
        // received.
        unsafe { (*self.skb.as_raw()).truesize as usize }
    }

    /// Returns whether both datagrams came in one packet.
    pub fn shares_memory(&self, other: &Self) -> bool {
        core::ptr::eq(self.skb.as_raw(), other.skb.as_raw())
    }

    /// Frees the datagram without counting it as dropped.
    pub fn consume(self) {
        self.skb.consume();
    }
}

/// A piece of a packet's memory, or of a memory region that is read without a packet.
///
/// It is not a slice, because a user program may still write to the memory that it has sent from.
/// The bytes may change while they are read.
///
/// # Invariants
///
/// `data` is valid for reads of `len` bytes for `'a`.
pub struct Fragment<'a> {
    data: *const u8,
    len: usize,
    /// Used to copy and checksum the bytes.
    _packet: PhantomData<&'a [u8]>,
}

impl<'a> Fragment<'a> {
    /// Describes a piece of memory.
    ///
    /// # Safety
    ///
    /// `data` is valid for reads of `len` bytes for `'a`.
    #[inline]
    pub(crate) unsafe fn new(data: *const u8, len: usize) -> Self {
        // INVARIANT: The caller guarantees that `data` is valid for reads of `len` bytes.
        Self {
            data,
            len,
            _packet: PhantomData,
        }
    }

    /// Describes bytes of the kernel.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: A slice is valid for reads of its length.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    /// Returns the length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)] // There are no empty fragments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the start of the memory, which is valid for reads of [`len`](Self::len) bytes.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// Returns the CRC-32 of these bytes, continued from `crc`; see [`crc32::crc32_le`].
    #[inline]
    pub fn crc32_le(&self, crc: u32) -> u32 {
        // SAFETY: `data` is valid for reads of `len` bytes by the type invariant.
        unsafe { crc32::of_shared(crc, self.data, self.len) }
    }

    /// Copies the bytes to `destination`. Returns `EINVAL` if it has another length.
    #[inline]
    pub fn copy_to(&self, destination: &mut [u8]) -> Result {
        if destination.len() != self.len {
            return Err(EINVAL);
        }
        // SAFETY: `data` is valid for reads of `len` bytes by the type invariant. `destination` has
        // that length, and it is exclusively borrowed, so it overlaps neither a packet nor a
        // region.
        unsafe { shared_bytes::copy(destination.as_mut_ptr(), self.data, self.len) };
        Ok(())
    }
}
