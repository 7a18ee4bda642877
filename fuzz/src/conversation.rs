// SPDX-License-Identifier: GPL-2.0

//! The core's requester and the [`model`](crate::model)'s responder, on a link that loses,
//! duplicates and reorders a few packets. In the end all work requests have succeeded, the
//! responder has executed each once and in order, and every byte is in its place.

use crate::model::{status, Model};
use crate::script::{Script, Service};
use crate::world::{KEY, OWN, PEER, PLACES, SIZE};
use rrxe_core::{Mtu, Packet, Status, Time};
use rrxe_testkit::{Attributes, Host, Op, Operands, ReorderBuffer, Request};
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

const OPS: [Op; 8] = [
    Op::Send,
    Op::SendImm,
    Op::Write,
    Op::Write,
    Op::WriteImm,
    Op::Read,
    Op::CompareSwap,
    Op::FetchAdd,
];

/// Headers and payload.
type Frame = (Vec<u8>, Vec<u8>);

/// A work request that is not complete.
struct Work {
    wr_id: u64,
    op: Op,
    /// Data that must be returned.
    expected: Vec<u8>,
    /// A READ that may see the effect of a later request without a fence (IBA 10.8.3.3).
    loose: bool,
}

struct Conversation {
    host: Host,
    work: VecDeque<Work>,
    /// Requests on the link.
    wire: VecDeque<Frame>,
    peer: Model,
    responses: VecDeque<Frame>,
    now: u64,
    /// Retries that the disturbances so far may have cost.
    spent: u32,
    /// READs may see later writes.
    disturbed: bool,
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
        let at = if op.typed().is_atomic() {
            (at % SIZE) & !7
        } else {
            at % SIZE
        };
        let length = match op {
            _ if op.typed().is_atomic() => 8,
            Op::Send | Op::SendImm => length % MESSAGE,
            _ => (length % MESSAGE).min(SIZE - at),
        };
        let data: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
        let atomic = Operands {
            compare_add: (flags >> 2).into(),
            swap: fill.into(),
        };
        let request = Request {
            fence: flags & 1 != 0,
            signaled: flags & 2 != 0,
            va: BASE + at as u64,
            rkey: KEY,
            atomic,
            ..Request::new(op, length as u32)
        };
        let Some(wr_id) = self.host.post(request, data.clone()) else {
            return;
        };
        // Computes the expected effect, in the order of the work requests.
        let range = at..at + length;
        let mut expected = Vec::new();
        match op {
            Op::Send | Op::SendImm => self.received.push(data),
            Op::Write | Op::WriteImm => {
                self.memory[range].copy_from_slice(&data);
                if op == Op::WriteImm {
                    self.received.push(Vec::new());
                }
            }
            Op::Read => expected = self.memory[range].to_vec(),
            _ => {
                expected = self.memory[range.clone()].to_vec();
                let old = u64::from_ne_bytes(expected[..].try_into().expect("eight bytes"));
                let new = match op {
                    Op::FetchAdd => old.wrapping_add(atomic.compare_add),
                    _ if old == atomic.compare_add => atomic.swap,
                    _ => old,
                };
                self.memory[range].copy_from_slice(&new.to_ne_bytes());
            }
        }
        let changes = !matches!(op, Op::Send | Op::SendImm | Op::Read);
        if changes && !request.fence {
            self.work.iter_mut().for_each(|work| work.loose = true);
        }
        self.work.push_back(Work {
            wr_id,
            op,
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

    /// Checks what the host has completed, and moves its packets to the link.
    fn check(&mut self) {
        assert!(!self.host.error && !self.host.sqe);
        while let Some(done) = self.host.driver.sent.pop_front() {
            let work = self.work.pop_front();
            let work = work.expect("completes what was not posted");
            assert_eq!(work.wr_id, done.wr_id, "out of order");
            assert_eq!(done.completion.status, Status::Success, "{:?}", work.op);
            if work.op.typed().is_atomic() {
                assert_eq!(
                    done.data, work.expected,
                    "executed more than once, or not in its turn"
                );
            }
            if work.op == Op::Read && !self.disturbed && !work.loose {
                assert_eq!(done.data, work.expected, "not what was there");
            }
        }
        let sent = self.host.driver.out.drain(..);
        self.wire
            .extend(sent.map(|frame| (frame.header().to_vec(), frame.payload)));
    }

    fn poll(&mut self) {
        self.host.transmit(self.now);
        self.check();
    }

    /// Delivers up to `n` packets to the peer.
    fn deliver(&mut self, n: usize) {
        for _ in 0..n {
            let Some((head, payload)) = self.wire.pop_front() else {
                break;
            };
            self.peer.take(&head, &payload);
        }
    }

    fn transmit(&mut self) {
        while let Some(said) = self.peer.say() {
            self.responses.push_back(said);
        }
        self.peer.rest();
        assert!(!self.peer.dead, "the peer is lost");
    }

    fn deliver_responses(&mut self, n: usize) {
        for _ in 0..n {
            let Some((head, payload)) = self.responses.pop_front() else {
                break;
            };
            let total = (head.len() + payload.len()).next_multiple_of(4) as u32 + 4;
            let packet = Packet::parse(&head, total).expect("the model's packets are right");
            let _ = self.host.take(self.now, &packet, &payload);
            self.check();
        }
    }

    fn timeout(&mut self) -> bool {
        let Some(at) = self.host.requester.next_timeout().map(Time::ns) else {
            return false;
        };
        self.now = self.now.max(at);
        let _ = self.host.timeout(self.now);
        self.check();
        true
    }

    /// Records a disturbance of this cost. Returns whether the budget allows it.
    fn disturb(&mut self, cost: u32) -> bool {
        self.spent += cost;
        self.disturbed = true;
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
    let enabled = reads & 0x80 != 0;
    let attributes = Attributes {
        dest_qpn: PEER,
        mtu: Mtu::from_bytes(MTU).expect("an MTU"),
        sq_psn: psn,
        timeout: 1 + timeout % 20,
        max_rd_atomic: 1 + reads % 4,
        buffering: enabled,
        ..Attributes::default()
    };
    let mut host = Host::reset(attributes.service, 16);
    attributes.connect_requester(&mut host.requester);
    host.reorder_buffers = [usize::from(enabled) * PLACES; 2].map(ReorderBuffer::new);
    host.budget = 64;
    let mut peer = Model::new(Service::Rc, MTU, SIZE);
    peer.expected = psn;
    peer.resources = usize::from(1 + reads % 4) + usize::from((reads >> 4) & 3);
    peer.access = [true; 3];
    peer.base = BASE;
    peer.key = KEY;
    peer.peer = OWN;
    peer.rnr = 1;
    peer.memory.fill(fill);
    let mut conversation = Conversation {
        host,
        work: VecDeque::new(),
        wire: VecDeque::new(),
        memory: peer.memory.clone(),
        peer,
        responses: VecDeque::new(),
        now: 0,
        spent: 0,
        disturbed: false,
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
            0xb8..=0xd7 => conversation.deliver_responses(n + 1),
            0xd8..=0xe7 => {
                if conversation.disturb(OF_PACKET) {
                    harm(&mut conversation.wire, script.u8());
                }
            }
            0xe8..=0xf7 => {
                if conversation.disturb(OF_PACKET) {
                    harm(&mut conversation.responses, script.u8());
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
    while conversation.host.requester.outstanding() != 0 {
        rounds += 1;
        assert!(rounds < 10_000, "no end in sight");
        conversation.poll();
        conversation.deliver(usize::MAX);
        conversation.transmit();
        let idle = conversation.responses.is_empty();
        conversation.deliver_responses(usize::MAX);
        if idle && conversation.wire.is_empty() {
            conversation.poll();
            if conversation.wire.is_empty() && conversation.host.requester.outstanding() != 0 {
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
