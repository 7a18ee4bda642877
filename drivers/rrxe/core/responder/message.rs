// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of SENDs and RDMA WRITEs, packet by packet (IBA 9.7.4.1 on the order of opcodes and on
//! lengths).

use super::{
    Message, RecvCompletion, RecvOpcode, RemoteAccess, ResourceRing, Responder,
    ResponderEnv as Env, State,
};
use crate::wire::Operation;
use crate::{requester, Ext, Fault, Packet, Service, Status};

/// Result of the execution of a request.
pub(super) type Result<T = ()> = core::result::Result<T, Refusal>;

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
    /// The request is valid, but its response cannot be stored. The request is dropped.
    Busy,
    /// The memory is absent. The request is dropped.
    NotPresent,
}

impl Refusal {
    /// Returns the refusal of a request whose access to the memory of a receive work request has
    /// failed.
    #[inline]
    fn local(fault: Fault) -> Refusal {
        match fault {
            Fault::NotPresent => Refusal::NotPresent,
            fault => Refusal::Local(fault),
        }
    }

    /// Returns the refusal of a request whose access to remote memory has failed.
    #[inline]
    pub(super) fn remote(fault: Fault) -> Refusal {
        match fault {
            Fault::NotPresent => Refusal::NotPresent,
            _ => Refusal::Access,
        }
    }
}

/// A packet of a SEND or RDMA WRITE.
#[derive(Clone, Copy)]
pub(super) struct MessagePart {
    is_send: bool,
    pub(super) is_first: bool,
    is_last: bool,
}

impl MessagePart {
    /// Returns `None` for the packets of other operations.
    #[inline]
    pub(super) fn of(operation: Operation) -> Option<MessagePart> {
        use Operation as O;
        let (is_send, is_first, is_last) = match operation {
            O::SendFirst => (true, true, false),
            O::SendMiddle => (true, false, false),
            O::SendLast | O::SendLastImm | O::SendLastInvalidate => (true, false, true),
            O::SendOnly | O::SendOnlyImm | O::SendOnlyInvalidate => (true, true, true),
            O::WriteFirst => (false, true, false),
            O::WriteMiddle => (false, false, false),
            O::WriteLast | O::WriteLastImm => (false, false, true),
            O::WriteOnly | O::WriteOnlyImm => (false, true, true),
            _ => return None,
        };
        Some(MessagePart {
            is_send,
            is_first,
            is_last,
        })
    }
}

impl<R: ResourceRing> Responder<R> {
    /// Returns the length of the current receive work request, or of the next one of the packet's
    /// queue, which becomes the current one.
    #[inline]
    pub(super) fn current_recv(&mut self, packet: &Packet, env: &mut impl Env) -> Result<u32> {
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
    pub(super) fn on_send_or_write(&mut self, packet: &Packet, env: &mut impl Env) -> Result {
        let part = MessagePart::of(packet.operation).ok_or(Refusal::Invalid)?;
        debug_assert!(
            packet.packets == 1 || !part.is_first && !part.is_last,
            "a burst with the start or the end of a message"
        );
        // G-04. Only packets in the middle of a message form a burst.
        let max = self.mtu.offset(packet.packets);
        let fits = match packet.payload_len {
            0 => part.is_first && part.is_last,
            len if part.is_last => len <= max,
            len => len == max,
        };
        if !fits {
            return Err(Refusal::Invalid);
        }
        if part.is_send {
            self.on_send(packet, part, env)
        } else {
            self.on_write(packet, part, env)
        }
    }

    #[inline]
    fn on_send(&mut self, packet: &Packet, part: MessagePart, env: &mut impl Env) -> Result {
        let received = match (self.message, part.is_first) {
            (Message::None, true) => 0,
            (Message::Send { received, xrc_srqn }, false) if xrc_srqn == packet.xrc_srqn => {
                received
            }
            _ => return Err(Refusal::Invalid),
        };
        let length = self.current_recv(packet, env)?;
        let end = received.checked_add(packet.payload_len);
        let end = end.ok_or(Refusal::Length)?;
        if end > length || end > requester::MAX_MESSAGE {
            return Err(Refusal::Length);
        }
        if packet.payload_len != 0 {
            env.write_recv(received).map_err(Refusal::local)?;
        }
        if !part.is_last {
            self.message = Message::Send {
                received: end,
                xrc_srqn: packet.xrc_srqn,
            };
            return Ok(());
        }
        if let Ext::Ieth(ieth) = packet.ext {
            env.invalidate(ieth.rkey).map_err(|_| Refusal::Invalidate)?;
        }
        self.complete(packet, RecvOpcode::Recv, end, env);
        self.end_message();
        Ok(())
    }

    #[inline]
    fn on_write<E: Env>(&mut self, packet: &Packet, part: MessagePart, env: &mut E) -> Result {
        if !self.allow_write {
            return Err(Refusal::Invalid);
        }
        let (rest, total) = match (packet.ext, self.message, part.is_first) {
            (Ext::Reth(reth) | Ext::RethImm(reth, _), Message::None, true) => (reth, reth.len),
            (_, Message::Write { rest, total }, false) => (rest, total),
            _ => return Err(Refusal::Invalid),
        };
        let (rkey, va, len) = (rest.rkey, rest.va, packet.payload_len);
        // G-08: the payloads must add up to exactly the announced length, with at least one byte
        // left for the last packet.
        let is_end = len == rest.len;
        if len > rest.len || is_end != part.is_last || total > requester::MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        // G-09: an access to 0 bytes does not check the key.
        if part.is_first && total != 0 {
            env.check_remote(rkey, va, total, RemoteAccess::Write)
                .map_err(Refusal::remote)?;
        }
        let with_imm = matches!(packet.ext, Ext::Imm(_) | Ext::RethImm(..));
        if with_imm {
            // Write no data without a work request to report it (E-01).
            self.current_recv(packet, env)?;
        }
        if len != 0 {
            env.write_remote(rkey, va).map_err(Refusal::remote)?;
        }
        if !part.is_last {
            let rest = rest.rest(len);
            debug_assert!(rest.len != 0, "nothing is left for the last packet");
            self.message = Message::Write { rest, total };
            return Ok(());
        }
        if with_imm {
            self.complete(packet, RecvOpcode::RecvRdmaWithImm, total, env);
        }
        self.end_message();
        Ok(())
    }

    fn end_message(&mut self) {
        debug_assert!(
            self.state == State::Ready,
            "a message ends that was not accepted"
        );
        self.message = Message::None;
        if self.service.is_reliable() {
            self.msn = self.msn.next();
        }
    }

    /// Completes the current receive work request with success.
    #[inline]
    pub(super) fn complete(
        &mut self,
        packet: &Packet,
        opcode: RecvOpcode,
        byte_len: u32,
        env: &mut impl Env,
    ) {
        let mut completion = RecvCompletion {
            opcode,
            byte_len,
            solicited: packet.bth.solicited,
            ..RecvCompletion::new(Status::Success)
        };
        match packet.ext {
            Ext::Imm(imm) | Ext::RethImm(_, imm) => completion.imm = Some(imm.to_verbs()),
            Ext::Ieth(ieth) => completion.invalidated = Some(ieth.rkey),
            Ext::Deth(deth) => completion.src_qp = deth.src_qpn,
            Ext::DethImm(deth, imm) => {
                completion.src_qp = deth.src_qpn;
                completion.imm = Some(imm.to_verbs());
            }
            _ => {}
        }
        debug_assert!(self.recv.is_some(), "no receive work request completes");
        debug_assert!(
            opcode != RecvOpcode::Recv || self.recv.is_some_and(|length| byte_len <= length),
            "a message exceeds its receive work request"
        );
        self.recv = None;
        env.complete_recv(completion);
    }
}
