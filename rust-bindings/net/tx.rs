// SPDX-License-Identifier: GPL-2.0

//! Packets to send.
//!
//! C header: `include/linux/skbuff.h`.

use super::{
    skb::{shim_skb_shinfo, Skb},
    PacketWriter, UDP_HEADER,
};
use crate::raw;
use core::ptr::NonNull;
use kernel::prelude::*;

/// A packet of this host, with linear data.
///
/// # Invariants
///
/// `self` owns the only reference to `skb`, whose data is initialised and linear, except for the
/// other packets of a chain (`TxChain`).
pub struct TxSkb {
    skb: NonNull<raw::sk_buff>,
}

// SAFETY: A packet belongs to no thread.
unsafe impl Send for TxSkb {}

impl TxSkb {
    /// Allocates an empty packet of `size` bytes, the first `headroom` of which are headroom.
    /// Returns `None` if there is no memory, or if `headroom` is larger than `size`. Any context.
    #[inline]
    pub(super) fn linear(headroom: u32, size: u32) -> Option<Self> {
        if headroom > size {
            return None;
        }
        let skb = Self::allocate(size)?;
        // SAFETY: `skb_reserve` requires an empty packet with that much tailroom, which the
        // allocation has just provided.
        unsafe { raw::shim_skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: This is the only reference, and there is no data.
        Some(Self { skb })
    }

    /// Allocates an empty packet with at least `size` bytes of tailroom, and returns the only
    /// reference to it. The memory is part of a page if possible: the slab allocator would clear
    /// all of it for each packet.
    #[inline]
    fn allocate(size: u32) -> Option<NonNull<raw::sk_buff>> {
        // SAFETY: The functions (net/core/skbuff.c) accept any size. Those of NAPI require that
        // softirqs are disabled, outside of hard interrupts. `napi_build_skb` takes over the
        // fragment, at whose end it puts `struct skb_shared_info`, for which `SKB_HEAD_ALIGN`
        // (skbuff.h) has added space. If it fails, the fragment is still this function's, and
        // `page_frag_free` (mm/page_frag_cache.c) frees it.
        unsafe {
            let whole = raw::shim_skb_head_align(size);
            // The sum overflows for sizes near 2^32.
            if whole > size && raw::safe::shim_in_softirq_level() {
                let fragment = raw::__napi_alloc_frag_align(whole, !0);
                if !fragment.is_null() {
                    let skb = NonNull::new(raw::napi_build_skb(fragment, whole));
                    if skb.is_none() {
                        raw::page_frag_free(fragment);
                    }
                    return skb;
                }
            }
            NonNull::new(raw::shim_alloc_skb(size, raw::GFP_ATOMIC))
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
        Self { skb }
    }

    /// Returns the length of the packet so far, in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.fields().len() as usize
    }

    /// Appends `len` bytes that `fill` writes. Bytes that it does not write are zero. If `fill`
    /// fails, the packet is unchanged. Returns `EMSGSIZE` if the tailroom is smaller than `len`.
    #[inline]
    pub(super) fn append<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), E>,
    ) -> Result<Result<(), E>> {
        if len > self.fields().tailroom() {
            return Err(EMSGSIZE);
        }
        let before = self.len();
        // SAFETY: `self` owns the packet, whose tailroom is at least `len` bytes, so `len` fits in
        // 32 bits. All of these bytes are written or trimmed. `skb_trim` (net/core/skbuff.c)
        // requires a linear packet, which one with tailroom is.
        unsafe {
            let start = raw::shim___skb_put(self.as_raw(), len as u32);
            let start = NonNull::new(start.cast()).ok_or(EMSGSIZE)?;
            let result = PacketWriter::write(start, len, fill);
            if result.is_err() {
                raw::skb_trim(self.as_raw(), before as u32);
            }
            Ok(result)
        }
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
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only reference to the packet (type invariant).
        unsafe { raw::shim_consume_skb(self.as_raw()) };
    }
}
