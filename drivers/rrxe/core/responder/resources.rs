// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! READs and atomics: their execution, and the state for the responses to them and to duplicates
//! (the responder resources of IBA 9.7.4).

use super::message::{Refusal, Result};
use super::{
    AtomicOp, DomainId, Flush, Message, RemoteAccess, ResourceRing, Responder, ResponderEnv as Env,
    MAX_RESOURCES,
};
use crate::psn::{Psn, MAX_OUTSTANDING};
use crate::requester::{ATOMIC_WRITE_LEN, MAX_MESSAGE};
use crate::wire::{AtomicEth, Feth, Operation, Reth};
use crate::{Ext, Outcome, Packet};

/// Content of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unused.
    #[default]
    Empty,
    /// A READ. A duplicate executes it again.
    Read {
        reth: Reth,
        /// The protection domain under which it was accepted, if it reads anything.
        domain: DomainId,
    },
    /// An atomic and its result. A duplicate must not execute it again.
    Atomic {
        rkey: u32,
        va: u64,
        op: AtomicOp,
        original: u64,
    },
    /// A FLUSH or atomic write. The response only confirms the execution.
    Done { operation: Operation, ext: Ext },
}

/// State of an accepted READ or atomic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resource {
    pub(super) kind: Kind,
    /// PSN of the request and of its first response packet.
    pub(super) first: Psn,
    /// Number of response packets.
    pub(super) packets: u32,
    /// Index of the first packet of the response being sent.
    pub(super) start: u32,
    /// Index of the next packet to send.
    pub(super) at: u32,
    /// The last response packet was never sent.
    pub(super) unsent: bool,
}

impl Resource {
    /// Returns the number of packets after the next one.
    #[inline]
    pub(super) fn after(&self) -> u32 {
        self.packets.saturating_sub(self.at).saturating_sub(1)
    }

    /// Notes that `packets` packets were sent.
    #[inline]
    pub(super) fn advance(&mut self, packets: u32) {
        self.at = self.at.wrapping_add(packets);
        debug_assert!(
            self.at <= self.packets,
            "more responses were sent than there are"
        );
    }
}

/// Ring of the latest READs and atomics.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources<R> {
    /// One entry for each request that the peer may have outstanding.
    pub(super) ring: R,
    /// Bitmap of the entries that await a response.
    pending: u128,
    /// Index of the next entry to fill, which is the oldest.
    head: u8,
}

impl<R: ResourceRing> Resources<R> {
    /// Returns the number of requests that the peer may have outstanding.
    #[inline]
    fn limit(&self) -> u8 {
        self.ring.len().min(MAX_RESOURCES) as u8
    }

    /// Returns the index of the `age`-th newest resource, with `age` from 1 to the length of the
    /// ring.
    #[inline]
    fn newest(&self, age: u8) -> u8 {
        debug_assert!(
            (1..=self.limit()).contains(&age),
            "a resource older than the oldest"
        );
        let wrapped = self.limit().abs_diff(age.abs_diff(self.head));
        self.head.checked_sub(age).unwrap_or(wrapped)
    }

    /// Asserts what holds between two events.
    pub(super) fn assert_invariants(&self) {
        debug_assert!(
            self.head < self.limit().max(1),
            "the next entry is outside of the ring"
        );
        let unused = self.pending.checked_shr(u32::from(self.limit()));
        debug_assert!(
            unused.unwrap_or(0) == 0,
            "an entry outside of the ring is pending"
        );
        for index in 0..self.limit() {
            let Some(resource) = self.get(index) else {
                continue;
            };
            let is_pending = self.pending & bit(index) != 0;
            debug_assert!(resource.start <= resource.at, "a response before its start");
            debug_assert!(
                resource.at <= resource.packets,
                "more responses were sent than there are"
            );
            debug_assert!(
                !is_pending || resource.kind != Kind::Empty,
                "an unused entry is pending"
            );
            debug_assert!(
                !is_pending || resource.at < resource.packets,
                "a pending response without a packet"
            );
            debug_assert!(
                is_pending || !resource.unsent,
                "a request without a response is not pending"
            );
        }
    }

    pub(super) fn clear(&mut self) {
        self.ring.fill(Resource::default());
        self.pending = 0;
        self.head = 0;
    }

    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        self.pending != 0
    }

    /// Returns whether a resource is free: not while the oldest resource waits for its first
    /// response (C-14, C-15). A peer that sends a new request has received the response to a
    /// duplicate.
    fn has_space(&self) -> bool {
        self.get(self.head).is_some_and(|oldest| !oldest.unsent)
    }

    /// Stores a READ or atomic, which awaits a response if it is `pending`.
    fn push(&mut self, resource: Resource, pending: bool) {
        debug_assert!(self.head < self.limit(), "a resource without a place");
        if let Some(place) = self.ring.get_mut(usize::from(self.head)) {
            debug_assert!(
                !place.unsent,
                "a resource is replaced before its response was sent"
            );
            *place = resource;
            if pending {
                self.pending |= bit(self.head);
            }
            let next = self.head.checked_add(1);
            self.head = next.filter(|&next| next < self.limit()).unwrap_or(0);
        }
    }

    /// Returns the oldest resource that awaits a response, and its index.
    #[inline]
    pub(super) fn oldest_pending(&self) -> Option<(u8, Resource)> {
        if self.pending == 0 {
            return None;
        }
        // Search from the oldest, at `head`, to the end of the ring, and then from its start.
        let from_head = self.pending.wrapping_shr(u32::from(self.head));
        let index = match from_head {
            0 => self.pending.trailing_zeros() as u8,
            bits => self.head.wrapping_add(bits.trailing_zeros() as u8),
        };
        debug_assert!(
            self.pending & bit(index) != 0,
            "the oldest response is not pending"
        );
        Some((index, *self.get(index)?))
    }

    #[inline]
    fn get(&self, index: u8) -> Option<&Resource> {
        self.ring.get(usize::from(index))
    }

    /// Notes that `packets` response packets were sent.
    #[inline]
    pub(super) fn advance(&mut self, index: u8, packets: u32) {
        let Some(resource) = self.ring.get_mut(usize::from(index)) else {
            return;
        };
        debug_assert!(packets != 0, "no response was sent");
        resource.advance(packets);
        if resource.at >= resource.packets {
            resource.unsent = false;
            self.pending &= !bit(index);
        }
    }

    /// Forgets a resource that cannot have a response anymore.
    pub(super) fn forget(&mut self, index: u8) {
        debug_assert!(index < self.limit(), "an entry outside of the ring");
        self.pending &= !bit(index);
        if let Some(resource) = self.ring.get_mut(usize::from(index)) {
            *resource = Resource::default();
        }
    }

    /// Schedules the response to a duplicate request. `accept` compares the request, which starts
    /// at a packet index, with the stored one. Only the newest resource with this PSN counts: an
    /// older one is from before a PSN wrap.
    fn replay(&mut self, psn: Psn, accept: impl Fn(Kind, u32) -> bool) -> bool {
        for age in 1..=self.limit() {
            let index = self.newest(age);
            let Some(resource) = self.ring.get_mut(usize::from(index)) else {
                break;
            };
            let at = psn.since(resource.first);
            if at >= resource.packets {
                continue;
            }
            if !accept(resource.kind, at) {
                break;
            }
            resource.start = at;
            resource.at = at;
            self.pending |= bit(index);
            debug_assert!(index < self.limit(), "an entry outside of the ring");
            return true;
        }
        false
    }
}

impl<R: ResourceRing> Responder<R> {
    /// Replaces the resource storage, which has space for all READs and atomics that the peer may
    /// have outstanding (`max_dest_rd_atomic`, C-13 to C-15). Moves the newest resources there.
    /// Returns the old storage.
    pub fn set_resources(&mut self, ring: R) -> R {
        let mut new = Resources {
            ring,
            ..Resources::default()
        };
        new.clear();
        let old = &self.resources;
        let kept = old.limit().min(new.limit());
        for age in (1..=kept).rev() {
            let from = old.newest(age);
            if let Some(resource) = old.get(from) {
                new.push(*resource, old.pending & bit(from) != 0);
            }
        }
        core::mem::replace(&mut self.resources, new).ring
    }

    /// Executes a READ, atomic, FLUSH or atomic write, the expected request, and keeps its
    /// response.
    pub(super) fn on_read_or_atomic(&mut self, packet: &Packet, env: &mut impl Env) -> Result {
        use Operation as O;
        let (operation, ext, len) = (packet.operation, packet.ext, packet.payload_len);
        let has_space = match operation {
            O::Flush => self.resources.limit() != 0,
            _ => self.resources.has_space(),
        };
        if self.message != Message::None || !has_space {
            return Err(Refusal::Invalid);
        }
        let refused = Refusal::remote;
        let kind = match (operation, ext) {
            (O::ReadRequest, Ext::Reth(reth))
                if self.allow_read && len == 0 && reth.len <= MAX_MESSAGE =>
            {
                let domain = match reth.len {
                    // G-09
                    0 => Ok(DomainId::default()),
                    len => env.check_remote(reth.rkey, reth.va, len, RemoteAccess::Read),
                };
                let domain = domain.map_err(refused)?;
                Kind::Read { reth, domain }
            }
            // G-14
            (O::CompareSwap | O::FetchAdd, Ext::Atomic(eth))
                if self.allow_atomic && len == 0 && eth.va & 7 == 0 =>
            {
                let op = atomic_op(operation, eth);
                Kind::Atomic {
                    rkey: eth.rkey,
                    va: eth.va,
                    op,
                    original: env.atomic(eth.rkey, eth.va, op).map_err(refused)?,
                }
            }
            // G-25
            (O::AtomicWrite, Ext::Reth(reth))
                if self.allow_write
                    && (len, reth.len) == (ATOMIC_WRITE_LEN, ATOMIC_WRITE_LEN)
                    && reth.va & 7 == 0 =>
            {
                env.atomic_write(reth.rkey, reth.va).map_err(refused)?;
                Kind::Done { operation, ext }
            }
            // G-26
            (O::Flush, Ext::Flush(feth, reth)) if len == 0 => {
                let flush = self.accept_flush(feth, reth)?;
                // G-09 covers READ and WRITE only: an empty FLUSH does check the key.
                env.flush(reth.rkey, flush).map_err(refused)?;
                Kind::Done { operation, ext }
            }
            _ => return Err(Refusal::Invalid),
        };
        self.accept(kind);
        Ok(())
    }

    /// Returns the guarantees and the range of a FLUSH, if it is allowed and can be stored.
    fn accept_flush(&self, feth: Feth, reth: Reth) -> Result<Flush> {
        let global = feth.placement & Feth::GLOBAL != 0;
        let persistent = feth.placement & Feth::PERSISTENT != 0;
        let range = match feth.level {
            Feth::RANGE if reth.len < MAX_MESSAGE => Some((reth.va, reth.len)),
            // Address and length are ignored.
            Feth::REGION => None,
            _ => return Err(Refusal::Invalid),
        };
        let forbidden =
            global && !self.allow_flush_global || persistent && !self.allow_flush_persistent;
        if forbidden || !(global || persistent) {
            return Err(Refusal::Invalid);
        }
        // Unlike a READ (C-14), it is not refused: rdma_rxe sends FLUSHes without counting them as
        // outstanding.
        if !self.resources.has_space() {
            return Err(Refusal::Busy);
        }
        Ok(Flush {
            global,
            persistent,
            range,
        })
    }

    /// Stores an executed request, and advances past it. Its response acknowledges everything
    /// before it.
    fn accept(&mut self, kind: Kind) {
        let packets = match kind {
            Kind::Read { reth, .. } => self.mtu.packets(reth.len),
            _ => 1,
        };
        let resource = Resource {
            kind,
            first: self.epsn,
            packets,
            unsent: true,
            ..Resource::default()
        };
        debug_assert!(packets <= MAX_OUTSTANDING, "a response with too many PSNs");
        debug_assert!(self.message == Message::None, "a READ within a message");
        self.resources.push(resource, true);
        self.epsn = self.epsn.add(packets);
        self.msn = self.msn.next();
        self.ack_due = false;
    }

    /// Handles a duplicate request (IBA 9.7.4.3): executes nothing but READs.
    pub(super) fn on_duplicate(&mut self, packet: &Packet) -> Outcome {
        use Operation as O;
        let mtu = self.mtu;
        let repeats = |kind, at| match (kind, packet.ext) {
            // C-06: the READ may start at any packet of the original, and must end with it.
            (Kind::Read { reth: old, .. }, Ext::Reth(reth)) => {
                packet.operation == O::ReadRequest && reth == old.rest(mtu.offset(at))
            }
            // C-12
            (Kind::Atomic { rkey, va, op, .. }, Ext::Atomic(eth)) => {
                eth.rkey == rkey && eth.va == va && atomic_op(packet.operation, eth) == op
            }
            (Kind::Done { operation, ext }, _) => {
                operation == packet.operation && ext == packet.ext
            }
            _ => false,
        };
        let transmit = match packet.operation {
            O::ReadRequest | O::CompareSwap | O::FetchAdd | O::AtomicWrite | O::Flush => {
                self.resources.replay(packet.psn(), repeats)
            }
            // No such request was ever executed.
            O::Unsupported => false,
            // C-02
            _ => {
                self.ack_due |= packet.bth.ackreq;
                packet.bth.ackreq
            }
        };
        Outcome::transmit(transmit)
    }
}

/// Returns the bit of a resource in [`Resources::pending`].
#[inline]
const fn bit(index: u8) -> u128 {
    debug_assert!((index as usize) < MAX_RESOURCES, "an index without a bit");
    1u128.wrapping_shl(index as u32)
}

/// Returns the operation of an atomic request.
#[inline]
fn atomic_op(operation: Operation, eth: AtomicEth) -> AtomicOp {
    match operation {
        Operation::CompareSwap => AtomicOp::CompareSwap {
            compare: eth.compare,
            swap: eth.swap_add,
        },
        _ => AtomicOp::FetchAdd { add: eth.swap_add },
    }
}

/// Impossible states, each of which an assertion catches.
#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn resources() -> Resources<Vec<Resource>> {
        Resources {
            ring: vec![Resource::default(); 2],
            ..Resources::default()
        }
    }

    #[test]
    #[should_panic(expected = "an entry outside of the ring is pending")]
    fn pending_outside_of_the_ring() {
        let mut resources = resources();
        resources.assert_invariants();
        resources.pending = bit(2);
        resources.assert_invariants();
    }

    #[test]
    #[should_panic(expected = "an unused entry is pending")]
    fn pending_without_a_request() {
        let mut resources = resources();
        resources.pending = bit(1);
        resources.assert_invariants();
    }

    #[test]
    #[should_panic(expected = "a resource without a place")]
    fn resource_without_a_ring() {
        Resources::<Vec<Resource>>::default().push(Resource::default(), true);
    }
}
