// SPDX-License-Identifier: GPL-2.0

//! The parsed form of a script: its steps with their packets, work requests and completions.

use crate::endpoint::{QpSpec, State};

/// A parsed script.
#[derive(Debug)]
pub struct Script {
    /// The file name, for messages.
    pub file: String,
    /// The comment at the head of the script.
    pub about: String,
    /// The ids of the statements that it tests.
    pub ids: Vec<String>,
    /// The reason why it runs against the core only.
    pub core_only: Option<String>,
    /// The reason why it runs in guests only.
    pub guest_only: Option<String>,
    /// The requester recovers by plain go-back-N.
    pub strict: bool,
    pub lines: Vec<Line>,
}

/// One step with its source line.
#[derive(Debug)]
pub struct Line {
    pub number: usize,
    /// The source text with variables replaced.
    pub text: String,
    pub step: Step,
}

/// A step of a script.
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
    /// Equal packets, of which any number may arrive, or none.
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
    /// All packets so far used one UDP source port in the valid range.
    ExpectOnePort,
    ExpectCounter {
        name: String,
        value: u64,
    },
}

/// A number, or an offset to a region's address or key, which is known only at run time.
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
    /// The content of a region from this offset on.
    Region(String, usize),
}

impl Data {
    /// Returns `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        match self {
            Data::Count(first) => (0..len).map(|n| first.wrapping_add(n as u8)).collect(),
            Data::Bytes(bytes) => bytes.clone(),
            Data::Region(..) => Vec::new(),
        }
    }
}

/// A packet to inject, or an expected packet.
#[derive(Clone, Debug, Default)]
pub struct PacketSpec {
    pub opcode: u8,
    pub fields: Vec<(String, Value)>,
    pub len: Option<usize>,
    pub data: Option<Data>,
    // Fields for packets to inject.
    pub pad_byte: u8,
    pub pad_len: Option<usize>,
    pub cut: usize,
    pub no_icrc: bool,
    pub tail: usize,
    pub later: Vec<(String, Value)>,
    pub flip: Option<usize>,
    pub bad_icrc: bool,
    // Fields for expected packets.
    /// Minimum time in nanoseconds after the last action or expected packet.
    pub after: Option<u64>,
    /// Maximum time until it arrives, in nanoseconds; used only with virtual time.
    pub within: Option<u64>,
    /// Earlier ACKs may precede it.
    pub last: bool,
    /// The padding must be zero.
    pub zero_pad: bool,
}

/// An expected completion.
#[derive(Clone, Debug, Default)]
pub struct CompletionSpec {
    pub op: String,
    /// Accepted statuses.
    pub statuses: Vec<String>,
    pub id: Option<u64>,
    pub len: Option<u32>,
    pub imm: Option<u32>,
    pub src_qpn: Option<u32>,
    pub data: Option<Data>,
    /// For UD, the buffer must start with the IPv4 header of the last injected packet.
    pub ip_header: bool,
    /// Maximum time until it arrives, in nanoseconds; used only with virtual time.
    pub within: Option<u64>,
}

/// A send work request to post.
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

/// Attributes changed by `modify`, by name.
pub type QpChange = Vec<(String, String)>;

/// The name of the default region: 64 KiB with all access rights.
pub const REGION: &str = "mr";

/// Size of the default region in bytes.
pub const REGION_LEN: usize = 65536;
