// SPDX-License-Identifier: GPL-2.0

//! What the core asks of its driver: done, and judged.

use crate::flow::{Message, Trap};
use crate::ground::{trace, Ground, State, Truth, ADDRESS, FIRST_QPN, QKEY};
use crate::random::data;
use rrxe_core::wire::{NakCode, Operation, Syndrome};
use rrxe_core::*;

/// The syndrome of a NAK Sequence Error.
const SEQUENCE_ERROR: u8 = 0x60;

/// The driver of one queue pair.
pub struct Env<'a> {
    pub ground: &'a mut Ground,
    pub qp: usize,
}

impl Env<'_> {
    /// The flow that this queue pair receives.
    fn incoming(&self) -> usize {
        self.ground.sides[self.qp].peer
    }

    fn room(&mut self) -> Result<(), TxError> {
        if self.ground.room == 0 {
            self.ground.refused = true;
            return Err(TxError::NoRoom);
        }
        self.ground.room -= 1;
        Ok(())
    }

    /// Judges a request packet; its message's index.
    fn judge_request(&self, packet: &TxPacket, relative: u32) -> usize {
        let (ground, qp) = (&*self.ground, self.qp);
        let (side, flow) = (&ground.sides[qp], &ground.flows[qp]);
        assert!(
            matches!(side.state, State::Rts | State::Sqd),
            "queue pair {qp} sends a request in state {:?}",
            side.state
        );
        let index = side.slots[packet.slot as usize];
        let message = &flow.messages[index];
        let at = relative.wrapping_sub(message.first);
        assert!(
            at < message.packets && relative <= flow.sent && index >= flow.completed,
            "queue pair {qp} sends PSN {relative} for message {index}: {}",
            words(message)
        );
        let parsed = Packet::parse(packet.header(), packet.udp_payload_len())
            .expect("what is sent can be parsed");
        self.judge_header(packet, &parsed, message, at);
        assert_eq!(flow.psn(relative), packet.psn);

        if !message.started {
            assert_eq!(
                at, 0,
                "message {index} of queue pair {qp} starts in the middle"
            );
            assert_ne!(side.state, State::Sqd, "message {index} starts in SQD");
            if message.fence {
                assert_eq!(
                    flow.reads, 0,
                    "message {index} of queue pair {qp} ignores its fence"
                );
            }
            if message.op.is_read_or_atomic() {
                let max = u32::from(ground.connection(qp).max_rd_atomic);
                assert!(
                    flow.reads < max,
                    "too many READs and atomics of queue pair {qp}"
                );
            }
        }
        if let Some((until, from)) = flow.rnr {
            assert!(
                ground.now >= until || relative < from,
                "queue pair {qp} sends PSN {relative} {} ns before the RNR timer ends",
                until - ground.now
            );
        }
        index
    }

    fn judge_header(&self, packet: &TxPacket, parsed: &Packet, message: &Message, at: u32) {
        let (ground, qp) = (&*self.ground, self.qp);
        let flow = &ground.flows[qp];
        let mtu = flow.mtu;
        let datagram = flow.service == Service::Ud;
        let to = if datagram {
            message.to
        } else {
            ground.sides[qp].peer
        };
        assert_eq!(parsed.bth.dest_qpn, FIRST_QPN + to as u32);
        assert_eq!(parsed.operation, message.operation(at));
        let offset = at * mtu.bytes();
        let left = message.len - offset.min(message.len);
        let payload = if !message.op.carries_data() {
            0
        } else {
            left.min(mtu.bytes())
        };
        assert_eq!(
            packet.payload.len(),
            payload,
            "payload of {}",
            words(message)
        );
        if let Payload::Send {
            slot, offset: o, ..
        } = packet.payload
        {
            assert_eq!(
                (slot, o),
                (packet.slot, offset),
                "payload of {}",
                words(message)
            );
        }
        let last = at + 1 >= message.packets;
        let solicited = last && message.solicited && message.op.uses_receive();
        assert_eq!(parsed.bth.solicited, solicited);
        if last && flow.service.is_reliable() {
            assert!(parsed.bth.ackreq, "the last packet of {}", words(message));
        }
        let va = ADDRESS + message.place as u64;
        match parsed.ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => {
                let expected = match message.op == SendOp::Read {
                    true => (va + u64::from(offset), left),
                    false => (va, message.len),
                };
                assert_eq!((reth.va, reth.len), expected, "RETH of {}", words(message));
            }
            Ext::Atomic(atomic) => assert_eq!(atomic.va, va),
            Ext::Deth(deth) | Ext::DethImm(deth, _) => {
                assert_eq!(deth.src_qpn, FIRST_QPN + qp as u32);
            }
            _ => {}
        }
    }

    /// Judges a response packet; its PSN counted from the first.
    fn judge_response(&self, packet: &TxPacket) -> u32 {
        let (ground, qp) = (&*self.ground, self.qp);
        let state = ground.sides[qp].state;
        assert!(
            matches!(state, State::Rts | State::Sqd),
            "queue pair {qp} answers in state {state:?}"
        );
        let flow = &ground.flows[self.incoming()];
        assert!(flow.service.is_reliable(), "only RC and XRC answer");
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
                }
                // A READ may be refused in the middle of its response (G-28).
                Syndrome::Nak(_) => assert!(psn <= executed),
                Syndrome::Reserved(byte) => panic!("queue pair {qp} sends syndrome {byte:#x}"),
            }
        } else {
            assert!(psn < executed, "a response to what was not executed");
        }
        // A response goes on where it was, or starts with FIRST or ONLY (C-07).
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

fn words(message: &Message) -> String {
    format!(
        "{:?} of {} bytes from PSN {}",
        message.op, message.len, message.first
    )
}

impl RequesterEnv for Env<'_> {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.room()?;
        let qp = self.qp;
        let relative = self.ground.flows[qp].relative(packet.psn);
        let index = self.judge_request(packet, relative);
        let message = &self.ground.flows[qp].messages[index];
        let at = relative - message.first;
        self.ground.payload.clear();
        if let Payload::Send { offset, len, .. } = packet.payload {
            match message.trap {
                Trap::Local(fault, from) if at >= from => return Err(TxError::Local(fault)),
                _ => {}
            }
            let bytes = data(message.data + offset, len);
            self.ground.payload.extend_from_slice(bytes);
        }
        let flow = &mut self.ground.flows[qp];
        let message = &mut flow.messages[index];
        if !message.started {
            message.started = true;
            flow.reads += u32::from(message.op.is_read_or_atomic());
        }
        let next = match message.op {
            SendOp::Read => message.first + message.packets,
            _ => relative + 1,
        };
        flow.sent = flow.sent.max(next);
        let truth = Truth {
            flow: qp,
            epoch: flow.epoch,
            response: false,
            relative,
            message: index,
        };
        let to = match flow.service {
            Service::Ud => message.to,
            _ => self.ground.sides[qp].peer,
        };
        self.ground.sides[qp].emitted += 1;
        self.ground.ship(to, truth, packet);
        Ok(())
    }

    fn place_read(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let index = ground.sides[qp].slots[slot as usize];
        let flow = &mut ground.flows[qp];
        assert_eq!(
            index, flow.completed,
            "a response for a message that is not next"
        );
        let mtu = flow.mtu.bytes();
        let message = &mut flow.messages[index];
        assert_eq!(message.op, SendOp::Read);
        let at = offset / mtu;
        assert_eq!(offset % mtu, 0);
        if let Trap::Local(fault, from) = message.trap {
            if at >= from {
                return Err(fault);
            }
        }
        let (start, end) = (offset as usize, offset as usize + ground.payload.len());
        assert!(
            message.result.get(start..end) == Some(&ground.payload[..]),
            "queue pair {qp} places wrong bytes at {start} of {}",
            words(message)
        );
        message.placed |= 1 << at;
        ground.progress += 1;
        Ok(())
    }

    fn place_atomic(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let index = ground.sides[qp].slots[slot as usize];
        let flow = &mut ground.flows[qp];
        assert_eq!(
            index, flow.completed,
            "an answer for a message that is not next"
        );
        let message = &mut flow.messages[index];
        assert!(message.op.is_atomic() && message.done);
        if let Trap::Local(fault, _) = message.trap {
            return Err(fault);
        }
        assert_eq!(
            value.to_ne_bytes(),
            message.result[..],
            "the result of an atomic"
        );
        message.placed = 1;
        Ok(())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let index = ground.sides[qp].slots[slot as usize];
        trace!(
            ground,
            "    {qp} completes message {index}: {:?} {:?}",
            completion.op,
            completion.status
        );
        let peer = ground.sides[qp].peer;
        let connection = ground.connection(qp);
        let (retry, rnr) = (connection.retry_count, connection.rnr_retry);
        let delay = ground.longest_wait(qp);
        let alive = matches!(ground.sides[peer].state, State::Rts | State::Sqd);
        let flow = &mut ground.flows[qp];
        assert_eq!(
            index, flow.completed,
            "queue pair {qp} completes out of order"
        );
        let message = &flow.messages[index];
        let status = completion.status;
        assert!(
            flow.explains(message, status, retry, rnr, alive, delay),
            "queue pair {qp}: nothing explains {status:?} of message {index}, {}; disturbances {:?}, \
             {} RNR NAKs, {} executed",
            words(message),
            flow.disturbed,
            flow.rnr_naks,
            flow.executed
        );
        assert_eq!(
            (completion.op, completion.signaled),
            (message.op, message.signaled)
        );
        if status == Status::Success {
            let bytes = if message.op.is_atomic() {
                8
            } else {
                message.len
            };
            assert_eq!(completion.byte_len, bytes);
            let whole = match message.op {
                SendOp::Read if message.len > 0 => (1u128 << message.packets) - 1,
                op if op.is_atomic() => 1,
                _ => 0,
            };
            assert_eq!(
                u128::from(message.placed),
                whole,
                "queue pair {qp} completes {} without all of its bytes",
                words(message)
            );
        } else {
            flow.failed = true;
        }
        if message.started && message.op.is_read_or_atomic() {
            flow.reads -= 1;
        }
        flow.completed += 1;
        flow.last_completion = ground.now;
        flow.rnr_naks = flow.rnr_now;
        ground.progress += 1;
    }

    fn local_op(&mut self, slot: u32) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let index = ground.sides[qp].slots[slot as usize];
        trace!(ground, "    {qp} executes message {index}");
        let state = ground.sides[qp].state;
        assert_eq!(state, State::Rts, "a local operation in state {state:?}");
        let flow = &mut ground.flows[qp];
        let sent = flow.sent;
        let message = &mut flow.messages[index];
        assert!(message.op.is_local() && !message.done, "executed twice");
        assert!(sent >= message.first, "executed before its turn");
        assert!(
            !message.fence || flow.reads == 0,
            "message {index} of queue pair {qp} ignores its fence"
        );
        if let Trap::Local(fault, _) = message.trap {
            return Err(fault);
        }
        message.done = true;
        message.started = true;
        Ok(())
    }
}

impl ResponderEnv for Env<'_> {
    fn fetch_recv(&mut self) -> Option<RecvRequest> {
        let side = &mut self.ground.sides[self.qp];
        assert!(side.current.is_none(), "one receive work request at a time");
        side.current = side.receives.pop_front();
        side.partial = None;
        side.current.map(|receive| RecvRequest {
            length: receive.len,
        })
    }

    fn place_recv(&mut self, offset: u32) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let side = &mut ground.sides[qp];
        let current = side.current.expect("it was fetched");
        let flow = &mut ground.flows[truth.flow];
        if let Some(fault) = current.fault {
            flow.receive_fault = true;
            return Err(fault);
        }
        let message = &flow.messages[truth.message];
        let at = (truth.relative - message.first) * flow.mtu.bytes();
        let before = if flow.service == Service::Ud { 40 } else { 0 };
        let len = ground.payload.len() as u32;
        assert!(message.receives() && message.op != SendOp::WriteImm);
        assert_eq!(offset, at + before, "where queue pair {qp} places");
        assert!(
            offset + len <= current.len,
            "beyond the receive work request"
        );
        assert_eq!(
            ground.payload,
            data(message.data + at, len),
            "what queue pair {qp} places"
        );
        if flow.service.is_reliable() {
            assert_eq!(
                truth.relative, flow.executed,
                "queue pair {qp} places out of order"
            );
        }
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
    ) -> Result<(), Fault> {
        assert_ne!(len, 0);
        let host = self.ground.sides[self.qp].host;
        self.ground.region(host, rkey, va, len).map(|_| ())
    }

    fn place_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let host = ground.sides[qp].host;
        let len = ground.payload.len() as u32;
        let start = ground.region(host, rkey, va, len)?;
        let flow = &ground.flows[truth.flow];
        let message = &flow.messages[truth.message];
        let at = (truth.relative - message.first) * flow.mtu.bytes();
        assert!(matches!(message.op, SendOp::Write | SendOp::WriteImm));
        assert_eq!(
            start,
            message.place + at as usize,
            "where queue pair {qp} places"
        );
        assert_eq!(
            ground.payload,
            data(message.data + at, len),
            "what queue pair {qp} places"
        );
        if flow.service.is_reliable() {
            assert_eq!(
                truth.relative, flow.executed,
                "queue pair {qp} places out of order"
            );
        }
        let bytes = start..start + len as usize;
        let host = &mut ground.hosts[host];
        host.memory[bytes.clone()].copy_from_slice(&ground.payload);
        let to = message.place + at as usize;
        host.shadow[to..to + len as usize].copy_from_slice(data(message.data + at, len));
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let host = ground.sides[qp].host;
        let start = ground.region(host, rkey, va, 8)?;
        let flow = &mut ground.flows[truth.flow];
        assert_eq!(truth.relative, flow.executed, "an atomic out of order");
        let message = &mut flow.messages[truth.message];
        assert!(
            message.op.is_atomic() && !message.done,
            "an atomic executed twice"
        );
        assert_eq!(start, message.place);
        let host = &mut ground.hosts[host];
        let word: &mut [u8; 8] = (&mut host.memory[start..start + 8]).try_into().expect("8");
        let original = u64::from_ne_bytes(*word);
        *word = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        }
        .to_ne_bytes();
        // Once more, from what was posted.
        let shadow: &mut [u8; 8] = (&mut host.shadow[start..start + 8]).try_into().expect("8");
        let before = u64::from_ne_bytes(*shadow);
        let (compare, swap) = operands(message);
        let after = match message.op {
            SendOp::FetchAdd => before.wrapping_add(compare),
            _ if before == compare => swap,
            _ => before,
        };
        *shadow = after.to_ne_bytes();
        message.done = true;
        message.result = before.to_ne_bytes().to_vec();
        Ok(original)
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let host = ground.sides[qp].host;
        let start = ground.region(host, rkey, va, 8)?;
        let flow = &mut ground.flows[truth.flow];
        assert_eq!(
            truth.relative, flow.executed,
            "an atomic write out of order"
        );
        let message = &mut flow.messages[truth.message];
        assert!(
            message.op == SendOp::AtomicWrite && !message.done,
            "executed twice"
        );
        assert_eq!(start, message.place);
        let host = &mut ground.hosts[host];
        host.memory[start..start + 8].copy_from_slice(&ground.payload);
        host.shadow[start..start + 8].copy_from_slice(data(message.data, 8));
        message.done = true;
        Ok(())
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let host = ground.sides[qp].host;
        let flow = &mut ground.flows[truth.flow];
        assert_eq!(truth.relative, flow.executed, "a FLUSH out of order");
        let message = &mut flow.messages[truth.message];
        assert!(
            message.op == SendOp::Flush && !message.done,
            "executed twice"
        );
        let bits = message.imm_or_key;
        assert_eq!(
            (flush.global, flush.persistent),
            (bits & 1 != 0, bits & 2 != 0)
        );
        let all = bits & 0x10 != 0;
        let range = (ADDRESS + message.place as u64, message.len);
        assert_eq!(flush.range, (!all).then_some(range));
        let (va, len) = flush.range.unwrap_or((ADDRESS + flow.window as u64, 0));
        let checked = ground.region(host, rkey, va, len).map(|_| ());
        ground.flows[truth.flow].messages[truth.message].done = checked.is_ok();
        checked
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<RecvRequest>, Fault> {
        assert_eq!(srqn, FIRST_QPN + self.qp as u32, "the shared receive queue");
        Ok(self.fetch_recv())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let truth = ground.handling.expect("a packet is being handled");
        let host = ground.sides[qp].host;
        let message = &mut ground.flows[truth.flow].messages[truth.message];
        assert_eq!(rkey, message.imm_or_key);
        let keys = &mut ground.hosts[host].keys;
        let at = keys.iter().position(|&key| key == rkey);
        keys.swap_remove(at.ok_or(Fault::Protection)?);
        assert!(!message.done, "invalidated twice");
        message.done = true;
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let (ground, qp) = (&mut *self.ground, self.qp);
        let incoming = ground.sides[qp].peer;
        let side = &mut ground.sides[qp];
        let current = side.current.take().expect("there is one");
        let partial = side.partial.take();
        trace!(
            ground,
            "    {qp} completes receive {}: {:?}, {} bytes",
            current.number,
            completion.status,
            completion.byte_len
        );
        let side = &mut ground.sides[qp];
        assert_eq!(current.number, side.taken, "receives complete out of order");
        side.taken += 1;
        ground.progress += 1;
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
                let flow = &mut ground.flows[incoming];
                let next = flow.messages[flow.cursor..].iter().find(|m| m.receives());
                let next = next.map_or(0, |m| m.len);
                let explained = match status {
                    Status::LocLen => current.len < next,
                    Status::RemInvReq | Status::RemAccess => true,
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
        let truth = ground.handling.expect("a packet is being handled");
        let flow = &mut ground.flows[truth.flow];
        let message = &flow.messages[truth.message];
        assert!(
            message.receives(),
            "{} completes a receive work request",
            words(message)
        );
        let datagram = flow.service == Service::Ud;
        let written = message.op == SendOp::WriteImm;
        let before = if datagram { 40 } else { 0 };
        assert_eq!(completion.byte_len, message.len + before);
        let imm = matches!(message.op, SendOp::SendImm | SendOp::WriteImm);
        assert_eq!(completion.imm, imm.then_some(message.imm_or_key));
        let invalidated = message.op == SendOp::SendInv;
        assert_eq!(
            completion.invalidated,
            invalidated.then_some(message.imm_or_key)
        );
        assert_eq!(message.done, invalidated);
        assert_eq!(completion.solicited, message.solicited);
        let opcode = match written {
            true => RecvOpcode::RecvRdmaWithImm,
            false => RecvOpcode::Recv,
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
        trace!(self.ground, "    {} raises {event:?}", self.qp);
    }

    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.room()?;
        let qp = self.qp;
        let relative = self.judge_response(packet);
        let incoming = self.incoming();
        self.ground.payload.clear();
        if let Payload::Read { rkey, va, len } = packet.payload {
            let host = self.ground.sides[qp].host;
            let start = match self.ground.region(host, rkey, va, len) {
                Ok(start) => start,
                Err(_) => return Err(TxError::RemoteAccess),
            };
            let bytes = &self.ground.hosts[host].memory[start..start + len as usize];
            self.ground.payload.extend_from_slice(bytes);
        }
        let flow = &mut self.ground.flows[incoming];
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
            epoch: self.ground.flows[incoming].epoch,
            response: true,
            relative,
            message: 0,
        };
        self.ground.sides[qp].emitted += 1;
        self.ground.ship(incoming, truth, packet);
        Ok(())
    }
}

/// What an atomic compares with (or adds) and stores.
pub fn operands(message: &Message) -> (u64, u64) {
    let word = |at: u32| {
        let bytes = data(message.data + at, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    };
    (word(0) & 3, word(8) & 3)
}

/// The Q_Key that a datagram is sent with.
pub fn qkey(message: &Message) -> u32 {
    match message.trap {
        Trap::Qkey => QKEY + 1,
        _ => QKEY,
    }
}
