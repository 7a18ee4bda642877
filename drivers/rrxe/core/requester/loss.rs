// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: finds out which packets were lost and retransmits only those. The terms are those
//! of RFC 8985 (RACK-TLP) and RFC 6675. Times are in nanoseconds.
//!
//! The *lost packet* is the oldest unacknowledged one (`una`) once the requester believes it is
//! missing. Evidence is a NAK Sequence Error, an answer beyond the lost packet, or no answer for
//! longer than a round trip takes (the *probe*). The requester retransmits the lost packet alone
//! (the *repair*) and asks for an acknowledgement. The answer shows whether the peer keeps
//! out-of-order packets:
//!
//! - An acknowledgement beyond the repair, or a NAK for the next lost packet: it does. Transmission
//!   continues where it was.
//! - An acknowledgement of the repair alone: it does not (rdma_rxe keeps nothing). The requester
//!   retransmits everything after it, and from then on does so at once on this queue pair
//!   (go-back-N).
//!
//! The answer to a READ or atomic says nothing about the packets after it. The requester therefore
//! asks for the next unanswered packet too, unless its answer follows the first one immediately: a
//! peer that answers only what was retransmitted has kept nothing.
//!
//! Packets are also lost in bursts. If the packet after the repair is missing too, the requester
//! doubles the number of packets that it retransmits at a time.
//!
//! The consumer's acknowledge timer stays on top of all this. It alone uses up retries without an
//! answer, and it restarts transmission from the oldest unacknowledged packet.
//!
//! In [`RecoveryMode::Strict`] every peer counts as one that drops out-of-order packets, there are
//! no probes, and round trips only size the window.

use super::peer::{Arq, ReadRestart};
use super::transmit::Poll;
use super::{Ctx, RecoveryMode, Requester, RequesterEnv as Env, SendOp, SendSlot, WINDOW};
use crate::psn::Psn;
use crate::TxError;

/// Maximum number of times that a probe multiplies the time to the next one by four. The back-off
/// limits retransmissions if round trips suddenly become much longer, as in front of a full queue.
const MAX_PTO_BACKOFF: u32 = 5;

/// Losses and expired timers without progress that use up no retry, because packets wait or get
/// lost in the queues of the requester's own host. They say nothing about the path or the peer.
/// Further ones do use up retries: a packet that never leaves the host is an error.
const MAX_UNCOUNTED_RETRIES: u8 = 100;

/// Maximum number of packets of one repair.
const MAX_REPAIR: u32 = 64;

/// Length of a loss burst that indicates a queue overflow: the window is halved then.
const OVERFLOW_BURST: u32 = 8;

/// Reorder window below which packets count as in order.
const MIN_REORDER_WINDOW: u64 = 1_000;

/// Maximum number of gaps tracked. Later ones are found when nothing before them is missing.
const MAX_GAPS: usize = 8;

/// Maximum number of work requests that are searched for the READ of a gap. Each early response
/// causes a search, and local operations, which have no PSN, may fill the queue behind a READ.
const MAX_SEARCH: usize = 64;

/// How a loss was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By a NAK Sequence Error.
    Nak,
    /// By an answer beyond it.
    Gap,
    /// By the probe timer.
    Probe,
}

/// The repair of the oldest unacknowledged packet, which is believed to be missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repair {
    /// Time of the detection.
    since: u64,
    cause: Cause,
    /// Number of packets to retransmit, from the oldest unacknowledged one on.
    len: u32,
    /// A probe has repeated the retransmission: the answer could be to either (Karn's algorithm).
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
    /// has been told, and a timer does not help a poll that waits for room or for the send side.
    Due(Option<u64>),
    /// Retransmitted at this time.
    Sent(u64),
}

impl Repair {
    /// Returns a pending repair, the first one of these packets.
    fn new(since: u64, cause: Cause, len: u32, at: Option<u64>) -> Repair {
        Repair {
            since,
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
    /// The acknowledgement came too early to be an answer to the retransmission.
    early: bool,
}

/// A READ or atomic whose unanswered part was retransmitted.
#[derive(Clone, Copy, Debug)]
struct AskedRead {
    repair: Repair,
    /// The answer is to the retransmission, not to the original request.
    fresh: bool,
}

/// The state of loss recovery.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss {
    /// The repair in progress.
    pub(super) repair: Option<Repair>,
    /// The oldest READ or atomic, if its unanswered part was retransmitted.
    asked: Option<AskedRead>,
    scoreboard: Scoreboard,
    /// Delay of reordered packets (RFC 8985). A packet is considered lost only after this time.
    reorder_window: u64,
    /// Time of the next probe. `None` if the probe timer is off.
    pub(super) probe_at: Option<u64>,
    /// Probes since the last progress.
    probes: u32,
}

impl Loss {
    /// Returns the time until which a repair waits.
    #[inline]
    pub(super) fn repair_at(&self) -> Option<u64> {
        match self.repair?.stage {
            Stage::Due(at) => at,
            Stage::Sent(_) => None,
        }
    }

    /// Returns whether a gap has not been asked for yet.
    pub(super) fn gaps_are_due(&self) -> bool {
        self.scoreboard.gaps.iter().flatten().any(|gap| !gap.asked)
    }
}

impl Requester {
    /// Restarts expired answer timers. The driver calls this before [`Requester::handle_timeout`]
    /// if its host still queues packets of this queue pair.
    pub fn restart_timers(&mut self, now: u64) {
        if self.ack_deadline.is_some_and(|at| at <= now)
            && self.uncounted_retries < MAX_UNCOUNTED_RETRIES
        {
            self.uncounted_retries = self.uncounted_retries.saturating_add(1);
            self.arm_ack_timer(now);
        }
        if self.loss.probe_at.is_some_and(|at| at <= now) {
            self.arm_probe(now);
        }
    }

    /// Notes that the host itself dropped some of the packets just sent.
    pub fn dropped_locally(&mut self) {
        self.dropped_until = Some(self.max_psn);
    }

    /// Returns whether the host itself may have dropped the missing packet.
    pub(super) fn is_local_loss(&self) -> bool {
        self.dropped_until
            .is_some_and(|until| until.is_after(self.una))
    }

    /// Uses up a retry, unless the host caused the loss. Returns whether one was left.
    pub(super) fn use_retry(&mut self) -> bool {
        if self.is_local_loss() && self.uncounted_retries < MAX_UNCOUNTED_RETRIES {
            self.uncounted_retries = self.uncounted_retries.saturating_add(1);
            return true;
        }
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Declares the oldest unacknowledged packet lost because of a NAK or gap: schedules a repair
    /// of `len` packets after the observed reordering delay.
    pub(super) fn declare_lost(&mut self, now: u64, cause: Cause, len: u32) {
        if self.rtt.srtt() == 0 {
            // The time since the flight began, an upper bound, is the first sample. Without one,
            // the loss of a retransmission in the first flight would wait for the consumer's timer.
            let time = now.saturating_sub(self.rtt.flight_start);
            self.rtt.repairs.sample(time);
        }
        let wait = self.loss.reorder_window;
        let at = (wait != 0).then(|| now.saturating_add(wait));
        self.loss.repair = Some(Repair {
            repeated: self.loss.repair.is_some_and(|repair| repair.repeated),
            ..Repair::new(now, cause, len, at)
        });
    }

    /// Returns the number of packets to retransmit next: twice the last number if the peer
    /// acknowledged exactly those, otherwise one.
    pub(super) fn next_repair_len(&mut self, repaired: Option<Repaired>) -> u32 {
        let len = match repaired {
            Some(Repaired { repair, alone, .. }) if alone && repair.cause != Cause::Gap => {
                repair.len.saturating_mul(2).min(MAX_REPAIR)
            }
            _ => 1,
        };
        if len == OVERFLOW_BURST && !self.is_local_loss() {
            // A queue on the path has overflowed. The peer keeps out-of-order packets.
            self.window.size = (self.window.size >> 1).max(WINDOW);
        }
        len
    }

    /// Returns whether the lost packet must be retransmitted by the next poll.
    #[inline]
    pub(super) fn repair_is_due(&mut self, now: u64) -> bool {
        let repair = self.loss.repair.as_mut();
        let Some(Stage::Due(at)) = repair.map(|repair| &mut repair.stage) else {
            return false;
        };
        *at = at.filter(|&at| at > now);
        at.is_none()
    }

    /// Notes that the lost packet was retransmitted. Returns the number of packets of the repair.
    pub(super) fn on_repair_sent<P>(&mut self, now: u64, slot: &SendSlot<P>) -> u32 {
        let Some(repair) = &mut self.loss.repair else {
            return 0;
        };
        repair.stage = Stage::Sent(now);
        repair.recovery_point = self.max_psn;
        let repair = *repair;
        let is_read = slot.op.is_read_or_atomic();
        self.loss.asked = is_read.then_some(AskedRead {
            repair,
            fresh: false,
        });
        let within = self.una != slot.progress.first_psn;
        if is_read && within && !matches!(self.read_restart, ReadRestart::WithFirst) {
            self.read_restart = ReadRestart::Asked(self.una);
        }
        self.rtt.timed = None;
        self.arm_probe(now);
        repair.len
    }

    /// Returns whether new packets wait until the peer's handling of out-of-order packets is known.
    #[inline]
    pub(super) fn awaits_peer_test(&self) -> bool {
        let repair = self.loss.repair.as_ref();
        repair.is_some_and(|repair| repair.cause == Cause::Nak) && self.arq == Arq::Unknown
    }

    /// Returns whether a NAK for the oldest unacknowledged packet is stale: it cannot be a reaction
    /// to the last transmission of that packet.
    pub(super) fn nak_is_stale(&self, now: u64) -> bool {
        if self.mode == RecoveryMode::Strict {
            return self.send_psn == self.una;
        }
        match self.loss.repair.map(|repair| repair.stage) {
            // After a timeout everything may have been retransmitted while the NAK was in flight.
            None => self.send_psn == self.una || self.rtt.is_too_early(self.rtt.flight_start, now),
            Some(Stage::Due(_)) => true,
            Some(Stage::Sent(at)) => self.rtt.is_too_early(at, now),
        }
    }

    /// Returns whether to answer a NAK, which has acknowledged `repaired`, by retransmitting
    /// everything.
    pub(super) fn goes_back(&mut self, repaired: Option<Repaired>) -> bool {
        match (repaired, self.loss.repair, self.loss.asked) {
            // A peer that keeps nothing would have acknowledged the repair alone.
            (Some(repaired), ..) if repaired.repair.cause == Cause::Nak && !repaired.early => {
                self.set_arq(Arq::SelectiveRepeat(0));
            }
            // The test shows that the packets after the answered READ are missing, too. The peer
            // may send a NAK for each READ, and never an answer that would tell.
            (None, Some(repair), Some(read))
                if repair.cause == Cause::Nak && read.repair.peer_test =>
            {
                self.set_arq(Arq::GoBackN);
            }
            _ => {}
        }
        let back = self.arq == Arq::GoBackN;
        if back && !self.is_local_loss() {
            self.window.on_loss();
        }
        back
    }

    /// Decides what to do after the acknowledgement of a repair. Packets rarely overtake each
    /// other: those sent before the retransmission and not acknowledged with it are missing, too.
    #[cold]
    pub(super) fn after_repair(&mut self, repaired: Repaired, now: u64) {
        let cause = repaired.repair.cause;
        let rest_is_lost = repaired.repair.recovery_point.is_after(self.una);
        if cause == Cause::Gap || repaired.early || !rest_is_lost {
            return;
        }
        let keeps = if repaired.alone {
            self.keeps_despite_unextended_repair()
        } else {
            matches!(self.arq, Arq::SelectiveRepeat(_))
        };
        if keeps {
            let len = self.next_repair_len(Some(repaired));
            self.declare_lost(now, Cause::Nak, len);
        } else if repaired.alone {
            if cause == Cause::Nak {
                // The time to the answer to the repair alone is a round trip without queueing
                // delay.
                self.window.on_queues_drained(self.rtt.min);
                self.set_arq(Arq::GoBackN);
            }
            self.rewind();
        }
        // Otherwise the acknowledgement may be a delayed one for the original transmission.
    }

    /// Handles the complete answer to the oldest READ or atomic. If it shows that everything after
    /// it is missing, restarts transmission there.
    pub(super) fn after_read(&mut self, now: u64) {
        let Some(AskedRead { repair, fresh }) = self.loss.asked.take() else {
            return;
        };
        let tells = repair.cause != Cause::Gap && fresh;
        if !tells || !repair.recovery_point.is_after(self.una) || self.loss.repair.is_some() {
            return;
        }
        if repair.peer_test {
            if repair.cause == Cause::Nak {
                self.set_arq(Arq::GoBackN);
            }
            self.rewind();
        } else if !matches!(self.arq, Arq::SelectiveRepeat(_)) {
            // A peer that has kept the next request answers it immediately after this one.
            let wait = match repair.cause {
                Cause::Probe => self.rtt.rto(false),
                _ => self.rtt.srtt() >> 1,
            };
            let wait = wait.max(self.loss.reorder_window);
            let at = Some(now.saturating_add(wait));
            self.loss.repair = Some(Repair {
                peer_test: true,
                ..Repair::new(now, repair.cause, repair.len, at)
            });
        }
    }

    /// Returns whether the READ responses from `una` on have been asked for again and are on their
    /// way.
    pub(super) fn is_asked(&self) -> bool {
        self.loss.asked.is_some() || self.loss.scoreboard.was_asked(self.una)
    }

    /// Returns the number of packets that may be in flight now.
    #[inline]
    pub(super) fn flight_limit(&self) -> u32 {
        let selective = matches!(self.arq, Arq::SelectiveRepeat(_));
        let repair = self.loss.repair.as_ref();
        let kept_beyond = repair.is_some_and(|repair| repair.cause == Cause::Gap || selective);
        self.window.limit(kept_beyond)
    }

    /// Handles the acknowledgement of the packets from `before` up to `una`: restarts all retry
    /// counts (E-09), and skips the retransmission of packets acknowledged in the meantime.
    /// `original` tells that the answer is known to be to the original transmission. Returns the
    /// acknowledged repair.
    pub(super) fn on_progress(
        &mut self,
        before: Psn,
        original: bool,
        now: u64,
    ) -> Option<Repaired> {
        let una = self.una;
        let advanced = una.since(before);
        let jumped = self.send_psn.since(before) < advanced;
        if jumped {
            self.send_psn = una;
            self.response_psns = 0;
        }
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retry;
        self.uncounted_retries = 0;
        if !self.is_local_loss() {
            self.dropped_until = None;
        }
        self.rnr_wait = self.rnr_wait.filter(|wait| !una.is_after(wait.from));
        self.rnr_since = None;
        self.implied_nak = false;
        // The timer runs only while something is in flight, not while it waits for retransmission.
        if self.send_psn == una {
            self.ack_deadline = None;
        } else {
            self.arm_ack_timer(now);
        }
        let go_back_n = self.arq == Arq::GoBackN;
        if go_back_n {
            self.window.grow(advanced);
        }
        self.rtt.on_progress(before, advanced, now);
        let (min_rtt, disturbed) = (self.rtt.min, self.loss.repair.is_some());
        if jumped {
            self.window.count_from(una, now, true);
        } else {
            self.window.count(una, now, min_rtt, disturbed, go_back_n);
        }
        let mut repaired = None;
        if disturbed {
            repaired = self.on_repair_ack(advanced, original, now);
        }
        self.loss.probes = 0;
        self.loss.scoreboard.progress(una, self.max_psn);
        if jumped && self.arq == Arq::GoBackN {
            // The peer had kept the packets after a gap.
            self.set_arq(Arq::Unknown);
        }
        self.arm_probe(now);
        repaired
    }

    /// Handles the acknowledgement of `advanced` packets, the lost one included. Returns the
    /// repair, unless it was pending.
    #[cold]
    fn on_repair_ack(&mut self, advanced: u32, original: bool, now: u64) -> Option<Repaired> {
        let repair = self.loss.repair.take()?;
        let Repair { cause, len, .. } = repair;
        let at = match repair.stage {
            // The peer answered without a retransmission: it had kept the packet. (If only an
            // answer was lost, the peer had no gap, and the test shows nothing.)
            Stage::Due(_) => {
                if !repair.peer_test {
                    // The packet was only late.
                    self.widen_reorder_window(now.saturating_sub(repair.since), false);
                } else if cause == Cause::Nak {
                    self.set_arq(Arq::SelectiveRepeat(0));
                }
                return None;
            }
            Stage::Sent(at) => at,
        };
        let time = now.saturating_sub(at);
        let early = self.rtt.is_too_early(at, now);
        let late = original || early;
        let kept = self.loss.asked.as_mut().is_some_and(|read| {
            read.fresh = !late && time >= self.rtt.srtt() >> 1;
            read.repair.peer_test && !read.fresh
        });
        let lost = !kept && !late;
        if lost {
            self.on_lost(repair, time);
        } else if !kept && cause != Cause::Probe {
            self.widen_reorder_window(now.saturating_sub(repair.since), true);
        }
        if cause == Cause::Nak && (kept || lost && advanced > len) {
            self.set_arq(Arq::SelectiveRepeat(0));
        }
        if cause != Cause::Probe {
            // The queues on the path have drained, so round trips are shorter than the measured
            // ones. (An answer after a probe may be to the original transmission.)
            self.rtt.min = self.rtt.min.min(time);
        }
        Some(Repaired {
            repair,
            alone: advanced == len,
            early,
        })
    }

    /// Notes that a packet was lost, and that the answer to its repair took this time.
    fn on_lost(&mut self, repair: Repair, time: u64) {
        if !repair.repeated {
            self.rtt.repairs.sample(time);
            // READs take as long as their responses.
            if repair.cause == Cause::Probe && self.loss.asked.is_none() {
                self.rtt.sample_probe(time);
            }
        }
        // Losses have replaced reordering: shorten the wait.
        let window = self.loss.reorder_window;
        self.loss.reorder_window = match window.saturating_sub(window >> 2) {
            ..MIN_REORDER_WINDOW => 0,
            window => window,
        };
    }

    /// Notes that a packet was not lost but late by `by` nanoseconds; `repaired` if it had been
    /// retransmitted already.
    fn widen_reorder_window(&mut self, by: u64, repaired: bool) {
        let by = by.saturating_add(by >> 2).min(self.rtt.rto(repaired));
        self.loss.reorder_window = self.loss.reorder_window.max(by);
    }

    /// Restarts transmission at the oldest unacknowledged packet.
    pub(super) fn rewind(&mut self) {
        self.next = self.tail;
        self.credits.sent = self.credits.completed;
        self.send_psn = self.una;
        self.response_psns = 0;
        self.since_ackreq = 0;
        self.ack_deadline = None;
        self.loss = Loss {
            scoreboard: Scoreboard {
                seen: self.una,
                passed: self.una,
                ..Scoreboard::default()
            },
            reorder_window: self.loss.reorder_window,
            ..Loss::default()
        };
        self.rtt.timed = None;
    }

    /// Starts the probe timer if anything is in flight. The timeout is the longest expected answer
    /// time, and quadruples after each probe without an answer. There is no probe without a
    /// measurement, without a consumer's timeout (F-02) or after it, or in strict mode.
    pub(super) fn arm_probe(&mut self, now: u64) {
        self.loss.probe_at = None;
        let probes = self.mode == RecoveryMode::Selective && self.rtt.srtt() != 0;
        if !probes || self.ack_timeout.is_none() || self.send_psn == self.una {
            return;
        }
        let sent = |repair: Repair| matches!(repair.stage, Stage::Sent(_));
        let wait = self.rtt.rto(self.loss.repair.is_some_and(sent));
        let steps = self.loss.probes.min(MAX_PTO_BACKOFF);
        let at = now.saturating_add(wait.saturating_mul(1u64.wrapping_shl(steps.wrapping_mul(2))));
        let before_deadline = self.ack_deadline.is_some_and(|deadline| at < deadline);
        self.loss.probe_at = before_deadline.then_some(at);
    }

    /// Handles the expiry of the probe timer: the oldest packet counts as lost, or its
    /// retransmission is repeated.
    pub(super) fn probe(&mut self, now: u64) {
        self.loss.probe_at = None;
        if self.send_psn == self.una {
            return;
        }
        self.loss.probes = self.loss.probes.saturating_add(1);
        self.counters.probes = self.counters.probes.wrapping_add(1);
        let new = Repair::new(now, Cause::Probe, 1, None);
        let repair = self.loss.repair.get_or_insert(new);
        repair.since = now;
        if matches!(repair.stage, Stage::Sent(_)) {
            repair.repeated = true;
            repair.peer_test = false;
        }
        repair.stage = Stage::Due(None);
    }
}

/// Responses of one READ, from the first missing one to the last.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: Psn,
    /// One beyond the last PSN of the READ.
    until: Psn,
    /// Counter value of the READ's work request; see `Requester::slot`.
    number: u32,
    asked: bool,
}

/// Result of the search for a gap in the responses to READs.
enum Search {
    Found(Gap),
    /// All work requests in question were examined.
    Nothing,
    /// The search ended before it came to the work requests in question.
    Ended,
}

/// The READ responses that are missing beyond the lost packet (the scoreboard of RFC 6675).
///
/// The requester asks for them as soon as an answer beyond them arrives. Otherwise each loss would
/// wait a round trip for the repair of the one before it.
#[derive(Clone, Debug, Default)]
struct Scoreboard {
    /// One beyond the highest answered PSN; stale if not beyond `una`.
    seen: Psn,
    /// One beyond the highest missing PSN that is not in the list; stale if not beyond `una`.
    passed: Psn,
    gaps: [Option<Gap>; MAX_GAPS],
}

impl Scoreboard {
    /// Returns whether this PSN was asked for again as part of a gap.
    fn was_asked(&self, psn: Psn) -> bool {
        self.gaps
            .iter()
            .flatten()
            .any(|gap| gap.asked && psn.since(gap.from) < gap.until.since(gap.from))
    }

    /// Adds a gap. Returns whether it is in the list now.
    fn push(&mut self, gap: Gap) -> bool {
        if self.gaps.iter().flatten().any(|g| g.until == gap.until) {
            return true;
        }
        let free = self.gaps.iter_mut().find(|entry| entry.is_none());
        free.map(|entry| *entry = Some(gap)).is_some()
    }

    /// Forgets the gaps that have been answered.
    #[inline(always)]
    fn progress(&mut self, una: Psn, max: Psn) {
        let left = max.since(una);
        for entry in &mut self.gaps {
            // An outstanding gap ends after `una` and at most at `max`. The list is nearly always
            // empty, so the loop avoids writes.
            entry.take_if(|gap| gap.until.since(una).wrapping_sub(1) >= left);
        }
    }
}

impl Requester {
    /// Notes a READ response beyond `una`.
    pub(super) fn note_answer<P>(&mut self, slots: &[SendSlot<P>], psn: Psn) {
        let at = psn.since(self.una);
        let before = self.distance(self.loss.scoreboard.seen);
        if at >= before {
            self.loss.scoreboard.seen = psn.next();
        }
        if at <= before {
            return;
        }
        let gap = match self.unanswered(slots, before, at) {
            Search::Found(gap) => gap,
            Search::Nothing => return,
            Search::Ended => {
                self.loss.scoreboard.passed = psn;
                return;
            }
        };
        // The requester asks for the parts of a READ in order: a peer that answers a later part may
        // take that answer for the whole READ (rdma_rxe does).
        let passed = self.distance(self.loss.scoreboard.passed);
        let read = self.slot(slots, gap.number);
        let is_passed = read.is_some_and(|read| read.progress.first_psn.since(self.una) < passed);
        // A gap that starts at `una` is repaired as a loss. With reordering, a late packet is not
        // asked for at once.
        let asks = before != 0 && self.loss.reorder_window == 0 && !is_passed;
        if !asks || !self.loss.scoreboard.push(gap) || gap.until.since(self.una) < at {
            self.loss.scoreboard.passed = psn;
        }
    }

    /// Returns the distance from `una` to a PSN of the scoreboard; 0 if that is stale.
    fn distance(&self, psn: Psn) -> u32 {
        match psn.since(self.una) {
            distance if distance <= self.max_psn.since(self.una) => distance,
            _ => 0,
        }
    }

    /// Finds the first started READ, other than the oldest work request, with PSNs in this range,
    /// counted from `una`, among the [`MAX_SEARCH`] oldest work requests.
    fn unanswered<P>(&self, slots: &[SendSlot<P>], from: u32, to: u32) -> Search {
        let mut number = self.tail.wrapping_add(1);
        for _ in 0..MAX_SEARCH {
            let Some(slot) = self.slot(slots, number).filter(|slot| slot.is_started()) else {
                return Search::Nothing;
            };
            let first = slot.progress.first_psn.since(self.una);
            if first >= to && !slot.op.is_local() {
                return Search::Nothing;
            }
            if slot.last_psn().since(self.una) >= from && slot.op == SendOp::Read {
                return Search::Found(Gap {
                    from: self.una.add(first.max(from)),
                    until: slot.last_psn().next(),
                    number,
                    asked: false,
                });
            }
            number = number.wrapping_add(1);
        }
        Search::Ended
    }

    /// Asks for the gaps beyond the lost packet. Returns whether there is room for more packets.
    pub(super) fn send_gaps(&mut self, cx: &mut Ctx<'_, impl Env>, poll: &mut Poll) -> bool {
        for n in 0..MAX_GAPS {
            let gap = self.loss.scoreboard.gaps.get(n).copied().flatten();
            let Some(gap) = gap.filter(|gap| !gap.asked) else {
                continue;
            };
            if self.rnr_wait.is_some() || !self.rate.ready(cx.now) {
                return true;
            }
            if poll.progress.sent >= poll.budget {
                poll.progress.more = true;
                return false;
            }
            let sent = self.send_again(cx, poll, gap.number, gap.from);
            if matches!(sent, Err(TxError::NoRoom)) {
                return false;
            }
            // A gap that cannot be asked for now is repaired when nothing before it is missing.
            let asked = sent.is_ok().then_some(Gap { asked: true, ..gap });
            if let Some(entry) = self.loss.scoreboard.gaps.get_mut(n) {
                *entry = asked;
            }
            self.rtt.timed = None;
        }
        true
    }
}
