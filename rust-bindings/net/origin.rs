// SPDX-License-Identifier: GPL-2.0

//! A mark for packets that were built on this host.
//!
//! Between the namespaces of one host, for example over a veth, a packet may cross the stack with
//! only its headers examined. The sender marks its packets in `tskey`, the key of a transmit
//! timestamp, which they do not otherwise use. The receiver checks the mark. `__alloc_skb`
//! (net/core/skbuff.c) clears the field, and a clone shares it. Packets that are copied or cut from
//! another packet do not have it, except for the first datagram of a segmented packet. The mark
//! therefore shows that the page fragments are the memory that was written on this host.
//!
//! The mark is neither secret nor proof of anything else: a program that may send packets from this
//! host can send any packet.

use super::skb::{shim_skb_tskey, Skb};
use crate::{random, raw};
use kernel::sync::atomic::{Atomic, Relaxed};

/// The key of packets built here, or 0 before [`prepare`]. It is random, because other users of the
/// field store packet counters or values chosen by programs.
static KEY: Atomic<u32> = Atomic::new(0);

/// Chooses the key. Called once, before there are packets. Any context.
pub(super) fn prepare() {
    // The top bit keeps the key apart from counters that start at 0.
    KEY.store(random::u32() | 1 << 31, Relaxed);
}

/// Marks a packet as built on this host.
///
/// # Safety
///
/// `skb` is valid, and the caller has exclusive access to it.
#[inline]
pub(super) unsafe fn mark(skb: *mut raw::sk_buff) {
    // SAFETY: The caller guarantees a valid packet that nothing else uses.
    unsafe { raw::shim_skb_set_tskey(skb, KEY.load(Relaxed)) }
}

/// Returns whether a packet was built on this host and still has the memory from there.
#[inline]
pub(super) fn is_marked(skb: &Skb) -> bool {
    let key = KEY.load(Relaxed);
    key != 0 && shim_skb_tskey(skb) == key
}
