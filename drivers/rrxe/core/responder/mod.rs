// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The responder: takes requests, places or reads memory through the driver, and sends the answers
//! (IBA 9.7.3 to 9.7.5; for UC and UD 9.8).

//!
//! A request is executed when it arrives. What is left to do is to answer, and
//! [`Responder::poll_transmit`] does that in the order of the PSNs: first the READs and atomics
//! that have not been answered, then a NAK or else one acknowledgement for everything before it.

mod message;
mod receive;
mod resources;
mod transmit;

use crate::congestion::{self, RateLimiter};
use crate::psn::Psn;
use crate::reorder;
use crate::wire::{Class, Syndrome, QPN_MASK};
use crate::{pkey, Fault, Mtu, Packet, Service, Status, TxError, TxPacket};
use core::ops::DerefMut;
use resources::Resources;

pub use receive::GRH_LEN;
pub use resources::Resource;

/// READs and atomics that can be replayed at most: the largest `max_dest_rd_atomic`.
pub const MAX_RESOURCES: usize = 128;

/// Where a responder keeps its resources: the driver's memory. Of what is longer than
/// [`MAX_RESOURCES`], the rest is not used; an empty one is the default.
pub trait ResourceRing: DerefMut<Target = [Resource]> + Default {}

impl<R: DerefMut<Target = [Resource]> + Default> ResourceRing for R {}

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

/// What a FLUSH asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Everyone sees what was written before.
    pub global: bool,
    /// It outlives a loss of power.
    pub persistent: bool,
    /// The bytes (address, length) that it is about; `None`: all of the region.
    pub range: Option<(u64, u32)>,
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

    /// Stores the payload of the packet being handled, 8 bytes, in one: nobody sees a part of
    /// them. `va` is a multiple of 8. Checks that the peer may write there. Without it there is no
    /// ATOMIC WRITE: each is refused.
    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let _ = (rkey, va);
        Err(Fault::Protection)
    }

    /// Flushes what was written to a region before. Checks that the peer may, also where the range
    /// is empty. Without it there is no FLUSH: each is refused.
    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        let _ = (rkey, flush);
        Err(Fault::Protection)
    }

    /// XRC: takes the next receive work request of a shared receive queue, which stays the current
    /// one until [`ResponderEnv::complete_recv`]. `Ok(None)` if there is none; an error if there
    /// is no such queue in the domain of the queue pair. Called in place of
    /// [`ResponderEnv::fetch_recv`].
    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<RecvRequest>, Fault> {
        let _ = srqn;
        Err(Fault::Protection)
    }

    /// Invalidates a key for the peer.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Completes the current receive work request. If none was fetched (an error before), none is
    /// current and this is not called.
    fn complete_recv(&mut self, completion: RecvCompletion);

    /// Tells of an event.
    fn event(&mut self, event: ResponderEvent);

    /// Takes a packet to be sent. See [`TxError`]; `Local` means the same as `RemoteAccess` here.
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError>;

    /// Takes a run: `count` packets, this one and those that follow by [`TxPacket::step`], which are alike but for PSN and
    /// place: the middle of a message. How many were taken, and why the next one was not.
    fn transmit_run(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.each_of_run(count, |packet| self.transmit(packet))
    }
}

/// Where the responder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not yet ready to receive: everything is dropped.
    Idle,
    /// Ready to receive.
    Ready,
    /// The queue pair is lost, but the NAK that says so has not been sent: nothing is taken.
    Failing,
    /// Nothing is taken, nothing is sent.
    Error,
}

/// A message of several packets in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// There is none.
    None,
    /// A SEND into the current receive work request.
    Send {
        /// Bytes placed.
        received: u32,
        /// XRC: the shared receive queue.
        xrc_srqn: u32,
    },
    /// An RDMA WRITE.
    Write {
        rkey: u32,
        /// Where the next byte goes.
        va: u64,
        /// Bytes to come.
        left: u32,
        /// Bytes in all.
        total: u32,
    },
}

/// What happened, for statistics. All counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Requests that had been taken before.
    pub duplicates: u32,
    /// Gaps in the sequence of requests that a NAK was made for; without NAKs (UC), requests that
    /// came too early.
    pub out_of_sequence: u32,
    /// RNR NAKs sent.
    pub rnr_naks: u32,
    /// Packets dropped: of a wrong kind, in a wrong state, or without room. Not those whose key
    /// does not match, for which there is an event.
    pub dropped: u32,
    /// Requests refused since the peer may not access that memory so: keys that open nothing,
    /// and those of other domains, rights or ranges.
    pub wrong_keys: u32,
}

/// The receiving half of a queue pair. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Responder<R> {
    service: Service,
    state: State,
    mtu: Mtu,
    /// The PSN expected next.
    epsn: Psn,
    /// Messages completed.
    msn: Psn,
    message: Message,
    /// The current receive work request.
    recv: Option<RecvRequest>,
    /// No request has been taken since [`Responder::start`].
    quiet: bool,

    /// An acknowledgement of everything before `epsn` is due.
    ack_due: bool,
    /// A NAK is due: with this PSN.
    nak_due: Option<(Psn, Syndrome)>,
    /// A NAK was made for `epsn`: no other before it arrives (B-09, B-13).
    nak_outstanding: bool,
    /// That NAK was an RNR NAK: the peer is going to send all from there on again.
    not_ready: bool,
    /// Packets beyond a gap at `epsn` are held, as far as [`Responder::held`] was told.
    holding: bool,
    resources: Resources<R>,
    /// What congestion notifications have left of the rate of READ responses.
    rate: RateLimiter,

    allow_read: bool,
    allow_write: bool,
    allow_atomic: bool,
    allow_flush_global: bool,
    allow_flush_persistent: bool,
    min_rnr_timer: u8,
    pkey: u16,
    dest_qpn: u32,
    qkey: u32,

    counters: ResponderCounters,
}

impl<R: ResourceRing> Responder<R> {
    /// A responder in the Reset state, without resources.
    pub fn new(service: Service) -> Responder<R> {
        Responder {
            service,
            state: State::Idle,
            mtu: Mtu::default(),
            epsn: Psn::default(),
            msn: Psn::default(),
            message: Message::None,
            recv: None,
            quiet: true,
            ack_due: false,
            nak_due: None,
            nak_outstanding: false,
            not_ready: false,
            holding: false,
            resources: Resources::new(R::default()),
            rate: RateLimiter::new(),
            allow_read: false,
            allow_write: false,
            allow_atomic: false,
            allow_flush_global: false,
            allow_flush_persistent: false,
            min_rnr_timer: 0,
            pkey: crate::pkey::DEFAULT,
            dest_qpn: 0,
            qkey: 0,
            counters: ResponderCounters::default(),
        }
    }

    /// Forgets everything, attributes and the current receive work request included, without
    /// completing it (the Reset state). Gives back the resources.
    pub fn reset(&mut self) -> R {
        core::mem::replace(self, Responder::new(self.service))
            .resources
            .into_ring()
    }

    /// The PSN expected first: the low 24 bits (B-02).
    pub fn set_psn(&mut self, psn: u32) {
        self.epsn = Psn::new(psn);
    }

    /// The path MTU; for UD the port's.
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.mtu = mtu;
    }

    /// Room for as many READs and atomics as the peer may have outstanding (`max_dest_rd_atomic`,
    /// C-13 to C-15), at most [`MAX_RESOURCES`]. Those that are to be answered or could be replayed
    /// move there, as far as there is room. Returns the memory that they were in.
    pub fn set_resources(&mut self, resources: R) -> R {
        self.resources.replace(resources)
    }

    /// The RNR NAK timer's code that is sent (E-03).
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.min_rnr_timer = code & 0x1f;
    }

    /// What the peer may do (G-13).
    pub fn set_access(&mut self, read: bool, write: bool, atomic: bool) {
        self.allow_read = read;
        self.allow_write = write;
        self.allow_atomic = atomic;
    }

    /// Which guarantees the peer may FLUSH for (G-26).
    pub fn set_flush_access(&mut self, global: bool, persistent: bool) {
        self.allow_flush_global = global;
        self.allow_flush_persistent = persistent;
    }

    /// The peer's queue pair number (RC, UC).
    pub fn set_dest_qpn(&mut self, qpn: u32) {
        self.dest_qpn = qpn & QPN_MASK;
    }

    /// The peer's queue pair number.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        self.dest_qpn
    }

    /// The Q_Key that datagrams must have.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// The partition key.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.pkey = pkey;
    }

    /// To the Ready To Receive state.
    pub fn start(&mut self) {
        if self.state == State::Idle {
            self.state = State::Ready;
        }
    }

    /// To the Error state: nothing is taken or sent any more. Completes the current receive work
    /// request as flushed, if there is one; the driver then flushes the rest of the receive queue.
    pub fn enter_error<E: ResponderEnv>(&mut self, env: &mut E) {
        self.state = State::Error;
        self.message = Message::None;
        self.ack_due = false;
        self.nak_due = None;
        self.holding = false;
        self.resources.clear();
        self.rate.rest();
        self.fail_recv(Status::WrFlush, env);
    }

    /// When to call [`Responder::poll_transmit`] again although nothing has happened: the absolute
    /// time in nanoseconds. Ask again after every call of it.
    #[inline]
    pub fn next_timeout(&self) -> Option<u64> {
        self.rate.wake()
    }

    /// Whether a packet is of the kind and in the state to be looked at.
    #[inline]
    fn is_mine(&self, packet: &Packet) -> bool {
        self.state == State::Ready
            && packet.bth.opcode.class() == Class::from(self.service)
            && !packet.is_response()
    }

    /// The congestion notification to send for a request that came in marked, before it is
    /// handled; `None` if the packet is going to be dropped for its header (L-03), if no request of
    /// this connection can have its PSN now (it is stale or forged), and for datagrams, whose
    /// senders have no connection to slow down.
    pub fn notification(&self, packet: &Packet) -> Option<TxPacket> {
        let notify = self.service != Service::Ud
            && self.is_mine(packet)
            && reorder::is_near(packet.psn(), self.epsn)
            && pkey::matches(packet.bth.pkey, self.pkey);
        notify.then(|| congestion::notification(self.dest_qpn, self.pkey))
    }

    /// Takes a congestion notification of the peer: the rate of READ responses falls (L-07).
    /// Nothing else changes.
    pub fn notified(&mut self, now: u64) {
        if self.state == State::Ready {
            self.rate.notified(now);
        }
    }

    /// The rate that READ responses may leave at, in bytes per second; `None` where there is no
    /// limit.
    pub fn rate(&mut self, now: u64) -> Option<u64> {
        self.rate.rate(now)
    }

    /// Forgets what congestion notifications have left of the rate, before the last
    /// [`Responder::poll_transmit`] of a queue pair that ends: nothing follows for which the
    /// network would need room, and what is not sent then is never sent.
    pub fn forget_rate(&mut self) {
        self.rate = RateLimiter::new();
    }

    /// The expected PSN, for query_qp (J-18).
    #[inline]
    pub fn expected_psn(&self) -> u32 {
        self.epsn.get()
    }

    /// The message sequence number: messages completed, modulo 2^24.
    #[inline]
    pub fn msn(&self) -> u32 {
        self.msn.get()
    }

    /// Statistics.
    #[inline]
    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// Completes the current receive work request with an error. Whether there was one.
    fn fail_recv<E: ResponderEnv>(&mut self, status: Status, env: &mut E) -> bool {
        if self.recv.take().is_none() {
            return false;
        }
        env.complete_recv(RecvCompletion {
            status,
            opcode: RecvOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            src_qp: 0,
            pkey: self.pkey,
        });
        true
    }
}
