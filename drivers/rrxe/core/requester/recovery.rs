// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: finds out which packets were lost and retransmits only those.
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

use super::{RecoveryMode, Requester, SendSlot};
use crate::psn::{Psn, MAX_OUTSTANDING};

/// Minimum time without progress before a probe, in nanoseconds. Anything shorter would measure the
/// scheduling delays of a busy host.
pub const MIN_PTO: u64 = 1_000_000;

/// Maximum number of times that a probe multiplies the time to the next one by four (1024-fold in
/// total). The back-off limits retransmissions if round trips suddenly become much longer, as they
/// do in front of a full queue.
const MAX_PTO_BACKOFF: u32 = 5;

/// Consecutive repairs that a peer known to keep out-of-order packets may acknowledge alone before
/// it counts as one that drops them. Lost NAKs cause such acknowledgements, too.
const MAX_UNEXTENDED_REPAIRS: u8 = 3;

/// Maximum number of packets of one repair.
const MAX_REPAIR: u32 = 64;

/// Length of a loss burst that indicates a queue overflow: the window is halved then.
const OVERFLOW_BURST: u32 = 8;

/// Consequence of an acknowledgement of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRepair {
    /// Nothing.
    Nothing,
    /// The next unacknowledged packet is missing, too.
    NextLost,
    /// Everything after it is missing, too.
    GoBack,
}

/// The peer's handling of out-of-order packets, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Nothing yet.
    Unknown,
    /// The peer keeps packets beyond a gap.
    Buffers,
    /// The peer drops packets beyond a gap.
    Drops,
}

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

/// State of the oldest unacknowledged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Not known to be missing.
    None,
    /// Missing since `since`; the retransmission is pending.
    Due {
        since: u64,
        /// Earliest time of the retransmission. `None` means the next poll: the driver has been
        /// told, and a timer does not help a poll that waits for room or for the send side.
        at: Option<u64>,
        cause: Cause,
    },
    /// Retransmitted at `at`.
    Sent {
        since: u64,
        at: u64,
        cause: Cause,
        /// One beyond the highest PSN sent before the retransmission.
        beyond: Psn,
    },
}

/// A READ or atomic that was retransmitted because of a NAK or a probe.
#[derive(Clone, Copy, Debug)]
struct RepeatedRead {
    cause: Cause,
    /// One beyond its last PSN.
    until: Psn,
    /// One beyond the highest PSN sent before the retransmission.
    beyond: Psn,
    /// The retransmission tests whether the peer keeps out-of-order packets.
    peer_test: bool,
    /// The answer is to the retransmission, not to the original request.
    fresh: bool,
}

/// Round-trip time estimate (RFC 6298), in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// Smoothed round-trip time; 0 before the first sample.
    srtt: u64,
    /// Mean deviation of the round-trip time.
    rttvar: u64,
}

impl RoundTrip {
    const NONE: RoundTrip = RoundTrip { srtt: 0, rttvar: 0 };

    fn sample(&mut self, time: u64) {
        // A sample of 0 (a coarse clock) must not look like "no sample".
        let time = time.max(1);
        if self.srtt == 0 {
            self.srtt = time;
            self.rttvar = time >> 1;
            return;
        }
        let off = self.srtt.abs_diff(time);
        self.rttvar = self
            .rttvar
            .saturating_sub(self.rttvar >> 2)
            .saturating_add(off >> 2);
        self.srtt = self
            .srtt
            .saturating_sub(self.srtt >> 3)
            .saturating_add(time >> 3)
            .max(1);
    }

    /// Returns the longest time that an answer is expected to take: mean plus four deviations.
    fn rto(&self) -> u64 {
        self.srtt.saturating_add(self.rttvar.saturating_mul(4))
    }
}

/// State of loss recovery. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) loss: Loss,
    peer: Peer,
    /// A NAK caused the retransmission of everything from the lost packet on (go-back-N).
    going_back: bool,
    /// A READ was retransmitted up to this PSN, and its responses have not all arrived.
    asked_until: Option<Psn>,
    /// The READ or atomic retransmitted because of a NAK or a probe.
    repeated_read: Option<RepeatedRead>,
    /// The repair is a test of whether the peer keeps out-of-order packets.
    peer_test: bool,
    /// Number of packets of the repair, from the oldest unacknowledged one on.
    repair_len: u32,
    /// Round trips of packets that were sent once.
    rtt: RoundTrip,
    /// Time from a repair to its answer. This is often shorter than a round trip: the window is
    /// full behind a lost packet, and the queues on the path drain.
    repair_rtt: RoundTrip,
    /// Shortest round trip of all; 0 before the first.
    min_rtt: u64,
    /// The packet whose answer will be the next sample, and its send time.
    timed: Option<(Psn, u64)>,
    /// Send time of the oldest packet in flight, or of a later one that is already acknowledged.
    flight_start: u64,
    /// Delay of reordered packets (RFC 8985). A packet is considered lost only after this time.
    reorder_window: u64,
    /// The repair was spurious: the acknowledged packet is the delayed original.
    spurious: bool,
    /// First PSN of the last READ retransmission that began within the READ.
    asked_within: Option<Psn>,
    /// The peer answers a retransmitted READ as a READ of its own, with FIRST or ONLY, as it should
    /// (C-07). Other peers (rdma_rxe) continue with MIDDLE and LAST, which cannot be told from
    /// delayed responses.
    restarts_with_first: bool,
    /// The last acknowledgement came too early to be an answer to the retransmission.
    ack_predates_repair: bool,
    pub(super) probe_at: Option<u64>,
    /// Probes since the last progress.
    probes: u32,
    /// Probes for the current loss.
    repair_probes: u32,
    /// Consecutive repairs acknowledged alone by a peer known to keep out-of-order packets.
    unextended_repairs: u8,
}

impl Recovery {
    pub(super) const fn new() -> Recovery {
        Recovery {
            loss: Loss::None,
            peer: Peer::Unknown,
            going_back: false,
            asked_until: None,
            repeated_read: None,
            peer_test: false,
            repair_len: 1,
            rtt: RoundTrip::NONE,
            repair_rtt: RoundTrip::NONE,
            min_rtt: 0,
            timed: None,
            flight_start: 0,
            reorder_window: 0,
            spurious: false,
            asked_within: None,
            restarts_with_first: false,
            ack_predates_repair: false,
            probe_at: None,
            probes: 0,
            repair_probes: 0,
            unextended_repairs: 0,
        }
    }

    /// Returns the initial state for this mode.
    pub(super) const fn of(mode: RecoveryMode) -> Recovery {
        let mut recovery = Recovery::new();
        if matches!(mode, RecoveryMode::Strict) {
            recovery.peer = Peer::Drops;
        }
        recovery
    }

    /// Returns whether a round trip has been measured.
    fn is_measured(&self) -> bool {
        self.rtt.srtt != 0 || self.repair_rtt.srtt != 0
    }

    /// Returns the round-trip estimate of ordinary packets, or of repairs before the first sample.
    fn estimate(&self) -> RoundTrip {
        match self.rtt.srtt {
            0 => self.repair_rtt,
            _ => self.rtt,
        }
    }

    /// Returns whether a packet sent at that time cannot have been answered yet.
    fn too_early(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.min_rtt >> 1
    }

    /// Returns the longest time that an answer is expected to take, at least [`MIN_PTO`].
    fn rto(&self) -> u64 {
        let measured = match self.loss {
            Loss::Sent { .. } if self.repair_rtt.srtt != 0 => self.repair_rtt,
            _ => self.estimate(),
        };
        measured.rto().max(MIN_PTO)
    }

    /// Returns how late reordered packets arrive, in nanoseconds; 0 without reordering.
    pub(super) fn reorder_window(&self) -> u64 {
        self.reorder_window
    }

    /// Drops the pending sample, because its packet was retransmitted (Karn's algorithm).
    pub(super) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// Notes a FIRST or ONLY READ response within a READ or for a PSN already acknowledged.
    #[cold]
    pub(super) fn on_first_within_read(&mut self, psn: Psn) {
        self.restarts_with_first |= self.asked_within == Some(psn);
    }

    /// Notes a MIDDLE or LAST READ response within a READ.
    #[inline]
    pub(super) fn on_middle_within_read(&mut self) {
        self.spurious = self.restarts_with_first;
    }

    /// Notes that a packet was not lost but late by `by` nanoseconds.
    fn widen_reorder_window(&mut self, by: u64) {
        let by = by.saturating_add(by >> 2).min(self.rto());
        self.reorder_window = self.reorder_window.max(by);
    }
}

impl Requester {
    /// Declares the oldest unacknowledged packet lost, and schedules its repair after the observed
    /// reordering delay.
    pub(super) fn declare_lost(&mut self, now: u64, cause: Cause) {
        let wait = match cause {
            Cause::Probe => 0,
            _ => self.recovery.reorder_window,
        };
        if cause != Cause::Nak {
            self.recovery.repair_len = 1;
        }
        if cause != Cause::Probe && !self.recovery.is_measured() {
            // The answered packet was sent at or after `flight_start`, so this is an upper bound.
            // Without a sample, the loss of a retransmission in the first flight would wait for the
            // consumer's timer.
            let longest = now.saturating_sub(self.recovery.flight_start);
            self.recovery.repair_rtt.sample(longest);
        }
        self.recovery.loss = Loss::Due {
            since: now,
            at: (wait != 0).then(|| now.saturating_add(wait)),
            cause,
        };
    }

    /// Sets the number of packets to retransmit next: twice the last number if the answer
    /// acknowledged exactly the packets retransmitted for `before`, otherwise one.
    pub(super) fn grow_repair(&mut self, before: Loss, advanced: u32) {
        let sent = self.recovery.repair_len;
        let behind = matches!(before, Loss::Sent { cause, .. } if cause != Cause::Gap);
        self.recovery.repair_len = if behind && advanced == sent {
            sent.saturating_mul(2).min(MAX_REPAIR)
        } else {
            1
        };
        if self.recovery.repair_len == OVERFLOW_BURST && !self.is_local_loss() {
            // A queue on the path has overflowed.
            self.window.on_overflow();
        }
    }

    /// Returns the number of packets of the next repair.
    pub(super) fn repair_len(&self) -> u32 {
        self.recovery.repair_len
    }

    /// Returns whether the lost packet must be retransmitted now. If so, the retransmission waits
    /// for the next poll and no longer for a timer.
    #[inline]
    pub(super) fn repair_is_due(&mut self, now: u64) -> bool {
        let Loss::Due { at, .. } = &mut self.recovery.loss else {
            return false;
        };
        *at = at.filter(|&at| at > now);
        at.is_none()
    }

    /// Notes that the lost packet was retransmitted.
    pub(super) fn on_repair_sent<P>(&mut self, now: u64, slot: &SendSlot<P>) {
        if let Loss::Due { since, cause, .. } = self.recovery.loss {
            self.recovery.loss = Loss::Sent {
                since,
                at: now,
                cause,
                beyond: self.max_psn,
            };
        }
        let until = slot.last_psn().next();
        let is_read = slot.op.is_read_or_atomic();
        if is_read && self.una != slot.progress.first_psn {
            self.recovery.asked_within = Some(self.una);
        }
        self.recovery.asked_until = is_read.then_some(until);
        self.recovery.repeated_read = match self.recovery.loss {
            Loss::Sent { cause, beyond, .. } if is_read && cause != Cause::Gap => {
                Some(RepeatedRead {
                    cause,
                    until,
                    beyond,
                    peer_test: self.recovery.peer_test,
                    fresh: false,
                })
            }
            _ => None,
        };
        self.recovery.peer_test = false;
        // Karn's algorithm: an answer could be to either transmission.
        self.recovery.timed = None;
        self.arm_probe(now);
    }

    /// Returns whether new packets wait until the peer's handling of out-of-order packets is known.
    #[inline]
    pub(super) fn awaits_peer_test(&self) -> bool {
        matches!(
            self.recovery.loss,
            Loss::Due {
                cause: Cause::Nak,
                ..
            } | Loss::Sent {
                cause: Cause::Nak,
                ..
            }
        ) && self.recovery.peer == Peer::Unknown
    }

    /// Returns whether a NAK for the oldest unacknowledged packet is stale: it cannot be a reaction
    /// to the last transmission of that packet.
    pub(super) fn nak_is_stale(&self, now: u64) -> bool {
        if self.mode == RecoveryMode::Strict {
            return self.send_psn == self.una;
        }
        match self.recovery.loss {
            // After a timeout everything may have been retransmitted while the NAK was in flight.
            Loss::None => {
                self.send_psn == self.una
                    || self.recovery.too_early(self.recovery.flight_start, now)
            }
            Loss::Due { .. } => true,
            Loss::Sent { at, .. } => self.recovery.too_early(at, now),
        }
    }

    /// Returns whether to answer a NAK by retransmitting everything. `before` is the loss before
    /// the requester processed the NAK's implicit acknowledgement.
    pub(super) fn goes_back(&mut self, before: Loss, advanced: u32) -> bool {
        if let Loss::Sent {
            cause: Cause::Nak, ..
        } = before
        {
            // A peer that keeps nothing would have acknowledged the repair alone.
            if advanced != 0 && !self.recovery.ack_predates_repair {
                self.classify_peer(Peer::Buffers);
            }
            // The test shows that the packets after the answered READ are missing, too. The peer
            // may send a NAK for each READ, and never an answer that would tell.
            if advanced == 0
                && self
                    .recovery
                    .repeated_read
                    .is_some_and(|read| read.peer_test)
            {
                self.classify_peer(Peer::Drops);
            }
        }
        let back = self.recovery.peer == Peer::Drops;
        self.recovery.going_back |= back;
        if back && !self.is_local_loss() {
            self.window.on_loss();
        }
        back
    }

    /// Records how the peer treats out-of-order packets.
    fn classify_peer(&mut self, peer: Peer) {
        self.recovery.unextended_repairs = 0;
        if self.recovery.peer == peer || self.mode == RecoveryMode::Strict {
            return;
        }
        // A peer that drops packets beyond a gap needs a smaller window, because each is sent
        // again.
        match peer {
            Peer::Drops => self.window.on_peer_drops(),
            _ if self.recovery.peer == Peer::Drops => self.window.on_peer_buffers(),
            _ => {}
        }
        self.recovery.peer = peer;
    }

    /// Returns what to do after an acknowledgement of the retransmission `before`. Packets rarely
    /// overtake each other: those sent before the retransmission and not acknowledged with it are
    /// missing, too.
    pub(super) fn after_repair(&mut self, before: Loss, advanced: u32) -> AfterRepair {
        let Loss::Sent { cause, beyond, .. } = before else {
            return AfterRepair::Nothing;
        };
        if advanced == 0
            || cause == Cause::Gap
            || !is_after(beyond, self.una)
            || self.recovery.ack_predates_repair
        {
            return AfterRepair::Nothing;
        }
        if advanced != self.recovery.repair_len {
            return match self.recovery.peer {
                Peer::Buffers => AfterRepair::NextLost,
                // The acknowledgement may be a delayed one for the original transmission.
                _ => AfterRepair::Nothing,
            };
        }
        // The acknowledgement covers the repair alone.
        match self.recovery.peer {
            Peer::Buffers if self.recovery.unextended_repairs < MAX_UNEXTENDED_REPAIRS => {
                self.recovery.unextended_repairs =
                    self.recovery.unextended_repairs.saturating_add(1);
                AfterRepair::NextLost
            }
            _ => {
                // A packet retransmitted more than once may have been acknowledged before.
                if cause == Cause::Nak && self.recovery.repair_probes == 0 {
                    // The time to the answer to the repair alone is a round trip without queueing
                    // delay.
                    self.window.on_queues_drained(self.recovery.min_rtt);
                    self.classify_peer(Peer::Drops);
                    self.recovery.going_back = true;
                }
                AfterRepair::GoBack
            }
        }
    }

    /// Handles the complete answer to the oldest READ or atomic. Returns whether everything after
    /// it is missing.
    pub(super) fn after_read(&mut self, now: u64) -> bool {
        let Some(read) = self.recovery.repeated_read.take() else {
            return false;
        };
        if read.until != self.una {
            // The answer is a delayed one, to an earlier READ.
            self.recovery.repeated_read = Some(read).filter(|read| is_after(read.until, self.una));
            return false;
        }
        let tells = read.fresh && is_after(read.beyond, self.una);
        if !tells || self.recovery.loss != Loss::None {
            return false;
        }
        if read.peer_test {
            if read.cause == Cause::Nak {
                self.classify_peer(Peer::Drops);
                self.recovery.going_back = true;
            }
            return true;
        }
        if self.recovery.peer != Peer::Buffers {
            // A peer that has kept the next request answers it immediately after this one.
            self.recovery.peer_test = true;
            let wait = match read.cause {
                Cause::Probe => self.recovery.rto(),
                _ => self.recovery.estimate().srtt >> 1,
            };
            let wait = wait.max(self.recovery.reorder_window);
            self.recovery.loss = Loss::Due {
                since: now,
                at: Some(now.saturating_add(wait)),
                cause: read.cause,
            };
        }
        false
    }

    /// Returns whether the READ responses from `una` on have been asked for again and are on their
    /// way.
    pub(super) fn is_asked(&self) -> bool {
        is_asked(&self.recovery, self.una) || self.gaps.was_asked(self.una)
    }

    /// Notes that a packet is being sent while nothing is in flight.
    #[inline]
    pub(super) fn on_flight_start(&mut self, now: u64) {
        self.recovery.flight_start = now;
        self.window.count_from(self.una, now, false);
    }

    /// Returns the number of packets that may be in flight now.
    #[inline]
    pub(super) fn flight_limit(&self) -> u32 {
        let kept_beyond = match self.recovery.loss {
            Loss::None => false,
            Loss::Due { cause, .. } | Loss::Sent { cause, .. } => {
                cause == Cause::Gap || self.recovery.peer == Peer::Buffers
            }
        };
        self.window.limit(kept_beyond)
    }

    /// Starts a round-trip sample with a packet that is sent for the first time.
    #[inline]
    pub(super) fn time_packet(&mut self, psn: Psn, now: u64) {
        if self.recovery.timed.is_none() {
            self.recovery.timed = Some((psn, now));
        }
    }

    /// Notes that the packets from `before` up to `una` have been acknowledged.
    #[inline]
    pub(super) fn recovery_progress(&mut self, before: Psn, jumped: bool, now: u64) {
        let advanced = self.una.since(before);
        let drops = self.recovery.peer == Peer::Drops;
        if drops {
            self.window.grow(advanced);
        }
        let recovery = &mut self.recovery;
        if let Some((psn, sent)) = recovery.timed {
            if psn.since(before) < advanced {
                recovery.timed = None;
                let time = now.saturating_sub(sent);
                recovery.rtt.sample(time);
                recovery.min_rtt = match recovery.min_rtt {
                    0 => time,
                    min_rtt => min_rtt.min(time),
                };
            }
        }
        let loss = recovery.loss;
        let una = self.una;
        if jumped {
            self.window.count_from(una, now, true);
        } else {
            let disturbed = loss != Loss::None;
            self.window
                .count(una, now, recovery.min_rtt, disturbed, drops);
        }
        if loss == Loss::None {
            recovery.ack_predates_repair = false;
            recovery.peer_test = false;
            recovery.spurious = false;
        } else {
            self.on_repair_ack(loss, advanced, now);
        }
        let recovery = &mut self.recovery;
        recovery.repair_probes = 0;
        recovery.probes = 0;
        if !is_asked(recovery, self.una) {
            recovery.asked_until = None;
        }
        self.gaps.progress(self.una, self.max_psn);
        let recovery = &mut self.recovery;
        if jumped && recovery.going_back {
            // The peer had kept the packets after a gap.
            recovery.going_back = false;
            self.classify_peer(Peer::Unknown);
        }
        self.arm_probe(now);
    }

    /// Handles the acknowledgement of the repair of `loss`.
    #[cold]
    fn on_repair_ack(&mut self, loss: Loss, advanced: u32, now: u64) {
        let recovery = &mut self.recovery;
        recovery.ack_predates_repair =
            matches!(loss, Loss::Sent { at, .. } if recovery.too_early(at, now));
        let late = recovery.spurious || recovery.ack_predates_repair;
        let soon = matches!(loss, Loss::Sent { at, .. } if now.saturating_sub(at) < recovery.estimate().srtt >> 1);
        // The peer answered without a retransmission: it had kept the packet.
        let kept = match &mut recovery.repeated_read {
            _ if recovery.peer_test => true,
            Some(read) if matches!(loss, Loss::Sent { .. }) => {
                read.fresh = !late && !soon;
                read.peer_test && !read.fresh
            }
            _ => false,
        };
        recovery.peer_test = false;
        match loss {
            Loss::None => {}
            // If only an answer was lost, the peer had no gap, and the test shows nothing.
            Loss::Due {
                cause: Cause::Nak, ..
            }
            | Loss::Sent {
                cause: Cause::Nak, ..
            } if kept => self.classify_peer(Peer::Buffers),
            _ if kept => {}
            // The packet was only late.
            Loss::Due { since, .. } => recovery.widen_reorder_window(now.saturating_sub(since)),
            Loss::Sent { since, cause, .. }
                if recovery.spurious || recovery.ack_predates_repair =>
            {
                if cause != Cause::Probe {
                    recovery.widen_reorder_window(now.saturating_sub(since));
                }
            }
            Loss::Sent { at, cause, .. } => {
                if recovery.repair_probes == 0 {
                    let time = now.saturating_sub(at);
                    recovery.repair_rtt.sample(time);
                    // If the answer is to the probe, this is a round trip. If it is to the
                    // original, which was only slow, a round trip takes even longer. (READs take as
                    // long as their responses.)
                    let known = recovery.rtt.srtt;
                    let longer = known != 0 && time > known && recovery.asked_until.is_none();
                    if cause == Cause::Probe && longer {
                        recovery.rtt.sample(time);
                    }
                }
                // Losses have replaced reordering: shorten the wait.
                recovery.reorder_window = recovery
                    .reorder_window
                    .saturating_sub(recovery.reorder_window >> 2);
                if recovery.reorder_window < 1_000 {
                    recovery.reorder_window = 0;
                }
                if cause == Cause::Nak && advanced > recovery.repair_len {
                    self.classify_peer(Peer::Buffers);
                }
            }
        }
        let recovery = &mut self.recovery;
        recovery.spurious = false;
        if let Loss::Sent { at, cause, .. } = loss {
            // An answer after a probe may be to the original transmission. Otherwise the queues on
            // the path have drained, and round trips are shorter than the measured ones.
            if cause != Cause::Probe {
                recovery.min_rtt = recovery.min_rtt.min(now.saturating_sub(at));
            }
        }
        recovery.loss = Loss::None;
    }

    /// Resets recovery because transmission restarts at the oldest unacknowledged packet.
    pub(super) fn recovery_rewound(&mut self) {
        self.gaps.clear(self.una);
        self.recovery.loss = Loss::None;
        self.recovery.asked_until = None;
        self.recovery.repeated_read = None;
        self.recovery.peer_test = false;
        self.recovery.repair_len = 1;
        self.recovery.timed = None;
        self.recovery.probe_at = None;
        self.recovery.probes = 0;
        self.recovery.repair_probes = 0;
    }

    /// Starts the probe timer if anything is in flight. The timeout is the longest expected answer
    /// time, and quadruples after each probe without an answer. There is no probe without a
    /// measurement, without a consumer's timeout (F-02), if the consumer's timer expires earlier,
    /// or in strict mode.
    pub(super) fn arm_probe(&mut self, now: u64) {
        self.recovery.probe_at = None;
        let probes = self.mode == RecoveryMode::Selective && self.recovery.is_measured();
        if !probes || self.ack_timeout.is_none() || self.send_psn == self.una {
            return;
        }
        let wait = self.recovery.rto();
        let steps = self.recovery.probes.min(MAX_PTO_BACKOFF);
        let at = now.saturating_add(wait.saturating_mul(1u64.wrapping_shl(steps.wrapping_mul(2))));
        if self.ack_deadline.is_some_and(|deadline| at < deadline) {
            self.recovery.probe_at = Some(at);
        }
    }

    /// Handles the expiry of the probe timer.
    pub(super) fn probe(&mut self, now: u64) {
        self.recovery.probe_at = None;
        if self.send_psn == self.una {
            return;
        }
        self.recovery.probes = self.recovery.probes.saturating_add(1);
        self.counters.probes = self.counters.probes.wrapping_add(1);
        // A known loss keeps its cause.
        let cause = match self.recovery.loss {
            Loss::None => Cause::Probe,
            Loss::Due { cause, .. } => cause,
            Loss::Sent { cause, .. } => {
                self.recovery.repair_probes = self.recovery.repair_probes.saturating_add(1);
                cause
            }
        };
        self.declare_lost(now, cause);
        if let Loss::Due { at, .. } = &mut self.recovery.loss {
            *at = None;
        }
    }
}

/// Returns whether the retransmitted READ extends beyond this PSN.
fn is_asked(recovery: &Recovery, una: Psn) -> bool {
    recovery
        .asked_until
        .is_some_and(|until| is_after(until, una))
}

/// Returns whether a PSN is one of the 2^23 PSNs after another.
pub(super) fn is_after(psn: Psn, other: Psn) -> bool {
    psn.since(other).wrapping_sub(1) < MAX_OUTSTANDING
}
