// SPDX-License-Identifier: GPL-2.0

//! CREATE_QP and DESTROY_QP.

use super::{
    delayed_ack::DelayedAck, moderation::ModerationEvents, post::Poster, requester::SendSide,
    responder::RecvSide, service, state::State, Qp, QpHandle,
};
use crate::{
    abi::{recv_stride, send_stride, CreateQpCmd},
    counters::CounterBinding,
    cq::Cq,
    device::DeviceState,
    driver::Rrxe,
    limits,
    local_queue::LocalShare,
    mr::BinderId,
    pd::Pd,
    poll::Poller,
    quota::Charged,
    ring::{Consumer, Ring},
    serial_gate::SerialGate,
};
use kernel::{
    list::{AtomicTracker, ListLinks},
    new_mutex, new_spinlock,
    prelude::*,
    static_lock_class,
    sync::Arc,
    workqueue::new_work,
};
use linux_rdma::{
    errno::not_supported,
    rdma::{
        qp::{QpAttr, QpCap, QpInit, QpType},
        wr::QpIdentity,
        Device, QpTarget, Udata,
    },
    sync::{lock_bh, SerialWork, SoftTimer},
};
use rrxe_core::congestion::NotificationPoint;

/// The number of QP1.
const GSI: u32 = 1;

/// Releases a reserved queue pair number on drop, unless it was used.
struct Reservation<'a> {
    device: &'a DeviceState,
    index: Option<u32>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.device.tables.qps.release(index);
        }
    }
}

fn check(init: &QpInit<'_, Rrxe>, is_user: bool) -> Result {
    if init.create_flags != 0 {
        return Err(not_supported());
    }
    // Kernel work requests do not name a shared receive queue.
    if init.qp_type == QpType::XrcInitiator && !is_user {
        return Err(not_supported());
    }
    if init.qp_type == QpType::Gsi && (is_user || init.port > 1 || init.srq.is_some()) {
        return Err(EINVAL);
    }
    let cap = &init.cap;
    if cap.max_send_wr > limits::MAX_QP_WR
        || cap.max_recv_wr > limits::MAX_QP_WR
        || cap.max_send_sge > limits::MAX_SGE
        || cap.max_recv_sge > limits::MAX_SGE
        || cap.max_inline_data > limits::MAX_INLINE
    {
        return Err(EINVAL);
    }
    Ok(())
}

/// Creates the send and the receive ring. The last value tells whether they belong to a user
/// program.
fn rings(
    device: &Device<Rrxe>,
    cap: &mut QpCap,
    udata: Option<&mut Udata<'_>>,
) -> Result<(Ring, Ring, bool)> {
    let min_send = send_stride(cap.max_send_sge, cap.max_inline_data).ok_or(EINVAL)?;
    let min_recv = recv_stride(cap.max_recv_sge).ok_or(EINVAL)?;
    let (send, recv, is_user) = match udata {
        Some(udata) => {
            let cmd: CreateQpCmd = udata.read()?;
            let (send, recv) = Ring::pair_from_user(device, &cmd, cap, min_send, min_recv)?;
            udata.write_nothing()?;
            (send, recv, true)
        }
        None => {
            cap.max_inline_data = cap.max_inline_data.min(limits::MAX_KERNEL_INLINE);
            (
                Ring::for_kernel(cap.max_send_wr, min_send)?,
                Ring::for_kernel(cap.max_recv_wr, min_recv)?,
                false,
            )
        }
    };
    Ok((send, recv, is_user))
}

/// Creates a queue pair, and returns it with its number.
pub(crate) fn create(
    device: &Device<Rrxe>,
    poller: Option<&Poller>,
    pd: Option<&Pd>,
    init: &mut QpInit<'_, Rrxe>,
    target: Arc<QpTarget>,
    udata: Option<&mut Udata<'_>>,
) -> Result<(QpHandle, u32)> {
    // These queue pairs have no receive queue, and XRC targets no queues at all, whatever the
    // caller asked for.
    match init.qp_type {
        QpType::XrcTarget => init.cap = QpCap::default(),
        QpType::XrcInitiator => (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0),
        _ if init.srq.is_some() => (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0),
        _ => {}
    }
    check(init, udata.is_some())?;
    let (send_ring, recv_ring, is_user) = rings(device, &mut init.cap, udata)?;
    let cap = init.cap;
    let state = device.data();
    let poster = if is_user {
        None
    } else {
        Some(Poster::new(send_ring.clone(), recv_ring.clone())?)
    };

    let mut reservation = Reservation {
        device: state,
        index: None,
    };
    let number = if init.qp_type == QpType::Gsi {
        GSI
    } else {
        let (index, number) = state.tables.qps.reserve()?;
        reservation.index = Some(index);
        number
    };

    let service = service(init.qp_type);
    let capacity = send_ring.capacity();
    // XRC targets have no send queue to poll.
    let ring_to_poll = poller
        .filter(|_| is_user && init.qp_type != QpType::XrcTarget)
        .map(|poller| (poller, send_ring.clone()));
    let is_polled = ring_to_poll.is_some();
    let send_consumer = Consumer::new(send_ring);
    // No thread polls the send ring yet: the program must ring the doorbell for each batch.
    send_consumer.want_doorbell(true);
    let send = SendSide::new(
        service,
        number,
        send_consumer,
        capacity,
        cap.max_send_sge,
        cap.max_inline_data,
        state.clone(),
    )?;
    let srq = init.srq.map(|handle| handle.srq.clone());
    let (consumer, max_recv_sge) = match &srq {
        Some(srq) => (None, srq.max_sge()),
        // The receive may come from any shared receive queue.
        None if init.qp_type == QpType::XrcTarget => (None, limits::MAX_SRQ_SGE),
        None => (Some(Consumer::new(recv_ring)), cap.max_recv_sge),
    };
    let xrc_domain = init.xrcd.map(|xrcd| xrcd.0);
    // An XRC target has no protection domain of its own. A new one matches no key.
    let pd = pd.map_or_else(|| Pd::new(false).id(), Pd::id);
    let recv = RecvSide::new(
        service,
        consumer,
        max_recv_sge,
        state.clone(),
        pd,
        xrc_domain.is_some(),
    )?;
    let local = LocalShare::new(&state.local_queue)?;
    let identity = QpIdentity::of(&target);
    let (qp_type, signal_all) = (init.qp_type, init.signal_all);
    let cq = |cq: Option<&Charged<Arc<Cq>>>| cq.map_or_else(Cq::none, |cq| Ok(Arc::clone(cq)));
    let (send_cq, recv_cq) = (cq(init.send_cq)?, cq(init.recv_cq)?);
    let qp = Arc::pin_init(
        pin_init!(Qp {
            number,
            qp_type,
            recovery: state.config.recovery,
            is_user,
            is_polled,
            signal_all,
            cap,
            device: state.clone(),
            counters: CounterBinding::none(),
            pd,
            binder: BinderId::new(),
            target,
            identity,
            send_cq,
            recv_cq,
            srq,
            xrc_domain,
            state: State::new(),
            attr <- new_mutex!(QpAttr::default(), "rrxe_qp_attr"),
            send_gate: SerialGate::new(),
            send <- new_spinlock!(send, "rrxe_qp_send"),
            recv_gate: SerialGate::new(),
            recv <- new_spinlock!(recv, "rrxe_qp_recv"),
            local,
            waiter_links <- ListLinks::new(),
            waiter_tracker <- AtomicTracker::new(),
            moderation_events: ModerationEvents::new(),
            delayed_ack: DelayedAck::new(),
            notification_point <- new_spinlock!(NotificationPoint::new(), "rrxe_qp_notification"),
            timer <- SoftTimer::new(),
            send_work <- new_work!("rrxe_qp_send"),
            recv_work <- new_work!("rrxe_qp_recv"),
            event_work <- SerialWork::new(c"rrxe_qp_event", static_lock_class!()),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    let poll_registration = match ring_to_poll {
        Some((poller, ring)) => Some(poller.add(qp.clone(), ring)?),
        None => None,
    };
    match reservation.index {
        Some(index) => state.tables.qps.publish(index, qp.clone())?,
        None => state.set_gsi(Some(qp.clone()))?,
    }
    let index = reservation.index.take();
    Ok((
        QpHandle {
            qp,
            index,
            poster,
            poll_registration,
        },
        number,
    ))
}

/// Destroys a queue pair. On return, no code of it runs, and no memory of its consumer is accessed.
pub(crate) fn destroy(handle: &QpHandle) {
    let qp = &handle.qp;
    if let Some(registration) = &handle.poll_registration {
        registration.unregister();
    }
    // Sends the work requests that a program has posted without a doorbell.
    Qp::end_stream(qp.as_arc_borrow());
    match handle.index {
        Some(index) => qp.device.tables.qps.withdraw(index),
        None => {
            let _ = qp.device.set_gsi(None);
        }
    }
    qp.state.reset();
    // Packets that have looked up the queue pair before find two empty sides from here on.
    let recv = Qp::end_recv(
        qp.as_arc_borrow(),
        limits::path::LAST_BATCHES,
        |side, _, _| {
            side.reset();
            side.path = None;
            side.consumer.take()
        },
    );
    let send = {
        // After the receive side: see `Qp::lock_send`.
        let mut side = lock_bh(&qp.send);
        side.reset();
        side.path = None;
        side.consumer.take()
    };
    qp.send_gate.close();
    qp.recv_gate.close();
    SoftTimer::<Qp>::cancel_sync(qp.as_arc_borrow());
    qp.event_work.close();
    // Unpins the rings, which may sleep.
    drop((send, recv));
    if let Some(index) = handle.index {
        qp.device.tables.qps.release(index);
    }
}
