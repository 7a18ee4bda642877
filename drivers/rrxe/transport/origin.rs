// SPDX-License-Identifier: GPL-2.0

//! A mark for packets that were built on this host.
//!
//! Between the namespaces of one host, for example over a veth, a packet may cross the stack with
//! only its headers examined. The sender marks its packets in the key of a transmit timestamp,
//! which they do not otherwise use. The receiver checks the mark. A new packet does not have it,
//! and a clone shares it. Packets that are copied or cut from another packet do not have it, except
//! for the first datagram of a segmented packet. The mark therefore shows that the page fragments
//! are the memory that was written on this host.
//!
//! The mark is neither secret nor proof of anything else: a program that may send packets from this
//! host can send any packet.

use kernel::sync::atomic::{Atomic, Relaxed};
use linux_rdma::{
    net::{RxSkb, TxSkb},
    random,
};

/// The key of packets built here, or 0 before [`prepare`]. It is random, because other users of the
/// field store packet counters or values chosen by programs.
static KEY: Atomic<u32> = Atomic::new(0);

/// Chooses the key. Called once, before there are packets.
pub(crate) fn prepare() {
    // The top bit keeps the key apart from counters that start at 0.
    KEY.store(random::u32() | 1 << 31, Relaxed);
}

/// Marks a packet as built on this host.
#[inline]
pub(crate) fn mark(skb: &mut TxSkb) {
    skb.set_timestamp_key(KEY.load(Relaxed));
}

/// Returns whether a packet was built on this host and still has the memory from there.
#[inline]
pub(crate) fn is_marked(skb: &RxSkb) -> bool {
    let key = KEY.load(Relaxed);
    key != 0 && skb.timestamp_key() == key
}
