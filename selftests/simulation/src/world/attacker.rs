// SPDX-License-Identifier: GPL-2.0

//! Packets that the peer did not send. Forged packets have valid addresses and queue pair numbers
//! and possibly valid operands, but no valid key and no expected PSN. Stale packets belong to an
//! earlier connection with equal addresses and numbers.
//!
//! A receiver can't distinguish a forgery with the expected PSN from a genuine packet, nor a
//! forgery that arrives before a genuine packet of the same PSN. So each forgery here has a PSN
//! that is unusable for the peer at that moment, or repeats an executed request with a change.

use super::World;
use crate::oracle::*;
use rrxe_core::reorder::{is_plausible, MAX_DISTANCE};
use rrxe_core::wire::{Aeth, AtomicAckEth, AtomicEth, Feth, NakCode, Operation, Reth, Syndrome};
use rrxe_core::*;
use rrxe_testkit::{packet_of, Random};

/// Number of recorded packets, of all connections.
const REMEMBERED: usize = 64;

/// A packet that arrived once.
struct Seen {
    to: usize,
    flow: usize,
    epoch: u32,
    packet: Packet,
    payload: Vec<u8>,
}

/// The attacker. It has a generator of its own and so leaves the rest of the simulation unchanged.
pub(super) struct Attacker {
    random: Random,
    seen: Vec<Seen>,
}

impl Attacker {
    pub(super) fn new(random: Random) -> Attacker {
        Attacker {
            random,
            seen: Vec::new(),
        }
    }

    /// Occasionally records an arriving packet for a replay after its connection is gone.
    pub(super) fn see(&mut self, to: usize, truth: &Truth, packet: &Packet, payload: &[u8]) {
        if !self.random.chance(100) {
            return;
        }
        let seen = Seen {
            to,
            flow: truth.flow,
            epoch: truth.epoch,
            packet: *packet,
            payload: payload.to_vec(),
        };
        if self.seen.len() < REMEMBERED {
            self.seen.push(seen);
        } else {
            let at = self.random.below(REMEMBERED as u32) as usize;
            self.seen[at] = seen;
        }
    }

    fn header(&mut self, service: Service, operation: Operation, psn: Psn, to: usize) -> Packet {
        let mut packet = packet_of(service, operation, psn, Ext::None, 0);
        packet.bth.dest_qpn = FIRST_QPN + to as u32;
        packet.bth.ackreq = packet.bth.ackreq && self.random.chance(700);
        packet.xrc_srqn = FIRST_SRQN;
        packet
    }
}

impl World {
    /// Occasionally sends a queue pair a packet that does not come from its peer.
    pub(super) fn forge(&mut self, qp: usize) {
        let level = self.oracle.config.trouble.forgeries;
        let reliable = self.oracle.flows[qp].service.is_reliable();
        let connected = !matches!(self.oracle.sides[qp].state, State::Reset | State::Error);
        if !self.attacker.random.chance(level) || !reliable || !connected {
            return;
        }
        match self.attacker.random.below(4) {
            0 => self.forge_request(qp),
            1 => self.forge_repetition(qp),
            2 => self.forge_response(qp),
            _ => self.stale(qp),
        }
    }

    /// Forges a request with an arbitrary PSN.
    fn forge_request(&mut self, qp: usize) {
        use Operation as O;
        let service = self.oracle.flows[qp].service;
        let mtu = self.oracle.connection(qp).mtu.bytes();
        let epsn = Psn::new(self.cores[qp].responder.expected_psn());
        let random = &mut self.attacker.random;
        let psn = match random.below(4) {
            0 => epsn.add(MAX_DISTANCE + random.below(64)),
            1 => epsn.sub(1 + random.below(64)),
            2 => epsn.add(psn::MAX_OUTSTANDING).sub(random.below(4)),
            _ => Psn::new(random.next_u64() as u32),
        };
        let operation = random.pick(&[
            O::SendFirst,
            O::SendMiddle,
            O::SendLast,
            O::SendOnly,
            O::WriteFirst,
            O::WriteOnly,
            O::ReadRequest,
            O::FetchAdd,
            O::CompareSwap,
            O::AtomicWrite,
            O::Unsupported,
        ]);
        let (rkey, va) = (
            random.next_u64() as u32,
            ADDRESS + random.next_u64() % 0x10000,
        );
        let mut packet = self.attacker.header(service, operation, psn, qp);
        packet.ext = match operation {
            O::WriteFirst | O::WriteOnly | O::ReadRequest | O::AtomicWrite => {
                Ext::Reth(Reth { va, rkey, len: 8 })
            }
            O::FetchAdd | O::CompareSwap => Ext::Atomic(AtomicEth {
                va,
                rkey,
                swap_add: 1,
                compare: 0,
            }),
            _ => Ext::None,
        };
        packet.payload_len = match operation {
            O::SendFirst | O::SendMiddle | O::WriteFirst => mtu,
            O::SendLast | O::SendOnly | O::WriteOnly | O::AtomicWrite => 8,
            _ => 0,
        };
        let payload = vec![0x66; packet.payload_len as usize];
        self.unsent_request(qp, packet, &payload);
    }

    /// Repeats an executed READ, atomic or FLUSH with one field changed.
    fn forge_repetition(&mut self, qp: usize) {
        let incoming = self.oracle.sides[qp].peer;
        let flow = &self.oracle.flows[incoming];
        let executed = |m: &&crate::flow::Message| {
            m.op.typed().is_read_or_atomic() && m.started && m.first + m.packets <= flow.executed
        };
        let messages: Vec<_> = flow.messages.iter().filter(executed).collect();
        if messages.is_empty() {
            return;
        }
        let random = &mut self.attacker.random;
        let message = messages[random.below(messages.len() as u32) as usize];
        let (operation, psn) = (message.operation(0), flow.psn(message.first));
        let (place, len) = (ADDRESS + message.place as u64, message.len);
        let (compare, swap) = crate::env::operands(message);
        // Change one operand.
        let wrong = random.below(3);
        let rkey = flow.rkey.wrapping_add(u32::from(wrong == 0));
        let va = place.wrapping_add(u64::from(wrong == 1) * 8);
        let other = u64::from(wrong == 2);
        let service = flow.service;
        let mut packet = self.attacker.header(service, operation, psn, qp);
        packet.ext = match operation {
            Operation::FetchAdd => Ext::Atomic(AtomicEth {
                va,
                rkey,
                swap_add: compare.wrapping_add(other),
                compare: 0,
            }),
            Operation::CompareSwap => Ext::Atomic(AtomicEth {
                va,
                rkey,
                swap_add: swap.wrapping_add(other),
                compare,
            }),
            Operation::Flush => {
                let feth = Feth {
                    placement: 0,
                    level: 0,
                };
                Ext::Flush(feth, Reth { va, rkey, len })
            }
            _ => Ext::Reth(Reth {
                va,
                rkey,
                len: len.wrapping_add(other as u32),
            }),
        };
        if operation == Operation::AtomicWrite {
            packet.payload_len = 8;
        }
        let payload = vec![0x66; packet.payload_len as usize];
        let sent = self.unsent_request(qp, packet, &payload);
        assert!(
            !sent,
            "queue pair {qp} repeats the response to {operation:?}, though the request differs"
        );
    }

    /// Forges a response that matches no outstanding request.
    fn forge_response(&mut self, qp: usize) {
        use Operation as O;
        let service = self.oracle.flows[qp].service;
        let una = self.cores[qp].requester.expected_psn();
        let next = Psn::new(self.cores[qp].requester.next_psn());
        let random = &mut self.attacker.random;
        let psn = match random.below(4) {
            0 => next.add(random.below(64)),
            1 => una.sub(1 + random.below(64)),
            2 => una.add(psn::MAX_OUTSTANDING).sub(random.below(4)),
            _ => Psn::new(random.next_u64() as u32),
        };
        let operation = random.pick(&[
            O::Acknowledge,
            O::Acknowledge,
            O::ReadResponseOnly,
            O::ReadResponseMiddle,
            O::AtomicAcknowledge,
        ]);
        let syndrome = random.pick(&[
            Syndrome::ACK_UNLIMITED,
            Syndrome::RnrNak { timer: 1 },
            Syndrome::Nak(NakCode::SequenceError),
            Syndrome::Nak(NakCode::RemoteAccess),
        ]);
        let aeth = Aeth::new(syndrome, Psn::new(random.next_u64() as u32));
        let mut packet = self.attacker.header(service, operation, psn, qp);
        packet.ext = match operation {
            O::ReadResponseMiddle => Ext::None,
            O::AtomicAcknowledge => Ext::AtomicAck(aeth, AtomicAckEth { original: 7 }),
            _ => Ext::Aeth(aeth),
        };
        self.unsent_response(qp, packet, &[]);
    }

    /// Delivers a packet of an earlier connection of this queue pair.
    fn stale(&mut self, qp: usize) {
        let oracle = &self.oracle;
        let of = |seen: &Seen| seen.to == qp && seen.epoch != oracle.flows[seen.flow].epoch;
        let Some(at) = self.attacker.seen.iter().position(of) else {
            return;
        };
        let seen = self.attacker.seen.swap_remove(at);
        if seen.packet.is_response() {
            self.unsent_response(qp, seen.packet, &seen.payload);
        } else {
            self.unsent_request(qp, seen.packet, &seen.payload);
        }
    }

    /// Delivers a request that the peer did not send, unless the peer might use its PSN now.
    /// Returns whether the responder has something to transmit.
    fn unsent_request(&mut self, qp: usize, packet: Packet, payload: &[u8]) -> bool {
        let now = self.oracle.now;
        let core = &self.cores[qp];
        let (epsn, msn) = (core.responder.expected_psn(), core.responder.msn.get());
        let region = packet.psn().region(Psn::new(epsn));
        let ahead = packet.psn().since(Psn::new(epsn));
        match region {
            psn::Region::Expected => return false,
            psn::Region::Future if ahead < MAX_DISTANCE => return false,
            _ => {}
        }
        trace!(
            self.oracle,
            "    {qp} takes {:?} psn {:#x}, which nobody sent",
            packet.operation,
            packet.psn().get()
        );
        let near = is_plausible(packet.psn(), Psn::new(epsn));
        let marked = core.responder.cnp(&packet).is_some();
        assert!(near || !marked, "queue pair {qp} notifies of congestion");
        let progress = self.oracle.progress;
        self.oracle.payload.clear();
        self.oracle.payload.extend_from_slice(payload);
        // `handling` is `None`: the environment panics if the core places or executes anything.
        let outcome = self.with(qp, |core, env| {
            core.responder
                .handle_packet(Time::from_ns(now), &packet, env)
        });
        assert!(!outcome.buffer, "queue pair {qp} buffers what nobody sent");
        assert!(!outcome.fatal, "what nobody sent is fatal");
        let core = &self.cores[qp];
        assert_eq!(
            (core.responder.expected_psn(), core.responder.msn.get()),
            (epsn, msn),
            "queue pair {qp} gets on by what nobody sent"
        );
        assert_eq!(progress, self.oracle.progress);
        let incoming = self.oracle.sides[qp].peer;
        if region == psn::Region::Future {
            self.oracle.flows[incoming].nak_open = true;
        }
        if region == psn::Region::Future || outcome.transmit {
            // The responder may send a NAK, or acknowledge a READ whose response was lost. Either
            // costs the requester a retry.
            self.oracle.flows[incoming].disturb(now);
        }
        if outcome.transmit {
            self.respond(qp);
        }
        self.check(qp);
        outcome.transmit
    }

    /// Delivers a response that the peer did not send, unless its PSN is outstanding.
    fn unsent_response(&mut self, qp: usize, packet: Packet, payload: &[u8]) {
        let now = self.oracle.now;
        let requester = &self.cores[qp].requester;
        let una = requester.expected_psn();
        let outstanding = Psn::new(requester.next_psn()).since(una);
        if packet.psn().since(una) < outstanding {
            return;
        }
        trace!(
            self.oracle,
            "    {qp} takes {:?} psn {:#x}, which nobody sent",
            packet.operation,
            packet.psn().get()
        );
        let marked = requester.cnp(&packet).is_some();
        assert!(
            is_plausible(packet.psn(), una) || !marked,
            "queue pair {qp} notifies of congestion"
        );
        let completed = self.oracle.flows[qp].completed;
        self.oracle.payload.clear();
        self.oracle.payload.extend_from_slice(payload);
        let outcome = self.with(qp, |core, env| {
            core.requester
                .handle_packet(&mut core.slots, Time::from_ns(now), &packet, env)
        });
        assert!(!outcome.buffer && !outcome.fatal && !outcome.sqe);
        assert_eq!(completed, self.oracle.flows[qp].completed);
        assert_eq!(una, self.cores[qp].requester.expected_psn());
        if packet.operation == Operation::Acknowledge && packet.psn() == una.prev() {
            // Nothing distinguishes it from the last acknowledgement, repeated with new credits.
            self.take_credits(qp, &packet, una);
        }
        self.after_send_side(qp, outcome);
    }
}
