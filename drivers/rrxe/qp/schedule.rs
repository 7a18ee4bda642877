// SPDX-License-Identifier: GPL-2.0

//! Scheduling of the two sides of a queue pair.

use super::{
    requester::SendSide, responder::RecvSide, rx::HalfWork, EventCtx, Half, PendingCompletions, Qp,
    Round,
};
use crate::{
    counters::Counter,
    limits::path,
    module::{EVENT_QUEUE, FLUSH_QUEUE},
    mr::pager::Resume,
    number_table::NumberTable,
    transport::{
        local_queue::Waiter,
        rx_packet::RxPacket,
        tx::{Transport, TxBatch, TxCtx},
    },
    verbs::cq::Cq,
};
use core::mem::take;
use kernel::sync::{Arc, ArcBorrow};
use linux_rdma::{
    net::{TxQueue, XmitStats},
    rdma::{qp::QpState, QpEvent},
    sync::{
        arc_borrow_ref, irqs_disabled, lock_bh, BhGuard, BhLocked, BurstGuard, ModuleWorkqueue,
        SerialTask, SerialWork, SoftTimer, TimerCallback,
    },
    time::monotonic_ns,
};
use rrxe_core::{requester::MAX_FLUSH, Time};

/// Identifiers of the [`SerialWork`]s of a queue pair.
pub(super) const SEND_WORK: u64 = 0;
pub(super) const RECV_WORK: u64 = 1;
pub(super) const EVENT_WORK: u64 = 2;
pub(super) const TIMER_WORK: u64 = 3;
pub(super) const FLUSH_WORK: u64 = 4;

/// Events, in the order of their bits in `Qp::event_work`.
const EVENTS: [QpEvent; 6] = [
    QpEvent::Fatal,
    QpEvent::RequestError,
    QpEvent::AccessError,
    QpEvent::CommunicationEstablished,
    QpEvent::SendQueueDrained,
    QpEvent::LastWqeReached,
];

impl<'a> EventCtx<'a> {
    /// Returns the context of an event without a packet, at the current time.
    pub(super) fn now(qp: &'a Qp, burst: &'a BurstGuard) -> Self {
        Self {
            qp,
            burst,
            now: Time::from_ns(monotonic_ns()),
            incoming: None,
        }
    }

    /// Returns the part of the context that sending packets needs.
    #[inline]
    pub(super) fn tx(self) -> TxCtx<'a, Qp> {
        let device = &*self.qp.device;
        TxCtx {
            config: &device.config,
            interfaces: &device.interfaces,
            mrs: &device.tables.mrs,
            local: &self.qp.local,
            burst: self.burst,
        }
    }

    /// Returns the context of a received packet.
    pub(super) fn of(qp: &'a Qp, incoming: &'a RxPacket<'a>, burst: &'a BurstGuard) -> Self {
        Self {
            qp,
            burst,
            now: incoming.now,
            incoming: Some(incoming),
        }
    }
}

impl Qp {
    /// Runs the send side: fetches work requests from the ring and sends packets. May be called
    /// from any context.
    pub(crate) fn kick_send(this: ArcBorrow<'_, Self>) {
        Self::kick::<SEND_WORK>(this);
    }

    /// Runs the receive side: sends ACKs and responses, and flushes receive work requests in the
    /// Error state. May be called from any context.
    pub(crate) fn kick_recv(this: ArcBorrow<'_, Self>) {
        Self::kick::<RECV_WORK>(this);
    }

    /// Runs a half. A work item does the work if interrupts are disabled, since the network stack
    /// can't be entered then and the consumer may hold locks that a softirq takes, and if
    /// `LoopbackBatch` deliveries are nested too deeply, to bound the use of the kernel stack.
    fn kick<const WORK: u64>(this: ArcBorrow<'_, Self>)
    where
        Self: SerialTask<WORK>,
    {
        let Some(turn) = SerialWork::<Self, WORK>::start(this) else {
            return;
        };
        if !irqs_disabled() && !this.device.is_deeply_nested() {
            turn.run();
        }
    }

    /// Does a round of a half. Returns whether another one is due.
    fn round<H: Half>(this: ArcBorrow<'_, Self>) -> bool {
        let mut round = Round::default();
        let _bh = BhGuard::new();
        let mut half = lock_bh(H::side(&this));
        half.fill(&this, &mut round);
        Self::unlock(this, half);
        Self::end_round::<H>(this, &mut round)
    }

    /// Arms the timer for the next timeout of a half, and unlocks it. The destruction of a queue
    /// pair cancels the timer only after it has ended both halves, which have no timeout then.
    #[inline]
    pub(super) fn unlock<H: Half>(this: ArcBorrow<'_, Self>, mut half: BhLocked<'_, H>) {
        half.count(&this);
        if let Some(timeout) = half.next_timeout() {
            SoftTimer::<Qp>::arm(this, timeout.ns());
        }
    }

    /// Does what a round leaves to do without the lock. Returns whether another round is due.
    fn end_round<H: Half>(this: ArcBorrow<'_, Self>, round: &mut Round) -> bool {
        let qp = &*this;
        qp.send_batch(&mut round.batch);
        if round.ack_missed && lock_bh(&qp.recv).responder.on_reply_alone() {
            Self::kick_recv(this);
        }
        let lost = Self::report(this, take(&mut round.completions), H::cq(qp));
        if !round.waiting {
            qp.on_round_end::<H>();
        }
        if round.fatal || lost {
            Self::enter_error(this, path::BATCHES);
        }
        Self::report_events(this);
        if round.blocked {
            qp.local.wait(this.into());
        }
        round.more
    }

    /// Finishes a batch of packets, or a timeout, of a half: fills a batch, unlocks the half, and
    /// does what is left without the lock. Locks the half if it is unlocked and has something to
    /// send.
    pub(super) fn finish_half<H: Half, const WORK: u64>(
        this: ArcBorrow<'_, Self>,
        locked: Option<BhLocked<'_, H>>,
        work: HalfWork,
    ) where
        Self: SerialTask<WORK>,
    {
        let qp = arc_borrow_ref(this);
        let (any, mut outcome) = (work.any, work.outcome);
        if !any && !outcome.transmit {
            return;
        }
        let (mut turn, mut round) = (None, None);
        if let Some(mut half) = locked.or_else(|| outcome.transmit.then(|| lock_bh(H::side(qp)))) {
            outcome.transmit |= half.wants_round();
            if outcome.transmit && !outcome.fatal {
                turn = SerialWork::<Self, WORK>::start(this);
            }
            if turn.is_some() && !work.is_deferred && !qp.device.is_deeply_nested() {
                half.fill(qp, round.insert(Round::default()));
            }
            // Otherwise another context does the round, and arms the timer after it, or the Error
            // state ends all timeouts. A timer that is armed before, for a timeout that is due,
            // would expire at once and keep that context from its round if it interrupts it.
            if round.is_some() || !outcome.transmit {
                Self::unlock(this, half);
            } else {
                half.count(qp);
            }
        }
        let lost = Self::report(this, work.completions, H::cq(qp));
        // If there is a turn but no round, the work item takes the turn.
        if let (Some(turn), Some(round)) = (turn, &mut round) {
            let more = Self::end_round::<H>(this, round);
            if let Some(turn) = turn.end_round(more) {
                turn.run();
            }
        } else if any && !outcome.transmit {
            qp.on_round_end::<H>();
        }
        if outcome.fatal || lost {
            Self::enter_error(this, path::BATCHES);
        }
    }

    /// Sends the packets of a round, and counts them. The caller must hold neither the send lock
    /// nor any lock that the receiver takes.
    #[inline]
    fn send_batch(&self, batch: &mut TxBatch) {
        if let Some(loopback) = batch.loopback() {
            let (packets, bytes) = self.deliver(loopback);
            self.with_counters(|counters| {
                counters.add(Counter::SameDevice, packets);
                counters.add(Counter::SentPackets, packets);
                counters.add(Counter::SentBytes, bytes);
            });
        }
        if batch.owned != 0 {
            self.local.queued(batch.owned);
        }
        // A queueing discipline of this host may have been full.
        if self.transmit(&mut batch.queue).queue_full != 0 && batch.owned != 0 {
            lock_bh(&self.send).requester.dropped_locally();
        }
        if batch.lost != 0 {
            self.with_counters(|counters| counters.add(Counter::SendErrors, batch.lost.into()));
        }
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

    /// Records that a round of a half has ended, or was not needed.
    fn on_round_end<H: Half>(&self) {
        if !H::IS_RECV && self.is_moderated() {
            self.moderation_events
                .round_ended(Time::from_ns(monotonic_ns()));
        }
    }

    /// Takes the receive side out of the states in which it acknowledges, by calling `end` once.
    /// First sends the pending ACKs and responses, in at most `batches` batches; READ responses
    /// beyond that, and everything after them, are not sent. Never waits. May be called from any
    /// context except hard interrupts.
    ///
    /// Every end of a queue pair leads here: destruction, the Reset state and the Error state. The
    /// consumer may see the completion of a request before its ACK was sent. If the ACK were
    /// dropped, the peer would retry until its work request fails, although all data has arrived.
    /// The responder still holds an ACK that is delayed, or that the context or the softirq that
    /// runs the receive side has not sent yet. So this function removes it from there.
    ///
    /// It does not run the [`SerialWork`], whose owner may be the context that this one has
    /// interrupted. Two batches may therefore be reordered; the peer accepts a late response as
    /// long as it waits for it. The last batch is filled, and the side ended, under one hold of the
    /// lock: no request is executed in between. If the wire loses an ACK after this, the peer's
    /// work request fails, as it does with hardware (IBA 10.3.1).
    pub(super) fn end_recv(
        this: ArcBorrow<'_, Self>,
        batches: u32,
        mut end: impl FnMut(&mut RecvSide, EventCtx<'_>, &mut PendingCompletions),
    ) {
        let qp = arc_borrow_ref(this);
        for left in (0..batches).rev() {
            let mut round = Round::default();
            let is_last = {
                let mut side = lock_bh(&qp.recv);
                // Each `LoopbackBatch` is delivered by a call from the sender. If these calls are
                // nested too deeply, the packets go through the network stack, which queues them.
                if qp.device.is_deeply_nested() {
                    side.tx.transport.set(Transport::Stack);
                }
                // A failed responder has nothing to send, and `round` flushes its queue.
                if !side.responder.is_failed() {
                    side.responder.stop_waiting();
                    side.fill(qp, &mut round);
                    side.count(qp);
                }
                let is_last = left == 0 || !(round.more || round.blocked);
                if is_last {
                    let burst = BurstGuard::enter();
                    end(&mut side, EventCtx::now(qp, &burst), &mut round.completions);
                }
                is_last
            };
            qp.send_batch(&mut round.batch);
            round.completions.report(&qp.recv_cq);
            if is_last {
                break;
            }
        }
    }

    /// Empties both sides.
    pub(super) fn reset(this: ArcBorrow<'_, Self>) {
        Self::end_recv(this, path::LAST_BATCHES, |side, _, _| side.reset());
        // After the receive side: see `SendSide::take_delayed_ack`.
        lock_bh(&this.send).reset(&this);
    }

    /// Ends a stream: the program must ring the doorbell again for each batch. Sends the work
    /// requests that it posted without one.
    pub(super) fn end_stream(this: ArcBorrow<'_, Self>) {
        let ended = lock_bh(&this.send).end_stream(&this);
        if ended {
            Self::kick_send(this);
        } else if this.is_polled {
            Self::doorbell(this);
        }
    }

    /// Polls the send ring after a doorbell from the program.
    pub(crate) fn doorbell(this: ArcBorrow<'_, Self>) {
        // In earlier states the ring is not read.
        if this.state.get() >= QpState::Rts {
            Self::kick_send(this);
            Self::report_events(this);
        }
    }

    /// Enters the Error state: sends pending ACKs and responses, in at most `batches` batches, and
    /// starts the flush of both queues, in which rounds complete all outstanding work requests in
    /// order. May be called from any context except hard interrupts.
    pub(super) fn enter_error(this: ArcBorrow<'_, Self>, batches: u32) {
        let qp = arc_borrow_ref(this);
        let failed = qp.state.fail();
        {
            let mut side = lock_bh(&qp.send);
            // The consumer's reset changes the state first and then resets each side under its
            // lock. Checking the state here keeps a reset side as it is.
            if qp.state.get() == QpState::Error {
                side.reorder_buffer.clear();
                side.end_stream(qp);
                side.requester.enter_error();
            }
            side.count(qp);
        }
        Self::end_recv(this, batches, |side, ctx, completions| {
            if qp.state.get() == QpState::Error {
                side.reorder_buffer.clear();
                side.enter_error(ctx, completions);
            }
        });
        if failed && qp.srq.is_some() {
            // After the completion of the receive work request that the queue pair had fetched
            // (J-15).
            qp.raise(QpEvent::LastWqeReached);
            Self::report_events(this);
        }
        Self::kick_send(this);
        Self::kick_recv(this);
    }

    /// Returns whether the rounds of a side flush its queue. Many queue pairs can fail at one time,
    /// each with thousands of outstanding work requests. Softirqs would flush all of them before
    /// any program runs again.
    fn is_flushing(&self) -> bool {
        matches!(self.state.get(), QpState::Error | QpState::Sqe)
    }

    /// Completes the work requests that were posted before the consumer ends the Send Queue Error
    /// state (J-10).
    pub(super) fn finish_flush(this: ArcBorrow<'_, Self>) {
        // The bound is for a program that posts meanwhile.
        let capacity = lock_bh(&this.send).capacity();
        for _ in 0..=capacity.div_ceil(MAX_FLUSH) {
            let side = lock_bh(&this.send);
            if !side.requester.is_flushing() && !side.has_backlog() {
                return;
            }
            drop(side);
            let _ = Self::round::<SendSide>(this);
        }
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
        if lost && this.state.get() != QpState::Error {
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

impl Waiter for Qp {
    fn on_space(this: ArcBorrow<'_, Self>) {
        this.local.admit();
        Self::kick_recv(this);
        this.local.admit();
        Self::kick_send(this);
    }
}

impl SerialTask<SEND_WORK> for Qp {
    const ROUNDS: u32 = path::BATCHES;

    #[inline]
    fn avoids_softirqs(this: ArcBorrow<'_, Self>) -> bool {
        this.is_flushing()
    }

    fn restart(this: ArcBorrow<'_, Self>) {
        SerialWork::<Self, FLUSH_WORK>::queue(this, 0);
    }

    fn round(this: ArcBorrow<'_, Self>, _: u32) -> bool {
        Self::round::<SendSide>(this)
    }
}

impl SerialTask<RECV_WORK> for Qp {
    const ROUNDS: u32 = path::BATCHES;

    #[inline]
    fn avoids_softirqs(this: ArcBorrow<'_, Self>) -> bool {
        this.is_flushing()
    }

    fn restart(this: ArcBorrow<'_, Self>) {
        SerialWork::<Self, FLUSH_WORK>::queue(this, 0);
    }

    fn round(this: ArcBorrow<'_, Self>, _: u32) -> bool {
        Self::round::<RecvSide>(this)
    }
}

impl SerialTask<EVENT_WORK> for Qp {
    fn queue() -> Option<&'static ModuleWorkqueue> {
        Some(&EVENT_QUEUE)
    }

    fn round(this: ArcBorrow<'_, Self>, raised: u32) -> bool {
        for (bit, event) in EVENTS.iter().enumerate() {
            // The consumer's own transition to RTS also establishes communication.
            let late =
                *event == QpEvent::CommunicationEstablished && this.state.get() != QpState::Rtr;
            if raised & 1 << bit != 0 && !late {
                this.target.dispatch(*event);
            }
        }
        false
    }
}

impl TimerCallback for Qp {
    fn timer(&self) -> &SoftTimer<Self> {
        &self.timer
    }

    /// Handles the timeouts, or leaves them to a work item if this softirq has spent its budget on
    /// timers. One softirq runs all timers that have expired, without a limit
    /// (`hrtimer_run_softirq()`), but only a few work items before others (`bh_worker()`).
    fn expired(this: ArcBorrow<'_, Self>) {
        if !this
            .device
            .tables
            .timer_budget
            .run(|| Self::both_expired(this))
        {
            SerialWork::<Self, TIMER_WORK>::queue(this, 0);
        }
    }
}

impl Resume for NumberTable<Qp> {
    fn resume(&self, qpn: u32, is_recv: bool) {
        let qp: Arc<Qp> = {
            let burst = BurstGuard::enter();
            match self.get(qpn, &burst) {
                Some(qp) => qp.into(),
                // Destroyed meanwhile.
                None => return,
            }
        };
        if is_recv {
            Qp::on_memory_present::<RecvSide, RECV_WORK>(qp.as_arc_borrow());
        } else {
            Qp::on_memory_present::<SendSide, SEND_WORK>(qp.as_arc_borrow());
        }
    }
}

impl SerialTask<FLUSH_WORK> for Qp {
    const ROUNDS: u32 = 1;

    fn queue() -> Option<&'static ModuleWorkqueue> {
        Some(&FLUSH_QUEUE)
    }

    fn round(this: ArcBorrow<'_, Self>, _: u32) -> bool {
        Self::kick_send(this);
        Self::kick_recv(this);
        false
    }
}

impl SerialTask<TIMER_WORK> for Qp {
    const ROUNDS: u32 = 1;

    fn round(this: ArcBorrow<'_, Self>, _: u32) -> bool {
        Self::both_expired(this);
        false
    }
}

impl Qp {
    /// Handles the timeouts of both halves that are due.
    fn both_expired(this: ArcBorrow<'_, Self>) {
        Self::half_expired::<SendSide, SEND_WORK>(this);
        Self::half_expired::<RecvSide, RECV_WORK>(this);
    }

    /// Has a half continue that has waited for absent memory.
    fn on_memory_present<H: Half, const WORK: u64>(this: ArcBorrow<'_, Self>)
    where
        Self: SerialTask<WORK>,
    {
        let mut half = lock_bh(H::side(arc_borrow_ref(this)));
        let mut work = HalfWork::default();
        let outcome = half.on_memory_present(Time::from_ns(monotonic_ns()));
        if outcome.transmit {
            work.outcome.merge(outcome);
            Self::finish_half::<H, WORK>(this, Some(half), work);
        } else {
            Self::unlock(this, half);
        }
    }

    /// Handles a timeout of a half, if it is due.
    fn half_expired<H: Half, const WORK: u64>(this: ArcBorrow<'_, Self>)
    where
        Self: SerialTask<WORK>,
    {
        let mut half = lock_bh(H::side(arc_borrow_ref(this)));
        let burst = BurstGuard::enter();
        let ctx = EventCtx::now(arc_borrow_ref(this), &burst);
        half.expire_buffered(ctx.now);
        if half.next_timeout().is_none_or(|at| at > ctx.now) {
            return Self::unlock(this, half);
        }
        let mut work = HalfWork::default();
        let outcome = half.handle_timeout(ctx, &mut work.completions);
        work.outcome.merge(outcome);
        work.outcome.transmit = true;
        // Before the half fills a batch: packets after a timeout have ICRCs (`SendSide::count`).
        half.count(ctx.qp);
        Self::finish_half::<H, WORK>(this, Some(half), work);
    }
}
