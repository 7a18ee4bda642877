// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of SENDs and RDMA WRITEs, packet by packet (IBA 9.7.4.1 on the order of opcodes and on
//! lengths).

use super::{
    Message, RecvCompletion, RecvOpcode, RecvRequest, RemoteAccess, ResourceRing, Responder,
    ResponderEnv,
};
use crate::wire::{Operation, Reth};
use crate::{requester, Ext, Fault, Packet, Service, Status};

/// Reason for not executing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive work request is available.
    Rnr,
    /// The request is malformed, out of order, or of a kind that the queue pair does not allow.
    Invalid,
    /// The message is longer than the receive work request.
    Length,
    /// The peer lacks this access to the memory.
    Access,
    /// The memory of the receive work request cannot be used.
    Local(Fault),
    /// The key cannot be invalidated.
    Invalidate,
    /// The request is valid, but its answer cannot be stored. The request is dropped.
    Busy,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    #[inline]
    fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    #[inline]
    fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// Returns whether a packet at this position may have `len` bytes of payload (G-04).
    #[inline]
    fn fits(self, len: u32, mtu: u32) -> bool {
        match self {
            Position::First | Position::Middle => len == mtu,
            Position::Last => 1 <= len && len <= mtu,
            Position::Only => len <= mtu,
        }
    }
}

impl<R: ResourceRing> Responder<R> {
    /// Returns the current receive work request, or takes the next one of the packet's queue.
    #[inline]
    pub(super) fn current_recv<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        env: &mut E,
    ) -> Result<RecvRequest, Refusal> {
        if self.recv.is_none() {
            self.recv = match self.service {
                // An error means that the queue does not exist, or not for this queue pair
                // (IBA A14).
                Service::Xrc => env
                    .fetch_xrc_recv(packet.xrc_srqn)
                    .map_err(|_| Refusal::Invalid)?,
                _ => env.fetch_recv(),
            };
        }
        self.recv.ok_or(Refusal::Rnr)
    }

    /// Executes a packet of a SEND or WRITE whose PSN has been checked.
    #[inline]
    pub(super) fn on_send_or_write<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        env: &mut E,
    ) -> Result<(), Refusal> {
        use Operation as O;
        let (position, is_send) = match packet.operation {
            O::SendFirst => (Position::First, true),
            O::SendMiddle => (Position::Middle, true),
            O::SendLast | O::SendLastImm | O::SendLastInvalidate => (Position::Last, true),
            O::SendOnly | O::SendOnlyImm | O::SendOnlyInvalidate => (Position::Only, true),
            O::WriteFirst => (Position::First, false),
            O::WriteMiddle => (Position::Middle, false),
            O::WriteLast | O::WriteLastImm => (Position::Last, false),
            O::WriteOnly | O::WriteOnlyImm => (Position::Only, false),
            _ => return Err(Refusal::Invalid),
        };
        // Only packets in the middle of a message form a burst.
        if !position.fits(
            packet.payload_len,
            self.mtu.bytes().saturating_mul(packet.packets),
        ) {
            return Err(Refusal::Invalid);
        }
        if is_send {
            self.on_send(packet, position, env)
        } else {
            self.on_write(packet, position, env)
        }
    }

    #[inline]
    fn on_send<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        position: Position,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let received = match (self.message, position.starts()) {
            (Message::None, true) => 0,
            (Message::Send { received, xrc_srqn }, false) if xrc_srqn == packet.xrc_srqn => {
                received
            }
            _ => return Err(Refusal::Invalid),
        };
        let recv = self.current_recv(packet, env)?;
        let end = received.saturating_add(packet.payload_len);
        if end > recv.length || end > requester::MAX_MESSAGE {
            return Err(Refusal::Length);
        }
        if packet.payload_len != 0 {
            env.write_recv(received).map_err(Refusal::Local)?;
        }
        if !position.ends() {
            self.message = Message::Send {
                received: end,
                xrc_srqn: packet.xrc_srqn,
            };
            return Ok(());
        }
        let invalidated = match packet.ext {
            Ext::Ieth(ieth) => {
                env.invalidate(ieth.rkey).map_err(|_| Refusal::Invalidate)?;
                Some(ieth.rkey)
            }
            _ => None,
        };
        self.complete(packet, RecvOpcode::Recv, end, invalidated, env);
        self.end_message();
        Ok(())
    }

    #[inline]
    fn on_write<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        position: Position,
        env: &mut E,
    ) -> Result<(), Refusal> {
        if !self.allow_write {
            return Err(Refusal::Invalid);
        }
        let len = packet.payload_len;
        let (rkey, va, left, total) = self.write_range(packet, position.starts())?;
        // The payloads must add up to exactly the announced length, with at least one byte left for
        // the last packet.
        let enough = if position.ends() {
            len == left
        } else {
            len < left
        };
        // G-08
        if !enough || total > requester::MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        // G-09: an access to 0 bytes does not check the key.
        if position.starts() && total != 0 {
            env.check_remote(rkey, va, total, RemoteAccess::Write)
                .map_err(|_| Refusal::Access)?;
        }
        let with_imm = matches!(packet.ext, Ext::Imm(_) | Ext::RethImm(..));
        if with_imm {
            // Write no data without a work request to report it (E-01).
            self.current_recv(packet, env)?;
        }
        if len != 0 {
            env.write_remote(rkey, va).map_err(|_| Refusal::Access)?;
        }
        if !position.ends() {
            let va = va.wrapping_add(u64::from(len));
            self.message = Message::Write {
                rkey,
                va,
                left: left.saturating_sub(len),
                total,
            };
            return Ok(());
        }
        if with_imm {
            self.complete(packet, RecvOpcode::RecvRdmaWithImm, total, None, env);
        }
        self.end_message();
        Ok(())
    }

    /// Returns the rest of an RDMA WRITE from this packet on: key, address and length, and the
    /// length of all of it.
    #[inline]
    fn write_range(&self, packet: &Packet, starts: bool) -> Result<(u32, u64, u32, u32), Refusal> {
        let reth = match (packet.ext, self.message) {
            (Ext::Reth(reth) | Ext::RethImm(reth, _), Message::None) => Some(reth),
            _ => None,
        };
        match (reth, self.message, starts) {
            (Some(Reth { rkey, va, len }), _, true) => Ok((rkey, va, len, len)),
            (
                None,
                Message::Write {
                    rkey,
                    va,
                    left,
                    total,
                },
                false,
            ) => Ok((rkey, va, left, total)),
            _ => Err(Refusal::Invalid),
        }
    }

    fn end_message(&mut self) {
        self.message = Message::None;
        if self.service.is_reliable() {
            self.msn = self.msn.next();
        }
    }

    /// Completes the current receive work request with success.
    #[inline]
    fn complete<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        opcode: RecvOpcode,
        byte_len: u32,
        invalidated: Option<u32>,
        env: &mut E,
    ) {
        let imm = match packet.ext {
            Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm.to_verbs()),
            _ => None,
        };
        self.recv = None;
        env.complete_recv(RecvCompletion {
            status: Status::Success,
            opcode,
            byte_len,
            imm,
            invalidated,
            solicited: packet.bth.solicited,
            src_qp: 0,
        });
    }
}
