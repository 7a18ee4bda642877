// SPDX-License-Identifier: GPL-2.0

//! The transport core as an end point, with a virtual clock.
//!
//! [`Memory`] is a minimal driver for the core: memory, queues, packets. The checks of a driver
//! before the core sees a packet (IP and UDP lengths, ICRC, addresses, queue pair numbers) are
//! implemented here in the simplest way; scripts that test those run in guests.

use crate::endpoint::{
    Completion, EndPoint, QpSpec, Query, Refused, Region, Result, SendPost, State, Wait, PEER_QPN,
};
use crate::packet::{Seen, ROCE_PORT};
use rrxe_core::{
    AtomicOp, Fault, Flush, Mtu, Outcome, Packet, Payload, Progress, RecoveryMode, RecvCompletion,
    RecvOpcode, RecvRequest, RemoteAccess, Requester, RequesterEnv, Resource, ResponderEnv,
    ResponderEvent, SendCompletion, SendOp, SendRequest, SendSlot, Service, Status, TxError,
    TxPacket,
};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// A responder that owns its responder resources.
type Responder = rrxe_core::Responder<Vec<Resource>>;

/// The end point's queue pair number.
const QPN: u32 = 0x11;
/// Distance between the start addresses of two regions.
const SPACING: u64 = 1 << 32;
/// Depth of the send queue.
const DEPTH: usize = 64;
/// Maximum number of packets that one call of `poll_transmit` may send.
const BUDGET: u32 = 16;
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

struct Area {
    bytes: Vec<u8>,
    rights: String,
    registered: bool,
}

/// The memory of a work request.
#[derive(Clone, Default)]
struct Buffer {
    id: u64,
    bytes: Vec<u8>,
    bad_lkey: bool,
}

/// The state of the driver.
#[derive(Default)]
struct Memory {
    areas: Vec<Area>,
    sq: Vec<Buffer>,
    rq: VecDeque<Buffer>,
    current: Option<Buffer>,
    sent: VecDeque<Completion>,
    received: VecDeque<Completion>,
    events: VecDeque<ResponderEvent>,
    pkey_violations: u64,
    qkey_violations: u64,
    icrc_errors: u64,
    payload: Vec<u8>,
    now: u64,
    out: VecDeque<(u64, Vec<u8>)>,
}

fn key(area: usize) -> u32 {
    0x1000 + (area as u32) * 0x100
}

/// Returns the script name of a status: `RemInvReq` is rem-inv-req.
fn status(status: Status) -> String {
    let mut name = String::new();
    for c in format!("{status:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

impl Memory {
    /// Returns the bytes of a region if the key grants `right` on them.
    fn access(
        &mut self,
        rkey: u32,
        va: u64,
        len: usize,
        right: char,
    ) -> std::result::Result<&mut [u8], Fault> {
        let at = (0..self.areas.len()).find(|n| key(*n) == rkey);
        let at = at.ok_or(Fault::Protection)?;
        let area = &mut self.areas[at];
        let start = va.checked_sub(SPACING * (at as u64 + 1));
        let start = start.ok_or(Fault::Protection)? as usize;
        if !area.registered || !area.rights.contains(right) {
            return Err(Fault::Protection);
        }
        let end = start.checked_add(len).ok_or(Fault::Protection)?;
        area.bytes.get_mut(start..end).ok_or(Fault::Protection)
    }

    fn emit(&mut self, packet: &TxPacket) -> std::result::Result<(), TxError> {
        let payload = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Send { slot, offset, len } => {
                let buffer = &self.sq[slot as usize];
                if buffer.bad_lkey {
                    return Err(TxError::Local(Fault::Protection));
                }
                buffer.bytes[offset as usize..(offset + len) as usize].to_vec()
            }
            Payload::Read { rkey, va, len } => {
                let bytes = self.access(rkey, va, len as usize, 'r');
                bytes.map_err(|_| TxError::RemoteAccess)?.to_vec()
            }
        };
        let mut ib = packet.header().to_vec();
        ib.extend(payload);
        ib.resize(ib.len() + usize::from(packet.pad), 0);
        let length = ib.len() as u16 + 4 + 8;
        let mut bytes = vec![0x45, 0];
        bytes.extend((length + 20).to_be_bytes());
        bytes.extend([0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
        bytes.extend(OWN.octets());
        bytes.extend(PEER.octets());
        bytes.extend(0xc000u16.to_be_bytes());
        bytes.extend((ROCE_PORT as u16).to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&ib);
        let (ip, udp) = (&bytes[..20], &bytes[20..28]);
        let state = rrxe_core::icrc::ipv4(
            rrxe_core::icrc::crc32_le,
            ip.try_into().map_err(|_| TxError::NoRoom)?,
            udp.try_into().map_err(|_| TxError::NoRoom)?,
            &ib,
        );
        bytes.extend(rrxe_core::icrc::finish(state));
        self.out.push_back((self.now, bytes));
        Ok(())
    }
}

impl RequesterEnv for Memory {
    fn transmit(&mut self, packet: &TxPacket) -> std::result::Result<(), TxError> {
        self.emit(packet)
    }

    fn write_read_response(&mut self, slot: u32, offset: u32) -> std::result::Result<(), Fault> {
        let buffer = &mut self.sq[slot as usize];
        if buffer.bad_lkey {
            return Err(Fault::Protection);
        }
        let at = offset as usize;
        buffer.bytes[at..at + self.payload.len()].copy_from_slice(&self.payload);
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: u32, value: u64) -> std::result::Result<(), Fault> {
        let buffer = &mut self.sq[slot as usize];
        if buffer.bad_lkey {
            return Err(Fault::Protection);
        }
        buffer.bytes = value.to_ne_bytes().to_vec();
        Ok(())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        let buffer = std::mem::take(&mut self.sq[slot as usize]);
        if !completion.report() {
            return;
        }
        let op = match completion.op {
            SendOp::Write | SendOp::WriteImm => "write",
            SendOp::Read => "read",
            SendOp::CompareSwap => "cmp-swap",
            SendOp::FetchAdd => "fetch-add",
            SendOp::Flush => "flush",
            SendOp::AtomicWrite => "atomic-write",
            _ => "send",
        };
        self.sent.push_back(Completion {
            id: buffer.id,
            status: status(completion.status),
            op: op.into(),
            len: completion.byte_len,
            imm: None,
            src_qpn: 0,
            data: buffer.bytes,
        });
    }

    fn local_op(&mut self, _slot: u32) -> std::result::Result<(), Fault> {
        Err(Fault::Malformed)
    }
}

impl ResponderEnv for Memory {
    fn fetch_recv(&mut self) -> Option<RecvRequest> {
        self.current = self.rq.pop_front();
        self.current.as_ref().map(|buffer| RecvRequest {
            length: buffer.bytes.len() as u32,
        })
    }

    fn write_recv(&mut self, offset: u32) -> std::result::Result<(), Fault> {
        let Some(buffer) = &mut self.current else {
            return Err(Fault::Malformed);
        };
        if buffer.bad_lkey {
            return Err(Fault::Protection);
        }
        let at = offset as usize;
        buffer.bytes[at..at + self.payload.len()].copy_from_slice(&self.payload);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> std::result::Result<(), Fault> {
        let right = match access {
            RemoteAccess::Read => 'r',
            RemoteAccess::Write => 'w',
            RemoteAccess::Atomic => 'a',
        };
        self.access(rkey, va, len as usize, right).map(|_| ())
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> std::result::Result<(), Fault> {
        let payload = std::mem::take(&mut self.payload);
        let place = self.access(rkey, va, payload.len(), 'w');
        let result = place.map(|bytes| bytes.copy_from_slice(&payload));
        self.payload = payload;
        result
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> std::result::Result<u64, Fault> {
        let place = self.access(rkey, va, 8, 'a')?;
        let mut word = [0; 8];
        word.copy_from_slice(place);
        let original = u64::from_ne_bytes(word);
        let value = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        place.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }

    fn invalidate(&mut self, rkey: u32) -> std::result::Result<(), Fault> {
        let at = (0..self.areas.len()).find(|n| key(*n) == rkey);
        let area = &mut self.areas[at.ok_or(Fault::Protection)?];
        if !area.registered {
            return Err(Fault::Protection);
        }
        area.registered = false;
        Ok(())
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> std::result::Result<(), Fault> {
        self.write_remote(rkey, va)
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> std::result::Result<(), Fault> {
        let at = (0..self.areas.len()).find(|n| key(*n) == rkey);
        let at = at.ok_or(Fault::Protection)?;
        // A FLUSH of the whole region is always within its bounds.
        let (va, len) = flush.range.unwrap_or((SPACING * (at as u64 + 1), 0));
        for (asked, right) in [(flush.global, 'f'), (flush.persistent, 'p')] {
            if asked {
                self.access(rkey, va, len as usize, right)?;
            }
        }
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let buffer = self.current.take().unwrap_or_default();
        let op = match completion.opcode {
            RecvOpcode::Recv => "recv",
            RecvOpcode::RecvRdmaWithImm => "recv-write-imm",
        };
        self.received.push_back(Completion {
            id: buffer.id,
            status: status(completion.status),
            op: op.into(),
            len: completion.byte_len,
            // Scripts use the host value of the immediate data in the packet.
            imm: completion
                .imm
                .map(|imm| u32::from_be_bytes(imm.to_ne_bytes())),
            src_qpn: completion.src_qp,
            data: buffer.bytes,
        });
    }

    fn event(&mut self, event: ResponderEvent) {
        match event {
            ResponderEvent::PkeyViolation => self.pkey_violations += 1,
            ResponderEvent::QkeyViolation => self.qkey_violations += 1,
            event => self.events.push_back(event),
        }
    }

    fn transmit(&mut self, packet: &TxPacket) -> std::result::Result<(), TxError> {
        self.emit(packet)
    }
}

/// The queue pair under test.
struct Qp {
    service: Service,
    state: State,
    requester: Requester,
    responder: Responder,
    slots: Vec<SendSlot>,
    drained: bool,
}

/// The core with a minimal driver around it.
#[derive(Default)]
pub struct Core {
    memory: Memory,
    qp: Option<Qp>,
    /// Names of the events that the driver has raised.
    events: VecDeque<String>,
    /// Queue pairs recover by plain go-back-N.
    strict: bool,
}

impl Core {
    /// Creates an end point whose queue pairs recover by plain go-back-N.
    pub fn strict() -> Self {
        Self {
            strict: true,
            ..Self::default()
        }
    }

    fn qp(&mut self) -> Result<(&mut Qp, &mut Memory)> {
        let qp = self.qp.as_mut().ok_or("no queue pair")?;
        Ok((qp, &mut self.memory))
    }

    /// Handles the outcome of an event as a driver does.
    fn note(&mut self, fatal: bool, sqe: bool) -> Result<()> {
        let (qp, memory) = self.qp()?;
        if fatal && qp.state != State::Error {
            enter_error(qp, memory);
        } else if sqe && qp.state == State::Rts {
            qp.state = State::Sqe;
        }
        self.take_events()
    }

    fn take_events(&mut self) -> Result<()> {
        let (qp, memory) = self.qp()?;
        let mut names = Vec::new();
        while let Some(event) = memory.events.pop_front() {
            match event {
                ResponderEvent::CommEstablished if qp.state == State::Rtr => names.push("comm-est"),
                ResponderEvent::AccessError => names.push("qp-access-err"),
                ResponderEvent::RequestError => names.push("qp-req-err"),
                ResponderEvent::Fatal => names.push("qp-fatal"),
                _ => {}
            }
        }
        if qp.state == State::Sqd && !qp.drained && qp.requester.is_drained(&qp.slots) {
            qp.drained = true;
            names.push("sq-drained");
        }
        self.events.extend(names.into_iter().map(String::from));
        Ok(())
    }

    /// Transmits until nothing is left to send.
    fn pump(&mut self) -> Result<()> {
        for _ in 0..100_000 {
            let (qp, memory) = self.qp()?;
            let now = memory.now;
            let sent: Progress = qp
                .requester
                .poll_transmit(&mut qp.slots, now, BUDGET, memory);
            let answered = qp.responder.poll_transmit(now, BUDGET, memory);
            self.note(sent.fatal || answered.fatal, sent.sqe)?;
            if !sent.more && !answered.more {
                return Ok(());
            }
        }
        Err("the core transmits without end".into())
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<()> {
        self.note(outcome.fatal, outcome.sqe)?;
        self.pump()
    }

    /// Applies a driver's checks to a datagram. Returns the parsed packet if it passes.
    fn accepted(&mut self, bytes: &[u8]) -> Option<Packet> {
        let seen = Seen {
            bytes: bytes.to_vec(),
            class: "rc",
        };
        if bytes.len() < 28 + 12 + 4 {
            return None;
        }
        let lengths = seen.get("ip-len") == Some(bytes.len() as u64)
            && seen.get("udp-len") == Some(bytes.len() as u64 - 20);
        let addressed = seen.get("udp-dst") == Some(ROCE_PORT)
            && seen.get("ip-src") == Some(u32::from(PEER).into())
            && seen.get("ip-dst") == Some(u32::from(OWN).into());
        if !lengths || !addressed {
            return None;
        }
        if !seen.icrc_is_right() {
            self.memory.icrc_errors += 1;
            return None;
        }
        let ib = &bytes[28..bytes.len() - 4];
        let packet = Packet::parse(ib, ib.len() as u32 + 4).ok()?;
        if packet.bth.dest_qpn != QPN {
            return None;
        }
        let start = usize::from(packet.header_len);
        self.memory.payload = ib[start..start + packet.payload_len as usize].to_vec();
        Some(packet)
    }
}

fn enter_error(qp: &mut Qp, memory: &mut Memory) {
    qp.state = State::Error;
    qp.requester.enter_error(&mut qp.slots, memory);
    qp.responder.enter_error(memory);
    while let Some(buffer) = memory.rq.pop_front() {
        memory.received.push_back(Completion {
            id: buffer.id,
            status: status(Status::WrFlush),
            op: "recv".into(),
            len: 0,
            imm: None,
            src_qpn: 0,
            data: buffer.bytes,
        });
    }
}

impl EndPoint for Core {
    fn addresses(&self) -> (Ipv4Addr, Ipv4Addr) {
        (PEER, OWN)
    }

    fn virtual_time(&self) -> bool {
        true
    }

    fn now(&mut self) -> Result<u64> {
        Ok(self.memory.now)
    }

    fn advance(&mut self, nanoseconds: u64) -> Result<()> {
        let end = self.memory.now + nanoseconds;
        for _ in 0..100_000 {
            let (qp, memory) = self.qp()?;
            let Some(at) = qp.requester.next_timeout().filter(|at| *at <= end) else {
                self.memory.now = end;
                return Ok(());
            };
            memory.now = memory.now.max(at);
            let now = memory.now;
            let outcome = qp.requester.handle_timeout(&mut qp.slots, now, memory);
            self.outcome(outcome)?;
        }
        Err("timers fire without end".into())
    }

    fn region(&mut self, bytes: &[u8], rights: &str) -> Result<Region> {
        let id = self.memory.areas.len();
        self.memory.areas.push(Area {
            bytes: bytes.to_vec(),
            rights: rights.into(),
            registered: true,
        });
        Ok(Region {
            id,
            va: SPACING * (id as u64 + 1),
            rkey: key(id),
        })
    }

    fn memory(&mut self, region: usize, len: usize) -> Result<Vec<u8>> {
        Ok(self.memory.areas[region].bytes[..len].to_vec())
    }

    fn set_memory(&mut self, region: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        self.memory.areas[region].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn deregister(&mut self, region: usize) -> Result<()> {
        self.memory.areas[region].registered = false;
        Ok(())
    }

    fn queue_pair(&mut self, spec: &QpSpec) -> Result<u32> {
        let service = match spec.service.as_str() {
            "rc" => Service::Rc,
            "uc" => Service::Uc,
            _ => Service::Ud,
        };
        self.memory = Memory {
            sq: vec![Buffer::default(); DEPTH],
            now: self.memory.now,
            ..Memory::default()
        };
        self.events.clear();
        let mut requester = Requester::new(service);
        requester.set_src_qpn(QPN);
        if self.strict {
            requester.set_recovery(RecoveryMode::Strict);
        }
        self.qp = Some(Qp {
            service,
            state: State::Reset,
            requester,
            responder: Responder::new(service),
            slots: vec![SendSlot::default(); DEPTH],
            drained: false,
        });
        Ok(QPN)
    }

    fn modify(&mut self, state: State, spec: &QpSpec) -> std::result::Result<(), Refused> {
        let mtu = Mtu::from_bytes(spec.mtu).ok_or(Refused::Errno(22))?;
        let (qp, memory) = self.qp().map_err(Refused::Broken)?;
        match (qp.state, state) {
            (_, State::Reset) => {
                qp.requester.reset();
                qp.responder.reset();
                qp.slots = vec![SendSlot::default(); DEPTH];
                memory.rq.clear();
                memory.current = None;
                memory.sent.clear();
                memory.received.clear();
            }
            (State::Reset, State::Init) => {
                qp.responder.set_access(
                    spec.access.contains('r'),
                    spec.access.contains('w'),
                    spec.access.contains('a'),
                );
                let flush = |right| spec.access.contains(right);
                qp.responder.set_flush_access(flush('f'), flush('p'));
                qp.responder.set_qkey(spec.qkey);
                qp.requester.set_qkey(spec.qkey);
            }
            (State::Init, State::Rtr) => {
                let mtu = match qp.service {
                    Service::Ud => Mtu::from_bytes(4096).unwrap_or(mtu),
                    _ => mtu,
                };
                qp.responder.set_dest_qpn(PEER_QPN);
                qp.requester.set_dest_qpn(PEER_QPN);
                qp.responder.set_mtu(mtu);
                qp.requester.set_mtu(mtu);
                qp.responder.set_psn(spec.rq_psn);
                qp.responder
                    .set_resources(vec![Resource::default(); usize::from(spec.dest_rd_atomic)]);
                qp.responder.set_min_rnr_timer(spec.rnr_timer);
                qp.responder.start();
            }
            (State::Rtr, State::Rts) => {
                qp.requester.set_psn(spec.sq_psn);
                qp.requester.set_timeout(spec.timeout);
                qp.requester.set_retry_count(spec.retry);
                qp.requester.set_rnr_retry(spec.rnr_retry);
                qp.requester.set_max_rd_atomic(spec.rd_atomic);
                qp.requester.start();
            }
            (State::Rts, State::Sqd) => {
                qp.drained = false;
                qp.requester.pause();
            }
            // Not allowed while the send queue drains (J-08).
            (State::Sqd, State::Rts) if !qp.requester.is_drained(&qp.slots) => {
                return Err(Refused::Errno(22));
            }
            (State::Sqd, State::Rts) => qp.requester.resume(),
            (State::Sqe, State::Rts) => qp.requester.start(),
            (State::Rts, State::Rts) | (State::Init, State::Init) => {}
            (_, State::Error) => enter_error(qp, memory),
            _ => return Err(Refused::Errno(22)),
        }
        qp.state = state;
        self.take_events().map_err(Refused::Broken)?;
        self.pump().map_err(Refused::Broken)
    }

    fn query(&mut self) -> Result<Query> {
        let (qp, _) = self.qp()?;
        Ok(Query {
            state: qp.state,
            sq_psn: qp.requester.next_psn(),
            rq_psn: qp.responder.expected_psn(),
        })
    }

    fn post_recv(
        &mut self,
        id: u64,
        len: usize,
        bad_lkey: bool,
    ) -> std::result::Result<(), Refused> {
        let (qp, memory) = self.qp().map_err(Refused::Broken)?;
        if qp.state == State::Reset {
            return Err(Refused::Errno(22));
        }
        memory.rq.push_back(Buffer {
            id,
            bytes: vec![0xee; len],
            bad_lkey,
        });
        if qp.state == State::Error {
            enter_error(qp, memory);
        }
        Ok(())
    }

    fn post_send(&mut self, post: &SendPost) -> std::result::Result<(), Refused> {
        let (qp, memory) = self.qp().map_err(Refused::Broken)?;
        if matches!(qp.state, State::Reset | State::Init | State::Rtr) {
            return Err(Refused::Errno(22));
        }
        let op = match post.op.as_str() {
            "send" => SendOp::Send,
            "send-imm" => SendOp::SendImm,
            "send-inv" => SendOp::SendInv,
            "write" => SendOp::Write,
            "write-imm" => SendOp::WriteImm,
            "read" => SendOp::Read,
            "cmp-swap" => SendOp::CompareSwap,
            "fetch-add" => SendOp::FetchAdd,
            "flush" => SendOp::Flush,
            "atomic-write" => SendOp::AtomicWrite,
            other => return Err(Refused::Broken(format!("no work request {other}"))),
        };
        let imm_or_key = match op {
            SendOp::SendInv | SendOp::Flush => post.imm,
            _ => u32::from_ne_bytes(post.imm.to_be_bytes()),
        };
        let request = SendRequest {
            op,
            fence: post.fence,
            signaled: post.signaled,
            solicited: post.solicited,
            length: post.data.len() as u32,
            remote_addr: post.va,
            rkey: post.rkey,
            imm_or_key,
            compare_add: post.compare,
            swap: post.swap,
            remote_qpn: post.qpn,
            qkey: post.qkey,
            pkey: 0xffff,
        };
        let slot = qp
            .requester
            .post(&mut qp.slots, request)
            .map_err(|_| Refused::Errno(22))?;
        memory.sq[slot as usize] = Buffer {
            id: post.id,
            bytes: post.data.clone(),
            bad_lkey: post.bad_lkey,
        };
        self.pump().map_err(Refused::Broken)
    }

    fn completion(&mut self, send: bool, _wait: Wait) -> Result<Option<Completion>> {
        Ok(if send {
            self.memory.sent.pop_front()
        } else {
            self.memory.received.pop_front()
        })
    }

    fn event(&mut self, _wait: Wait) -> Result<Option<String>> {
        Ok(self.events.pop_front())
    }

    fn counter(&mut self, name: &str) -> Result<u64> {
        match name {
            "icrc-errors" => Ok(self.memory.icrc_errors),
            "pkey-violations" => Ok(self.memory.pkey_violations),
            "qkey-violations" => Ok(self.memory.qkey_violations),
            _ => Err(format!("no counter {name}")),
        }
    }

    fn inject(&mut self, datagram: &[u8]) -> Result<()> {
        let Some(packet) = self.accepted(datagram) else {
            return Ok(());
        };
        let (qp, memory) = self.qp()?;
        let now = memory.now;
        let outcome = if packet.is_response() {
            qp.requester
                .handle_packet(&mut qp.slots, now, &packet, memory)
        } else {
            qp.responder.handle_packet(now, &packet, memory)
        };
        self.outcome(outcome)
    }

    fn packet(&mut self, _wait: Wait) -> Result<Option<(u64, Vec<u8>)>> {
        Ok(self.memory.out.pop_front())
    }
}
