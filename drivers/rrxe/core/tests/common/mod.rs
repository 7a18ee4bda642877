// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two end points, a link between them that misbehaves as told, and a clock of its own.
//!
//! A [`Host`] is what a driver would be: memory, queues, and the actions that the core asks for.
//! A [`Pair`] joins two of them. Everything that happens follows from the seed.

#![allow(dead_code, reason = "each test file uses its part")]

use rrxe_core::*;
use std::collections::{BinaryHeap, VecDeque};

/// The remote key of a host's memory.
pub const RKEY: u32 = 0x1234_5600;
/// The virtual address at which a host's memory starts.
pub const BASE: u64 = 0x7f00_0000_1000;
/// Bytes of a host's memory.
pub const MEMORY: usize = 1 << 20;
/// Depth of a send queue.
pub const DEPTH: usize = 64;
/// The Q_Key of the datagram tests.
pub const QKEY: u32 = 0x1122_3344;

/// SplitMix64.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// The driver's part of a send work request: its memory.
#[derive(Clone, Default)]
pub struct SendBuffer {
    pub wr_id: u64,
    pub data: Vec<u8>,
}

/// A receive work request.
pub struct RecvBuffer {
    pub wr_id: u64,
    pub data: Vec<u8>,
}

/// A send work request that is done.
pub struct SendDone {
    pub wr_id: u64,
    pub completion: SendCompletion,
    pub data: Vec<u8>,
}

/// A receive work request that is done.
pub struct RecvDone {
    pub wr_id: u64,
    pub completion: RecvCompletion,
    pub data: Vec<u8>,
}

/// What a host's queue pair rests on.
pub struct Driver {
    pub memory: Vec<u8>,
    /// The key that opens the memory; `None` after it was revoked.
    pub rkey: Option<u32>,
    pub sq: Vec<SendBuffer>,
    pub rq: VecDeque<RecvBuffer>,
    current: Option<RecvBuffer>,
    pub sent: Vec<SendDone>,
    pub received: Vec<RecvDone>,
    pub events: Vec<ResponderEvent>,
    pub invalidated: Vec<u32>,
    pub local_ops: Vec<u32>,
    /// Times that atomics were executed.
    pub atomics: u32,
    /// Packets that the next batches have room for.
    pub room: u32,
    /// What local memory access of the requester does.
    pub send_fault: Option<Fault>,
    /// What placing into receive work requests does.
    pub recv_fault: Option<Fault>,
    /// What local operations do.
    pub local_fault: Option<Fault>,
    /// Payload of the packet being handled.
    payload: Vec<u8>,
    /// Packets on their way out: whole UDP payloads.
    pub out: Vec<Vec<u8>>,
}

impl Driver {
    fn new() -> Driver {
        Driver {
            memory: vec![0; MEMORY],
            rkey: Some(RKEY),
            sq: vec![SendBuffer::default(); DEPTH],
            rq: VecDeque::new(),
            current: None,
            sent: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            invalidated: Vec::new(),
            local_ops: Vec::new(),
            atomics: 0,
            room: u32::MAX,
            send_fault: None,
            recv_fault: None,
            local_fault: None,
            payload: Vec::new(),
            out: Vec::new(),
        }
    }

    fn range(&self, rkey: u32, va: u64, len: u32) -> Result<std::ops::Range<usize>, Fault> {
        let start = va.checked_sub(BASE).ok_or(Fault::Protection)? as usize;
        let end = start.checked_add(len as usize).ok_or(Fault::Protection)?;
        if self.rkey != Some(rkey) || end > self.memory.len() {
            return Err(Fault::Protection);
        }
        Ok(start..end)
    }

    /// Puts a packet on the wire, with its payload, padding and ICRC.
    fn emit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        if self.room == 0 {
            return Err(TxError::NoRoom);
        }
        let mut bytes = packet.header().to_vec();
        match packet.payload {
            Payload::None => {}
            Payload::Send { slot, offset, len } => {
                if let Some(fault) = self.send_fault {
                    return Err(TxError::Local(fault));
                }
                let data = &self.sq[slot as usize].data;
                bytes.extend(&data[offset as usize..(offset + len) as usize]);
            }
            Payload::Read { rkey, va, len } => {
                let range = self
                    .range(rkey, va, len)
                    .map_err(|_| TxError::RemoteAccess)?;
                bytes.extend(&self.memory[range]);
            }
        }
        bytes.extend(std::iter::repeat_n(0, packet.pad.into()));
        let icrc = icrc_of(&bytes);
        bytes.extend(icrc);
        assert_eq!(bytes.len(), packet.udp_payload_len() as usize);
        self.room -= 1;
        self.out.push(bytes);
        Ok(())
    }
}

/// The ICRC of a packet, with IP and UDP headers that are all zero.
pub fn icrc_of(bytes: &[u8]) -> [u8; 4] {
    let state = icrc::ipv4(icrc::crc32_le, &[0; 20], &[0; 8], bytes);
    icrc::finish(state)
}

impl RequesterEnv for Driver {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.emit(packet)
    }

    fn place_read(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let at = offset as usize;
        self.sq[slot as usize].data[at..at + self.payload.len()].copy_from_slice(&self.payload);
        Ok(())
    }

    fn place_atomic(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        self.sq[slot as usize].data = value.to_ne_bytes().to_vec();
        Ok(())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        let buffer = std::mem::take(&mut self.sq[slot as usize]);
        self.sent.push(SendDone {
            wr_id: buffer.wr_id,
            completion,
            data: buffer.data,
        });
    }

    fn local_op(&mut self, slot: u32) -> Result<(), Fault> {
        self.local_ops.push(slot);
        self.local_fault.map_or(Ok(()), Err)
    }
}

impl ResponderEnv for Driver {
    fn fetch_recv(&mut self) -> Option<RecvRequest> {
        assert!(self.current.is_none());
        self.current = self.rq.pop_front();
        self.current.as_ref().map(|r| RecvRequest {
            length: r.data.len() as u32,
        })
    }

    fn place_recv(&mut self, offset: u32) -> Result<(), Fault> {
        if let Some(fault) = self.recv_fault {
            return Err(fault);
        }
        let at = offset as usize;
        let current = self.current.as_mut().unwrap();
        current.data[at..at + self.payload.len()].copy_from_slice(&self.payload);
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
        self.range(rkey, va, len).map(|_| ())
    }

    fn place_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let range = self.range(rkey, va, self.payload.len() as u32)?;
        self.memory[range].copy_from_slice(&self.payload);
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        let range = self.range(rkey, va, 8)?;
        let word: &mut [u8; 8] = (&mut self.memory[range]).try_into().unwrap();
        let original = u64::from_ne_bytes(*word);
        *word = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        }
        .to_ne_bytes();
        self.atomics += 1;
        Ok(original)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        if self.rkey != Some(rkey) {
            return Err(Fault::Protection);
        }
        self.rkey = None;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let RecvBuffer { wr_id, data } = self.current.take().unwrap();
        self.received.push(RecvDone {
            wr_id,
            completion,
            data,
        });
    }

    fn event(&mut self, event: ResponderEvent) {
        self.events.push(event);
    }

    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.emit(packet)
    }
}

/// One end point: a queue pair and what it rests on.
pub struct Host {
    pub requester: Requester,
    pub responder: Responder,
    pub slots: Vec<SendSlot>,
    pub driver: Driver,
    /// The queue pair has gone to Error, or SQE.
    pub error: bool,
    pub sqe: bool,
    pub posted: u64,
    /// Packets that one call of `poll_transmit` may send.
    pub budget: u32,
    /// Packets that an answer was sent for, dropped by their ICRC.
    pub bad_icrc: u32,
}

/// The packet sequence numbers that hosts start with: 0 sends from here, 1 from there.
pub const START_PSN: [u32; 2] = [0xff_fff0, 0x12_3456];

impl Host {
    pub fn new(service: Service, index: usize, mtu: u32) -> Host {
        let mtu = Mtu::from_bytes(mtu).unwrap();
        let (mine, peers) = (START_PSN[index], START_PSN[1 - index]);
        let mut requester = Requester::new(service);
        requester.set_src_qpn(100 + index as u32);
        requester.set_dest_qpn(101 - index as u32);
        requester.set_mtu(mtu);
        requester.set_psn(mine);
        requester.set_timeout(8);
        requester.set_retry_count(7);
        requester.set_rnr_retry(7);
        requester.set_max_rd_atomic(4);
        requester.set_qkey(QKEY);
        requester.start();
        let mut responder = Responder::new(service);
        responder.set_dest_qpn(101 - index as u32);
        responder.set_mtu(mtu);
        responder.set_psn(peers);
        responder.set_max_dest_rd_atomic(4);
        responder.set_min_rnr_timer(1);
        responder.set_access(true, true, true);
        responder.set_qkey(QKEY);
        responder.start();
        Host {
            requester,
            responder,
            slots: vec![SendSlot::default(); DEPTH],
            driver: Driver::new(),
            error: false,
            sqe: false,
            posted: 0,
            budget: 16,
            bad_icrc: 0,
        }
    }

    /// Posts a send work request with this local memory (data to send, or room for a READ).
    pub fn post(&mut self, request: SendRequest, data: Vec<u8>) -> Result<u64, PostError> {
        let slot = self.requester.post(&mut self.slots, request)?;
        let wr_id = self.posted;
        self.posted += 1;
        self.driver.sq[slot as usize] = SendBuffer { wr_id, data };
        Ok(wr_id)
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, wr_id: u64, len: usize) {
        self.driver.rq.push_back(RecvBuffer {
            wr_id,
            data: vec![0xee; len],
        });
    }

    /// Hands a whole UDP payload to the side that it is for.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> Outcome {
        let Some((body, icrc)) = bytes.split_last_chunk::<4>() else {
            return Outcome::default();
        };
        if body.len() < wire::Bth::LEN || icrc_of(body) != *icrc {
            self.bad_icrc += 1;
            return Outcome::default();
        }
        let Ok(packet) = Packet::parse(body, bytes.len() as u32) else {
            return Outcome::default();
        };
        let start = usize::from(packet.header_len);
        self.driver.payload = body[start..start + packet.payload_len as usize].to_vec();
        let outcome = if packet.is_response() {
            self.requester
                .handle_packet(&mut self.slots, now, &packet, &mut self.driver)
        } else {
            self.responder.handle_packet(now, &packet, &mut self.driver)
        };
        self.note(outcome.fatal, outcome.sqe);
        outcome
    }

    /// Hands a packet with this payload to the side that it is for, past the wire format.
    pub fn take(&mut self, now: u64, packet: &Packet, payload: &[u8]) -> Outcome {
        assert_eq!(packet.payload_len as usize, payload.len());
        self.driver.payload = payload.to_vec();
        let outcome = if packet.is_response() {
            self.requester
                .handle_packet(&mut self.slots, now, packet, &mut self.driver)
        } else {
            self.responder.handle_packet(now, packet, &mut self.driver)
        };
        self.note(outcome.fatal, outcome.sqe);
        outcome
    }

    /// Lets the host send all it can, and returns the packets: parsed, and their payloads.
    pub fn drain(&mut self, now: u64) -> Vec<(Packet, Vec<u8>)> {
        while self.transmit(now) {}
        let out = std::mem::take(&mut self.driver.out);
        out.into_iter()
            .map(|bytes| {
                let packet = Packet::parse(&bytes, bytes.len() as u32).unwrap();
                let start = usize::from(packet.header_len);
                let end = start + packet.payload_len as usize;
                (packet, bytes[start..end].to_vec())
            })
            .collect()
    }

    /// Transmits what both sides have. Whether there is more.
    pub fn transmit(&mut self, now: u64) -> bool {
        let a = self
            .requester
            .poll_transmit(&mut self.slots, now, self.budget, &mut self.driver);
        let b = self
            .responder
            .poll_transmit(now, self.budget, &mut self.driver);
        self.note(a.fatal || b.fatal, a.sqe);
        a.more || b.more
    }

    fn note(&mut self, fatal: bool, sqe: bool) {
        self.sqe |= sqe;
        if fatal && !self.error {
            self.go_to_error();
        }
    }

    /// What a driver does on a fatal error, and what modify_qp to Error does.
    pub fn go_to_error(&mut self) {
        self.error = true;
        self.requester
            .enter_error(&mut self.slots, &mut self.driver);
        self.responder.enter_error(&mut self.driver);
    }

    /// Statuses of the send work requests, in the order of completion, which must be that of posting.
    pub fn statuses(&self) -> Vec<Status> {
        for (i, done) in self.driver.sent.iter().enumerate() {
            assert_eq!(done.wr_id, i as u64, "completed out of order");
        }
        self.driver
            .sent
            .iter()
            .map(|done| done.completion.status)
            .collect()
    }
}

/// A packet for a host, as a reliable connection's peer would send it.
pub fn packet(operation: wire::Operation, psn: Psn, ext: Ext, payload_len: usize) -> Packet {
    packet_of(Service::Rc, operation, psn, ext, payload_len)
}

/// A packet for a host. Asks for an acknowledgement.
pub fn packet_of(
    service: Service,
    operation: wire::Operation,
    psn: Psn,
    ext: Ext,
    payload_len: usize,
) -> Packet {
    let pad = (payload_len as u8).wrapping_neg() & 3;
    Packet {
        bth: wire::Bth {
            opcode: wire::Opcode::new(service, operation),
            solicited: false,
            migreq: true,
            pad,
            version: 0,
            pkey: pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: 100,
            ackreq: !operation.is_response(),
            psn,
        },
        operation,
        ext,
        header_len: 12,
        pad,
        payload_len: payload_len as u32,
    }
}

/// An ACKNOWLEDGE with this syndrome.
pub fn acknowledge(psn: Psn, syndrome: wire::Syndrome) -> Packet {
    let aeth = wire::Aeth::new(syndrome, Psn::new(0));
    packet(wire::Operation::Acknowledge, psn, Ext::Aeth(aeth), 0)
}

/// How the link treats packets: chances in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    /// Packets are late by up to this, in nanoseconds, and so overtake each other.
    pub jitter: u64,
}

/// Nanoseconds that a packet travels at least.
pub const LATENCY: u64 = 5_000;

/// A packet on the link: due time, order of sending, receiver, bytes. Ordered by time, earliest
/// first in a [`BinaryHeap`].
type Flight = std::cmp::Reverse<(u64, u64, usize, Vec<u8>)>;

/// Says of a packet, and the host that sends it, whether it gets lost.
pub type Filter = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Two hosts and the link between them.
pub struct Pair {
    pub hosts: [Host; 2],
    pub link: Link,
    pub now: u64,
    pub rng: Rng,
    flights: BinaryHeap<Flight>,
    sequence: u64,
    /// Everything that was put on the link: sender and bytes.
    pub trace: Vec<(usize, Vec<u8>)>,
    /// Drops the packets that it says.
    pub filter: Option<Filter>,
}

impl Pair {
    pub fn new(service: Service, mtu: u32, seed: u64) -> Pair {
        Pair {
            hosts: [Host::new(service, 0, mtu), Host::new(service, 1, mtu)],
            link: Link::default(),
            now: 1_000_000,
            rng: Rng(seed),
            flights: BinaryHeap::new(),
            sequence: 0,
            trace: Vec::new(),
            filter: None,
        }
    }

    /// Puts a packet on the link.
    pub fn inject(&mut self, to: usize, bytes: Vec<u8>, delay: u64) {
        self.sequence += 1;
        self.flights.push(std::cmp::Reverse((
            self.now + delay,
            self.sequence,
            to,
            bytes,
        )));
    }

    /// Moves what a host has sent onto the link.
    fn ship(&mut self, from: usize) {
        for bytes in std::mem::take(&mut self.hosts[from].driver.out) {
            self.trace.push((from, bytes.clone()));
            if let Some(filter) = &mut self.filter {
                let packet = Packet::parse(&bytes, bytes.len() as u32).unwrap();
                if filter(from, &packet) {
                    continue;
                }
            }
            let copies = if self.rng.chance(self.link.duplication) {
                2
            } else {
                1
            };
            for _ in 0..copies {
                if self.rng.chance(self.link.loss) {
                    continue;
                }
                let mut bytes = bytes.clone();
                if self.rng.chance(self.link.corruption) {
                    // The reserved byte of the BTH is not covered by the ICRC.
                    let len = bytes.len() as u64;
                    let at = loop {
                        let at = self.rng.below(len) as usize;
                        if at != wire::Bth::RESV8A {
                            break at;
                        }
                    };
                    bytes[at] ^= 1 << self.rng.below(8);
                }
                let jitter = if self.link.jitter == 0 {
                    0
                } else {
                    self.rng.below(self.link.jitter)
                };
                self.inject(1 - from, bytes, LATENCY + jitter);
            }
        }
    }

    /// Lets both hosts send all they can now.
    pub fn transmit(&mut self) {
        for from in 0..2 {
            while self.hosts[from].transmit(self.now) {
                self.ship(from);
            }
            self.ship(from);
        }
    }

    /// Goes on to the next thing that happens: packets arrive, or a timer fires. `false` if
    /// nothing ever will.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flights.peek().map(|f| f.0 .0);
        let timer = self
            .hosts
            .iter()
            .filter_map(|h| h.requester.next_timeout())
            .min();
        let Some(next) = [arrival, timer].into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        // A batch of what has arrived, as a driver would handle it.
        while self.flights.peek().is_some_and(|f| f.0 .0 <= self.now) {
            let std::cmp::Reverse((_, _, to, bytes)) = self.flights.pop().unwrap();
            let _ = self.hosts[to].receive(self.now, &bytes);
        }
        for host in &mut self.hosts {
            if host
                .requester
                .next_timeout()
                .is_some_and(|at| at <= self.now)
            {
                let outcome =
                    host.requester
                        .handle_timeout(&mut host.slots, self.now, &mut host.driver);
                host.note(outcome.fatal, outcome.sqe);
            }
        }
        true
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "no end in sight");
        }
        for host in &self.hosts {
            assert_eq!(
                host.requester.outstanding(),
                0,
                "a work request never completed"
            );
        }
    }

    /// Runs for this long, in nanoseconds.
    pub fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            self.transmit();
            let arrival = self.flights.peek().map(|f| f.0 .0);
            let timer = self
                .hosts
                .iter()
                .filter_map(|h| h.requester.next_timeout())
                .min();
            match [arrival, timer].into_iter().flatten().min() {
                Some(next) if next <= end => assert!(self.step()),
                _ => break,
            }
        }
        self.now = end;
    }

    /// The packets that a host has put on the link, parsed.
    pub fn sent_by(&self, host: usize) -> Vec<Packet> {
        let bytes = self
            .trace
            .iter()
            .filter(|(from, _)| *from == host)
            .map(|(_, bytes)| bytes);
        bytes
            .map(|b| Packet::parse(b, b.len() as u32).unwrap())
            .collect()
    }
}
