// SPDX-License-Identifier: GPL-2.0

//! The send side of a queue pair: the core's requester and its environment.

use super::{
    moderation::{DoorbellModeration, FetchStats},
    reorder_buffer::ReorderBuffer,
    scatter::Segments,
    EventCtx, PendingCompletions, Qp,
};
use crate::{
    abi::{self, wr_opcode, Cqe, SendWqe, WqeOp},
    counters::Counter,
    device::DeviceState,
    mr::{Bind, FastRegister, Reference},
    path::Path,
    ring::Consumer,
    tx::{Transmitter, TxBatch},
    wqe::{self, SendBounds, SendEntry, Trailer},
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    net::{KeptDatagram, PacketWriter},
    rdma::{qp::QpState, wr::DataSegment},
    sync::{arc_borrow_ref, smp_mb},
};
use rrxe_core::{
    Fault, Payload, PostError, Requester, RequesterEnv, SendCompletion, SendSlot, Service, TxError,
    TxPacket,
};

/// The driver's part of an outstanding work request; the core's part is in its slot.
#[derive(Clone, Copy, Default)]
pub(crate) struct LocalRequest {
    wr_id: u64,
    num_sge: u16,
    /// The payload was copied from the work request.
    inline: bool,
    /// The entry is malformed: the work request fails with this fault when it is executed.
    fault: Option<Fault>,
    /// Atomic writes: the data to write.
    operand: Option<[u8; 8]>,
    /// UD: the address handle.
    ah: u32,
    opcode: u8,
    /// Parameters of a local operation, which sends no packet.
    op: WqeOp,
    /// The key that a LOCAL_INV invalidates.
    key: u32,
}

/// The send side.
pub(crate) struct SendSide {
    pub(crate) requester: Requester,
    pub(crate) slots: KVVec<SendSlot>,
    /// One element for each slot.
    local: KVVec<LocalRequest>,
    /// `max_sge` for each slot.
    segments: KVVec<DataSegment>,
    max_sge: usize,
    /// `max_inline` bytes for each slot.
    inline: KVVec<u8>,
    max_inline: usize,
    /// Work requests posted to the requester since the last reset. The requester counts them
    /// likewise.
    posted: u32,
    /// `None` once the queue pair is destroyed.
    pub(crate) consumer: Option<Consumer>,
    /// Connected queue pairs: the path to the peer.
    pub(crate) path: Option<Arc<Path>>,
    pub(crate) source_port: u16,
    /// The consumer asked to be told when the send queue has drained, and has not been told yet.
    pub(crate) notify_drained: bool,
    /// Out-of-order responses.
    pub(crate) reorder_buffer: ReorderBuffer,
    moderation: DoorbellModeration,
    transport: Transport,
}

/// The transport of packets to a peer on this host.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Transport {
    /// Nothing has been sent yet.
    #[default]
    Undecided,
    Stack,
    /// The peer belongs to the same device: [`crate::loopback`].
    Loopback,
}

impl Transport {
    /// Selects the transport for new packets. Packets that went through the network stack stay in
    /// flight for a while and must not be overtaken.
    fn select(self, qp: &Qp, requester: &Requester, rcu: &rcu::Guard) -> Self {
        let peer = qp.device.tables.qps.get(requester.dest_qpn(), rcu);
        let is_same_device = peer.is_some_and(|peer| Arc::ptr_eq(&peer.device, &qp.device));
        let may_change = match self {
            Transport::Undecided | Transport::Loopback => true,
            Transport::Stack => qp.is_reliable() && !requester.has_unacknowledged(),
        };
        if is_same_device && may_change {
            Transport::Loopback
        } else {
            Transport::Stack
        }
    }
}

impl SendSide {
    /// Returns an initializer: the side is initialized in place, because it is too large for the
    /// kernel stack and a move would copy it several times.
    pub(crate) fn new(
        service: Service,
        number: u32,
        consumer: Consumer,
        capacity: u32,
        max_sge: u32,
        max_inline: u32,
        device: Arc<DeviceState>,
    ) -> Result<impl Init<Self>> {
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
        Ok(init!(Self {
            requester: {
                let mut requester = Requester::new(service);
                requester.set_src_qpn(number);
                requester.set_buffering(true);
                requester.set_recovery(device.config.recovery);
                requester
            },
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
            notify_drained: false,
            reorder_buffer: ReorderBuffer::new(device),
            moderation: DoorbellModeration::default(),
            transport: Transport::default(),
        }))
    }

    /// Copies work requests from the ring to free slots. Returns `EINVAL` if the ring is malformed:
    /// the queue pair must enter the Error state.
    pub(crate) fn fetch(&mut self, qp: &Qp) -> Result<FetchStats> {
        let mut fetched = FetchStats::default();
        let Some(consumer) = &mut self.consumer else {
            return Ok(fetched);
        };
        let mut waiting = consumer.available()?;
        while waiting != 0 && self.requester.can_post(&self.slots) {
            let wqe: SendWqe = consumer.next()?;
            let bounds = SendBounds {
                signal_all: qp.signal_all,
                max_sge: self.max_sge,
                max_inline: self.max_inline,
            };
            let mut entry = if qp.is_user {
                SendEntry::decode(&wqe, &bounds)
            } else {
                SendEntry::decode_kernel(&wqe, &bounds)
            };
            // The slot that `post` is about to take.
            let slot = (self.posted as usize) & self.slots.len().wrapping_sub(1);
            let head = core::mem::size_of::<SendWqe>();
            let mut local = LocalRequest {
                wr_id: wqe.wr_id,
                ah: wqe.ah,
                operand: entry.operand(),
                opcode: wqe.opcode,
                op: wqe.op,
                key: wqe.imm_or_key,
                ..LocalRequest::default()
            };
            match entry.trailer {
                Trailer::Inline(n) => {
                    let to = self
                        .inline
                        .get_mut(slot.wrapping_mul(self.max_inline)..)
                        .and_then(|b| b.get_mut(..n))
                        .ok_or(EINVAL)?;
                    consumer.next_bytes(head, to)?;
                    entry.set_length(n as u64);
                    local.inline = true;
                }
                Trailer::Segments(n) => {
                    let to = self
                        .segments
                        .get_mut(slot.wrapping_mul(self.max_sge)..)
                        .and_then(|s| s.get_mut(..n))
                        .ok_or(EINVAL)?;
                    consumer.next_segments(head, to)?;
                    entry.set_length(wqe::total(to.iter().map(|s| s.length)));
                    local.num_sge = n as u16;
                }
            }
            let mut result = self.requester.post(&mut self.slots, entry.request());
            if let Err(e) = result {
                // The service does not support the operation, or the message is too long.
                entry.refuse(match e {
                    PostError::Length => Fault::Length,
                    _ => Fault::Malformed,
                });
                result = self.requester.post(&mut self.slots, entry.request());
            }
            let posted = result.map_err(|_| EINVAL)?;
            fetched.add(entry.request().length);
            local.fault = entry.fault();
            if let Some(to) = self.local.get_mut(posted as usize) {
                *to = local;
            }
            self.posted = self.posted.wrapping_add(1);
            consumer.take();
            waiting = waiting.wrapping_sub(1);
        }
        Ok(fetched)
    }

    /// Tells the program when to ring the next doorbell. Must be called after [`SendSide::fetch`].
    pub(crate) fn moderate_doorbells(&mut self, qp: &Qp, fetched: FetchStats, now: u64) {
        let was = self.moderation.is_streaming();
        if qp.is_user && !qp.is_polled && qp.state() == QpState::Rts {
            self.moderation.update(
                fetched,
                &qp.moderation_events,
                &qp.send_cq.stream_history,
                now,
            );
        } else {
            self.moderation.end();
        }
        match &self.consumer {
            Some(consumer) if self.moderation.is_streaming() => {
                consumer
                    .want_doorbell_after(self.moderation.doorbell_interval(consumer.capacity()));
            }
            Some(_) if was => self.want_doorbell(),
            _ => {}
        }
    }

    /// Returns whether the program is streaming: it need not ring the doorbell for each batch.
    pub(crate) fn is_streaming(&self) -> bool {
        self.moderation.is_streaming()
    }

    /// Asks the program to ring the doorbell for each batch again. Returns whether a stream was on.
    pub(crate) fn end_stream(&mut self) -> bool {
        let was = self.moderation.is_streaming();
        if was {
            self.moderation.end();
            self.want_doorbell();
        }
        was
    }

    fn want_doorbell(&self) {
        if let Some(consumer) = &self.consumer {
            consumer.want_doorbell(true);
        }
        // Either the program sees the request, or the caller, which polls the ring once more, sees
        // what the program has posted.
        smp_mb();
    }

    /// Returns the time of the next timeout or poll, if any is due.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let poll = self.moderation.next_poll();
        let timeout = self.requester.next_timeout();
        poll.map_or(timeout, |poll| {
            Some(timeout.map_or(poll, |timeout| timeout.min(poll)))
        })
    }

    /// Resets the side (Reset state).
    pub(crate) fn reset(&mut self) {
        self.requester.reset();
        self.reorder_buffer.clear();
        self.end_stream();
        self.transport = Transport::Undecided;
        self.posted = 0;
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

    /// Removes and returns the next buffered response, if it is due.
    pub(crate) fn next_buffered(&mut self) -> Option<KeptDatagram> {
        let (requester, slots) = (&self.requester, &self.slots);
        let due = |psn| requester.is_due(slots, psn);
        self.reorder_buffer.next(requester.expected_psn(), due)
    }

    /// Calls `f` with the requester, its slots and its environment. Updates the counters
    /// afterwards.
    pub(crate) fn with<R>(
        &mut self,
        qp: &Qp,
        ctx: EventCtx<'_>,
        batch: Option<&mut TxBatch>,
        completions: &mut PendingCompletions,
        f: impl FnOnce(&mut Requester, &mut [SendSlot], &mut Env<'_>) -> R,
    ) -> R {
        let before = *self.requester.counters();
        let result = self.act(qp, ctx, batch, completions, f);
        qp.count_requester(&before, self.requester.counters(), &self.path);
        result
    }

    /// Calls `f` with the requester, its slots and its environment. The caller updates the
    /// counters, once for a batch of packets.
    #[inline]
    pub(super) fn act<R>(
        &mut self,
        qp: &Qp,
        ctx: EventCtx<'_>,
        batch: Option<&mut TxBatch>,
        completions: &mut PendingCompletions,
        f: impl FnOnce(&mut Requester, &mut [SendSlot], &mut Env<'_>) -> R,
    ) -> R {
        let mut env = Env {
            work: WorkRequests {
                qp,
                ctx,
                local: &self.local,
                segments: &self.segments,
                max_sge: self.max_sge,
                inline: &self.inline,
                max_inline: self.max_inline,
            },
            consumer: self.consumer.as_mut(),
            transmitter: Transmitter::new(qp),
            completions,
        };
        let (path, port, transport) = (&self.path, self.source_port, &mut self.transport);
        env.transmitter
            .open_batch(batch, path, port, ctx.rcu, |is_loopback_route| {
                *transport = if is_loopback_route {
                    transport.select(qp, &self.requester, ctx.rcu)
                } else {
                    Transport::Stack
                };
                *transport == Transport::Loopback
            });
        let result = f(&mut self.requester, &mut self.slots, &mut env);
        env.transmitter.finish();
        result
    }
}

/// The requester's environment.
pub(crate) struct Env<'a> {
    work: WorkRequests<'a>,
    consumer: Option<&'a mut Consumer>,
    transmitter: Transmitter<'a>,
    completions: &'a mut PendingCompletions,
}

impl Env<'_> {
    /// Returns the number of packets for which this host has room.
    pub(super) fn room(&self) -> u32 {
        self.transmitter.room()
    }

    /// Sends an ACK after the packets of this round.
    pub(super) fn send_ack(&mut self, acknowledgement: &TxPacket) {
        // If the ACK can't be sent it is lost, and the peer asks again.
        let _ = self.transmitter.send(acknowledgement, |_| Ok(()));
    }
}

/// Access to the work requests of a queue pair.
#[derive(Clone, Copy)]
struct WorkRequests<'a> {
    qp: &'a Qp,
    ctx: EventCtx<'a>,
    local: &'a [LocalRequest],
    segments: &'a [DataSegment],
    max_sge: usize,
    inline: &'a [u8],
    max_inline: usize,
}

impl WorkRequests<'_> {
    fn local(&self, slot: u32) -> Result<&LocalRequest, Fault> {
        self.local.get(slot as usize).ok_or(Fault::Malformed)
    }

    /// Returns the data segments of a work request.
    fn segments(&self, slot: u32) -> Result<Segments<'_>, Fault> {
        let local = self.local(slot)?;
        let list = self
            .segments
            .get((slot as usize).wrapping_mul(self.max_sge)..)
            .and_then(|s| s.get(..local.num_sge.into()))
            .ok_or(Fault::Malformed)?;
        Ok(Segments {
            tables: &self.qp.device.tables,
            rcu: self.ctx.rcu,
            pd: self.qp.pd,
            list,
        })
    }

    /// Returns the data segments that hold the payload of a packet of a connected queue pair, with
    /// its offset in them and its length. `None` if the payload is not in data segments.
    fn in_segments(&self, packet: &TxPacket) -> Option<(Segments<'_>, u32, u32)> {
        let Payload::Send { slot, offset, len } = packet.payload else {
            return None;
        };
        let local = self.local(packet.slot).ok()?;
        let not_in_segments = local.inline || local.operand.is_some() || local.fault.is_some();
        if not_in_segments || super::service(self.qp.qp_type) == Service::Ud {
            return None;
        }
        Some((self.segments(slot).ok()?, offset, len))
    }

    /// Returns a reference to `whole` bytes of payload, which belong to consecutive packets. `None`
    /// if the payload can't stay in place until the packets are delivered.
    fn reference(&self, packet: &TxPacket, whole: u32) -> Option<Reference> {
        let (segments, offset, _) = self.in_segments(packet)?;
        segments.reference(offset, whole)
    }

    fn gather(&self, payload: &Payload, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        let Payload::Send { slot, offset, len } = *payload else {
            return Ok(());
        };
        let local = self.local(slot)?;
        if let Some(operand) = local.operand {
            let bytes = operand.get(..len as usize).ok_or(Fault::Malformed)?;
            return to.push(bytes).map_err(|_| Fault::Malformed);
        }
        if !local.inline {
            return self.segments(slot)?.gather(offset, len, to);
        }
        let from = (slot as usize)
            .wrapping_mul(self.max_inline)
            .wrapping_add(offset as usize);
        let bytes = self
            .inline
            .get(from..)
            .and_then(|b| b.get(..len as usize))
            .ok_or(Fault::Malformed)?;
        to.push(bytes).map_err(|_| Fault::Malformed)
    }
}

impl RequesterEnv for Env<'_> {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        let local = self.work.local(packet.slot).map_err(TxError::Local)?;
        if let Some(fault) = local.fault {
            return Err(TxError::Local(fault));
        }
        let (work, payload) = (self.work, packet.payload);
        let reference = |whole| work.reference(packet, whole);
        if let Some((_, sent)) = self.transmitter.send_zero_copy(packet, 1, reference) {
            return sent;
        }
        let gather = |to: &mut PacketWriter<'_>| work.gather(&payload, to).map_err(TxError::Local);
        if super::service(work.qp.qp_type) == Service::Ud {
            let handles = &work.qp.device.tables.addresses;
            let ah = handles.get(local.ah, work.ctx.rcu).map(arc_borrow_ref);
            let ah = ah.filter(|ah| ah.pd() == work.qp.pd);
            let path = &ah.ok_or(TxError::Local(Fault::Malformed))?.path;
            let port = || path.info().udp_source_port(work.qp.number, 0);
            self.transmitter.set_path(path, port, work.ctx.rcu);
        }
        self.transmitter.send(packet, gather)
    }

    fn transmit_burst(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        let work = self.work;
        let reference = |whole| work.reference(packet, whole);
        if let Some(sent) = self.transmitter.send_zero_copy(packet, count, reference) {
            return sent;
        }
        let Some((segments, offset, len)) = work.in_segments(packet) else {
            return packet.for_each_in_burst(count, |packet| self.transmit(packet));
        };
        // Looks up the key only once.
        let whole = len.checked_mul(count);
        let span = whole.and_then(|whole| segments.whole(offset, whole));
        match span {
            Some(span) => self
                .transmitter
                .send_span(packet, count, &span, TxError::Local),
            None => packet.for_each_in_burst(count, |packet| self.transmit(packet)),
        }
    }

    fn write_read_response(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let incoming = self.work.ctx.incoming.ok_or(Fault::Malformed)?;
        self.work.segments(slot)?.scatter_payload(offset, incoming)
    }

    fn write_atomic_result(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        self.work.segments(slot)?.scatter(0, &value.to_ne_bytes())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        self.work.qp.count_completion(
            completion.status,
            Counter::RequesterErrors,
            Counter::RequesterFlushes,
        );
        if !completion.report() {
            return;
        }
        let wr_id = self.work.local(slot).map_or(0, |local| local.wr_id);
        let cqe = Cqe {
            wr_id,
            timestamp: self.work.ctx.now,
            byte_len: completion.byte_len,
            qp_num: self.work.qp.number,
            status: completion.status as u8,
            opcode: completion.op.wc_opcode(),
            vendor_err: completion.vendor_err,
            vlan_id: abi::NO_VLAN,
            ..Cqe::default()
        };
        self.completions
            .push(&self.work.qp.send_cq, &cqe, self.work.qp, false);
    }

    fn local_op(&mut self, slot: u32) -> Result<(), Fault> {
        let local = self.work.local(slot)?;
        let (tables, by, op) = (
            &self.work.qp.device.tables,
            self.work.qp.keys(self.work.qp.pd),
            &local.op,
        );
        match local.opcode {
            wr_opcode::LOCAL_INV => tables.invalidate(self.work.ctx.rcu, by, local.key),
            wr_opcode::BIND_MW => {
                let to = Bind {
                    rkey: op.rkey_or_qkey,
                    lkey: op.remote_qpn,
                    address: op.remote_addr,
                    length: op.compare_add,
                    access: op.swap,
                };
                tables.bind(self.work.ctx.rcu, by, to)
            }
            wr_opcode::REG_MR => {
                let to = FastRegister {
                    key: op.rkey_or_qkey,
                    iova: op.remote_addr,
                    length: op.compare_add,
                    access: op.swap,
                };
                tables.fast_register(self.work.ctx.rcu, by, to)
            }
            _ => Err(Fault::Malformed),
        }
    }
}
