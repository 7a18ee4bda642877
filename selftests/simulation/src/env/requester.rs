// SPDX-License-Identifier: GPL-2.0

//! The requester's environment: packets to send, and responses to place.

use super::{words, Env};
use crate::backing::{Half, Page};
use crate::data::data;
use crate::flow::{Message, Trap};
use crate::oracle::{trace, State, Truth, ADDRESS, FIRST_QPN, QKEY};
use rrxe_core::*;
use rrxe_testkit::Op;

impl Env<'_> {
    /// Checks a packet of a message.
    fn check_request(&self, packet: &TxPacket, relative: u32, index: usize) {
        let (oracle, qp) = (&*self.oracle, self.qp);
        let (side, flow) = (&oracle.sides[qp], &oracle.flows[qp]);
        assert!(
            matches!(side.state, State::Rts | State::Sqd),
            "queue pair {qp} sends a request in state {:?}",
            side.state
        );
        let message = &flow.messages[index];
        let at = relative.wrapping_sub(message.first);
        assert!(
            at < message.packets && relative <= flow.sent && index >= flow.completed,
            "queue pair {qp} sends PSN {relative} for message {index}: {}",
            words(message)
        );
        let parsed = Packet::parse(packet.header(), packet.udp_payload_len())
            .expect("what is sent can be parsed");
        self.check_header(packet, &parsed, message, at);
        assert_eq!(flow.psn(relative), packet.psn);
        assert!(
            !flow.response_absent,
            "queue pair {qp} sends a request while the memory for a response is absent"
        );

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
            if message.receives() {
                let receives = |message: &&Message| message.receives();
                let before = flow.messages[..index].iter().filter(receives).count();
                let waiting = flow.messages[flow.completed..index]
                    .iter()
                    .any(|m| m.receives());
                assert!(
                    flow.unlimited || before < flow.granted || !waiting,
                    "message {index} of queue pair {qp} starts without a credit"
                );
            }
            if message.op.typed().is_read_or_atomic() {
                let max = u32::from(oracle.connection(qp).max_rd_atomic);
                assert!(
                    flow.reads < max,
                    "too many READs and atomics of queue pair {qp}"
                );
            }
        }
        assert!(
            !oracle.connection(qp).strict || relative == flow.next || relative <= flow.executed,
            "queue pair {qp} sends PSN {relative}, and goes neither on nor back"
        );
        if let Some((until, from)) = flow.rnr {
            assert!(
                oracle.now >= until || relative < from,
                "queue pair {qp} sends PSN {relative} {} ns before the RNR timer ends",
                until - oracle.now
            );
        }
    }

    /// Accesses the memory for a response.
    fn touch_result(&mut self, index: usize, at: u32) -> Result<(), Fault> {
        let page = Page::Result(self.qp, index, at);
        let present = self.oracle.touch(page, self.qp, Half::Send);
        self.oracle.flows[self.qp].response_absent |= present.is_err();
        present
    }

    fn check_header(&self, packet: &TxPacket, parsed: &Packet, message: &Message, at: u32) {
        let (oracle, qp) = (&*self.oracle, self.qp);
        let flow = &oracle.flows[qp];
        let mtu = flow.mtu;
        let datagram = flow.service == Service::Ud;
        let to = if datagram {
            message.to
        } else {
            oracle.sides[qp].peer
        };
        assert_eq!(parsed.bth.dest_qpn, FIRST_QPN + to as u32);
        assert_eq!(parsed.operation, message.operation(at));
        assert_eq!(
            parsed.xrc_srqn, message.srqn,
            "the shared receive queue that queue pair {qp} names"
        );
        let offset = at * mtu.bytes();
        let left = message.len - offset.min(message.len);
        let payload = if !message.op.typed().carries_data() {
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
        if let Payload::Send { offset: o, .. } = packet.payload {
            assert_eq!(o, offset, "payload of {}", words(message));
        }
        let last = at + 1 >= message.packets;
        let solicited = last && message.solicited && message.op.typed().uses_receive();
        assert_eq!(parsed.bth.solicited, solicited);
        if last && flow.service.is_reliable() {
            assert!(parsed.bth.ackreq, "the last packet of {}", words(message));
        }
        let va = ADDRESS + message.place as u64;
        match parsed.ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => {
                let expected = if message.op == Op::Read {
                    (va + u64::from(offset), left)
                } else {
                    (va, message.len)
                };
                assert_eq!((reth.va, reth.len), expected, "RETH of {}", words(message));
            }
            Ext::Atomic(atomic) => assert_eq!(atomic.va, va),
            Ext::Deth(deth) | Ext::DethImm(deth, _) => {
                assert_eq!(deth.src_qpn, FIRST_QPN + qp as u32);
                let wrong = u32::from(message.trap == Trap::Qkey);
                assert_eq!(deth.qkey, QKEY + wrong, "Q_Key of {}", words(message));
            }
            _ => {}
        }
    }
}

impl Env<'_> {
    /// Sends a request packet.
    fn send_request(&mut self, packet: &TxPacket, slot: &SendSlot) -> Result<(), TxError> {
        self.use_space()?;
        let qp = self.qp;
        let relative = self.oracle.flows[qp].relative(packet.psn);
        let index = slot.local;
        self.check_request(packet, relative, index);
        let message = &self.oracle.flows[qp].messages[index];
        let at = relative - message.first;
        self.oracle.payload.clear();
        if let Payload::Send { offset, len, .. } = packet.payload {
            match message.trap {
                Trap::Local(fault, from) if at >= from => return Err(fault.into()),
                _ => {}
            }
            let bytes = data(message.data + offset, len);
            let page = Page::Payload(qp, index, at);
            self.oracle.touch(page, qp, Half::Send)?;
            self.oracle.payload.extend_from_slice(bytes);
        }
        let flow = &mut self.oracle.flows[qp];
        let message = &mut flow.messages[index];
        if !message.started {
            message.started = true;
            flow.reads += u32::from(message.op.typed().is_read_or_atomic());
        }
        let next = match message.op {
            Op::Read => message.first + message.packets,
            _ => relative + 1,
        };
        flow.sent = flow.sent.max(next);
        flow.next = next;
        let truth = Truth {
            flow: qp,
            epoch: flow.epoch,
            response: false,
            relative,
            message: index,
        };
        let to = match flow.service {
            Service::Ud => message.to,
            _ => self.oracle.sides[qp].peer,
        };
        let now = self.oracle.now;
        self.oracle.sides[qp].emitted += 1;
        self.oracle.sides[qp].pay(now, packet);
        self.oracle.ship(to, truth, packet);
        Ok(())
    }
}

impl RequesterEnv for Env<'_> {
    /// The index of the message.
    type Local = usize;

    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.send_request(packet, slot))
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let index = slot.local;
        let flow = &mut oracle.flows[qp];
        assert_eq!(
            index, flow.completed,
            "a response for a message that is not next"
        );
        let mtu = flow.mtu.bytes();
        let message = &mut flow.messages[index];
        assert_eq!(message.op, Op::Read);
        let at = offset / mtu;
        assert_eq!(offset % mtu, 0);
        let packets = (oracle.payload.len() as u32).div_ceil(mtu);
        if let Trap::Local(fault, from) = message.trap {
            if at + packets > from {
                return Err(fault);
            }
        }
        self.touch_result(index, at)?;
        let oracle = &mut *self.oracle;
        let message = &mut oracle.flows[qp].messages[index];
        let (start, end) = (offset as usize, offset as usize + oracle.payload.len());
        assert!(
            message.result.get(start..end) == Some(&oracle.payload[..]),
            "queue pair {qp} places wrong bytes at {start} of {}",
            words(message)
        );
        message.placed |= ((1 << packets) - 1) << at;
        oracle.progress += 1;
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, value: u64) -> Result<(), Fault> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let index = slot.local;
        let flow = &mut oracle.flows[qp];
        assert_eq!(
            index, flow.completed,
            "a response for a message that is not next"
        );
        let message = &mut flow.messages[index];
        assert!(message.op.typed().is_atomic() && message.done);
        if let Trap::Local(fault, _) = message.trap {
            return Err(fault);
        }
        self.touch_result(index, 0)?;
        let message = &mut self.oracle.flows[qp].messages[index];
        assert_eq!(
            value.to_ne_bytes(),
            message.result[..],
            "the result of an atomic"
        );
        message.placed = 1;
        Ok(())
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let index = slot.local;
        trace!(
            oracle,
            "    {qp} completes message {index}: {:?} {:?}",
            slot.op,
            completion.status
        );
        let peer = oracle.sides[qp].peer;
        let connection = oracle.connection(qp);
        let (retry, rnr) = (connection.retry_count, connection.rnr_retry);
        let times = (oracle.now, oracle.longest_wait(qp));
        let alive = matches!(oracle.sides[peer].state, State::Rts | State::Sqd);
        let flow = &mut oracle.flows[qp];
        assert_eq!(
            index, flow.completed,
            "queue pair {qp} completes out of order"
        );
        let message = &flow.messages[index];
        let status = completion.status;
        assert!(
            flow.explains(message, status, retry, rnr, alive, times),
            "queue pair {qp}: nothing explains {status:?} of message {index}, {}; disturbances {:?}, \
             {} RNR NAKs, {} executed",
            words(message),
            flow.disturbed,
            flow.rnr_naks,
            flow.executed
        );
        assert_eq!(completion.signaled, message.signaled);
        if status == Status::Success {
            let bytes = if message.op.typed().is_atomic() {
                8
            } else {
                message.len
            };
            assert_eq!(completion.byte_len, bytes);
            let whole = match message.op {
                Op::Read if message.len > 0 => (1u128 << message.packets) - 1,
                op if op.typed().is_atomic() => 1,
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
        if message.started && message.op.typed().is_read_or_atomic() {
            flow.reads -= 1;
        }
        flow.completed += 1;
        flow.last_completion = oracle.now;
        flow.rnr_naks = flow.rnr_now;
        oracle.progress += 1;
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Status> {
        let (oracle, qp) = (&mut *self.oracle, self.qp);
        let index = slot.local;
        trace!(oracle, "    {qp} executes message {index}");
        let state = oracle.sides[qp].state;
        assert_eq!(state, State::Rts, "a local operation in state {state:?}");
        let flow = &mut oracle.flows[qp];
        let sent = flow.sent;
        let message = &mut flow.messages[index];
        assert!(
            message.op.typed().is_local() && !message.done,
            "executed twice"
        );
        assert!(sent >= message.first, "executed before its turn");
        assert!(
            message.op != Op::LocalInv || index == flow.completed,
            "message {index} of queue pair {qp} invalidates before others are complete"
        );
        assert!(
            !message.fence || flow.reads == 0,
            "message {index} of queue pair {qp} ignores its fence"
        );
        if let Trap::Local(fault, _) = message.trap {
            return Err(match (message.op, fault) {
                (Op::BindMw, Fault::Protection) => Status::MwBind,
                _ => Status::LocQpOp,
            });
        }
        message.done = true;
        message.started = true;
        Ok(())
    }
}
