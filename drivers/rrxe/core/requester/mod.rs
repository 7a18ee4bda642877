// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requester: sends work requests as packets, takes the answers, and completes the work
//! requests in posting order (IBA 9.7.2, 9.7.6; for UC and UD 9.8).
//!
//! A work request lives in a [`SendSlot`] of the driver's storage from [`Requester::post`] until
//! [`RequesterEnv::complete`]. Three free-running counters walk through the slots:
//! `tail` (oldest not completed) up to `next` (the one whose packets are being sent) up to `head`
//! (where the next is posted). Nothing keeps sent packets: a retransmission makes them anew from
//! the slots, and so has the same PSNs, opcodes and payload split (F-07).

mod credits;
mod gaps;
mod local;
mod recovery;
mod request;
mod response;
mod transmit;
mod window;

pub use recovery::PROBE_FLOOR;
pub(crate) use request::ATOMIC_WRITE_LEN;
pub use request::{PostError, SendCompletion, SendOp, SendRequest, SendSlot};
pub use window::{MOST_WINDOW, WINDOW};

use crate::congestion::{self, RateLimiter};
use crate::psn::Psn;
use crate::wire::Class;
use crate::{pkey, timeout, Fault, Mtu, Packet, Service, TxError, TxPacket};
use credits::Credits;
use gaps::Gaps;
use recovery::{Hole, Recovery};
use request::SlotState;
use window::Window;

/// PSNs outstanding beyond which no READ starts: responses come as fast as the peer can send them, whatever
/// becomes of them here, and a host's queue for what it receives has room for 1000 packets, usually.
pub const MOST_RESPONSES: u32 = 1024;

/// The largest message: 2^31 bytes (IBA 9.7.2).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The value of the RNR retry count that means for ever.
const RNR_RETRY_INFINITE: u8 = 7;

/// How lost packets are found and sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Sends only what is missing to a peer that keeps packets beyond a gap, and probes for a lost
    /// tail before the acknowledge timeout.
    #[default]
    Selective,
    /// Go-back-N with the timers of the specification alone (IBA 9.7.6): everything from the oldest
    /// unacknowledged packet on is sent again, after a NAK, an implied NAK or the acknowledge
    /// timeout.
    Strict,
}

/// What the requester needs from the driver. All slot numbers are indices into the slots.
pub trait RequesterEnv {
    /// Takes a packet to be sent. See [`TxError`] for what an error means; `RemoteAccess` is none
    /// for a requester and counts as a malformed work request.
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError>;

    /// Takes a run: `count` packets, this one and those that follow by [`TxPacket::step`], which are alike but for PSN and
    /// place: the middle of a message. How many were taken, and why the next one was not.
    fn transmit_run(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.each_of_run(count, |packet| self.transmit(packet))
    }

    /// Copies the payload of the packet being handled, all of it, to byte `offset` of the scatter
    /// list of the work request. Never called beyond the length of the work request.
    fn place_read(&mut self, slot: u32, offset: u32) -> Result<(), Fault>;

    /// Stores the original value, as a number of this machine, to the scatter list of the work
    /// request.
    fn place_atomic(&mut self, slot: u32, value: u64) -> Result<(), Fault>;

    /// Completes a work request: called exactly once for each, in posting order. The driver frees
    /// what it keeps for the slot, and raises a completion if [`SendCompletion::report`] says so.
    fn complete(&mut self, slot: u32, completion: SendCompletion);

    /// Executes a work request that puts nothing on the wire ([`SendOp::is_local`]), now that its
    /// turn has come.
    fn local_op(&mut self, slot: u32) -> Result<(), Fault>;
}

/// Where the send queue stands (IBA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not yet ready to send: nothing is sent or received.
    Idle,
    /// Ready to send. Send Queue Drained is this state with `paused`.
    Ready,
    /// A work request of UC or UD failed; those behind it are flushed (J-09, J-10).
    SendError,
    /// Everything is flushed.
    Error,
}

/// What happened, for statistics. All counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets sent again.
    pub retransmitted: u32,
    /// Packets sent again because nothing had come for longer than round trips take.
    pub probes: u32,
    /// Acknowledge timer expirations.
    pub timeouts: u32,
    /// NAK Sequence Errors taken.
    pub sequence_naks: u32,
    /// RNR NAKs taken.
    pub rnr_naks: u32,
    /// Gaps in READ responses, and answers beyond an unanswered READ or atomic.
    pub implied_naks: u32,
    /// Answers whose P_Key does not match: for the port's counter.
    pub bad_pkeys: u32,
    /// Answers dropped as old, never asked for, reserved or malformed.
    pub dropped: u32,
}

/// The peer was not ready for a request, and has said when to try again.
#[derive(Clone, Copy, Debug)]
struct RnrWait {
    /// That request: it and what follows wait.
    from: Psn,
    until: u64,
}

/// The sending half of a queue pair. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Requester {
    service: Service,
    state: State,
    /// SQD: start no new message.
    paused: bool,
    mtu: Mtu,

    // The work requests.
    head: u32,
    next: u32,
    tail: u32,

    // The packets.
    /// The oldest PSN that is not acknowledged.
    una: Psn,
    /// The PSN to be sent next.
    send_psn: Psn,
    /// One beyond the highest PSN ever sent.
    max_psn: Psn,
    /// PSNs between `una` and `send_psn` that stand for READ responses on their way, not for
    /// request packets in flight.
    response_psns: u32,
    /// Most packets in flight.
    window: Window,
    /// Packets sent since the last one that asked for an acknowledgement.
    since_ackreq: u32,
    /// READs and atomics started and not completed.
    reads: u8,
    /// An answer is known to be missing and was asked for again; no second time until something
    /// new arrives.
    implied_nak: bool,
    /// The driver holds packets that come before their turn.
    holding: bool,
    mode: RecoveryMode,
    recovery: Recovery,
    gaps: Gaps,
    credits: Credits,

    // Retries.
    retries_left: u8,
    rnr_retries_left: u8,
    ack_deadline: Option<u64>,
    rnr_wait: Option<RnrWait>,
    /// One beyond the last packet that this host may have dropped itself.
    dropped_until: Option<Psn>,
    /// Retries and expired timers without progress that were not counted because of this host.
    forgiven: u8,

    /// What congestion notifications have left of the rate.
    rate: RateLimiter,

    // Attributes of the queue pair.
    dest_qpn: u32,
    src_qpn: u32,
    qkey: u32,
    pkey: u16,
    max_rd_atomic: u8,
    retry_count: u8,
    rnr_retry: u8,
    ack_timeout: Option<u64>,

    counters: RequesterCounters,
}

impl Requester {
    /// A requester in the Reset state.
    pub fn new(service: Service) -> Requester {
        Requester {
            service,
            state: State::Idle,
            paused: false,
            mtu: Mtu::default(),
            head: 0,
            next: 0,
            tail: 0,
            una: Psn::default(),
            send_psn: Psn::default(),
            max_psn: Psn::default(),
            response_psns: 0,
            window: Window::new(),
            since_ackreq: 0,
            reads: 0,
            implied_nak: false,
            holding: false,
            mode: RecoveryMode::Selective,
            recovery: Recovery::new(),
            gaps: Gaps::new(),
            credits: Credits::new(),
            retries_left: 0,
            rnr_retries_left: 0,
            ack_deadline: None,
            rnr_wait: None,
            dropped_until: None,
            forgiven: 0,
            rate: RateLimiter::new(),
            dest_qpn: 0,
            src_qpn: 0,
            qkey: 0,
            pkey: crate::pkey::DEFAULT,
            max_rd_atomic: 0,
            retry_count: 0,
            rnr_retry: 0,
            ack_timeout: None,
            counters: RequesterCounters::default(),
        }
    }

    /// Forgets everything, attributes and outstanding work requests included, without completing
    /// them (the Reset state, IBA 10.3.1.2). Only [`Requester::set_src_qpn`],
    /// [`Requester::set_holding`] and [`Requester::set_recovery`] survive.
    pub fn reset(&mut self) {
        let (src_qpn, holding, mode) = (self.src_qpn, self.holding, self.mode);
        *self = Requester::new(self.service);
        self.src_qpn = src_qpn;
        self.holding = holding;
        self.set_recovery(mode);
    }

    /// How lost packets are recovered. With [`RecoveryMode::Strict`] no answer is to be held
    /// ([`crate::Outcome::hold`]), whatever [`Requester::set_holding`] says.
    pub fn set_recovery(&mut self, mode: RecoveryMode) {
        self.mode = mode;
        self.recovery = Recovery::of(mode);
    }

    /// Returns whether the driver keeps answers that come before their turn.
    #[inline]
    fn holds(&self) -> bool {
        self.holding && self.mode == RecoveryMode::Selective
    }

    /// Whether the driver holds the packets for which [`crate::Outcome::hold`] says so. Without
    /// that, which is how a requester starts, everything is asked for again from a gap on.
    pub fn set_holding(&mut self, holding: bool) {
        self.holding = holding;
    }

    /// This queue pair's own number (UD sends it).
    pub fn set_src_qpn(&mut self, qpn: u32) {
        self.src_qpn = qpn & crate::wire::QPN_MASK;
    }

    /// The peer's queue pair number (RC, UC).
    pub fn set_dest_qpn(&mut self, qpn: u32) {
        self.dest_qpn = qpn & crate::wire::QPN_MASK;
    }

    /// The peer's queue pair number.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        self.dest_qpn
    }

    /// Whether packets were sent of which it is not known that they have arrived. (Of unreliable services it never is.)
    #[inline]
    pub fn has_unacknowledged(&self) -> bool {
        self.una != self.max_psn
    }

    /// The path MTU; for UD the port's.
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.mtu = mtu;
    }

    /// The first PSN to send: the low 24 bits (B-02). Only while nothing is outstanding.
    pub fn set_psn(&mut self, psn: u32) {
        let psn = Psn::new(psn);
        self.una = psn;
        self.send_psn = psn;
        self.max_psn = psn;
    }

    /// The acknowledge timeout's code, see [`timeout::ack_timeout`].
    pub fn set_timeout(&mut self, code: u8) {
        self.ack_timeout = timeout::ack_timeout(code);
        if self.ack_timeout.is_none() {
            self.ack_deadline = None;
            self.recovery.probe_at = None;
        }
    }

    /// How often to send again before giving up: 0 to 7 (F-03, F-04).
    pub fn set_retry_count(&mut self, count: u8) {
        self.retry_count = count & 7;
        self.retries_left = self.retry_count;
    }

    /// How often to send again after an RNR NAK: 0 to 6, or 7 for ever (E-07).
    pub fn set_rnr_retry(&mut self, count: u8) {
        self.rnr_retry = count & 7;
        self.rnr_retries_left = self.rnr_retry;
    }

    /// READs and atomics that may be outstanding (F-23). With 0, each fails with LocQpOp: it could
    /// never start.
    pub fn set_max_rd_atomic(&mut self, max: u8) {
        self.max_rd_atomic = max;
    }

    /// The partition key (RC, UC; datagrams bring their own).
    pub fn set_pkey(&mut self, pkey: u16) {
        self.pkey = pkey;
    }

    /// The queue pair's Q_Key, sent for datagrams whose own has the top bit set.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// To the Ready To Send state; from SQE and SQD too.
    pub fn start(&mut self) {
        if self.state != State::Error {
            self.state = State::Ready;
            self.paused = false;
        }
    }

    /// To the Send Queue Drained state: the message in progress is sent to its end, no new one
    /// starts (J-05).
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// From Send Queue Drained back to Ready To Send (J-07).
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Paused, and nothing that was started is outstanding any more (J-06).
    pub fn is_drained(&self, slots: &[SendSlot]) -> bool {
        self.paused
            && !self
                .slot(slots, self.tail)
                .is_some_and(|s| s.state != SlotState::Posted)
    }

    /// Whether a work request can be posted. Never, if the number of slots is no power of two.
    #[inline]
    pub fn can_post(&self, slots: &[SendSlot]) -> bool {
        slots.len().is_power_of_two() && (self.head.wrapping_sub(self.tail) as usize) < slots.len()
    }

    /// When to call [`Requester::handle_timeout`]: the absolute time in nanoseconds. Ask again
    /// after every other call. Once that was called it lies in the future, whether or not what it
    /// says is to be transmitted could be.
    #[inline]
    pub fn next_timeout(&self) -> Option<u64> {
        let hole = match self.recovery.hole {
            Hole::Due { at, .. } => at,
            _ => None,
        };
        [
            self.ack_deadline,
            self.rnr_wait.map(|wait| wait.until),
            self.rate.wake(),
            self.recovery.probe_at,
            hole,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether a packet is of the kind and in the state to be looked at.
    #[inline]
    fn is_mine(&self, packet: &Packet) -> bool {
        self.state == State::Ready
            && self.service.is_reliable()
            && packet.bth.opcode.class() == Class::from(self.service)
    }

    /// The congestion notification to send for an answer that came in marked, before it is handled;
    /// `None` if the packet is going to be dropped for its header (L-03, L-04), or if no answer to
    /// this connection can have its PSN now: it is stale or forged.
    pub fn notification(&self, packet: &Packet) -> Option<TxPacket> {
        let notify = self.is_mine(packet)
            && packet.is_response()
            && crate::reorder::is_near(packet.psn(), self.una)
            && pkey::matches(packet.bth.pkey, self.pkey);
        notify.then(|| congestion::notification(self.dest_qpn, self.pkey))
    }

    /// Takes a congestion notification of the peer: the rate falls (L-07). Nothing else changes
    ///
    pub fn notified(&mut self, now: u64) {
        if self.state == State::Ready {
            self.rate.notified(now);
        }
    }

    /// The PSN whose answer is awaited: the oldest that is not acknowledged.
    #[inline]
    pub fn expected_psn(&self) -> Psn {
        self.una
    }

    /// Whether a packet waits for its time because of the rate.
    #[inline]
    pub fn is_throttled(&self) -> bool {
        self.rate.wake().is_some()
    }

    /// The rate that this half of the queue pair may send at, in bytes per second; `None` where
    /// it has no limit.
    pub fn rate(&mut self, now: u64) -> Option<u64> {
        self.rate.rate(now)
    }

    /// The PSN of the next new packet, for query_qp (J-18).
    #[inline]
    pub fn next_psn(&self) -> u32 {
        self.max_psn.get()
    }

    /// Work requests posted and not completed.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// READs and atomics started and not completed.
    #[inline]
    pub fn outstanding_reads(&self) -> u32 {
        u32::from(self.reads)
    }

    /// Statistics.
    #[inline]
    pub fn counters(&self) -> &RequesterCounters {
        &self.counters
    }
}
