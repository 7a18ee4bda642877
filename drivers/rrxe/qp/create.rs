// SPDX-License-Identifier: GPL-2.0

//! CREATE_QP and DESTROY_QP.

use super::{
    moderation::ModerationEvents,
    poll::{PollRegistration, Poller},
    post::Poster,
    requester::SendSide,
    responder::RecvSide,
    schedule::{EVENT_WORK, FLUSH_WORK, RECV_WORK, SEND_WORK, TIMER_WORK},
    service,
    state::State,
    table::{DeviceQps, QpTables},
    Qp, GSI,
};
use crate::{
    limits,
    module::Rrxe,
    mr::BinderId,
    pd::Pd,
    quota::{Charged, Payer},
    ring::{
        abi::{recv_stride, send_stride, CreateQpCmd},
        Consumer, Ring,
    },
    transport::local_queue::LocalShare,
    verbs::cq::{Cq, CqHandle},
};
use kernel::{
    list::{AtomicTracker, ListLinks},
    new_mutex, new_spinlock,
    prelude::*,
    static_lock_class,
    sync::Arc,
    types::ScopeGuard,
};
use linux_rdma::{
    errno::not_supported,
    rdma::{
        qp::{QpAttr, QpCap, QpInit, QpType},
        Device, QpTarget, Udata,
    },
    sync::{lock_bh, BurstArc, SerialWork, SoftTimer},
};
use rrxe_core::congestion::NotificationPoint;

/// ib_core's handle of a queue pair.
pub(crate) struct QpHandle {
    pub(crate) qp: Arc<Qp>,
    /// The queue pairs of its device.
    pub(crate) siblings: Arc<DeviceQps>,
    /// The queue pair's index in the table; `None` for QP1.
    index: Option<u32>,
    /// The rings that a kernel consumer posts to; `None` for user programs.
    pub(super) poster: Option<Pin<KBox<Poster>>>,
    /// The registration with the poll thread, in poll mode.
    pub(super) poll_registration: Option<PollRegistration>,
}

/// The objects that a new queue pair belongs to.
pub(crate) struct Parents<'a> {
    pub(crate) device: &'a Device<Rrxe>,
    pub(crate) qps: &'a Arc<DeviceQps>,
    /// The poll mode of the context.
    pub(crate) poller: Option<&'a Poller>,
    pub(crate) pd: Option<&'a Pd>,
}

/// Checks the attributes, and removes the queues that a queue pair of this type does not have,
/// whatever the caller asked for.
fn check(init: &mut QpInit<'_, Rrxe>, is_user: bool) -> Result {
    match init.qp_type {
        QpType::XrcTarget => init.cap = QpCap::default(),
        _ if init.srq.is_some() || init.qp_type == QpType::XrcInitiator => {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0)
        }
        _ => {}
    }
    // Kernel work requests do not name a shared receive queue.
    if init.create_flags != 0 || init.qp_type == QpType::XrcInitiator && !is_user {
        return Err(not_supported());
    }
    let cap = &init.cap;
    if init.qp_type == QpType::Gsi && (is_user || init.port > 1 || init.srq.is_some())
        || cap.max_send_wr > limits::MAX_QP_WR
        || cap.max_recv_wr > limits::MAX_QP_WR
        || cap.max_send_sge > limits::MAX_SGE
        || cap.max_recv_sge > limits::MAX_SGE
        || cap.max_inline_data > limits::MAX_INLINE
    {
        return Err(EINVAL);
    }
    Ok(())
}

/// The rings of a queue pair.
struct Rings {
    send: Ring,
    recv: Ring,
    /// They belong to a user program.
    is_user: bool,
    /// A thread polls the send ring.
    is_polled: bool,
}

impl Rings {
    /// Pins the rings of a user program, or allocates those of a kernel consumer.
    fn new(device: &Device<Rrxe>, cap: &mut QpCap, udata: Option<&mut Udata<'_>>) -> Result<Self> {
        let min_send = send_stride(cap.max_send_sge, cap.max_inline_data).ok_or(EINVAL)?;
        let min_recv = recv_stride(cap.max_recv_sge).ok_or(EINVAL)?;
        let is_user = udata.is_some();
        let (send, recv) = match udata {
            Some(udata) => {
                let cmd: CreateQpCmd = udata.read()?;
                let rings = Ring::pair_from_user(device, &cmd, cap, min_send, min_recv)?;
                udata.write_nothing()?;
                rings
            }
            None => {
                cap.max_inline_data = cap.max_inline_data.min(limits::MAX_KERNEL_INLINE);
                (
                    Ring::for_kernel(cap.max_send_wr, min_send)?,
                    Ring::for_kernel(cap.max_recv_wr, min_recv)?,
                )
            }
        };
        Ok(Self {
            send,
            recv,
            is_user,
            is_polled: false,
        })
    }
}

/// Creates a queue pair.
pub(crate) fn create(
    parents: &Parents<'_>,
    init: &mut QpInit<'_, Rrxe>,
    payer: Payer,
    target: Arc<QpTarget>,
    udata: Option<&mut Udata<'_>>,
) -> Result<QpHandle> {
    check(init, udata.is_some())?;
    let mut rings = Rings::new(parents.device, &mut init.cap, udata)?;
    let poster = (!rings.is_user).then(|| Poster::new(rings.send.clone(), rings.recv.clone()));
    let poster = poster.transpose()?;
    // XRC targets have no send queue to poll.
    let ring_to_poll = parents
        .poller
        .filter(|_| rings.is_user && init.qp_type != QpType::XrcTarget)
        .map(|poller| (poller, rings.send.clone()));
    let QpTables { qps, gsis } = &*parents.qps.tables;
    let (index, number) = match init.qp_type {
        QpType::Gsi => (None, GSI),
        _ => qps.reserve().map(|(index, number)| (Some(index), number))?,
    };
    let reserved = ScopeGuard::new(|| {
        if let Some(index) = index {
            qps.release(index);
        }
    });
    rings.is_polled = ring_to_poll.is_some();
    let qp = Qp::new(parents, number, init, payer, target, rings)?;
    let registration = ring_to_poll.map(|(poller, ring)| poller.add(qp.clone(), ring));
    let poll_registration = registration.transpose()?;
    // From here on, packets find the queue pair.
    match index {
        Some(index) => qps.publish(index, qp.clone())?,
        None => {
            gsis.add(qp.clone())?;
        }
    }
    reserved.dismiss();
    Ok(QpHandle {
        qp,
        siblings: parents.qps.clone(),
        index,
        poster,
        poll_registration,
    })
}

impl Qp {
    /// Creates a queue pair that no packet finds yet.
    fn new(
        parents: &Parents<'_>,
        number: u32,
        init: &QpInit<'_, Rrxe>,
        payer: Payer,
        target: Arc<QpTarget>,
        rings: Rings,
    ) -> Result<Arc<Self>> {
        let (qps, device, pd) = (parents.qps, &parents.qps.core, parents.pd);
        let (cap, service) = (init.cap, service(init.qp_type));
        let srq = init.srq.map(|handle| handle.srq.clone());
        let send = SendSide::new(service, number, rings.send, &cap, device.clone())?;
        let (consumer, max_sge) = match init.srq {
            Some(handle) => (None, handle.srq.max_sge),
            // The receive may come from any shared receive queue.
            None if init.qp_type == QpType::XrcTarget => (None, limits::MAX_SGE),
            None => (Some(Consumer::new(rings.recv)), init.cap.max_recv_sge),
        };
        let recv = RecvSide::new(service, number, consumer, max_sge, device.clone())?;
        let cq = |cq: Option<&Charged<CqHandle>>| cq.map_or_else(Cq::none, |cq| Ok(cq.0.clone()));
        Arc::pin_init(
            try_pin_init!(Self {
                number,
                qp_type: init.qp_type,
                recovery: device.config.recovery,
                is_user: rings.is_user,
                is_polled: rings.is_polled,
                signal_all: init.signal_all,
                cap,
                device: device.clone(),
                all: qps.tables.qps.clone(),
                counters: BurstArc::empty(),
                // An XRC target has no protection domain of its own. A new one matches no key.
                pd: pd.map_or_else(|| Pd::new(false).id, |pd| pd.id),
                binder: BinderId::new(),
                payer,
                target,
                send_cq: cq(init.send_cq)?,
                recv_cq: cq(init.recv_cq)?,
                srq,
                xrc_domain: init.xrcd.map(|xrcd| xrcd.id),
                state: State::new(),
                attr <- new_mutex!(QpAttr::default(), "rrxe_qp_attr"),
                send_work <- SerialWork::new(c"rrxe_qp_send", static_lock_class!()),
                send <- new_spinlock!(send, "rrxe_qp_send"),
                recv_work <- SerialWork::new(c"rrxe_qp_recv", static_lock_class!()),
                recv <- new_spinlock!(recv, "rrxe_qp_recv"),
                local: LocalShare::new(&qps.local_queue)?,
                waiter_links <- ListLinks::new(),
                waiter_tracker <- AtomicTracker::new(),
                moderation_events: ModerationEvents::new(),
                notification_point <- new_spinlock!(NotificationPoint::default(), "rrxe_qp_notification"),
                timer <- SoftTimer::new(),
                timer_work <- SerialWork::new(c"rrxe_qp_timer", static_lock_class!()),
                flush_work <- SerialWork::new(c"rrxe_qp_flush", static_lock_class!()),
                event_work <- SerialWork::new(c"rrxe_qp_event", static_lock_class!()),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

impl Drop for QpHandle {
    /// DESTROY_QP. On return, no code of the queue pair runs, and no memory of its consumer is
    /// accessed.
    fn drop(&mut self) {
        let qp = &self.qp;
        if let Some(registration) = &self.poll_registration {
            registration.unregister();
        }
        // Sends the work requests that a program has posted without a doorbell.
        Qp::end_stream(qp.as_arc_borrow());
        match self.index {
            Some(index) => self.siblings.tables.qps.withdraw(index),
            None => {
                self.siblings.tables.gsis.remove(qp);
            }
        }
        qp.state.reset();
        // Packets that have looked up the queue pair before find two empty sides from here on.
        Qp::reset(qp.as_arc_borrow());
        SerialWork::<Qp, SEND_WORK>::close(qp.as_arc_borrow());
        SerialWork::<Qp, RECV_WORK>::close(qp.as_arc_borrow());
        SoftTimer::<Qp>::cancel_sync(qp.as_arc_borrow());
        SerialWork::<Qp, TIMER_WORK>::close(qp.as_arc_borrow());
        SerialWork::<Qp, FLUSH_WORK>::close(qp.as_arc_borrow());
        SerialWork::<Qp, EVENT_WORK>::close(qp.as_arc_borrow());
        // No side adds completions from here on.
        for cq in [&qp.send_cq, &qp.recv_cq] {
            cq.remove(&qp.target);
        }
        let recv = lock_bh(&qp.recv).consumer.take();
        let send = lock_bh(&qp.send).consumer.take();
        // Unpins the rings, which may sleep.
        drop((send, recv));
        if let Some(index) = self.index {
            self.siblings.tables.qps.release(index);
        }
    }
}
