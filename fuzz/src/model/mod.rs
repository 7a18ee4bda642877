// SPDX-License-Identifier: GPL-2.0

//! A responder written for simplicity from the specification (IBA 9.7, 9.8 and A17), without speed
//! and without code of the core. It contains its memory and queues, and a list of its pending
//! responses.
//!
//! If the specification leaves a choice, the model chooses what the core does: one acknowledgement
//! for all packets that arrived before a poll, sent after the READ responses, the oldest of which
//! come first.

mod receives;
mod requests;
mod responses;

pub use receives::{status, Done};

use crate::script::Service;
use std::collections::VecDeque;

const PSNS: u32 = 1 << 24;

/// The responder. The user sets all public fields.
pub struct Model {
    /// The service.
    pub service: Service,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// The PSN expected next.
    pub expected: u32,
    /// Messages executed.
    pub messages: u32,
    /// Maximum number of outstanding READs and atomics.
    pub resources: usize,
    /// Whether the queue pair allows the peer READ, WRITE and atomic.
    pub access: [bool; 3],
    /// Whether the peer may flush for visibility, and for persistence.
    pub flush: [bool; 2],
    /// Code of the RNR NAK timer.
    pub rnr: u8,
    /// Start address of the memory region.
    pub base: u64,
    /// Key of the memory region.
    pub key: u32,
    /// Whether the key is valid.
    pub open: bool,
    /// Whether the region allows a peer READ, WRITE and atomic.
    pub rights: [bool; 3],
    /// Contents of the region.
    pub memory: Vec<u8>,
    /// Q_Key.
    pub qkey: u32,
    /// Destination queue pair of responses.
    pub peer: u32,
    /// Posted receive work requests: number and memory.
    pub receives: VecDeque<(u32, Vec<u8>)>,
    /// Completed receive work requests.
    pub done: Vec<Done>,
    /// The responder has failed and sends nothing.
    pub dead: bool,
    state: State,
}

/// Internal state.
#[derive(Default)]
struct State {
    current: Option<(u32, Vec<u8>)>,
    message: Option<Message>,
    executed: VecDeque<Executed>,
    acknowledge: bool,
    /// The NAK to send: PSN and syndrome.
    nak: Option<(u32, u8)>,
    /// A NAK was generated for the expected PSN.
    asked: bool,
    failing: bool,
}

/// The current message, of which more packets are expected.
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

/// A READ, atomic, FLUSH or atomic write that was executed.
#[derive(Clone, Debug)]
struct Executed {
    psn: u32,
    packets: u32,
    what: What,
    /// Packets still to send, up to the last one: the first of this response, and the next to send.
    pending: Option<(u32, u32)>,
    /// The last response packet was sent.
    responded: bool,
}

/// Arguments of a request, to recognise duplicates: the opcode, and the significant bytes of the
/// extension headers.
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
    /// Creates a responder with nothing posted; the user sets the other public fields.
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

    /// Enters the Error state if the responder has failed and has sent all pending responses.
    pub fn rest(&mut self) {
        let state = &self.state;
        let pending = state.executed.iter().any(|e| e.pending.is_some());
        if state.failing && !pending && state.nak.is_none() && !state.acknowledge {
            self.die();
        }
    }

    /// Completes the current work request with a flush error and enters the Error state.
    pub fn die(&mut self) {
        self.fail_current(status::FLUSHED);
        self.dead = true;
    }

    /// Returns the range in the region, if the peer has the right (0: READ, 1: WRITE, 2: atomic).
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
