// SPDX-License-Identifier: GPL-2.0

//! The interface between scripts and the end point under test.

use std::net::Ipv4Addr;

/// The queue pair number of the peer, which the script plays.
pub const PEER_QPN: u32 = 0x77;

/// A result whose error is a failure of the end point itself, not a deviation from the script.
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

/// The attributes of a queue pair, from the `qp` line of a script.
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
    /// The peer's access rights: any of r, w, a, f, p.
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
    /// send, send-imm, send-inv, write, write-imm, read, cmp-swap, fetch-add, flush, atomic-write.
    pub op: String,
    /// The data to send; for READs and atomics, a buffer of the requested length.
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
    /// Post it with an invalid local key.
    pub bad_lkey: bool,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: u64,
    /// The verbs name in lower case with hyphens, without `_ERR`: success, rem-access, wr-flush.
    pub status: String,
    /// send, write, read, cmp-swap, fetch-add, flush, atomic-write, recv, recv-write-imm; valid
    /// only on success.
    pub op: String,
    pub len: u32,
    pub imm: Option<u32>,
    pub src_qpn: u32,
    /// Content of the whole buffer.
    pub data: Vec<u8>,
}

/// A memory region that the peer may access.
#[derive(Clone, Debug)]
pub struct Region {
    pub id: usize,
    pub va: u64,
    pub rkey: u32,
}

/// The result of a query of the queue pair.
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

/// How long to wait for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It must arrive. In real time, the end point waits until only a hang could explain its
    /// absence.
    Due,
    /// It must not arrive. In real time, the end point waits as long as its arrival could take.
    Silence,
}

/// An end point under test. The script plays its peer.
///
/// Times are in nanoseconds on the end point's own clock.
pub trait EndPoint {
    /// Returns the addresses of the peer (the script) and of the end point.
    fn addresses(&self) -> (Ipv4Addr, Ipv4Addr);

    /// Returns whether only [`EndPoint::advance`] moves the clock.
    fn virtual_time(&self) -> bool;

    /// Returns the current time.
    fn now(&mut self) -> Result<u64>;

    /// Lets `nanoseconds` pass.
    fn advance(&mut self, nanoseconds: u64) -> Result<()>;

    /// Registers a region filled with `bytes`. `rights` is any of l, r, w, a, f, p; l lets the end
    /// point itself write.
    fn region(&mut self, bytes: &[u8], rights: &str) -> Result<Region>;

    /// Returns the content of a region.
    fn memory(&mut self, region: usize, len: usize) -> Result<Vec<u8>>;

    /// Writes to a region, as its owner would.
    fn set_memory(&mut self, region: usize, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Deregisters a region.
    fn deregister(&mut self, region: usize) -> Result<()>;

    /// Creates a queue pair in Reset that replaces the previous one. Returns its number.
    fn queue_pair(&mut self, spec: &QpSpec) -> Result<u32>;

    /// Calls ibv_modify_qp with `state` and the attributes that it requires.
    fn modify(&mut self, state: State, spec: &QpSpec) -> std::result::Result<(), Refused>;

    /// Calls ibv_query_qp.
    fn query(&mut self) -> Result<Query>;

    /// Calls ibv_post_recv with a buffer of `len` bytes, each 0xee.
    fn post_recv(
        &mut self,
        id: u64,
        len: usize,
        bad_lkey: bool,
    ) -> std::result::Result<(), Refused>;

    /// Calls ibv_post_send.
    fn post_send(&mut self, post: &SendPost) -> std::result::Result<(), Refused>;

    /// Polls the next completion of the send queue or of the receive queue.
    fn completion(&mut self, send: bool, wait: Wait) -> Result<Option<Completion>>;

    /// Returns the next asynchronous event: its verbs name in lower case with hyphens.
    fn event(&mut self, wait: Wait) -> Result<Option<String>>;

    /// Returns the value of a device counter, relative to the creation of the queue pair.
    fn counter(&mut self, name: &str) -> Result<u64>;

    /// Injects an IP datagram.
    fn inject(&mut self, datagram: &[u8]) -> Result<()>;

    /// Returns the next IP datagram from the end point, and the time at which it left.
    fn packet(&mut self, wait: Wait) -> Result<Option<(u64, Vec<u8>)>>;
}
