// SPDX-License-Identifier: GPL-2.0

//! Scheduling of the two sides of a queue pair.

use super::{
    delayed_ack::AckAction, requester::SendSide, responder::RecvSide, state::Failed, EventCtx,
    PendingCompletions, Qp, QpBatch,
};
use crate::{
    counters::Counter, cq::Cq, limits::path, rx_packet::RxPacket, serial_gate::SerialGate,
    tx::TxBatch, EVENT_QUEUE,
};
use kernel::{
    sync::{rcu, Arc, ArcBorrow},
    workqueue::{self, WorkItem},
};
use linux_rdma::{
    net::{TxQueue, XmitStats},
    rdma::{qp::QpState, QpEvent},
    sync::{
        irqs_disabled, lock_bh, BhGuard, BhLocked, SerialQueue, SerialTask, SerialWork, SoftTimer,
        TimerCallback,
    },
    time::monotonic_ns,
};
use rrxe_core::TxPacket;

/// Identifiers of the work items of a queue pair.
pub(super) const SEND_WORK: u64 = 0;
pub(super) const RECV_WORK: u64 = 1;
pub(super) const EVENT_WORK: u64 = 2;

/// Events, in the order of their bits in `Qp::event_work`.
const EVENTS: [QpEvent; 6] = [
    QpEvent::Fatal,
    QpEvent::RequestError,
    QpEvent::AccessError,
    QpEvent::CommunicationEstablished,
    QpEvent::SendQueueDrained,
    QpEvent::LastWqeReached,
];

/// Work that remains after a batch.
#[derive(Default)]
struct Round {
    more: bool,
    fatal: bool,
    /// More packets are ready, but the local queue of this host has no room for them.
    blocked: bool,
}

/// Result of filling a batch of the send side.
#[derive(Default)]
struct Filled {
    round: Round,
    deadline: Option<u64>,
    /// The send queue has drained, and the consumer must be told.
    drained: bool,
    /// The program is streaming, and there was nothing to do for it.
    waiting: bool,
    /// The batch includes the delayed ACK, after a message.
    ack_sent: bool,
}

impl<'a> EventCtx<'a> {
    /// Returns the context of an event without a packet, at the current time.
    fn now(rcu: &'a rcu::Guard) -> Self {
        Self {
            rcu,
            now: monotonic_ns(),
            incoming: None,
        }
    }

    /// Returns the context of a received packet.
    pub(super) fn of(incoming: &'a RxPacket<'a>, rcu: &'a rcu::Guard) -> Self {
        Self {
            rcu,
            now: incoming.now,
            incoming: Some(incoming),
        }
    }
}

impl Qp {
    /// Runs the send side: takes work requests from the ring and sends packets. May be called from
    /// any context. A softirq does the work if interrupts are disabled, since the network stack
    /// can't be entered then, and if `LoopbackBatch` deliveries are nested too deeply, to bound the
    /// use of the kernel stack.
    pub(crate) fn kick_send(this: ArcBorrow<'_, Self>) {
        if !this.send_gate.try_enter() {
            return;
        }
        if irqs_disabled() || this.device.is_deeply_nested() {
            Self::send_later(this);
        } else {
            Self::send_rounds(this);
        }
    }

    /// Runs the receive side: sends ACKs and responses, and flushes receive work requests in the
    /// Error state. May be called from any context. A softirq does the work if interrupts are
    /// disabled, because the consumer may hold locks that a softirq takes, and if `LoopbackBatch`
    /// deliveries are nested too deeply.
    pub(crate) fn kick_recv(this: ArcBorrow<'_, Self>) {
        if !this.recv_gate.try_enter() {
            return;
        }
        if irqs_disabled() || this.device.is_deeply_nested() {
            Self::recv_later(this);
        } else {
            Self::recv_rounds(this);
        }
    }

    /// Continues the send side in a softirq, which stays in the [`SerialGate`].
    fn send_later(this: ArcBorrow<'_, Self>) {
        // Only the owner of the [`SerialGate`] enqueues the work item, so it can't be queued
        // already.
        let _ = workqueue::system_bh().enqueue::<Arc<Self>, SEND_WORK>(this.into());
    }

    /// Continues the receive side in a softirq, which stays in the [`SerialGate`].
    fn recv_later(this: ArcBorrow<'_, Self>) {
        let _ = workqueue::system_bh().enqueue::<Arc<Self>, RECV_WORK>(this.into());
    }

    /// Runs rounds of a side until nothing is left to do, then leaves its [`SerialGate`]. If the
    /// budget is used up first, `later` continues.
    fn rounds(
        this: ArcBorrow<'_, Self>,
        gate: &SerialGate,
        round: impl Fn(ArcBorrow<'_, Self>) -> Round,
        later: impl FnOnce(ArcBorrow<'_, Self>),
    ) {
        for _ in 0..path::BATCHES {
            let round = round(this);
            if round.fatal {
                Self::enter_error(this);
            }
            if !round.more && gate.try_leave() {
                if round.blocked {
                    this.local.wait(this.into());
                }
                return;
            }
        }
        later(this);
    }

    fn send_rounds(this: ArcBorrow<'_, Self>) {
        Self::rounds(this, &this.send_gate, Self::send_round, Self::send_later);
    }

    /// Passes packets to the network stack and counts them.
    pub(crate) fn transmit(&self, queue: &mut TxQueue) -> XmitStats {
        if queue.is_empty() {
            return XmitStats::default();
        }
        let stats = queue.xmit_all();
        self.with_counters(|counters| {
            counters.add(Counter::SentPackets, stats.sent.into());
            counters.add(Counter::SentBytes, stats.bytes);
            counters.add(Counter::SendErrors, stats.dropped.into());
        });
        stats
    }

    /// Sends a batch, and counts its packets that may be queued on this host. The caller must hold
    /// neither the send lock nor any lock that the receiver of the batch takes.
    #[inline]
    fn send_batch(&self, batch: &mut TxBatch) {
        if batch.owned != 0 {
            self.local.queued(batch.owned);
        }
        let stats = self.transmit(&mut batch.queue);
        if batch.owned != 0 && stats.no_room != 0 {
            lock_bh(&self.send).requester.dropped_locally();
        }
        if let Some(loopback) = &batch.loopback {
            let (packets, bytes) = self.device.deliver(loopback);
            self.with_counters(|counters| {
                counters.add(Counter::SameDevice, packets);
                counters.add(Counter::SentPackets, packets);
                counters.add(Counter::SentBytes, bytes);
            });
        }
    }

    fn send_round(this: ArcBorrow<'_, Self>) -> Round {
        let qp = &*this;
        let mut batch = TxBatch::default();
        let mut completions = PendingCompletions::default();
        let _bh = BhGuard::new();
        let (side, claimed) = qp.lock_send();
        let gone = claimed.as_ref().is_some_and(Option::is_none);
        let acknowledgement = claimed.flatten();
        let filled = qp.fill(side, acknowledgement.as_ref(), &mut batch, &mut completions);
        let mut round = filled.round;
        qp.send_batch(&mut batch);
        if filled.ack_sent {
            qp.count(Counter::PiggybackedAcks);
        }
        if gone {
            // The receive side has replaced the ACK with another response.
            Self::kick_recv(this);
        }
        if let Some(deadline) = filled.deadline {
            SoftTimer::<Qp>::arm(this, deadline);
        }
        if filled.drained {
            qp.raise(QpEvent::SendQueueDrained);
            Self::report_events(this);
        }
        round.fatal |= Self::report(this, completions, &qp.send_cq);
        if qp.is_user && !qp.is_polled && !filled.waiting {
            qp.moderation_events.round_ended(monotonic_ns());
        }
        round
    }

    /// Sends the packets that waited for room in the local queue.
    pub(crate) fn has_room(this: ArcBorrow<'_, Self>) {
        this.local.admit();
        Self::kick_recv(this);
        this.local.admit();
        Self::kick_send(this);
    }

    /// Locks the send side for a round. Takes the delayed ACK from the receive side, if there is
    /// one, to send it in this round. Returns `Some(None)` if the receive side has something else
    /// to send by now.
    ///
    /// The send lock is taken before the receive lock is released. [`Qp::end_recv`] takes pending
    /// ACKs from the receive side, and only after that may the send side lose its path. An ACK is
    /// therefore always on a side that can still send it. No context takes the receive lock while
    /// it holds the send lock.
    #[inline]
    fn lock_send(&self) -> (BhLocked<'_, SendSide>, Option<Option<TxPacket>>) {
        if self.delayed_ack.deadline().is_some() {
            let mut recv = lock_bh(&self.recv);
            if self.delayed_ack.claim() {
                let acknowledgement = recv.responder.take_acknowledgement();
                return (lock_bh(&self.send), Some(acknowledgement));
            }
        }
        (lock_bh(&self.send), None)
    }

    /// Takes work requests and fills a batch, followed by `acknowledgement`. Unlocks the side.
    #[inline(always)]
    fn fill(
        &self,
        mut side: BhLocked<'_, SendSide>,
        acknowledgement: Option<&TxPacket>,
        batch: &mut TxBatch,
        completions: &mut PendingCompletions,
    ) -> Filled {
        let mut filled = Filled::default();
        let rcu = rcu::read_lock();
        let ctx = EventCtx::now(&rcu);
        let mut idle = true;
        match side.fetch(self) {
            Ok(fetched) => {
                if !fetched.is_empty() {
                    idle = false;
                    self.delayed_ack.on_send(ctx.now);
                }
                side.moderate_doorbells(self, fetched, ctx.now);
            }
            Err(_) => filled.round.fatal = true,
        }
        let progress = side.with(
            self,
            ctx,
            Some(batch),
            completions,
            |requester, slots, env| {
                let budget = path::BATCH.min(env.room());
                let progress = requester.poll_transmit(slots, ctx.now, budget, env);
                filled.round.blocked =
                    progress.more && progress.sent == budget && budget < path::BATCH;
                if let Some(packet) = acknowledgement {
                    env.send_ack(packet);
                }
                progress
            },
        );
        filled.ack_sent = acknowledgement.is_some() && progress.sent != 0;
        filled.round.fatal |= progress.fatal;
        filled.round.more =
            !filled.round.blocked && (progress.more || (!filled.round.fatal && side.has_backlog()));
        if progress.sqe {
            self.state.fail_send_queue();
        }
        if side.notify_drained && side.requester.is_drained(&side.slots) {
            side.notify_drained = false;
            filled.drained = true;
        }
        filled.deadline = side.next_timeout();
        filled.waiting = idle && side.is_streaming();
        if side.requester.is_throttled() {
            self.count(Counter::Throttled);
        }
        filled
    }

    fn recv_rounds(this: ArcBorrow<'_, Self>) {
        Self::rounds(this, &this.recv_gate, Self::recv_round, Self::recv_later);
    }

    fn recv_round(this: ArcBorrow<'_, Self>) -> Round {
        let qp = &*this;
        let mut batch = TxBatch::default();
        let mut completions = PendingCompletions::default();
        let mut blocked = false;
        let (progress, deadline) = {
            let rcu = rcu::read_lock();
            let ctx = EventCtx::now(&rcu);
            let mut side = lock_bh(&qp.recv);
            let progress = side.with(
                qp,
                ctx,
                Some(&mut batch),
                &mut completions,
                |responder, env| {
                    let progress = responder.poll_transmit(ctx.now, path::BATCH, env);
                    blocked = progress.more && env.is_full();
                    progress
                },
            );
            // Another CPU may have set the Error state and not yet called `end_recv`, so pending
            // ACKs are sent before the flush discards them.
            if qp.state() == QpState::Error && !progress.more {
                side.flush(qp, ctx, &mut completions);
            }
            (progress, side.responder.next_timeout())
        };
        qp.send_batch(&mut batch);
        if let Some(deadline) = deadline {
            qp.count(Counter::Throttled);
            SoftTimer::<Qp>::arm(this, deadline);
        }
        let overflow = Self::report(this, completions, &qp.recv_cq);
        Round {
            more: progress.more && !blocked,
            fatal: progress.fatal || overflow,
            blocked,
        }
    }

    /// Finishes a batch of received packets: reports completions, sends, reports events.
    pub(crate) fn finish_rx(this: ArcBorrow<'_, Self>, batch: QpBatch<'_>) {
        let qp = &*this;
        let deferred = batch.finish(qp);
        if deferred.intact {
            qp.confirm_intact(&rcu::read_lock());
        }
        if deferred.any_responses {
            let overflow = Self::report(this, deferred.send, &qp.send_cq);
            if deferred.responses.fatal || overflow {
                Self::enter_error(this);
            }
            if deferred.responses.transmit || Self::has_send_work(this) {
                Self::kick_send(this);
            }
        }
        if deferred.any_requests && qp.moderation_events.request_seen() {
            // The peer may be waiting for the answer to its request.
            Self::end_stream(this);
        }
        let overflow = Self::report(this, deferred.recv, &qp.recv_cq);
        if deferred.any_requests {
            Self::respond(
                this,
                deferred.requests.transmit,
                deferred.any_new,
                deferred.ack,
            );
        }
        if deferred.requests.fatal || overflow {
            Self::enter_error(this);
        }
        Self::report_events(this);
    }

    /// Returns whether the send side must run although nothing is ready to transmit: an ACK may
    /// have freed slots for work requests in the ring, or drained the queue. Otherwise, arms the
    /// timer and ends the round.
    fn has_send_work(this: ArcBorrow<'_, Self>) -> bool {
        let qp = &*this;
        let deadline = {
            let side = lock_bh(&qp.send);
            if side.has_backlog() || side.notify_drained || side.is_streaming() {
                return true;
            }
            side.next_timeout()
        };
        if let Some(deadline) = deadline {
            SoftTimer::<Qp>::arm(this, deadline);
        }
        if qp.is_user && !qp.is_polled {
            qp.moderation_events.round_ended(monotonic_ns());
        }
        false
    }

    /// Sends the pending ACKs and responses, except for an ACK that is deferred.
    fn respond(this: ArcBorrow<'_, Self>, transmit: bool, any_new: bool, ack: AckAction) {
        let qp = &*this;
        let defer = ack == AckAction::Defer;
        if !defer && !transmit && ack != AckAction::FlushDeferred {
            return;
        }
        // The deferred ACK may also belong to another request, which another CPU has received
        // since.
        if defer || qp.delayed_ack.deadline().is_some() {
            let side = lock_bh(&qp.recv);
            // The ACK of a retransmitted request is not deferred.
            let may_defer = !defer || (transmit && any_new);
            let defers = may_defer && side.responder.owes_acknowledgement();
            if let Some(due) = qp.delayed_ack.deadline().filter(|_| defers) {
                drop(side);
                SoftTimer::<Qp>::arm(this, due);
                return;
            }
            let claimed = defer && qp.delayed_ack.claim();
            if !claimed && !side.responder.has_output() {
                return;
            }
        }
        Self::kick_recv(this);
    }

    /// Sends the delayed ACK, if there is one, without waiting for a message.
    pub(crate) fn flush_delayed_ack(this: ArcBorrow<'_, Self>) {
        if this.delayed_ack.claim() {
            Self::kick_recv(this);
        }
    }

    /// Takes the receive side out of the states in which it acknowledges, by calling `end`. First
    /// sends the pending ACKs and responses, in at most `batches` batches. May be called from any
    /// context except hard interrupts.
    ///
    /// Every end of a queue pair leads here: destruction (by its consumer, with its program, with
    /// its device or with the module), the Reset state and the Error state. The consumer may see
    /// the completion of a request before its ACK was sent. If the ACK were dropped, the peer would
    /// retry until its work request fails, although all data has arrived. An ACK may be pending
    /// here because:
    ///
    /// - it is delayed ([`super::delayed_ack`]);
    /// - the CPU that handled the request has released the lock but not sent yet;
    /// - another CPU is inside the `SerialGate`, and has more work marked as pending;
    /// - a softirq work item is inside the `SerialGate`, because `LoopbackBatch` deliveries were
    ///   nested or because a budget was used up by READ responses.
    ///
    /// In all of these cases the responder still holds the ACK, so this function takes it from
    /// there. It does not enter the `SerialGate`, because the owner may be the context that this
    /// one has interrupted. Two batches may therefore be reordered; the peer accepts a late
    /// response as long as it waits for it. The last batch is filled, and the side ended, under one
    /// hold of the lock: no request is executed in between. A filled batch is sent even if the
    /// queue pair is gone, and [`Qp::lock_send`] keeps an ACK that is sent with an answer.
    ///
    /// This function neither fails nor waits. A packet is lost, as on a wire, if there is no memory
    /// for it or if its network device is gone. READ responses beyond `batches`, and everything
    /// after them, are not sent. If the wire loses an ACK after this, the peer's work request
    /// fails, as it does with hardware: a queue pair answers nothing in the Reset and Error states
    /// (IBA 10.3.1).
    pub(super) fn end_recv<R>(
        this: ArcBorrow<'_, Self>,
        batches: u32,
        end: impl FnOnce(&mut RecvSide, EventCtx<'_>, &mut PendingCompletions) -> R,
    ) -> R {
        let _ = this.delayed_ack.claim();
        for _ in 1..batches {
            if !Self::last_round(this, |more, _, _, _| more) {
                break;
            }
        }
        Self::last_round(this, |_, side, ctx, completions| {
            end(side, ctx, completions)
        })
    }

    /// Fills a batch with pending ACKs and responses, and sends it. Calls `then` before the side is
    /// unlocked; the first argument of `then` tells whether more is pending.
    fn last_round<R>(
        this: ArcBorrow<'_, Self>,
        then: impl FnOnce(bool, &mut RecvSide, EventCtx<'_>, &mut PendingCompletions) -> R,
    ) -> R {
        let qp = &*this;
        let mut batch = TxBatch::default();
        let mut completions = PendingCompletions::default();
        let result = {
            let rcu = rcu::read_lock();
            let ctx = EventCtx::now(&rcu);
            let mut side = lock_bh(&qp.recv);
            // Each `LoopbackBatch` is delivered by a call from the sender. If these calls are
            // nested too deeply, the packets go through the network stack, which queues them.
            side.loopback &= !qp.device.is_deeply_nested();
            side.responder.forget_rate();
            let progress = side.with(
                qp,
                ctx,
                Some(&mut batch),
                &mut completions,
                |responder, env| responder.poll_transmit(ctx.now, path::BATCH, env),
            );
            then(progress.more, &mut side, ctx, &mut completions)
        };
        qp.send_batch(&mut batch);
        // A completion queue that overflows now loses only flushed completions; the queue pair has
        // ended.
        let _ = completions.report(&qp.recv_cq);
        result
    }

    /// Ends a stream: the program must ring the doorbell again for each batch. Sends the work
    /// requests that it posted without one.
    pub(super) fn end_stream(this: ArcBorrow<'_, Self>) {
        let ended = lock_bh(&this.send).end_stream();
        if ended {
            Self::kick_send(this);
        } else if this.is_polled {
            Self::doorbell(this);
        }
    }

    /// Polls the send ring after a doorbell from the program.
    pub(crate) fn doorbell(this: ArcBorrow<'_, Self>) {
        // In earlier states the ring is not read.
        if this.state() >= QpState::Rts {
            Self::kick_send(this);
            Self::report_events(this);
        }
    }

    /// Enters the Error state: sends pending ACKs and responses, and completes all outstanding work
    /// requests as flushed, in order. May be called from any context except hard interrupts.
    pub(crate) fn enter_error(this: ArcBorrow<'_, Self>) {
        Self::enter_error_within(this, path::BATCHES);
    }

    /// Enters the Error state. Sends at most `batches` batches of pending ACKs and responses. See
    /// [`Qp::enter_error`].
    pub(super) fn enter_error_within(this: ArcBorrow<'_, Self>, batches: u32) {
        let qp = &*this;
        let failed = qp.state.fail();

        let mut completions = PendingCompletions::default();
        {
            let rcu = rcu::read_lock();
            let ctx = EventCtx::now(&rcu);
            let mut side = lock_bh(&qp.send);
            // The consumer's reset changes the state first and then resets each side under its
            // lock. Checking the state here keeps a reset side as it is.
            if qp.state() == QpState::Error {
                side.reorder_buffer.clear();
                side.end_stream();
                side.with(qp, ctx, None, &mut completions, |requester, slots, env| {
                    requester.enter_error(slots, env)
                });
            }
        }
        // A completion queue that overflows now loses only flushed completions; the queue pair has
        // ended.
        let _ = completions.report(&qp.send_cq);
        Self::end_recv(this, batches, |side, ctx, completions| {
            if qp.state() == QpState::Error {
                side.reorder_buffer.clear();
                side.flush(qp, ctx, completions);
            }
        });
        if failed == Failed::Now && qp.srq.is_some() {
            // After the completion of the receive work request that the queue pair had taken
            // (J-15).
            qp.raise(QpEvent::LastWqeReached);
            Self::report_events(this);
        }
        // Flushes the work requests that are still in the send ring.
        Self::kick_send(this);
    }

    /// Records an event. [`Qp::report_events`] reports it.
    pub(crate) fn raise(&self, event: QpEvent) {
        if let Some(bit) = EVENTS.iter().position(|&e| e == event) {
            self.event_work.mark(1 << bit);
        }
    }

    /// Notifies the consumer of completions. Returns true if a completion was lost, which is fatal
    /// to the queue pair. The caller must hold no lock.
    fn report(this: ArcBorrow<'_, Self>, completions: PendingCompletions, cq: &Arc<Cq>) -> bool {
        let lost = completions.report(cq);
        if lost && this.state() != QpState::Error {
            // A local work queue catastrophic error (IBA 11.6.3), which no completion can report.
            this.raise(QpEvent::Fatal);
            Self::report_events(this);
        }
        lost
    }

    /// Starts to report the recorded events. The caller must hold no lock.
    pub(crate) fn report_events(this: ArcBorrow<'_, Self>) {
        if this.event_work.is_marked() {
            SerialWork::<Self, EVENT_WORK>::queue(this, 0);
        }
    }
}

impl WorkItem<SEND_WORK> for Qp {
    type Pointer = Arc<Qp>;
    fn run(this: Arc<Qp>) {
        Self::send_rounds(this.as_arc_borrow());
    }
}

impl WorkItem<RECV_WORK> for Qp {
    type Pointer = Arc<Qp>;
    fn run(this: Arc<Qp>) {
        Self::recv_rounds(this.as_arc_borrow());
    }
}

impl SerialTask<EVENT_WORK> for Qp {
    fn queue() -> SerialQueue {
        SerialQueue::Thread(&EVENT_QUEUE)
    }

    fn round(this: ArcBorrow<'_, Self>, raised: u32) -> bool {
        for (bit, event) in EVENTS.iter().enumerate() {
            // The consumer's own transition to RTS also establishes communication.
            let late = *event == QpEvent::CommunicationEstablished && this.state() != QpState::Rtr;
            if raised & 1 << bit != 0 && !late {
                this.target.dispatch(*event);
            }
        }
        false
    }
}

impl TimerCallback for Qp {
    fn expired(this: ArcBorrow<'_, Self>) {
        let qp = &*this;
        let now = monotonic_ns();
        let (ack_expired, again) = qp.delayed_ack.expired(now);
        if let Some(again) = again {
            SoftTimer::<Qp>::arm(this, again);
        }
        let (next, responses_expire) = {
            let mut side = lock_bh(&qp.send);
            side.reorder_buffer.expire(now);
            (side.next_timeout(), side.reorder_buffer.expires())
        };
        match next {
            Some(next) if next <= now => Self::send_side_expired(this),
            Some(next) => SoftTimer::<Qp>::arm(this, next),
            None => {}
        }
        // READ responses may have been paced.
        let (waiting, requests_expire) = {
            let mut side = lock_bh(&qp.recv);
            side.expire_buffered(now);
            (
                side.responder.next_timeout().is_some(),
                side.reorder_buffer.expires(),
            )
        };
        for expires in [responses_expire, requests_expire].into_iter().flatten() {
            SoftTimer::<Qp>::arm(this, expires);
        }
        if ack_expired || waiting {
            Self::kick_recv(this);
        }
    }
}

impl Qp {
    /// Handles a timeout of the send side.
    fn send_side_expired(this: ArcBorrow<'_, Self>) {
        let qp = &*this;
        let mut completions = PendingCompletions::default();
        let outcome = {
            let rcu = rcu::read_lock();
            let ctx = EventCtx::now(&rcu);
            let mut side = lock_bh(&qp.send);
            side.with(qp, ctx, None, &mut completions, |requester, slots, env| {
                if qp.local.is_waiting() {
                    requester.restart_timers(ctx.now);
                }
                requester.handle_timeout(slots, ctx.now, env)
            })
        };
        if Self::report(this, completions, &qp.send_cq) || outcome.fatal {
            Self::enter_error(this);
        }
        Self::kick_send(this);
    }
}
