// SPDX-License-Identifier: GPL-2.0

//! ICRC elision: the payload of GSO packets to a peer on this host needs no ICRC, because the
//! receiver reads the memory that the sender wrote (docs/performance.md).
//!
//! Each packet carries a [`Mark`] in the key of a transmit timestamp, which it does not otherwise
//! use. A new packet has no mark, and a clone shares it. Packets that are copied or cut from others
//! have none, except for the first datagram of a segmented packet. The mark therefore shows that
//! the page fragments are the memory that was written on this host. It also tells the peer whether
//! its own GSO packets arrive unmodified. Marks from another host do not exist.
//!
//! The mark is neither secret nor proof of anything else: a program that may send packets from this
//! host can send any packet.

use kernel::sync::atomic::{Atomic, Relaxed};
use linux_rdma::{
    net::{TxSkb, UdpPacket},
    random,
};

/// The mark of packets built here, or 0 before [`prepare`]. It is random, because other users of
/// the field store packet counters or values chosen by programs.
static KEY: Atomic<u32> = Atomic::new(0);

/// Bit of the mark: GSO packets of the peer arrive unmodified.
const INTACT: u32 = 1;

/// Value of [`IcrcElision::unproven`] before the first GSO packet has arrived.
const NO_GSO_PACKET: u32 = u32::MAX;

/// Number of packets that must arrive in unmodified GSO packets after one was modified. A queueing
/// discipline that segments only the largest GSO packets then costs few of them.
const AFTER_MODIFIED: u32 = 1024;

/// Chooses the key. Called once, before there are packets.
pub(crate) fn prepare() {
    // The top bit keeps the key apart from counters that start at 0.
    KEY.store((random::u32() | 1 << 31) & !INTACT, Relaxed);
}

/// The mark of a packet that was built on this host.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// GSO packets of the peer arrive unmodified.
    is_intact: bool,
}

impl Mark {
    /// Returns the mark of a packet that was built on this host and still has the memory from
    /// there.
    #[inline]
    pub(crate) fn of(skb: &UdpPacket) -> Option<Self> {
        let (key, mark) = (KEY.load(Relaxed), skb.timestamp_key());
        (key != 0 && mark & !INTACT == key).then_some(Self {
            is_intact: mark & INTACT != 0,
        })
    }

    /// Marks a packet.
    #[inline]
    pub(crate) fn set(self, skb: &mut TxSkb) {
        skb.set_timestamp_key(KEY.load(Relaxed) | u32::from(self.is_intact));
    }
}

/// The state of ICRC elision on a path. Several contexts update it without a lock: an update that
/// gets lost delays the elision, or its end, by a few packets.
pub(crate) struct IcrcElision {
    /// Our GSO packets arrive unmodified, as the peer's last packet says.
    is_confirmed: Atomic<u32>,
    /// Number of packets that must still arrive in unmodified GSO packets before marks say so, or
    /// [`NO_GSO_PACKET`].
    unproven: Atomic<u32>,
}

impl IcrcElision {
    pub(super) const fn new() -> Self {
        Self {
            is_confirmed: Atomic::new(0),
            unproven: Atomic::new(NO_GSO_PACKET),
        }
    }

    /// Returns whether the payload of GSO packets needs no ICRC.
    #[inline]
    pub(super) fn may_omit(&self) -> bool {
        self.is_confirmed.load(Relaxed) != 0
    }

    /// Returns the mark for a packet to the peer.
    #[inline]
    pub(super) fn mark(&self) -> Mark {
        Mark {
            is_intact: !self.is_unproven(),
        }
    }

    /// Returns whether it is not proven that the peer's GSO packets arrive unmodified.
    #[inline]
    pub(crate) fn is_unproven(&self) -> bool {
        self.unproven.load(Relaxed) != 0
    }

    /// Handles the mark of a packet from the peer. A packet without a mark comes from another host,
    /// or something on the path copies packets, so that ICRCs are necessary.
    #[inline]
    pub(crate) fn on_mark(&self, mark: Option<Mark>) {
        let is_confirmed = u32::from(mark.is_some_and(|mark| mark.is_intact));
        if self.is_confirmed.load(Relaxed) != is_confirmed {
            self.is_confirmed.store(is_confirmed, Relaxed);
        }
    }

    /// Records that a GSO packet of the peer arrived unmodified, with this number of packets.
    ///
    /// Single packets are no proof: a path that segments or copies GSO packets may pass them
    /// unmodified.
    pub(crate) fn on_unmodified(&self, packets: u32) {
        let left = match self.unproven.load(Relaxed) {
            NO_GSO_PACKET => 0,
            left => left.saturating_sub(packets),
        };
        self.unproven.store(left, Relaxed);
    }

    /// Records that a packet of the peer arrived without an ICRC and modified: it was segmented or
    /// copied on its way, or is forged.
    #[cold]
    pub(crate) fn on_modified(&self) {
        self.unproven.store(AFTER_MODIFIED, Relaxed);
    }

    /// Records that an ACK has timed out. The path may lead to another host now, which drops
    /// packets without ICRCs. All packets have an ICRC until a packet of the peer says otherwise.
    #[cold]
    pub(crate) fn on_timeout(&self) {
        self.is_confirmed.store(0, Relaxed);
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_icrc_elision)]
mod tests {
    use super::*;

    const INTACT_MARK: Option<Mark> = Some(Mark { is_intact: true });
    const PLAIN_MARK: Option<Mark> = Some(Mark { is_intact: false });

    #[test]
    fn the_last_mark_decides() {
        let elision = IcrcElision::new();
        assert!(!elision.may_omit());
        for other in [PLAIN_MARK, None] {
            elision.on_mark(INTACT_MARK);
            assert!(elision.may_omit());
            elision.on_mark(other);
            assert!(!elision.may_omit());
        }
        elision.on_mark(INTACT_MARK);
        elision.on_timeout();
        assert!(!elision.may_omit());
        elision.on_mark(INTACT_MARK);
        assert!(elision.may_omit());
    }

    #[test]
    fn a_gso_packet_is_the_first_proof() {
        let elision = IcrcElision::new();
        assert!(!elision.mark().is_intact);
        elision.on_unmodified(2);
        assert!(elision.mark().is_intact);
    }

    #[test]
    fn many_unmodified_packets_follow_a_modified_one() {
        let elision = IcrcElision::new();
        elision.on_unmodified(2);
        elision.on_modified();
        elision.on_unmodified(AFTER_MODIFIED - 2);
        assert!(!elision.mark().is_intact);
        elision.on_unmodified(2);
        assert!(elision.mark().is_intact);
    }
}
