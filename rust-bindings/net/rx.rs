// SPDX-License-Identifier: GPL-2.0

//! Received packets.
//!
//! C header: `include/linux/skbuff.h`.

use super::{datagram::Fragment, origin, IpAddr, IpVersion, UDP_HEADER};
use crate::{raw, vector::Vector};
use core::{mem::ManuallyDrop, ptr::NonNull, slice};
use kernel::{error::to_result, prelude::*};

/// A received UDP packet over IPv4 or IPv6, with its payload wherever the stack has put it. It is one
/// datagram, or several of the same size in a row (the last may be shorter) that the stack has not
/// segmented: see [`RxSkb::datagrams`].
///
/// Dropping it counts as a dropped packet (and shows in the kernel's drop monitor);
/// [`consume`](RxSkb::consume) is for one that has served its purpose.
///
/// # Invariants
///
/// - We own a reference to `skb`, and nobody changes its headers or its data pointers.
/// - Its network and transport headers are set and linear: a whole IP header of the version that
///   its `protocol` says, and a whole UDP header.
/// - Its data starts after the UDP header and ends with the datagram.
pub struct RxSkb {
    skb: NonNull<raw::sk_buff>,
}

// SAFETY: A packet belongs to no thread.
unsafe impl Send for RxSkb {}

impl RxSkb {
    /// Takes over a packet from UDP.
    ///
    /// # Safety
    ///
    /// The packet is ours; `encap_rcv` of a UDP socket was called with it: its data starts at the
    /// UDP header, which is linear, and it is trimmed to the length of the datagram.
    pub(super) unsafe fn from_udp(skb: *mut raw::sk_buff) -> Self {
        // SAFETY: `__udp4_lib_rcv` (net/ipv4/udp.c) and `__udp6_lib_rcv` (net/ipv6/udp.c) have
        // made sure that the UDP header is linear.
        unsafe { raw::shim___skb_pull(skb, UDP_HEADER as u32) };
        // INVARIANT: As the caller promises, and by the pull.
        Self {
            // SAFETY: UDP passes no null pointer.
            skb: unsafe { NonNull::new_unchecked(skb) },
        }
    }

    /// The device of the packet, which is valid only while it is being received.
    pub(super) fn raw_dev(&self) -> *mut raw::net_device {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { raw::shim_skb_dev(self.as_raw()) }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::sk_buff {
        self.skb.as_ptr()
    }

    /// IP version of the packet.
    #[inline]
    pub fn version(&self) -> IpVersion {
        // SAFETY: The packet is valid by the type invariant.
        if u32::from(u16::from_be(unsafe {
            raw::shim_skb_protocol(self.as_raw())
        })) == raw::ETH_P_IPV6
        {
            IpVersion::V6
        } else {
            IpVersion::V4
        }
    }

    /// The IP header as it was received, with IPv4 options or IPv6 extension headers: at least 20
    /// or 40 bytes. That of several datagrams has the length of all, and the first's
    /// Identification.
    ///
    /// (The stack has decremented nothing and changed nothing in it: this is for us.)
    #[inline]
    pub(super) fn ip_header(&self) -> &[u8] {
        // SAFETY: By the type invariant both headers are set and linear, the transport header
        // after the network header.
        unsafe {
            let start = raw::shim_skb_network_header(self.as_raw());
            let end = raw::shim_skb_transport_header(self.as_raw());
            slice::from_raw_parts(start, (end as usize).saturating_sub(start as usize))
        }
    }

    /// `N` bytes at `offset` of the IP header; zero where it is shorter than the type invariant
    /// says.
    #[inline]
    pub(super) fn ip_field<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.ip_header()
            .get(offset..)
            .and_then(|rest| rest.first_chunk())
            .copied()
            .unwrap_or([0; N])
    }

    /// The UDP header. That of several datagrams has the length of all.
    #[inline]
    pub(super) fn udp_header(&self) -> &[u8; UDP_HEADER] {
        // SAFETY: By the type invariant the transport header is a whole UDP header.
        unsafe { &*raw::shim_skb_transport_header(self.as_raw()).cast() }
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match self.version() {
            IpVersion::V4 => IpAddr::V4(self.ip_field(12)),
            IpVersion::V6 => IpAddr::V6(self.ip_field(8)),
        }
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match self.version() {
            IpVersion::V4 => IpAddr::V4(self.ip_field(16)),
            IpVersion::V6 => IpAddr::V6(self.ip_field(24)),
        }
    }

    /// IPv4 type of service or IPv6 traffic class: DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        match self.version() {
            IpVersion::V4 => u8::from_be_bytes(self.ip_field(1)),
            IpVersion::V6 => (u16::from_be_bytes(self.ip_field(0)) >> 4) as u8,
        }
    }

    /// IPv4 time to live or IPv6 hop limit.
    #[inline]
    pub fn ttl(&self) -> u8 {
        match self.version() {
            IpVersion::V4 => u8::from_be_bytes(self.ip_field(8)),
            IpVersion::V6 => u8::from_be_bytes(self.ip_field(7)),
        }
    }

    /// UDP source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        let &[high, low, ..] = self.udp_header();
        u16::from_be_bytes([high, low])
    }

    /// UDP destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        let &[_, _, high, low, ..] = self.udp_header();
        u16::from_be_bytes([high, low])
    }

    /// Ethernet source address, where the packet came in through Ethernet.
    pub fn source_mac(&self) -> Option<[u8; 6]> {
        // SAFETY: The packet is valid by the type invariant. Where the MAC header was set and has
        // the length of an Ethernet header, there is one before the network header.
        unsafe {
            if !raw::shim_skb_mac_header_was_set(self.as_raw())
                || raw::shim_skb_mac_header_len(self.as_raw()) < raw::ETH_HLEN
            {
                return None;
            }
            Some(*raw::shim_eth_source(self.as_raw()).cast())
        }
    }

    /// Whether it was made by [`TxSkb`](super::TxSkb) on this host, and is what was made then: nobody has copied or cut it. (That is
    /// what is known of its page fragments; headers and linear data may have been changed on the way.)
    #[inline]
    pub(super) fn is_from_here(&self) -> bool {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { origin::is_marked(self.as_raw()) }
    }

    /// Whether IP, UDP and the packet say the same of its length. (UDP cuts off what it does not know of.)
    #[inline]
    pub(super) fn lengths_agree(&self) -> bool {
        let &[_, _, _, _, high, low, _, _] = self.udp_header();
        let udp = usize::from(u16::from_be_bytes([high, low]));
        let ip = match self.version() {
            IpVersion::V4 => {
                let total = u16::from_be_bytes(self.ip_field(2));
                usize::from(total).checked_sub(self.ip_header().len())
            }
            // Behind the first header.
            IpVersion::V6 => Some(u16::from_be_bytes(self.ip_field(4)).into()),
        };
        udp == self.payload_len().wrapping_add(UDP_HEADER) && ip == Some(udp)
    }

    /// Bytes of UDP payload, of all datagrams.
    #[inline]
    pub fn payload_len(&self) -> usize {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { (*self.as_raw()).len as usize }
    }

    /// The linear part of the payload: as much of its start as the stack has put into one piece;
    /// may be empty, or all of it.
    #[inline]
    pub(super) fn head(&self) -> &[u8] {
        // SAFETY: By the type invariant data starts at the payload; `skb_headlen` bytes from there
        // are in the linear buffer, which is memory of the kernel alone, and nobody writes to it.
        unsafe {
            slice::from_raw_parts(
                (*self.as_raw()).data,
                raw::shim_skb_headlen(self.as_raw()) as usize,
            )
        }
    }

    /// Whether `len` bytes at `offset` are inside the payload.
    #[inline]
    pub(super) fn check_range(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.payload_len() => Ok(()),
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
    pub(super) fn copy_bits(&self, offset: usize, destination: &mut [u8]) -> Result {
        self.check_range(offset, destination.len())?;
        let (from, to) = (i32::try_from(offset)?, i32::try_from(destination.len())?);
        // SAFETY: The packet is valid by the type invariant, and the slice for writes of its length.
        to_result(unsafe {
            raw::skb_copy_bits(self.as_raw(), from, destination.as_mut_ptr().cast(), to)
        })
    }

    /// Calls `f` for each piece of memory that `len` bytes of the payload at `offset` are in, in
    /// their order. `f` must not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range is not inside the payload. `EFAULT`: a part of it is in memory that
    /// only the device can read; `f` may have been called for what is before it.
    pub(super) fn for_each(
        &self,
        offset: usize,
        len: usize,
        vector: &Vector,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        self.check_range(offset, len)?;
        // Inside the payload.
        let end = offset.wrapping_add(len);
        let (from, to) = (u32::try_from(offset)?, u32::try_from(end)?);
        let mut state: raw::skb_seq_state = pin_init::zeroed();
        // SAFETY: The packet is valid by the type invariant, and the range is inside it.
        unsafe { raw::skb_prepare_seq_read(self.as_raw(), from, to, &mut state) };
        let mut done = 0;
        while done < len {
            let mut data = core::ptr::null();
            // SAFETY: Prepared above, and `done` is the sum of what was returned.
            let piece = unsafe { raw::skb_seq_read(done as u32, &mut data, &mut state) } as usize;
            if piece == 0 {
                // `skb_seq_read` has unmapped what it had mapped.
                return Err(EFAULT);
            }
            // It returns the rest of the piece, even beyond the end of the range.
            let piece = piece.min(len.saturating_sub(done));
            // SAFETY: `skb_seq_read()` (net/core/skbuff.c) returns how many bytes are valid at
            // `data`, which stay mapped until it is called again.
            f(unsafe { Fragment::new(data, piece, vector) });
            done = done.wrapping_add(piece);
        }
        // SAFETY: Prepared above; this unmaps the last piece.
        unsafe { raw::skb_abort_seq_read(&mut state) };
        Ok(())
    }

    /// Another reference to the packet, to keep it for longer than it is being received: it holds
    /// on to nothing then but its memory.
    pub(super) fn keep(&self) -> Self {
        // SAFETY: The packet is valid by the type invariant, and ours: no one looks at its route,
        // connection, extensions or socket at the same time. `skb_get` (include/linux/skbuff.h)
        // returns its argument, with the reference that the new value owns.
        unsafe {
            let skb = self.as_raw();
            raw::shim_skb_orphan(skb);
            raw::shim_skb_dst_drop(skb);
            raw::shim_nf_reset_ct(skb);
            raw::shim_skb_ext_reset(skb);
            // INVARIANT: A reference of its own; the headers and data stay as they are.
            Self {
                skb: NonNull::new_unchecked(raw::shim_skb_get(skb)),
            }
        }
    }

    /// Returns the bytes of memory that the packet takes.
    pub(super) fn truesize(&self) -> usize {
        // SAFETY: The packet is valid by the type invariant. Nobody changes `truesize` (struct
        // sk_buff, include/linux/skbuff.h) of a packet that was received and is ours.
        unsafe { (*self.as_raw()).truesize as usize }
    }

    /// Frees the packet as one that has served its purpose.
    #[inline]
    pub fn consume(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: We own a reference by the type invariant, and give it up.
        unsafe { raw::consume_skb(this.as_raw()) };
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariant, and give it up.
        unsafe {
            raw::sk_skb_reason_drop(
                core::ptr::null(),
                self.as_raw(),
                raw::skb_drop_reason_SKB_DROP_REASON_NOT_SPECIFIED,
            )
        };
    }
}
