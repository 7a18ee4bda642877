// SPDX-License-Identifier: GPL-2.0

//! Received packets. The side that handles them stays locked from one packet of a batch to the
//! next.

use super::{
    cnp::PendingCnp, delayed_ack::AckAction, reorder_buffer::ReorderBuffer, requester::SendSide,
    responder::RecvSide, EventCtx, PendingCompletions, Qp,
};
use crate::{congestion::is_marked, counters::Counter, path::Path, rx_packet::RxPacket};
use kernel::sync::{rcu, Arc, ArcBorrow, SpinLock};
use linux_rdma::{
    net::RxSkb,
    sync::{arc_borrow_ref, lock_bh, BhLocked, SoftTimer},
};
use rrxe_core::{
    requester::RequesterCounters, responder::ResponderCounters, wire::Operation, Outcome, Psn,
    RecoveryMode,
};

/// Work that a batch of received packets leaves for the end of the batch.
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// Completions of requests.
    pub(super) recv: PendingCompletions,
    pub(super) any_requests: bool,
    /// At least one of the requests was new.
    pub(super) any_new: bool,
    /// When their ACK is sent; decided before they were handled.
    pub(super) ack: AckAction,
    /// Outcome of the requests. [`Outcome::buffer`] is not used here.
    pub(super) requests: Outcome,
    /// Completions of responses.
    pub(super) send: PendingCompletions,
    pub(super) responses: Outcome,
    /// Responses have arrived, and may have freed slots.
    pub(super) any_responses: bool,
    /// Packets arrived in a GSO packet unmodified from this host, and the peer has not been told.
    pub(super) intact: bool,
}

/// A batch of received packets of one queue pair.
#[derive(Default)]
pub(crate) struct QpBatch<'a> {
    deferred: DeferredWork,
    locked_side: LockedSide<'a>,
    packets: u64,
    /// Bytes of IP packets.
    bytes: u64,
}

/// The side that is locked for the current packets.
#[derive(Default)]
enum LockedSide<'a> {
    #[default]
    None,
    Responder(SideGuard<'a, RecvSide, ResponderCounters>),
    Requester(SideGuard<'a, SendSide, RequesterCounters>),
}

/// A locked side.
struct SideGuard<'a, S, C> {
    side: BhLocked<'a, S>,
    /// Counters at the time the side was locked.
    before: C,
    /// The batch comes from the peer: all of its packets have the same addresses.
    from_peer: bool,
    /// The peer has not been told yet whether its GSO packets arrive unmodified.
    unconfirmed: bool,
}

impl<'a, S, C> SideGuard<'a, S, C> {
    /// Locks a side. `of` returns its counters and its path.
    fn lock(
        lock: &'a SpinLock<S>,
        incoming: &RxPacket<'_>,
        of: impl FnOnce(&S) -> (C, &Option<Arc<Path>>),
    ) -> Self {
        let side = lock_bh(lock);
        let (before, path) = of(&side);
        let from_peer = path.as_ref().is_some_and(|p| incoming.is_from_peer_of(p));
        let unconfirmed = path.as_ref().is_some_and(|p| p.needs_confirmation());
        Self {
            side,
            before,
            from_peer,
            unconfirmed,
        }
    }
}

impl<'a> LockedSide<'a> {
    /// Unlocks the side and updates the counters.
    fn unlock(&mut self, qp: &Qp) {
        match core::mem::take(self) {
            LockedSide::None => {}
            LockedSide::Responder(SideGuard { side, before, .. }) => {
                qp.count_responder(&before, side.responder.counters());
            }
            LockedSide::Requester(SideGuard { side, before, .. }) => {
                qp.count_requester(&before, side.requester.counters(), &side.path);
            }
        }
    }

    fn responder(
        &mut self,
        qp: &'a Qp,
        incoming: &RxPacket<'_>,
    ) -> Option<&mut SideGuard<'a, RecvSide, ResponderCounters>> {
        if !matches!(self, LockedSide::Responder(_)) {
            self.unlock(qp);
            *self = LockedSide::Responder(SideGuard::lock(&qp.recv, incoming, |side| {
                (*side.responder.counters(), &side.path)
            }));
        }
        match self {
            LockedSide::Responder(side) => Some(side),
            _ => None,
        }
    }

    fn requester(
        &mut self,
        qp: &'a Qp,
        incoming: &RxPacket<'_>,
    ) -> Option<&mut SideGuard<'a, SendSide, RequesterCounters>> {
        if !matches!(self, LockedSide::Requester(_)) {
            self.unlock(qp);
            *self = LockedSide::Requester(SideGuard::lock(&qp.send, incoming, |side| {
                (*side.requester.counters(), &side.path)
            }));
        }
        match self {
            LockedSide::Requester(side) => Some(side),
            _ => None,
        }
    }
}

impl QpBatch<'_> {
    /// Ends the batch: unlocks the side and returns the remaining work.
    pub(super) fn finish(mut self, qp: &Qp) -> DeferredWork {
        self.locked_side.unlock(qp);
        if self.packets != 0 {
            qp.with_counters(|counters| {
                counters.add(Counter::ReceivedPackets, self.packets);
                counters.add(Counter::ReceivedBytes, self.bytes);
            });
        }
        self.deferred
    }
}

impl Qp {
    /// Handles a single packet.
    pub(crate) fn receive_one(
        this: ArcBorrow<'_, Self>,
        incoming: &RxPacket<'_>,
        rcu: &rcu::Guard,
    ) {
        let mut batch = QpBatch::default();
        Self::receive(this, incoming, &mut batch, rcu);
        Self::finish_rx(this, batch);
    }

    /// Handles a packet, possibly one of a batch with the same addresses. The caller must pass
    /// `batch` to [`Qp::finish_rx`] at the end of the batch, before it does anything else.
    pub(crate) fn receive<'a>(
        this: ArcBorrow<'a, Self>,
        incoming: &RxPacket<'_>,
        batch: &mut QpBatch<'a>,
        rcu: &rcu::Guard,
    ) {
        batch.packets = batch.packets.wrapping_add(incoming.packet.packets.into());
        batch.bytes = batch.bytes.wrapping_add(incoming.ip_len());
        if incoming.packet.operation == Operation::Cnp {
            batch.locked_side.unlock(&this);
            Self::receive_cnp(this, incoming);
        } else if incoming.packet.is_response() {
            Self::receive_response(this, incoming, batch, rcu);
        } else {
            Self::receive_request(this, incoming, batch, rcu);
        }
        if batch.deferred.requests.fatal || batch.deferred.responses.fatal {
            // The flushed work requests complete before any later packet is handled.
            incoming.vector().release();
            Self::finish_rx(this, core::mem::take(batch));
        }
    }

    /// Returns how many packets may be taken as a burst that starts with this one.
    pub(crate) fn accepts_burst<'a>(
        this: ArcBorrow<'a, Self>,
        incoming: &RxPacket<'_>,
        batch: &mut QpBatch<'a>,
    ) -> u32 {
        // Packets with an ECN mark must be examined one by one.
        if is_marked(incoming.tos()) {
            return 1;
        }
        let (qp, packet) = (arc_borrow_ref(this), incoming.packet);
        let max = if packet.is_response() {
            let locked = batch.locked_side.requester(qp, incoming);
            let locked =
                locked.filter(|side| side.from_peer && side.side.reorder_buffer.is_empty());
            locked.map(|SideGuard { side, .. }| side.requester.accepts_burst(&side.slots, packet))
        } else {
            let locked = batch.locked_side.responder(qp, incoming);
            let locked =
                locked.filter(|side| side.from_peer && side.side.reorder_buffer.is_empty());
            locked.map(|SideGuard { side, .. }| side.responder.accepts_burst(packet))
        };
        max.unwrap_or(1)
    }

    /// Handles an ACK or response.
    fn receive_response<'a>(
        this: ArcBorrow<'a, Self>,
        incoming: &RxPacket<'_>,
        batch: &mut QpBatch<'a>,
        rcu: &rcu::Guard,
    ) {
        let qp = arc_borrow_ref(this);
        let QpBatch {
            deferred,
            locked_side,
            ..
        } = batch;
        let completions = &mut deferred.send;
        let Some(locked) = locked_side
            .requester(qp, incoming)
            .filter(|side| side.from_peer)
        else {
            qp.count(Counter::Discarded);
            return;
        };
        deferred.intact |= locked.unconfirmed && incoming.is_in_local_gso_packet();
        let side = &mut *locked.side;
        let cnp = PendingCnp::of(incoming, &side.path, side.source_port, || {
            side.requester.cnp(incoming.packet)
        });
        let now = incoming.now;
        side.reorder_buffer.expire(now);
        let mut handle = |side: &mut SendSide, incoming: &RxPacket<'_>| {
            let ctx = EventCtx::of(incoming, rcu);
            side.act(qp, ctx, None, completions, |requester, slots, env| {
                requester.handle_packet(slots, now, incoming.packet, env)
            })
        };
        let mut outcome = handle(side, incoming);
        if outcome.buffer {
            let expected = side.requester.expected_psn();
            side.reorder_buffer.insert(incoming, expected);
        }
        while let Some(kept) = side.next_buffered() {
            let Some((psn, more)) =
                incoming.with_kept(&kept, |again| (again.packet.psn(), handle(side, again)))
            else {
                continue;
            };
            outcome.merge(more);
            if more.buffer {
                let expected = side.requester.expected_psn();
                side.reorder_buffer
                    .insert_kept(kept, expected, psn, now, incoming.vector());
            } else {
                kept.consume();
            }
        }
        if !side.reorder_buffer.is_empty() {
            Self::arm_expiry(this, &side.reorder_buffer);
            let ctx = EventCtx::of(incoming, rcu);
            outcome.merge(
                side.act(qp, ctx, None, completions, |requester, slots, env| {
                    requester.on_buffered(slots, now, true, env)
                }),
            );
        }
        if outcome.sqe {
            qp.state.fail_send_queue();
        }
        deferred.responses.merge(outcome);
        deferred.any_responses = true;
        if let Some(cnp) = cnp {
            Self::send_cnp_unlocked(qp, cnp, incoming, locked_side, rcu);
        }
    }

    /// Handles a request.
    fn receive_request<'a>(
        this: ArcBorrow<'a, Self>,
        incoming: &RxPacket<'_>,
        batch: &mut QpBatch<'a>,
        rcu: &rcu::Guard,
    ) {
        let qp = arc_borrow_ref(this);
        let QpBatch {
            deferred,
            locked_side,
            ..
        } = batch;
        let locked = locked_side.responder(qp, incoming);
        let Some(locked) = locked.filter(|side| side.from_peer || !qp.qp_type.is_connected())
        else {
            qp.count(Counter::Discarded);
            return;
        };
        deferred.intact |= locked.unconfirmed && incoming.is_in_local_gso_packet();
        if !deferred.any_requests {
            deferred.any_requests = true;
            deferred.ack = qp.delayed_ack.on_request(incoming.now);
        }
        let (completions, any_new) = (&mut deferred.recv, &mut deferred.any_new);
        let send_now = deferred.ack != AckAction::Defer;
        let side = &mut *locked.side;
        side.loopback = incoming.is_loopback();
        let cnp = PendingCnp::of(incoming, &side.path, side.source_port, || {
            side.responder.cnp(incoming.packet)
        });
        let now = incoming.now;
        side.expire_buffered(now);
        let mut handle = |side: &mut RecvSide, incoming: &RxPacket<'_>| {
            let expected = side.responder.expected_psn();
            let ctx = EventCtx::of(incoming, rcu);
            if send_now && incoming.packet.bth.ackreq && incoming.packet.psn().get() == expected {
                qp.delayed_ack.note_request(now);
            }
            let outcome = side.act(qp, ctx, None, completions, |responder, env| {
                responder.handle_packet(now, incoming.packet, env)
            });
            if side.responder.expected_psn() != expected {
                *any_new = true;
                qp.with_counters(|counters| counters.request(incoming.packet.operation));
            }
            outcome
        };
        let mut outcome = handle(side, incoming);
        if outcome.buffer && qp.recovery == RecoveryMode::Selective {
            let expected = Psn::new(side.responder.expected_psn());
            side.reorder_buffer.insert(incoming, expected);
        }
        let mut taken = false;
        while let Some(kept) = side.next_buffered() {
            taken = true;
            if let Some(more) = incoming.with_kept(&kept, |again| handle(side, again)) {
                outcome.merge(more);
            }
            kept.consume();
        }
        let left = !side.reorder_buffer.is_empty();
        Self::arm_expiry(this, &side.reorder_buffer);
        outcome.merge(side.responder.on_buffered(taken, left));
        deferred.requests.merge(outcome);
        if let Some(cnp) = cnp {
            Self::send_cnp_unlocked(qp, cnp, incoming, locked_side, rcu);
        }
    }

    /// Arms the timer for the expiry of buffered packets. The caller must hold the lock of a side
    /// that still has its path: this keeps destruction, which cancels the timer, from completing
    /// meanwhile.
    fn arm_expiry(this: ArcBorrow<'_, Self>, buffer: &ReorderBuffer) {
        if let Some(expires) = buffer.expires() {
            SoftTimer::<Qp>::arm(this, expires);
        }
    }

    /// Notifies the peer of congestion, with no side locked.
    #[cold]
    fn send_cnp_unlocked(
        qp: &Qp,
        cnp: PendingCnp,
        incoming: &RxPacket<'_>,
        locked_side: &mut LockedSide<'_>,
        rcu: &rcu::Guard,
    ) {
        locked_side.unlock(qp);
        incoming.vector().release();
        qp.send_cnp(cnp, incoming.now, rcu);
    }

    /// Tells the peer, once, that its GSO packets arrive unmodified because it is on this host. The
    /// peer may then omit the ICRCs of payload in page fragments. The caller must hold no lock.
    pub(super) fn confirm_intact(&self, rcu: &rcu::Guard) {
        // Without retransmission, a later change of the path would go unnoticed.
        if !self.is_reliable() {
            return;
        }
        if let Some((path, peer_path)) = self.paths(rcu) {
            path.set_confirmed();
            peer_path.on_intact();
        }
    }

    /// Handles a packet that came without an ICRC and was modified on its way: tells the peer, if
    /// it is on this host and has sent the packet. The caller must hold no lock.
    #[cold]
    pub(crate) fn on_modified_packet(&self, skb: &RxSkb, rcu: &rcu::Guard) {
        if let Some((path, peer_path)) = self.paths(rcu) {
            if path.is_from_peer(skb) {
                peer_path.on_modified();
            }
        }
    }

    /// Returns the path to the peer and the peer's path back, if the peer is on this host.
    fn paths(&self, rcu: &rcu::Guard) -> Option<(Arc<Path>, Arc<Path>)> {
        let of = |qp: &Qp| {
            let side = lock_bh(&qp.recv);
            let path = side.path.clone()?;
            Some((path, side.responder.dest_qpn()))
        };
        let (path, number) = of(self)?;
        let peer = self.device.tables.qps.get(number, rcu)?;
        // The number may belong to a queue pair of another host.
        let (peer_path, peer_number) = of(&peer)?;
        (peer_number == self.number && peer_path.is_reverse_of(&path)).then_some((path, peer_path))
    }
}
