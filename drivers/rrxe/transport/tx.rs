// SPDX-License-Identifier: GPL-2.0

//! Outgoing packets: turns the core's headers and payload references into packets of the network
//! stack, or of a [`LoopbackBatch`].

use super::{
    flow::{is_veth, may_queue, FlowTemplate, LastHeaders},
    gids::Interfaces,
    local_queue::{LocalShare, Waiter},
    loopback::{LoopbackBatch, PayloadSource, MIN_ZERO_COPY},
    path::Path,
    payload::{ReadPayload, TxPayload},
};
use crate::{config::Config, mr::MrTable};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    net::{PacketWriter, TxChain, TxDatagram, TxQueue, TxSkb},
    sync::BurstGuard,
};
use rrxe_core::{
    icrc::{self, LastPrefix},
    Fault, RemoteAccess, TxError, TxPacket,
};

/// Scratch state for the headers and ICRCs of a batch.
#[derive(Default)]
struct Scratch {
    prefix: LastPrefix,
    headers: LastHeaders,
}

/// How packets get to the peer of a connected queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Nothing has been sent or received yet.
    #[default]
    Undecided,
    /// Through the network stack.
    Stack,
    /// Directly, to a queue pair of the same device: [`super::loopback`].
    Loopback,
}

impl Transport {
    /// Returns the transport for new packets, if the route leads back to this host.
    /// `is_same_device` means that the peer is a queue pair of the sender's device. New packets
    /// must not overtake those that went through the network stack and are still in flight.
    /// `is_idle` means that no packet is.
    #[inline]
    pub(crate) fn select(self, is_same_device: bool, is_idle: bool) -> Self {
        if is_same_device && (self != Self::Stack || is_idle) {
            Self::Loopback
        } else {
            Self::Stack
        }
    }
}

/// The state of transmission that a side of a queue pair keeps from one batch to the next.
#[derive(Default)]
pub(crate) struct TxState {
    /// The path to the peer of a connected queue pair.
    pub(crate) path: Option<Arc<Path>>,
    pub(crate) source_port: u16,
    /// Send side: the transport of the last batch. Receive side: the transport by which the last
    /// request came, and by which responses leave.
    pub(crate) transport: Cell<Transport>,
}

/// The packets that a batch sends, in order.
#[derive(Default)]
pub(crate) struct TxBatch {
    /// Packets for the network stack.
    pub(crate) queue: TxQueue,
    /// Number of them that have an owner.
    pub(crate) owned: u16,
    /// Number of packets that were lost before they were in the batch.
    pub(crate) lost: u32,
    /// Packets for queue pairs of the same device, if all packets are for these.
    loopback: Option<LoopbackBatch>,
}

impl TxBatch {
    /// Returns the packets for queue pairs of the same device, if there are any.
    #[inline]
    pub(crate) fn loopback(&self) -> Option<&LoopbackBatch> {
        let loopback = self.loopback.as_ref();
        loopback.filter(|batch| !batch.packets.is_empty())
    }
}

/// The device and the queue pair of the packets that are sent, as far as sending needs them.
pub(crate) struct TxCtx<'a, W: Waiter> {
    pub(crate) config: &'a Config,
    pub(crate) interfaces: &'a Interfaces,
    /// The regions that payload may be in.
    pub(crate) mrs: &'a MrTable,
    /// The packets of the queue pair that are queued on this host.
    pub(crate) local: &'a Arc<LocalShare<W>>,
    /// The burst, which protects look-ups of tables and accesses to memory.
    pub(crate) burst: &'a BurstGuard,
}

/// Transmits the packets of a queue pair, for the duration of a batch.
///
/// Consecutive packets cross the stack together, as a chain, which the stack segments above the
/// device, unless the device accepts it whole (veth). Each packet has its own headers and ICRC.
pub(crate) struct Transmitter<'a, W: Waiter> {
    ctx: TxCtx<'a, W>,
    tx: &'a TxState,
    /// `None` without a route: packets are lost.
    template: Option<FlowTemplate<'a>>,
    /// `None` if nothing may be sent.
    batch: Option<&'a mut TxBatch>,
    chain: Option<Chain>,
    scratch: Scratch,
    /// Number of packets for which the local queue has space.
    pub(crate) space: u32,
}

/// Writes the UDP payload of a packet: headers, payload from byte `at` on, padding and ICRC. `icrc`
/// is the state of the ICRC after the headers. The writer has capacity for all of it.
#[inline(always)]
fn write(
    packet: &TxPacket,
    icrc: u32,
    writer: &mut PacketWriter<'_>,
    payload: &impl ReadPayload,
    at: u32,
) -> Result<(), Fault> {
    // The pushes cannot fail, because there is capacity.
    let _ = writer.push(packet.header());
    writer.start_sum(icrc);
    payload.read(at, packet.payload.len(), writer)?;
    let _ = writer.push_zeros(packet.pad.into());
    let icrc = icrc::finish(writer.end_sum());
    let _ = writer.push(&icrc);
    Ok(())
}

/// A chain under construction.
struct Chain {
    packets: TxChain,
    /// Identification of the next packet.
    next_ident: u16,
    /// The chain counts against the local queue until it leaves this host.
    counted: bool,
}

impl Chain {
    /// Appends a packet to a chain that accepts it, or starts a chain. The packet's payload starts
    /// at byte `at`. Returns false if there is no memory.
    #[inline(always)]
    fn append(
        this: &mut Option<Self>,
        template: &FlowTemplate<'_>,
        packet: &TxPacket,
        scratch: &mut Scratch,
        payload: &impl ReadPayload,
        at: u32,
    ) -> Result<bool, Fault> {
        let Scratch { prefix, headers } = scratch;
        let size = packet.udp_payload_len() as usize;
        // Any value is valid, since no router may fragment our packets (RFC 6864).
        let ident = match this {
            Some(chain) => chain.next_ident,
            None => packet.psn.get() as u16,
        };
        let headers = template.headers(ident, size, headers);
        let icrc = template.start_icrc(packet, ident, prefix);
        let made = TxDatagram::new(template.headroom, headers, size, |writer| {
            write(packet, icrc, writer, payload, at)
        });
        let Ok(made) = made else {
            return Ok(false);
        };
        let (made, next_ident) = (made?, ident.wrapping_add(1));
        match this {
            Some(chain) => {
                chain.next_ident = next_ident;
                let is_pushed = chain.packets.push(made).is_ok();
                debug_assert!(is_pushed, "the chain accepts the packet");
                Ok(is_pushed)
            }
            None => {
                *this = Some(Self {
                    packets: TxChain::new(made),
                    next_ident,
                    counted: template.may_queue && !packet.is_acknowledgement(),
                });
                Ok(true)
            }
        }
    }

    /// Finishes the chain for the stack. Returns `None` on failure: all of its packets are lost.
    #[inline]
    fn finish(self, template: &FlowTemplate<'_>, rcu: &rcu::Guard) -> Option<TxSkb> {
        let priority = template.path.info.priority();
        self.packets.finish(&template.route, priority, rcu).ok()
    }
}

/// Makes a packet without payload, which leaves alone. Returns `None` if there is no memory.
pub(crate) fn single_packet(
    template: &FlowTemplate<'_>,
    packet: &TxPacket,
    rcu: &rcu::Guard,
) -> Option<TxSkb> {
    let (mut chain, mut scratch) = (None, Scratch::default());
    // An error leaves no chain.
    let _ = Chain::append(&mut chain, template, packet, &mut scratch, &(), 0);
    chain?.finish(template, rcu)
}

impl<'a, W: Waiter> Transmitter<'a, W> {
    /// Returns a transmitter without a batch, which sends nothing.
    #[inline]
    pub(crate) fn new(ctx: TxCtx<'a, W>, tx: &'a TxState) -> Self {
        Self {
            ctx,
            tx,
            template: None,
            batch: None,
            chain: None,
            scratch: Scratch::default(),
            space: u32::MAX,
        }
    }

    /// Opens `batch`. If the route leads back to this host, and packets may bypass the network
    /// stack there, `select` chooses the transport. Returns the transport.
    // In place, because the struct is too large to move. Most calls handle received packets and
    // have no batch.
    #[inline(always)]
    pub(crate) fn open_batch(
        &mut self,
        batch: &'a mut TxBatch,
        select: impl FnOnce() -> Transport,
    ) -> Transport {
        let (config, interfaces, rcu) = (self.ctx.config, self.ctx.interfaces, self.ctx.burst);
        let tx = self.tx;
        if let Some(path) = &tx.path {
            self.template = FlowTemplate::connected(path, tx.source_port, config, interfaces, rcu);
        }
        let loopback =
            |template: &&FlowTemplate<'_>| config.may_bypass && template.is_loopback_route(rcu);
        let mut transport = Transport::Stack;
        if let Some(template) = self.template.as_ref().filter(loopback) {
            transport = select();
            if transport == Transport::Loopback {
                batch.loopback = Some(LoopbackBatch::new(template.path));
            }
        }
        self.batch = Some(batch);
        // Datagrams count against the queue pair's device, because their routes are not known yet.
        let may_queue = match &self.template {
            Some(template) => template.may_queue,
            None => {
                let dev = &*interfaces.netdev;
                tx.path.is_none() && may_queue(dev, is_veth(dev), rcu)
            }
        };
        if may_queue {
            self.space = self.ctx.local.space();
        }
        transport
    }

    /// Sends `count` packets: this one and its successors by [`TxPacket::advance`], whose payloads
    /// follow each other. Returns how many were accepted, and why the next one was not. A packet
    /// that can't be sent is lost: the protocol recovers.
    #[inline]
    pub(crate) fn send(
        &mut self,
        packet: &TxPacket,
        count: u32,
        payload: &TxPayload<'_>,
    ) -> (u32, Result<(), TxError>) {
        if self.send_in_place(packet, count, payload) {
            return (count, Ok(()));
        }
        // The key of a burst is looked up only once.
        let whole = packet.payload.len().saturating_mul(count);
        match payload {
            TxPayload::None => self.send_each(packet, count, &()),
            TxPayload::Bytes(bytes) => self.send_each(packet, count, bytes),
            TxPayload::Segments(segments, offset) => {
                let range = (count > 1).then(|| segments.whole(*offset, whole));
                match range.flatten() {
                    Some(range) => self.send_each(packet, count, &range),
                    None => self.send_each(packet, count, &(segments, *offset)),
                }
            }
            TxPayload::Region { user, rkey, va } => {
                let TxCtx { mrs, burst, .. } = self.ctx;
                match mrs.remote(burst, *user, *rkey, *va, whole, RemoteAccess::Read) {
                    Ok(range) => self.send_each(packet, count, &range),
                    Err(fault) => (0, Err(fault.into())),
                }
            }
        }
    }

    /// Sends consecutive packets, by the network stack or with copies of their payload.
    #[inline(never)]
    fn send_each(
        &mut self,
        packet: &TxPacket,
        count: u32,
        payload: &impl ReadPayload,
    ) -> (u32, Result<(), TxError>) {
        let mut at = 0u32;
        packet.for_each_in_burst(count, |packet| {
            self.send_one(packet, payload, at)?;
            at = at.wrapping_add(packet.payload.len());
            Ok(())
        })
    }

    /// Sends packets to a queue pair of the same device without copying their payload. Returns
    /// false, and sends nothing, if they are for another one, if the payload is too small, or if it
    /// can't stay in place until the packets are delivered.
    #[inline]
    fn send_in_place(&mut self, packet: &TxPacket, count: u32, payload: &TxPayload<'_>) -> bool {
        let Some(loopback) = self.batch.as_mut().and_then(|b| b.loopback.as_mut()) else {
            return false;
        };
        let (mrs, burst) = (self.ctx.mrs, self.ctx.burst);
        let whole = packet.payload.len().checked_mul(count);
        let whole = whole.filter(|len| *len >= MIN_ZERO_COPY);
        let reference = whole.and_then(|len| {
            let reference = payload.reference(len)?;
            mrs.pinned(burst, &reference, len.into()).map(|_| reference)
        });
        let Some(reference) = reference else {
            return false;
        };
        if !loopback.push(packet, count, PayloadSource::Region(reference)) {
            self.count_lost(count);
        }
        true
    }

    /// Sends a packet. Its payload starts at byte `at`.
    #[inline(always)]
    fn send_one(
        &mut self,
        packet: &TxPacket,
        payload: &impl ReadPayload,
        at: u32,
    ) -> Result<(), TxError> {
        let batch = self.batch.as_mut().ok_or(TxError::Full)?;
        let is_sent = match &mut batch.loopback {
            Some(loopback) => loopback.push_copy(packet, payload, at)?,
            None => self.append(packet, payload, at)?,
        };
        if !is_sent {
            self.count_lost(1);
        }
        Ok(())
    }

    /// Appends a packet to a chain. Returns false if there is no route or no memory.
    #[inline(always)]
    fn append(
        &mut self,
        packet: &TxPacket,
        payload: &impl ReadPayload,
        at: u32,
    ) -> Result<bool, Fault> {
        let size = packet.udp_payload_len() as usize;
        let is_full = |chain: &Chain| !chain.packets.accepts(size);
        if self.chain.as_ref().is_some_and(is_full) {
            self.finish();
        }
        let Some(template) = &self.template else {
            return Ok(false);
        };
        let (chain, scratch) = (&mut self.chain, &mut self.scratch);
        let is_appended = Chain::append(chain, template, packet, scratch, payload, at)?;
        if !is_appended || !template.may_chain {
            self.finish();
        }
        Ok(is_appended)
    }

    /// Sets the path of the following packets: the datagrams of a batch may have many destinations.
    pub(crate) fn set_path(&mut self, path: &'a Path, source_port: impl FnOnce() -> u16) {
        let is_for_path = |template: &FlowTemplate<'_>| core::ptr::eq(template.path, path);
        if !self.template.as_ref().is_some_and(is_for_path) {
            self.finish();
            self.scratch.prefix = LastPrefix::default();
            self.scratch.headers = LastHeaders::default();
            let (interfaces, rcu) = (self.ctx.interfaces, self.ctx.burst);
            self.template = FlowTemplate::datagrams(path, source_port(), interfaces, rcu);
        }
    }

    /// Ends the batch: moves an unfinished chain to the queue.
    #[inline]
    pub(crate) fn finish(&mut self) {
        // Most calls handle received packets, and find none.
        if let Some(chain) = self.chain.take() {
            self.finish_chain(chain);
        }
    }

    fn finish_chain(&mut self, chain: Chain) {
        let (count, counted) = (chain.packets.packets(), chain.counted);
        let template = self.template.as_ref();
        let skb = template.and_then(|template| chain.finish(template, self.ctx.burst));
        self.queue(skb, count, counted);
    }

    /// Moves a packet of the stack to the queue. Counts its packets as lost if it is `None`.
    fn queue(&mut self, skb: Option<TxSkb>, packets: u16, counted: bool) {
        let (Some(mut skb), Some(batch)) = (skb, self.batch.as_mut()) else {
            return self.count_lost(packets.into());
        };
        if counted {
            let is_owned = skb.set_owner(self.ctx.local.clone());
            batch.owned = batch.owned.wrapping_add(is_owned.into());
            self.space = self.space.saturating_sub(1);
        }
        batch.queue.push(skb);
    }

    fn count_lost(&mut self, packets: u32) {
        if let Some(batch) = &mut self.batch {
            batch.lost = batch.lost.saturating_add(packets);
        }
    }
}
