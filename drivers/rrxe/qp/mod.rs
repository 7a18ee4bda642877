// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! A queue pair has two sides, each with a lock of its own and half of the core's transport:
//! [`send`] with the requester, [`recv`] with the responder. Whoever has an event for a side (a
//! doorbell, a packet, a timer) takes the lock, hands the event to the core, lets the core fill a
//! batch of packets, releases the lock, and sends the batch. A [`Baton`] for each side sees to it
//! that one CPU at a time sends, so that batches leave in order; who finds it taken leaves a note
//! and goes on. Nothing waits for a workqueue, unless a budget is spent.
//!
//! | file | what |
//! |---|---|
//! | [`create`] | CREATE_QP, DESTROY_QP |
//! | [`modify`] | MODIFY_QP, QUERY_QP |
//! | [`post`] | posting by kernel consumers, doorbells of user programs |
//! | [`send`] | the send side: work requests to packets, answers to completions |
//! | [`recv`] | the receive side: packets to memory and completions, answers to packets |
//! | [`run`] | who runs the sides, and when |
//! | [`state`] | the state, which several contexts change |
//! | [`answer`] | programs that answer so soon that an acknowledgement need not leave before |
//! | [`stream`] | programs that post so fast that not each message is worth a call |
//! | [`hold`] | packets that came before their turn |
//! | [`scatter`] | payload from and to data segments |

mod answer;
pub(crate) mod create;
mod hold;
pub(crate) mod modify;
pub(crate) mod post;
mod receive;
pub(crate) mod recv;
mod run;
mod scatter;
pub(crate) mod send;
mod state;
mod stream;

pub(crate) use stream::Habit;

use crate::{
    baton::{Baton, Raised},
    counters::{Bound, Counter},
    cq::Cq,
    device::DeviceState,
    incoming::Incoming,
    local_queue::LocalShare,
    mr::{BinderId, Consumer},
    path::Path,
    pd::PdId,
    poll::Seat,
    srq::Srq,
};
use kernel::{
    impl_has_work,
    list::{AtomicTracker, ListLinks, TryNewListArc},
    prelude::*,
    sync::{rcu, Arc, Mutex, SpinLock},
    workqueue::Work,
};
use linux_rdma::{
    impl_has_soft_timer,
    rdma::{
        qp::{QpAttr, QpCap, QpState, QpType},
        wr::QpIdentity,
        QpTarget,
    },
    sync::SoftTimer,
};
use rrxe_core::{
    congestion::NotificationPoint, requester::RequesterCounters, responder::ResponderCounters,
    RecoveryMode, Service, Status,
};

pub(crate) use receive::After;

/// A queue pair, as packets and timers share it. It may outlive ib_core's object.
#[pin_data]
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) qp_type: QpType,
    /// How losses are repaired.
    recovery: RecoveryMode,
    is_user: bool,
    /// A thread looks at its send ring: see [`crate::poll`].
    is_polled: bool,
    signal_all: bool,
    cap: QpCap,
    pub(crate) device: Arc<DeviceState>,
    /// Where it counts, if not in its device's.
    pub(crate) counters: Bound,
    pd: PdId,
    binder: BinderId,
    target: Arc<QpTarget>,
    identity: QpIdentity,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    /// Where its receives come from, if not from a ring of its own.
    srq: Option<Arc<Srq>>,
    /// XRC target: in which domain the shared receive queues are that requests may name.
    xrc_domain: Option<PdId>,
    /// Changed with `attr` locked, or to an error by anybody.
    state: state::State,
    /// Attributes as they were set.
    #[pin]
    attr: Mutex<QpAttr>,

    send_baton: Baton,
    #[pin]
    pub(crate) send: SpinLock<send::SendSide>,
    recv_baton: Baton,
    #[pin]
    pub(crate) recv: SpinLock<recv::RecvSide>,
    /// Its packets that wait on this host.
    pub(crate) local: Arc<LocalShare>,
    /// Its place in the line of queue pairs that wait for room there.
    #[pin]
    line: ListLinks,
    #[pin]
    in_line: AtomicTracker,
    /// Whether the peer lets itself be heard, while we are streaming.
    talk: stream::Talk,
    /// Whether acknowledgements wait for what we send.
    answers: answer::Answers,

    /// When the peer was told of congestion.
    #[pin]
    pub(crate) notification: SpinLock<NotificationPoint>,
    /// The timers of both sides.
    #[pin]
    timer: SoftTimer<Qp>,
    /// Goes on sending where a budget was spent.
    #[pin]
    send_work: Work<Qp, { run::SEND_WORK }>,
    #[pin]
    recv_work: Work<Qp, { run::RECV_WORK }>,
    /// Reports asynchronous events, which consumers expect in process context.
    #[pin]
    event_work: Work<Qp, { run::EVENT_WORK }>,
    event_baton: Baton,
    /// Events to report, a bit for each.
    events: Raised,
}

impl_has_work! {
    impl HasWork<Self, { run::SEND_WORK }> for Qp { self.send_work }
    impl HasWork<Self, { run::RECV_WORK }> for Qp { self.recv_work }
    impl HasWork<Self, { run::EVENT_WORK }> for Qp { self.event_work }
}

kernel::list::impl_list_arc_safe! {
    impl ListArcSafe<0> for Qp { tracked_by in_line: AtomicTracker; }
}

kernel::list::impl_list_item! {
    impl ListItem<0> for Qp { using ListLinks { self.line }; }
}

impl_has_soft_timer! {
    impl HasSoftTimer<Self> for Qp { self.timer }
}

/// A queue pair, as ib_core holds it.
pub(crate) struct QpHandle {
    pub(crate) qp: Arc<Qp>,
    /// The queue pair's place in the table; `None` for QP1.
    index: Option<u32>,
    /// Kernel consumers: where they post.
    poster: Option<Pin<KBox<post::Poster>>>,
    /// Poll mode.
    seat: Option<Seat>,
}

/// The core's service for a type.
fn service(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud | QpType::Gsi => Service::Ud,
        QpType::XrcInitiator | QpType::XrcTarget => Service::Xrc,
    }
}

/// What goes on while a side is locked.
#[derive(Clone, Copy)]
pub(crate) struct Occasion<'a> {
    /// Under which tables and regions are looked up.
    pub(crate) rcu: &'a rcu::Guard,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) now: u64,
    /// The packet that is being handled.
    pub(crate) incoming: Option<&'a Incoming<'a>>,
}

/// Completions that were pushed under a lock, to be reported after it is released.
#[derive(Default)]
pub(crate) struct Notices {
    pushed: bool,
    solicited: bool,
    overflow: bool,
    /// XRC: where to, in place of the queue pair's completion queue.
    to: Option<Arc<Cq>>,
    /// A completion was lost in another queue than that.
    overflow_elsewhere: bool,
}

impl Notices {
    /// As [`Notices::push`], to the completion queue of a shared receive queue.
    fn push_to(&mut self, srq: &Arc<Srq>, cqe: &crate::abi::Cqe, qp: &Qp, solicited: bool) {
        let Some(cq) = srq.cq() else {
            return;
        };
        match &self.to {
            Some(other) if !Arc::ptr_eq(other, cq) => {
                // Messages for several queues in one go are rare: the first is told at once, the
                // others from a workqueue.
                let result = cq.push(cqe, qp.identity);
                self.overflow_elsewhere |= result.is_err();
                Srq::completed(srq.as_arc_borrow(), &result, solicited || cqe.status != 0);
            }
            _ => {
                self.to = Some(cq.clone());
                self.push(cq, cqe, qp, solicited);
            }
        }
    }

    /// Pushes a completion, and notes that.
    fn push(&mut self, cq: &Cq, cqe: &crate::abi::Cqe, qp: &Qp, solicited: bool) {
        match cq.push(cqe, qp.identity) {
            Ok(()) => {
                self.pushed = true;
                // A failure counts as solicited (IBA 11.4.2.2).
                self.solicited |= solicited || cqe.status != 0;
            }
            Err(crate::cq::Overflow) => self.overflow = true,
        }
    }

    /// Tells the consumer. No lock may be held. True where a completion was lost.
    #[must_use]
    fn report(self, cq: &Arc<Cq>) -> bool {
        let cq = self.to.as_ref().unwrap_or(cq);
        if self.pushed {
            Cq::notify(cq, self.solicited);
        }
        if self.overflow {
            Cq::report_overflow(cq);
        }
        self.overflow || self.overflow_elsewhere
    }
}

impl Qp {
    /// The state it is in.
    pub(crate) fn state(&self) -> QpState {
        self.state.get()
    }

    /// It, as the user of the keys of a domain.
    fn keys(&self, pd: PdId) -> Consumer {
        Consumer {
            pd,
            qp: self.binder,
        }
    }

    /// Counts what a requester has counted.
    #[inline]
    fn count_requester(
        &self,
        before: &RequesterCounters,
        after: &RequesterCounters,
        path: &Option<Arc<Path>>,
    ) {
        if before == after {
            return;
        }
        self.tally(|counters| counters.requester(before, after));
        let bad_pkeys = after.bad_pkeys.wrapping_sub(before.bad_pkeys);
        if bad_pkeys != 0 {
            self.device.count_bad_pkeys(bad_pkeys);
        }
        // Who cuts what we send may be one who drops it then; what merely gets lost is another matter.
        if let Some(path) = path.as_ref().filter(|_| before.timeouts != after.timeouts) {
            path.is_silent();
        }
    }

    /// Counts what a responder has counted.
    #[inline]
    fn count_responder(&self, before: &ResponderCounters, after: &ResponderCounters) {
        if before != after {
            self.tally(|counters| counters.responder(before, after));
        }
    }

    /// Whether what gets lost is sent again.
    fn is_reliable(&self) -> bool {
        service(self.qp_type).is_reliable()
    }

    /// Counts a completion that is no success.
    #[inline]
    fn count_completion(&self, status: Status, failed: Counter, flushed: Counter) {
        match status {
            Status::Success => {}
            Status::WrFlush => self.count(flushed),
            _ => self.count(failed),
        }
    }
}
