// SPDX-License-Identifier: GPL-2.0

//! Responses, also to duplicate requests.

use super::requests::Request;
use super::{number, Executed, Model, What, PSNS};

impl Model {
    /// Handles a duplicate request (IBA 9.7.4.3).
    pub(super) fn again(&mut self, request: &Request<'_>) {
        let mtu = self.mtu;
        match request.opcode {
            0x0c => {
                let va = number(&request.ext[..8]);
                let key = number(&request.ext[8..12]) as u32;
                let length = number(&request.ext[12..16]) as u32;
                // A duplicate READ starts at one of the original's packets and extends to its end.
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
                    executed.pending = Some((at, at));
                }
            }
            0x13 | 0x14 => {
                let again = request.asked();
                let same = |e: &&mut Executed| {
                    let same = matches!(&e.what, What::Atomic { asked, .. } if *asked == again);
                    same && e.psn == request.psn
                };
                if let Some(executed) = self.state.executed.iter_mut().find(same) {
                    executed.pending = Some((0, 0));
                }
            }
            0x1c | 0x1d => {
                let again = request.asked();
                let same = |e: &&mut Executed| {
                    let same = matches!(&e.what, What::Done(asked) if *asked == again);
                    same && e.psn == request.psn
                };
                if let Some(executed) = self.state.executed.iter_mut().find(same) {
                    executed.pending = Some((0, 0));
                }
            }
            0x15 | 0x18.. => {}
            _ => self.state.acknowledge |= request.ackreq,
        }
    }

    /// Returns the next packet to send: headers and payload.
    pub fn say(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.dead {
            return None;
        }
        while let Some(which) = self.state.executed.iter().position(|e| e.pending.is_some()) {
            match self.response(which) {
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

    /// Returns the next packet of a response, or `None` if the memory is inaccessible.
    fn response(&mut self, which: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let executed = self.state.executed[which].clone();
        let (start, at) = executed.pending?;
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
        executed.pending = (!last).then_some((start, at + 1));
        executed.responded |= last;
        Some((head, payload))
    }

    /// Handles a READ whose memory became inaccessible: an error of the request, unless it is a
    /// duplicate.
    fn gone(&mut self, which: usize) {
        let (_, at) = self.state.executed[which]
            .pending
            .take()
            .expect("it is pending");
        let executed = &mut self.state.executed[which];
        executed.what = What::Forgotten;
        if executed.responded {
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
}
