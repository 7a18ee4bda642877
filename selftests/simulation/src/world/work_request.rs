// SPDX-License-Identifier: GPL-2.0

//! Random send work requests.

use super::World;
use crate::data::MAX_LENGTH;
use crate::env::{operands, qkey};
use crate::flow::{Message, Trap};
use crate::oracle::*;
use rrxe_core::wire::{Feth, ImmDt};
use rrxe_core::*;
use rrxe_testkit::{Op, Operands, Request};

impl World {
    /// Generates a work request.
    pub(super) fn make_up(&mut self, qp: usize) -> (Message, SendSlot) {
        use Op as O;
        let oracle = &mut self.oracle;
        let connection = *oracle.connection(qp);
        let (flow, random) = (&mut oracle.flows[qp], &mut oracle.random);
        let mtu = connection.mtu.bytes();
        let op = match connection.service {
            Service::Ud => random.pick(&[O::Send, O::SendImm]),
            Service::Uc => random.pick(&[O::Send, O::SendImm, O::Write, O::WriteImm]),
            Service::Rc | Service::Xrc => random.pick(&[
                O::Send,
                O::Send,
                O::SendImm,
                O::SendInv,
                O::Write,
                O::Write,
                O::WriteImm,
                O::Read,
                O::Read,
                O::Read,
                O::CompareSwap,
                O::FetchAdd,
                O::FetchAdd,
                O::Flush,
                O::AtomicWrite,
                O::LocalInv,
                O::RegMr,
                O::BindMw,
            ]),
        };
        // Gaps in several READs at a time are rare otherwise.
        let reads = connection.continues_reads && oracle.config.peers.chance(700);
        let op = if reads { O::Read } else { op };
        let longest = match connection.service {
            Service::Ud => mtu,
            _ => (connection.packets * mtu).min(WRITTEN as u32),
        };
        let mut len = match random.below(8) {
            0 => 0,
            1 => random.below(16),
            2 => mtu - 1 + random.below(3),
            3 => mtu * random.between(1, connection.packets),
            4 => 1 + random.below(mtu),
            _ => random.below(longest) + 1,
        }
        .min(longest);
        if op.typed().is_atomic() || op.typed().is_local() {
            len = 0;
        }
        if op == O::AtomicWrite {
            len = 8;
        }
        let mut fence = random.chance(100) || flow.fence_next;
        flow.fence_next = false;
        let part = match op {
            O::Read if random.chance(600) => 0..READ_ONLY,
            O::CompareSwap | O::FetchAdd | O::AtomicWrite => READ_ONLY + WRITTEN..WINDOW,
            _ => READ_ONLY..READ_ONLY + WRITTEN,
        };
        if op == O::Read && part.start != 0 {
            flow.fence_next = true;
            // Without a fence, the order of packets ensures that the READ sees earlier WRITEs.
            fence |= random.chance(100);
        }
        let space = (part.end - part.start) as u32 - len;
        let place = match op {
            O::CompareSwap | O::FetchAdd | O::AtomicWrite => {
                part.start + 8 * random.below(8) as usize
            }
            _ => part.start + random.below(space + 1) as usize,
        };
        let mut message = Message {
            op,
            len,
            data: random.below(MAX_LENGTH),
            place: flow.window + place,
            imm_or_key: random.next_u64() as u32,
            fence,
            signaled: random.chance(500),
            solicited: random.chance(200),
            trap: Trap::None,
            to: oracle.sides[qp].peer,
            srqn: 0,
            first: flow.psns,
            packets: match op.typed().is_local() {
                true => 0,
                false if op == O::Flush => 1,
                false => connection.mtu.packets(len),
            },
            number: flow.numbered,
            started: false,
            result: Vec::new(),
            done: false,
            placed: 0,
            repeated_from: 0,
        };
        if connection.service == Service::Ud {
            let datagrams = |(_, side): &(usize, &Side)| {
                oracle.config.connections[side.connection].service == Service::Ud
            };
            let others = oracle.sides.iter().enumerate().filter(datagrams);
            let others: Vec<usize> = others.map(|(index, _)| index).collect();
            message.to = random.pick(&others);
        }
        let mut srqn = 0;
        if connection.service == Service::Xrc {
            let queues = &oracle.sides[message.to].queues;
            srqn = oracle.queues[random.pick(queues)].number;
        }
        let mut rkey = flow.rkey;
        if !oracle.fair && random.chance(oracle.config.trouble.traps) {
            let fault = random.pick(&[Fault::Protection, Fault::Malformed, Fault::Length]);
            let local = Trap::Local(fault, random.below(message.packets.max(1)));
            let remote = len > 0 && matches!(op, O::Write | O::WriteImm | O::Read);
            message.trap = match (connection.service, op) {
                (Service::Ud, _) if random.chance(500) => Trap::Qkey,
                (Service::Xrc, _) if op.typed().uses_receive() && random.chance(600) => Trap::Queue,
                (_, O::LocalInv | O::RegMr | O::BindMw) => local,
                (_, O::CompareSwap | O::FetchAdd | O::AtomicWrite) => {
                    random.pick(&[Trap::Alignment, Trap::Access, local])
                }
                (_, O::SendInv) => Trap::Invalidate,
                (_, O::Flush) => Trap::Access,
                (Service::Rc | Service::Xrc, _) if remote && random.chance(500) => Trap::Access,
                _ if len > 0 => local,
                _ => Trap::None,
            };
            match message.trap {
                Trap::Alignment => message.place += 1,
                Trap::Access if random.chance(500) => rkey += 1,
                // Beyond the window.
                Trap::Access => message.place = flow.window + WINDOW,
                Trap::Queue => srqn = FIRST_SRQN - 1,
                _ => {}
            }
        }
        message.srqn = srqn;
        if op == O::SendInv {
            let host = oracle.sides[message.to].host;
            message.imm_or_key = oracle.new_key();
            if message.trap != Trap::Invalidate {
                oracle.hosts[host].keys.push(message.imm_or_key);
            }
        }
        if op == O::Flush {
            let random = &mut oracle.random;
            message.imm_or_key = random.between(1, 3) | (random.below(2) << 4);
            if message.trap == Trap::Access {
                // A FLUSH of the whole region, or of length 0, needs a valid key too.
                rkey += 1;
            }
        }
        let (compare_add, swap) = operands(&message);
        let to = Destination {
            ah: 0,
            qpn: FIRST_QPN + message.to as u32,
            qkey: qkey(&message),
        };
        let request = Request {
            op,
            fence: message.fence,
            signaled: message.signaled,
            solicited: message.solicited,
            length: len,
            va: ADDRESS + message.place as u64,
            rkey,
            imm: ImmDt::from_verbs(message.imm_or_key),
            key: message.imm_or_key,
            feth: Feth::from_bytes(&message.imm_or_key.to_be_bytes()),
            atomic: Operands { compare_add, swap },
            to: (connection.service == Service::Ud).then_some(to),
            srqn: message.srqn,
        };
        let mut slot = SendSlot::from(request);
        match message.trap {
            // The driver finds half of the errors before the requester does.
            Trap::Local(fault, 0) if !slot.op.is_local() && message.data % 2 == 0 => {
                slot.op = SendOp::Invalid(fault);
            }
            _ => {}
        }
        (message, slot)
    }
}
