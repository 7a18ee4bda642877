// SPDX-License-Identifier: GPL-2.0

//! Received packets, after [`crate::demux`] has found their queue pair.
//!
//! [`RxBatch::deliver`] has a half of the queue pair handle a packet under its lock, which it keeps
//! from one packet of a batch to the next. A packet whose turn has not come is kept in the half's
//! [`super::reorder_buffer`]. The context that holds the lock when it is due removes it from there.
//! In [`RxBatch::finish`] the half fills a batch of packets before it is unlocked. Then, with
//! nothing locked, the consumer is notified and the batch is sent.

use super::{
    cnp::PendingCnp,
    requester::SendSide,
    responder::RecvSide,
    schedule::{RECV_WORK, SEND_WORK},
    EventCtx, Half, PendingCompletions, Qp,
};
use crate::{
    counters::Counter,
    transport::rx_packet::{parse, RxPacket},
};
use core::mem::take;
use kernel::sync::ArcBorrow;
use linux_rdma::sync::{arc_borrow_ref, lock_bh, BhLocked, BurstGuard};
use rrxe_core::{icrc::LastPrefix, wire::Operation, Increment, Outcome, MAX_HEADER};

/// Work that the packets of a batch, or a timeout, leave to a half.
#[derive(Default)]
pub(crate) struct HalfWork {
    /// The half has handled a packet.
    pub(super) any: bool,
    pub(super) completions: PendingCompletions,
    /// [`Outcome::buffer`] is not used here.
    pub(super) outcome: Outcome,
    /// The packets that the half has to send leave after the others that the softirq receives.
    pub(super) is_deferred: bool,
}

/// Number of bytes that shows a batch to be a full chain, after which others of the same NAPI poll
/// follow at once.
const FULL_CHAIN: u64 = 32 * 1024;

/// The state of a half in a batch.
pub(crate) struct BatchHalf<'a, H: Half> {
    /// At most one half is locked at a time.
    locked: Option<BhLocked<'a, H>>,
    /// If it is locked: the packets come from the peer. All packets of a batch have the same
    /// addresses.
    from_peer: bool,
    work: HalfWork,
}

impl<H: Half> Default for BatchHalf<'_, H> {
    fn default() -> Self {
        Self {
            locked: None,
            from_peer: false,
            work: HalfWork::default(),
        }
    }
}

impl<H: Half> BatchHalf<'_, H> {
    /// Unlocks the half, if it is locked. [`RxBatch::finish`] locks it again if it has something to
    /// send.
    fn unlock(&mut self, qp: ArcBorrow<'_, Qp>) {
        if let Some(half) = self.locked.take() {
            // A packet that was discarded starts no round.
            self.work.outcome.transmit |= self.work.any && half.wants_round();
            Qp::unlock(qp, half);
        }
    }
}

/// A batch of packets received together: the queue pair of the last one, and the deferred work.
pub(crate) struct RxBatch<'a> {
    qp: Option<ArcBorrow<'a, Qp>>,
    pub(super) recv: BatchHalf<'a, RecvSide>,
    pub(super) send: BatchHalf<'a, SendSide>,
    packets: u64,
    /// Bytes of IP packets.
    bytes: u64,
    /// Number of packets with an ECN mark.
    marked: u32,
    /// The notification for the last marked packet.
    cnp: Option<PendingCnp>,
    /// Cache of the ICRC prefix of the previous packet.
    pub(crate) prefix: LastPrefix,
    pub(crate) burst: &'a BurstGuard,
}

impl<'a> RxBatch<'a> {
    pub(crate) fn new(burst: &'a BurstGuard) -> Self {
        Self {
            qp: None,
            recv: BatchHalf::default(),
            send: BatchHalf::default(),
            packets: 0,
            bytes: 0,
            marked: 0,
            cnp: None,
            prefix: LastPrefix::default(),
            burst,
        }
    }

    /// Returns the queue pair of the previous packet, if it has this number.
    #[inline]
    pub(crate) fn last(&self, number: u32) -> Option<ArcBorrow<'a, Qp>> {
        self.qp.filter(|qp| qp.number == number)
    }

    /// Makes `qp` the queue pair of the next packet.
    #[inline]
    fn switch_to(&mut self, qp: ArcBorrow<'a, Qp>) {
        let same = self.qp.is_some_and(|other| core::ptr::eq(&*other, &*qp));
        if !same {
            self.finish();
            self.qp = Some(qp);
        }
    }

    /// Locks the half that handles a packet, and unlocks the other one.
    #[inline]
    fn lock<H: Half>(
        &mut self,
        qp: ArcBorrow<'a, Qp>,
        incoming: &RxPacket<'_>,
    ) -> &mut BatchHalf<'a, H> {
        if H::of_batch(self).locked.is_none() {
            self.unlock(qp);
            let burst = self.burst;
            let half = lock_bh(H::side(arc_borrow_ref(qp)));
            let path = half.tx().path.as_ref();
            let interfaces = &qp.device.interfaces;
            let path = path.filter(|path| incoming.is_from_peer_of(path, interfaces, burst));
            let from_peer = path.is_some();
            if from_peer && H::IS_RECV {
                half.tx().transport.set(incoming.transport());
            }
            let state = H::of_batch(self);
            state.from_peer = from_peer;
            state.locked = Some(half);
        }
        H::of_batch(self)
    }

    fn unlock(&mut self, qp: ArcBorrow<'_, Qp>) {
        self.recv.unlock(qp);
        self.send.unlock(qp);
    }

    /// Returns how many packets `qp` accepts as a burst that starts with this one.
    pub(crate) fn accepts_burst(&mut self, qp: ArcBorrow<'a, Qp>, incoming: &RxPacket<'_>) -> u32 {
        // Packets with an ECN mark must be examined one by one.
        if incoming.is_marked() {
            return 1;
        }
        self.switch_to(qp);
        if incoming.packet.is_response() {
            self.burst_of::<SendSide>(qp, incoming)
        } else {
            self.burst_of::<RecvSide>(qp, incoming)
        }
    }

    #[inline]
    fn burst_of<H: Half>(&mut self, qp: ArcBorrow<'a, Qp>, incoming: &RxPacket<'_>) -> u32 {
        let state = self.lock::<H>(qp, incoming);
        let half = state.locked.as_mut().filter(|_| state.from_peer);
        half.map_or(1, |half| {
            if half.reorder_buffer().is_empty() {
                half.accepts_burst(incoming.packet)
            } else {
                1
            }
        })
    }

    /// Handles a packet, or a burst, that arrived for `qp`. Finishes the batch of another queue
    /// pair.
    pub(crate) fn deliver(&mut self, qp: ArcBorrow<'a, Qp>, incoming: &RxPacket<'_>) {
        self.switch_to(qp);
        self.packets = self.packets.wrapping_add(incoming.packet.packets.into());
        self.bytes = self.bytes.wrapping_add(incoming.ip_len());
        if incoming.packet.operation == Operation::Cnp {
            self.unlock(qp);
            Qp::receive_cnp(qp, incoming, self.burst);
        } else if incoming.packet.is_response() {
            self.deliver_to::<SendSide>(qp, incoming);
        } else {
            self.deliver_to::<RecvSide>(qp, incoming);
        }
    }

    /// Handles a packet in the half that it is for.
    #[inline]
    fn deliver_to<H: Half>(&mut self, qp: ArcBorrow<'a, Qp>, incoming: &RxPacket<'_>) {
        let burst = self.burst;
        let state = self.lock::<H>(qp, incoming);
        let is_accepted = state.from_peer || H::IS_RECV && !qp.qp_type.is_connected();
        let (Some(half), work) = (&mut state.locked, &mut state.work) else {
            return;
        };
        if !is_accepted {
            qp.count(Counter::Discarded);
            return;
        }
        let half: &mut H = half;
        let cnp = PendingCnp::of(incoming, half);
        half.expire_buffered(incoming.now);
        let mut ctx = EventCtx::of(&qp, incoming, burst);
        let mut outcome = half.handle_packet(incoming, ctx, &mut work.completions);
        // The core is also told if the buffer has become empty (of two packets with one PSN that
        // differ, none is kept), or if there is no memory for the packet.
        let has_buffered = outcome.buffer || !half.reorder_buffer().is_empty();
        if let Some(kept) = outcome.buffer.then(|| incoming.keep()).flatten() {
            let (expected, psn) = (half.expected_psn(), incoming.packet.psn());
            half.reorder_buffer().insert(kept, expected, psn, ctx.now);
        }
        if has_buffered {
            ctx.incoming = None;
            outcome.merge(deliver_buffered(half, ctx, work));
        }
        if outcome.sqe {
            qp.state.fail_send_queue();
        }
        work.any = true;
        work.outcome.merge(outcome);
        if cnp.is_some() {
            self.marked.increment();
            self.cnp = cnp;
        }
        if outcome.fatal {
            // The queue pair enters the Error state before any later packet is handled.
            self.finish();
        }
    }

    /// Finishes the deferred work. The caller must do this before it returns to the stack, and
    /// before anything else that needs a lock.
    pub(crate) fn finish(&mut self) {
        let Some(qp) = self.qp.take() else {
            return;
        };
        if let Some(cnp) = self.cnp.take() {
            self.unlock(qp);
            qp.send_cnp(&cnp, take(&mut self.marked), self.burst);
        }
        let (packets, bytes) = (take(&mut self.packets), take(&mut self.bytes));
        qp.with_counters(|counters| {
            counters.add(Counter::ReceivedPackets, packets);
            counters.add(Counter::ReceivedBytes, bytes);
        });
        if self.recv.work.any && qp.moderation_events.request_seen() {
            // The peer may be waiting for a reply: the send side looks for messages that were
            // posted without a doorbell.
            self.send.work.outcome.transmit = true;
        }
        let (send, recv) = (&mut self.send, &mut self.recv);
        let is_followed = bytes >= FULL_CHAIN;
        (send.work.is_deferred, recv.work.is_deferred) = (is_followed, is_followed);
        if send.locked.is_some() {
            Qp::finish_half::<SendSide, SEND_WORK>(qp, send.locked.take(), take(&mut send.work));
            Qp::finish_half::<RecvSide, RECV_WORK>(qp, None, take(&mut recv.work));
        } else {
            Qp::finish_half::<RecvSide, RECV_WORK>(qp, recv.locked.take(), take(&mut recv.work));
            Qp::finish_half::<SendSide, SEND_WORK>(qp, None, take(&mut send.work));
        }
        Qp::report_events(qp);
    }
}

/// Handles the buffered packets that are due.
#[cold]
fn deliver_buffered<H: Half>(half: &mut H, ctx: EventCtx<'_>, work: &mut HalfWork) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some(kept) = half.next_buffered() {
        let datagram = kept.datagram();
        let Some(packet) = parse(&datagram, &mut [0; MAX_HEADER]) else {
            continue;
        };
        let again = RxPacket::of(&packet, datagram, None, ctx.now);
        let again_ctx = EventCtx::of(ctx.qp, &again, ctx.burst);
        let more = half.handle_packet(&again, again_ctx, &mut work.completions);
        outcome.merge(more);
        if more.buffer {
            let (expected, psn) = (half.expected_psn(), packet.psn());
            half.reorder_buffer().insert(kept, expected, psn, ctx.now);
        } else {
            kept.consume();
        }
    }
    outcome.merge(half.on_buffered(ctx, &mut work.completions));
    outcome
}

impl Qp {
    /// Handles a single packet.
    pub(crate) fn receive_one(
        this: ArcBorrow<'_, Self>,
        incoming: &RxPacket<'_>,
        burst: &BurstGuard,
    ) {
        let mut batch = RxBatch::new(burst);
        batch.deliver(this, incoming);
        batch.finish();
    }
}
