// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A packet arrives at the responder: whether it is to be executed, and what becomes of errors.

use super::message::Refusal;
use super::{Message, RecvCompletion, RecvOpcode, Responder, ResponderEnv, ResponderEvent, State};
use crate::psn::Region;
use crate::wire::{Class, NakCode, Operation, Syndrome};
use crate::{pkey, Ext, Outcome, Packet, Service, Status};

/// Bytes in front of a datagram's payload, where the driver puts the GRH or the IPv4 header (I-03).
pub const GRH_LEN: u32 = 40;

/// Something to send, nothing more.
const TRANSMIT: Outcome = Outcome {
    transmit: true,
    fatal: false,
    sqe: false,
};

impl Responder {
    /// Takes a request. Anything else is dropped.
    pub fn handle_packet<E: ResponderEnv>(
        &mut self,
        _now: u64,
        packet: &Packet,
        env: &mut E,
    ) -> Outcome {
        let mine = self.state == State::Ready
            && packet.bth.opcode.class() == Class::from(self.service)
            && !packet.is_response();
        if !mine {
            return self.drop_packet();
        }
        if !pkey::matches(packet.bth.pkey, self.pkey) {
            env.event(ResponderEvent::PkeyViolation);
            return self.drop_packet();
        }
        if self.service == Service::Ud {
            return self.on_datagram(packet, env);
        }
        if self.quiet {
            self.quiet = false;
            env.event(ResponderEvent::CommEstablished);
        }
        if self.service == Service::Uc {
            return self.on_unreliable(packet, env);
        }
        match packet.psn().region(self.epsn) {
            Region::Expected => {
                self.nak_due = None;
                self.nak_outstanding = false;
                let result = self.execute(packet, env);
                self.answer(packet, result, env)
            }
            Region::Future => {
                self.counters.out_of_sequence = self.counters.out_of_sequence.wrapping_add(1);
                if self.nak_outstanding {
                    return Outcome::default();
                }
                self.nak_outstanding = true;
                self.nak_due = Some((self.epsn, Syndrome::Nak(NakCode::SequenceError)));
                TRANSMIT
            }
            Region::Duplicate => {
                self.counters.duplicates = self.counters.duplicates.wrapping_add(1);
                self.on_duplicate(packet)
            }
        }
    }

    pub(super) fn drop_packet(&mut self) -> Outcome {
        self.counters.dropped = self.counters.dropped.wrapping_add(1);
        Outcome::default()
    }

    /// Executes the expected request of a reliable connection.
    #[inline]
    fn execute<E: ResponderEnv>(&mut self, packet: &Packet, env: &mut E) -> Result<(), Refusal> {
        match packet.operation {
            Operation::ReadRequest => self.on_read(packet, env),
            Operation::CompareSwap | Operation::FetchAdd => self.on_atomic(packet, env),
            _ => {
                self.on_send_or_write(packet, env)?;
                self.epsn = self.epsn.next();
                self.ack_due |= packet.bth.ackreq;
                Ok(())
            }
        }
    }

    /// What a reliable connection says to the result of a request.
    #[inline]
    fn answer<E: ResponderEnv>(
        &mut self,
        packet: &Packet,
        result: Result<(), Refusal>,
        env: &mut E,
    ) -> Outcome {
        let refusal = match result {
            Ok(()) => {
                let transmit = packet.bth.ackreq || self.resources.has_pending();
                return Outcome {
                    transmit,
                    ..Outcome::default()
                };
            }
            Err(refusal) => refusal,
        };
        let (code, status, event) = match refusal {
            Refusal::Rnr => {
                self.counters.rnr_naks = self.counters.rnr_naks.wrapping_add(1);
                self.nak_outstanding = true;
                self.nak_due = Some((
                    self.epsn,
                    Syndrome::RnrNak {
                        timer: self.min_rnr_timer,
                    },
                ));
                return TRANSMIT;
            }
            Refusal::Invalid => (
                NakCode::InvalidRequest,
                Status::RemInvReq,
                ResponderEvent::RequestError,
            ),
            Refusal::Length => (
                NakCode::InvalidRequest,
                Status::LocLen,
                ResponderEvent::RequestError,
            ),
            Refusal::Access => (
                NakCode::RemoteAccess,
                Status::RemAccess,
                ResponderEvent::AccessError,
            ),
            Refusal::Local(fault) => (
                NakCode::RemoteOperational,
                fault.status(),
                ResponderEvent::Fatal,
            ),
            Refusal::Invalidate => {
                // G-22: the peer gets no NAK.
                self.fail_recv(Status::RemInvReq, env);
                self.state = State::Error;
                return Outcome {
                    fatal: true,
                    ..Outcome::default()
                };
            }
        };
        if !self.fail_recv(status, env) {
            env.event(event);
        }
        self.message = Message::None;
        self.state = State::Failing;
        self.nak_due = Some((self.epsn, Syndrome::Nak(code)));
        TRANSMIT
    }

    /// A request of an unreliable connection: never answered (H-01). After a gap the next message
    /// is taken from its start (H-03, H-04).
    fn on_unreliable<E: ResponderEnv>(&mut self, packet: &Packet, env: &mut E) -> Outcome {
        let starts = matches!(
            packet.operation,
            Operation::SendFirst
                | Operation::SendOnly
                | Operation::SendOnlyImm
                | Operation::WriteFirst
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
        );
        if starts {
            // The receive work request of a broken SEND stays current, and is used again (H-05).
            self.message = Message::None;
        } else if packet.psn() != self.epsn {
            self.message = Message::None;
            self.counters.out_of_sequence = self.counters.out_of_sequence.wrapping_add(1);
            return Outcome::default();
        }
        self.epsn = packet.psn().next();
        match self.on_send_or_write(packet, env) {
            Ok(()) => Outcome::default(),
            Err(Refusal::Local(fault)) => {
                self.fail_recv(fault.status(), env);
                self.state = State::Error;
                Outcome {
                    fatal: true,
                    ..Outcome::default()
                }
            }
            Err(_) => {
                self.message = Message::None;
                self.drop_packet()
            }
        }
    }

    /// A datagram.
    fn on_datagram<E: ResponderEnv>(&mut self, packet: &Packet, env: &mut E) -> Outcome {
        let (deth, imm) = match packet.ext {
            Ext::Deth(deth) => (deth, None),
            Ext::DethImm(deth, imm) => (deth, Some(imm.to_verbs())),
            _ => return self.drop_packet(),
        };
        if deth.qkey != self.qkey {
            env.event(ResponderEvent::QkeyViolation);
            return self.drop_packet();
        }
        if packet.payload_len > self.mtu.bytes() {
            return self.drop_packet();
        }
        let byte_len = packet.payload_len.saturating_add(GRH_LEN);
        // Without a receive work request (E-12), or with one that is too small (I-04), the
        // datagram is lost; the work request waits for the next one.
        match self.current_recv(env) {
            Some(recv) if recv.length >= byte_len => {}
            _ => return self.drop_packet(),
        }
        if packet.payload_len != 0 {
            if let Err(fault) = env.place_recv(GRH_LEN) {
                self.fail_recv(fault.status(), env);
                self.state = State::Error;
                return Outcome {
                    fatal: true,
                    ..Outcome::default()
                };
            }
        }
        self.recv = None;
        env.complete_recv(RecvCompletion {
            status: Status::Success,
            opcode: RecvOpcode::Recv,
            byte_len,
            imm,
            invalidated: None,
            solicited: packet.bth.solicited,
            src_qp: deth.src_qpn,
            pkey: packet.bth.pkey,
        });
        Outcome::default()
    }
}
