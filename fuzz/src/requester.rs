// SPDX-License-Identifier: GPL-2.0

//! A requester with a peer whose responses are arbitrary and a driver that may refuse any call.
//! Each work request must complete once and in order, with success only if there is a reason.

use crate::script::{Fed, Frame, Script, Service};
use crate::world::{KEY, OWN, PEER, PLACES, QKEY};
use rrxe_core::wire::Feth;
use rrxe_core::{
    Destination, Fault, Mtu, Packet, Payload, RecoveryMode, Requester, RequesterEnv,
    SendCompletion, SendOp, SendSlot, Status, Time, TxError, TxPacket,
};
use rrxe_testkit::{layout::extensions, Op, ReorderBuffer, Request};
use std::collections::VecDeque;

/// Maximum number of events of one input; more only take time.
const EVENTS: usize = 200;
/// Maximum number of packets that one poll may send. A READ of gigabytes is one packet, a WRITE is
/// many.
const BUDGET: u32 = 64;

/// The operations that a script names.
const OPS: [Op; 13] = [
    Op::Send,
    Op::SendImm,
    Op::SendInv,
    Op::Write,
    Op::WriteImm,
    Op::Read,
    Op::CompareSwap,
    Op::FetchAdd,
    Op::LocalInv,
    Op::RegMr,
    Op::BindMw,
    Op::Flush,
    Op::AtomicWrite,
];

/// State of an outstanding work request.
#[derive(Clone, Debug)]
struct Work {
    op: SendOp,
    length: u32,
    signaled: bool,
    /// Number of the work request, counting from 0.
    number: usize,
    /// It is malformed or not supported.
    fails: bool,
    /// PSN of the first packet, once it was sent.
    first_psn: Option<u32>,
    /// Packets sent, without a gap, from the first on.
    sent: u32,
    /// READ: the packets of the response that were placed. The end of a long response is not
    /// tracked.
    placed: Vec<bool>,
    placed_atomic: bool,
    executed: bool,
}

/// The environment of the requester.
struct World {
    service: Service,
    mtu: u32,
    outstanding: VecDeque<Work>,
    packet: Option<Fed>,
    fault: Option<(u8, Fault)>,
    local_fault: Option<Status>,
    space: u32,
    sent: u32,
    completed: u32,
    /// A work request failed, so later ones cannot succeed.
    failed: bool,
    dead: bool,
}

impl World {
    fn work(&mut self, slot: &SendSlot) -> &mut Work {
        let is_it = |work: &&mut Work| work.number == slot.local;
        let found = self.outstanding.iter_mut().find(is_it);
        found.expect("a slot without work request")
    }

    fn fault(&mut self) -> Result<(), Fault> {
        assert!(!self.dead, "acts in the Error state");
        crate::world::burn(&mut self.fault)
    }
}

/// Returns the number of packets of a request or of a READ response.
fn packets(op: SendOp, length: u32, mtu: u32) -> u32 {
    match op {
        SendOp::Flush { .. } => 1,
        _ => length.div_ceil(mtu).max(1),
    }
}

impl World {
    /// Checks a packet.
    fn send(&mut self, packet: &TxPacket, slot: &SendSlot) -> Result<(), TxError> {
        if self.space == 0 {
            return Err(TxError::Full);
        }
        if let Err(fault) = self.fault() {
            return Err(fault.into());
        }
        let (mtu, service) = (self.mtu, self.service);
        let work = self.work(slot);
        assert!(!work.fails, "sends what is refused");
        let head = packet.header();
        let opcode = head[0];
        let xrceth = usize::from(service == Service::Xrc) * 4;
        let expected: usize = extensions(opcode).iter().map(|h| h.size()).sum();
        assert_eq!(head.len(), 12 + xrceth + expected, "headers of {opcode:#x}");
        assert_eq!(opcode & 0xe0, service.class(), "another service's opcode");
        let psn = u32::from_be_bytes([0, head[9], head[10], head[11]]);
        let len = packet.payload.len();
        assert_eq!(
            (head[1] >> 4) & 3,
            (len as u8).wrapping_neg() & 3,
            "padding"
        );
        assert!(len <= mtu);

        // Index of the packet in its message.
        let at = match (packet.payload, work.op) {
            (Payload::Read { .. }, _) => panic!("a request with a READ's payload"),
            (_, SendOp::Read { from }) => {
                let va = u64::from_be_bytes(
                    head[12 + xrceth..20 + xrceth]
                        .try_into()
                        .expect("eight bytes"),
                );
                let dma = u32::from_be_bytes(
                    head[24 + xrceth..28 + xrceth]
                        .try_into()
                        .expect("four bytes"),
                );
                let offset = va.wrapping_sub(from.va);
                assert_eq!(
                    offset + u64::from(dma),
                    work.length.into(),
                    "not up to its end"
                );
                assert_eq!(offset % u64::from(mtu), 0, "starts within a packet");
                (offset / u64::from(mtu)) as u32
            }
            (Payload::Send { offset, len }, _) => {
                assert_eq!(offset % mtu, 0);
                let left = work.length.checked_sub(offset).expect("beyond the message");
                assert_eq!(len, left.min(mtu), "neither full nor the last");
                offset / mtu
            }
            (Payload::None, op) => {
                let none = !op.carries_data() || work.length == 0;
                assert!(none, "where is the payload?");
                0
            }
        };
        // A retransmitted packet is identical to the original (F-07).
        let first = psn.wrapping_sub(at) & 0xff_ffff;
        assert_eq!(
            *work.first_psn.get_or_insert(first),
            first,
            "another PSN than before"
        );
        assert!(at <= work.sent || work.op.is_read(), "skips a packet");
        let packets = packets(work.op, work.length, mtu);
        work.sent = match work.op {
            SendOp::Read { .. } => packets,
            _ => work.sent.max(at + 1),
        };
        let place = match (at == 0, at + 1 == packets) {
            _ if work.op.is_read() => None,
            (true, true) => Some([0x04, 0x05, 0x17, 0x0a, 0x0b, 0x13, 0x14, 0x1c, 0x1d].as_slice()),
            (true, false) => Some([0x00, 0x06].as_slice()),
            (false, false) => Some([0x01, 0x07].as_slice()),
            (false, true) => Some([0x02, 0x03, 0x16, 0x08, 0x09].as_slice()),
        };
        let fits = place.map_or(opcode & 0x1f == 0x0c, |place| {
            place.contains(&(opcode & 0x1f))
        });
        assert!(fits, "{opcode:#x} in this place of a message");
        self.space -= 1;
        self.sent += 1;
        Ok(())
    }
}

impl RequesterEnv for World {
    type Local = usize;

    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.send(packet, slot))
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        self.fault()?;
        let len = self.packet.expect("places without a packet").payload;
        let mtu = self.mtu;
        let work = self.work(slot);
        assert!(work.op.is_read());
        assert_ne!(work.sent, 0, "a response without a request");
        assert_eq!(offset % mtu, 0);
        let left = work.length.checked_sub(offset).expect("beyond the message");
        assert_eq!(len, left.min(mtu), "more or less than belongs there");
        let at = (offset / mtu) as usize;
        if let Some(placed) = work.placed.get_mut(at) {
            *placed = true;
        }
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, _value: u64) -> Result<(), Fault> {
        self.fault()?;
        let work = self.work(slot);
        assert!(work.op.is_atomic() && work.sent == 1 && !work.placed_atomic);
        work.placed_atomic = true;
        Ok(())
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        let packets = |work: &Work| packets(work.op, work.length, self.mtu);
        let work = self
            .outstanding
            .front()
            .expect("completes what was not posted")
            .clone();
        assert_eq!(work.number, slot.local, "out of order");
        assert_eq!(work.op, slot.op);
        assert_eq!(work.signaled, completion.signaled);
        if completion.status == Status::Success {
            assert!(!self.failed && !work.fails, "success after failure");
            if work.op.is_local() {
                assert!(work.executed);
            } else if self.service == Service::Ud && work.length > self.mtu {
                assert_eq!(work.sent, 0, "a part of a datagram (I-02)");
            } else {
                assert_eq!(work.sent, packets(&work), "not all of it was sent");
            }
            if work.op.is_read() && work.length != 0 {
                assert!(
                    work.placed.iter().all(|&placed| placed),
                    "bytes are missing"
                );
            }
            if work.op.is_atomic() {
                assert!(work.placed_atomic);
            }
        } else {
            self.failed = true;
        }
        self.outstanding.pop_front();
        self.completed += 1;
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Status> {
        assert!(!self.dead);
        let fault = self.local_fault.take();
        let work = self.work(slot);
        assert!(work.op.is_local() && !work.executed, "executed twice");
        work.executed = true;
        fault.map_or(Ok(()), Err)
    }
}

struct End {
    requester: Requester,
    slots: Vec<SendSlot>,
    posted: usize,
    world: World,
    now: u64,
    lost: bool,
    buffered: ReorderBuffer<Fed>,
}

impl End {
    fn post(&mut self, script: &mut Script<'_>) {
        let [kind, flags] = [script.u8(), script.u8()];
        let op = OPS[usize::from(kind) % OPS.len()];
        let mtu = self.world.mtu;
        let length = match (op, flags >> 5) {
            (op, _) if op.typed().is_atomic() || op.typed().is_local() => 0,
            (Op::AtomicWrite, 0..=5) => 8,
            (_, 0) => u32::from(script.u8()),
            (_, 1) => u32::from(script.u8() & 31) * mtu,
            (_, 2) => 1 << 31,
            (_, 3) => script.u32(),
            _ => u32::from(script.u16()),
        };
        let to = Destination {
            ah: 0,
            qpn: PEER,
            qkey: QKEY,
        };
        let request = Request {
            fence: flags & 1 != 0,
            signaled: flags & 2 != 0,
            solicited: flags & 4 != 0,
            va: match flags & 8 {
                0 => 0x1000,
                _ => u64::MAX - 0x100,
            },
            rkey: KEY,
            key: kind.into(),
            feth: Feth::from_bytes(&[0, 0, 0, kind]),
            to: (self.world.service == Service::Ud).then_some(to),
            srqn: PEER,
            ..Request::new(op, length)
        };
        let full = self.world.outstanding.len() == self.slots.len();
        let Some(slot) = self.requester.free_slot(&mut self.slots) else {
            assert!(full, "refused by a queue that is not full");
            return;
        };
        assert!(!full, "posted to a full queue");
        *slot = SendSlot {
            local: self.posted,
            ..request.into()
        };
        self.requester.post(slot);
        self.posted += 1;
        let SendSlot { op, length, .. } = *slot;
        let packets = packets(op, length, mtu);
        self.world.outstanding.push_back(Work {
            op,
            length,
            signaled: slot.signaled,
            number: slot.local,
            fails: matches!(op, SendOp::Invalid(_)),
            first_psn: None,
            sent: 0,
            placed: match op {
                SendOp::Read { .. } => vec![false; packets.min(512) as usize],
                _ => Vec::new(),
            },
            placed_atomic: false,
            executed: false,
        });
    }

    fn note(&mut self, fatal: bool, sqe: bool) {
        match self.world.service {
            Service::Rc | Service::Xrc => assert!(!sqe),
            _ => assert!(!fatal),
        }
        if fatal {
            assert!(!self.lost, "lost twice");
            self.error();
        }
    }

    fn error(&mut self) {
        self.lost = true;
        self.requester.enter_error();
        while self.requester.is_flushing() {
            let progress = self.requester.poll_transmit(
                &mut self.slots,
                Time::from_ns(self.now),
                0,
                &mut self.world,
            );
            assert_eq!(progress.more, self.requester.is_flushing());
        }
        assert!(self.world.outstanding.is_empty(), "not all were flushed");
        self.world.dead = true;
    }

    fn poll(&mut self, budget: u32) {
        let before = self.world.sent;
        let progress = self.requester.poll_transmit(
            &mut self.slots,
            Time::from_ns(self.now),
            budget,
            &mut self.world,
        );
        assert_eq!(progress.sent, self.world.sent - before);
        assert!(progress.sent <= budget);
        self.note(progress.fatal, progress.sqe);
    }

    fn feed(&mut self, fed: &Fed, total: u32) {
        let Ok(packet) = Packet::parse(fed.head(), total) else {
            return;
        };
        let mut fed = *fed;
        fed.payload = packet.payload_len;
        self.handle(&packet, &fed);
        let mut turns = 0;
        loop {
            let next = self.buffered.next_response(&self.requester, &self.slots);
            let Some((packet, fed)) = next else {
                break;
            };
            turns += 1;
            assert!(turns < 4 * PLACES, "buffered, and due, for ever");
            self.handle(&packet, &fed);
        }
        let beyond = self.buffered.len();
        let outcome = self.requester.on_buffered(
            &mut self.slots,
            Time::from_ns(self.now),
            beyond,
            &mut self.world,
        );
        self.note(outcome.fatal, outcome.sqe);
    }

    fn handle(&mut self, packet: &Packet, fed: &Fed) {
        self.world.packet = Some(*fed);
        let (before, completed) = (self.requester.next_psn(), self.world.completed);
        let outcome = self.requester.handle_packet(
            &mut self.slots,
            Time::from_ns(self.now),
            packet,
            &mut self.world,
        );
        self.world.packet = None;
        assert_eq!(
            self.requester.next_psn(),
            before,
            "a response moves the sent packets"
        );
        if matches!(self.world.service, Service::Uc | Service::Ud) {
            assert_eq!(
                self.world.completed, completed,
                "a datagram has no response"
            );
        }
        if outcome.buffer {
            // The packet may have acknowledged packets before the gap.
            let expected = self.requester.expected_psn();
            self.buffered.insert(0, expected, packet, *fed, |_, _| true);
        }
        self.note(outcome.fatal, outcome.sqe);
    }

    fn timeout(&mut self) {
        let Some(at) = self.requester.next_timeout().map(Time::ns) else {
            return;
        };
        self.now = self.now.max(at);
        let outcome = self.requester.handle_timeout(
            &mut self.slots,
            Time::from_ns(self.now),
            &mut self.world,
        );
        self.note(outcome.fatal, outcome.sqe);
        let again = self.requester.next_timeout().map(Time::ns);
        assert!(
            again.is_none_or(|at| at > self.now),
            "the same timer at the same time"
        );
        if outcome.transmit {
            self.poll(BUDGET);
        }
    }

    fn check(&self) {
        let outstanding = self.world.outstanding.len() as u32;
        assert_eq!(self.requester.outstanding(), outstanding);
        assert!(u32::from(self.requester.reads) <= outstanding);
    }
}

/// Input: six bytes of set-up (nine with a PSN far from 0), then events.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let [kind, depth, retries, reads, timeout, psn] = [(); 6].map(|()| script.u8());
    let service = Service::read(kind);
    let mtu = [256, 512, 1024][usize::from(kind >> 3) % 3];
    let psn = match psn {
        0xff => script.u32(),
        n => u32::from(n).wrapping_sub(16),
    };
    let mut requester = Requester::new(service.core());
    requester.src_qpn = OWN;
    let apply = |requester: &mut Requester| {
        requester.dest_qpn = PEER;
        requester.mtu = Mtu::from_bytes(mtu).expect("an MTU");
        requester.set_psn(psn);
        requester.set_retry_count(retries);
        requester.set_rnr_retry(retries >> 3);
        requester.set_timeout(timeout);
        requester.max_rd_atomic = reads % 8;
        requester.qkey = QKEY;
        requester.start();
    };
    let places = usize::from(reads >> 7) * PLACES;
    requester.buffering = places != 0;
    if reads & 0x40 != 0 {
        requester.set_recovery(RecoveryMode::Strict);
    }
    apply(&mut requester);
    let mut end = End {
        requester,
        slots: vec![SendSlot::default(); 1 << (depth % 6)],
        posted: 0,
        world: World {
            service,
            mtu,
            outstanding: VecDeque::new(),
            packet: None,
            fault: None,
            local_fault: None,
            space: u32::MAX,
            sent: 0,
            completed: 0,
            failed: false,
            dead: false,
        },
        now: 0,
        lost: false,
        buffered: ReorderBuffer::new(places),
    };
    for _ in 0..EVENTS {
        if script.is_empty() {
            break;
        }
        match script.u8() {
            0..=0x5f => {
                // The PSN is near that of the oldest work request, or near the next one.
                let oldest = end.world.outstanding.front();
                let psn = match oldest.and_then(|work| work.first_psn) {
                    Some(psn) => psn,
                    None => end.requester.next_psn(),
                };
                let fed = Fed::read(&mut script, &frame(service, mtu, psn));
                end.feed(&fed, fed.total_len());
            }
            0x60..=0x7f => {
                let fed = Fed::read(&mut script, &frame(service, mtu, end.requester.next_psn()));
                end.feed(&fed, fed.total_len());
            }
            0x80..=0x87 => {
                let (fed, total) = Fed::raw(&mut script);
                end.feed(&fed, total);
            }
            0x88..=0xaf => end.post(&mut script),
            0xb0..=0xcf => end.poll(BUDGET),
            0xd0..=0xd7 => {
                let budget = script.u8();
                end.world.space = u32::from(budget >> 4);
                end.poll(u32::from(budget & 0xf));
                end.world.space = u32::MAX;
            }
            0xd8..=0xe7 => end.timeout(),
            0xe8..=0xef => {
                end.now += u64::from(script.u16()) << 8;
                if end
                    .requester
                    .next_timeout()
                    .map(Time::ns)
                    .is_some_and(|at| at <= end.now)
                {
                    end.timeout();
                }
            }
            0xf0..=0xf3 => {
                let fault = [Fault::Protection, Fault::Malformed, Fault::Length];
                end.world.fault = Some((script.u8() % 4, fault[usize::from(script.u8() % 3)]));
            }
            0xf4..=0xf5 => end.world.local_fault = Some(Status::LocQpOp),
            0xf6..=0xf7 => end.requester.pause(),
            // Moves from SQD or SQE back to RTS.
            0xf8..=0xfa => {
                end.requester.start();
                end.world.failed = false;
            }
            0xfb => match script.u8() {
                0xff => {
                    end.requester.on_cnp(Time::from_ns(end.now));
                }
                timeout => end.requester.set_timeout(timeout),
            },
            0xfc => end.requester.max_rd_atomic = script.u8() % 8,
            0xfd => {
                let drained = end.requester.is_drained(&end.slots);
                let started = end
                    .world
                    .outstanding
                    .front()
                    .is_some_and(|work| work.sent != 0);
                assert!(!drained || !started, "drained, with something under way");
            }
            0xfe => {
                if !end.lost {
                    end.error();
                }
            }
            _ => {
                if !end.lost {
                    end.error();
                }
                end.lost = false;
                end.world.dead = false;
                end.world.failed = false;
                // Reset drops work requests without completing them.
                end.world.outstanding.clear();
                end.buffered.clear();
                end.requester.reset();
                apply(&mut end.requester);
            }
        }
        end.check();
    }
    if !end.lost {
        end.error();
    }
    end.check();
}

fn frame(service: Service, mtu: u32, psn: u32) -> Frame {
    Frame {
        service,
        mtu,
        psn,
        base: 0x1000,
        key: KEY,
        qkey: QKEY,
        qpn: OWN,
    }
}
