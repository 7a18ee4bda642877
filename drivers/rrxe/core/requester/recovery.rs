// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Loss recovery: finds out which packets were lost and retransmits only those.
//!
//! The *hole* is the oldest unacknowledged packet (`una`) once the requester believes it is
//! missing. Evidence is a NAK Sequence Error, an answer beyond the hole, or no answer for longer
//! than a round trip takes (the *probe*). The requester retransmits the hole alone and asks for an
//! acknowledgement. The answer shows whether the peer keeps out-of-order packets:
//!
//! - An acknowledgement beyond the hole, or a NAK for the next hole: it does. Transmission
//!   continues where it was.
//! - An acknowledgement of the hole alone: it does not (rdma_rxe keeps nothing). The requester
//!   retransmits everything after the hole, and from then on does so at once on this queue pair
//!   (go-back-N).
//!
//! The answer to a READ or atomic says nothing about the packets after it. The requester therefore
//! asks for the next unanswered packet too, unless its answer follows the first one immediately: a
//! peer that answers only what was retransmitted has kept nothing.
//!
//! Packets are also lost in bursts. If the packet after the hole is missing too, the requester
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
pub const PROBE_FLOOR: u64 = 1_000_000;

/// Maximum number of times that a probe multiplies the time to the next one by four (1024-fold in
/// total). The back-off limits retransmissions if round trips suddenly become much longer, as they
/// do in front of a full queue.
const PROBE_STEPS: u32 = 5;

/// Consecutive holes that a peer known to keep out-of-order packets may acknowledge alone before it
/// counts as one that drops them. Lost NAKs cause such acknowledgements, too.
const BARE_HOLES: u8 = 3;

/// Maximum number of packets retransmitted for one hole.
const MOST_RUN: u32 = 64;

/// Length of a loss burst that indicates a queue overflow: the window is halved then.
const BURST: u32 = 8;

/// Consequence of an acknowledgement of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing.
    Nothing,
    /// The next unacknowledged packet is missing, too.
    NextHole,
    /// Everything after it is missing, too.
    GoBack,
}

/// The peer's handling of out-of-order packets, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Nothing yet.
    Unknown,
    /// The peer keeps packets beyond a gap.
    Holds,
    /// The peer drops packets beyond a gap.
    Drops,
}

/// How a hole was detected.
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
pub(super) enum Hole {
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
struct Again {
    cause: Cause,
    /// One beyond its last PSN.
    until: Psn,
    /// One beyond the highest PSN sent before the retransmission.
    beyond: Psn,
    /// The retransmission tests whether the peer keeps out-of-order packets.
    trial: bool,
    /// The answer is to the retransmission, not to the original request.
    fresh: bool,
}

/// Round-trip time estimate (RFC 6298), in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// Smoothed round-trip time; 0 before the first sample.
    mean: u64,
    /// Mean deviation of the round-trip time.
    deviation: u64,
}

impl RoundTrip {
    const NONE: RoundTrip = RoundTrip {
        mean: 0,
        deviation: 0,
    };

    fn sample(&mut self, time: u64) {
        // A sample of 0 (a coarse clock) must not look like "no sample".
        let time = time.max(1);
        if self.mean == 0 {
            self.mean = time;
            self.deviation = time >> 1;
            return;
        }
        let off = self.mean.abs_diff(time);
        self.deviation = self
            .deviation
            .saturating_sub(self.deviation >> 2)
            .saturating_add(off >> 2);
        self.mean = self
            .mean
            .saturating_sub(self.mean >> 3)
            .saturating_add(time >> 3)
            .max(1);
    }

    /// Returns the longest time that an answer is expected to take: mean plus four deviations.
    fn patience(&self) -> u64 {
        self.mean.saturating_add(self.deviation.saturating_mul(4))
    }
}

/// State of loss recovery. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) hole: Hole,
    peer: Peer,
    /// A NAK caused the retransmission of everything from the hole on (go-back-N).
    going_back: bool,
    /// A READ was retransmitted up to this PSN, and its responses have not all arrived.
    asked_until: Option<Psn>,
    /// The READ or atomic retransmitted because of a NAK or a probe.
    again: Option<Again>,
    /// The hole is a test of whether the peer keeps out-of-order packets.
    trial: bool,
    /// Number of packets retransmitted for the hole, from the oldest unacknowledged one on.
    run: u32,
    /// Round trips of packets that were sent once.
    packets: RoundTrip,
    /// Time from the retransmission of a hole to its answer. This is often shorter than a round
    /// trip: the window is full behind a hole, and the queues on the path drain.
    holes: RoundTrip,
    /// Shortest round trip of all; 0 before the first.
    least: u64,
    /// The packet whose answer will be the next sample, and its send time.
    timed: Option<(Psn, u64)>,
    /// Send time of the oldest packet in flight, or of a later one that is already acknowledged.
    began: u64,
    /// Delay of reordered packets. A hole is retransmitted only after this time.
    lateness: u64,
    /// The packet that closes the hole is the delayed original, not the retransmission.
    original: bool,
    /// First PSN of the last READ retransmission that began within the READ.
    asked_within: Option<Psn>,
    /// The peer answers a retransmitted READ as a READ of its own, with FIRST or ONLY, as it should
    /// (C-07). Other peers (rdma_rxe) continue with MIDDLE and LAST, which cannot be told from
    /// delayed responses.
    starts_anew: bool,
    /// The last acknowledgement came too early to be an answer to the retransmission.
    early: bool,
    pub(super) probe_at: Option<u64>,
    /// Probes since the last progress.
    probes: u32,
    /// Probes for the current hole.
    hole_probes: u32,
    /// Consecutive holes acknowledged alone by a peer known to keep out-of-order packets.
    bare: u8,
}

impl Recovery {
    pub(super) const fn new() -> Recovery {
        Recovery {
            hole: Hole::None,
            peer: Peer::Unknown,
            going_back: false,
            asked_until: None,
            again: None,
            trial: false,
            run: 1,
            packets: RoundTrip::NONE,
            holes: RoundTrip::NONE,
            least: 0,
            timed: None,
            began: 0,
            lateness: 0,
            original: false,
            asked_within: None,
            starts_anew: false,
            early: false,
            probe_at: None,
            probes: 0,
            hole_probes: 0,
            bare: 0,
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
        self.packets.mean != 0 || self.holes.mean != 0
    }

    /// Returns the round-trip estimate of ordinary packets, or of holes before the first sample.
    fn usual(&self) -> RoundTrip {
        match self.packets.mean {
            0 => self.holes,
            _ => self.packets,
        }
    }

    /// Returns whether a packet sent at that time cannot have been answered yet.
    fn too_early(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.least >> 1
    }

    /// Returns the longest time that an answer is expected to take, at least [`PROBE_FLOOR`].
    fn patience(&self) -> u64 {
        let measured = match self.hole {
            Hole::Sent { .. } if self.holes.mean != 0 => self.holes,
            _ => self.usual(),
        };
        measured.patience().max(PROBE_FLOOR)
    }

    /// Returns how late reordered packets arrive, in nanoseconds; 0 without reordering.
    pub(super) fn lateness(&self) -> u64 {
        self.lateness
    }

    /// Drops the pending sample, because its packet was retransmitted (Karn's algorithm).
    pub(super) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// Notes a FIRST or ONLY READ response within a READ or for a PSN already acknowledged.
    #[cold]
    pub(super) fn begins_within(&mut self, psn: Psn) {
        self.starts_anew |= self.asked_within == Some(psn);
    }

    /// Notes a MIDDLE or LAST READ response within a READ.
    #[inline]
    pub(super) fn goes_on_within(&mut self) {
        self.original = self.starts_anew;
    }

    /// Notes that a packet was not lost but late by `by` nanoseconds.
    fn late(&mut self, by: u64) {
        let by = by.saturating_add(by >> 2).min(self.patience());
        self.lateness = self.lateness.max(by);
    }
}

impl Requester {
    /// Schedules the retransmission of the hole after the observed reordering delay.
    pub(super) fn open_hole(&mut self, now: u64, cause: Cause) {
        let wait = match cause {
            Cause::Probe => 0,
            _ => self.recovery.lateness,
        };
        if cause != Cause::Nak {
            self.recovery.run = 1;
        }
        if cause != Cause::Probe && !self.recovery.is_measured() {
            // The answered packet was sent at or after `began`, so this is an upper bound. Without
            // a sample, the loss of a retransmission in the first flight would wait for the
            // consumer's timer.
            let longest = now.saturating_sub(self.recovery.began);
            self.recovery.holes.sample(longest);
        }
        self.recovery.hole = Hole::Due {
            since: now,
            at: (wait != 0).then(|| now.saturating_add(wait)),
            cause,
        };
    }

    /// Sets the number of packets to retransmit next: twice the last number if the answer
    /// acknowledged exactly the packets retransmitted for `before`, otherwise one.
    pub(super) fn next_run(&mut self, before: Hole, advanced: u32) {
        let run = self.recovery.run;
        let behind = matches!(before, Hole::Sent { cause, .. } if cause != Cause::Gap);
        self.recovery.run = if behind && advanced == run {
            run.saturating_mul(2).min(MOST_RUN)
        } else {
            1
        };
        if self.recovery.run == BURST && !self.is_local_loss() {
            // A queue on the path has overflowed.
            self.window.overflowed();
        }
    }

    /// Returns the number of packets to retransmit for the hole.
    pub(super) fn run(&self) -> u32 {
        self.recovery.run
    }

    /// Returns whether the hole must be retransmitted now. If so, the retransmission waits for the
    /// next poll and no longer for a timer.
    #[inline]
    pub(super) fn hole_is_due(&mut self, now: u64) -> bool {
        let Hole::Due { at, .. } = &mut self.recovery.hole else {
            return false;
        };
        *at = at.filter(|&at| at > now);
        at.is_none()
    }

    /// Notes that the hole was retransmitted.
    pub(super) fn hole_sent(&mut self, now: u64, slot: &SendSlot) {
        if let Hole::Due { since, cause, .. } = self.recovery.hole {
            self.recovery.hole = Hole::Sent {
                since,
                at: now,
                cause,
                beyond: self.max_psn,
            };
        }
        let until = slot.last_psn().next();
        let is_read = slot.op.is_read_or_atomic();
        if is_read && self.una != slot.first_psn {
            self.recovery.asked_within = Some(self.una);
        }
        self.recovery.asked_until = is_read.then_some(until);
        self.recovery.again = match self.recovery.hole {
            Hole::Sent { cause, beyond, .. } if is_read && cause != Cause::Gap => Some(Again {
                cause,
                until,
                beyond,
                trial: self.recovery.trial,
                fresh: false,
            }),
            _ => None,
        };
        self.recovery.trial = false;
        // Karn's algorithm: an answer could be to either transmission.
        self.recovery.timed = None;
        self.arm_probe(now);
    }

    /// Returns whether new packets wait until the peer's handling of out-of-order packets is known.
    #[inline]
    pub(super) fn holds_back(&self) -> bool {
        matches!(
            self.recovery.hole,
            Hole::Due {
                cause: Cause::Nak,
                ..
            } | Hole::Sent {
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
        match self.recovery.hole {
            // After a timeout everything may have been retransmitted while the NAK was in flight.
            Hole::None => {
                self.send_psn == self.una || self.recovery.too_early(self.recovery.began, now)
            }
            Hole::Due { .. } => true,
            Hole::Sent { at, .. } => self.recovery.too_early(at, now),
        }
    }

    /// Returns whether to answer a NAK by retransmitting everything. `before` is the hole before
    /// the requester processed the NAK's implicit acknowledgement.
    pub(super) fn goes_back(&mut self, before: Hole, advanced: u32) -> bool {
        if let Hole::Sent {
            cause: Cause::Nak, ..
        } = before
        {
            // A peer that keeps nothing would have acknowledged the hole alone.
            if advanced != 0 && !self.recovery.early {
                self.learn(Peer::Holds);
            }
            // The test shows that the packets after the answered READ are missing, too. The peer
            // may send a NAK for each READ, and never an answer that would tell.
            if advanced == 0 && self.recovery.again.is_some_and(|again| again.trial) {
                self.learn(Peer::Drops);
            }
        }
        let back = self.recovery.peer == Peer::Drops;
        self.recovery.going_back |= back;
        if back && !self.is_local_loss() {
            self.window.lost();
        }
        back
    }

    /// Records how the peer treats out-of-order packets.
    fn learn(&mut self, peer: Peer) {
        self.recovery.bare = 0;
        if self.recovery.peer == peer || self.mode == RecoveryMode::Strict {
            return;
        }
        // A peer that drops packets beyond a gap needs a smaller window, because each is sent
        // again.
        match peer {
            Peer::Drops => self.window.drops(),
            _ if self.recovery.peer == Peer::Drops => self.window.keeps(),
            _ => {}
        }
        self.recovery.peer = peer;
    }

    /// Returns what to do after an acknowledgement of the retransmission `before`. Packets rarely
    /// overtake each other: those sent before the retransmission and not acknowledged with it are
    /// missing, too.
    pub(super) fn after_hole(&mut self, before: Hole, advanced: u32) -> After {
        let Hole::Sent { cause, beyond, .. } = before else {
            return After::Nothing;
        };
        if advanced == 0
            || cause == Cause::Gap
            || !is_after(beyond, self.una)
            || self.recovery.early
        {
            return After::Nothing;
        }
        if advanced != self.recovery.run {
            return match self.recovery.peer {
                Peer::Holds => After::NextHole,
                // The acknowledgement may be a delayed one for the original transmission.
                _ => After::Nothing,
            };
        }
        // The acknowledgement covers the hole alone.
        match self.recovery.peer {
            Peer::Holds if self.recovery.bare < BARE_HOLES => {
                self.recovery.bare = self.recovery.bare.saturating_add(1);
                After::NextHole
            }
            _ => {
                // A hole retransmitted more than once may have been acknowledged before.
                if cause == Cause::Nak && self.recovery.hole_probes == 0 {
                    // The time to the answer of the hole alone is a round trip without queueing
                    // delay.
                    self.window.drained(self.recovery.least);
                    self.learn(Peer::Drops);
                    self.recovery.going_back = true;
                }
                After::GoBack
            }
        }
    }

    /// Handles the complete answer to the oldest READ or atomic. Returns whether everything after
    /// it is missing.
    pub(super) fn after_read(&mut self, now: u64) -> bool {
        let Some(again) = self.recovery.again.take() else {
            return false;
        };
        if again.until != self.una {
            // The answer is a delayed one, to an earlier READ.
            self.recovery.again = Some(again).filter(|again| is_after(again.until, self.una));
            return false;
        }
        let tells = again.fresh && is_after(again.beyond, self.una);
        if !tells || self.recovery.hole != Hole::None {
            return false;
        }
        if again.trial {
            if again.cause == Cause::Nak {
                self.learn(Peer::Drops);
                self.recovery.going_back = true;
            }
            return true;
        }
        if self.recovery.peer != Peer::Holds {
            // A peer that has kept the next request answers it immediately after this one.
            self.recovery.trial = true;
            let wait = match again.cause {
                Cause::Probe => self.recovery.patience(),
                _ => self.recovery.usual().mean >> 1,
            };
            let wait = wait.max(self.recovery.lateness);
            self.recovery.hole = Hole::Due {
                since: now,
                at: Some(now.saturating_add(wait)),
                cause: again.cause,
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
    pub(super) fn flight_begins(&mut self, now: u64) {
        self.recovery.began = now;
        self.window.count_from(self.una, now, false);
    }

    /// Returns the number of packets that may be in flight now.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        let kept_beyond = match self.recovery.hole {
            Hole::None => false,
            Hole::Due { cause, .. } | Hole::Sent { cause, .. } => {
                cause == Cause::Gap || self.recovery.peer == Peer::Holds
            }
        };
        self.window.room(kept_beyond)
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
                recovery.packets.sample(time);
                recovery.least = match recovery.least {
                    0 => time,
                    least => least.min(time),
                };
            }
        }
        let hole = recovery.hole;
        let una = self.una;
        if jumped {
            self.window.count_from(una, now, true);
        } else {
            let disturbed = hole != Hole::None;
            self.window
                .count(una, now, recovery.least, disturbed, drops);
        }
        if hole == Hole::None {
            recovery.early = false;
            recovery.trial = false;
            recovery.original = false;
        } else {
            self.hole_progress(hole, advanced, now);
        }
        let recovery = &mut self.recovery;
        recovery.hole_probes = 0;
        recovery.probes = 0;
        if !is_asked(recovery, self.una) {
            recovery.asked_until = None;
        }
        self.gaps.progress(self.una, self.max_psn);
        let recovery = &mut self.recovery;
        if jumped && recovery.going_back {
            // The peer had kept the packets after a gap.
            recovery.going_back = false;
            self.learn(Peer::Unknown);
        }
        self.arm_probe(now);
    }

    /// Handles the acknowledgement of the packets of `hole`.
    #[cold]
    fn hole_progress(&mut self, hole: Hole, advanced: u32, now: u64) {
        let recovery = &mut self.recovery;
        recovery.early = matches!(hole, Hole::Sent { at, .. } if recovery.too_early(at, now));
        let late = recovery.original || recovery.early;
        let soon = matches!(hole, Hole::Sent { at, .. } if now.saturating_sub(at) < recovery.usual().mean >> 1);
        // The peer answered without a retransmission: it had kept the packet.
        let kept = match &mut recovery.again {
            _ if recovery.trial => true,
            Some(again) if matches!(hole, Hole::Sent { .. }) => {
                again.fresh = !late && !soon;
                again.trial && !again.fresh
            }
            _ => false,
        };
        recovery.trial = false;
        match hole {
            Hole::None => {}
            // If only an answer was lost, the peer had no gap, and the test shows nothing.
            Hole::Due {
                cause: Cause::Nak, ..
            }
            | Hole::Sent {
                cause: Cause::Nak, ..
            } if kept => self.learn(Peer::Holds),
            _ if kept => {}
            // The packet was only late.
            Hole::Due { since, .. } => recovery.late(now.saturating_sub(since)),
            Hole::Sent { since, cause, .. } if recovery.original || recovery.early => {
                if cause != Cause::Probe {
                    recovery.late(now.saturating_sub(since));
                }
            }
            Hole::Sent { at, cause, .. } => {
                if recovery.hole_probes == 0 {
                    let time = now.saturating_sub(at);
                    recovery.holes.sample(time);
                    // If the answer is to the probe, this is a round trip. If it is to the
                    // original, which was only slow, a round trip takes even longer. (READs take as
                    // long as their responses.)
                    let known = recovery.packets.mean;
                    let longer = known != 0 && time > known && recovery.asked_until.is_none();
                    if cause == Cause::Probe && longer {
                        recovery.packets.sample(time);
                    }
                }
                // Losses have replaced reordering: shorten the wait.
                recovery.lateness = recovery.lateness.saturating_sub(recovery.lateness >> 2);
                if recovery.lateness < 1_000 {
                    recovery.lateness = 0;
                }
                if cause == Cause::Nak && advanced > recovery.run {
                    self.learn(Peer::Holds);
                }
            }
        }
        let recovery = &mut self.recovery;
        recovery.original = false;
        if let Hole::Sent { at, cause, .. } = hole {
            // An answer after a probe may be to the original transmission. Otherwise the queues on
            // the path have drained, and round trips are shorter than the measured ones.
            if cause != Cause::Probe {
                recovery.least = recovery.least.min(now.saturating_sub(at));
            }
        }
        recovery.hole = Hole::None;
    }

    /// Resets recovery because transmission restarts at the oldest unacknowledged packet.
    pub(super) fn recovery_rewound(&mut self) {
        self.gaps.clear(self.una);
        self.recovery.hole = Hole::None;
        self.recovery.asked_until = None;
        self.recovery.again = None;
        self.recovery.trial = false;
        self.recovery.run = 1;
        self.recovery.timed = None;
        self.recovery.probe_at = None;
        self.recovery.probes = 0;
        self.recovery.hole_probes = 0;
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
        let wait = self.recovery.patience();
        let steps = self.recovery.probes.min(PROBE_STEPS);
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
        // A hole already known keeps its cause.
        let cause = match self.recovery.hole {
            Hole::None => Cause::Probe,
            Hole::Due { cause, .. } => cause,
            Hole::Sent { cause, .. } => {
                self.recovery.hole_probes = self.recovery.hole_probes.saturating_add(1);
                cause
            }
        };
        self.open_hole(now, cause);
        if let Hole::Due { at, .. } = &mut self.recovery.hole {
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
