// SPDX-License-Identifier: GPL-2.0

//! A responder as plain as can be, from the specification (IBA 9.7, 9.8 and A17): nothing of it is
//! fast, and nothing of it is the core's. It has its memory and queues inside, and a list of
//! everything that it has to say.
//!
//! Where the specification leaves a choice, it makes the core's: one acknowledgement for all that
//! came before a poll, READs answered before it, the oldest first.

use crate::script::Service;
use std::collections::VecDeque;

const PSNS: u32 = 1 << 24;

/// A receive work request that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which one.
    pub id: u32,
    /// `enum ibv_wc_status`.
    pub status: u8,
    /// Of success: 128 or 129.
    pub opcode: u8,
    /// Bytes.
    pub length: u32,
    /// Immediate data as the wire has it.
    pub imm: Option<[u8; 4]>,
    /// The key that is no more.
    pub invalidated: Option<u32>,
    /// The sender wanted a solicited event.
    pub solicited: bool,
    /// Of a datagram.
    pub source: u32,
    /// What is in its memory.
    pub data: Vec<u8>,
}

/// Statuses of [`Done`].
pub mod status {
    /// IBV_WC_SUCCESS
    pub const SUCCESS: u8 = 0;
    /// IBV_WC_LOC_LEN_ERR
    pub const LENGTH: u8 = 1;
    /// IBV_WC_WR_FLUSH_ERR
    pub const FLUSHED: u8 = 5;
    /// IBV_WC_REM_INV_REQ_ERR
    pub const INVALID: u8 = 9;
    /// IBV_WC_REM_ACCESS_ERR
    pub const ACCESS: u8 = 10;
}

/// NAK codes (IBA 9.7.5.2.4), and RNR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    NotReady,
    /// Not now: it is to come again.
    Later,
    /// NAK Invalid Request, with this status of the receive work request.
    Invalid(u8),
    Access,
    /// The key to invalidate: no NAK.
    Silently,
}

const INVALID: Refused = Refused::Invalid(status::INVALID);

/// The message that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Send {
        received: u32,
    },
    Write {
        va: u64,
        key: u32,
        announced: u32,
        received: u32,
    },
}

/// A READ or atomic that was executed.
#[derive(Clone, Debug)]
struct Executed {
    psn: u32,
    packets: u32,
    what: What,
    /// Packets that are still to be sent: from the first of this answer, from the next, to the end.
    owed: Option<(u32, u32)>,
    answered: bool,
}

#[derive(Clone, Debug)]
enum What {
    Read {
        va: u64,
        key: u32,
        length: u32,
    },
    Atomic {
        opcode: u8,
        original: u64,
    },
    /// A FLUSH or atomic write, with this opcode.
    Done(u8),
    Forgotten,
}

/// The responder. All fields are set by hand.
pub struct Model {
    /// The service.
    pub service: Service,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// The PSN expected next.
    pub expected: u32,
    /// Messages executed.
    pub messages: u32,
    /// READs and atomics at once.
    pub resources: usize,
    /// READ, WRITE, atomic: what the queue pair lets the peer do.
    pub access: [bool; 3],
    /// Whether the peer may flush for visibility, and for persistence.
    pub flush: [bool; 2],
    /// The RNR NAK timer's code.
    pub rnr: u8,
    /// Where the region starts.
    pub base: u64,
    /// Its key.
    pub key: u32,
    /// Whether the key opens it.
    pub open: bool,
    /// READ, WRITE, atomic: what the region lets a peer do.
    pub rights: [bool; 3],
    /// The region.
    pub memory: Vec<u8>,
    /// Q_Key.
    pub qkey: u32,
    /// Destination of answers.
    pub peer: u32,
    /// Posted: number and memory.
    pub receives: VecDeque<(u32, Vec<u8>)>,
    /// Completed.
    pub done: Vec<Done>,
    /// It has failed, and says nothing any more.
    pub dead: bool,
    state: State,
}

/// What is not set from outside.
#[derive(Default)]
struct State {
    current: Option<(u32, Vec<u8>)>,
    message: Option<Message>,
    executed: VecDeque<Executed>,
    acknowledge: bool,
    /// The NAK to be sent: PSN and syndrome.
    nak: Option<(u32, u8)>,
    /// A NAK was made for what is expected.
    asked: bool,
    failing: bool,
}

/// A request, as the wire has it.
struct Request<'a> {
    opcode: u8,
    solicited: bool,
    ackreq: bool,
    psn: u32,
    /// Behind the BTH.
    ext: &'a [u8],
    payload: &'a [u8],
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| (n << 8) | u64::from(byte))
}

impl Model {
    /// With nothing posted and nothing expected; everything but these is set by hand.
    pub fn new(service: Service, mtu: u32, memory: usize) -> Model {
        Model {
            service,
            mtu,
            expected: 0,
            messages: 0,
            resources: 0,
            access: [false; 3],
            flush: [false; 2],
            rnr: 0,
            base: 0,
            key: 0,
            open: true,
            rights: [true; 3],
            memory: vec![0; memory],
            qkey: 0,
            peer: 0,
            receives: VecDeque::new(),
            done: Vec::new(),
            dead: false,
            state: State::default(),
        }
    }

    /// Takes a packet: BTH and extension headers, and the payload. Its padding and ICRC are right.
    pub fn take(&mut self, head: &[u8], payload: &[u8]) {
        let request = Request {
            opcode: head[0] & 0x1f,
            solicited: head[1] & 0x80 != 0,
            ackreq: head[8] & 0x80 != 0,
            psn: number(&head[9..12]) as u32,
            ext: &head[12..],
            payload,
        };
        let known = match self.service {
            // Responses are not for a responder.
            Service::Rc | Service::Xrc => !(0x0d..=0x12).contains(&request.opcode),
            Service::Uc => request.opcode <= 0x0b,
            Service::Ud => matches!(request.opcode, 4 | 5),
        };
        let partition = number(&head[2..4]);
        let ours = head[0] & 0xe0 == self.service.class() && known && partition == 0xffff;
        if self.dead || self.state.failing || !ours {
            return;
        }
        match self.service {
            Service::Ud => self.datagram(&request),
            Service::Uc => self.unreliable(&request),
            Service::Rc | Service::Xrc => self.reliable(&request),
        }
    }

    fn datagram(&mut self, request: &Request<'_>) {
        let length = request.payload.len() as u32 + 40;
        if number(&request.ext[..4]) as u32 != self.qkey || length - 40 > self.mtu {
            return;
        }
        if self
            .current()
            .is_none_or(|(_, memory)| memory.len() < length as usize)
        {
            return;
        }
        self.fill(40, request.payload);
        let imm = (request.opcode == 5).then(|| [8, 9, 10, 11].map(|at| request.ext[at]));
        let source = number(&request.ext[5..8]) as u32;
        self.finish(
            status::SUCCESS,
            128,
            length,
            imm,
            None,
            request.solicited,
            source,
        );
    }

    fn unreliable(&mut self, request: &Request<'_>) {
        if matches!(request.opcode, 0x00 | 0x04 | 0x05 | 0x06 | 0x0a | 0x0b) {
            self.state.message = None;
        } else if request.psn != self.expected {
            self.state.message = None;
            return;
        }
        self.expected = (request.psn + 1) % PSNS;
        if self.send_or_write(request).is_err() {
            self.state.message = None;
        }
    }

    fn reliable(&mut self, request: &Request<'_>) {
        match (request.psn + PSNS - self.expected) % PSNS {
            0 => {
                self.state.nak = None;
                self.state.asked = false;
                match self.execute(request) {
                    Ok(packets) => self.expected = (self.expected + packets) % PSNS,
                    Err(refused) => self.refuse(refused),
                }
            }
            ahead if ahead < PSNS / 2 => {
                if !self.state.asked {
                    self.state.asked = true;
                    self.state.nak = Some((self.expected, 0x60));
                }
            }
            _ => self.again(request),
        }
    }

    /// Executes what is expected. How many PSNs it takes.
    fn execute(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        match request.opcode {
            0x0c => self.read(request),
            0x13 | 0x14 => self.atomic(request),
            0x1c => self.flush(request),
            0x1d => self.atomic_write(request),
            _ => {
                self.send_or_write(request)?;
                self.state.acknowledge |= request.ackreq;
                Ok(1)
            }
        }
    }

    fn refuse(&mut self, refused: Refused) {
        let (syndrome, status) = match refused {
            Refused::Later => return,
            Refused::NotReady => {
                self.state.asked = true;
                self.state.nak = Some((self.expected, 0x20 | self.rnr));
                return;
            }
            Refused::Silently => {
                self.fail_current(status::INVALID);
                self.state.message = None;
                self.state.failing = true;
                return;
            }
            Refused::Invalid(status) => (0x61, status),
            Refused::Access => (0x62, status::ACCESS),
        };
        self.fail_current(status);
        self.state.message = None;
        self.state.nak = Some((self.expected, syndrome));
        self.state.failing = true;
    }

    fn send_or_write(&mut self, request: &Request<'_>) -> Result<(), Refused> {
        let length = request.payload.len() as u32;
        let (first, last) = match request.opcode {
            0x00 | 0x06 => (true, false),
            0x01 | 0x07 => (false, false),
            0x02 | 0x03 | 0x08 | 0x09 | 0x16 => (false, true),
            0x04 | 0x05 | 0x0a | 0x0b | 0x17 => (true, true),
            _ => return Err(INVALID),
        };
        // Full packets but for the last, which is not empty unless it is the only one.
        let right = match (first, last) {
            (_, false) => length == self.mtu,
            (false, true) => length >= 1 && length <= self.mtu,
            (true, true) => length <= self.mtu,
        };
        if !right {
            return Err(INVALID);
        }
        if matches!(request.opcode, 0x06..=0x0b) {
            self.write(request, first, last)
        } else {
            self.send(request, first, last)
        }
    }

    fn send(&mut self, request: &Request<'_>, first: bool, last: bool) -> Result<(), Refused> {
        let received = match (first, self.state.message) {
            (true, None) => 0,
            (false, Some(Message::Send { received })) => received,
            _ => return Err(INVALID),
        };
        let room = self.current().ok_or(Refused::NotReady)?.1.len() as u32;
        let length = received + request.payload.len() as u32;
        if length > room {
            return Err(Refused::Invalid(status::LENGTH));
        }
        self.fill(received as usize, request.payload);
        self.state.message = Some(Message::Send { received: length });
        if !last {
            return Ok(());
        }
        let with_key = matches!(request.opcode, 0x16 | 0x17);
        let key = with_key.then(|| number(&request.ext[..4]) as u32);
        if let Some(key) = key {
            if key != self.key || !self.open {
                return Err(Refused::Silently);
            }
            self.open = false;
        }
        let imm =
            matches!(request.opcode, 0x03 | 0x05).then(|| [0, 1, 2, 3].map(|i| request.ext[i]));
        self.finish(status::SUCCESS, 128, length, imm, key, request.solicited, 0);
        self.end_message();
        Ok(())
    }

    fn write(&mut self, request: &Request<'_>, first: bool, last: bool) -> Result<(), Refused> {
        if !self.access[1] {
            return Err(INVALID);
        }
        let (start, key, announced, received) = match (first, self.state.message) {
            (true, None) => (
                number(&request.ext[..8]),
                number(&request.ext[8..12]) as u32,
                number(&request.ext[12..16]) as u32,
                0,
            ),
            (
                false,
                Some(Message::Write {
                    va,
                    key,
                    announced,
                    received,
                }),
            ) => (va, key, announced, received),
            _ => return Err(INVALID),
        };
        let now = received + request.payload.len() as u32;
        // All of it with the last packet, and something left before.
        let right = if last {
            now == announced
        } else {
            now < announced
        };
        if !right || announced > 1 << 31 {
            return Err(INVALID);
        }
        if first && announced != 0 {
            self.range(start, key, announced, 1)
                .ok_or(Refused::Access)?;
        }
        let with_imm = matches!(request.opcode, 0x09 | 0x0b);
        if with_imm && self.current().is_none() {
            return Err(Refused::NotReady);
        }
        if !request.payload.is_empty() {
            let va = start.wrapping_add(received.into());
            let range = self.range(va, key, request.payload.len() as u32, 1);
            let range = range.ok_or(Refused::Access)?;
            self.memory[range].copy_from_slice(request.payload);
        }
        self.state.message = Some(Message::Write {
            va: start,
            key,
            announced,
            received: now,
        });
        if last {
            if with_imm {
                let at = if first { 16 } else { 0 };
                let imm = [0, 1, 2, 3].map(|i| request.ext[at + i]);
                let solicited = request.solicited;
                self.finish(
                    status::SUCCESS,
                    129,
                    announced,
                    Some(imm),
                    None,
                    solicited,
                    0,
                );
            }
            self.end_message();
        }
        Ok(())
    }

    fn end_message(&mut self) {
        self.state.message = None;
        if self.service == Service::Rc {
            self.messages = (self.messages + 1) % PSNS;
        }
    }

    fn has_room(&self) -> bool {
        let executed = &self.state.executed;
        self.resources != 0
            && (executed.len() < self.resources || executed.front().is_some_and(|e| e.answered))
    }

    fn remember(&mut self, packets: u32, what: What) -> Result<u32, Refused> {
        if self.state.executed.len() == self.resources {
            self.state.executed.pop_front();
        }
        self.state.executed.push_back(Executed {
            psn: self.expected,
            packets,
            what,
            owed: Some((0, 0)),
            answered: false,
        });
        self.end_message();
        // Its answer acknowledges what was before.
        self.state.acknowledge = false;
        Ok(packets)
    }

    fn read(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let va = number(&request.ext[..8]);
        let key = number(&request.ext[8..12]) as u32;
        let length = number(&request.ext[12..16]) as u32;
        let idle = self.state.message.is_none() && request.payload.is_empty();
        if !idle || !self.access[0] || length > 1 << 31 || !self.has_room() {
            return Err(INVALID);
        }
        if length != 0 {
            self.range(va, key, length, 0).ok_or(Refused::Access)?;
        }
        let packets = length.div_ceil(self.mtu).max(1);
        self.remember(packets, What::Read { va, key, length })
    }

    fn atomic(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let va = number(&request.ext[..8]);
        let key = number(&request.ext[8..12]) as u32;
        let (swap_add, compare) = (number(&request.ext[12..20]), number(&request.ext[20..28]));
        let idle = self.state.message.is_none() && request.payload.is_empty();
        if !idle || !self.access[2] || va % 8 != 0 || !self.has_room() {
            return Err(INVALID);
        }
        let word = self.range(va, key, 8, 2).ok_or(Refused::Access)?;
        let word = &mut self.memory[word];
        let original = u64::from_ne_bytes((*word).try_into().expect("eight bytes"));
        let new = match request.opcode {
            0x13 if original == compare => swap_add,
            0x13 => original,
            _ => original.wrapping_add(swap_add),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        let opcode = request.opcode;
        self.remember(1, What::Atomic { opcode, original })
    }

    /// FLUSH (A19): nothing is to be done here but to look whether it may.
    fn flush(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let bits = request.ext[3];
        let (global, persistent) = (bits & 1 != 0, bits & 2 != 0);
        let va = number(&request.ext[4..12]);
        let key = number(&request.ext[12..16]) as u32;
        let length = number(&request.ext[16..20]) as u32;
        let whole = match (bits >> 4) & 3 {
            0 if length < 1 << 31 => false,
            1 => true,
            _ => return Err(INVALID),
        };
        let idle = self.state.message.is_none() && request.payload.is_empty();
        let allowed = (!global || self.flush[0]) && (!persistent || self.flush[1]);
        if !idle || !allowed || !(global || persistent) || self.resources == 0 {
            return Err(INVALID);
        }
        if !self.has_room() {
            return Err(Refused::Later);
        }
        let start = i128::from(va) - i128::from(self.base);
        let inside = start >= 0 && start + i128::from(length) <= self.memory.len() as i128;
        if !self.open || key != self.key || !(whole || inside) {
            return Err(Refused::Access);
        }
        self.remember(1, What::Done(request.opcode))
    }

    fn atomic_write(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let va = number(&request.ext[..8]);
        let key = number(&request.ext[8..12]) as u32;
        let length = number(&request.ext[12..16]) as u32;
        let right = length == 8 && request.payload.len() == 8 && va % 8 == 0;
        let allowed = self.access[1] && self.state.message.is_none();
        if !right || !allowed || !self.has_room() {
            return Err(INVALID);
        }
        let range = self.range(va, key, 8, 1).ok_or(Refused::Access)?;
        self.memory[range].copy_from_slice(request.payload);
        self.remember(1, What::Done(request.opcode))
    }

    /// What was executed before (IBA 9.7.4.3).
    fn again(&mut self, request: &Request<'_>) {
        let mtu = self.mtu;
        match request.opcode {
            0x0c => {
                let va = number(&request.ext[..8]);
                let key = number(&request.ext[8..12]) as u32;
                let length = number(&request.ext[12..16]) as u32;
                // From the start of one of its packets to its end.
                let same = |e: &&mut Executed| {
                    let at = (request.psn + PSNS - e.psn) % PSNS;
                    let What::Read {
                        va: old,
                        key: old_key,
                        length: old_length,
                    } = e.what
                    else {
                        return false;
                    };
                    at < e.packets
                        && key == old_key
                        && va == old.wrapping_add(u64::from(at * mtu))
                        && length == old_length - at * mtu
                };
                if let Some(executed) = self.state.executed.iter_mut().find(same) {
                    let at = (request.psn + PSNS - executed.psn) % PSNS;
                    executed.owed = Some((at, at));
                }
            }
            0x13 | 0x14 => {
                let same = |e: &&mut Executed| {
                    let same =
                        matches!(e.what, What::Atomic { opcode, .. } if opcode == request.opcode);
                    same && e.psn == request.psn
                };
                if let Some(executed) = self.state.executed.iter_mut().find(same) {
                    executed.owed = Some((0, 0));
                }
            }
            0x1c | 0x1d => {
                let same = |e: &&mut Executed| {
                    let same = matches!(e.what, What::Done(opcode) if opcode == request.opcode);
                    same && e.psn == request.psn
                };
                if let Some(executed) = self.state.executed.iter_mut().find(same) {
                    executed.owed = Some((0, 0));
                }
            }
            0x15 | 0x18.. => {}
            _ => self.state.acknowledge |= request.ackreq,
        }
    }

    /// What it has to say now, a packet at a time: headers and payload.
    pub fn say(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.dead {
            return None;
        }
        while let Some(which) = self.state.executed.iter().position(|e| e.owed.is_some()) {
            match self.answer(which) {
                Some(said) => return Some(said),
                None => self.gone(which),
            }
        }
        let (psn, syndrome) = match self.state.nak.take() {
            Some(nak) => nak,
            None if self.state.acknowledge => ((self.expected + PSNS - 1) % PSNS, 0x1f),
            None => return None,
        };
        self.state.acknowledge = false;
        let mut head = self.header(0x11, 0, psn);
        self.acknowledgement(&mut head, syndrome);
        Some((head, Vec::new()))
    }

    /// Where it has failed, and has nothing more to say, that was it.
    pub fn rest(&mut self) {
        let state = &self.state;
        let owes = state.executed.iter().any(|e| e.owed.is_some());
        if state.failing && !owes && state.nak.is_none() && !state.acknowledge {
            self.die();
        }
    }

    /// Completes what is under way, and is no more.
    pub fn die(&mut self) {
        self.fail_current(status::FLUSHED);
        self.dead = true;
    }

    /// The next packet of an answer; `None` if the memory is gone.
    fn answer(&mut self, which: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let executed = self.state.executed[which].clone();
        let (start, at) = executed.owed?;
        let psn = (executed.psn + at) % PSNS;
        let (first, last) = (at == start, at + 1 == executed.packets);
        let (head, payload) = match executed.what {
            What::Forgotten => return None,
            What::Done(_) => {
                let mut head = self.header(0x10, 0, psn);
                self.acknowledgement(&mut head, 0x1f);
                (head, Vec::new())
            }
            What::Atomic { original, .. } => {
                let mut head = self.header(0x12, 0, psn);
                self.acknowledgement(&mut head, 0x1f);
                head.extend(original.to_be_bytes());
                (head, Vec::new())
            }
            What::Read { va, key, length } => {
                let offset = at * self.mtu;
                let n = (length - offset).min(self.mtu);
                let payload = match n {
                    0 => Vec::new(),
                    n => {
                        let va = va.wrapping_add(offset.into());
                        self.memory[self.range(va, key, n, 0)?].to_vec()
                    }
                };
                let opcode = match (first, last) {
                    (true, false) => 0x0d,
                    (false, false) => 0x0e,
                    (false, true) => 0x0f,
                    (true, true) => 0x10,
                };
                let mut head = self.header(opcode, payload.len(), psn);
                if opcode != 0x0e {
                    self.acknowledgement(&mut head, 0x1f);
                }
                (head, payload)
            }
        };
        let executed = &mut self.state.executed[which];
        executed.owed = (!last).then_some((start, at + 1));
        executed.answered |= last;
        Some((head, payload))
    }

    /// A READ's memory was taken away: an error of the request, unless it came again.
    fn gone(&mut self, which: usize) {
        let (_, at) = self.state.executed[which].owed.take().expect("it is owed");
        let executed = &mut self.state.executed[which];
        executed.what = What::Forgotten;
        if executed.answered {
            return;
        }
        let psn = (executed.psn + at) % PSNS;
        self.state.executed.clear();
        self.state.acknowledge = false;
        self.state.nak = Some((psn, 0x62));
        self.state.failing = true;
    }

    fn header(&self, opcode: u8, payload: usize, psn: u32) -> Vec<u8> {
        let pad = (4 - payload % 4) % 4;
        let mut head = vec![opcode, 0x40 | ((pad as u8) << 4), 0xff, 0xff];
        head.extend(self.peer.to_be_bytes());
        head.extend(psn.to_be_bytes());
        head
    }

    fn acknowledgement(&self, head: &mut Vec<u8>, syndrome: u8) {
        head.push(syndrome);
        head.extend(&self.messages.to_be_bytes()[1..]);
    }

    /// Where in the region, if the peer may (0: READ, 1: WRITE, 2: atomic).
    fn range(&self, va: u64, key: u32, len: u32, right: usize) -> Option<std::ops::Range<usize>> {
        let start = i128::from(va) - i128::from(self.base);
        let end = start + i128::from(len);
        let inside = start >= 0 && end <= self.memory.len() as i128;
        let allowed = self.open && key == self.key && self.rights[right];
        (inside && allowed).then_some(start as usize..end as usize)
    }

    fn current(&mut self) -> Option<&mut (u32, Vec<u8>)> {
        if self.state.current.is_none() {
            self.state.current = self.receives.pop_front();
        }
        self.state.current.as_mut()
    }

    fn fill(&mut self, at: usize, payload: &[u8]) {
        let (_, memory) = self.current().expect("checked before");
        memory[at..at + payload.len()].copy_from_slice(payload);
    }

    fn fail_current(&mut self, status: u8) {
        if self.state.current.is_some() {
            self.finish(status, 128, 0, None, None, false, 0);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a completion has so many fields")]
    fn finish(
        &mut self,
        status: u8,
        opcode: u8,
        length: u32,
        imm: Option<[u8; 4]>,
        invalidated: Option<u32>,
        solicited: bool,
        source: u32,
    ) {
        let (id, data) = self.state.current.take().expect("a receive is current");
        self.done.push(Done {
            id,
            status,
            opcode,
            length,
            imm,
            invalidated,
            solicited,
            source,
            data,
        });
    }
}
