// SPDX-License-Identifier: GPL-2.0

//! Received packets.
//!
//! C header: `include/linux/skbuff.h`.

use super::{
    addr::{destination, field, source},
    datagram::Fragment,
    skb::{shim_skb_headlen, Skb},
    IpAddr, IpVersion, UDP_HEADER,
};
use crate::raw;
use core::{mem::ManuallyDrop, ops::Deref, ptr::NonNull, slice};
use kernel::{error::to_result, prelude::*};

/// A received UDP packet over IPv4 or IPv6, with its payload as the stack has laid it out. It holds
/// one datagram, several of the same size (the last may be shorter) that the stack has not
/// segmented, or a chain of packets: see [`UdpPacket::datagrams`].
///
/// # Invariants
///
/// - Only created from pointers to a valid packet, whose headers and data pointers nothing changes.
/// - Its network and transport headers are set and linear: a whole IP header of the version in its
///   `protocol`, and a whole UDP header.
/// - Its data starts after the UDP header and ends with the datagram.
#[repr(transparent)]
pub struct UdpPacket(Skb);

/// An owned [`UdpPacket`].
///
/// Dropping it counts as a dropped packet, which the kernel's drop monitor shows. Use
/// [`consume`](RxSkb::consume) for a packet that was processed.
///
/// # Invariants
///
/// `self` owns a reference to `skb`, which is a [`UdpPacket`].
pub struct RxSkb {
    skb: NonNull<raw::sk_buff>,
}

// SAFETY: A packet belongs to no thread.
unsafe impl Send for RxSkb {}

impl Deref for RxSkb {
    type Target = UdpPacket;

    #[inline]
    fn deref(&self) -> &UdpPacket {
        // SAFETY: By the type invariant, `self` owns a reference to such a packet.
        unsafe { UdpPacket::from_raw(self.skb.as_ptr()) }
    }
}

impl RxSkb {
    /// Takes ownership of a packet from UDP.
    ///
    /// # Safety
    ///
    /// The caller owns the packet, which was passed to `encap_rcv` of a UDP socket: its data starts
    /// at the UDP header, which is linear, and it is trimmed to the length of the datagram.
    pub(super) unsafe fn from_udp(skb: *mut raw::sk_buff) -> Self {
        // SAFETY: `udp_rcv()` (net/ipv4/udp.c) and `udpv6_rcv()` (net/ipv6/udp.c) have made sure
        // that the UDP header is linear. They dereference the packet, so it is not null.
        let skb = unsafe {
            raw::shim___skb_pull(skb, UDP_HEADER as u32);
            NonNull::new_unchecked(skb)
        };
        // INVARIANT: The caller guarantees the headers, and the pull moved the data past the UDP
        // header.
        Self { skb }
    }

    /// Frees the packet without counting it as dropped.
    #[inline]
    pub fn consume(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `self` owns a reference to the packet (type invariant), which this gives up.
        // `napi_consume_skb` (net/core/skbuff.c) allows a second argument other than 0 with
        // softirqs disabled, outside of hard interrupts. The CPU then keeps the `struct sk_buff`
        // for another packet. A packet of another CPU would be freed there, but later.
        unsafe {
            let skb = this.as_raw();
            let recycle = raw::shim_in_softirq_level() && raw::shim_skb_is_of_this_cpu(skb);
            raw::napi_consume_skb(skb, recycle.into());
        }
    }
}

impl UdpPacket {
    /// Borrows a packet from its pointer.
    ///
    /// # Safety
    ///
    /// `skb` points to a packet that is valid for `'a`, and that is as the type invariants say.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(skb: *const raw::sk_buff) -> &'a Self {
        // SAFETY: `Self` is transparent over `Skb`, which is transparent over `sk_buff`. The caller
        // guarantees the rest.
        unsafe { &*skb.cast() }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::sk_buff {
        self.0.as_raw()
    }

    #[inline]
    pub(super) fn fields(&self) -> &Skb {
        &self.0
    }

    /// Returns the IP version of the packet.
    #[inline]
    pub fn version(&self) -> IpVersion {
        self.fields().version()
    }

    /// Returns the IP header as it was received, with IPv4 options or IPv6 extension headers: at
    /// least 20 or 40 bytes. If the packet holds several datagrams, the header has their total
    /// length and the Identification of the first.
    ///
    /// The stack changes nothing in the header of a packet that it delivers locally.
    #[inline]
    pub(super) fn ip_header(&self) -> &[u8] {
        // SAFETY: By the type invariant, both headers are set and linear. The transport header
        // follows the network header.
        unsafe {
            let start = raw::shim_skb_network_header(self.as_raw());
            let end = raw::shim_skb_transport_header(self.as_raw());
            slice::from_raw_parts(start, (end as usize).saturating_sub(start as usize))
        }
    }

    /// Returns the UDP header. If the packet holds several datagrams, it has their total length.
    #[inline]
    pub(super) fn udp_header(&self) -> &[u8; UDP_HEADER] {
        // SAFETY: By the type invariant the transport header is a whole UDP header.
        unsafe { &*raw::shim_skb_transport_header(self.as_raw()).cast() }
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> IpAddr {
        source(self.version(), self.ip_header())
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        destination(self.version(), self.ip_header())
    }

    /// Returns the source and the destination address.
    #[inline]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let (version, header) = (self.version(), self.ip_header());
        (source(version, header), destination(version, header))
    }

    /// Returns the IPv4 type of service or IPv6 traffic class: DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        match self.version() {
            IpVersion::V4 => u8::from_be_bytes(field(self.ip_header(), 1)),
            IpVersion::V6 => (u16::from_be_bytes(field(self.ip_header(), 0)) >> 4) as u8,
        }
    }

    /// Returns the index of the interface that received the frame if it is in a VRF, whose device
    /// the stack then gives as that of the packet, otherwise 0. A packet that came from this host
    /// to an address in a VRF has the index of the VRF's device.
    #[inline]
    pub(super) fn vrf_member(&self) -> u32 {
        // SAFETY: The packet is valid (type invariant). Up to UDP, the control block is that of IP
        // (`struct udp_skb_cb`, include/linux/udp.h).
        let index = unsafe {
            match self.version() {
                IpVersion::V4 => raw::shim_inet_sdif(self.as_raw()),
                IpVersion::V6 => raw::shim_inet6_sdif(self.as_raw()),
            }
        };
        u32::try_from(index).unwrap_or(0)
    }

    /// Returns the UDP source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        let &[high, low, ..] = self.udp_header();
        u16::from_be_bytes([high, low])
    }

    /// Returns the Ethernet source address if the packet arrived over Ethernet.
    pub fn source_mac(&self) -> Option<[u8; 6]> {
        // SAFETY: The packet is valid (type invariant). A MAC header with the length of an Ethernet
        // header precedes the network header.
        unsafe {
            raw::shim_skb_has_eth_header(self.as_raw())
                .then(|| *raw::shim_eth_source(self.as_raw()).cast())
        }
    }

    /// Returns the bytes of UDP payload, of all datagrams together.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.fields().len() as usize
    }

    /// Returns the linear part of the payload. It may be empty or hold the whole payload.
    #[inline]
    pub(super) fn head(&self) -> &[u8] {
        let len = shim_skb_headlen(self.fields()) as usize;
        // SAFETY: By the type invariant, data starts at the payload. The next `skb_headlen` bytes
        // are in the linear buffer, which only the kernel can access and nothing writes to.
        unsafe { slice::from_raw_parts((*self.as_raw()).data, len) }
    }

    /// Copies `destination.len()` bytes of the payload, starting at `offset`. Returns `EFAULT` if
    /// they are not inside the payload, or in memory that only the device can read.
    #[inline]
    pub(super) fn copy_bits(&self, offset: usize, destination: &mut [u8]) -> Result {
        let (from, len) = (i32::try_from(offset)?, i32::try_from(destination.len())?);
        // SAFETY: The packet is valid (type invariant), and `destination` is valid for writes of
        // `len` bytes. `skb_copy_bits()` (net/core/skbuff.c) refuses a range outside the packet.
        to_result(unsafe {
            raw::skb_copy_bits(self.as_raw(), from, destination.as_mut_ptr().cast(), len)
        })
    }

    /// Calls `f` for `len` bytes of the payload at `offset`, like
    /// [`Datagram::for_each`](super::Datagram::for_each).
    pub(super) fn for_each(
        &self,
        offset: usize,
        len: usize,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.payload_len() {
            return Err(EINVAL);
        }
        let (from, to) = (u32::try_from(offset)?, u32::try_from(end)?);
        let mut state: raw::skb_seq_state = pin_init::zeroed();
        // SAFETY: The packet is valid (type invariant), and the range is inside it.
        unsafe { raw::skb_prepare_seq_read(self.as_raw(), from, to, &mut state) };
        let mut done = 0;
        while done < len {
            let mut data = core::ptr::null();
            // SAFETY: `state` was prepared above, and `done` is the sum of the lengths returned so
            // far. `skb_seq_read()` (net/core/skbuff.c) returns how many bytes are valid at `data`,
            // even beyond the end of the range. They stay mapped until the next call.
            let piece = unsafe {
                let piece = raw::skb_seq_read(done as u32, &mut data, &mut state) as usize;
                Fragment::new(data, piece.min(len.saturating_sub(done)))
            };
            if piece.len() == 0 {
                // `skb_seq_read` has already unmapped the last piece.
                return Err(EFAULT);
            }
            done = done.wrapping_add(piece.len());
            f(piece);
        }
        // SAFETY: `state` was prepared above; this unmaps the last piece.
        unsafe { raw::skb_abort_seq_read(&mut state) };
        Ok(())
    }

    /// Takes another reference to the packet, to keep it after the receive call. The packet then
    /// holds no resources other than its memory.
    pub(super) fn keep(&self) -> RxSkb {
        // SAFETY: The packet is valid (type invariant), and nothing else uses its route,
        // connection, extensions or socket at the same time. `skb_get` (include/linux/skbuff.h)
        // returns its argument, with the reference that the new value owns.
        unsafe {
            let skb = self.as_raw();
            raw::shim_skb_orphan(skb);
            raw::shim_skb_dst_drop(skb);
            raw::shim_nf_reset_ct(skb);
            raw::shim_skb_ext_reset(skb);
            // INVARIANT: The new value owns the reference of `skb_get`; headers and data are
            // unchanged.
            RxSkb {
                skb: NonNull::new_unchecked(raw::shim_skb_get(skb)),
            }
        }
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: `self` owns a reference to the packet (type invariant), which this gives up.
        unsafe {
            raw::sk_skb_reason_drop(
                core::ptr::null(),
                self.as_raw(),
                raw::skb_drop_reason_SKB_DROP_REASON_NOT_SPECIFIED,
            )
        };
    }
}
