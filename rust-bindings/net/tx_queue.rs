// SPDX-License-Identifier: GPL-2.0

//! Batches of packets to send.
//!
//! C headers: `include/net/ip.h`, `include/net/ipv6.h`.

use super::TxSkb;
use crate::{raw, sync::BhGuard};
use core::ptr::{self, NonNull};
use kernel::sync::rcu;

/// Finished packets in their order: collected with a lock held, sent without it.
///
/// # Invariants
///
/// `head` starts a list of `len` packets, linked by `next`, that came from [`TxSkb::into_raw`];
/// `tail` is its last one, and null where the list is empty.
pub struct TxQueue {
    head: *mut raw::sk_buff,
    tail: *mut raw::sk_buff,
    len: usize,
}

// SAFETY: Packets belong to no thread.
unsafe impl Send for TxQueue {}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "what was dropped is a statistic"]
pub struct XmitStats {
    /// Packets that the stack took.
    pub sent: u32,
    /// Bytes of these, IP headers included.
    pub bytes: u64,
    /// Packets that it did not take: lost, like any packet may be.
    pub dropped: u32,
    /// Packets of these for which a queueing discipline had no room.
    pub no_room: u32,
}

/// The link to the packet behind one.
///
/// # Safety
///
/// `skb` is a valid packet.
#[inline]
unsafe fn next(skb: *mut raw::sk_buff) -> *mut *mut raw::sk_buff {
    // SAFETY: The caller promises a valid packet; only the address of the field is taken.
    unsafe { &raw mut (*skb).__bindgen_anon_1.__bindgen_anon_1.next }
}

impl TxQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            len: 0,
        }
    }

    /// Packets in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a packet whose headers are written.
    #[inline]
    pub fn push(&mut self, skb: TxSkb) {
        let skb = skb.into_raw();
        // SAFETY: `skb` and, by the type invariant, `tail` are valid packets of ours.
        unsafe {
            *next(skb) = ptr::null_mut();
            if self.tail.is_null() {
                self.head = skb;
            } else {
                *next(self.tail) = skb;
            }
        }
        // INVARIANT: The list has one more packet, which is its last.
        self.tail = skb;
        self.len = self.len.wrapping_add(1);
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop(&mut self) -> Option<TxSkb> {
        let skb = NonNull::new(self.head)?;
        // SAFETY: By the type invariant `skb` is a valid packet.
        unsafe {
            let next = next(skb.as_ptr());
            // INVARIANT: The list starts with the one behind; where there is none, it is empty.
            self.head = *next;
            *next = ptr::null_mut();
        }
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        }
        self.len = self.len.wrapping_sub(1);
        // SAFETY: By the type invariant it came from `into_raw`, and it is not in the list any more.
        Some(unsafe { TxSkb::from_raw(skb) })
    }

    /// Moves all packets of another queue behind those of this one.
    pub fn append(&mut self, other: &mut TxQueue) {
        let other = core::mem::take(other);
        if other.head.is_null() {
            return;
        }
        if self.tail.is_null() {
            self.head = other.head;
        } else {
            // SAFETY: By the type invariant `tail` is a valid packet.
            unsafe { *next(self.tail) = other.head };
        }
        // INVARIANT: The lists are linked; the other queue is forgotten.
        self.tail = other.tail;
        self.len = self.len.wrapping_add(other.len);
        core::mem::forget(other);
    }

    /// Gives all packets to IP. Any context but a hard interrupt; not with a lock held that a
    /// receiver of these packets takes.
    ///
    /// A packet whose headers were not written is dropped, and so is one that its route has become too narrow for: the stack would
    /// drop it as well, but tell this host as a router would, which would then hold the way for that narrow for ten minutes, where its
    /// device may be wide again in a moment. This is looked at for each packet as it is given away, for a batch can take longer than a
    /// device stays as it was.
    pub fn xmit_all(&mut self) -> XmitStats {
        let mut stats = XmitStats::default();
        if self.is_empty() {
            return stats;
        }
        // One section for all: the stack nests its own cheaply.
        let _bh = BhGuard::new();
        let _rcu = rcu::read_lock();
        while let Some(skb) = self.pop() {
            let wire = skb.on_the_wire();
            match xmit(skb, wire.longest) {
                Xmit::Taken => {
                    stats.sent = stats.sent.wrapping_add(wire.packets);
                    stats.bytes = stats.bytes.wrapping_add(wire.bytes);
                }
                Xmit::NoRoom => {
                    stats.dropped = stats.dropped.wrapping_add(wire.packets);
                    stats.no_room = stats.no_room.wrapping_add(wire.packets);
                }
                Xmit::Dropped => stats.dropped = stats.dropped.wrapping_add(wire.packets),
            }
        }
        stats
    }
}

/// Bytes of an IP packet that need not be compared with its route's MTU: IPv4 learns none that is smaller (`net.ipv4.route.min_pmtu`,
/// 512 + 20 + 20, DEFAULT_MIN_PMTU in net/ipv4/route.c), and IPv6 has none.
const NARROWEST: u32 = 552;

/// The fate of a packet that was given to IP.
enum Xmit {
    Taken,
    /// A queueing discipline had no room for it.
    NoRoom,
    Dropped,
}

/// Gives a packet to IP. `longest` is [`OnTheWire`](super::tx::OnTheWire)'s. With softirqs
/// disabled, under RCU.
fn xmit(skb: TxSkb, longest: u32) -> Xmit {
    // SAFETY: The packet is valid by its type invariant.
    let (protocol, has_route) = unsafe {
        (
            u16::from_be(raw::shim_skb_protocol(skb.as_raw())),
            raw::shim_skb_has_dst(skb.as_raw()),
        )
    };
    if !has_route {
        return Xmit::Dropped;
    }
    // SAFETY: The packet has a route, whose MTU may be asked for under RCU (`dst_mtu`, include/net/dst.h).
    if longest > NARROWEST && longest > unsafe { raw::shim_skb_dst_mtu(skb.as_raw()) } {
        return Xmit::Dropped;
    }
    let skb = skb.into_raw();
    // SAFETY: The packet has a route, and an IP header at its start of the version that `protocol`
    // says, since `finish` of `TxSkb` sets all three. `ip_local_out` and `ip6_local_out` take the
    // packet over whatever they return, and need no socket. The route's namespace is valid under
    // RCU.
    let result = unsafe {
        let net = raw::shim_skb_dst_dev_net_rcu(skb);
        if u32::from(protocol) == raw::ETH_P_IPV6 {
            raw::ip6_local_out(net, ptr::null_mut(), skb)
        } else {
            raw::ip_local_out(net, ptr::null_mut(), skb)
        }
    };
    const CN: i32 = raw::NET_XMIT_CN as i32;
    const DROP: i32 = raw::NET_XMIT_DROP as i32;
    match result {
        // "Congestion notification": taken, and the queue is filling (net_xmit_eval).
        0 | CN => Xmit::Taken,
        DROP => Xmit::NoRoom,
        _ => Xmit::Dropped,
    }
}

impl Default for TxQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        while let Some(skb) = self.pop() {
            drop(skb);
        }
    }
}
