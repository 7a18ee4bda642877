// SPDX-License-Identifier: GPL-2.0

//! The core's requester and the [`model`](crate::model)'s responder, on a link that loses,
//! duplicates and reorders a few packets. In the end all work requests have succeeded, the
//! responder has executed each once and in order, and every byte is in its place.

use crate::model::{status, Model};
use crate::reorder_buffer::ReorderBuffer;
use crate::script::{Script, Service};
use crate::world::{KEY, PEER, SIZE};
use rrxe_core::{
    Fault, Mtu, Packet, Payload, Requester, RequesterEnv, SendCompletion, SendOp, SendRequest,
    SendSlot, Status, TxError, TxPacket,
};
use std::collections::VecDeque;

const EVENTS: usize = 150;
const MTU: u32 = 256;
const BASE: u64 = 0x7f00_0000_1000;
/// Bytes of a receive work request, and upper bound on a message.
const MESSAGE: usize = 1500;
/// Retries that all disturbances together may cost: fewer than a requester attempts without
/// progress.
const RETRIES_SPENT: u32 = 6;
/// Retries that the loss, duplication or reordering of a packet costs: a NAK, a gap or a timeout.
const OF_PACKET: u32 = 1;
/// Retries that an early timeout costs: the timeout itself, and another gap or NAK that late
/// packets of the first transmission report.
const OF_TIMER: u32 = 2;

const OPS: [SendOp; 8] = [
    SendOp::Send,
    SendOp::SendImm,
    SendOp::Write,
    SendOp::Write,
    SendOp::WriteImm,
    SendOp::Read,
    SendOp::CompareSwap,
    SendOp::FetchAdd,
];

/// Headers and payload.
type Frame = (Vec<u8>, Vec<u8>);

#[derive(Clone)]
struct Work {
    slot: u32,
    request: SendRequest,
    /// Data that is sent, or received in return.
    data: Vec<u8>,
    /// Data that must be returned.
    expected: Vec<u8>,
    /// A READ that may see the effect of a later request without a fence (IBA 10.8.3.3).
    loose: bool,
}

/// The requester's side.
struct World {
    work: VecDeque<Work>,
    wire: VecDeque<Frame>,
    incoming: Vec<u8>,
    /// READs may see later writes.
    disturbed: bool,
}

impl World {
    fn work(&mut self, slot: u32) -> &mut Work {
        let found = self.work.iter_mut().find(|work| work.slot == slot);
        found.expect("a slot without work request")
    }
}

impl RequesterEnv for World {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        let payload = match packet.payload {
            Payload::Send { slot, offset, len } => {
                let (from, to) = (offset as usize, (offset + len) as usize);
                self.work(slot).data[from..to].to_vec()
            }
            _ => Vec::new(),
        };
        self.wire.push_back((packet.header().to_vec(), payload));
        Ok(())
    }

    fn write_read_response(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let incoming = std::mem::take(&mut self.incoming);
        let at = offset as usize;
        self.work(slot).data[at..at + incoming.len()].copy_from_slice(&incoming);
        self.incoming = incoming;
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        self.work(slot).data = value.to_ne_bytes().to_vec();
        Ok(())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        let work = self
            .work
            .pop_front()
            .expect("completes what was not posted");
        assert_eq!(work.slot, slot, "out of order");
        assert_eq!(completion.status, Status::Success, "{:?}", work.request.op);
        if work.request.op.is_atomic() {
            assert_eq!(
                work.data, work.expected,
                "executed more than once, or not in its turn"
            );
        }
        if work.request.op == SendOp::Read && !self.disturbed && !work.loose {
            assert_eq!(work.data, work.expected, "not what was there");
        }
    }

    fn local_op(&mut self, _slot: u32) -> Result<(), Fault> {
        unreachable!("none is posted")
    }
}

struct Conversation {
    requester: Requester,
    slots: [SendSlot; 16],
    world: World,
    peer: Model,
    answers: VecDeque<Frame>,
    buffered: ReorderBuffer<Vec<u8>>,
    now: u64,
    /// Retries that the disturbances so far may have cost.
    spent: u32,
    /// Expected final contents of the peer's memory, then of its receive work requests.
    memory: Vec<u8>,
    received: Vec<Vec<u8>>,
    posted: u32,
}

impl Conversation {
    fn post(&mut self, script: &mut Script<'_>) {
        let [kind, flags, fill] = [script.u8(), script.u8(), script.u8()];
        let (at, length) = (usize::from(script.u16()), usize::from(script.u16()));
        let op = OPS[usize::from(kind) % OPS.len()];
        let at = if op.is_atomic() {
            (at % SIZE) & !7
        } else {
            at % SIZE
        };
        let length = match op {
            _ if op.is_atomic() => 8,
            SendOp::Send | SendOp::SendImm => length % MESSAGE,
            _ => (length % MESSAGE).min(SIZE - at),
        };
        let data: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
        let request = SendRequest {
            op,
            fence: flags & 1 != 0,
            signaled: flags & 2 != 0,
            length: if op.is_atomic() { 0 } else { length as u32 },
            remote_addr: BASE + at as u64,
            rkey: KEY,
            imm_or_key: 7,
            compare_add: (flags >> 2).into(),
            swap: fill.into(),
            ..SendRequest::default()
        };
        let Ok(slot) = self.requester.post(&mut self.slots, request) else {
            return;
        };
        // Computes the expected effect, in the order of the work requests.
        let range = at..at + length;
        let mut expected = Vec::new();
        match op {
            SendOp::Send | SendOp::SendImm => self.received.push(data.clone()),
            SendOp::Write | SendOp::WriteImm => {
                self.memory[range].copy_from_slice(&data);
                if op == SendOp::WriteImm {
                    self.received.push(Vec::new());
                }
            }
            SendOp::Read => expected = self.memory[range].to_vec(),
            _ => {
                expected = self.memory[range.clone()].to_vec();
                let old = u64::from_ne_bytes(expected[..].try_into().expect("eight bytes"));
                let new = match op {
                    SendOp::FetchAdd => old.wrapping_add(request.compare_add),
                    _ if old == request.compare_add => request.swap,
                    _ => old,
                };
                self.memory[range].copy_from_slice(&new.to_ne_bytes());
            }
        }
        let changes = !matches!(op, SendOp::Send | SendOp::SendImm | SendOp::Read);
        if changes && !request.fence {
            self.world
                .work
                .iter_mut()
                .for_each(|work| work.loose = true);
        }
        self.world.work.push_back(Work {
            slot,
            request,
            data,
            expected,
            loose: false,
        });
    }

    fn post_receive(&mut self) {
        self.peer
            .receives
            .push_back((self.posted, vec![0; MESSAGE]));
        self.posted += 1;
    }

    fn poll(&mut self) {
        let (now, world) = (self.now, &mut self.world);
        let progress = self
            .requester
            .poll_transmit(&mut self.slots, now, 64, world);
        assert!(!progress.fatal && !progress.sqe);
    }

    /// Delivers up to `n` packets to the peer.
    fn deliver(&mut self, n: usize) {
        for _ in 0..n {
            let Some((head, payload)) = self.world.wire.pop_front() else {
                break;
            };
            self.peer.take(&head, &payload);
        }
    }

    fn transmit(&mut self) {
        while let Some(said) = self.peer.say() {
            self.answers.push_back(said);
        }
        self.peer.rest();
        assert!(!self.peer.dead, "the peer is lost");
    }

    fn answer(&mut self, n: usize) {
        for _ in 0..n {
            let Some((head, payload)) = self.answers.pop_front() else {
                break;
            };
            let total = (head.len() + payload.len()).next_multiple_of(4) as u32 + 4;
            let packet = Packet::parse(&head, total).expect("the model's packets are right");
            self.handle(&packet, payload);
            loop {
                let (requester, slots) = (&self.requester, &self.slots);
                let due = |psn| requester.is_due(slots, psn);
                let Some((packet, payload)) = self.buffered.next(requester.expected_psn(), due)
                else {
                    break;
                };
                self.handle(&packet, payload);
            }
            if self.buffered.enabled {
                let (now, world) = (self.now, &mut self.world);
                let left = self.buffered.left();
                let outcome = self
                    .requester
                    .on_buffered(&mut self.slots, now, left, world);
                assert!(!outcome.fatal && !outcome.sqe);
            }
        }
    }

    fn handle(&mut self, packet: &Packet, payload: Vec<u8>) {
        self.world.incoming = payload;
        let (now, world) = (self.now, &mut self.world);
        let outcome = self
            .requester
            .handle_packet(&mut self.slots, now, packet, world);
        assert!(!outcome.fatal && !outcome.sqe);
        if outcome.buffer {
            let payload = std::mem::take(&mut self.world.incoming);
            self.buffered
                .keep(self.requester.expected_psn(), packet, payload);
        }
    }

    fn timeout(&mut self) -> bool {
        let Some(at) = self.requester.next_timeout() else {
            return false;
        };
        self.now = self.now.max(at);
        let (now, world) = (self.now, &mut self.world);
        let outcome = self.requester.handle_timeout(&mut self.slots, now, world);
        assert!(!outcome.fatal && !outcome.sqe);
        true
    }

    /// Records a disturbance of this cost. Returns whether the budget allows it.
    fn disturb(&mut self, cost: u32) -> bool {
        self.spent += cost;
        self.world.disturbed = true;
        self.spent <= RETRIES_SPENT
    }
}

/// Disturbs the first packet in flight: drops, duplicates or delays it.
fn harm(wire: &mut VecDeque<Frame>, how: u8) {
    let Some(first) = wire.front().cloned() else {
        return;
    };
    match how % 3 {
        0 => {
            wire.pop_front();
        }
        1 => wire.push_front(first),
        _ => {
            wire.pop_front();
            wire.insert(wire.len().min(usize::from(how >> 4)), first);
        }
    }
}

/// Input: four bytes of set-up, then events.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let [reads, psn, fill, timeout] = [(); 4].map(|()| script.u8());
    let psn = u32::from(psn).wrapping_sub(16) & 0xff_ffff;
    let mut requester = Requester::new(Service::Rc.core());
    requester.set_dest_qpn(PEER);
    requester.set_mtu(Mtu::from_bytes(MTU).expect("an MTU"));
    requester.set_psn(psn);
    requester.set_retry_count(7);
    requester.set_rnr_retry(7);
    requester.set_timeout(1 + timeout % 20);
    requester.set_max_rd_atomic(1 + reads % 4);
    let enabled = reads & 0x80 != 0;
    requester.set_buffering(enabled);
    requester.start();
    let mut peer = Model::new(Service::Rc, MTU, SIZE);
    peer.expected = psn;
    peer.resources = usize::from(1 + reads % 4) + usize::from((reads >> 4) & 3);
    peer.access = [true; 3];
    peer.base = BASE;
    peer.key = KEY;
    peer.peer = crate::world::OWN;
    peer.rnr = 1;
    peer.memory.fill(fill);
    let mut conversation = Conversation {
        requester,
        slots: [SendSlot::default(); 16],
        world: World {
            work: VecDeque::new(),
            wire: VecDeque::new(),
            incoming: Vec::new(),
            disturbed: false,
        },
        memory: peer.memory.clone(),
        peer,
        answers: VecDeque::new(),
        buffered: ReorderBuffer::new(enabled),
        now: 0,
        spent: 0,
        received: Vec::new(),
        posted: 0,
    };
    for _ in 0..EVENTS {
        if script.is_empty() {
            break;
        }
        let event = script.u8();
        let n = usize::from(event & 7);
        match event {
            0..=0x3f => conversation.post(&mut script),
            0x40..=0x57 => conversation.post_receive(),
            0x58..=0x77 => conversation.poll(),
            0x78..=0x9f => conversation.deliver(n + 1),
            0xa0..=0xb7 => conversation.transmit(),
            0xb8..=0xd7 => conversation.answer(n + 1),
            0xd8..=0xe7 => {
                if conversation.disturb(OF_PACKET) {
                    harm(&mut conversation.world.wire, script.u8());
                }
            }
            0xe8..=0xf7 => {
                if conversation.disturb(OF_PACKET) {
                    harm(&mut conversation.answers, script.u8());
                }
            }
            _ => {
                if conversation.disturb(OF_TIMER) {
                    conversation.timeout();
                }
            }
        }
    }
    // From here on nothing is disturbed, so all work completes.
    while (conversation.posted as usize) < conversation.received.len() {
        conversation.post_receive();
    }
    let mut rounds = 0;
    while conversation.requester.outstanding() != 0 {
        rounds += 1;
        assert!(rounds < 10_000, "no end in sight");
        conversation.poll();
        conversation.deliver(usize::MAX);
        conversation.transmit();
        let idle = conversation.answers.is_empty();
        conversation.answer(usize::MAX);
        if idle && conversation.world.wire.is_empty() {
            conversation.poll();
            if conversation.world.wire.is_empty() && conversation.requester.outstanding() != 0 {
                assert!(
                    conversation.timeout(),
                    "nothing is under way, and nothing will be"
                );
            }
        }
    }
    assert_eq!(
        conversation.peer.memory, conversation.memory,
        "the peer's memory"
    );
    assert_eq!(conversation.peer.done.len(), conversation.received.len());
    for (done, expected) in conversation.peer.done.iter().zip(&conversation.received) {
        assert_eq!(done.status, status::SUCCESS);
        assert_eq!(
            done.data[..expected.len()],
            expected[..],
            "received {}",
            done.id
        );
    }
}
