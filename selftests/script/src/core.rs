// SPDX-License-Identifier: GPL-2.0

//! The transport core as an end point, with a virtual clock.
//!
//! Most of the checks of a driver before the core sees a packet (IP and UDP lengths, ICRC,
//! addresses, queue pair numbers) are implemented here in the simplest way; scripts that test those
//! run in guests.

use crate::endpoint::{
    Completion, EndPoint, QpSpec, Query, Refused, Region, Result, SendPost, State, Wait, PEER_QPN,
};
use crate::packet::{Seen, ROCE_PORT};
use rrxe_core::wire::{Feth, ImmDt};
use rrxe_core::{
    AtomicOp, Destination, Fault, Mtu, Packet, RecoveryMode, RecvCompletion, RecvOpcode, Resource,
    ResponderEvent, SendCompletion, SendOp, SendSlot, Service, Status, Time,
};
use rrxe_testkit::{Buffer, Done, Frame, Host, Op, Operands, Request};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// The end point's queue pair number.
const QPN: u32 = 0x11;
/// Distance between the start addresses of two regions.
const SPACING: u64 = 1 << 32;
/// Depth of the send queue.
const DEPTH: usize = 64;
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

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

/// Returns a completed send work request in the words of scripts.
fn sent(done: Done<SendCompletion>) -> Completion {
    let op = match done.op.expect("it was posted") {
        SendOp::Write { .. } => "write",
        SendOp::Read { .. } => "read",
        SendOp::Atomic { op, .. } => match op {
            AtomicOp::CompareSwap { .. } => "cmp-swap",
            AtomicOp::FetchAdd { .. } => "fetch-add",
        },
        SendOp::Flush { .. } => "flush",
        SendOp::AtomicWrite { .. } => "atomic-write",
        _ => "send",
    };
    Completion {
        id: done.wr_id,
        status: status(done.completion.status),
        op: op.into(),
        len: done.completion.byte_len,
        imm: None,
        src_qpn: 0,
        data: done.data,
    }
}

/// Returns a completed receive work request in the words of scripts.
fn received(done: Done<RecvCompletion>) -> Completion {
    let op = match done.completion.opcode {
        RecvOpcode::Recv => "recv",
        RecvOpcode::RecvRdmaWithImm => "recv-write-imm",
    };
    // Scripts use the host value of the immediate data in the packet.
    let imm = done.completion.imm;
    Completion {
        id: done.wr_id,
        status: status(done.completion.status),
        op: op.into(),
        len: done.completion.byte_len,
        imm: imm.map(|imm| u32::from_be_bytes(imm.to_ne_bytes())),
        src_qpn: done.completion.src_qp,
        data: done.data,
    }
}

/// Returns a packet of the end point as an IP datagram.
fn datagram(frame: &Frame) -> Vec<u8> {
    let length = frame.total_len() as u16 + 8;
    let mut bytes = vec![0x45, 0];
    bytes.extend((length + 20).to_be_bytes());
    bytes.extend([0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(OWN.octets());
    bytes.extend(PEER.octets());
    bytes.extend(0xc000u16.to_be_bytes());
    bytes.extend((ROCE_PORT as u16).to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(frame.bytes(&bytes[..20], &bytes[20..]));
    bytes
}

/// The queue pair under test.
struct Qp {
    service: Service,
    state: State,
    host: Host,
    drained: bool,
}

/// The core with a minimal driver around it.
#[derive(Default)]
pub struct Core {
    qp: Option<Qp>,
    now: u64,
    /// Datagrams and the times at which they left.
    out: VecDeque<(u64, Vec<u8>)>,
    pkey_violations: u64,
    qkey_violations: u64,
    icrc_errors: u64,
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

    fn qp(&mut self) -> Result<&mut Qp> {
        self.qp.as_mut().ok_or_else(|| "no queue pair".into())
    }

    /// Follows the host into another state, and takes its events.
    fn note(&mut self) -> Result<()> {
        let qp = self.qp.as_mut().ok_or("no queue pair")?;
        let sqe = std::mem::take(&mut qp.host.sqe);
        if qp.host.error && qp.state != State::Error {
            qp.enter_error();
        } else if sqe && qp.state == State::Rts {
            qp.state = State::Sqe;
        }
        let mut names = Vec::new();
        for event in std::mem::take(&mut qp.host.driver.events) {
            match event {
                ResponderEvent::CommEstablished if qp.state == State::Rtr => names.push("comm-est"),
                ResponderEvent::CommEstablished => {}
                ResponderEvent::AccessError => names.push("qp-access-err"),
                ResponderEvent::RequestError => names.push("qp-req-err"),
                ResponderEvent::Fatal => names.push("qp-fatal"),
                ResponderEvent::PkeyViolation => self.pkey_violations += 1,
                ResponderEvent::QkeyViolation => self.qkey_violations += 1,
            }
        }
        let drained = qp.host.requester.is_drained(&qp.host.slots);
        if qp.state == State::Sqd && !qp.drained && drained {
            qp.drained = true;
            names.push("sq-drained");
        }
        self.events.extend(names.into_iter().map(String::from));
        Ok(())
    }

    /// Transmits until nothing is left to send.
    fn pump(&mut self) -> Result<()> {
        self.note()?;
        for _ in 0..100_000 {
            let now = self.now;
            let host = &mut self.qp()?.host;
            let more = host.transmit(now);
            let frames = std::mem::take(&mut host.driver.out);
            self.out
                .extend(frames.iter().map(|frame| (now, datagram(frame))));
            self.note()?;
            if !more {
                return Ok(());
            }
        }
        Err("the core transmits without end".into())
    }

    /// Applies a driver's checks to a datagram. Returns packet and payload if it passes.
    fn accepted(&mut self, bytes: &[u8]) -> Option<(Packet, Vec<u8>)> {
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
            self.icrc_errors += 1;
            return None;
        }
        let ib = &bytes[28..bytes.len() - 4];
        let packet = Packet::parse(ib, ib.len() as u32 + 4).ok()?;
        if packet.bth.dest_qpn != QPN {
            return None;
        }
        let start = usize::from(packet.header_len);
        let payload = ib[start..start + packet.payload_len as usize].to_vec();
        Some((packet, payload))
    }
}

impl Qp {
    /// Enters Error, and flushes both queues.
    fn enter_error(&mut self) {
        self.state = State::Error;
        self.host.go_to_error();
        let flushed = RecvCompletion::new(Status::WrFlush);
        let driver = &mut self.host.driver;
        driver
            .received
            .extend(driver.rq.drain(..).map(|buffer| Done {
                wr_id: buffer.wr_id,
                op: None,
                completion: flushed,
                data: buffer.data,
            }));
    }
}

/// Returns the memory of a work request.
fn buffer(id: u64, data: Vec<u8>, bad_lkey: bool) -> Buffer {
    Buffer {
        wr_id: id,
        data,
        fault: bad_lkey.then_some(Fault::Protection),
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
        Ok(self.now)
    }

    fn advance(&mut self, nanoseconds: u64) -> Result<()> {
        let end = self.now + nanoseconds;
        for _ in 0..100_000 {
            let timer = self.qp()?.host.requester.next_timeout().map(Time::ns);
            let Some(at) = timer.filter(|at| *at <= end) else {
                self.now = end;
                return Ok(());
            };
            self.now = self.now.max(at);
            let now = self.now;
            let _ = self.qp()?.host.timeout(now);
            self.pump()?;
        }
        Err("timers fire without end".into())
    }

    fn region(&mut self, bytes: &[u8], rights: &str) -> Result<Region> {
        let regions = &mut self.qp()?.host.driver.regions;
        let id = regions.len();
        let (va, rkey) = (SPACING * (id as u64 + 1), key(id));
        regions.push(rrxe_testkit::Region {
            key: rkey,
            va,
            bytes: bytes.to_vec(),
            rights: rights.into(),
            valid: true,
        });
        Ok(Region { id, va, rkey })
    }

    fn memory(&mut self, region: usize, len: usize) -> Result<Vec<u8>> {
        Ok(self.qp()?.host.driver.regions[region].bytes[..len].to_vec())
    }

    fn set_memory(&mut self, region: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        let region = &mut self.qp()?.host.driver.regions[region];
        region.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn deregister(&mut self, region: usize) -> Result<()> {
        self.qp()?.host.driver.regions[region].valid = false;
        Ok(())
    }

    fn queue_pair(&mut self, spec: &QpSpec) -> Result<u32> {
        let service = match spec.service.as_str() {
            "rc" => Service::Rc,
            "uc" => Service::Uc,
            _ => Service::Ud,
        };
        let mut host = Host::reset(service, DEPTH);
        host.requester.src_qpn = QPN;
        if self.strict {
            host.requester.set_recovery(RecoveryMode::Strict);
        }
        *self = Core {
            qp: Some(Qp {
                service,
                state: State::Reset,
                host,
                drained: false,
            }),
            now: self.now,
            strict: self.strict,
            ..Core::default()
        };
        Ok(QPN)
    }

    fn modify(&mut self, state: State, spec: &QpSpec) -> std::result::Result<(), Refused> {
        let mtu = Mtu::from_bytes(spec.mtu).ok_or(Refused::Errno(22))?;
        let qp = self.qp().map_err(Refused::Broken)?;
        match (qp.state, state) {
            (_, State::Reset) => {
                qp.host.requester.reset();
                qp.host.responder.reset();
                qp.host.slots = vec![SendSlot::default(); DEPTH];
                (qp.host.error, qp.host.sqe) = (false, false);
                let driver = &mut qp.host.driver;
                driver.rq.clear();
                driver.current = None;
                driver.sent.clear();
                driver.received.clear();
            }
            (State::Reset, State::Init) => {
                qp.host.responder.set_access(
                    spec.access.contains('r'),
                    spec.access.contains('w'),
                    spec.access.contains('a'),
                );
                let flush = |right| spec.access.contains(right);
                qp.host.responder.set_flush_access(flush('f'), flush('p'));
                qp.host.responder.qkey = spec.qkey;
                qp.host.requester.qkey = spec.qkey;
            }
            (State::Init, State::Rtr) => {
                let mtu = match qp.service {
                    Service::Ud => Mtu::from_bytes(4096).unwrap_or(mtu),
                    _ => mtu,
                };
                qp.host.responder.dest_qpn = PEER_QPN;
                qp.host.requester.dest_qpn = PEER_QPN;
                qp.host.responder.mtu = mtu;
                qp.host.requester.mtu = mtu;
                qp.host.responder.set_psn(spec.rq_psn);
                qp.host
                    .responder
                    .set_resources(vec![Resource::default(); usize::from(spec.dest_rd_atomic)]);
                qp.host.responder.min_rnr_timer = spec.rnr_timer;
                qp.host.responder.start();
            }
            (State::Rtr, State::Rts) => {
                qp.host.requester.set_psn(spec.sq_psn);
                qp.host.requester.set_timeout(spec.timeout);
                qp.host.requester.set_retry_count(spec.retry);
                qp.host.requester.set_rnr_retry(spec.rnr_retry);
                qp.host.requester.max_rd_atomic = spec.rd_atomic;
                qp.host.requester.start();
            }
            (State::Rts, State::Sqd) => {
                qp.drained = false;
                qp.host.requester.pause();
            }
            // Not allowed while the send queue drains (J-08).
            (State::Sqd, State::Rts) if !qp.host.requester.is_drained(&qp.host.slots) => {
                return Err(Refused::Errno(22));
            }
            (State::Sqd, State::Rts) => qp.host.requester.start(),
            (State::Sqe, State::Rts) => qp.host.requester.start(),
            (State::Rts, State::Rts) | (State::Init, State::Init) => {}
            (_, State::Error) => qp.enter_error(),
            _ => return Err(Refused::Errno(22)),
        }
        qp.state = state;
        self.pump().map_err(Refused::Broken)
    }

    fn query(&mut self) -> Result<Query> {
        let qp = self.qp()?;
        Ok(Query {
            state: qp.state,
            sq_psn: qp.host.requester.next_psn(),
            rq_psn: qp.host.responder.expected_psn(),
        })
    }

    fn post_recv(
        &mut self,
        id: u64,
        len: usize,
        bad_lkey: bool,
    ) -> std::result::Result<(), Refused> {
        let qp = self.qp().map_err(Refused::Broken)?;
        if qp.state == State::Reset {
            return Err(Refused::Errno(22));
        }
        let data = vec![0xee; len];
        qp.host.driver.rq.push_back(buffer(id, data, bad_lkey));
        if qp.state == State::Error {
            qp.enter_error();
        }
        Ok(())
    }

    fn post_send(&mut self, post: &SendPost) -> std::result::Result<(), Refused> {
        let qp = self.qp().map_err(Refused::Broken)?;
        if matches!(qp.state, State::Reset | State::Init | State::Rtr) {
            return Err(Refused::Errno(22));
        }
        let op = match post.op.as_str() {
            "send" => Op::Send,
            "send-imm" => Op::SendImm,
            "send-inv" => Op::SendInv,
            "write" => Op::Write,
            "write-imm" => Op::WriteImm,
            "read" => Op::Read,
            "cmp-swap" => Op::CompareSwap,
            "fetch-add" => Op::FetchAdd,
            "flush" => Op::Flush,
            "atomic-write" => Op::AtomicWrite,
            other => return Err(Refused::Broken(format!("no work request {other}"))),
        };
        let to = Destination {
            ah: 0,
            qpn: post.qpn,
            qkey: post.qkey,
        };
        let request = Request {
            op,
            fence: post.fence,
            signaled: post.signaled,
            solicited: post.solicited,
            length: post.data.len() as u32,
            va: post.va,
            rkey: post.rkey,
            imm: ImmDt(post.imm.to_be_bytes()),
            key: post.imm,
            feth: Feth::from_bytes(&post.imm.to_be_bytes()),
            atomic: Operands {
                compare_add: post.compare,
                swap: post.swap,
            },
            to: (qp.service == Service::Ud).then_some(to),
            srqn: post.qpn,
        };
        let request = SendSlot::from(request);
        // As the provider does (H-08).
        if !qp.host.requester.supports(&request.op) {
            return Err(Refused::Errno(22));
        }
        let buffer = buffer(post.id, post.data.clone(), post.bad_lkey);
        qp.host
            .post_buffer(request, buffer)
            .ok_or(Refused::Errno(22))?;
        self.pump().map_err(Refused::Broken)
    }

    fn completion(&mut self, send: bool, _wait: Wait) -> Result<Option<Completion>> {
        let driver = &mut self.qp()?.host.driver;
        if !send {
            return Ok(driver.received.pop_front().map(received));
        }
        while let Some(done) = driver.sent.pop_front() {
            if done.completion.report() {
                return Ok(Some(sent(done)));
            }
        }
        Ok(None)
    }

    fn event(&mut self, _wait: Wait) -> Result<Option<String>> {
        Ok(self.events.pop_front())
    }

    fn counter(&mut self, name: &str) -> Result<u64> {
        match name {
            "icrc-errors" => Ok(self.icrc_errors),
            "pkey-violations" => Ok(self.pkey_violations),
            "qkey-violations" => Ok(self.qkey_violations),
            _ => Err(format!("no counter {name}")),
        }
    }

    fn inject(&mut self, datagram: &[u8]) -> Result<()> {
        let Some((packet, payload)) = self.accepted(datagram) else {
            return Ok(());
        };
        let now = self.now;
        let _ = self.qp()?.host.take(now, &packet, &payload);
        self.pump()
    }

    fn packet(&mut self, _wait: Wait) -> Result<Option<(u64, Vec<u8>)>> {
        Ok(self.out.pop_front())
    }
}
