// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The responder: receives requests, writes or reads memory through the driver, and sends the
//! responses (IBA 9.7.3 to 9.7.5; for UC and UD 9.8).
//!
//! The responder executes a request when it arrives. [`Responder::poll_transmit`] later sends the
//! responses in the order of the PSNs: to READs and atomics, then a NAK or one acknowledgement.

mod invariants;
mod message;
mod receive;
mod resources;
mod status;
mod transmit;

use crate::congestion::{self, RateLimiter};
use crate::gap::GapDetector;
use crate::psn::Psn;
use crate::reorder;
use crate::wire::{Reth, Syndrome};
use crate::{Fault, Mtu, Packet, Service, Span, Stat, Status, Time, TxError, TxPacket};
use core::ops::DerefMut;
use resources::Resources;
use transmit::AckPolicy;

pub use receive::GRH_LEN;
pub use resources::Resource;
pub use status::RecvLimit;

/// Maximum number of READs and atomics that can be replayed: the largest `max_dest_rd_atomic`.
pub const MAX_RESOURCES: usize = 128;

/// Storage of a responder's resources, of which it uses at most [`MAX_RESOURCES`]. The default is
/// empty.
pub trait ResourceRing: DerefMut<Target = [Resource]> + Default {}

impl<R: DerefMut<Target = [Resource]> + Default> ResourceRing for R {}

/// Identity of a protection domain, which the driver assigns. The default is that of no domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainId(
    /// The driver's number.
    pub u64,
);

/// Kind of a remote access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// An atomic operation.
    Atomic,
}

/// Guarantees and range of a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Earlier writes become globally visible.
    pub global: bool,
    /// Earlier writes become persistent.
    pub persistent: bool,
    /// The bytes to flush (address, length); `None` for the whole region.
    pub range: Option<(u64, u32)>,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the memory holds `compare`.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds, wrapping on overflow.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// Operation that consumed a receive work request. The values are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RecvOpcode {
    /// A SEND.
    #[default]
    Recv = 128,
    /// An RDMA WRITE with immediate data.
    RecvRdmaWithImm = 129,
}

/// The result of a receive work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvCompletion {
    /// The status.
    pub status: Status,
    /// The operation.
    pub opcode: RecvOpcode,
    /// Bytes received; for UD including the 40 bytes in front of the payload.
    pub byte_len: u32,
    /// Immediate data as in the `imm_data` of verbs (bytes in network order).
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate invalidated.
    pub invalidated: Option<u32>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// UD: the sending queue pair.
    pub src_qp: u32,
}

impl RecvCompletion {
    /// Returns the result of a receive work request that received nothing.
    pub fn new(status: Status) -> RecvCompletion {
        RecvCompletion {
            status,
            ..RecvCompletion::default()
        }
    }
}

/// An event for the consumer of the queue pair, or for the port's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderEvent {
    /// First request since [`Responder::start`] (J-21). The driver raises IB_EVENT_COMM_EST if the
    /// queue pair is still in RTR.
    CommEstablished,
    /// IB_EVENT_QP_ACCESS_ERR: the responder refused a remote access (G-12).
    AccessError,
    /// IB_EVENT_QP_REQ_ERR: an invalid request that consumed no receive work request.
    RequestError,
    /// IB_EVENT_QP_FATAL: a local error that consumed no receive work request.
    Fatal,
    /// A packet's P_Key did not match, for the port's counter.
    PkeyViolation,
    /// A datagram's Q_Key did not match, for the port's counter.
    QkeyViolation,
}

/// Operations that the responder needs from the driver.
pub trait ResponderEnv {
    /// Takes the next receive work request, the current one until [`ResponderEnv::complete_recv`].
    /// Returns the length of its scatter list in bytes; `None` if the receive queue is empty.
    fn fetch_recv(&mut self) -> Option<u32>;

    /// Copies the whole payload of the packet being handled to byte `offset` of the current receive
    /// work request, never beyond its length. For a datagram, which may have no payload, the driver
    /// also writes the GRH to the beginning. After [`Fault::NotPresent`], here and in all methods
    /// that access remote memory, the responder drops the packet and asks for it again at
    /// [`Responder::on_memory_present`]. The receive work request stays the current one.
    fn write_recv(&mut self, offset: u32) -> Result<(), Fault>;

    /// Checks that the peer may access these bytes of the region. `len` is never 0. Returns the
    /// protection domain to which the access is granted.
    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<DomainId, Fault>;

    /// Copies the whole payload of the packet being handled to the region. Checks the peer's write
    /// access again.
    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault>;

    /// Executes an atomic operation and returns the old value; operands and result are in host byte
    /// order. `va` is a multiple of 8. Checks the peer's access. Does not execute the operation if
    /// it returns an error.
    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault>;

    /// Stores the 8-byte payload of the packet being handled atomically: no reader sees a part of
    /// it. `va` is a multiple of 8. Checks the peer's write access. The default implementation
    /// refuses every ATOMIC WRITE.
    fn atomic_write(&mut self, _rkey: u32, _va: u64) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    /// Flushes earlier writes to a region. Checks the peer's access, even if the range is empty.
    /// The default implementation refuses every FLUSH.
    fn flush(&mut self, _rkey: u32, _flush: Flush) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    /// XRC: fetches the next receive work request of a shared receive queue, called instead of
    /// [`ResponderEnv::fetch_recv`]. Returns an error if the queue pair's domain has no such queue.
    fn fetch_xrc_recv(&mut self, _srqn: u32) -> Result<Option<u32>, Fault> {
        Err(Fault::Protection)
    }

    /// Invalidates a key on behalf of the peer.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Completes the current receive work request.
    fn complete_recv(&mut self, completion: RecvCompletion);

    /// Reports an event.
    fn event(&mut self, event: ResponderEvent);

    /// Takes `count` packets to send: this one and its successors by [`TxPacket::advance`], which
    /// differ only in PSN and payload position. Several are READ responses. Returns how many were
    /// accepted, and why the next one was not.
    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>);
}

/// State of the responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not ready to receive: every packet is dropped.
    #[default]
    Idle,
    /// Ready to receive.
    Ready,
    /// The queue pair has failed, but the NAK is not sent yet: no packet is accepted.
    Failing,
    /// No packet is accepted or sent.
    Error,
}

/// Progress of a message of several packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    /// No message is in progress.
    #[default]
    None,
    /// A SEND to the current receive work request.
    Send {
        /// Bytes placed.
        received: u32,
        /// XRC: the shared receive queue.
        xrc_srqn: u32,
    },
    /// An RDMA WRITE.
    Write {
        /// The remote memory of the bytes still to come.
        rest: Reth,
        /// Total length in bytes.
        total: u32,
    },
}

/// Statistics of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Requests received before.
    pub duplicates: Stat,
    /// Sequence gaps for which a NAK was created; for UC, requests that arrived too early.
    pub out_of_sequence: Stat,
    /// RNR NAKs sent.
    pub rnr_naks: Stat,
    /// Packets dropped: of the wrong kind, in the wrong state, without a free resource, or because
    /// memory was absent.
    pub dropped: Stat,
    /// Requests refused because of an invalid R_Key, domain, right or range.
    pub access_errors: Stat,
}

/// The receiving half of a queue pair. See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Responder<R> {
    service: Service,
    state: State,
    /// The PSN expected next.
    epsn: Psn,
    /// Message sequence number: messages completed.
    pub msn: Psn,
    message: Message,
    /// Length of the current receive work request, if there is one.
    recv: Option<u32>,
    /// The first request was received ([`ResponderEvent::CommEstablished`]).
    established: bool,

    /// An acknowledgement of everything before `epsn` is due.
    ack_due: bool,
    ack_policy: AckPolicy,
    /// A NAK with this PSN is due.
    nak_due: Option<(Psn, Syndrome)>,
    /// A NAK was created for `epsn`: no second one before that packet arrives (B-09, B-13).
    nak_outstanding: bool,
    /// That NAK was an RNR NAK: the peer will retransmit everything from there on.
    not_ready: bool,
    /// The expected packet was dropped because its memory was absent: no NAK before
    /// [`Responder::on_memory_present`].
    awaits_memory: bool,
    /// The gap at `epsn`, as far as the driver buffers packets.
    gaps: GapDetector,
    resources: Resources<R>,
    /// Rate limit of READ responses, set by congestion notifications.
    pub rate: RateLimiter,

    // Attributes of the queue pair.
    /// The path MTU (for UD, the port's MTU).
    pub mtu: Mtu,
    /// The peer's queue pair number (RC, UC).
    pub dest_qpn: u32,
    /// The driver buffers packets on request ([`crate::Outcome::buffer`]), so a gap is reported
    /// only if it does not close soon. By default the driver does not, and the first packet beyond
    /// a gap reports it.
    pub buffering: bool,
    /// The Q_Key that datagrams must carry.
    pub qkey: u32,
    /// The RNR NAK timer code to send: 0 to 31 (E-03).
    pub min_rnr_timer: u8,
    /// Longest time that an acknowledgement waits for a reply of the consumer
    /// ([`Responder::on_reply`]). With zero, it never waits.
    pub max_ack_delay: Span,
    /// Consecutive requests that the consumer must reply to in that time before acknowledgements
    /// wait.
    pub prompt_replies: u32,
    allow_read: bool,
    allow_write: bool,
    allow_atomic: bool,
    allow_flush_global: bool,
    allow_flush_persistent: bool,

    /// The statistics.
    pub counters: ResponderCounters,
}

impl<R: ResourceRing> Responder<R> {
    /// Returns a responder in the Reset state, without resources.
    pub fn new(service: Service) -> Responder<R> {
        Responder {
            service,
            ..Responder::default()
        }
    }

    /// Returns to the Reset state: forgets everything, and does not complete the current receive
    /// work request. Returns the resource storage.
    pub fn reset(&mut self) -> R {
        core::mem::replace(self, Responder::new(self.service))
            .resources
            .ring
    }

    /// Sets the first expected PSN: the low 24 bits (B-02).
    pub fn set_psn(&mut self, psn: u32) {
        debug_assert!(
            self.message == Message::None,
            "the PSN changes within a message"
        );
        self.epsn = Psn::new(psn);
    }

    /// Sets the accesses that the peer is granted (G-13).
    pub fn set_access(&mut self, read: bool, write: bool, atomic: bool) {
        self.allow_read = read;
        self.allow_write = write;
        self.allow_atomic = atomic;
    }

    /// Sets the guarantees for which the peer may FLUSH (G-26).
    pub fn set_flush_access(&mut self, global: bool, persistent: bool) {
        self.allow_flush_global = global;
        self.allow_flush_persistent = persistent;
    }

    /// Enters the Ready To Receive state.
    pub fn start(&mut self) {
        if self.state == State::Idle {
            self.state = State::Ready;
        }
    }

    /// Returns whether the responder is in the Error state, in which the driver flushes the receive
    /// queue.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.state == State::Error
    }

    /// Enters the Error state, in which the responder accepts and sends nothing. Flushes the
    /// current receive work request, and the driver then the rest of the receive queue.
    pub fn enter_error<E: ResponderEnv>(&mut self, env: &mut E) {
        self.state = State::Error;
        self.message = Message::None;
        self.ack_due = false;
        self.nak_due = None;
        self.awaits_memory = false;
        self.gaps.forget();
        self.resources.clear();
        self.rate.wakeup = None;
        self.ack_policy = AckPolicy::default();
        self.fail_recv(Status::WrFlush, env);
        debug_assert!(
            self.next_timeout().is_none(),
            "a failed responder has a timer"
        );
        self.assert_invariants();
    }

    /// Returns when to call [`Responder::poll_transmit`] even without an event. The driver asks
    /// again after every poll.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        crate::earliest([self.rate.wakeup, self.ack_policy.until, self.gaps.due_at()])
    }

    /// Returns whether the responder handles packets of this kind in its current state.
    #[inline]
    fn is_mine(&self, packet: &Packet) -> bool {
        self.state == State::Ready
            && packet.bth.opcode.service() == Some(self.service)
            && !packet.is_response()
    }

    /// Returns the congestion notification for a request that arrived marked, before it is handled.
    /// `None` for datagrams, whose senders have no connection to slow down; if the responder will
    /// drop the packet because of its header (L-03); or if its PSN is so far off that it is stale
    /// or forged.
    pub fn cnp(&self, packet: &Packet) -> Option<TxPacket> {
        let notify = self.service != Service::Ud
            && self.is_mine(packet)
            && reorder::is_plausible(packet.psn(), self.epsn)
            && packet.bth.is_in_partition();
        notify.then(|| congestion::cnp(self.dest_qpn))
    }

    /// Handles a congestion notification: lowers the rate of READ responses (L-07) and nothing else
    /// . Returns whether it did.
    pub fn on_cnp(&mut self, now: Time) -> bool {
        self.state == State::Ready && self.rate.on_cnp(now)
    }

    /// Forgets the rate limit and the delay of acknowledgements, before the last
    /// [`Responder::poll_transmit`] of a queue pair that is being destroyed.
    pub fn stop_waiting(&mut self) {
        self.rate = RateLimiter::default();
        self.ack_policy = AckPolicy::default();
    }

    /// Returns the expected PSN, for query_qp (J-18).
    #[inline]
    pub fn expected_psn(&self) -> u32 {
        self.epsn.get()
    }

    /// Completes the current receive work request with an error. Returns whether there was one.
    fn fail_recv(&mut self, status: Status, env: &mut impl ResponderEnv) -> bool {
        if self.recv.take().is_none() {
            return false;
        }
        debug_assert!(status != Status::Success, "a failure without a reason");
        env.complete_recv(RecvCompletion::new(status));
        true
    }
}
