// SPDX-License-Identifier: GPL-2.0

//! Packets that were made here, on this host, and arrive here as they were made.
//!
//! Between namespaces of a host a packet may cross the stack without anybody looking at it but for its headers, as over a veth.
//! Who made it can say so to who takes it: in the key of its transmit timestamp, of which it has none. `__alloc_skb`
//! (net/core/skbuff.c) clears it, a clone shares it, and what is copied or cut from a packet does not have it, but for the first
//! datagram of one that is segmented. That is what is wanted: its page fragments are the very memory that was written
//! here.
//!
//! It is no secret and no proof of anything but that: who may send packets from this host may send any packet.

use crate::{random, raw};
use kernel::sync::atomic::{Atomic, Relaxed};

/// The key of packets from here; 0 where there is none yet. Random, since keys are numbers of packets elsewhere, or what a
/// program says.
static KEY: Atomic<u32> = Atomic::new(0);

/// Makes up the key: to be called once, before there are packets. Any context.
pub(super) fn prepare() {
    // Not one of those that are counted up from 0.
    KEY.store(random::u32() | 1 << 31, Relaxed);
}

/// Says of a packet that it was made here.
///
/// # Safety
///
/// `skb` is valid, and the caller's alone.
#[inline]
pub(super) unsafe fn mark(skb: *mut raw::sk_buff) {
    // SAFETY: As the caller promises.
    unsafe { raw::shim_skb_set_tskey(skb, KEY.load(Relaxed)) }
}

/// Whether a packet was made here, and has its memory from there.
///
/// # Safety
///
/// `skb` is valid.
#[inline]
pub(super) unsafe fn is_marked(skb: *const raw::sk_buff) -> bool {
    let key = KEY.load(Relaxed);
    // SAFETY: As the caller promises.
    key != 0 && unsafe { raw::shim_skb_tskey(skb) } == key
}
