// SPDX-License-Identifier: GPL-2.0

//! The receive side of a queue pair: the core's responder and what it works on.

use super::{
    scatter::{total, Segments},
    Notices, Occasion, Qp,
};
use crate::{
    abi::{self, Cqe, RecvWqe, CQE_GRH, CQE_SOLICITED, CQE_WITH_IMM, CQE_WITH_INV},
    path::Path,
    ring::Consumer,
    rx::Incoming,
    tx::Carrier,
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::{
    net::{IpAddr, TxQueue},
    rdma::{
        qp::QpType,
        wr::{wc, DataSegment},
        QpEvent,
    },
};
use rrxe_core::{
    AtomicOp, Fault, Payload, RecvCompletion, RecvOpcode, RecvRequest, RemoteAccess, Responder,
    ResponderEnv, ResponderEvent, Status, TxError, TxPacket,
};

/// Bytes in front of a datagram's payload: a Global Route Header, or the last 20 of them an IPv4
/// header (IBA 11.4.2.1, A17.4).
const GRH_LEN: usize = rrxe_core::responder::GRH_LEN as usize;

/// The receive side.
pub(crate) struct RecvSide {
    pub(crate) responder: Responder,
    current: Current,
    /// `None` once the queue pair is destroyed.
    pub(crate) consumer: Option<Consumer>,
    /// Connected queue pairs: the path to the peer.
    pub(crate) path: Option<Arc<Path>>,
    pub(crate) source_port: u16,
}

/// The receive work request that the responder works on.
struct Current {
    wr_id: u64,
    num_sge: usize,
    /// As many as a receive may have.
    segments: KVVec<DataSegment>,
    /// The entry made no sense: it fails when something is to be placed.
    malformed: bool,
}

impl RecvSide {
    pub(crate) fn new(responder: Responder, consumer: Consumer, max_sge: u32) -> Result<Self> {
        let mut segments = KVVec::with_capacity(max_sge as usize, GFP_KERNEL_ACCOUNT)?;
        segments.resize(max_sge as usize, DataSegment::default(), GFP_KERNEL_ACCOUNT)?;
        Ok(Self {
            responder,
            current: Current {
                wr_id: 0,
                num_sge: 0,
                segments,
                malformed: false,
            },
            consumer: Some(consumer),
            path: None,
            source_port: 0,
        })
    }

    /// Forgets everything (the Reset state).
    pub(crate) fn reset(&mut self) {
        self.responder.reset();
        if let Some(consumer) = &mut self.consumer {
            consumer.discard();
            consumer.want_doorbell(false);
        }
    }

    /// Runs `f` with the responder and the environment that it acts on.
    pub(crate) fn with<R>(
        &mut self,
        qp: &Qp,
        on: Occasion<'_>,
        queue: Option<&mut TxQueue>,
        notices: &mut Notices,
        f: impl FnOnce(&mut Responder, &mut Env<'_>) -> R,
    ) -> R {
        // Only who sends needs the way.
        let path = self.path.as_deref().filter(|_| queue.is_some());
        let carrier =
            path.and_then(|path| Carrier::new(path, &qp.device, self.source_port, on.rcu));
        let mut env = Env {
            qp,
            on,
            current: &mut self.current,
            consumer: self.consumer.as_mut(),
            carrier,
            queue,
            notices,
        };
        f(&mut self.responder, &mut env)
    }

    /// Completes all receive work requests as flushed, and has the consumer call us for more
    /// (the Error state).
    pub(crate) fn flush(&mut self, qp: &Qp, on: Occasion<'_>, notices: &mut Notices) {
        let flushed = RecvCompletion {
            status: Status::WrFlush,
            opcode: RecvOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            src_qp: 0,
            pkey: 0,
        };
        self.with(qp, on, None, notices, |responder, env| {
            responder.enter_error(env);
            if let Some(consumer) = &env.consumer {
                consumer.want_doorbell(true);
            }
            // After the word was set: whoever posts from here on will call.
            kernel::sync::barrier::smp_mb();
            // No more than the ring holds: a program that posts as fast as we flush rings for it.
            let most = env.consumer.as_ref().map_or(0, |c| c.capacity());
            for _ in 0..most {
                if env.fetch_recv().is_none() {
                    break;
                }
                env.complete_recv(flushed);
            }
        });
    }
}

/// What the responder acts on.
pub(crate) struct Env<'a> {
    qp: &'a Qp,
    on: Occasion<'a>,
    current: &'a mut Current,
    consumer: Option<&'a mut Consumer>,
    carrier: Option<Carrier<'a>>,
    queue: Option<&'a mut TxQueue>,
    notices: &'a mut Notices,
}

impl Env<'_> {
    fn segments(&self) -> Result<Segments<'_>, Fault> {
        if self.current.malformed {
            return Err(Fault::Malformed);
        }
        Ok(Segments {
            tables: &self.qp.device.tables,
            rcu: self.on.rcu,
            pd: self.qp.pd,
            list: self
                .current
                .segments
                .get(..self.current.num_sge)
                .ok_or(Fault::Malformed)?,
        })
    }

    /// What stands in front of a datagram.
    fn place_grh(&self, incoming: &Incoming<'_>) -> Result<(), Fault> {
        let mut grh = [0; GRH_LEN];
        let ip = incoming.skb.ip_header();
        let to = GRH_LEN
            .checked_sub(ip.len())
            .and_then(|at| grh.get_mut(at..))
            .ok_or(Fault::Malformed)?;
        to.copy_from_slice(ip);
        self.segments()?.scatter(0, &grh)
    }
}

impl ResponderEnv for Env<'_> {
    fn fetch_recv(&mut self) -> Option<RecvRequest> {
        let consumer = self.consumer.as_mut()?;
        // A ring that claims too much has nothing for us.
        if consumer.available().ok()? == 0 {
            return None;
        }
        let current = &mut *self.current;
        let wqe: RecvWqe = consumer.next().ok()?;
        current.wr_id = wqe.wr_id;
        current.num_sge = wqe.num_sge as usize;
        current.malformed = true;
        let mut length = 0;
        if let Some(to) = current.segments.get_mut(..current.num_sge) {
            let read = consumer.next_segments(core::mem::size_of::<RecvWqe>(), to);
            length = total(to);
            current.malformed = read.is_err() || length > crate::limits::MAX_MESSAGE.into();
        }
        consumer.take();
        Some(RecvRequest {
            // A malformed one takes anything, and fails then.
            length: if current.malformed {
                crate::limits::MAX_MESSAGE
            } else {
                u32::try_from(length).unwrap_or(crate::limits::MAX_MESSAGE)
            },
        })
    }

    fn place_recv(&mut self, offset: u32) -> Result<(), Fault> {
        let incoming = self.on.incoming.ok_or(Fault::Malformed)?;
        self.segments()?.scatter_payload(offset, incoming)
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<(), Fault> {
        self.qp
            .device
            .tables
            .remote(self.on.rcu, self.qp.pd, rkey, va, len, access)
            .map(|_| ())
    }

    fn place_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let incoming = self.on.incoming.ok_or(Fault::Malformed)?;
        let span = self.qp.device.tables.remote(
            self.on.rcu,
            self.qp.pd,
            rkey,
            va,
            incoming.packet.payload_len,
            RemoteAccess::Write,
        )?;
        let mut at = 0usize;
        let mut result = Ok(());
        incoming
            .skb
            .for_each(
                incoming.payload_offset(),
                incoming.payload_len(),
                |fragment| {
                    if result.is_ok() {
                        result = span.write_fragment(at, &fragment, 0, fragment.len());
                    }
                    at = at.wrapping_add(fragment.len());
                },
            )
            .map_err(|_| Fault::Malformed)?;
        result
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        self.qp
            .device
            .tables
            .remote(self.on.rcu, self.qp.pd, rkey, va, 8, RemoteAccess::Atomic)?
            .atomic(op)
    }

    fn invalidate(&mut self, _rkey: u32) -> Result<(), Fault> {
        // Only fast-registered regions and type 2 windows may be invalidated (IBA 10.6.5, K-08),
        // and there are none yet.
        Err(Fault::Protection)
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let mut cqe = Cqe {
            wr_id: self.current.wr_id,
            timestamp: self.on.now,
            byte_len: completion.byte_len,
            qp_num: self.qp.number,
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
        if let (Some(incoming), QpType::Ud | QpType::Gsi) = (self.on.incoming, self.qp.qp_type) {
            cqe.flags |= CQE_GRH;
            cqe.smac = incoming.skb.source_mac().unwrap_or_default();
            cqe.vlan_id = incoming.skb.vlan_id().unwrap_or(abi::NO_VLAN);
            cqe.network_hdr_type = match incoming.skb.source() {
                IpAddr::V4(_) => wc::NETWORK_IPV4,
                IpAddr::V6(_) => wc::NETWORK_IPV6,
            };
            if completion.status == Status::Success {
                if let Err(fault) = self.place_grh(incoming) {
                    cqe.status = fault.status() as u8;
                }
            }
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.retire();
        }
        self.notices
            .push(&self.qp.recv_cq, &cqe, self.qp, completion.solicited);
    }

    fn event(&mut self, event: ResponderEvent) {
        match event {
            ResponderEvent::CommEstablished => self.qp.raise(QpEvent::CommunicationEstablished),
            ResponderEvent::AccessError => self.qp.raise(QpEvent::AccessError),
            ResponderEvent::RequestError => self.qp.raise(QpEvent::RequestError),
            ResponderEvent::Fatal => self.qp.raise(QpEvent::Fatal),
            ResponderEvent::PkeyViolation => self.qp.device.count_bad_pkey(),
            ResponderEvent::QkeyViolation => self.qp.device.count_bad_qkey(),
        }
    }

    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        let Some(queue) = self.queue.as_deref_mut() else {
            return Err(TxError::NoRoom);
        };
        let Some(carrier) = &self.carrier else {
            // No route: lost.
            return Ok(());
        };
        let (tables, rcu, pd) = (&self.qp.device.tables, self.on.rcu, self.qp.pd);
        let skb = carrier.packet(packet, |to| match packet.payload {
            Payload::Read { rkey, va, len } => tables
                .remote(rcu, pd, rkey, va, len, RemoteAccess::Read)
                .and_then(|span| span.read(to))
                .map_err(|_| TxError::RemoteAccess),
            _ => Ok(()),
        })?;
        if let Some(skb) = skb {
            queue.push(skb);
        }
        Ok(())
    }
}
