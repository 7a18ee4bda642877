// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The responder: takes requests, places or reads memory through the driver, and sends the answers
//! (IBA 9.7.3 to 9.7.5; for UC and UD 9.8).

mod receive;
mod resources;
mod transmit;

use crate::psn::Psn;
use crate::wire::{AtomicEth, NakCode};
use crate::{timeout, Fault, Mtu, Outcome, Progress, Service, Status, TxError, TxPacket};

/// READs and atomics that can be replayed at most: the largest `max_dest_rd_atomic`.
pub const MAX_RESOURCES: usize = 16;

/// What a remote access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// An atomic operation.
    Atomic,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the memory holds `compare`.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// A receive work request, as far as the core needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Bytes that its scatter list holds.
    pub length: u32,
}

/// What consumed a receive work request. The values are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecvOpcode {
    /// A SEND.
    Recv = 128,
    /// An RDMA WRITE with immediate data.
    RecvRdmaWithImm = 129,
}

/// The result of a receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCompletion {
    /// The status.
    pub status: Status,
    /// What it was.
    pub opcode: RecvOpcode,
    /// Bytes received; UD: with the 40 bytes in front.
    pub byte_len: u32,
    /// Immediate data as in the `imm_data` of verbs (bytes in network order).
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate invalidated.
    pub invalidated: Option<u32>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// UD: the sending queue pair.
    pub src_qp: u32,
    /// UD: the packet's partition key.
    pub pkey: u16,
}

/// Something to tell the consumer of the queue pair, or the port's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderEvent {
    /// The first request since [`Responder::start`] (J-21). The driver raises
    /// IB_EVENT_COMM_EST if the queue pair is still in RTR.
    CommEstablished,
    /// IB_EVENT_QP_ACCESS_ERR: a remote access was refused (G-12).
    AccessError,
    /// IB_EVENT_QP_REQ_ERR: an invalid request that used no receive work request.
    RequestError,
    /// IB_EVENT_QP_FATAL: an error of this side that used no receive work request.
    Fatal,
    /// A packet's P_Key does not match: for the port's counter.
    PkeyViolation,
    /// A datagram's Q_Key does not match: for the port's counter.
    QkeyViolation,
}

/// What the responder needs from the driver.
pub trait ResponderEnv {
    /// Takes the next receive work request of the receive queue, which stays the current one until
    /// [`ResponderEnv::complete_recv`]. `None` if there is none.
    fn fetch_recv(&mut self) -> Option<RecvRequest>;

    /// Copies the payload of the packet being handled, all of it, to byte `offset` of the current
    /// receive work request. Never beyond its length.
    fn place_recv(&mut self, offset: u32) -> Result<(), Fault>;

    /// Whether the peer may do so with these bytes of the region. Never with `len` 0.
    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<(), Fault>;

    /// Copies the payload of the packet being handled, all of it, to the region. Checks again
    /// that the peer may write there.
    fn place_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault>;

    /// Executes an atomic operation and returns the value before, both as numbers of this machine.
    /// `va` is a multiple of 8. Checks that the peer may.
    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault>;

    /// Invalidates a key for the peer.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Completes the current receive work request. If none was fetched (an error before), none is
    /// current and this is not called.
    fn complete_recv(&mut self, completion: RecvCompletion);

    /// Tells of an event.
    fn event(&mut self, event: ResponderEvent);

    /// Takes a packet to be sent. See [`TxError`]; `Local` means the same as `RemoteAccess` here.
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError>;
}

/// The receiving half of a queue pair. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Responder {
    service: Service,
}

impl Responder {
    /// A responder in the Reset state.
    pub fn new(service: Service) -> Responder {
        Responder { service }
    }

    /// Forgets everything, attributes included (the Reset state).
    pub fn reset(&mut self) {}

    /// The PSN expected first: the low 24 bits (B-02).
    pub fn set_psn(&mut self, _psn: u32) {}

    /// The path MTU; for UD the port's.
    pub fn set_mtu(&mut self, _mtu: Mtu) {}

    /// READs and atomics that the peer may have outstanding, at most 16 (C-13 to C-15).
    pub fn set_max_dest_rd_atomic(&mut self, _max: u8) {}

    /// The RNR NAK timer's code that is sent (E-03).
    pub fn set_min_rnr_timer(&mut self, _code: u8) {}

    /// What the peer may do (G-13).
    pub fn set_access(&mut self, _read: bool, _write: bool, _atomic: bool) {}

    /// The peer's queue pair number (RC, UC).
    pub fn set_dest_qpn(&mut self, _qpn: u32) {}

    /// The Q_Key that datagrams must have.
    pub fn set_qkey(&mut self, _qkey: u32) {}

    /// The partition key.
    pub fn set_pkey(&mut self, _pkey: u16) {}

    /// To the Ready To Receive state.
    pub fn start(&mut self) {}

    /// The expected PSN, for query_qp (J-18).
    pub fn expected_psn(&self) -> u32 {
        0
    }

    /// The message sequence number.
    pub fn msn(&self) -> u32 {
        0
    }

    /// Takes a request.
    pub fn handle_packet<E: ResponderEnv>(
        &mut self,
        _now: u64,
        _packet: &crate::Packet,
        _env: &mut E,
    ) -> Outcome {
        Outcome::default()
    }

    /// Sends acknowledgements and responses, `budget` packets at most.
    pub fn poll_transmit<E: ResponderEnv>(
        &mut self,
        _now: u64,
        _budget: u32,
        _env: &mut E,
    ) -> Progress {
        Progress::default()
    }

    /// To the Error state: nothing is taken or sent any more. Completes the current receive work
    /// request as flushed, if there is one; the driver then flushes the rest of the receive queue.
    pub fn enter_error<E: ResponderEnv>(&mut self, _env: &mut E) {}
}
