// SPDX-License-Identifier: GPL-2.0

//! Execution of requests in PSN order, and their refusal.

use super::receives::status;
use super::{number, Asked, Executed, Message, Model, What, PSNS};
use crate::script::Service;

/// A request, as received from the wire.
pub(super) struct Request<'a> {
    pub(super) opcode: u8,
    pub(super) solicited: bool,
    pub(super) ackreq: bool,
    pub(super) psn: u32,
    /// Bytes after the BTH.
    pub(super) ext: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl Request<'_> {
    /// Returns the arguments of an atomic, FLUSH or atomic write. A request with other arguments is
    /// not a duplicate.
    pub(super) fn asked(&self) -> Asked {
        let mut ext = self.ext.to_vec();
        match self.opcode {
            // FETCH ADD has no compare operand.
            0x14 => ext.truncate(20),
            // The other bits are reserved.
            0x1c => {
                ext[..3].fill(0);
                ext[3] &= 0x3f;
            }
            _ => {}
        }
        (self.opcode, ext)
    }
}

/// Reasons to refuse a request: NAK codes (IBA 9.7.5.2.4), RNR, and internal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    NotReady,
    /// No NAK: the requester will retransmit.
    Later,
    /// NAK Invalid Request, with this status of the receive work request.
    Invalid(u8),
    Access,
    /// Invalid key to invalidate: no NAK.
    Silently,
}

const INVALID: Refused = Refused::Invalid(status::INVALID);

impl Model {
    /// Handles a packet: BTH and extension headers, and the payload. Its padding and ICRC are
    /// correct.
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
            // A responder ignores responses.
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
                    Err(refused) => self.refuse(refused, request.opcode),
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

    /// Executes the expected request. Returns the number of PSNs that it takes.
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

    fn refuse(&mut self, refused: Refused, opcode: u8) {
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
            // The receive of a WRITE with immediate reports the refusal of the packet with the
            // immediate (11.6.2).
            Refused::Access if matches!(opcode, 0x09 | 0x0b) => {
                let _ = self.current();
                (0x62, status::LOCAL_ACCESS)
            }
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
        // All packets but the last are full; the last is empty only if it is the only one.
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
        let space = self.current().ok_or(Refused::NotReady)?.1.len() as u32;
        let length = received + request.payload.len() as u32;
        if length > space {
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
        // Only the last packet completes the announced length.
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

    fn read(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let va = number(&request.ext[..8]);
        let key = number(&request.ext[8..12]) as u32;
        let length = number(&request.ext[12..16]) as u32;
        let idle = self.state.message.is_none() && request.payload.is_empty();
        if !idle || !self.access[0] || length > 1 << 31 || !self.has_space() {
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
        if !idle || !self.access[2] || va % 8 != 0 || !self.has_space() {
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
        let asked = request.asked();
        self.remember(1, What::Atomic { asked, original })
    }

    /// Executes a FLUSH (A19), which only checks access here.
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
        if !self.has_space() {
            return Err(Refused::Later);
        }
        let start = i128::from(va) - i128::from(self.base);
        let inside = start >= 0 && start + i128::from(length) <= self.memory.len() as i128;
        if !self.open || key != self.key || !(whole || inside) {
            return Err(Refused::Access);
        }
        self.remember(1, What::Done(request.asked()))
    }

    fn atomic_write(&mut self, request: &Request<'_>) -> Result<u32, Refused> {
        let va = number(&request.ext[..8]);
        let key = number(&request.ext[8..12]) as u32;
        let length = number(&request.ext[12..16]) as u32;
        let right = length == 8 && request.payload.len() == 8 && va % 8 == 0;
        let allowed = self.access[1] && self.state.message.is_none();
        if !right || !allowed || !self.has_space() {
            return Err(INVALID);
        }
        let range = self.range(va, key, 8, 1).ok_or(Refused::Access)?;
        self.memory[range].copy_from_slice(request.payload);
        self.remember(1, What::Done(request.asked()))
    }

    fn has_space(&self) -> bool {
        let executed = &self.state.executed;
        self.resources != 0
            && (executed.len() < self.resources || executed.front().is_some_and(|e| e.responded))
    }

    fn remember(&mut self, packets: u32, what: What) -> Result<u32, Refused> {
        if self.state.executed.len() == self.resources {
            self.state.executed.pop_front();
        }
        self.state.executed.push_back(Executed {
            psn: self.expected,
            packets,
            what,
            pending: Some((0, 0)),
            responded: false,
        });
        self.end_message();
        // The response acknowledges all earlier requests.
        self.state.acknowledge = false;
        Ok(packets)
    }
}
