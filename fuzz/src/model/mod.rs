// SPDX-License-Identifier: GPL-2.0

//! A responder as plain as can be, from the specification (IBA 9.7, 9.8 and A17): nothing of it is
//! fast, and nothing of it is the core's. It has its memory and queues inside, and a list of
//! everything that it has to say.
//!
//! Where the specification leaves a choice, it makes the core's: one acknowledgement for all that
//! came before a poll, READs answered before it, the oldest first.

mod answers;
mod receives;
mod requests;

pub use receives::{status, Done};

use crate::script::Service;
use std::collections::VecDeque;

const PSNS: u32 = 1 << 24;

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

/// What was asked for: the opcode, and the bytes of the extension headers that count.
type Asked = (u8, Vec<u8>);

#[derive(Clone, Debug)]
enum What {
    Read {
        va: u64,
        key: u32,
        length: u32,
    },
    Atomic {
        asked: Asked,
        original: u64,
    },
    /// A FLUSH or atomic write.
    Done(Asked),
    Forgotten,
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

    /// Where in the region, if the peer may (0: READ, 1: WRITE, 2: atomic).
    fn range(&self, va: u64, key: u32, len: u32, right: usize) -> Option<std::ops::Range<usize>> {
        let start = i128::from(va) - i128::from(self.base);
        let end = start + i128::from(len);
        let inside = start >= 0 && end <= self.memory.len() as i128;
        let allowed = self.open && key == self.key && self.rights[right];
        (inside && allowed).then_some(start as usize..end as usize)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| (n << 8) | u64::from(byte))
}
