// SPDX-License-Identifier: GPL-2.0

//! The send side of a queue pair: the core's requester and its environment.

use super::{
    moderation::{DoorbellModeration, FetchStats},
    reorder_buffer::ReorderBuffer,
    service, BatchHalf, EventCtx, Half, PendingCompletions, Qp, Round, RxBatch,
};
use crate::{
    counters::Counter,
    device_core::DeviceCore,
    limits,
    mr::{
        pager::{Absent, PageWait},
        Segments,
    },
    ring::{
        abi::{self, Cqe, SendWqe, Sge},
        wqe::{self, Data, LocalOp, LocalPart, SendBounds, SendSlot},
        Consumer, Ring,
    },
    transport::{
        payload::TxPayload,
        rx_packet::RxPacket,
        tx::{Transmitter, TxBatch, TxState},
    },
    verbs::cq::Cq,
};
use core::mem::{size_of, take};
use kernel::{
    prelude::*,
    sync::{Arc, SpinLock},
};
use linux_rdma::{
    net::KeptDatagram,
    rdma::{
        qp::{QpCap, QpState},
        QpEvent,
    },
    sync::{arc_borrow_ref, smp_mb, BurstGuard},
};
use rrxe_core::{
    earliest, lengths::times, requester::RequesterCounters, Destination, Fault, Outcome, Packet,
    Payload, Psn, Requester, RequesterEnv, SendCompletion, SendOp, Service, Status, Time, TxError,
    TxPacket,
};

/// The send side.
pub(crate) struct SendSide {
    pub(crate) requester: Requester,
    pub(crate) slots: KVVec<SendSlot>,
    segments: SlotArrays<Sge>,
    inline: SlotArrays<u8>,
    /// `None` once the queue pair is destroyed.
    pub(crate) consumer: Option<Consumer>,
    pub(crate) tx: TxState,
    /// The consumer asked to be told when the send queue has drained, and has not been told yet.
    pub(crate) notify_drained: bool,
    /// Out-of-order responses.
    pub(crate) reorder_buffer: ReorderBuffer,
    moderation: DoorbellModeration,
    /// How it waits for absent pages.
    pub(super) page_wait: Arc<PageWait>,
    /// The counts since the queue pair was created.
    pub(super) totals: RequesterCounters,
    /// Status of the last work request that has failed, since the last reset.
    pub(super) last_error: Option<Status>,
}

/// An array for each slot of a send queue.
struct SlotArrays<T> {
    elements: KVVec<T>,
    /// Elements of each array.
    len: usize,
}

impl<T: Clone + Default> SlotArrays<T> {
    fn new(slots: u32, len: u32) -> Result<Self> {
        let (slots, len) = (slots as usize, len as usize);
        let count = slots.checked_mul(len).ok_or(EINVAL)?;
        let elements = KVVec::from_elem(T::default(), count, GFP_KERNEL_ACCOUNT)?;
        Ok(Self { elements, len })
    }

    /// Returns the index of the first element of a slot's array.
    #[inline]
    fn start(&self, slot: u32) -> usize {
        times(slot, self.len as u32) as usize
    }

    /// Returns the first `n` elements of a slot's array.
    #[inline]
    fn get(&self, slot: u32, n: u32) -> Option<&[T]> {
        self.elements.get(self.start(slot)..)?.get(..n as usize)
    }

    /// Returns the first `n` elements of a slot's array.
    #[inline]
    fn get_mut(&mut self, slot: u32, n: u32) -> Option<&mut [T]> {
        let start = self.start(slot);
        self.elements.get_mut(start..)?.get_mut(..n as usize)
    }
}

impl SendSide {
    /// Returns an initializer: the side is initialized in place, because it is too large for the
    /// kernel stack and a move would copy it several times.
    pub(crate) fn new(
        service: Service,
        number: u32,
        ring: Ring,
        cap: &QpCap,
        device: Arc<DeviceCore>,
    ) -> Result<impl Init<Self>> {
        let capacity = ring.capacity;
        let consumer = Consumer::new(ring);
        // No thread polls the ring yet: the program must ring the doorbell for each batch.
        consumer.ring.want_doorbell(true);
        let slot = SendSlot::default();
        let mut slots = KVVec::from_elem(slot, capacity as usize, GFP_KERNEL_ACCOUNT)?;
        for (index, slot) in (0..capacity).zip(slots.iter_mut()) {
            slot.local.index = index;
        }
        let segments = SlotArrays::new(capacity, cap.max_send_sge)?;
        let inline = SlotArrays::new(capacity, cap.max_inline_data)?;
        let recovery = device.config.recovery;
        let page_wait = PageWait::new(number, false, true)?;
        let side = init!(Self {
            requester: Requester::new(service),
            slots,
            segments,
            inline,
            consumer: Some(consumer),
            tx: TxState::default(),
            notify_drained: false,
            reorder_buffer: ReorderBuffer::new(device),
            moderation: DoorbellModeration::default(),
            page_wait,
            totals: RequesterCounters::default(),
            last_error: None,
        });
        Ok(side.chain(move |side| {
            side.requester.src_qpn = number;
            side.requester.buffering = true;
            side.requester.set_recovery(recovery);
            Ok(())
        }))
    }

    /// Copies up to [`limits::path::MAX_FETCH`] work requests from the ring to free slots. Returns
    /// `EINVAL` if the ring is malformed: the queue pair must enter the Error state.
    fn fetch(&mut self, qp: &Qp) -> Result<FetchStats> {
        let mut fetched = FetchStats::default();
        let Some(consumer) = &mut self.consumer else {
            return Ok(fetched);
        };
        let bounds = SendBounds {
            service: service(qp.qp_type),
            is_user: qp.is_user,
            signal_all: qp.signal_all,
            max_sge: qp.cap.max_send_sge,
            max_inline: qp.cap.max_inline_data,
        };
        let head = size_of::<SendWqe>();
        for _ in 0..consumer.available()?.min(limits::path::MAX_FETCH) {
            let Some(slot) = self.requester.free_slot(&mut self.slots) else {
                break;
            };
            let wqe: SendWqe = consumer.next()?;
            wqe.decode(slot, &bounds);
            match slot.local.data {
                Data::None => {}
                Data::Inline => {
                    let to = self.inline.get_mut(slot.local.index, slot.length);
                    consumer.next_bytes(head, to.ok_or(EINVAL)?)?;
                }
                Data::Segments(n) => {
                    let to = self.segments.get_mut(slot.local.index, n.into());
                    let to = to.ok_or(EINVAL)?;
                    consumer.next_segments(head, to)?;
                    wqe::set_length(slot, wqe::total(to));
                }
            }
            self.requester.post(slot);
            fetched.add(slot.length);
            consumer.advance();
        }
        Ok(fetched)
    }

    /// Tells the program when to ring the next doorbell. Must be called after [`SendSide::fetch`].
    fn moderate_doorbells(&mut self, qp: &Qp, fetched: FetchStats, now: Time) {
        if !qp.is_moderated() || qp.state.get() != QpState::Rts {
            self.end_stream(qp);
            return;
        }
        let was = self.is_streaming();
        self.moderation.update(fetched, &qp.moderation_events, now);
        match &self.consumer {
            Some(consumer) if self.is_streaming() => {
                let interval = self.moderation.doorbell_interval(consumer.ring.capacity);
                consumer.want_doorbell_after(interval);
            }
            Some(_) if was => self.want_doorbell(),
            _ => {}
        }
    }

    /// Returns whether the program is streaming: it need not ring the doorbell for each batch.
    fn is_streaming(&self) -> bool {
        self.moderation.is_streaming()
    }

    /// Asks the program to ring the doorbell for each batch again. Returns whether a stream was on.
    pub(crate) fn end_stream(&mut self, qp: &Qp) -> bool {
        let was = self.is_streaming();
        if was {
            self.moderation.end(&qp.moderation_events);
            self.want_doorbell();
        }
        was
    }

    fn want_doorbell(&self) {
        if let Some(consumer) = &self.consumer {
            consumer.ring.want_doorbell(true);
        }
        // Either the program sees the request, or the caller, which polls the ring once more, sees
        // what the program has posted.
        smp_mb();
    }

    /// Resets the side (Reset state).
    pub(crate) fn reset(&mut self, qp: &Qp) {
        self.requester.reset();
        self.page_wait.cancel();
        self.reorder_buffer.clear();
        self.end_stream(qp);
        self.moderation = DoorbellModeration::default();
        self.tx = TxState::default();
        self.notify_drained = false;
        self.last_error = None;
        if let Some(consumer) = &mut self.consumer {
            consumer.discard();
        }
    }

    /// Returns whether everything sent before the Send Queue Drained state is acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.is_drained(&self.slots)
    }

    /// Returns the number of work requests that can be outstanding.
    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns whether work requests wait in the ring although a slot is free.
    pub(crate) fn has_backlog(&self) -> bool {
        self.requester.can_post(&self.slots)
            && self.consumer.as_ref().is_some_and(Consumer::is_waiting)
    }

    /// Calls `f` with the requester, its slots and its environment.
    #[inline]
    pub(super) fn with<R>(
        &mut self,
        ctx: EventCtx<'_>,
        batch: Option<&mut TxBatch>,
        completions: &mut PendingCompletions,
        f: impl FnOnce(&mut Requester, &mut [SendSlot], &mut Env<'_>) -> R,
    ) -> R {
        let (tx, requester) = (&self.tx, &self.requester);
        let mut env = Env {
            work: WorkData {
                ctx,
                segments: &self.segments,
                inline: &self.inline,
            },
            consumer: self.consumer.as_mut(),
            transmitter: Transmitter::new(ctx.tx(), tx),
            completions,
            page_wait: &self.page_wait,
            last_error: &mut self.last_error,
        };
        if let Some(batch) = batch {
            let transport = env.transmitter.open_batch(batch, || {
                let is_idle = ctx.qp.is_reliable() && !requester.has_unacknowledged();
                let is_same_device = ctx.qp.peer(requester.dest_qpn, ctx.burst).is_some();
                tx.transport.get().select(is_same_device, is_idle)
            });
            tx.transport.set(transport);
        }
        let result = f(&mut self.requester, &mut self.slots, &mut env);
        env.transmitter.finish();
        result
    }

    /// Takes the delayed ACK, if there is one, for the messages that are about to be sent. If
    /// another context holds the receive lock, the ACK follows them ([`Round::ack_missed`]).
    ///
    /// [`Qp::end_recv`] takes pending ACKs from the receive side, and only after that may the send
    /// side lose its path. An ACK is therefore always on a side that can still send it. The caller
    /// does not wait for the receive lock, which another context may hold for a batch of packets.
    fn take_delayed_ack(&self, qp: &Qp, round: &mut Round, now: Time) -> Option<TxPacket> {
        if !qp.is_reliable() || !self.has_backlog() {
            return None;
        }
        let recv = qp.recv.try_lock();
        round.ack_missed = recv.is_none();
        recv?.responder.on_reply(now)
    }
}

impl Half for SendSide {
    const IS_RECV: bool = false;

    #[inline]
    fn side(qp: &Qp) -> &SpinLock<Self> {
        &qp.send
    }

    fn cq(qp: &Qp) -> &Arc<Cq> {
        &qp.send_cq
    }

    #[inline]
    fn of_batch<'b, 'a>(batch: &'b mut RxBatch<'a>) -> &'b mut BatchHalf<'a, Self> {
        &mut batch.send
    }

    #[inline]
    fn count(&mut self, qp: &Qp) {
        if self.requester.counters == RequesterCounters::default() {
            return;
        }
        let new = take(&mut self.requester.counters);
        qp.with_counters(|counters| counters.requester(&new));
        self.totals.add(&new);
        if new.bad_pkeys != 0 {
            qp.device.count_bad_pkeys(new.bad_pkeys.get());
        }
    }

    #[inline]
    fn tx(&self) -> &TxState {
        &self.tx
    }

    fn expected_psn(&self) -> Psn {
        self.requester.expected_psn()
    }

    fn reorder_buffer(&mut self) -> &mut ReorderBuffer {
        &mut self.reorder_buffer
    }

    fn cnp(&self, packet: &Packet) -> Option<TxPacket> {
        self.requester.cnp(packet)
    }

    fn accepts_burst(&self, packet: &Packet) -> u32 {
        self.requester.accepts_burst(&self.slots, packet)
    }

    #[inline]
    fn handle_packet(
        &mut self,
        incoming: &RxPacket<'_>,
        ctx: EventCtx<'_>,
        completions: &mut PendingCompletions,
    ) -> Outcome {
        self.with(ctx, None, completions, |requester, slots, env| {
            requester.handle_packet(slots, incoming.now, incoming.packet, env)
        })
    }

    fn on_memory_present(&mut self, now: Time) -> Outcome {
        self.requester.on_memory_present(&self.slots, now)
    }

    fn next_buffered(&mut self) -> Option<KeptDatagram> {
        let (requester, slots) = (&self.requester, &self.slots);
        let due = |psn| requester.is_due(slots, psn);
        self.reorder_buffer.next(requester.expected_psn(), due)
    }

    fn on_buffered(&mut self, ctx: EventCtx<'_>, completions: &mut PendingCompletions) -> Outcome {
        let beyond = self.reorder_buffer.len();
        self.with(ctx, None, completions, |requester, slots, env| {
            requester.on_buffered(slots, ctx.now, beyond, env)
        })
    }

    #[inline]
    fn next_timeout(&self) -> Option<Time> {
        earliest([
            self.requester.next_timeout(),
            self.moderation.next_poll(),
            self.reorder_buffer.expires(),
        ])
    }

    fn handle_timeout(
        &mut self,
        ctx: EventCtx<'_>,
        completions: &mut PendingCompletions,
    ) -> Outcome {
        self.with(ctx, None, completions, |requester, slots, env| {
            if ctx.qp.local.is_waiting() {
                requester.restart_timers(ctx.now);
            }
            requester.handle_timeout(slots, ctx.now, env)
        })
    }

    /// An ACK may have freed slots for work requests in the ring, or drained the queue.
    #[inline]
    fn wants_round(&self) -> bool {
        self.has_backlog() || self.notify_drained || self.is_streaming()
    }

    #[inline]
    fn fill(&mut self, qp: &Qp, round: &mut Round) {
        let burst = BurstGuard::enter();
        let ctx = EventCtx::now(qp, &burst);
        let acknowledgement = self.take_delayed_ack(qp, round, ctx.now);
        let fetched = self.fetch(qp);
        match fetched {
            Ok(fetched) => self.moderate_doorbells(qp, fetched, ctx.now),
            Err(_) => round.fatal = true,
        }
        let (batch, completions) = (&mut round.batch, &mut round.completions);
        let progress = self.with(ctx, Some(batch), completions, |requester, slots, env| {
            let budget = limits::path::BATCH.min(env.transmitter.space);
            let progress = requester.poll_transmit(slots, ctx.now, budget, env);
            let used_up = progress.sent == budget && budget < limits::path::BATCH;
            // A flush needs no space in the local queue.
            round.blocked = progress.more && used_up && !requester.is_flushing();
            if let Some(packet) = &acknowledgement {
                // If the ACK can't be sent it is lost, and the peer asks again.
                let _ = env.transmitter.send(packet, 1, &TxPayload::None);
            }
            progress
        });
        if acknowledgement.is_some() && progress.sent != 0 {
            qp.count(Counter::PiggybackedAcks);
        }
        round.fatal |= progress.fatal;
        round.more = !round.blocked && (progress.more || (!round.fatal && self.has_backlog()));
        if progress.sqe {
            qp.state.fail_send_queue();
        }
        if self.notify_drained && self.is_drained() {
            self.notify_drained = false;
            qp.raise(QpEvent::SendQueueDrained);
        }
        let is_idle = fetched.is_ok_and(|fetched| fetched.count == 0);
        round.waiting = is_idle && self.is_streaming();
        if self.requester.is_throttled() {
            qp.count(Counter::Throttled);
        }
    }
}

/// Waits for memory that an access has found absent. Returns the fault of the access.
#[cold]
pub(super) fn begin_wait(wait: &Arc<PageWait>, absent: Option<Absent>) -> Fault {
    // Without such memory, its region was deregistered meanwhile.
    absent.map_or(Fault::Protection, |absent| PageWait::begin(wait, absent))
}

/// The requester's environment.
pub(crate) struct Env<'a> {
    work: WorkData<'a>,
    consumer: Option<&'a mut Consumer>,
    transmitter: Transmitter<'a, Qp>,
    completions: &'a mut PendingCompletions,
    page_wait: &'a Arc<PageWait>,
    last_error: &'a mut Option<Status>,
}

/// Access to the data of a queue pair's work requests.
#[derive(Clone, Copy)]
struct WorkData<'a> {
    ctx: EventCtx<'a>,
    segments: &'a SlotArrays<Sge>,
    inline: &'a SlotArrays<u8>,
}

impl WorkData<'_> {
    /// Returns the data segments of a work request.
    fn segments(&self, slot: &SendSlot) -> Result<Segments<'_>, Fault> {
        let Data::Segments(n) = slot.local.data else {
            return Err(Fault::Malformed);
        };
        let list = self.segments.get(slot.local.index, n.into());
        Ok(Segments {
            mrs: &self.ctx.qp.device.tables.mrs,
            burst: self.ctx.burst,
            pd: self.ctx.qp.pd,
            list: list.ok_or(Fault::Malformed)?,
        })
    }

    /// Returns the location of the payload of a packet, and of those that follow it.
    fn payload<'a>(
        &'a self,
        packet: &TxPacket,
        slot: &'a SendSlot,
    ) -> Result<TxPayload<'a>, Fault> {
        let Payload::Send { offset, .. } = packet.payload else {
            return Ok(TxPayload::None);
        };
        let bytes = match (slot.local.data, &slot.op) {
            (_, SendOp::AtomicWrite { value, .. }) => Some(value.as_slice()),
            (Data::Segments(_), _) => {
                return Ok(TxPayload::Segments(self.segments(slot)?, offset));
            }
            (Data::Inline, _) => self.inline.get(slot.local.index, slot.length),
            (Data::None, _) => None,
        };
        let bytes = bytes.and_then(|bytes| bytes.get(offset as usize..));
        Ok(TxPayload::Bytes(bytes.ok_or(Fault::Malformed)?))
    }
}

impl Env<'_> {
    /// Waits for the data of a work request from byte `offset` on, which an access has found
    /// absent. Returns the fault of the access.
    #[cold]
    fn wait_for(&self, slot: &SendSlot, offset: u32, write: bool) -> Fault {
        let absent = self.work.segments(slot).ok();
        let absent = absent.and_then(|segments| segments.absent(offset, write));
        begin_wait(self.page_wait, absent)
    }

    /// Returns the result of writing to the data of a work request from byte `offset` on. Waits for
    /// the data if it is absent.
    #[inline]
    fn or_wait_for(
        &self,
        slot: &SendSlot,
        offset: u32,
        written: Result<(), Fault>,
    ) -> Result<(), Fault> {
        match written {
            Err(Fault::NotPresent) => Err(self.wait_for(slot, offset, true)),
            written => written,
        }
    }

    /// Sets the path of a datagram from its address handle.
    #[inline(never)]
    fn set_path(&mut self, to: Destination) -> Result<(), Fault> {
        let EventCtx { qp, burst, .. } = self.work.ctx;
        let handles = &qp.device.tables.addresses;
        let ah = handles.get(to.ah, burst).map(arc_borrow_ref);
        let ah = ah.filter(|ah| ah.pd == qp.pd);
        let path = &ah.ok_or(Fault::Malformed)?.path;
        let port = || path.info.udp_source_port(qp.number, 0);
        self.transmitter.set_path(path, port);
        Ok(())
    }
}

impl RequesterEnv for Env<'_> {
    type Local = LocalPart;

    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        // The path of a connected queue pair never changes.
        if let SendOp::Datagram { to, .. } = slot.op {
            if let Err(fault) = self.set_path(to) {
                return (0, Err(fault.into()));
            }
        }
        let (sent, result) = match self.work.payload(packet, slot) {
            Ok(payload) => self.transmitter.send(packet, count, &payload),
            Err(fault) => (0, Err(fault.into())),
        };
        if result == Err(TxError::Payload(Fault::NotPresent)) {
            let at = times(sent, packet.payload.len()) as u32;
            let offset = match packet.payload {
                Payload::Send { offset, .. } => offset.saturating_add(at),
                _ => at,
            };
            let fault = self.wait_for(slot, offset, false);
            return (sent, Err(fault.into()));
        }
        (sent, result)
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        let incoming = self.work.ctx.incoming.ok_or(Fault::Malformed)?;
        let written = incoming.scatter(offset, &self.work.segments(slot)?);
        self.or_wait_for(slot, offset, written)
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, value: u64) -> Result<(), Fault> {
        let written = self.work.segments(slot)?.scatter(0, &value.to_ne_bytes());
        self.or_wait_for(slot, 0, written)
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        let EventCtx { qp, now, .. } = self.work.ctx;
        match completion.status {
            Status::Success => {}
            Status::WrFlush => qp.count(Counter::RequesterFlushes),
            error => {
                *self.last_error = Some(error);
                qp.count(Counter::RequesterErrors);
            }
        }
        if !completion.report() {
            return;
        }
        let cqe = Cqe {
            wr_id: slot.local.wr_id,
            timestamp: now.ns(),
            byte_len: completion.byte_len,
            qp_num: qp.number,
            status: completion.status as u8,
            opcode: wqe::wc_opcode(&slot.op),
            vendor_err: completion.vendor_err,
            vlan_id: abi::NO_VLAN,
            ..Cqe::default()
        };
        self.completions.push(&qp.send_cq, &cqe, qp);
    }

    fn reserve_rnr_retry(&mut self, now: Time) -> Time {
        let qp = self.work.ctx.qp;
        qp.device.tables.quotas.reserve_rnr_retry(qp.payer, now)
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Status> {
        let EventCtx { qp, burst, .. } = self.work.ctx;
        let (mrs, by) = (&qp.device.tables.mrs, qp.keys(qp.pd));
        let SendOp::Local(op) = &slot.op else {
            return Err(Status::LocQpOp);
        };
        let result = match op {
            LocalOp::Invalidate(key) => mrs.invalidate(burst, by, *key),
            LocalOp::BindMw(key) => mrs.bind(burst, by, key),
            LocalOp::RegMr(key) => mrs.fast_reg(burst, by, key),
        };
        result.map_err(|fault| match (op, fault) {
            (LocalOp::BindMw(_), Fault::Protection) => Status::MwBind,
            _ => Status::LocQpOp,
        })
    }
}
