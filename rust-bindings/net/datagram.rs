// SPDX-License-Identifier: GPL-2.0

//! The datagrams of a received packet, and their bytes wherever these are.

use super::{rx::RxSkb, UDP_HEADER};
use crate::{crc32, raw, shared_bytes, vector::Vector};
use core::{marker::PhantomData, num::NonZero};
use kernel::prelude::*;

impl RxSkb {
    /// The datagrams in the packet, in their order: one, unless the sender's stack has handed us
    /// several whole (`SKB_GSO_UDP_L4`), as over a veth. Their bytes are copied and summed up with
    /// `vector`.
    #[inline]
    pub fn datagrams<'a>(&'a self, vector: &'a Vector) -> impl Iterator<Item = Datagram<'a>> {
        let total = self.payload_len();
        // SAFETY: The packet is valid by the type invariant.
        let (size, kind) = unsafe {
            (
                usize::from(raw::shim_skb_gso_size(self.as_raw())),
                raw::shim_skb_gso_type(self.as_raw()),
            )
        };
        let segmented = kind & raw::SKB_GSO_UDP_L4 as u32 != 0;
        let size = NonZero::new(size).filter(|size| segmented && size.get() < total);
        let several = size.is_some();
        // An empty datagram is one, too.
        let count = size.map_or(1, |size| (total.wrapping_sub(1) / size).wrapping_add(1));
        let size = size.map_or(total, NonZero::get);
        let mut pieces = Pieces::new(self);
        let linear = pieces.len;
        let from_here = self.is_from_here() && self.lengths_agree();
        (0..count).map(move |index| {
            // Inside the packet, whose length fits in 32 bits.
            let start = index.wrapping_mul(size);
            let len = size.min(total.saturating_sub(start));
            Datagram {
                skb: self,
                vector,
                part: Part {
                    start,
                    len,
                    whole: pieces.whole(start, len),
                    // It wraps as the Identification does.
                    index: index as u16,
                    several,
                    from_here,
                    paged: start >= linear,
                },
            }
        })
    }
}

/// Walks through the pieces of memory that a packet's payload is in: the linear part, and page fragments.
struct Pieces<'a> {
    skb: &'a RxSkb,
    /// The piece: where it starts in the payload, its bytes, and where they are, if the CPU can read them.
    start: usize,
    len: usize,
    data: *const u8,
    /// Fragments up to this piece's.
    taken: i32,
}

impl<'a> Pieces<'a> {
    #[inline]
    fn new(skb: &'a RxSkb) -> Self {
        let head = skb.head();
        Self {
            skb,
            start: 0,
            len: head.len(),
            data: head.as_ptr(),
            taken: 0,
        }
    }

    /// Where `len` bytes of the payload at `start` are, if in one piece, which is valid as long as the packet. They lie
    /// behind those that were asked for before.
    #[inline]
    fn whole(&mut self, start: usize, len: usize) -> Option<Whole> {
        while start >= self.start.saturating_add(self.len) {
            let skb = self.skb.as_raw();
            // SAFETY: The packet is valid by its type invariant; the fragment is one of those that it has.
            // `skb_frag_address_safe` gives no address for memory that the CPU can't read, or not always.
            unsafe {
                if self.taken >= i32::from(raw::shim_skb_nr_frags(skb)) {
                    return None;
                }
                self.start = self.start.saturating_add(self.len);
                self.len = raw::shim_skb_frag_size(skb, self.taken) as usize;
                self.data = raw::shim_skb_frag_address_safe(skb, self.taken).cast();
            }
            self.taken = self.taken.saturating_add(1);
        }
        let at = start.checked_sub(self.start)?;
        if self.data.is_null() || len > self.len.saturating_sub(at) {
            return None;
        }
        // It is inside the piece.
        Some(Whole(self.data.wrapping_add(at)))
    }
}

/// Where a datagram is that is in one piece of memory, valid for reads of its length as long as its packet.
#[derive(Clone, Copy)]
struct Whole(*const u8);

// SAFETY: It is memory of a packet, which belongs to no thread.
unsafe impl Send for Whole {}

/// Which part of a packet a datagram is.
#[derive(Clone, Copy)]
struct Part {
    /// Its payload, from the packet's first byte of payload.
    start: usize,
    len: usize,
    whole: Option<Whole>,
    /// Datagrams before it.
    index: u16,
    /// The packet has others.
    several: bool,
    /// The packet was made on this host, and its lengths agree.
    from_here: bool,
    /// All of it is in page fragments.
    paged: bool,
}

/// One UDP datagram of a received packet.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    skb: &'a RxSkb,
    vector: &'a Vector,
    part: Part,
}

impl<'a> Datagram<'a> {
    /// The packet: addresses, marks and the like are all datagrams'.
    #[inline]
    pub fn packet(&self) -> &'a RxSkb {
        self.skb
    }

    /// What its bytes are copied and summed up with.
    #[inline]
    pub fn vector(&self) -> &'a Vector {
        self.vector
    }

    /// Bytes of UDP payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.part.len
    }

    /// Bytes of the IP header.
    #[inline]
    pub fn ip_header_len(&self) -> usize {
        self.skb.ip_header().len()
    }

    /// Its Identification over IPv4; of several datagrams, the one that segmentation gives this one.
    #[inline]
    pub fn ident(&self) -> u16 {
        let first = u16::from_be_bytes(self.skb.ip_field(4));
        first.wrapping_add(if self.part.several {
            self.part.index
        } else {
            0
        })
    }

    /// The IPv4 header; `None` over IPv6, and where it has options. Of several datagrams it is the
    /// one that segmentation gives this one (`inet_gso_segment`, net/ipv4/af_inet.c), but for the
    /// header's checksum.
    #[inline]
    pub fn ipv4_header(&self) -> Option<[u8; 20]> {
        let mut header: [u8; 20] = self.skb.ip_header().try_into().ok()?;
        if self.part.several {
            let [_, _, l0, l1, i0, i1, ..] = &mut header;
            let ident = u16::from_be_bytes([*i0, *i1]).wrapping_add(self.part.index);
            [*i0, *i1] = ident.to_be_bytes();
            [*l0, *l1] = self.behind_ip().wrapping_add(20).to_be_bytes();
        }
        Some(header)
    }

    /// The IPv6 header; `None` over IPv4, and where extensions follow. As
    /// [`ipv4_header`](Self::ipv4_header) otherwise.
    #[inline]
    pub fn ipv6_header(&self) -> Option<[u8; 40]> {
        let mut header: [u8; 40] = self.skb.ip_header().try_into().ok()?;
        if self.part.several {
            let [_, _, _, _, l0, l1, ..] = &mut header;
            [*l0, *l1] = self.behind_ip().to_be_bytes();
        }
        Some(header)
    }

    /// The UDP header, as segmentation gives it, but for the checksum.
    #[inline]
    pub fn udp_header(&self) -> [u8; UDP_HEADER] {
        let mut header = *self.skb.udp_header();
        if self.part.several {
            let [_, _, _, _, l0, l1, ..] = &mut header;
            [*l0, *l1] = self.behind_ip().to_be_bytes();
        }
        header
    }

    /// Bytes behind the IP header. Those of several datagrams together are less than 2^16.
    #[inline]
    fn behind_ip(&self) -> u16 {
        self.part.len.wrapping_add(UDP_HEADER) as u16
    }

    /// Whether `len` bytes at `offset` are inside the payload; where they are in the packet's.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.part.len => Ok(self.part.start.wrapping_add(offset)),
            _ => Err(EINVAL),
        }
    }

    /// Copies a part of the payload.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not inside the payload. `EFAULT`: it is in memory that only the device can
    /// read.
    #[inline]
    pub fn copy_bits(&self, offset: usize, destination: &mut [u8]) -> Result {
        let at = self.place(offset, destination.len())?;
        let Some(Whole(data)) = self.part.whole else {
            return self.skb.copy_bits(at, destination);
        };
        // SAFETY: `place` has found that the range is inside the datagram, which is valid for reads
        // at `data`. The slice is no part of a packet.
        unsafe {
            shared_bytes::copy(
                destination.as_mut_ptr(),
                data.add(offset),
                destination.len(),
            )
        };
        Ok(())
    }

    /// Calls `f` for each piece of memory that `len` bytes of the payload at `offset` are in, in
    /// their order. `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range is not inside the payload. `EFAULT`: a part of it is in memory that
    /// only the device can read; `f` may have been called for what is before it.
    #[inline]
    pub fn for_each(&self, offset: usize, len: usize, mut f: impl FnMut(Fragment<'_>)) -> Result {
        let at = self.place(offset, len)?;
        let Some(Whole(data)) = self.part.whole else {
            return self.skb.for_each(at, len, self.vector, f);
        };
        if len != 0 {
            // SAFETY: `place` has found that the range is inside the datagram, which is valid for
            // reads at `data` as long as its packet.
            f(unsafe { Fragment::new(data.add(offset), len, self.vector) });
        }
        Ok(())
    }

    /// Whether its bytes are as they were written on this host ([`RxSkb::is_from_here`]): they are in page fragments, and of a
    /// packet whose lengths agree.
    #[inline]
    pub fn is_as_written(&self) -> bool {
        self.part.from_here && self.part.paged
    }

    /// Whether it came with others in a packet that is as it was made on this host, uncut.
    #[inline]
    pub fn is_of_row_from_here(&self) -> bool {
        self.part.several && self.part.from_here
    }

    /// Whether another follows in the packet.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.part.start.saturating_add(self.part.len) < self.skb.payload_len()
    }

    /// As [`for_each`](Self::for_each), for what this one and those behind it have from byte `skip` on, `each` bytes of each of
    /// them: for `len` of these, behind the first `offset`.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each); `EINVAL` also where a datagram has not as many bytes.
    pub fn for_each_in_row(
        &self,
        skip: usize,
        each: usize,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        self.place(skip, each)?;
        let stride = self.part.len;
        let number = offset.checked_div(each).ok_or(EINVAL)?;
        let before = number.checked_mul(stride).ok_or(EINVAL)?;
        let mut start = self.part.start.checked_add(before).ok_or(EINVAL)?;
        let mut at = offset.checked_rem(each).ok_or(EINVAL)?;
        let mut left = len;
        let mut pieces = Pieces::new(self.skb);
        while left != 0 {
            let n = left.min(each.saturating_sub(at));
            // What is beyond the packet is refused below.
            let from = start.saturating_add(skip).saturating_add(at);
            self.skb.check_range(from, n)?;
            match pieces.whole(from, n) {
                // SAFETY: `Pieces::whole` has found these bytes in one piece of the packet.
                Some(Whole(data)) => f(unsafe { Fragment::new(data, n, self.vector) }),
                None => self.skb.for_each(from, n, self.vector, &mut f)?,
            }
            start = start.saturating_add(stride);
            at = 0;
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Keeps it for longer than it is being received, with the memory of the whole packet.
    pub fn keep(&self) -> KeptDatagram {
        KeptDatagram {
            skb: self.skb.keep(),
            part: self.part,
        }
    }
}

/// A datagram that is kept: [`Datagram::keep`].
pub struct KeptDatagram {
    skb: RxSkb,
    part: Part,
}

impl KeptDatagram {
    /// The datagram. Its bytes are copied and summed up with `vector`.
    pub fn datagram<'a>(&'a self, vector: &'a Vector) -> Datagram<'a> {
        Datagram {
            skb: &self.skb,
            vector,
            part: self.part,
        }
    }

    /// Returns how many bytes the datagram has.
    #[expect(clippy::len_without_is_empty)] // An empty one is a datagram, too.
    pub fn len(&self) -> usize {
        self.part.len
    }

    /// Returns the bytes of memory that it keeps: those of the whole packet.
    pub fn memory(&self) -> usize {
        self.skb.truesize()
    }

    /// Returns whether both datagrams came in one packet.
    pub fn shares_memory(&self, other: &Self) -> bool {
        core::ptr::eq(self.skb.as_raw(), other.skb.as_raw())
    }

    /// Frees it as one that has served its purpose.
    pub fn consume(self) {
        self.skb.consume();
    }
}

/// A piece of memory of a packet, or of a region that is copied from without one.
///
/// It is not a slice, since this can be memory that a user program has sent from and still writes to: its bytes may
/// change while they are read.
///
/// # Invariants
///
/// `data` is valid for reads of `len` bytes for `'a`.
pub struct Fragment<'a> {
    data: *const u8,
    len: usize,
    /// What its bytes are copied and summed up with.
    vector: &'a Vector,
    _packet: PhantomData<&'a [u8]>,
}

impl<'a> Fragment<'a> {
    /// Describes a piece of memory.
    ///
    /// # Safety
    ///
    /// `data` is valid for reads of `len` bytes for `'a`.
    #[inline]
    pub(crate) unsafe fn new(data: *const u8, len: usize, vector: &'a Vector) -> Self {
        // INVARIANT: The caller promises it.
        Self {
            data,
            len,
            vector,
            _packet: PhantomData,
        }
    }

    /// What its bytes are to be copied with.
    #[inline]
    pub(crate) fn vector(&self) -> &'a Vector {
        self.vector
    }

    /// Bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)] // There are no empty fragments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Start of the memory, which is valid for reads of [`len`](Self::len) bytes.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// The CRC-32 over these bytes, as [`Vector::crc32_le`].
    #[inline]
    pub fn crc32_le(&self, crc: u32) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { crc32::crc32_le_raw(self.vector, crc, self.data, self.len) }
    }

    /// Copies these bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: `destination` is not of the same length.
    #[inline]
    pub fn copy_to(&self, destination: &mut [u8]) -> Result {
        if destination.len() != self.len {
            return Err(EINVAL);
        }
        // SAFETY: Valid by the type invariant, and as long as the destination, which is no part of
        // a packet or region: it is borrowed for writes.
        unsafe { shared_bytes::copy(destination.as_mut_ptr(), self.data, self.len) };
        Ok(())
    }
}
