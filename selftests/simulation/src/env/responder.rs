// SPDX-License-Identifier: GPL-2.0

//! The responder's environment: receive work requests, memory, and responses.

use super::{operands, words, Env};
use crate::backing::{Half, Page};
use crate::data::data;
use crate::flow::{Message, Trap};
use crate::oracle::{trace, Oracle, State, Truth, ADDRESS, FIRST_QPN};
use rrxe_core::wire::{NakCode, Operation, Syndrome};
use rrxe_core::*;
use rrxe_testkit::{execute_atomic, Op};

/// The syndrome of a sequence error NAK.
const SEQUENCE_ERROR: u8 = 0x60;

impl Env<'_> {
    /// Returns the flow that this queue pair receives.
    fn incoming(&self) -> usize {
        self.oracle.sides[self.qp].peer
    }

    /// Takes a receive work request for this queue pair, as a driver does.
    fn take(&mut self, queue: usize) -> Option<u32> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let side = &mut oracle.sides[qp];
        assert!(side.current.is_none(), "one receive work request at a time");
        side.current = oracle.queues[queue].take(qp);
        side.partial = None;
        side.current.map(|receive| receive.len)
    }

    /// Accesses memory for the request being handled.
    fn touch(&mut self, page: Page) -> Result<(), Fault> {
        let present = self.oracle.touch(page, self.qp, Half::Recv);
        let incoming = self.incoming();
        let flow = &mut self.oracle.flows[incoming];
        flow.dropped |= present.is_err();
        flow.absent |= present.is_err();
        present
    }

    /// Checks a response packet. Returns its relative PSN.
    fn check_response(&self, packet: &TxPacket) -> u32 {
        let (oracle, qp) = (&*self.oracle, self.qp);
        let state = oracle.sides[qp].state;
        assert!(
            matches!(state, State::Rts | State::Sqd),
            "queue pair {qp} responds in state {state:?}"
        );
        let flow = &oracle.flows[self.incoming()];
        assert!(flow.service.is_reliable(), "only RC and XRC respond");
        let parsed = Packet::parse(packet.header(), packet.udp_payload_len())
            .expect("what is sent can be parsed");
        let psn = flow.relative(packet.psn);
        assert!(!parsed.bth.ackreq && !parsed.bth.solicited);
        assert_eq!(parsed.bth.dest_qpn, FIRST_QPN + self.incoming() as u32);
        let executed = flow.executed;
        if let Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) = parsed.ext {
            assert_eq!(
                aeth.msn.get(),
                flow.msn,
                "the MSN that queue pair {qp} sends"
            );
            match Syndrome::decode(aeth.syndrome) {
                Syndrome::Ack { .. } => {
                    let none = executed == 0 && psn == psn::MODULUS - 1;
                    assert!(
                        psn < executed || none,
                        "queue pair {qp} acknowledges PSN {psn}, and has executed {executed}"
                    );
                }
                Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::SequenceError) => {
                    assert_eq!(psn, executed, "the PSN of a NAK of queue pair {qp}");
                    assert!(
                        !flow.absent,
                        "queue pair {qp} asks for PSN {psn}, whose memory is absent"
                    );
                }
                // A READ may be refused in the middle of its response (G-28).
                Syndrome::Nak(_) => assert!(psn <= executed),
                Syndrome::Reserved(byte) => panic!("queue pair {qp} sends syndrome {byte:#x}"),
            }
        } else {
            assert!(psn < executed, "a response to what was not executed");
        }
        // A response continues at the next PSN, or starts with FIRST or ONLY (C-07).
        use Operation as O;
        if let O::ReadResponseMiddle | O::ReadResponseLast = parsed.operation {
            assert!(
                flow.responses.contains(&psn),
                "a response starts in the middle"
            );
        }
        psn
    }
}

/// Checks the payload that queue pair `qp` places for the packet being handled: the bytes must
/// match the message, and reliable services place in order.
fn check_payload(oracle: &Oracle, qp: usize, truth: &Truth, at: u32) {
    let flow = &oracle.flows[truth.flow];
    let message = &flow.messages[truth.message];
    assert_eq!(
        oracle.payload,
        data(message.data + at, oracle.payload.len() as u32),
        "what queue pair {qp} places"
    );
    if flow.service.is_reliable() {
        assert_eq!(
            truth.relative, flow.executed,
            "queue pair {qp} places out of order"
        );
    }
}

impl Env<'_> {
    /// Sends a response packet.
    pub fn send_response(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.use_space()?;
        let qp = self.qp;
        let relative = self.check_response(packet);
        let incoming = self.incoming();
        self.oracle.payload.clear();
        if let Payload::Read { rkey, va, len, .. } = packet.payload {
            let host = self.oracle.sides[qp].host;
            let start = self.oracle.region(host, rkey, va, len)?;
            self.oracle
                .touch(Page::remote(host, start), qp, Half::Recv)?;
            let bytes = &self.oracle.hosts[host].memory[start..start + len as usize];
            self.oracle.payload.extend_from_slice(bytes);
        }
        let flow = &mut self.oracle.flows[incoming];
        flow.responses.retain(|&psn| psn != relative);
        if let Some(Operation::ReadResponseFirst | Operation::ReadResponseMiddle) =
            packet.opcode.operation()
        {
            flow.responses.push(relative + 1);
        }
        if packet.header()[12..].first() == Some(&SEQUENCE_ERROR) {
            let acknowledge = packet.opcode.operation() == Some(Operation::Acknowledge);
            flow.naks += u32::from(acknowledge);
            flow.nak_open |= acknowledge;
            assert!(
                flow.naks <= 1,
                "queue pair {qp} says twice that PSN {relative} is missing"
            );
        }
        let truth = Truth {
            flow: incoming,
            epoch: self.oracle.flows[incoming].epoch,
            response: true,
            relative,
            message: 0,
        };
        self.oracle.sides[qp].emitted += 1;
        self.oracle.ship(incoming, truth, packet);
        Ok(())
    }
}

impl ResponderEnv for Env<'_> {
    fn fetch_recv(&mut self) -> Option<u32> {
        let [queue] = self.oracle.sides[self.qp].queues[..] else {
            panic!("only XRC has several receive queues");
        };
        self.take(queue)
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let current = oracle.sides[qp].current.expect("it was fetched");
        if let Some(fault) = current.fault {
            oracle.flows[truth.flow].receive_fault = true;
            return Err(fault);
        }
        self.touch(Page::Receive(current.queue, current.number, offset))?;
        let oracle = &mut *self.oracle;
        let flow = &oracle.flows[truth.flow];
        let message = &flow.messages[truth.message];
        let at = (truth.relative - message.first) * flow.mtu.bytes();
        let before = if flow.service == Service::Ud { 40 } else { 0 };
        let len = oracle.payload.len() as u32;
        assert!(message.receives() && message.op != Op::WriteImm);
        assert_eq!(offset, at + before, "where queue pair {qp} places");
        assert!(
            offset + len <= current.len,
            "beyond the receive work request"
        );
        check_payload(oracle, qp, &truth, at);
        let side = &mut oracle.sides[qp];
        let key = (truth.flow, truth.message);
        let there = match side.partial {
            Some((f, m, there)) if (f, m) == key && at != 0 => there,
            _ => 0,
        };
        assert_eq!(there, at, "queue pair {qp} leaves a gap");
        side.partial = Some((key.0, key.1, at + len));
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        _access: RemoteAccess,
    ) -> Result<DomainId, Fault> {
        assert_ne!(len, 0);
        let host = self.oracle.sides[self.qp].host;
        let start = self.oracle.region(host, rkey, va, len)?;
        self.touch(Page::remote(host, start))?;
        Ok(DomainId::default())
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let host = oracle.sides[qp].host;
        let len = oracle.payload.len() as u32;
        let start = oracle.region(host, rkey, va, len)?;
        if let Err(absent) = self.touch(Page::remote(host, start)) {
            // The first bytes may be in a page that is present.
            let host = &mut self.oracle.hosts[host];
            let bytes = start..start + len as usize / 2;
            let payload = &self.oracle.payload[..len as usize / 2];
            host.memory[bytes.clone()].copy_from_slice(payload);
            host.shadow[bytes].copy_from_slice(payload);
            return Err(absent);
        }
        let oracle = &mut *self.oracle;
        let flow = &oracle.flows[truth.flow];
        let message = &flow.messages[truth.message];
        let at = (truth.relative - message.first) * flow.mtu.bytes();
        assert!(matches!(message.op, Op::Write | Op::WriteImm));
        assert_eq!(
            start,
            message.place + at as usize,
            "where queue pair {qp} places"
        );
        check_payload(oracle, qp, &truth, at);
        let bytes = start..start + len as usize;
        let host = &mut oracle.hosts[host];
        host.memory[bytes.clone()].copy_from_slice(&oracle.payload);
        let to = message.place + at as usize;
        host.shadow[to..to + len as usize].copy_from_slice(data(message.data + at, len));
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let host = oracle.sides[qp].host;
        let start = oracle.region(host, rkey, va, 8)?;
        self.touch(Page::remote(host, start))?;
        let oracle = &mut *self.oracle;
        let flow = &mut oracle.flows[truth.flow];
        assert_eq!(truth.relative, flow.executed, "an atomic out of order");
        let message = &mut flow.messages[truth.message];
        assert!(
            message.op.typed().is_atomic() && !message.done,
            "an atomic executed twice"
        );
        assert_eq!(start, message.place);
        let host = &mut oracle.hosts[host];
        let original = execute_atomic(&mut host.memory[start..start + 8], op);
        // Apply the posted operation to the shadow memory.
        let shadow: &mut [u8; 8] = (&mut host.shadow[start..start + 8]).try_into().expect("8");
        let before = u64::from_ne_bytes(*shadow);
        let (compare, swap) = operands(message);
        let after = match message.op {
            Op::FetchAdd => before.wrapping_add(compare),
            _ if before == compare => swap,
            _ => before,
        };
        *shadow = after.to_ne_bytes();
        message.done = true;
        message.result = before.to_ne_bytes().to_vec();
        Ok(original)
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let host = oracle.sides[qp].host;
        let start = oracle.region(host, rkey, va, 8)?;
        self.touch(Page::remote(host, start))?;
        let oracle = &mut *self.oracle;
        let flow = &mut oracle.flows[truth.flow];
        assert_eq!(
            truth.relative, flow.executed,
            "an atomic write out of order"
        );
        let message = &mut flow.messages[truth.message];
        assert!(
            message.op == Op::AtomicWrite && !message.done,
            "executed twice"
        );
        assert_eq!(start, message.place);
        let host = &mut oracle.hosts[host];
        host.memory[start..start + 8].copy_from_slice(&oracle.payload);
        host.shadow[start..start + 8].copy_from_slice(data(message.data, 8));
        message.done = true;
        Ok(())
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let host = oracle.sides[qp].host;
        let flow = &mut oracle.flows[truth.flow];
        assert_eq!(truth.relative, flow.executed, "a FLUSH out of order");
        let message = &mut flow.messages[truth.message];
        assert!(message.op == Op::Flush && !message.done, "executed twice");
        let bits = message.imm_or_key;
        assert_eq!(
            (flush.global, flush.persistent),
            (bits & 1 != 0, bits & 2 != 0)
        );
        let all = bits & 0x10 != 0;
        let range = (ADDRESS + message.place as u64, message.len);
        assert_eq!(flush.range, (!all).then_some(range));
        let (va, len) = flush.range.unwrap_or((ADDRESS + flow.window as u64, 0));
        let start = oracle.region(host, rkey, va, len)?;
        self.touch(Page::remote(host, start))?;
        self.oracle.flows[truth.flow].messages[truth.message].done = true;
        Ok(())
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<u32>, Fault> {
        let oracle = &*self.oracle;
        let truth = oracle.handling.expect("a packet is being handled");
        let message = &oracle.flows[truth.flow].messages[truth.message];
        assert_eq!(
            srqn, message.srqn,
            "the shared receive queue that queue pair {} takes from",
            self.qp
        );
        let queues = &oracle.sides[self.qp].queues;
        let named = queues.iter().find(|&&q| oracle.queues[q].number == srqn);
        assert_eq!(named.is_none(), message.trap == Trap::Queue);
        let queue = *named.ok_or(Fault::Protection)?;
        Ok(self.take(queue))
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let truth = oracle.handling.expect("a packet is being handled");
        let host = oracle.sides[qp].host;
        let message = &mut oracle.flows[truth.flow].messages[truth.message];
        assert_eq!(rkey, message.imm_or_key);
        let keys = &mut oracle.hosts[host].keys;
        let at = keys.iter().position(|&key| key == rkey);
        keys.swap_remove(at.ok_or(Fault::Protection)?);
        assert!(!message.done, "invalidated twice");
        message.done = true;
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let incoming = oracle.sides[qp].peer;
        let side = &mut oracle.sides[qp];
        let current = side.current.take().expect("there is one");
        let partial = side.partial.take();
        trace!(
            oracle,
            "    {qp} completes receive {} of queue {}: {:?}, {} bytes",
            current.number,
            current.queue,
            completion.status,
            completion.byte_len
        );
        oracle.queues[current.queue].complete(qp, current.number);
        let side = &oracle.sides[qp];
        oracle.progress += 1;
        match completion.status {
            Status::Success => {}
            Status::WrFlush => {
                assert_eq!(
                    side.state,
                    State::Error,
                    "flushed in state {:?}",
                    side.state
                );
                return;
            }
            status => {
                let flow = &mut oracle.flows[incoming];
                let next = flow.messages[flow.cursor..].iter().find(|m| m.receives());
                let next = next.map_or(0, |m| m.len);
                let explained = match status {
                    Status::LocLen => current.len < next,
                    Status::RemInvReq | Status::RemAccess => true,
                    // The packet with the immediate was refused for its key.
                    Status::LocAccess => {
                        let refused = oracle.handling.map(|truth| &flow.messages[truth.message]);
                        refused.is_some_and(|message| message.op == Op::WriteImm)
                    }
                    status => current.fault.is_some_and(|fault| fault.status() == status),
                };
                flow.too_short |= status == Status::LocLen;
                assert!(
                    explained,
                    "nothing explains {status:?} of a receive work request"
                );
                return;
            }
        }
        let truth = oracle.handling.expect("a packet is being handled");
        let flow = &mut oracle.flows[truth.flow];
        let message = &flow.messages[truth.message];
        assert!(
            message.receives(),
            "{} completes a receive work request",
            words(message)
        );
        let datagram = flow.service == Service::Ud;
        let written = message.op == Op::WriteImm;
        let before = if datagram { 40 } else { 0 };
        assert_eq!(completion.byte_len, message.len + before);
        let imm = matches!(message.op, Op::SendImm | Op::WriteImm);
        assert_eq!(completion.imm, imm.then_some(message.imm_or_key));
        let invalidated = message.op == Op::SendInv;
        assert_eq!(
            completion.invalidated,
            invalidated.then_some(message.imm_or_key)
        );
        assert_eq!(message.done, invalidated);
        assert_eq!(completion.solicited, message.solicited);
        let opcode = if written {
            RecvOpcode::RecvRdmaWithImm
        } else {
            RecvOpcode::Recv
        };
        assert_eq!(completion.opcode, opcode);
        assert_eq!(truth.relative + 1, message.first + message.packets);
        if !written && message.len != 0 {
            let whole = Some((truth.flow, truth.message, message.len));
            assert_eq!(
                partial, whole,
                "queue pair {qp} completes without all bytes"
            );
        }
        if datagram {
            assert_eq!(completion.src_qp, FIRST_QPN + truth.flow as u32);
            assert_ne!(message.trap, Trap::Qkey);
        }
        if flow.service.is_reliable() {
            assert_eq!(truth.relative, flow.executed, "received out of order");
            let next = flow.messages[flow.receiving..]
                .iter()
                .position(Message::receives);
            let next = flow.receiving + next.expect("this one");
            assert_eq!(next, truth.message, "messages received out of order");
            flow.receiving = next + 1;
        }
    }

    fn event(&mut self, event: ResponderEvent) {
        trace!(self.oracle, "    {} raises {event:?}", self.qp);
        if event == ResponderEvent::CommEstablished {
            let unsent = self.oracle.handling.is_none();
            assert!(!unsent, "what nobody sent establishes a connection");
        }
    }

    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.send_response(packet))
    }
}
