// SPDX-License-Identifier: GPL-2.0

//! The send side of a queue pair: the core's requester and its environment.

use super::{
    moderation::{DoorbellModeration, FetchStats},
    reorder_buffer::ReorderBuffer,
    rx::HalfWork,
    scatter::Segments,
    schedule::SEND_WORK,
    BatchHalf, EventCtx, Half, Locked, PendingCompletions, Qp, Round, RxBatch,
};
use crate::{
    counters::Counter,
    limits,
    ring::{
        abi::{self, Cqe, SendWqe, Sge},
        wqe::{self, Data, LocalPart, SendBounds, SendSlot},
        Consumer, Ring,
    },
    transport::{
        rx_packet::RxPacket,
        tx::{Transmitter, TxBatch, TxState},
    },
    verbs::{
        cq::Cq,
        device::DeviceState,
        mr::{NewKey, Reference},
    },
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow, SpinLock},
};
use linux_rdma::{
    net::{KeptDatagram, PacketWriter},
    rdma::qp::{QpCap, QpState},
    sync::{arc_borrow_ref, smp_mb},
    time::monotonic_ns,
};
use rrxe_core::{
    requester::RequesterCounters, Fault, Outcome, Packet, Payload, Psn, Requester, RequesterEnv,
    SendCompletion, SendOp, Service, TxError, TxPacket,
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
}

/// An array for each slot of a send queue.
struct SlotArrays<T> {
    elements: KVVec<T>,
    /// Elements of each array.
    len: usize,
}

impl<T: Clone + Default> SlotArrays<T> {
    fn new(slots: u32, len: u32) -> Result<Self> {
        let count = (slots as usize).checked_mul(len as usize).ok_or(EINVAL)?;
        let mut elements = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        elements.resize(count, T::default(), GFP_KERNEL_ACCOUNT)?;
        Ok(Self {
            elements,
            len: len as usize,
        })
    }

    /// Returns the first `n` elements of a slot's array.
    #[inline]
    fn get(&self, slot: u32, n: u32) -> Option<&[T]> {
        let start = (slot as usize).wrapping_mul(self.len);
        self.elements.get(start..)?.get(..n as usize)
    }

    /// Returns the first `n` elements of a slot's array.
    #[inline]
    fn get_mut(&mut self, slot: u32, n: u32) -> Option<&mut [T]> {
        let start = (slot as usize).wrapping_mul(self.len);
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
        device: Arc<DeviceState>,
    ) -> Result<impl Init<Self>> {
        let capacity = ring.capacity;
        let consumer = Consumer::new(ring);
        // No thread polls the ring yet: the program must ring the doorbell for each batch.
        consumer.ring.want_doorbell(true);
        let mut slots = KVVec::with_capacity(capacity as usize, GFP_KERNEL_ACCOUNT)?;
        for index in 0..capacity {
            let mut slot = SendSlot::default();
            slot.local.index = index;
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        let segments = SlotArrays::new(capacity, cap.max_send_sge)?;
        let inline = SlotArrays::new(capacity, cap.max_inline_data)?;
        let recovery = device.config.recovery;
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
            is_user: qp.is_user,
            signal_all: qp.signal_all,
            max_sge: qp.cap.max_send_sge,
            max_inline: qp.cap.max_inline_data,
        };
        let head = core::mem::size_of::<SendWqe>();
        let mut waiting = consumer.available()?.min(limits::path::MAX_FETCH);
        while waiting != 0 {
            let Some(slot) = self.requester.free_slot(&mut self.slots) else {
                break;
            };
            let wqe: SendWqe = consumer.next()?;
            wqe.decode(slot, &bounds);
            match slot.local.data {
                Data::InEntry => {}
                Data::Inline(n) => {
                    let to = self.inline.get_mut(slot.local.index, n).ok_or(EINVAL)?;
                    consumer.next_bytes(head, to)?;
                    wqe::set_length(slot, n.into());
                }
                Data::Segments(n) => {
                    let to = self.segments.get_mut(slot.local.index, n);
                    let to = to.ok_or(EINVAL)?;
                    consumer.next_segments(head, to)?;
                    wqe::set_length(slot, wqe::total(to));
                }
            }
            self.requester.post(slot);
            fetched.add(slot.length);
            consumer.take();
            waiting = waiting.wrapping_sub(1);
        }
        Ok(fetched)
    }

    /// Tells the program when to ring the next doorbell. Must be called after [`SendSide::fetch`].
    fn moderate_doorbells(&mut self, qp: &Qp, fetched: FetchStats, now: u64) {
        if !qp.is_moderated() || qp.state() != QpState::Rts {
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
        self.reorder_buffer.clear();
        self.end_stream(qp);
        self.moderation = DoorbellModeration::default();
        self.tx = TxState::default();
        self.notify_drained = false;
        if let Some(consumer) = &mut self.consumer {
            consumer.discard();
        }
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
        let tx = &mut self.tx;
        let mut env = Env {
            work: WorkData {
                ctx,
                segments: &self.segments,
                inline: &self.inline,
            },
            consumer: self.consumer.as_mut(),
            transmitter: Transmitter::new(ctx.qp, &mut tx.long_gso),
            completions,
        };
        if let Some(batch) = batch {
            let (last, requester) = (tx.transport, &self.requester);
            let select = || {
                let is_idle = ctx.qp.is_reliable() && !requester.has_unacknowledged();
                last.select(ctx.qp, requester.dest_qpn, is_idle, ctx.rcu)
            };
            let transmitter = &mut env.transmitter;
            tx.transport = transmitter.open_batch(batch, &tx.path, tx.source_port, ctx.rcu, select);
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
    fn take_delayed_ack(&self, qp: &Qp, round: &mut Round, now: u64) -> Option<TxPacket> {
        if !qp.is_reliable() || !self.has_backlog() {
            return None;
        }
        let recv = qp.recv.try_lock();
        round.ack_missed = recv.is_none();
        recv?.responder.on_reply(now)
    }
}

impl Half for SendSide {
    type Counters = RequesterCounters;

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

    fn finish(this: ArcBorrow<'_, Qp>, locked: Option<Locked<'_, Self>>, work: HalfWork) {
        Qp::finish_half::<Self, SEND_WORK>(this, locked, work);
    }

    #[inline]
    fn counters(&self) -> &RequesterCounters {
        &self.requester.counters
    }

    #[inline]
    fn count(&self, qp: &Qp, before: &RequesterCounters) {
        let after = &self.requester.counters;
        if before == after {
            return;
        }
        qp.with_counters(|counters| counters.requester(before, after));
        let bad_pkeys = after.bad_pkeys.wrapping_sub(before.bad_pkeys);
        if bad_pkeys != 0 {
            qp.device.count_bad_pkeys(bad_pkeys);
        }
        // Only a timeout ends ICRC elision, not plain packet loss.
        let timed_out = before.timeouts != after.timeouts;
        if let Some(path) = self.tx.path.as_ref().filter(|_| timed_out) {
            path.elision.on_timeout();
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

    fn next_buffered(&mut self) -> Option<KeptDatagram> {
        let (requester, slots) = (&self.requester, &self.slots);
        let due = |psn| requester.is_due(slots, psn);
        self.reorder_buffer.next(requester.expected_psn(), due)
    }

    fn on_buffered(
        &mut self,
        ctx: EventCtx<'_>,
        _taken: bool,
        completions: &mut PendingCompletions,
    ) -> Outcome {
        let left = !self.reorder_buffer.is_empty();
        self.with(ctx, None, completions, |requester, slots, env| {
            requester.on_buffered(slots, ctx.now, left, env)
        })
    }

    #[inline]
    fn next_timeout(&self) -> Option<u64> {
        let timeouts = [
            self.requester.next_timeout(),
            self.moderation.next_poll(),
            self.reorder_buffer.expires(),
        ];
        timeouts.into_iter().flatten().min()
    }

    fn handle_timeout(
        &mut self,
        ctx: EventCtx<'_>,
        completions: &mut PendingCompletions,
    ) -> Outcome {
        self.expire_buffered(ctx.now);
        if self.next_timeout().is_none_or(|at| at > ctx.now) {
            return Outcome::default();
        }
        let outcome = self.with(ctx, None, completions, |requester, slots, env| {
            if ctx.qp.local.is_waiting() {
                requester.restart_timers(ctx.now);
            }
            requester.handle_timeout(slots, ctx.now, env)
        });
        Outcome {
            transmit: true,
            ..outcome
        }
    }

    /// An ACK may have freed slots for work requests in the ring, or drained the queue.
    #[inline]
    fn wants_round(&self) -> bool {
        self.has_backlog() || self.notify_drained || self.is_streaming()
    }

    #[inline]
    fn fill(&mut self, qp: &Qp, round: &mut Round) {
        let rcu = rcu::read_lock();
        let ctx = EventCtx::now(qp, &rcu);
        let acknowledgement = self.take_delayed_ack(qp, round, ctx.now);
        let mut idle = true;
        match self.fetch(qp) {
            Ok(fetched) => {
                idle = fetched.count == 0;
                self.moderate_doorbells(qp, fetched, ctx.now);
            }
            Err(_) => round.fatal = true,
        }
        let (batch, completions) = (&mut round.batch, &mut round.completions);
        let mut blocked = false;
        let progress = self.with(ctx, Some(batch), completions, |requester, slots, env| {
            let budget = limits::path::BATCH.min(env.transmitter.room);
            let progress = requester.poll_transmit(slots, ctx.now, budget, env);
            blocked = progress.more && progress.sent == budget && budget < limits::path::BATCH;
            if let Some(packet) = &acknowledgement {
                // If the ACK can't be sent it is lost, and the peer asks again.
                let _ = env.transmitter.send(packet, |_| Ok(()));
            }
            progress
        });
        round.ack_sent = acknowledgement.is_some() && progress.sent != 0;
        round.blocked = blocked;
        round.fatal |= progress.fatal;
        round.more = !blocked && (progress.more || (!round.fatal && self.has_backlog()));
        if progress.sqe {
            qp.state.fail_send_queue();
        }
        if self.notify_drained && self.requester.is_drained(&self.slots) {
            self.notify_drained = false;
            round.drained = true;
        }
        round.waiting = idle && self.is_streaming();
        if self.requester.rate.wakeup.is_some() {
            qp.count(Counter::Throttled);
        }
    }

    fn on_round_end(qp: &Qp) {
        if qp.is_moderated() {
            qp.moderation_events.round_ended(monotonic_ns());
        }
    }
}

/// The requester's environment.
pub(crate) struct Env<'a> {
    work: WorkData<'a>,
    consumer: Option<&'a mut Consumer>,
    transmitter: Transmitter<'a>,
    completions: &'a mut PendingCompletions,
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
        let list = self.segments.get(slot.local.index, n);
        Ok(Segments {
            mrs: &self.ctx.qp.device.tables.mrs,
            rcu: self.ctx.rcu,
            pd: self.ctx.qp.pd,
            list: list.ok_or(Fault::Malformed)?,
        })
    }

    /// Returns the data segments that hold the payload of a packet of a connected queue pair, with
    /// its offset in them and its length. `None` if the payload is not in data segments.
    fn in_segments(&self, packet: &TxPacket, slot: &SendSlot) -> Option<(Segments<'_>, u32, u32)> {
        let Payload::Send { offset, len } = packet.payload else {
            return None;
        };
        if !self.ctx.qp.qp_type.is_connected() {
            return None;
        }
        Some((self.segments(slot).ok()?, offset, len))
    }

    /// Returns a reference to `whole` bytes of payload, which belong to consecutive packets. `None`
    /// if the payload can't stay in place until the packets are delivered.
    fn reference(&self, packet: &TxPacket, slot: &SendSlot, whole: u32) -> Option<Reference> {
        let (segments, offset, _) = self.in_segments(packet, slot)?;
        segments.reference(offset, whole)
    }

    /// Appends the payload of a packet to it.
    fn gather(
        &self,
        payload: Payload,
        slot: &SendSlot,
        to: &mut PacketWriter<'_>,
    ) -> Result<(), Fault> {
        let Payload::Send { offset, len } = payload else {
            return Ok(());
        };
        let operand = slot.swap.to_ne_bytes();
        let bytes = match slot.local.data {
            Data::Segments(_) => return self.segments(slot)?.gather(offset, len, to),
            Data::Inline(n) => self.inline.get(slot.local.index, n),
            Data::InEntry => Some(operand.as_slice()),
        };
        let bytes = bytes.and_then(|b| b.get(offset as usize..)?.get(..len as usize));
        to.push(bytes.ok_or(Fault::Malformed)?)
            .map_err(|_| Fault::Malformed)
    }
}

impl RequesterEnv for Env<'_> {
    type Local = LocalPart;

    fn transmit(&mut self, packet: &TxPacket, slot: &SendSlot) -> Result<(), TxError> {
        let (work, payload) = (self.work, packet.payload);
        let reference = |whole| work.reference(packet, slot, whole);
        if self.transmitter.send_zero_copy(packet, 1, reference) {
            return Ok(());
        }
        let gather =
            |to: &mut PacketWriter<'_>| work.gather(payload, slot, to).map_err(TxError::Local);
        if !work.ctx.qp.qp_type.is_connected() {
            let handles = &work.ctx.qp.device.tables.addresses;
            let ah = handles.get(slot.local.ah, work.ctx.rcu).map(arc_borrow_ref);
            let ah = ah.filter(|ah| ah.pd == work.ctx.qp.pd);
            let path = &ah.ok_or(TxError::Local(Fault::Malformed))?.path;
            let port = || path.info.udp_source_port(work.ctx.qp.number, 0);
            self.transmitter.set_path(path, port, work.ctx.rcu);
        }
        self.transmitter.send(packet, gather)
    }

    fn transmit_burst(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        let work = self.work;
        let reference = |whole| work.reference(packet, slot, whole);
        if self.transmitter.send_zero_copy(packet, count, reference) {
            return (count, Ok(()));
        }
        let Some((segments, offset, len)) = work.in_segments(packet, slot) else {
            return packet.for_each_in_burst(count, |packet| self.transmit(packet, slot));
        };
        // Looks up the key only once.
        let whole = len.checked_mul(count);
        let span = whole.and_then(|whole| segments.whole(offset, whole));
        match span {
            Some(span) => self
                .transmitter
                .send_span(packet, count, &span, TxError::Local),
            None => packet.for_each_in_burst(count, |packet| self.transmit(packet, slot)),
        }
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        let incoming = self.work.ctx.incoming.ok_or(Fault::Malformed)?;
        self.work.segments(slot)?.scatter_payload(offset, incoming)
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, value: u64) -> Result<(), Fault> {
        self.work.segments(slot)?.scatter(0, &value.to_ne_bytes())
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        self.work.ctx.qp.count_completion(
            completion.status,
            Counter::RequesterErrors,
            Counter::RequesterFlushes,
        );
        if !completion.report() {
            return;
        }
        let cqe = Cqe {
            wr_id: slot.local.wr_id,
            timestamp: self.work.ctx.now,
            byte_len: completion.byte_len,
            qp_num: self.work.ctx.qp.number,
            status: completion.status as u8,
            opcode: completion.op.wc_opcode(),
            vendor_err: completion.vendor_err,
            vlan_id: abi::NO_VLAN,
            ..Cqe::default()
        };
        self.completions
            .push(&self.work.ctx.qp.send_cq, &cqe, self.work.ctx.qp, false);
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Fault> {
        let EventCtx { qp, rcu, .. } = self.work.ctx;
        let (mrs, by) = (&qp.device.tables.mrs, qp.keys(qp.pd));
        let new_key = NewKey {
            key: slot.rkey_or_qkey,
            lkey: slot.remote_qpn,
            address: slot.remote_addr,
            length: slot.compare_add,
            access: slot.swap,
        };
        match slot.op {
            SendOp::LocalInv => mrs.invalidate(rcu, by, slot.imm_or_key),
            SendOp::BindMw => mrs.bind(rcu, by, &new_key),
            SendOp::RegMr => mrs.fast_reg(rcu, by, &new_key),
            _ => Err(Fault::Malformed),
        }
    }
}
