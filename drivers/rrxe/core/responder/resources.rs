// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! READs and atomics: their execution, and the state for answering them, and for answering
//! duplicates (the responder resources of IBA 9.7.4).

use super::message::Refusal;
use super::{
    AtomicOp, Flush, Message, RemoteAccess, ResourceRing, Responder, ResponderEnv, MAX_RESOURCES,
};
use crate::psn::Psn;
use crate::wire::{AtomicEth, Feth, Operation, Reth};
use crate::{requester, Ext, Outcome, Packet};

/// Content of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<D> {
    /// Unused.
    Empty,
    /// A READ. A duplicate executes it again.
    Read {
        rkey: u32,
        va: u64,
        len: u32,
        /// The protection domain under which it was accepted, if it reads anything.
        domain: D,
    },
    /// An atomic and its result. A duplicate must not execute it again.
    Atomic {
        rkey: u32,
        va: u64,
        op: AtomicOp,
        original: u64,
    },
    /// A FLUSH or atomic write. The answer only confirms the execution.
    Done { operation: Operation, ext: Ext },
}

/// State of an accepted READ or atomic. `D` is the driver's identity of a protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Resource<D = ()> {
    pub(super) kind: Kind<D>,
    /// PSN of the request and of its first response packet.
    pub(super) first: Psn,
    /// Number of response packets.
    pub(super) packets: u32,
    /// Index of the first packet of the response being sent.
    pub(super) start: u32,
    /// Index of the next packet to send.
    pub(super) at: u32,
    /// The last response packet was sent at least once.
    pub(super) answered: bool,
}

impl<D> Default for Resource<D> {
    fn default() -> Resource<D> {
        Resource {
            kind: Kind::Empty,
            first: Psn::new(0),
            packets: 0,
            start: 0,
            at: 0,
            answered: true,
        }
    }
}

/// Ring of the latest READs and atomics.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources<R> {
    /// One entry for each request that the peer may have outstanding.
    pub(super) ring: R,
    /// Bitmap of the entries that await an answer.
    pending: u128,
    /// Index of the next entry to fill, which is the oldest.
    head: u8,
}

impl<R: ResourceRing> Resources<R> {
    fn new(mut ring: R) -> Resources<R> {
        ring.fill(Resource::default());
        Resources {
            ring,
            pending: 0,
            head: 0,
        }
    }

    /// Returns the number of requests that the peer may have outstanding.
    #[inline]
    fn limit(&self) -> u8 {
        self.ring.len().min(MAX_RESOURCES) as u8
    }

    /// Moves the newest resources to another ring, and returns the old one.
    pub(super) fn replace(&mut self, ring: R) -> R {
        let old = core::mem::replace(self, Resources::new(ring));
        let (places, limit) = (old.limit(), self.limit());
        let kept = places.min(limit);
        for age in (1..=kept).rev() {
            let from = old.newest(age);
            let to = usize::from(self.head);
            let resource = old.get(from).copied();
            if let (Some(resource), Some(to)) = (resource, self.ring.get_mut(to)) {
                *to = resource;
                if old.pending & Self::bit(from) != 0 {
                    self.pending |= Self::bit(self.head);
                }
            }
            self.advance_head();
        }
        old.ring
    }

    /// Returns the index of the `age`-th newest resource, with `age` from 1 to the length of the
    /// ring.
    #[inline]
    fn newest(&self, age: u8) -> u8 {
        match self.head.checked_sub(age) {
            Some(index) => index,
            None => self.head.wrapping_add(self.limit()).wrapping_sub(age),
        }
    }

    #[inline]
    fn advance_head(&mut self) {
        let next = self.head.wrapping_add(1);
        self.head = if next >= self.limit() { 0 } else { next };
    }

    /// Forgets all resources.
    pub(super) fn clear(&mut self) {
        self.ring.fill(Resource::default());
        self.pending = 0;
        self.head = 0;
    }

    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        self.pending != 0
    }

    #[inline]
    const fn bit(index: u8) -> u128 {
        1u128.wrapping_shl(index as u32)
    }

    /// Returns whether there is room: not while the oldest resource waits for its first answer
    /// (C-14, C-15). A peer that sends a new request has received the answer to a duplicate.
    fn has_room(&self) -> bool {
        self.get(self.head).is_some_and(|oldest| oldest.answered)
    }

    /// Stores a READ or atomic that awaits its answer.
    fn push(&mut self, kind: Kind<R::Domain>, first: Psn, packets: u32) {
        let index = self.head;
        if let Some(place) = self.ring.get_mut(usize::from(index)) {
            *place = Resource {
                kind,
                first,
                packets,
                start: 0,
                at: 0,
                answered: false,
            };
            self.pending |= Self::bit(index);
            self.advance_head();
        }
    }

    /// Returns the oldest resource that awaits an answer.
    #[inline]
    pub(super) fn oldest_pending(&self) -> Option<u8> {
        if self.pending == 0 {
            return None;
        }
        // Search from the oldest, at `head`, to the end of the ring, and then from its start.
        let from_head = self.pending.wrapping_shr(u32::from(self.head));
        Some(match from_head {
            0 => self.pending.trailing_zeros() as u8,
            bits => self.head.wrapping_add(bits.trailing_zeros() as u8),
        })
    }

    #[inline]
    pub(super) fn get(&self, index: u8) -> Option<&Resource<R::Domain>> {
        self.ring.get(usize::from(index))
    }

    /// Notes that `packets` response packets were sent.
    #[inline]
    pub(super) fn advance(&mut self, index: u8, packets: u32) {
        let Some(resource) = self.ring.get_mut(usize::from(index)) else {
            return;
        };
        resource.at = resource.at.wrapping_add(packets);
        if resource.at >= resource.packets {
            resource.answered = true;
            self.pending &= !Self::bit(index);
        }
    }

    /// Forgets a resource that cannot be answered anymore.
    pub(super) fn forget(&mut self, index: u8) {
        self.pending &= !Self::bit(index);
        if let Some(resource) = self.ring.get_mut(usize::from(index)) {
            *resource = Resource::default();
        }
    }

    /// Schedules the answer to a duplicate request. `accept` compares the request, which starts at
    /// a packet index, with the stored one. Only the newest resource with this PSN counts: an older
    /// one is from before a PSN wrap.
    fn replay(&mut self, psn: Psn, accept: impl Fn(Kind<R::Domain>, u32) -> bool) -> bool {
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
            self.pending |= Self::bit(index);
            return true;
        }
        false
    }
}

impl<R: ResourceRing> Responder<R> {
    /// Returns whether the request is allowed, is not inside another message, and can be stored.
    fn may_keep(&self, allowed: bool) -> bool {
        allowed && self.message == Message::None && self.resources.has_room()
    }

    /// Handles a READ, the expected request.
    pub(super) fn on_read<E: ResponderEnv<Domain = R::Domain>>(
        &mut self,
        packet: &Packet,
        reth: Reth,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let valid = self.may_keep(self.allow_read)
            && packet.payload_len == 0
            && reth.len <= requester::MAX_MESSAGE;
        if !valid {
            return Err(Refusal::Invalid);
        }
        // G-09
        let domain = match reth.len {
            0 => R::Domain::default(),
            len => env
                .check_remote(reth.rkey, reth.va, len, RemoteAccess::Read)
                .map_err(|_| Refusal::Access)?,
        };
        let kind = Kind::Read {
            rkey: reth.rkey,
            va: reth.va,
            len: reth.len,
            domain,
        };
        self.accept(kind, self.mtu.packets(reth.len));
        Ok(())
    }

    /// Handles an atomic, the expected request.
    pub(super) fn on_atomic<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        eth: AtomicEth,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let valid = self.may_keep(self.allow_atomic)
            && packet.payload_len == 0
            // G-14
            && eth.va & 7 == 0;
        if !valid {
            return Err(Refusal::Invalid);
        }
        let op = atomic_op(packet.operation, eth);
        let original = env
            .atomic(eth.rkey, eth.va, op)
            .map_err(|_| Refusal::Access)?;
        let kind = Kind::Atomic {
            rkey: eth.rkey,
            va: eth.va,
            op,
            original,
        };
        self.accept(kind, 1);
        Ok(())
    }

    /// Handles a FLUSH, the expected request.
    pub(super) fn on_flush<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        feth: Feth,
        reth: Reth,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let global = feth.placement & Feth::GLOBAL != 0;
        let persistent = feth.placement & Feth::PERSISTENT != 0;
        let range = match feth.level {
            Feth::RANGE if reth.len < requester::MAX_MESSAGE => Some((reth.va, reth.len)),
            // Address and length are ignored.
            Feth::REGION => None,
            _ => return Err(Refusal::Invalid),
        };
        let valid = self.message == Message::None
            // G-26
            && packet.payload_len == 0
            && (global || persistent)
            && (!global || self.allow_flush_global)
            && (!persistent || self.allow_flush_persistent)
            && self.resources.limit() != 0;
        if !valid {
            return Err(Refusal::Invalid);
        }
        // Unlike a READ (C-14), it is not refused: rdma_rxe sends FLUSHes without counting them as
        // outstanding.
        if !self.resources.has_room() {
            return Err(Refusal::Busy);
        }
        let flush = Flush {
            global,
            persistent,
            range,
        };
        // G-09 covers READ and WRITE only: an empty FLUSH does check the key.
        env.flush(reth.rkey, flush).map_err(|_| Refusal::Access)?;
        self.done(packet);
        Ok(())
    }

    /// Handles an atomic write, the expected request. It requires WRITE access.
    pub(super) fn on_atomic_write<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        reth: Reth,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let valid = self.may_keep(self.allow_write)
            // G-25
            && packet.payload_len == requester::ATOMIC_WRITE_LEN
            && reth.len == requester::ATOMIC_WRITE_LEN
            && reth.va & 7 == 0;
        if !valid {
            return Err(Refusal::Invalid);
        }
        env.atomic_write(reth.rkey, reth.va)
            .map_err(|_| Refusal::Access)?;
        self.done(packet);
        Ok(())
    }

    /// Stores an executed FLUSH or atomic write.
    fn done(&mut self, packet: &Packet) {
        let kind = Kind::Done {
            operation: packet.operation,
            ext: packet.ext,
        };
        self.accept(kind, 1);
    }

    /// Stores an accepted request, and advances past it. Its response acknowledges everything
    /// before it.
    fn accept(&mut self, kind: Kind<R::Domain>, packets: u32) {
        self.resources.push(kind, self.epsn, packets);
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
            (Kind::Read { rkey, va, len, .. }, Ext::Reth(reth)) => {
                packet.operation == O::ReadRequest
                    && reth.rkey == rkey
                    && reth.va == va.wrapping_add(u64::from(mtu.offset(at)))
                    && reth.len == len.saturating_sub(mtu.offset(at))
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
