// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requester: sends work requests as packets, receives the responses, and completes the work
//! requests in posting order (IBA 9.7.2, 9.7.6; for UC and UD 9.8).
//!
//! A work request lives in a [`SendSlot`] of the driver's storage from [`Requester::post`] until
//! [`RequesterEnv::complete`]. Three free-running counters walk through the slots: `tail` (the
//! oldest not completed) up to `next` (the one whose packets are being sent) up to `head` (the next
//! to be posted). The requester keeps no sent packets: a retransmission rebuilds them from the
//! slots, and so has the same PSNs, opcodes and payload split (F-07).

mod credits;
mod invariants;
mod loss;
mod peer;
mod request;
mod response;
mod rtt;
mod scoreboard;
mod status;
mod transmit;

pub use crate::congestion::{MAX_WINDOW, WINDOW};
pub(crate) use request::ATOMIC_WRITE_LEN;
pub use request::{
    Destination, DriverPart, Fence, Remote, SendCompletion, SendExt, SendOp, SendSlot, SlotProgress,
};
pub use rtt::MIN_PTO;
pub use status::{RequesterStatus, SendLimit};

use crate::congestion::{self, Congestion, CongestionControl};
use crate::gap::GapDetector;
use crate::psn::Psn;
use crate::{
    Fault, Mtu, Packet, RingCounter, Service, Span, Stat, Status, Time, TxError, TxPacket,
};
use credits::Credits;
use loss::Loss;
use peer::{Arq, Peer, ReadRestart};
use request::SlotState;
use rtt::Rtt;

/// Limit of outstanding PSNs beyond which no READ starts. The peer sends responses as fast as it
/// can, and a host's receive queue usually has space for 1000 packets.
pub const MAX_RESPONSES: u32 = 1024;

/// The largest message: 2^31 bytes (IBA 9.7.2).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Number of the general services queue pair (QP1).
const GSI_QPN: u32 = 1;

/// RNR retry count that means "retry forever".
const RNR_RETRY_INFINITE: u8 = 7;

/// Longest delay after an RNR NAK, unless the peer or the driver
/// ([`RequesterEnv::reserve_rnr_retry`]) asks for more. A hundred retries a second take little CPU
/// time.
const MAX_RNR_BACKOFF: Span = Span::from_us(10_000);

/// Shortest acknowledge timeout: a CPU may take a few milliseconds to process a
/// packet. Hardware rounds short timeouts up, too.
pub const MIN_ACK_TIMEOUT: Span = Span::from_us(4_000);

/// Work requests that one call of [`Requester::poll_transmit`] flushes.
pub const MAX_FLUSH: u32 = 64;

/// Returns the acknowledge timeout `4.096 us * 2^code` (IBA 9.7.6.1.3); `None` for 0, which
/// disables the timer. Ignores all but the low five bits.
#[inline]
pub const fn ack_timeout(code: u8) -> Option<Span> {
    match code & 0x1f {
        0 => None,
        n => Some(Span::from_ns(4096).doubled(n as u32)),
    }
}

/// Loss detection and retransmission strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Retransmits only missing packets to a peer that keeps out-of-order packets, and probes for a
    /// lost tail before the acknowledge timeout.
    #[default]
    Selective,
    /// Go-back-N with the timers of the specification alone (IBA 9.7.6).
    Strict,
}

/// Operations that the requester needs from the driver, each for a work request.
pub trait RequesterEnv {
    /// The driver's part of a slot.
    type Local: DriverPart;

    /// Takes `count` packets of a message to send: this one and its successors by
    /// [`TxPacket::advance`], which differ only in PSN and payload position. Several are from the
    /// middle of the message. Returns how many were accepted, and why the next one was not.
    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot<Self::Local>,
    ) -> (u32, Result<(), TxError>);

    /// Copies the whole payload of the packet being handled to byte `offset` of the work request's
    /// scatter list, never beyond the length of the work request. After [`Fault::NotPresent`], the
    /// requester sends nothing until [`Requester::on_memory_present`], and then asks for the
    /// response again.
    fn write_read_response(
        &mut self,
        slot: &SendSlot<Self::Local>,
        offset: u32,
    ) -> Result<(), Fault>;

    /// Stores the original value, in host byte order, to the work request's scatter list.
    /// [`Fault::NotPresent`] has the same effect as for
    /// [`RequesterEnv::write_read_response`].
    fn write_atomic_result(
        &mut self,
        slot: &SendSlot<Self::Local>,
        value: u64,
    ) -> Result<(), Fault>;

    /// Completes a work request: called exactly once for each, in posting order. The driver frees
    /// the slot's data, and raises a completion if [`SendCompletion::report`] says so.
    fn complete(&mut self, slot: &SendSlot<Self::Local>, completion: SendCompletion);

    /// Executes a [`SendOp::Local`], in posting order. Returns the status of a failure.
    fn local_op(&mut self, slot: &SendSlot<Self::Local>) -> Result<(), Status>;

    /// Reserves a retry of a request whose receiver has not been ready for long. Returns the
    /// earliest time of the retry: `now` unless the driver limits the rate of these
    /// retries.
    fn reserve_rnr_retry(&mut self, now: Time) -> Time {
        now
    }
}

/// The driver's arguments of a call: its work requests, the time, its environment.
struct Ctx<'a, E: RequesterEnv> {
    slots: &'a mut [SendSlot<E::Local>],
    now: Time,
    env: &'a mut E,
}

/// State of the send queue (IBA 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not ready to send: nothing is sent or received.
    #[default]
    Idle,
    /// Ready to send. The Send Queue Drained state is this one with `paused` set.
    Ready,
    /// A work request of UC or UD failed; those after it are flushed (J-09, J-10).
    SendError,
    /// Every work request is flushed.
    Error,
}

/// Statistics of a requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets retransmitted.
    pub retransmitted: Stat,
    /// Expirations of the probe timer.
    pub probes: Stat,
    /// Acknowledge timer expirations.
    pub timeouts: Stat,
    /// NAK Sequence Errors handled.
    pub sequence_naks: Stat,
    /// RNR NAKs handled.
    pub rnr_naks: Stat,
    /// Gaps in READ responses, and responses beyond an outstanding READ or atomic.
    pub implied_naks: Stat,
    /// Reductions of the window.
    pub window_reductions: Stat,
    /// Responses with a wrong P_Key, for the port's counter.
    pub bad_pkeys: Stat,
    /// Responses dropped as old, unsolicited, reserved or malformed, or because the memory for them
    /// was absent.
    pub dropped: Stat,
}

/// The wait after an RNR NAK.
#[derive(Clone, Copy, Debug)]
struct RnrWait {
    /// PSN of the refused request. It and its successors wait.
    from: Psn,
    until: Time,
}

/// Free-running counters that walk through the slots: `tail` <= `next` <= `head`.
#[derive(Clone, Copy, Debug, Default)]
struct SlotCursor {
    /// The next work request to be posted.
    head: RingCounter,
    /// The work request whose packets are being sent.
    next: RingCounter,
    /// The oldest work request that is not complete.
    tail: RingCounter,
}

/// Packet sequence numbers: `una` <= `next` <= `end`.
#[derive(Clone, Copy, Debug, Default)]
struct PsnSpace {
    /// The oldest unacknowledged PSN.
    una: Psn,
    /// The PSN to send next.
    next: Psn,
    /// One beyond the highest PSN ever sent.
    end: Psn,
    /// PSNs between `una` and `next` that stand for expected READ responses, not for request
    /// packets in flight.
    responses: u32,
    /// Packets sent since the last one that asked for an acknowledgement.
    since_ackreq: u32,
}

/// Timers, and the retries that are left.
#[derive(Clone, Copy, Debug, Default)]
struct RetryState {
    /// Retries left before the requester gives up.
    left: u8,
    /// Retries left after an RNR NAK.
    rnr_left: u8,
    /// When the acknowledge timer expires. `None` if it is off.
    deadline: Option<Time>,
    rnr_wait: Option<RnrWait>,
    /// Time of the first RNR NAK since the last progress.
    rnr_since: Option<Time>,
    /// One beyond the last packet that this host itself may have dropped.
    dropped_until: Option<Psn>,
    /// Retries and expired timers without progress that were not counted, because this host caused
    /// them.
    uncounted: u8,
}

/// Attributes of the queue pair that concern loss.
#[derive(Clone, Copy, Debug, Default)]
struct SendAttr {
    mode: RecoveryMode,
    retry_count: u8,
    rnr_retry: u8,
    /// Time until the acknowledge timer expires. `None` disables the timer.
    ack_timeout: Option<Span>,
}

/// The sending half of a queue pair. See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Requester<C = Congestion> {
    service: Service,
    state: State,
    /// Send Queue Drained (SQD): no new message starts.
    paused: bool,

    queue: SlotCursor,
    psn: PsnSpace,
    retry: RetryState,
    peer: Peer,
    attr: SendAttr,
    /// READs and atomics started and not completed.
    pub reads: u8,
    /// A missing response was asked for again. It is asked for only once until there is progress.
    implied_nak: bool,
    /// A response was dropped because the memory for it was absent. Nothing is sent until
    /// [`Requester::on_memory_present`].
    awaits_memory: bool,
    rtt: Rtt,
    loss: Loss,
    /// The gap in the responses, as far as the driver buffers them.
    gaps: GapDetector,
    credits: Credits,

    /// The limits of the packets in flight and of the rate.
    pub congestion: C,

    // Attributes of the queue pair that the driver sets.
    /// The driver buffers packets on request ([`crate::Outcome::buffer`]). By default it does not,
    /// and the requester asks again for everything from a gap on.
    pub buffering: bool,
    /// This queue pair's own number, which UD packets carry.
    pub src_qpn: u32,
    /// The peer's queue pair number (RC, UC).
    pub dest_qpn: u32,
    /// The path MTU (for UD, the port's MTU).
    pub mtu: Mtu,
    /// The queue pair's Q_Key, used for datagrams whose own Q_Key has the top bit set.
    pub qkey: u32,
    /// Maximum number of outstanding READs and atomics (F-23). With 0, each fails with LocQpOp,
    /// because it could never start.
    pub max_rd_atomic: u8,

    /// The statistics.
    pub counters: RequesterCounters,
}

impl<C: CongestionControl> Requester<C> {
    /// Returns a requester in the Reset state.
    #[inline]
    pub fn new(service: Service) -> Requester<C> {
        Requester {
            service,
            ..Requester::default()
        }
    }

    /// Returns to the Reset state (IBA 10.3.1.2): forgets everything, including attributes and
    /// outstanding work requests, without completing them. Keeps only [`Requester::src_qpn`],
    /// [`Requester::buffering`] and [`Requester::set_recovery`].
    pub fn reset(&mut self) {
        let (src_qpn, buffering, mode) = (self.src_qpn, self.buffering, self.attr.mode);
        *self = Requester::new(self.service);
        self.src_qpn = src_qpn;
        self.buffering = buffering;
        self.set_recovery(mode);
    }

    /// Sets the recovery mode. With [`RecoveryMode::Strict`] no response is buffered, and every
    /// peer counts as one that drops out-of-order packets.
    pub fn set_recovery(&mut self, mode: RecoveryMode) {
        self.attr.mode = mode;
        self.peer.read_restart = ReadRestart::Unknown;
        self.peer.arq = match mode {
            RecoveryMode::Selective => Arq::Unknown(0),
            RecoveryMode::Strict => Arq::GoBackN(0),
        };
        self.congestion.on_peer(self.peer.arq.drops());
    }

    /// Returns whether the driver keeps out-of-order responses.
    #[inline]
    fn buffers(&self) -> bool {
        self.buffering && self.attr.mode == RecoveryMode::Selective
    }

    /// Returns whether a packet was sent and not acknowledged; false for unreliable services.
    #[inline]
    pub fn has_unacknowledged(&self) -> bool {
        self.psn.una != self.psn.end
    }

    /// Sets the first PSN to send: the low 24 bits (B-02). Valid only while nothing is outstanding.
    pub fn set_psn(&mut self, psn: u32) {
        debug_assert!(!self.has_unacknowledged(), "the PSN of a packet changes");
        self.psn.una = Psn::new(psn);
        self.psn.next = self.psn.una;
        self.psn.end = self.psn.una;
    }

    /// Sets the acknowledge timeout by its code; see [`ack_timeout`]. A timer that is armed keeps
    /// its time until there is progress; [`Requester::start_timers`] arms one that was disabled.
    pub fn set_timeout(&mut self, code: u8) {
        self.attr.ack_timeout = ack_timeout(code).map(|time| time.max(MIN_ACK_TIMEOUT));
        if self.attr.ack_timeout.is_none() {
            self.retry.deadline = None;
            self.loss.probe_at = None;
        }
    }

    /// Sets the number of retries before giving up: 0 to 7 (F-03, F-04).
    pub fn set_retry_count(&mut self, count: u8) {
        self.attr.retry_count = count & 7;
        self.retry.left = self.attr.retry_count;
    }

    /// Sets the number of retries after an RNR NAK: 0 to 6, or 7 for an unlimited number (E-07).
    pub fn set_rnr_retry(&mut self, count: u8) {
        self.attr.rnr_retry = count & 7;
        self.retry.rnr_left = self.attr.rnr_retry;
    }

    /// Enters the Ready To Send state, also from SQE and SQD (J-07).
    pub fn start(&mut self) {
        if self.state != State::Error {
            if self.psn.una == self.psn.end && self.state == State::Idle {
                self.congestion.start(self.mtu);
            }
            self.state = State::Ready;
            self.paused = false;
        }
    }

    /// Enters the Send Queue Drained state: no new message starts (J-05).
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Returns whether the queue is paused and no started work request is outstanding (J-06).
    pub fn is_drained<P: DriverPart>(&self, slots: &[SendSlot<P>]) -> bool {
        let tail = self.slot(slots, self.queue.tail);
        self.paused && tail.is_none_or(|slot| slot.progress.state == SlotState::Posted)
    }

    /// Returns whether a work request can be posted. Always false if the number of slots is not a
    /// power of two.
    #[inline]
    pub fn can_post<P: DriverPart>(&self, slots: &[SendSlot<P>]) -> bool {
        slots.len().is_power_of_two() && (self.outstanding() as usize) < slots.len()
    }

    /// Returns when to call [`Requester::handle_timeout`]. The driver asks again
    /// after every other call. After `handle_timeout` the time is in the future, even if the
    /// pending packets could not be sent.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        // The rate may have delayed a retransmission that is no longer needed.
        let wakeup = self.congestion.wakeup();
        debug_assert!(
            self.queue.head != self.queue.tail || self.retry.deadline.is_none(),
            "a timer is armed without a work request"
        );
        crate::earliest([
            self.retry.deadline,
            self.retry.rnr_wait.map(|wait| wait.until),
            wakeup.filter(|_| self.queue.head != self.queue.tail),
            self.loss.probe_at,
            self.loss.repair_at(),
            self.gaps.due_at(),
        ])
    }

    /// Returns whether the requester handles packets of this kind in its current state.
    #[inline]
    fn is_mine(&self, packet: &Packet) -> bool {
        self.state == State::Ready
            && self.service.is_reliable()
            && packet.bth.opcode.service() == Some(self.service)
    }

    /// Returns the congestion notification for a response that arrived marked, before it is
    /// handled. `None` if the requester will drop the packet because of its header (L-03, L-04), or
    /// if its PSN is so far off that it is stale or forged.
    pub fn cnp(&self, packet: &Packet) -> Option<TxPacket> {
        let notify = self.is_mine(packet)
            && packet.is_response()
            && crate::reorder::is_plausible(packet.psn(), self.psn.una)
            && packet.bth.is_in_partition();
        notify.then(|| congestion::cnp(self.dest_qpn))
    }

    /// Handles a congestion notification: lowers the rate (L-07) and nothing else. Returns
    /// whether it did.
    pub fn on_cnp(&mut self, now: Time) -> bool {
        self.state == State::Ready && self.congestion.on_cnp(now)
    }

    /// Counts a reduction of the window, if there was one.
    fn note_reduction(&mut self, reduced: bool) {
        self.counters.window_reductions.add(reduced.into());
    }

    /// Returns whether the rate delays a packet.
    #[inline]
    pub fn is_throttled(&self) -> bool {
        self.congestion.wakeup().is_some()
    }

    /// Returns the oldest unacknowledged PSN, whose response is expected next.
    #[inline]
    pub fn expected_psn(&self) -> Psn {
        self.psn.una
    }

    /// Returns the limit of packets in flight, unless packets are kept beyond a lost one.
    #[inline]
    pub fn window(&self) -> u32 {
        self.congestion.window()
    }

    /// Returns the PSN of the next new packet, for query_qp (J-18).
    #[inline]
    pub fn next_psn(&self) -> u32 {
        self.psn.end.get()
    }

    /// Returns whether work requests are left for [`Requester::poll_transmit`] to complete as
    /// flushed (SQE and Error states).
    #[inline]
    pub fn is_flushing(&self) -> bool {
        matches!(self.state, State::SendError | State::Error) && self.queue.tail != self.queue.head
    }

    /// Returns the number of work requests posted and not completed.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.queue.head.since(self.queue.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::{ack_timeout, Span};

    /// F-02
    #[test]
    fn f_02_zero_disables() {
        assert_eq!(ack_timeout(0), None);
        let ns = |code| ack_timeout(code).map(Span::ns);
        assert_eq!(ns(1), Some(8_192));
        assert_eq!(ns(14), Some(67_108_864));
        assert_eq!(ns(31), Some(8_796_093_022_208));
    }
}
