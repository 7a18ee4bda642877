// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: finds out which packets were lost and retransmits only those. The terms are those
//! of RFC 8985 (RACK-TLP) and RFC 6675.
//!
//! The *lost packet* is the oldest unacknowledged one (`una`) once the requester believes it is
//! missing. Evidence is a NAK Sequence Error, a response beyond the lost packet, or no response for
//! longer than a round trip takes (the *probe*). The requester retransmits the lost packet alone
//! (the *repair*) and asks for an acknowledgement. The response shows whether the peer keeps
//! out-of-order packets:
//!
//! - An acknowledgement beyond the repair, or a NAK for the next lost packet: it does. Transmission
//!   continues where it was.
//! - An acknowledgement of the repair alone: it does not (rdma_rxe keeps nothing), or the packet
//!   after it was lost, too. A second repair, of several packets, excludes the latter. The
//!   requester then retransmits everything after it, and from then on does so at once on this queue
//!   pair (go-back-N). After many losses it tests the peer again.
//!
//! The response to a READ or atomic says nothing about the packets after it. The requester
//! therefore asks for the next outstanding packet too, unless its response follows the first one
//! immediately: a peer that responds only to retransmissions has kept nothing.
//!
//! Packets are also lost in bursts. If the packet after the repair is missing too, the requester
//! doubles the number of packets that it retransmits at a time.
//!
//! The consumer's acknowledge timer stays on top of all this. It alone uses up retries without a
//! response, and it restarts transmission from the oldest unacknowledged packet.
//!
//! In [`RecoveryMode::Strict`] every peer counts as one that drops out-of-order packets, there are
//! no probes, and round trips only size the window.

use super::peer::{Arq, ReadRestart};
use super::rtt::MIN_PTO;
use super::scoreboard::Scoreboard;
use super::{DriverPart, RecoveryMode, Requester, RetryState, SendSlot};
use crate::congestion::{Acknowledgement, CongestionControl, PacketLoss};
use crate::psn::Psn;
use crate::wire::Operation;
use crate::{Increment, Minus, Packet, Span, Time};

/// Maximum number of times that a probe doubles the time to the next one (RFC 6298). The back-off
/// limits retransmissions if round trips suddenly become much longer, as in front of a full queue.
const MAX_PTO_BACKOFF: u32 = 10;

/// Losses and expired timers without progress that use up no retry, because packets wait or get
/// lost in the queues of the requester's own host. They say nothing about the path or the peer.
/// Further ones do use up retries: a packet that never leaves the host is an error.
pub(super) const MAX_UNCOUNTED_RETRIES: u8 = 100;

/// Repairs in a row that may have too early a response. A peer that keeps packets also acknowledges
/// those after a late one, or responds to READs after it without a repetition, and then sends a
/// second copy. So after more such repairs the path has become shorter.
const MAX_EARLY_REPAIRS: u8 = 3;

/// Maximum number of packets of one repair.
const MAX_REPAIR: u32 = 64;

/// Number of packets of the second repair that tests the peer: more than a full queue usually drops
/// in a row.
const TEST_REPAIR: u32 = 8;

/// How a loss was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By a NAK Sequence Error.
    Nak,
    /// By a response beyond it.
    Gap,
    /// By the probe timer.
    Probe,
}

/// The repair of the oldest unacknowledged packet, which is believed to be missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repair {
    cause: Cause,
    /// Number of packets to retransmit, from the oldest unacknowledged one on.
    len: u32,
    /// A probe has repeated the retransmission: the response could be to either (Karn's algorithm).
    repeated: bool,
    /// It tests whether the peer keeps out-of-order packets.
    peer_test: bool,
    stage: Stage,
    /// One beyond the highest PSN sent before the retransmission.
    recovery_point: Psn,
}

/// The progress of a repair.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The retransmission is pending, not before this time. `None` means the next poll: the driver
    /// has been told, and a timer does not help a poll that waits for space or for the send side.
    Due(Option<Time>),
    /// Retransmitted at this time.
    Sent(Time),
}

impl Repair {
    /// Returns a pending repair, the first one of these packets.
    fn new(cause: Cause, len: u32, at: Option<Time>) -> Repair {
        debug_assert!((1..=MAX_REPAIR).contains(&len), "the length of a repair");
        Repair {
            cause,
            len,
            repeated: false,
            peer_test: false,
            stage: Stage::Due(at),
            recovery_point: Psn::default(),
        }
    }
}

/// A repair whose packets were acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repaired {
    repair: Repair,
    /// The acknowledgement covers exactly the retransmitted packets.
    alone: bool,
    /// The acknowledgement came too early to be a response to the retransmission.
    early: bool,
    /// Time from the retransmission to the acknowledgement.
    time: Span,
}

impl Repaired {
    /// Returns whether a NAK that acknowledges the repair shows that the peer keeps out-of-order
    /// packets: another peer would have acknowledged the repair alone.
    fn has_gap_after(&self) -> bool {
        self.repair.cause == Cause::Nak && !self.early
    }
}

/// A READ or atomic whose outstanding part was retransmitted.
#[derive(Clone, Copy, Debug)]
struct AskedRead {
    repair: Repair,
    /// The response is to the retransmission, not to the original request.
    fresh: bool,
    /// Time after which the response came, if that is less than the shortest round trip.
    early: Option<Span>,
}

/// The state of loss recovery.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss {
    /// The repair in progress.
    pub(super) repair: Option<Repair>,
    /// The oldest READ or atomic, if its outstanding part was retransmitted.
    asked: Option<AskedRead>,
    pub(super) scoreboard: Scoreboard,
    /// The loss of a READ response that came after a probe. It may be the response to the original
    /// request, and only late. Then a second copy comes before the responses to packets that were
    /// sent after the probe, like a DSACK in RFC 8985, 7.4.
    probed_read: Option<PacketLoss>,
    /// Repairs in a row with too early a response.
    early_repairs: u8,
    /// The PSN of a NAK Sequence Error beyond an outstanding READ or atomic.
    pub(super) refused: Option<Psn>,
    /// Time of the next probe. `None` if the probe timer is off.
    pub(super) probe_at: Option<Time>,
    /// Probes since the last progress, and one more if that showed the last probe superfluous.
    probes: u32,
}

impl Loss {
    /// Returns the time until which a repair waits.
    #[inline]
    pub(super) fn repair_at(&self) -> Option<Time> {
        match self.repair?.stage {
            Stage::Due(at) => at,
            Stage::Sent(_) => None,
        }
    }

    /// Returns whether the outstanding part of the oldest READ or atomic was retransmitted.
    pub(super) fn has_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Asserts what holds between two events.
    pub(super) fn assert_invariants(&self) {
        debug_assert!(
            self.repair
                .is_none_or(|repair| (1..=MAX_REPAIR).contains(&repair.len)),
            "the length of a repair is out of bounds"
        );
        debug_assert!(
            self.early_repairs <= MAX_EARLY_REPAIRS,
            "too many early acknowledgements were accepted"
        );
    }

    /// Notes that a response arrived which had arrived before.
    pub(super) fn duplicate(&mut self, packet: &Packet) {
        self.probed_read.take_if(|loss| loss.una == packet.psn());
        // The first copy was late: the path has not become shorter. (A superfluous repair of other
        // requests lengthens the probe timeout: `Rtt::on_duplicate`.)
        if !matches!(packet.operation, Operation::Acknowledge) {
            self.early_repairs = 0;
        }
    }

    /// Returns whether a gap has not been asked for yet.
    pub(super) fn gaps_are_due(&self) -> bool {
        self.scoreboard.has_due_gap()
    }
}

impl RetryState {
    /// Excuses a retry or an expired timer that this host has caused: it is not counted. Returns
    /// false if that is so for [`MAX_UNCOUNTED_RETRIES`] since the last progress.
    pub(super) fn excuse(&mut self) -> bool {
        let excused = self.uncounted < MAX_UNCOUNTED_RETRIES;
        if excused {
            self.uncounted.increment();
        }
        excused
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Restarts expired response timers. The driver calls this before [`Requester::handle_timeout`]
    /// if its host still queues packets of this queue pair.
    pub fn restart_timers(&mut self, now: Time) {
        if self.retry.deadline.is_some_and(|at| at <= now) && self.retry.excuse() {
            self.arm_ack_timer(now);
        }
        if self.loss.probe_at.is_some_and(|at| at <= now) {
            self.arm_probe(now);
        }
    }

    /// Notes that the host itself dropped some of the packets just sent.
    pub fn dropped_locally(&mut self) {
        self.retry.dropped_until = Some(self.psn.end);
    }

    /// Returns whether the host itself may have dropped the missing packet.
    pub(super) fn is_local_loss(&self) -> bool {
        self.retry
            .dropped_until
            .is_some_and(|until| until.is_after(self.psn.una))
    }

    /// Uses up a retry, unless the host caused the loss. Returns whether one was left.
    pub(super) fn use_retry(&mut self) -> bool {
        if self.is_local_loss() && self.retry.excuse() {
            return true;
        }
        let left = self.retry.left.checked_sub(1);
        self.retry.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Declares the oldest unacknowledged packet lost because of a NAK or gap: schedules a repair
    /// of `len` packets.
    pub(super) fn declare_lost(&mut self, now: Time, cause: Cause, len: u32) {
        debug_assert!(
            self.has_unacknowledged(),
            "a packet is lost that was not sent"
        );
        if self.rtt.srtt().is_zero() {
            // The time since the flight began, an upper bound, is the first sample. Without one,
            // the loss of a retransmission in the first flight would wait for the consumer's timer.
            let time = now.since(self.rtt.flight_start);
            self.rtt.repairs.sample(time);
        }
        if !self.peer.arq.drops() {
            self.report_loss(self.psn.una, cause, len);
        }
        self.loss.repair = Some(Repair {
            repeated: self.loss.repair.is_some_and(|repair| repair.repeated),
            ..Repair::new(cause, len, None)
        });
    }

    /// Returns the number of packets to retransmit next: twice the last number if the peer
    /// acknowledged exactly those ([`TEST_REPAIR`] if it is being tested), otherwise one.
    pub(super) fn next_repair_len(&self, repaired: Option<Repaired>) -> u32 {
        match repaired {
            Some(Repaired { repair, alone, .. }) if alone && repair.cause != Cause::Gap => {
                if self.peer.arq.is_tested() {
                    TEST_REPAIR
                } else {
                    (repair.len << 1).min(MAX_REPAIR)
                }
            }
            _ => 1,
        }
    }

    /// Ends the timer of a repair that is due. Returns whether the next poll must retransmit the
    /// lost packet.
    #[inline]
    pub(super) fn release_repair(&mut self, now: Time) -> bool {
        let repair = self.loss.repair.as_mut();
        let Some(Stage::Due(at)) = repair.map(|repair| &mut repair.stage) else {
            return false;
        };
        *at = at.filter(|&at| at > now);
        at.is_none()
    }

    /// Notes that the lost packet was retransmitted. Returns the number of packets of the repair.
    pub(super) fn on_repair_sent<P: DriverPart>(&mut self, now: Time, slot: &SendSlot<P>) -> u32 {
        let Some(repair) = &mut self.loss.repair else {
            return 0;
        };
        debug_assert!(
            matches!(repair.stage, Stage::Due(None)),
            "a repair that was not due"
        );
        repair.stage = Stage::Sent(now);
        repair.recovery_point = self.psn.end;
        let repair = *repair;
        let is_read = slot.op.is_read_or_atomic();
        if is_read {
            self.gaps.comes_again(slot.last_psn());
        }
        self.loss.asked = is_read.then_some(AskedRead {
            repair,
            fresh: false,
            early: None,
        });
        let within = self.psn.una != slot.progress.first_psn;
        if is_read && within && !matches!(self.peer.read_restart, ReadRestart::WithFirst) {
            self.peer.read_restart = ReadRestart::Asked(self.psn.una);
        }
        self.rtt.retransmitted(self.psn.una, repair.len);
        self.arm_probe(now);
        repair.len
    }

    /// Returns whether new packets wait until the peer's handling of out-of-order packets is known.
    #[inline]
    pub(super) fn awaits_peer_test(&self) -> bool {
        let repair = self.loss.repair.as_ref();
        repair.is_some_and(|repair| repair.cause == Cause::Nak) && self.peer.arq.is_tested()
    }

    /// Returns whether a NAK for the oldest unacknowledged packet is stale: it cannot be a reaction
    /// to the last transmission of that packet.
    pub(super) fn nak_is_stale(&self, now: Time) -> bool {
        if self.attr.mode == RecoveryMode::Strict {
            return self.psn.next == self.psn.una;
        }
        match self.loss.repair.map(|repair| repair.stage) {
            // After a timeout everything may have been retransmitted while the NAK was in flight.
            None => {
                self.psn.next == self.psn.una || self.rtt.is_too_early(self.rtt.flight_start, now)
            }
            Some(Stage::Due(_)) => true,
            Some(Stage::Sent(at)) => self.rtt.is_too_early(at, now),
        }
    }

    /// Notes a NAK, which has acknowledged `repaired`. Returns whether to retransmit everything.
    pub(super) fn note_nak(&mut self, repaired: Option<Repaired>) -> bool {
        match (repaired, self.loss.repair, self.loss.asked) {
            (Some(repaired), ..) if repaired.has_gap_after() => {
                self.set_arq(Arq::SelectiveRepeat(0));
            }
            // The test shows that the packets after the READ are missing, too. The peer
            // may send a NAK for each READ, and never a response that would tell.
            (None, Some(repair), Some(read))
                if repair.cause == Cause::Nak && read.repair.peer_test =>
            {
                self.set_arq(Arq::GoBackN(0));
            }
            _ => {}
        }
        if !self.peer.arq.drops() {
            return false;
        }
        if !self.is_local_loss() {
            self.report_loss(self.psn.una, Cause::Nak, 1);
        }
        self.note_loss();
        !self.peer.arq.is_tested()
    }

    /// Decides what to do after the acknowledgement of a repair.
    #[cold]
    pub(super) fn after_repair(&mut self, repaired: Repaired, now: Time) {
        let cause = repaired.repair.cause;
        let rest_is_lost = repaired.repair.recovery_point.is_after(self.psn.una);
        if cause == Cause::Gap || !repaired.alone {
            self.loss.early_repairs = 0;
            return;
        }
        if !rest_is_lost {
            return;
        }
        if repaired.early && (repaired.repair.repeated || !self.on_early_repair(repaired.time, now))
        {
            return;
        }
        // The responses to a READ acknowledge it packet by packet, so a second repair would ask for
        // what is on its way.
        let may_test = cause == Cause::Nak && self.loss.asked.is_none();
        if (may_test || !self.peer.arq.is_tested()) && self.note_unextended_repair() {
            let len = self.next_repair_len(Some(repaired));
            self.declare_lost(now, Cause::Nak, len);
        } else {
            if cause == Cause::Nak {
                // The time to the response to the repair alone is a round trip without queueing
                // delay.
                self.congestion.on_drained(repaired.time);
                self.set_arq(Arq::GoBackN(0));
            }
            self.rewind();
        }
    }

    /// Handles a repair with a response after less than the shortest round trip: the packet was
    /// late, or the path has become shorter. Returns whether it counts as shorter.
    fn on_early_repair(&mut self, time: Span, now: Time) -> bool {
        if self.loss.early_repairs < MAX_EARLY_REPAIRS {
            self.loss.early_repairs.increment();
            return false;
        }
        self.loss.early_repairs = 0;
        self.rtt.on_shorter_path(time, now);
        true
    }

    /// Handles the complete response to the oldest READ or atomic. If it shows that everything
    /// after it is missing, restarts transmission there.
    pub(super) fn after_read(&mut self, now: Time) {
        let Some(AskedRead {
            repair,
            fresh,
            early,
        }) = self.loss.asked.take()
        else {
            self.loss.early_repairs = 0;
            return;
        };
        let was_gap = repair.cause == Cause::Gap;
        if was_gap || fresh {
            self.loss.early_repairs = 0;
        }
        let is_last = !repair.recovery_point.is_after(self.psn.una);
        if was_gap || is_last || self.loss.repair.is_some() {
            return;
        }
        let tells = match early {
            Some(time) => self.on_early_repair(time, now),
            None => fresh,
        };
        if !tells {
            return;
        }
        if repair.peer_test {
            if repair.cause == Cause::Nak {
                self.set_arq(Arq::GoBackN(0));
            }
            self.rewind();
        } else if !matches!(self.peer.arq, Arq::SelectiveRepeat(_)) {
            // A peer that has kept the next request responds to it immediately after this one.
            let wait = match repair.cause {
                Cause::Probe => self.rtt.rto(false, MIN_PTO),
                _ => self.rtt.srtt() / 2,
            };
            let at = Some(now + wait);
            self.loss.repair = Some(Repair {
                peer_test: true,
                ..Repair::new(repair.cause, repair.len, at)
            });
        }
    }

    /// Returns whether the READ responses from `una` on have been asked for again and are on their
    /// way.
    pub(super) fn is_asked(&self) -> bool {
        self.loss.asked.is_some() || self.loss.scoreboard.was_asked(self.psn.una)
    }

    /// Returns the number of packets that may be in flight now.
    #[inline]
    pub(super) fn flight_limit(&self) -> u32 {
        let selective = matches!(self.peer.arq, Arq::SelectiveRepeat(_));
        let repair = self.loss.repair.as_ref();
        let kept_beyond = repair.is_some_and(|repair| repair.cause == Cause::Gap || selective);
        if kept_beyond {
            self.congestion.window_beyond_loss()
        } else {
            self.congestion.window()
        }
    }

    /// Handles the acknowledgement of the packets from `before` up to `una`: restarts all retry
    /// counts (E-09), and skips the retransmission of packets acknowledged in the meantime.
    /// `original` tells that the response is known to be to the original transmission, and `again`
    /// that it may be to a retransmission. Returns the acknowledged repair.
    pub(super) fn on_progress(
        &mut self,
        before: Psn,
        original: bool,
        again: bool,
        now: Time,
    ) -> Option<Repaired> {
        let una = self.psn.una;
        let advanced = una.since(before);
        debug_assert!(advanced != 0, "progress without an acknowledged packet");
        debug_assert!(
            advanced <= self.psn.end.since(before),
            "a packet is acknowledged that was not sent"
        );
        let jumped = self.psn.next.since(before) < advanced;
        if jumped {
            self.psn.next = una;
            self.psn.responses = 0;
        }
        self.retry.left = self.attr.retry_count;
        self.retry.rnr_left = self.attr.rnr_retry;
        self.retry.uncounted = 0;
        if !self.is_local_loss() {
            self.retry.dropped_until = None;
        }
        self.retry.rnr_wait = self.retry.rnr_wait.filter(|wait| !una.is_after(wait.from));
        self.retry.rnr_since = None;
        self.implied_nak = false;
        // The timer runs only while something is in flight, not while it waits for retransmission.
        if self.psn.next == una {
            self.retry.deadline = None;
        } else {
            self.arm_ack_timer(now);
        }
        let disturbed = self.loss.repair.is_some();
        let superfluous = |repair: Repair| match repair.stage {
            Stage::Sent(at) => repair.cause == Cause::Probe && self.rtt.is_too_early(at, now),
            Stage::Due(_) => false,
        };
        let superfluous = self.loss.repair.is_some_and(superfluous);
        self.rtt
            .on_progress(before, advanced, !disturbed && !jumped, now);
        self.gaps.close(again, now);
        self.congestion.on_ack(&Acknowledgement {
            now,
            una,
            packets: advanced,
            min_rtt: self.rtt.min,
            base_rtt: self.rtt.base,
            srtt: self.rtt.srtt(),
            queues: self.rtt.shows_a_queue(),
            disturbed,
            restarts: jumped,
        });
        let mut repaired = None;
        if disturbed {
            repaired = self.on_repair_ack(before, advanced, original, now);
        }
        self.confirm_probed_loss();
        // If the response to the original transmission comes soon after a probe, round trips are
        // longer than they seem, and one step of the back-off stays (RFC 6298, 5). More would cost
        // a path that loses many packets several round trips for each of them.
        self.loss.probes = self.loss.probes.min(u32::from(superfluous));
        self.loss.scoreboard.progress(una, self.psn.end);
        if jumped && self.peer.arq.drops() {
            // The peer had kept the packets after a gap.
            self.set_arq(Arq::Unknown(0));
        }
        self.arm_probe(now);
        repaired
    }

    /// Handles the acknowledgement of `advanced` packets, the lost one included. Returns the
    /// repair, unless it was pending.
    #[cold]
    fn on_repair_ack(
        &mut self,
        before: Psn,
        advanced: u32,
        original: bool,
        now: Time,
    ) -> Option<Repaired> {
        let repair = self.loss.repair.take()?;
        let Repair { cause, len, .. } = repair;
        debug_assert!(
            advanced != 0,
            "the acknowledgement of no packet ends a repair"
        );
        let at = match repair.stage {
            // The peer responded without a retransmission: it had kept the packet. (If only a
            // response was lost, the peer had no gap, and the test shows nothing.)
            Stage::Due(_) => {
                if cause == Cause::Nak {
                    self.congestion.on_late(before);
                    if repair.peer_test {
                        self.set_arq(Arq::SelectiveRepeat(0));
                    }
                }
                return None;
            }
            Stage::Sent(at) => at,
        };
        if advanced < len && self.loss.asked.is_none() && self.psn.next != self.psn.una {
            // A peer may acknowledge each packet of the repair on its own.
            let len = len.minus(advanced);
            self.loss.repair = Some(Repair { len, ..repair });
            return None;
        }
        self.rtt.probed = cause == Cause::Probe;
        let time = now.since(at);
        let early = self.rtt.is_too_early(at, now);
        let late = original || early;
        if late && cause == Cause::Nak {
            // The packet was not lost.
            self.congestion.on_late(before);
        }
        let kept = self.loss.asked.as_mut().is_some_and(|read| {
            read.fresh = !late && time >= self.rtt.srtt() / 2;
            read.early = (early && !original && !repair.repeated).then_some(time);
            read.repair.peer_test && !read.fresh
        });
        let lost = !kept && !late;
        if lost {
            self.on_lost(before, repair, time);
        }
        if cause == Cause::Nak && (kept || lost && advanced > len) {
            self.set_arq(Arq::SelectiveRepeat(0));
        }
        Some(Repaired {
            repair,
            alone: advanced == len,
            early,
            time,
        })
    }

    /// Reports a loss, by which this number of packets is considered lost now. How long READs take
    /// says nothing about the queues on the path.
    fn report_loss(&mut self, una: Psn, cause: Cause, packets: u32) {
        self.signal_loss(&PacketLoss {
            una,
            max: self.psn.end,
            packets,
            full_queue: cause != Cause::Gap && self.rtt.shows_a_full_queue(),
        });
    }

    /// Signals a loss to the congestion control.
    fn signal_loss(&mut self, loss: &PacketLoss) {
        let reduced = self.congestion.on_loss(loss);
        self.note_reduction(reduced);
    }

    /// Reports the loss of a response to a probed READ, if a response to a later packet has come,
    /// but no second copy of that one.
    #[inline]
    fn confirm_probed_loss(&mut self) {
        let una = self.psn.una;
        let probed = &mut self.loss.probed_read;
        let confirmed = probed.take_if(|loss| una.is_after(loss.max));
        if let Some(loss) = confirmed.filter(|_| !self.peer.arq.drops()) {
            let max = self.psn.end;
            self.signal_loss(&PacketLoss { max, ..loss });
        }
    }

    /// Notes that the packet `una` was lost, and that the response to its repair took this time.
    fn on_lost(&mut self, una: Psn, repair: Repair, time: Span) {
        if !repair.repeated {
            // The response to a request after a probe may be to the original transmission.
            let is_round_trip = repair.cause != Cause::Probe || self.loss.asked.is_some();
            self.rtt.sample_repair(time, is_round_trip);
            if repair.cause == Cause::Nak && self.loss.asked.is_none() {
                self.rtt.sample_packets(time);
            }
            if repair.cause == Cause::Probe && is_round_trip {
                self.loss.probed_read.get_or_insert(PacketLoss {
                    una,
                    max: repair.recovery_point,
                    packets: 0,
                    full_queue: self.rtt.shows_a_full_queue(),
                });
            } else if is_round_trip && !self.peer.arq.drops() {
                self.report_loss(una, repair.cause, 0);
            }
            // READs take as long as their responses.
            if repair.cause == Cause::Probe && self.loss.asked.is_none() {
                self.rtt.sample_probe(time);
            }
        }
    }

    /// Restarts transmission at the oldest unacknowledged packet.
    pub(super) fn rewind(&mut self) {
        self.queue.next = self.queue.tail;
        self.credits.sent = self.credits.completed;
        self.psn.next = self.psn.una;
        self.psn.responses = 0;
        self.psn.since_ackreq = 0;
        self.retry.deadline = None;
        self.loss = Loss {
            scoreboard: Scoreboard::at(self.psn.una),
            ..Loss::default()
        };
        self.gaps.forget();
        self.rtt.timed = None;
    }

    /// Starts the probe timer if anything is in flight. The timeout is the longest expected
    /// response time, and doubles after each probe without a response. There is no probe without a
    /// consumer's timeout (F-02) or after it, or in strict mode.
    pub(super) fn arm_probe(&mut self, now: Time) {
        self.loss.probe_at = None;
        if self.attr.mode == RecoveryMode::Strict
            || self.attr.ack_timeout.is_none()
            || self.psn.next == self.psn.una
        {
            return;
        }
        let sent = |repair: Repair| matches!(repair.stage, Stage::Sent(_));
        let repair = self.loss.repair.is_some_and(sent);
        let min = if repair && self.loss.asked.is_none() {
            MIN_PTO / 2
        } else {
            MIN_PTO
        };
        let wait = self.rtt.rto(repair, min);
        debug_assert!(!wait.is_zero(), "a probe without delay");
        let steps = self.loss.probes.min(MAX_PTO_BACKOFF);
        let at = now.checked_add(wait.doubled(steps));
        let deadline = self.retry.deadline;
        self.loss.probe_at = at.filter(|&at| deadline.is_some_and(|deadline| at < deadline));
    }

    /// Handles the expiry of the probe timer: the oldest packet counts as lost, or its
    /// retransmission is repeated.
    pub(super) fn probe(&mut self) {
        self.loss.probe_at = None;
        if self.psn.next == self.psn.una {
            return;
        }
        self.loss.probes.increment();
        self.counters.probes.increment();
        let new = Repair::new(Cause::Probe, 1, None);
        let repair = self.loss.repair.get_or_insert(new);
        if matches!(repair.stage, Stage::Sent(_)) {
            repair.repeated = true;
            repair.peer_test = false;
        }
        repair.stage = Stage::Due(None);
        debug_assert!(
            self.loss.probe_at.is_none(),
            "the probe timer is still armed"
        );
    }
}
