// SPDX-License-Identifier: GPL-2.0

//! Fields of packets.
//!
//! C header: `include/linux/skbuff.h`.

use super::IpVersion;
use crate::raw;
use core::{mem::offset_of, slice};
use kernel::{
    ffi::{c_int, c_uint},
    types::Opaque,
};

/// A packet (`struct sk_buff`), sent or received.
///
/// # Invariants
///
/// Only created from pointers to a valid packet.
#[repr(transparent)]
pub(super) struct Skb(Opaque<raw::sk_buff>);

#[allow(improper_ctypes, reason = "C code sees a `struct sk_buff`")]
// Safe: these are the signatures of the shims. Each reads fields of any valid packet, which an
// `&Skb` points to (type invariant, `repr(transparent)`).
unsafe extern "C" {
    pub(super) safe fn shim_skb_dev(skb: &Skb) -> *mut raw::net_device;
    pub(super) safe fn shim_skb_headlen(skb: &Skb) -> c_uint;
    safe fn shim_skb_iif(skb: &Skb) -> c_int;
    pub(super) safe fn shim_skb_is_encapsulated(skb: &Skb) -> bool;
    pub(super) safe fn shim_skb_shinfo(skb: &Skb) -> *mut raw::skb_shared_info;
    safe fn shim_skb_protocol(skb: &Skb) -> u16;
    safe fn shim_skb_tailroom(skb: &Skb) -> c_int;
}

/// Returns the address of the field that links a packet to the next one of a list.
#[inline]
pub(super) fn link(skb: *mut raw::sk_buff) -> *mut *mut raw::sk_buff {
    let offset = offset_of!(raw::sk_buff, __bindgen_anon_1.__bindgen_anon_1.next);
    skb.wrapping_byte_add(offset).cast()
}

impl Skb {
    /// Borrows a packet from its pointer.
    ///
    /// # Safety
    ///
    /// `skb` points to a packet that is valid for `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(skb: *const raw::sk_buff) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<sk_buff>`, and the caller guarantees that
        // `skb` is valid for `'a`.
        unsafe { &*skb.cast() }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::sk_buff {
        self.0.get()
    }

    /// Returns the IP version that `protocol` says.
    #[inline]
    pub(super) fn version(&self) -> IpVersion {
        match u16::from_be(shim_skb_protocol(self)).into() {
            raw::ETH_P_IPV6 => IpVersion::V6,
            _ => IpVersion::V4,
        }
    }

    /// Returns the IP header, without options or extension headers.
    ///
    /// # Safety
    ///
    /// The packet has a whole, linear IP header of the version that its `protocol` says.
    #[inline]
    pub(super) unsafe fn ip_header(&self) -> &[u8] {
        let len = self.version().header_len();
        // SAFETY: The caller vouches for a linear header of this length.
        unsafe { slice::from_raw_parts(raw::shim_skb_network_header(self.as_raw()), len) }
    }

    /// Returns whether a network device has received the packet, and not a socket or the kernel of
    /// this namespace created it.
    #[inline]
    pub(super) fn was_received(&self) -> bool {
        shim_skb_iif(self) != 0
    }

    /// Returns the length of linear data and page fragments, in bytes.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        // SAFETY: The packet is valid by the type invariant.
        unsafe { (*self.as_raw()).len }
    }

    /// Returns the bytes after the data that are free: 0 if there are page fragments.
    #[inline]
    pub(super) fn tailroom(&self) -> usize {
        usize::try_from(shim_skb_tailroom(self)).unwrap_or(0)
    }
}
