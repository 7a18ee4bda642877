// SPDX-License-Identifier: GPL-2.0

//! The receive side of a queue pair: the core's responder and its environment.

use super::{
    reorder_buffer::ReorderBuffer, requester::begin_wait, BatchHalf, EventCtx, Half,
    PendingCompletions, Qp, Round, RxBatch,
};
use crate::{
    counters::Counter,
    device_core::DeviceCore,
    limits,
    mr::{pager::PageWait, KeyUser, MemoryRange, Segments},
    pd::PdId,
    ring::{
        abi::{self, Cqe, RecvWqe, Sge, CQE_GRH, CQE_SOLICITED, CQE_WITH_IMM, CQE_WITH_INV},
        wqe::{self, RecvEntry},
        Consumer,
    },
    transport::{
        payload::TxPayload,
        rx_packet::RxPacket,
        tx::{Transmitter, TxBatch, TxState},
    },
    verbs::{cq::Cq, srq::Srq},
};
use core::mem::{size_of, take};
use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow, SpinLock},
};
use linux_rdma::{
    net::{IpAddr, KeptDatagram},
    rdma::{qp::QpType, wr::wc, QpEvent},
    sync::{smp_mb, BurstGuard},
};
use rrxe_core::{
    earliest, guesses::Guesses, lengths::times, requester::MAX_FLUSH, responder::ResponderCounters,
    AtomicOp, Fault, Flush, Outcome, Packet, Payload, Psn, RecoveryMode, RecvCompletion,
    RemoteAccess, ResponderEnv, ResponderEvent, Service, Status, Time, TxError, TxPacket,
};

/// The core's responder. It has one resource for each READ or atomic that the peer may have
/// outstanding.
pub(crate) type Responder = rrxe_core::Responder<KVec<Resource>>;

/// State of a READ or atomic.
pub(crate) type Resource = rrxe_core::Resource;

/// The receive side.
pub(crate) struct RecvSide {
    pub(crate) responder: Responder,
    current: Current,
    /// `None` with a shared receive queue, and after the queue pair was destroyed.
    pub(crate) consumer: Option<Consumer>,
    pub(crate) tx: TxState,
    guesses: Guesses,
    /// Out-of-order requests.
    pub(crate) reorder_buffer: ReorderBuffer,
    /// How it waits for absent pages.
    pub(super) page_wait: Arc<PageWait>,
    /// End of the last WRITE or READ of the peer, as an address.
    message_end: u64,
    /// The counts since the queue pair was created.
    pub(super) totals: ResponderCounters,
}

/// The receive work request that the responder works on.
#[derive(Default)]
struct Current {
    wr_id: u64,
    num_sge: usize,
    /// Room for the largest number of segments of a receive.
    segments: KVVec<Sge>,
    /// The entry is malformed: the work request fails when payload is placed.
    malformed: bool,
    /// XRC: the shared receive queue that the work request comes from.
    srq: Option<Arc<Srq>>,
}

impl Current {
    /// Reads the next entry of a ring. Returns the number of bytes that it accepts.
    fn copy(&mut self, consumer: &Consumer) -> Option<u32> {
        let wqe: RecvWqe = consumer.next().ok()?;
        self.wr_id = wqe.wr_id;
        let mut entry = RecvEntry::decode(&wqe, self.segments.len());
        if let Some(to) = self.segments.get_mut(..entry.num_sge) {
            let head = size_of::<RecvWqe>();
            entry.malformed |= consumer.next_segments(head, to).is_err();
            entry.set_length(wqe::total(to));
        }
        self.num_sge = entry.num_sge;
        self.malformed = entry.malformed;
        Some(entry.length())
    }
}

impl RecvSide {
    /// Returns an initializer: the side is initialized in place, to keep it off the kernel stack.
    pub(crate) fn new(
        service: Service,
        number: u32,
        consumer: Option<Consumer>,
        max_sge: u32,
        device: Arc<DeviceCore>,
    ) -> Result<impl Init<Self>> {
        let segments = KVVec::from_elem(Sge::default(), max_sge as usize, GFP_KERNEL_ACCOUNT)?;
        let page_wait = PageWait::new(number, true, service.is_reliable())?;
        Ok(init!(Self {
            page_wait,
            message_end: 0,
            responder: Responder::new(service),
            current: Current {
                segments,
                ..Current::default()
            },
            consumer,
            tx: TxState::default(),
            guesses: Guesses::default(),
            reorder_buffer: ReorderBuffer::new(device),
            totals: ResponderCounters::default(),
        }))
    }

    /// Resets the side (Reset state).
    pub(crate) fn reset(&mut self) {
        drop(self.responder.reset());
        self.page_wait.cancel();
        self.current.srq = None;
        self.reorder_buffer.clear();
        self.tx = TxState::default();
        if let Some(consumer) = &mut self.consumer {
            consumer.discard();
            consumer.ring.want_doorbell(false);
        }
    }

    /// Calls `f` with the responder and its environment.
    #[inline]
    pub(super) fn with<R>(
        &mut self,
        ctx: EventCtx<'_>,
        batch: Option<&mut TxBatch>,
        completions: &mut PendingCompletions,
        f: impl FnOnce(&mut Responder, &mut Env<'_>) -> R,
    ) -> R {
        let mut env = Env {
            ctx,
            current: &mut self.current,
            guesses: &mut self.guesses,
            consumer: self.consumer.as_mut(),
            transmitter: Transmitter::new(ctx.tx(), &self.tx),
            completions,
            page_wait: &self.page_wait,
            message_end: &mut self.message_end,
        };
        if let Some(batch) = batch {
            let last = self.tx.transport.get();
            env.transmitter.open_batch(batch, || last);
        }
        let result = f(&mut self.responder, &mut env);
        env.transmitter.finish();
        result
    }

    /// Enters the Error state: completes the current receive work request as flushed, and asks the
    /// consumer to ring the doorbell for new ones. [`RecvSide::flush`] completes the others.
    pub(crate) fn enter_error(&mut self, ctx: EventCtx<'_>, completions: &mut PendingCompletions) {
        self.with(ctx, None, completions, |responder, env| {
            responder.enter_error(env);
            if let Some(consumer) = &env.consumer {
                consumer.ring.want_doorbell(true);
            }
            // Orders the store of the doorbell word before the loads of the ring: a program that
            // posts later rings the doorbell.
            smp_mb();
        });
    }

    /// Completes at most [`MAX_FLUSH`] receive work requests as flushed. Returns whether more are
    /// left. Work requests of a shared receive queue stay there for other queue pairs, except for
    /// the one that this queue pair has fetched (J-15).
    fn flush(&mut self, ctx: EventCtx<'_>, completions: &mut PendingCompletions) -> bool {
        let Some(mut left) = self.consumer.as_mut().and_then(|c| c.available().ok()) else {
            return false;
        };
        self.with(ctx, None, completions, |_, env| {
            for _ in 0..left.min(MAX_FLUSH) {
                if env.fetch_recv().is_none() {
                    left = 0;
                    break;
                }
                env.complete_recv(RecvCompletion::new(Status::WrFlush));
            }
        });
        left > MAX_FLUSH
    }
}

impl Half for RecvSide {
    const IS_RECV: bool = true;

    #[inline]
    fn side(qp: &Qp) -> &SpinLock<Self> {
        &qp.recv
    }

    fn cq(qp: &Qp) -> &Arc<Cq> {
        &qp.recv_cq
    }

    #[inline]
    fn of_batch<'b, 'a>(batch: &'b mut RxBatch<'a>) -> &'b mut BatchHalf<'a, Self> {
        &mut batch.recv
    }

    #[inline]
    fn count(&mut self, qp: &Qp) {
        if self.responder.counters != ResponderCounters::default() {
            let new = take(&mut self.responder.counters);
            qp.with_counters(|counters| counters.responder(&new));
            self.totals.add(&new);
        }
    }

    #[inline]
    fn tx(&self) -> &TxState {
        &self.tx
    }

    fn expected_psn(&self) -> Psn {
        Psn::new(self.responder.expected_psn())
    }

    fn reorder_buffer(&mut self) -> &mut ReorderBuffer {
        &mut self.reorder_buffer
    }

    fn cnp(&self, packet: &Packet) -> Option<TxPacket> {
        self.responder.cnp(packet)
    }

    fn accepts_burst(&self, packet: &Packet) -> u32 {
        self.responder.accepts_burst(packet)
    }

    #[inline]
    fn handle_packet(
        &mut self,
        incoming: &RxPacket<'_>,
        ctx: EventCtx<'_>,
        completions: &mut PendingCompletions,
    ) -> Outcome {
        let (qp, expected) = (ctx.qp, self.responder.expected_psn());
        let mut outcome = self.with(ctx, None, completions, |responder, env| {
            responder.handle_packet(incoming.now, incoming.packet, env)
        });
        if self.responder.expected_psn() != expected {
            qp.with_counters(|counters| counters.request(incoming.packet.operation));
        }
        outcome.buffer &= qp.recovery == RecoveryMode::Selective;
        outcome
    }

    fn on_memory_present(&mut self, _now: Time) -> Outcome {
        self.responder.on_memory_present()
    }

    fn next_buffered(&mut self) -> Option<KeptDatagram> {
        let responder = &self.responder;
        let expected = Psn::new(responder.expected_psn());
        self.reorder_buffer
            .next(expected, |psn| responder.is_due(psn))
    }

    fn on_buffered(&mut self, ctx: EventCtx<'_>, _completions: &mut PendingCompletions) -> Outcome {
        let beyond = self.reorder_buffer.len();
        self.responder.on_buffered(ctx.now, beyond)
    }

    #[inline]
    fn next_timeout(&self) -> Option<Time> {
        earliest([self.responder.next_timeout(), self.reorder_buffer.expires()])
    }

    fn fill(&mut self, qp: &Qp, round: &mut Round) {
        let burst = BurstGuard::enter();
        let ctx = EventCtx::now(qp, &burst);
        let (batch, completions) = (&mut round.batch, &mut round.completions);
        let is_failed = self.responder.is_failed();
        let progress = self.with(ctx, Some(batch), completions, |responder, env| {
            let progress = responder.poll_transmit(ctx.now, limits::path::BATCH, env);
            round.blocked = progress.more && env.transmitter.space == 0;
            progress
        });
        let more = progress.more || is_failed && self.flush(ctx, completions);
        if self.responder.rate.wakeup.is_some() {
            qp.count(Counter::Throttled);
        }
        round.more = more && !round.blocked;
        round.fatal = progress.fatal;
    }
}

/// The responder's environment.
pub(crate) struct Env<'a> {
    ctx: EventCtx<'a>,
    current: &'a mut Current,
    guesses: &'a mut Guesses,
    consumer: Option<&'a mut Consumer>,
    transmitter: Transmitter<'a, Qp>,
    completions: &'a mut PendingCompletions,
    page_wait: &'a Arc<PageWait>,
    message_end: &'a mut u64,
}

impl Env<'_> {
    fn segments(&self) -> Result<Segments<'_>, Fault> {
        if self.current.malformed {
            return Err(Fault::Malformed);
        }
        let srq = self.current.srq.as_ref().or(self.ctx.qp.srq.as_ref());
        let list = self.current.segments.get(..self.current.num_sge);
        Ok(Segments {
            mrs: &self.ctx.qp.device.tables.mrs,
            burst: self.ctx.burst,
            pd: srq.map_or(self.ctx.qp.pd, |srq| srq.pd),
            list: list.ok_or(Fault::Malformed)?,
        })
    }

    /// Returns the result of an access to a range for writing, which begins at address `va`. Waits
    /// for the range if it is absent.
    #[inline]
    fn or_wait_for<T>(
        &self,
        range: &MemoryRange<'_>,
        va: u64,
        result: Result<T, Fault>,
    ) -> Result<T, Fault> {
        match result {
            Err(Fault::NotPresent) => Err(self.wait_for(range, va, true)),
            result => result,
        }
    }

    /// Waits for a range at address `va` that has been found absent, and for the rest of the
    /// message. Returns the fault of the access.
    #[cold]
    fn wait_for(&self, range: &MemoryRange<'_>, va: u64, write: bool) -> Fault {
        let rest = self.message_end.saturating_sub(va);
        let absent = range.absent(write).map(|(absent, _)| absent.extended(rest));
        begin_wait(self.page_wait, absent)
    }

    /// Waits for the memory of a READ that has been found absent. Returns the error of the
    /// transmission.
    #[cold]
    fn wait_for_payload(&self, user: KeyUser, rkey: u32, va: u64, len: u32) -> TxError {
        let EventCtx { qp, burst, .. } = self.ctx;
        let mrs = &qp.device.tables.mrs;
        let range = mrs.remote(burst, user, rkey, va, len, RemoteAccess::Read);
        let fault = range.map(|range| self.wait_for(&range, va, false));
        fault.unwrap_or_else(|fault| fault).into()
    }

    /// XRC: returns the shared receive queue that the current packet names.
    fn xrc_srq(&self, srqn: u32) -> Result<ArcBorrow<'_, Srq>, Fault> {
        let domain = self.ctx.qp.xrc_domain.ok_or(Fault::Protection)?;
        let srq = self.ctx.qp.device.tables.srqs.get(srqn, self.ctx.burst);
        srq.filter(|srq| srq.xrc_domain == Some(domain))
            .ok_or(Fault::Protection)
    }

    /// Returns the protection domain that the peer's accesses are checked against. For XRC it is
    /// the domain of the shared receive queue that each request names (IBA A14).
    fn remote_pd(&self) -> Result<PdId, Fault> {
        if self.ctx.qp.xrc_domain.is_none() {
            return Ok(self.ctx.qp.pd);
        }
        let incoming = self.ctx.incoming.ok_or(Fault::Protection)?;
        Ok(self.xrc_srq(incoming.packet.xrc_srqn)?.pd)
    }

    /// Returns the bytes at `va`, if the peer may access them under the rights of a protection
    /// domain.
    fn remote(
        &self,
        pd: PdId,
        rkey: u32,
        va: u64,
        len: u32,
        wants: RemoteAccess,
    ) -> Result<MemoryRange<'_>, Fault> {
        let EventCtx { qp, burst, .. } = self.ctx;
        let mrs = &qp.device.tables.mrs;
        mrs.remote(burst, qp.keys(pd), rkey, va, len, wants)
    }
}

impl ResponderEnv for Env<'_> {
    fn fetch_recv(&mut self) -> Option<u32> {
        if let Some(srq) = &self.ctx.qp.srq {
            return Srq::fetch(srq.as_arc_borrow(), |consumer| self.current.copy(consumer));
        }
        let consumer = self.consumer.as_mut()?;
        // A ring with an impossible producer counter is treated as empty.
        if consumer.available().ok()? == 0 {
            return None;
        }
        let length = self.current.copy(consumer)?;
        consumer.advance();
        Some(length)
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<u32>, Fault> {
        let srq: Arc<Srq> = self.xrc_srq(srqn)?.into();
        let length = Srq::fetch(srq.as_arc_borrow(), |consumer| self.current.copy(consumer));
        self.current.srq = Some(srq);
        Ok(length)
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        let incoming = self.ctx.incoming.ok_or(Fault::Malformed)?;
        let segments = self.segments()?;
        let mut from = offset;
        let mut written = Ok(());
        if !self.ctx.qp.qp_type.is_connected() {
            from = 0;
            written = segments.scatter(0, &incoming.grh());
        }
        let written = written.and_then(|()| incoming.scatter(offset, &segments));
        if written == Err(Fault::NotPresent) {
            return Err(begin_wait(self.page_wait, segments.absent(from, true)));
        }
        written
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<PdId, Fault> {
        let pd = self.remote_pd()?;
        let is_limited = self.ctx.qp.qp_type == QpType::Uc;
        if is_limited && !self.guesses.may_try(rkey, self.ctx.now) {
            return Err(Fault::Protection);
        }
        // The whole message comes in if the packet being handled needs an absent page of it. For a
        // message of one packet, the access itself finds that.
        let first = self.ctx.incoming.map_or(0, |i| i.packet.payload_len);
        let first = if first < len { first } else { 0 };
        let found = self.remote(pd, rkey, va, len, access);
        let absent = found.map(|range| match range.is_present(first, true) {
            true => None,
            false => range.absent(true),
        });
        let absent = match absent {
            Ok(absent) => absent,
            Err(fault) => {
                self.guesses.note_invalid(self.ctx.now);
                return Err(fault);
            }
        };
        *self.message_end = va.saturating_add(len.into());
        if is_limited {
            self.guesses.note_accepted(rkey);
        }
        match absent {
            None => Ok(pd),
            absent => Err(begin_wait(self.page_wait, absent.map(|(absent, _)| absent))),
        }
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let incoming = self.ctx.incoming.ok_or(Fault::Malformed)?;
        let (pd, len) = (self.remote_pd()?, incoming.packet.payload_len);
        let range = self.remote(pd, rkey, va, len, RemoteAccess::Write)?;
        let written = incoming.copy_to_range(0, incoming.payload_len(), &range);
        self.or_wait_for(&range, va, written)
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        let range = self.remote(self.remote_pd()?, rkey, va, 8, RemoteAccess::Atomic)?;
        self.or_wait_for(&range, va, range.atomic(op))
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let incoming = self.ctx.incoming.ok_or(Fault::Malformed)?;
        let mut bytes = [0; 8];
        incoming.copy_payload(&mut bytes)?;
        let range = self.remote(self.remote_pd()?, rkey, va, 8, RemoteAccess::Write)?;
        self.or_wait_for(&range, va, range.store(u64::from_ne_bytes(bytes)))
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        let mrs = &self.ctx.qp.device.tables.mrs;
        mrs.flush(self.ctx.burst, self.remote_pd()?, rkey, flush)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        let mrs = &self.ctx.qp.device.tables.mrs;
        mrs.invalidate(self.ctx.burst, self.ctx.qp.keys(self.remote_pd()?), rkey)
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let EventCtx { qp, now, .. } = self.ctx;
        match completion.status {
            Status::Success => {}
            Status::WrFlush => qp.count(Counter::ResponderFlushes),
            _ => qp.count(Counter::ResponderErrors),
        }
        let mut cqe = Cqe {
            wr_id: self.current.wr_id,
            timestamp: now.ns(),
            byte_len: completion.byte_len,
            qp_num: qp.number,
            src_qp: completion.src_qp,
            status: completion.status as u8,
            opcode: completion.opcode as u8,
            vlan_id: abi::NO_VLAN,
            ..Cqe::default()
        };
        if let Some(imm) = completion.imm {
            cqe.imm_or_key = imm;
            cqe.flags |= CQE_WITH_IMM;
        }
        if let Some(key) = completion.invalidated {
            cqe.imm_or_key = key;
            cqe.flags |= CQE_WITH_INV;
        }
        if completion.solicited {
            cqe.flags |= CQE_SOLICITED;
        }
        if let (Some(incoming), QpType::Ud | QpType::Gsi) = (self.ctx.incoming, qp.qp_type) {
            cqe.flags |= CQE_GRH;
            if let Some(skb) = incoming.skb() {
                cqe.smac = skb.source_mac().unwrap_or_default();
                cqe.vlan_id = incoming
                    .vlan_id(&qp.device.interfaces, self.ctx.burst)
                    .unwrap_or(abi::NO_VLAN);
                cqe.network_hdr_type = match skb.source() {
                    IpAddr::V4(_) => wc::NETWORK_IPV4,
                    IpAddr::V6(_) => wc::NETWORK_IPV6,
                };
            }
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        // XRC: the shared receive queue determines the completion queue.
        match &self.current.srq.take() {
            Some(srq) => self.completions.push_to(srq, &cqe, qp),
            None => self.completions.push(&qp.recv_cq, &cqe, qp),
        }
    }

    fn event(&mut self, event: ResponderEvent) {
        match event {
            ResponderEvent::CommEstablished => self.ctx.qp.raise(QpEvent::CommunicationEstablished),
            ResponderEvent::AccessError => self.ctx.qp.raise(QpEvent::AccessError),
            ResponderEvent::RequestError => self.ctx.qp.raise(QpEvent::RequestError),
            ResponderEvent::Fatal => self.ctx.qp.raise(QpEvent::Fatal),
            ResponderEvent::PkeyViolation => self.ctx.qp.device.count_bad_pkeys(1),
            ResponderEvent::QkeyViolation => self.ctx.qp.device.count_bad_qkey(),
        }
    }

    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        let Payload::Read {
            domain, rkey, va, ..
        } = packet.payload
        else {
            // Need not wait for space: the received packets bound the number of these.
            return self.transmitter.send(packet, count, &TxPayload::None);
        };
        let user = self.ctx.qp.keys(domain);
        let payload = TxPayload::Region { user, rkey, va };
        let (sent, result) = match self.transmitter.space {
            0 => (0, Err(TxError::Full)),
            space if space < count => {
                let (sent, result) = self.transmitter.send(packet, space, &payload);
                (sent, result.and(Err(TxError::Full)))
            }
            _ => self.transmitter.send(packet, count, &payload),
        };
        if result == Err(TxError::Payload(Fault::NotPresent)) {
            let len = packet.payload.len();
            let at = times(sent, len) as u32;
            let left = (times(count, len) as u32).saturating_sub(at);
            let error = self.wait_for_payload(user, rkey, va.saturating_add(at.into()), left);
            return (sent, Err(error));
        }
        (sent, result)
    }
}
