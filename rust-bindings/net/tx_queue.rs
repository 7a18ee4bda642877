// SPDX-License-Identifier: GPL-2.0

//! Batches of packets to send.
//!
//! C headers: `include/net/ip.h`, `include/net/ipv6.h`.

use super::{skb::link, TxSkb};
use crate::{raw, sync::BhGuard};
use core::ptr::{self, NonNull};
use kernel::{error::code::EMSGSIZE, sync::rcu};

/// A queue of finished packets, filled with a lock held and sent without it.
///
/// # Invariants
///
/// `head` starts a list of packets, linked by `next`, that came from [`TxSkb::into_raw`]. `tail` is
/// the last of them.
#[derive(Default)]
pub struct TxQueue {
    head: Option<NonNull<raw::sk_buff>>,
    tail: Option<NonNull<raw::sk_buff>>,
}

// SAFETY: Packets do not belong to a thread.
unsafe impl Send for TxQueue {}

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "what was dropped is a statistic"]
pub struct XmitStats {
    /// Packets that the stack accepted.
    pub sent: u32,
    /// Bytes of the accepted packets, including IP headers.
    pub bytes: u64,
    /// Packets that the stack did not accept. They are lost, as any packet may be.
    pub dropped: u32,
    /// Packets dropped because a queueing discipline was full.
    pub queue_full: u32,
}

impl TxQueue {
    /// Returns whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Appends a packet whose headers have been written.
    #[inline]
    pub fn push(&mut self, skb: TxSkb) {
        let skb = skb.into_raw();
        // SAFETY: `skb` was just taken from a `TxSkb`, and by the type invariant the queue owns
        // `tail`.
        unsafe {
            *link(skb.as_ptr()) = ptr::null_mut();
            match self.tail {
                Some(tail) => *link(tail.as_ptr()) = skb.as_ptr(),
                None => self.head = Some(skb),
            }
        }
        // INVARIANT: The list has one more packet, which is its last.
        self.tail = Some(skb);
    }

    /// Removes the first packet and returns it.
    #[inline]
    fn pop(&mut self) -> Option<TxSkb> {
        let skb = self.head?;
        // SAFETY: By the type invariant, the queue owns the packet, which came from `into_raw`. It
        // is removed from the list.
        unsafe {
            // INVARIANT: The list starts with the next packet, or becomes empty.
            self.head = NonNull::new(link(skb.as_ptr()).replace(ptr::null_mut()));
            self.tail = self.tail.filter(|_| self.head.is_some());
            Some(TxSkb::from_raw(skb))
        }
    }

    /// Passes all packets to IP. Callable in any context except a hard interrupt, but not with a
    /// lock held that a receiver of these packets takes.
    ///
    /// Packets without headers are dropped, and so are packets longer than the MTU of their route.
    /// The stack would drop the latter too, but it would also report the MTU to this host like a
    /// router. This host would then use that MTU for ten minutes, although the device's MTU may
    /// grow again in a moment. Each packet is checked just before it is passed on, because a device
    /// may change while a batch is being sent.
    pub fn xmit_all(&mut self) -> XmitStats {
        let mut stats = XmitStats::default();
        if self.is_empty() {
            return stats;
        }
        // One section covers the whole batch: the stack nests its own cheaply.
        let _bh = BhGuard::new();
        let _rcu = rcu::read_lock();
        while let Some(skb) = self.pop() {
            let (packets, bytes, longest) = skb.on_the_wire();
            let result = xmit(skb, longest);
            // NET_XMIT_CN: the packet was accepted, and the queue is filling up (`net_xmit_eval`).
            if result == 0 || result == raw::NET_XMIT_CN as i32 {
                stats.sent = stats.sent.wrapping_add(packets);
                stats.bytes = stats.bytes.wrapping_add(bytes);
                continue;
            }
            stats.dropped = stats.dropped.wrapping_add(packets);
            if result == raw::NET_XMIT_DROP as i32 {
                stats.queue_full = stats.queue_full.wrapping_add(packets);
            }
        }
        stats
    }
}

/// Length in bytes up to which an IP packet fits the MTU of every route. IPv4 learns no smaller MTU
/// than this (`net.ipv4.route.min_pmtu`, 512 + 20 + 20, DEFAULT_MIN_PMTU in net/ipv4/route.c). The
/// minimum MTU of IPv6 is larger.
const MIN_ROUTE_MTU: u32 = 552;

/// Passes a packet to IP. `longest` is the length of the longest packet on the wire. Returns a
/// `NET_XMIT_*` code or a negative error number. The caller has softirqs disabled and holds the RCU
/// read lock.
fn xmit(skb: TxSkb, longest: u32) -> i32 {
    // SAFETY: `skb` owns the packet (type invariant). If it has a route, it starts with an IP
    // header of the version in its `protocol`: `finish` of `TxSkb` sets all three. `dst_mtu`
    // (include/net/dst.h) requires RCU, which the caller holds, and under which the route's
    // namespace is valid. `ip_local_out` and `ip6_local_out` consume the packet in any case and
    // accept a null socket.
    unsafe {
        if !raw::shim_skb_has_dst(skb.as_raw())
            || longest > MIN_ROUTE_MTU && longest > raw::shim_skb_dst_mtu(skb.as_raw())
        {
            return EMSGSIZE.to_errno();
        }
        let skb = skb.into_raw().as_ptr();
        let protocol = u16::from_be(raw::shim_skb_protocol(skb));
        let net = raw::shim_skb_dst_dev_net_rcu(skb);
        if u32::from(protocol) == raw::ETH_P_IPV6 {
            raw::ip6_local_out(net, ptr::null_mut(), skb)
        } else {
            raw::ip_local_out(net, ptr::null_mut(), skb)
        }
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
