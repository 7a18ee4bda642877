// SPDX-License-Identifier: GPL-2.0

//! Posting. Kernel consumers post to rings of the same layout as those of user programs. Doorbells
//! of user programs arrive here too.

use super::{create::QpHandle, Qp};
use crate::{
    counters::Counter,
    limits,
    module::Rrxe,
    ring::{
        abi::{SendWqe, WqeOp, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED},
        Producer, Ring,
    },
    verbs::srq,
};
use kernel::{new_spinlock, prelude::*, sync::SpinLock};
use linux_rdma::{
    rdma::{
        qp::{QpState, QpType},
        wr::{send_flags, RecvWrs, SendPart, SendWr, SendWrs},
    },
    sync::with_lock_irqsave,
};

/// The rings that a kernel consumer posts to.
#[pin_data]
pub(crate) struct Poster {
    #[pin]
    send: SpinLock<Producer>,
    #[pin]
    recv: SpinLock<Producer>,
}

impl Poster {
    pub(super) fn new(send: Ring, recv: Ring) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                send <- new_spinlock!(Producer::new(send), "rrxe_post_send"),
                recv <- new_spinlock!(Producer::new(recv), "rrxe_post_recv"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

/// POST_SEND: the work requests of a kernel consumer, or the doorbell of a user program.
pub(crate) fn send(handle: &QpHandle, wrs: &mut SendWrs<'_, Rrxe>) -> Result {
    if handle.qp.state.get() < QpState::Rts || handle.qp.qp_type == QpType::XrcTarget {
        return Err(EINVAL);
    }
    let result = match &handle.poster {
        Some(poster) => with_lock_irqsave(&poster.send, |producer| {
            wrs.try_for_each(|wr| push_send(handle, producer, &wr))
        }),
        None => {
            handle.qp.count(Counter::Doorbells);
            if let Some(registration) = &handle.poll_registration {
                registration.wake();
            }
            Ok(())
        }
    };
    Qp::kick_send(handle.qp.as_arc_borrow());
    Qp::report_events(handle.qp.as_arc_borrow());
    result
}

/// Returns the part of a work request that depends on its opcode, and the address handle.
fn send_op(handle: &QpHandle, wr: &SendWr<'_, Rrxe>) -> Result<(WqeOp, u32)> {
    let mut op = WqeOp::default();
    let mut ah_number = 0;
    match wr.part {
        SendPart::Ud {
            ah,
            remote_qpn,
            remote_qkey,
        } if ah.pd == handle.qp.pd => {
            ah_number = ah.number;
            op.remote_qpn = remote_qpn;
            op.rkey_or_qkey = remote_qkey;
        }
        _ if !handle.qp.qp_type.is_connected() => return Err(EINVAL),
        SendPart::Rdma { remote_addr, rkey } => {
            op.remote_addr = remote_addr;
            op.rkey_or_qkey = rkey;
        }
        SendPart::Atomic {
            remote_addr,
            rkey,
            compare_add,
            swap,
        } => {
            op.remote_addr = remote_addr;
            op.rkey_or_qkey = rkey;
            op.compare_add = compare_add;
            op.swap = swap;
        }
        SendPart::Reg {
            key,
            access,
            iova,
            length,
        } => {
            op.rkey_or_qkey = key;
            op.remote_addr = iova;
            op.compare_add = length;
            op.swap = access.into();
        }
        _ => {}
    }
    Ok((op, ah_number))
}

fn push_send(handle: &QpHandle, producer: &mut Producer, wr: &SendWr<'_, Rrxe>) -> Result {
    let cap = &handle.qp.cap;
    if wr.num_sge > cap.max_send_sge {
        return Err(EINVAL);
    }
    let mut flags = 0;
    for (theirs, ours) in [
        (send_flags::FENCE, WQE_FENCE),
        (send_flags::SIGNALED, WQE_SIGNALED),
        (send_flags::SOLICITED, WQE_SOLICITED),
        (send_flags::INLINE, WQE_INLINE),
    ] {
        if wr.flags & theirs != 0 {
            flags |= ours;
        }
    }
    let (op, ah) = send_op(handle, wr)?;
    let mut wqe = SendWqe {
        wr_id: wr.wr_id,
        opcode: u8::try_from(wr.opcode).map_err(|_| EINVAL)?,
        flags,
        num_sge: u16::try_from(wr.num_sge).map_err(|_| EINVAL)?,
        imm_or_key: wr.imm_or_key,
        inline_length: 0,
        ah,
        op,
        reserved: 0,
    };
    if flags & WQE_INLINE == 0 {
        return producer.push(&wqe, wr.segments, &[]);
    }
    let mut inline = [0; limits::MAX_KERNEL_INLINE as usize];
    let bytes = wr.copy_inline(&mut inline)?;
    if bytes.len() > cap.max_inline_data as usize {
        return Err(EINVAL);
    }
    wqe.num_sge = 0;
    wqe.inline_length = bytes.len() as u32;
    producer.push(&wqe, &[], bytes)
}

/// POST_RECV: the work requests of a kernel consumer, or the doorbell of a user program.
pub(crate) fn recv(handle: &QpHandle, wrs: &mut RecvWrs<'_>) -> Result {
    // With a shared receive queue, and with XRC, there is no receive queue of its own.
    let is_xrc = matches!(handle.qp.qp_type, QpType::XrcInitiator | QpType::XrcTarget);
    if handle.qp.state.get() == QpState::Reset || handle.qp.srq.is_some() || is_xrc {
        return Err(EINVAL);
    }
    let result = match &handle.poster {
        Some(poster) => with_lock_irqsave(&poster.recv, |producer| {
            wrs.try_for_each(|wr| srq::push(producer, &wr, handle.qp.cap.max_recv_sge))
        }),
        None => Ok(()),
    };
    if handle.qp.state.get() == QpState::Error {
        // Flushes the new work requests.
        Qp::kick_recv(handle.qp.as_arc_borrow());
    }
    result
}
