// SPDX-License-Identifier: GPL-2.0

//! The send side of a queue pair: the core's requester and what it works on.

use super::{
    scatter::{total, Segments},
    Notices, Occasion, Qp,
};
use crate::{
    abi::{self, wr_opcode, Cqe, SendWqe, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED},
    limits,
    path::Path,
    ring::Consumer,
    tx::Carrier,
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::{net::TxQueue, rdma::wr::DataSegment};
use rrxe_core::{
    Fault, Payload, PostError, Requester, RequesterEnv, SendCompletion, SendOp, SendRequest,
    SendSlot, TxError, TxPacket,
};

/// What the driver keeps of an outstanding work request; the core has the rest in its slot.
#[derive(Clone, Copy, Default)]
pub(crate) struct LocalRequest {
    wr_id: u64,
    num_sge: u16,
    /// The payload was copied from the work request.
    inline: bool,
    /// The entry made no sense: it fails so when its turn comes.
    fault: Option<Fault>,
    /// UD: the address handle.
    ah: u32,
}

/// The send side.
pub(crate) struct SendSide {
    pub(crate) requester: Requester,
    pub(crate) slots: KVVec<SendSlot>,
    /// By slot, as the next three.
    local: KVVec<LocalRequest>,
    /// `max_sge` for each slot.
    segments: KVVec<DataSegment>,
    max_sge: usize,
    /// `max_inline` bytes for each slot.
    inline: KVVec<u8>,
    max_inline: usize,
    /// Work requests given to the requester since Reset, which counts likewise.
    posted: u32,
    /// `None` once the queue pair is destroyed.
    pub(crate) consumer: Option<Consumer>,
    /// Connected queue pairs: the path to the peer.
    pub(crate) path: Option<Arc<Path>>,
    pub(crate) source_port: u16,
    /// The consumer wants to know when the queue has drained, and has not been told.
    pub(crate) tell_drained: bool,
}

impl SendSide {
    pub(crate) fn new(
        requester: Requester,
        consumer: Consumer,
        capacity: u32,
        max_sge: u32,
        max_inline: u32,
    ) -> Result<Self> {
        let depth = capacity as usize;
        let (max_sge, max_inline) = (max_sge as usize, max_inline as usize);
        let mut slots = KVVec::with_capacity(depth, GFP_KERNEL_ACCOUNT)?;
        slots.resize(depth, SendSlot::default(), GFP_KERNEL_ACCOUNT)?;
        let mut local = KVVec::with_capacity(depth, GFP_KERNEL_ACCOUNT)?;
        local.resize(depth, LocalRequest::default(), GFP_KERNEL_ACCOUNT)?;
        let segment_count = depth.checked_mul(max_sge).ok_or(EINVAL)?;
        let mut segments = KVVec::with_capacity(segment_count, GFP_KERNEL_ACCOUNT)?;
        segments.resize(segment_count, DataSegment::default(), GFP_KERNEL_ACCOUNT)?;
        let inline_bytes = depth.checked_mul(max_inline).ok_or(EINVAL)?;
        let mut inline = KVVec::with_capacity(inline_bytes, GFP_KERNEL_ACCOUNT)?;
        inline.resize(inline_bytes, 0, GFP_KERNEL_ACCOUNT)?;
        Ok(Self {
            requester,
            slots,
            local,
            segments,
            max_sge,
            inline,
            max_inline,
            posted: 0,
            consumer: Some(consumer),
            path: None,
            source_port: 0,
            tell_drained: false,
        })
    }

    /// Copies work requests from the ring to the slots, as many as there is room for. `EINVAL`
    /// where the ring makes no sense: the queue pair must go to the Error state.
    pub(crate) fn fetch(&mut self, qp: &Qp) -> Result {
        let Some(consumer) = &mut self.consumer else {
            return Ok(());
        };
        let mut waiting = consumer.available()?;
        while waiting != 0 && self.requester.can_post(&self.slots) {
            let wqe: SendWqe = consumer.next()?;
            let (mut request, mut local) = decode(qp, &wqe);
            // The slot that `post` is going to take.
            let slot = (self.posted as usize) & self.slots.len().wrapping_sub(1);
            if local.inline {
                let n = wqe.inline_length as usize;
                match self
                    .inline
                    .get_mut(slot.wrapping_mul(self.max_inline)..)
                    .and_then(|b| b.get_mut(..n))
                {
                    Some(to) if n <= self.max_inline => {
                        consumer.next_bytes(core::mem::size_of::<SendWqe>(), to)?;
                        request.length = wqe.inline_length;
                    }
                    _ => local.fault = Some(Fault::Malformed),
                }
            } else {
                let n = usize::from(wqe.num_sge);
                match self
                    .segments
                    .get_mut(slot.wrapping_mul(self.max_sge)..)
                    .and_then(|s| s.get_mut(..n))
                {
                    Some(to) if n <= self.max_sge => {
                        consumer.next_segments(core::mem::size_of::<SendWqe>(), to)?;
                        match u32::try_from(total(to)) {
                            Ok(length) if length <= limits::MAX_MESSAGE => request.length = length,
                            _ => local.fault = Some(Fault::Length),
                        }
                        if request.op.is_atomic() && request.length != 8 {
                            local.fault = Some(Fault::Length);
                        }
                    }
                    _ => local.fault = Some(Fault::Malformed),
                }
            }
            if local.fault.is_some() {
                request = poison(&request);
            }
            let posted = match self.requester.post(&mut self.slots, request) {
                Ok(slot) => slot,
                Err(e) => {
                    // An operation that the service has not, or a datagram that is too long.
                    local.fault = Some(match e {
                        PostError::Length => Fault::Length,
                        _ => Fault::Malformed,
                    });
                    self.requester
                        .post(&mut self.slots, poison(&request))
                        .map_err(|_| EINVAL)?
                }
            };
            if let Some(to) = self.local.get_mut(posted as usize) {
                *to = local;
            }
            self.posted = self.posted.wrapping_add(1);
            consumer.take();
            waiting = waiting.wrapping_sub(1);
        }
        Ok(())
    }

    /// Forgets everything (the Reset state).
    pub(crate) fn reset(&mut self) {
        self.requester.reset();
        self.posted = 0;
        self.tell_drained = false;
        if let Some(consumer) = &mut self.consumer {
            consumer.discard();
        }
    }

    /// Work requests wait in the ring for which there was no slot.
    pub(crate) fn has_backlog(&mut self) -> bool {
        self.requester.can_post(&self.slots)
            && self
                .consumer
                .as_mut()
                .is_some_and(|c| c.available().is_ok_and(|n| n != 0))
    }

    /// Runs `f` with the requester, its slots and the environment that it acts on.
    pub(crate) fn with<R>(
        &mut self,
        qp: &Qp,
        on: Occasion<'_>,
        queue: Option<&mut TxQueue>,
        notices: &mut Notices,
        f: impl FnOnce(&mut Requester, &mut [SendSlot], &mut Env<'_>) -> R,
    ) -> R {
        // Only who sends needs the way.
        let path = self.path.as_deref().filter(|_| queue.is_some());
        let carrier =
            path.and_then(|path| Carrier::new(path, &qp.device, self.source_port, on.rcu));
        let mut env = Env {
            qp,
            on,
            local: &self.local,
            segments: &self.segments,
            max_sge: self.max_sge,
            inline: &self.inline,
            max_inline: self.max_inline,
            consumer: self.consumer.as_mut(),
            carrier,
            queue,
            notices,
        };
        f(&mut self.requester, &mut self.slots, &mut env)
    }
}

/// A work request that fails on its turn, in the place of one that makes no sense.
fn poison(request: &SendRequest) -> SendRequest {
    SendRequest {
        op: SendOp::Send,
        signaled: true,
        length: 0,
        ..*request
    }
}

/// From a work-queue entry to the core's words. What the entry names of memory comes separately.
fn decode(qp: &Qp, wqe: &SendWqe) -> (SendRequest, LocalRequest) {
    let op = match wqe.opcode {
        wr_opcode::SEND => Some(SendOp::Send),
        wr_opcode::SEND_WITH_IMM => Some(SendOp::SendImm),
        wr_opcode::SEND_WITH_INV => Some(SendOp::SendInv),
        wr_opcode::RDMA_WRITE => Some(SendOp::Write),
        wr_opcode::RDMA_WRITE_WITH_IMM => Some(SendOp::WriteImm),
        wr_opcode::RDMA_READ => Some(SendOp::Read),
        wr_opcode::ATOMIC_CMP_AND_SWP => Some(SendOp::CompareSwap),
        wr_opcode::ATOMIC_FETCH_AND_ADD => Some(SendOp::FetchAdd),
        _ => None,
    };
    let inline = wqe.flags & WQE_INLINE != 0;
    let request = SendRequest {
        op: op.unwrap_or_default(),
        fence: wqe.flags & WQE_FENCE != 0,
        signaled: qp.signal_all || wqe.flags & WQE_SIGNALED != 0,
        solicited: wqe.flags & WQE_SOLICITED != 0,
        length: 0,
        remote_addr: wqe.op.remote_addr,
        rkey: wqe.op.rkey_or_qkey,
        imm_or_key: wqe.imm_or_key,
        compare_add: wqe.op.compare_add,
        swap: wqe.op.swap,
        remote_qpn: wqe.op.remote_qpn & 0xff_ffff,
        qkey: wqe.op.rkey_or_qkey,
        pkey: limits::DEFAULT_PKEY,
    };
    let malformed = op.is_none()
        || inline && op.is_some_and(|op| op.is_read_or_atomic())
        || inline && wqe.num_sge != 0;
    let local = LocalRequest {
        wr_id: wqe.wr_id,
        num_sge: wqe.num_sge,
        inline,
        fault: malformed.then_some(Fault::Malformed),
        ah: wqe.ah,
    };
    (request, local)
}

/// What the requester acts on.
pub(crate) struct Env<'a> {
    qp: &'a Qp,
    on: Occasion<'a>,
    local: &'a [LocalRequest],
    segments: &'a [DataSegment],
    max_sge: usize,
    inline: &'a [u8],
    max_inline: usize,
    consumer: Option<&'a mut Consumer>,
    /// Connected queue pairs; `None` without a route.
    carrier: Option<Carrier<'a>>,
    queue: Option<&'a mut TxQueue>,
    notices: &'a mut Notices,
}

impl Env<'_> {
    fn local(&self, slot: u32) -> Result<LocalRequest, Fault> {
        self.local
            .get(slot as usize)
            .copied()
            .ok_or(Fault::Malformed)
    }

    /// The data segments of a work request.
    fn segments(&self, slot: u32) -> Result<Segments<'_>, Fault> {
        let local = self.local(slot)?;
        let list = self
            .segments
            .get((slot as usize).wrapping_mul(self.max_sge)..)
            .and_then(|s| s.get(..local.num_sge.into()))
            .ok_or(Fault::Malformed)?;
        Ok(Segments {
            tables: &self.qp.device.tables,
            rcu: self.on.rcu,
            pd: self.qp.pd,
            list,
        })
    }

    fn gather(&self, payload: &Payload, to: &mut [u8]) -> Result<(), Fault> {
        let Payload::Send { slot, offset, .. } = *payload else {
            return Ok(());
        };
        if !self.local(slot)?.inline {
            return self.segments(slot)?.gather(offset, to);
        }
        let from = (slot as usize)
            .wrapping_mul(self.max_inline)
            .wrapping_add(offset as usize);
        let bytes = self
            .inline
            .get(from..)
            .and_then(|b| b.get(..to.len()))
            .ok_or(Fault::Malformed)?;
        to.copy_from_slice(bytes);
        Ok(())
    }
}

impl RequesterEnv for Env<'_> {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        let local = self.local(packet.slot).map_err(TxError::Local)?;
        if let Some(fault) = local.fault {
            return Err(TxError::Local(fault));
        }
        let gather = |to: &mut [u8]| self.gather(&packet.payload, to).map_err(TxError::Local);
        let skb = if super::service(self.qp.qp_type) == rrxe_core::Service::Ud {
            let ah = self
                .qp
                .device
                .tables
                .addresses
                .get(local.ah, self.on.rcu)
                .filter(|ah| ah.pd() == self.qp.pd)
                .ok_or(TxError::Local(Fault::Malformed))?;
            let port = ah.path.info().udp_source_port(self.qp.number, 0);
            match Carrier::new(&ah.path, &self.qp.device, port, self.on.rcu) {
                Some(carrier) => carrier.packet(packet, gather)?,
                None => None,
            }
        } else {
            match &self.carrier {
                Some(carrier) => carrier.packet(packet, gather)?,
                None => None,
            }
        };
        // A packet that can't be sent is a lost packet: the protocol recovers.
        if let Some(skb) = skb {
            self.queue.as_deref_mut().ok_or(TxError::NoRoom)?.push(skb);
        }
        Ok(())
    }

    fn place_read(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let incoming = self.on.incoming.ok_or(Fault::Malformed)?;
        self.segments(slot)?.scatter_payload(offset, incoming)
    }

    fn place_atomic(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        self.segments(slot)?.scatter(0, &value.to_ne_bytes())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        if !completion.report() {
            return;
        }
        let wr_id = self.local(slot).map_or(0, |local| local.wr_id);
        let cqe = Cqe {
            wr_id,
            timestamp: self.on.now,
            byte_len: completion.byte_len,
            qp_num: self.qp.number,
            status: completion.status as u8,
            opcode: completion.op.wc_opcode(),
            vendor_err: completion.vendor_err,
            vlan_id: abi::NO_VLAN,
            ..Cqe::default()
        };
        self.notices.push(&self.qp.send_cq, &cqe, self.qp, false);
    }

    fn local_op(&mut self, _slot: u32) -> Result<(), Fault> {
        // No operation of ours is local yet, and `decode` lets none through.
        Err(Fault::Malformed)
    }
}
