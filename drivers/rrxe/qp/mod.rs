// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! A queue pair has two sides, each with its own lock and its own half of the core's transport: the
//! send side has a [`requester`], the receive side a [`responder`]. A context that has an event for
//! a side (a doorbell, a packet, a timer) takes the lock, passes the event to the core, lets the
//! core fill a batch of packets, releases the lock, and sends the batch. Each side sends in a
//! [`SerialWork`], one CPU at a time, so that batches leave in order. A CPU that finds it running
//! leaves a mark and continues.

mod cnp;
pub(crate) mod create;
mod details;
mod loopback;
mod moderation;
pub(crate) mod modify;
pub(crate) mod multicast;
pub(crate) mod poll;
pub(crate) mod post;
mod reorder_buffer;
pub(crate) mod requester;
pub(crate) mod responder;
mod rx;
mod schedule;
mod state;
pub(crate) mod table;

use crate::{
    counters::{Counter, Counters},
    device_core::DeviceCore,
    mr::{BinderId, KeyUser},
    number_table::NumberTable,
    pd::PdId,
    quota::Payer,
    ring::abi::{Cqe, CQE_SOLICITED},
    transport::{
        local_queue::LocalShare,
        rx_packet::RxPacket,
        tx::{TxBatch, TxState},
    },
    verbs::{cq::Cq, srq::Srq},
};
use kernel::{
    list::{AtomicTracker, ListLinks, TryNewListArc},
    prelude::*,
    sync::{Arc, ArcBorrow, Mutex, SpinLock},
};
use linux_rdma::{
    impl_has_serial_work,
    net::KeptDatagram,
    rdma::{
        qp::{QpAttr, QpCap, QpType},
        QpTarget,
    },
    sync::{arc_borrow_ref, BurstArc, BurstGuard, SerialWork, SoftTimer},
};
use reorder_buffer::ReorderBuffer;
use rrxe_core::{
    congestion::NotificationPoint, Outcome, Packet, Psn, RecoveryMode, Service, Time, TxPacket,
};

pub(crate) use rx::{BatchHalf, RxBatch};

/// The queue pair number of the general services interface.
pub(crate) const GSI: u32 = 1;

/// A queue pair, shared by packet reception and timers. It may outlive ib_core's object.
#[pin_data]
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) qp_type: QpType,
    /// The method of loss recovery.
    recovery: RecoveryMode,
    is_user: bool,
    /// A thread polls its send ring: see [`poll`].
    is_polled: bool,
    signal_all: bool,
    cap: QpCap,
    pub(crate) device: Arc<DeviceCore>,
    /// The queue pairs of all devices.
    all: Arc<NumberTable<Qp>>,
    /// Bound counters, if its packets do not count in those of the device.
    pub(crate) counters: BurstArc<Counters>,
    pd: PdId,
    binder: BinderId,
    /// The user that pays for the queue pair.
    payer: Payer,
    target: Arc<QpTarget>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    /// The shared receive queue, if it has no receive ring of its own.
    srq: Option<Arc<Srq>>,
    /// XRC target: the domain of the shared receive queues that requests may name.
    xrc_domain: Option<PdId>,
    /// Consumers change the state with `attr` locked. Any context may change it to an error state.
    state: state::State,
    /// Attributes as the consumer set them.
    #[pin]
    attr: Mutex<QpAttr>,

    /// Sends requests.
    #[pin]
    send_work: SerialWork<Qp, { schedule::SEND_WORK }>,
    #[pin]
    pub(crate) send: SpinLock<requester::SendSide>,
    /// Sends ACKs and responses.
    #[pin]
    recv_work: SerialWork<Qp, { schedule::RECV_WORK }>,
    #[pin]
    pub(crate) recv: SpinLock<responder::RecvSide>,
    /// Packets of this queue pair that are queued on this host.
    pub(crate) local: Arc<LocalShare<Qp>>,
    /// Entry in the list of queue pairs that wait for space in the local queue.
    #[pin]
    waiter_links: ListLinks,
    #[pin]
    waiter_tracker: AtomicTracker,
    /// Requests from the peer, which end a stream, and ends of send rounds.
    moderation_events: moderation::ModerationEvents,

    /// Time of the last congestion notification to the peer.
    #[pin]
    pub(crate) notification_point: SpinLock<NotificationPoint>,
    /// The timers of both sides.
    #[pin]
    timer: SoftTimer<Qp>,
    /// Handles the timeouts of both sides.
    #[pin]
    timer_work: SerialWork<Qp, { schedule::TIMER_WORK }>,
    /// Flushes both queues.
    #[pin]
    flush_work: SerialWork<Qp, { schedule::FLUSH_WORK }>,
    /// Reports asynchronous events, which consumers expect in process context.
    #[pin]
    event_work: SerialWork<Qp, { schedule::EVENT_WORK }>,
}

impl_has_serial_work! {
    impl HasSerialWork<{ schedule::SEND_WORK }> for Qp { self.send_work }
    impl HasSerialWork<{ schedule::RECV_WORK }> for Qp { self.recv_work }
    impl HasSerialWork<{ schedule::EVENT_WORK }> for Qp { self.event_work }
    impl HasSerialWork<{ schedule::TIMER_WORK }> for Qp { self.timer_work }
    impl HasSerialWork<{ schedule::FLUSH_WORK }> for Qp { self.flush_work }
}

kernel::list::impl_list_arc_safe! {
    impl ListArcSafe<0> for Qp { tracked_by waiter_tracker: AtomicTracker; }
}

kernel::list::impl_list_item! {
    impl ListItem<0> for Qp { using ListLinks { self.waiter_links }; }
}

/// Returns the core's service for a queue pair type.
fn service(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud | QpType::Gsi => Service::Ud,
        QpType::XrcInitiator | QpType::XrcTarget => Service::Xrc,
    }
}

/// Context of an event that is handled while a side is locked.
#[derive(Clone, Copy)]
pub(crate) struct EventCtx<'a> {
    pub(crate) qp: &'a Qp,
    /// The burst, which protects look-ups of tables and accesses to memory.
    pub(crate) burst: &'a BurstGuard,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) now: Time,
    /// The packet that is being handled.
    pub(crate) incoming: Option<&'a RxPacket<'a>>,
}

/// A half of a queue pair: one side, with its lock and its half of the core's transport.
pub(crate) trait Half: Sized + Unpin + 'static {
    /// This is the receive side. It accepts packets from any address if the queue pair is not
    /// connected, and responds by the transport by which a request came.
    const IS_RECV: bool;

    /// Returns the lock of this half.
    fn side(qp: &Qp) -> &SpinLock<Self>;

    /// Returns the completion queue of the work requests of this half.
    fn cq(qp: &Qp) -> &Arc<Cq>;

    /// Returns the state of this half in a batch of received packets.
    fn of_batch<'b, 'a>(batch: &'b mut RxBatch<'a>) -> &'b mut BatchHalf<'a, Self>;

    /// Moves the counts of the core's half to the counters of the queue pair, before the half is
    /// unlocked.
    fn count(&mut self, qp: &Qp);

    /// Returns the state of transmission.
    fn tx(&self) -> &TxState;

    /// Returns the next PSN that this half expects.
    fn expected_psn(&self) -> Psn;

    /// Returns the buffer of out-of-order packets.
    fn reorder_buffer(&mut self) -> &mut ReorderBuffer;

    /// Returns the congestion notification for a marked packet.
    fn cnp(&self, packet: &Packet) -> Option<TxPacket>;

    /// Returns how many packets this half accepts as a burst that starts with this one, if none is
    /// buffered.
    fn accepts_burst(&self, packet: &Packet) -> u32;

    /// Handles a packet, which is also that of `ctx`.
    fn handle_packet(
        &mut self,
        incoming: &RxPacket<'_>,
        ctx: EventCtx<'_>,
        completions: &mut PendingCompletions,
    ) -> Outcome;

    /// Handles the end of a wait for absent memory. A superfluous call is harmless.
    fn on_memory_present(&mut self, now: Time) -> Outcome;

    /// Removes and returns the next buffered packet, if it is due.
    fn next_buffered(&mut self) -> Option<KeptDatagram>;

    /// Must be called after a packet was handled, if it was to be buffered, or if others are
    /// buffered or were until then.
    fn on_buffered(&mut self, ctx: EventCtx<'_>, completions: &mut PendingCompletions) -> Outcome;

    /// Drops the packets that were buffered for too long.
    #[inline]
    fn expire_buffered(&mut self, now: Time) {
        self.reorder_buffer().expire(now);
    }

    /// Returns the time of the next timeout, if there is one.
    fn next_timeout(&self) -> Option<Time>;

    /// Handles a timeout that is due.
    fn handle_timeout(&mut self, _: EventCtx<'_>, _: &mut PendingCompletions) -> Outcome {
        Outcome::default()
    }

    /// Returns whether a round is due although nothing is ready to transmit.
    fn wants_round(&self) -> bool {
        false
    }

    /// Fills the batch of a round.
    fn fill(&mut self, qp: &Qp, round: &mut Round);
}

/// A round of a half: a batch of packets, and what else the round leaves to do without the lock.
#[derive(Default)]
pub(crate) struct Round {
    batch: TxBatch,
    completions: PendingCompletions,
    more: bool,
    fatal: bool,
    /// More packets are ready, but the local queue of this host has no space for them.
    blocked: bool,
    /// The program is streaming, and there was nothing to do for it.
    waiting: bool,
    /// The receive half was locked, so messages left without the ACK that may wait for them.
    ack_missed: bool,
}

/// Completions that were pushed under a lock, to be reported after it is released.
#[derive(Default)]
pub(crate) struct PendingCompletions {
    pushed: bool,
    solicited: bool,
    overflow: bool,
    /// XRC: the completion queue to notify instead of the queue pair's own.
    to: Option<Arc<Cq>>,
    /// A completion was lost in a completion queue other than `to`.
    overflow_elsewhere: bool,
}

/// Returns whether a completion counts as solicited. A failure does (IBA 11.4.2.2).
fn is_solicited(cqe: &Cqe) -> bool {
    cqe.flags & CQE_SOLICITED != 0 || cqe.status != 0
}

impl PendingCompletions {
    /// Pushes a completion to the completion queue of a shared receive queue.
    fn push_to(&mut self, srq: &Arc<Srq>, cqe: &Cqe, qp: &Qp) {
        let Some(cq) = &srq.xrc_cq else {
            return;
        };
        if self.to.as_ref().is_none_or(|to| Arc::ptr_eq(to, cq)) {
            self.to = Some(cq.clone());
            return self.push(cq, cqe, qp);
        }
        // Packets of one batch rarely complete to several queues. `report` notifies the first
        // queue, a softirq the others.
        let lost = cq.push(cqe, &qp.target).is_err();
        self.overflow_elsewhere |= lost;
        Cq::report(cq, lost, is_solicited(cqe), true);
    }

    /// Pushes a completion and records that the consumer must be notified.
    fn push(&mut self, cq: &Cq, cqe: &Cqe, qp: &Qp) {
        match cq.push(cqe, &qp.target) {
            Ok(()) => {
                self.pushed = true;
                self.solicited |= is_solicited(cqe);
            }
            Err(_) => self.overflow = true,
        }
    }

    /// Notifies the consumer. Returns true if a completion was lost; once the queue pair has ended,
    /// that was a flushed one, which does not matter. The caller must hold no lock.
    fn report(self, cq: &Arc<Cq>) -> bool {
        let cq = self.to.as_ref().unwrap_or(cq);
        if self.pushed {
            Cq::report(cq, false, self.solicited, false);
        }
        if self.overflow {
            Cq::report(cq, true, false, false);
        }
        self.overflow || self.overflow_elsewhere
    }
}

impl Qp {
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.with_counters(|counters| counters.count(counter));
    }

    /// Calls `count` with the counters in which the queue pair counts. Must be called with
    /// interrupts enabled.
    #[inline]
    pub(crate) fn with_counters(&self, count: impl FnOnce(&Counters)) {
        if self.counters.is_empty() {
            count(&self.device.counters);
        } else {
            self.with_bound_counters(count);
        }
    }

    /// Calls `count` with the bound counters of the queue pair.
    #[cold]
    #[inline(never)]
    fn with_bound_counters(&self, count: impl FnOnce(&Counters)) {
        let burst = BurstGuard::enter();
        let bound = self.counters.get(&burst).map(arc_borrow_ref);
        // The counters may be unbound meanwhile.
        count(bound.unwrap_or(&self.device.counters));
    }

    /// Returns this queue pair as the user of keys in a protection domain.
    fn keys(&self, pd: PdId) -> KeyUser {
        KeyUser {
            pd,
            qp: self.binder,
        }
    }

    /// Returns the queue pair of the same device that has a number.
    #[inline]
    fn peer<'a>(&'a self, number: u32, burst: &'a BurstGuard) -> Option<ArcBorrow<'a, Self>> {
        let found = self.all.get(number, burst);
        found.filter(|qp| Arc::ptr_eq(&qp.device, &self.device))
    }

    /// Returns whether a program posts, and no thread polls its send ring.
    fn is_moderated(&self) -> bool {
        self.is_user && !self.is_polled
    }

    /// Returns whether the transport retransmits lost packets.
    fn is_reliable(&self) -> bool {
        service(self.qp_type).is_reliable()
    }
}
