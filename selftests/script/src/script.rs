// SPDX-License-Identifier: GPL-2.0

//! What a script says, once it is parsed: steps, and the packets, work requests and completions of them.

use crate::endpoint::{QpSpec, State};

/// A script, ready to run.
#[derive(Debug)]
pub struct Script {
    /// The file's name, as it is told in messages.
    pub file: String,
    /// What it is about: the comment at its head.
    pub about: String,
    /// The statements that it tests.
    pub ids: Vec<String>,
    /// Why it runs over the core only.
    pub core_only: Option<String>,
    /// Why it runs in guests only.
    pub guest_only: Option<String>,
    /// The driver is to recover by plain go-back-N.
    pub strict: bool,
    pub lines: Vec<Line>,
}

/// One step, and where it is written.
#[derive(Debug)]
pub struct Line {
    pub number: usize,
    /// As written, with variables replaced.
    pub text: String,
    pub step: Step,
}

/// What a line asks for.
#[derive(Clone, Debug)]
pub enum Step {
    Qp(QpSpec),
    Region {
        name: String,
        len: usize,
        rights: String,
    },
    Deregister(String),
    Modify {
        state: State,
        spec: QpChange,
        refused: bool,
    },
    PostRecv {
        len: usize,
        bad_lkey: bool,
        refused: bool,
    },
    PostSend(SendSpec),
    Inject(PacketSpec),
    Advance(u64),
    SetNumber {
        region: String,
        offset: usize,
        number: u64,
    },
    ExpectPacket(PacketSpec),
    /// A packet that may come or not.
    MaybePacket(PacketSpec),
    ExpectNothing,
    ExpectCompletion(CompletionSpec),
    ExpectNoCompletion,
    ExpectState(State),
    ExpectPsn {
        sq: Option<u32>,
        rq: Option<u32>,
    },
    ExpectMemory {
        region: String,
        offset: usize,
        data: Vec<u8>,
    },
    ExpectEvent(String),
    ExpectNoEvent,
    /// All packets so far came from one UDP port in the range for that.
    ExpectOnePort,
    ExpectCounter {
        name: String,
        value: u64,
    },
}

/// A number, or one that only the run knows: a region's address or key and something added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    pub region: Option<String>,
    pub number: u64,
}

/// The bytes of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Counting up from this byte.
    Count(u8),
    Bytes(Vec<u8>),
    /// What stands at this place of a region.
    Region(String, usize),
}

impl Data {
    /// `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        match self {
            Data::Count(first) => (0..len).map(|n| first.wrapping_add(n as u8)).collect(),
            Data::Bytes(bytes) => bytes.clone(),
            Data::Region(..) => Vec::new(),
        }
    }
}

/// A packet as it is written: to be sent, or to be expected.
#[derive(Clone, Debug, Default)]
pub struct PacketSpec {
    pub opcode: u8,
    pub fields: Vec<(String, Value)>,
    pub len: Option<usize>,
    pub data: Option<Data>,
    // Of packets to be sent.
    pub pad_byte: u8,
    pub pad_len: Option<usize>,
    pub cut: usize,
    pub no_icrc: bool,
    pub tail: usize,
    pub later: Vec<(String, Value)>,
    pub flip: Option<usize>,
    pub bad_icrc: bool,
    // Of packets to be expected.
    /// Earliest, in nanoseconds after what was last sent or expected.
    pub after: Option<u64>,
    /// Time may pass until it comes: at most this, in nanoseconds, where time is virtual.
    pub within: Option<u64>,
    /// Earlier acknowledgements may come before it.
    pub last: bool,
    /// The padding must be zero.
    pub zero_pad: bool,
}

/// A completion to be expected.
#[derive(Clone, Debug, Default)]
pub struct CompletionSpec {
    pub op: String,
    /// Any of these.
    pub statuses: Vec<String>,
    pub id: Option<u64>,
    pub len: Option<u32>,
    pub imm: Option<u32>,
    pub src_qpn: Option<u32>,
    pub data: Option<Data>,
    /// The buffer holds the IPv4 header of the last packet injected, where datagrams have it.
    pub ip_header: bool,
    /// As for packets.
    pub within: Option<u64>,
}

/// A send work request as it is written.
#[derive(Clone, Debug, Default)]
pub struct SendSpec {
    pub op: String,
    pub len: usize,
    pub data: Option<Data>,
    pub va: Value,
    pub key: Value,
    pub imm: u32,
    pub compare: u64,
    pub swap: u64,
    pub qpn: Option<u32>,
    pub qkey: Option<u32>,
    pub unsignaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub bad_lkey: bool,
    pub refused: bool,
}

/// Attributes that a `modify` changes.
pub type QpChange = Vec<(String, String)>;

/// The name of the region that every script has: 64 KiB, for every kind of access.
pub const REGION: &str = "mr";

/// Its size.
pub const REGION_LEN: usize = 65536;
