// SPDX-License-Identifier: GPL-2.0

//! What scripts talk to: an end point under test, whatever it is made of.

use std::net::Ipv4Addr;

/// The peer's queue pair number: the scripts' own.
pub const PEER_QPN: u32 = 0x77;

/// A failure of the end point that is no matter of the script.
pub type Result<T> = std::result::Result<T, String>;

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Error,
}

impl State {
    pub const NAMES: [&'static str; 7] = ["reset", "init", "rtr", "rts", "sqd", "sqe", "error"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub fn from_name(name: &str) -> Option<State> {
        use State::*;
        let at = Self::NAMES.iter().position(|known| *known == name)?;
        Some([Reset, Init, Rtr, Rts, Sqd, Sqe, Error][at])
    }
}

/// A queue pair: what a script's `qp` says.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// rc, uc or ud.
    pub service: String,
    pub sq_psn: u32,
    pub rq_psn: u32,
    pub mtu: u32,
    pub timeout: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    /// Some of r, w, a: what the peer may do.
    pub access: String,
    pub qkey: u32,
    pub state: State,
}

impl Default for QpSpec {
    fn default() -> QpSpec {
        QpSpec {
            service: "rc".into(),
            sq_psn: 500,
            rq_psn: 100,
            mtu: 1024,
            timeout: 0,
            retry: 7,
            rnr_retry: 7,
            rnr_timer: 12,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            access: "rwa".into(),
            qkey: 0x1122_3344,
            state: State::Rts,
        }
    }
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub struct SendPost {
    pub id: u64,
    /// send, send-imm, send-inv, write, write-imm, read, cmp-swap, fetch-add.
    pub op: String,
    /// What is sent; for READs and atomics, as much of it as is to be read.
    pub data: Vec<u8>,
    pub va: u64,
    pub rkey: u32,
    pub imm: u32,
    pub compare: u64,
    pub swap: u64,
    pub qpn: u32,
    pub qkey: u32,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    /// Its local key is not valid.
    pub bad_lkey: bool,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: u64,
    /// As verbs call it, in lower case with hyphens and without `_ERR`: success, rem-access, wr-flush.
    pub status: String,
    /// send, write, read, cmp-swap, fetch-add, recv, recv-write-imm; only of a success.
    pub op: String,
    pub len: u32,
    pub imm: Option<u32>,
    pub src_qpn: u32,
    /// What the buffer holds now, all of it.
    pub data: Vec<u8>,
}

/// A region of memory that the peer may use.
#[derive(Clone, Debug)]
pub struct Region {
    pub id: usize,
    pub va: u64,
    pub rkey: u32,
}

/// What a queue pair tells when it is asked.
#[derive(Clone, Debug)]
pub struct Query {
    pub state: State,
    pub sq_psn: u32,
    pub rq_psn: u32,
}

/// The errno of a refused verb, or a failure of the end point.
#[derive(Debug)]
pub enum Refused {
    Errno(i32),
    Broken(String),
}

/// How long to look for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It must be there. An end point in real time waits for as long as only a hang would take.
    Due,
    /// It must not be there. An end point in real time waits for as long as it would need to come.
    Silence,
}

/// An end point under test. The peer is the script.
///
/// Time is in nanoseconds, on a clock of the end point's own.
pub trait EndPoint {
    /// The addresses of the peer (the script) and of the end point.
    fn addresses(&self) -> (Ipv4Addr, Ipv4Addr);

    /// Whether its clock moves by [`EndPoint::advance`] alone.
    fn virtual_time(&self) -> bool;

    /// The time.
    fn now(&mut self) -> Result<u64>;

    /// Lets this much time pass.
    fn advance(&mut self, nanoseconds: u64) -> Result<()>;

    /// A region of memory with the rights (some of l, r, w, a; l lets the end point itself write), filled with
    /// these bytes.
    fn region(&mut self, bytes: &[u8], rights: &str) -> Result<Region>;

    /// What a region holds.
    fn memory(&mut self, region: usize, len: usize) -> Result<Vec<u8>>;

    /// Writes to a region, as the program that owns it would.
    fn set_memory(&mut self, region: usize, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Deregisters a region.
    fn deregister(&mut self, region: usize) -> Result<()>;

    /// A new queue pair in the Reset state, in place of the one before. Returns its number.
    fn queue_pair(&mut self, spec: &QpSpec) -> Result<u32>;

    /// ibv_modify_qp to this state, with the attributes that it takes.
    fn modify(&mut self, state: State, spec: &QpSpec) -> std::result::Result<(), Refused>;

    /// ibv_query_qp.
    fn query(&mut self) -> Result<Query>;

    /// ibv_post_recv of a buffer of this many bytes that all are 0xee.
    fn post_recv(
        &mut self,
        id: u64,
        len: usize,
        bad_lkey: bool,
    ) -> std::result::Result<(), Refused>;

    /// ibv_post_send.
    fn post_send(&mut self, post: &SendPost) -> std::result::Result<(), Refused>;

    /// The next completion of the send queue, or of the receive queue.
    fn completion(&mut self, send: bool, wait: Wait) -> Result<Option<Completion>>;

    /// The next asynchronous event: as verbs call it, in lower case with hyphens.
    fn event(&mut self, wait: Wait) -> Result<Option<String>>;

    /// A counter of the device since the queue pair was made.
    fn counter(&mut self, name: &str) -> Result<u64>;

    /// An IP datagram arrives.
    fn inject(&mut self, datagram: &[u8]) -> Result<()>;

    /// The next IP datagram from the end point, and when it left.
    fn packet(&mut self, wait: Wait) -> Result<Option<(u64, Vec<u8>)>>;
}
