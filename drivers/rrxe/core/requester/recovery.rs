// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Finding out what was lost, and sending no more than that again.
//!
//! The *hole* is the oldest unacknowledged packet (`una`), once it is known to be missing: from a
//! NAK Sequence Error, from an answer beyond it, or because nothing has come for longer than
//! round trips take (the *probe*). It alone is sent again, and asks for an acknowledgement. What
//! comes back says whether the peer has kept what came after it:
//!
//! - An acknowledgement beyond the hole, or a NAK for the next one: it has. Transmission goes on
//!   where it was.
//! - An acknowledgement of the hole and no more: it has not (rdma_rxe keeps nothing). All that
//!   follows is sent again, and on this queue pair from now on at once (go-back-N).
//!
//! The answer to a READ or atomic says nothing of what came after it. So the next one is asked for, too, unless it is
//! answered right behind the first: a peer that answers only what was asked for again has not kept it.
//!
//! Packets get lost in a row, too: where the packet behind the hole turns out to be missing as well, twice as many are
//! sent again at a time.
//!
//! The consumer's timer remains above all that: it alone uses up retries without an answer, and
//! starts again from the oldest unacknowledged packet.
//!
//! In the mode [`RecoveryMode::Strict`] every peer counts as one that drops packets beyond a gap,
//! there is no probe, and round trips only size the window.

use super::{RecoveryMode, Requester, SendSlot};
use crate::psn::{Psn, MAX_OUTSTANDING};

/// Nanoseconds without progress before a probe, at least. Below that a busy host's scheduling is
/// what would be measured.
pub const PROBE_FLOOR: u64 = 1_000_000;

/// Each probe multiplies the time to the next one by four, this many times: up to 1024-fold. So the
/// requester sends few packets again if round trips become much longer at once, as in front of a
/// full queue.
const PROBE_STEPS: u32 = 5;

/// Holes that a peer which was seen to hold packets may acknowledge one by one before it is taken
/// for one that drops them: NAKs get lost, and then it looks so.
const BARE_HOLES: u8 = 3;

/// Packets that are sent again for a hole at most.
const MOST_RUN: u32 = 64;

/// As many in a row are lost where a queue overflows: the window is halved then.
const BURST: u32 = 8;

/// What follows from an acknowledgement of what was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing more.
    Nothing,
    /// The next unacknowledged packet is missing too.
    NextHole,
    /// All that follows is.
    GoBack,
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Nothing yet.
    Unknown,
    /// It keeps packets beyond a gap.
    Holds,
    /// It drops them.
    Drops,
}

/// How a hole was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The peer said so.
    Nak,
    /// An answer came that is beyond it.
    Gap,
    /// Nothing came for too long.
    Probe,
}

/// The oldest unacknowledged packet is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hole {
    /// Not as far as is known.
    None,
    /// Since then, and it is to be sent again.
    Due {
        since: u64,
        /// Not before this time. Without, with the next poll: the driver has been told, and no
        /// timer helps where the poll waits for room or for its turn.
        at: Option<u64>,
        cause: Cause,
    },
    /// It was sent again.
    Sent {
        since: u64,
        at: u64,
        cause: Cause,
        /// One beyond the highest PSN sent before that.
        beyond: Psn,
    },
}

/// A READ or atomic that was asked for again, and what was behind it.
#[derive(Clone, Copy, Debug)]
struct Again {
    cause: Cause,
    /// One beyond its last PSN.
    until: Psn,
    /// One beyond the highest PSN sent before that.
    beyond: Psn,
    /// It was asked for to find out whether the peer has kept it.
    trial: bool,
    /// Its answer was not on its way already.
    fresh: bool,
}

/// A measured round trip, as RFC 6298 has it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    /// Smoothed; 0 before the first sample.
    mean: u64,
    /// Its mean deviation.
    deviation: u64,
}

impl RoundTrip {
    const NONE: RoundTrip = RoundTrip {
        mean: 0,
        deviation: 0,
    };

    fn sample(&mut self, time: u64) {
        // A clock that stands still says nothing.
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

    /// How long an answer takes at most, as far as measured.
    fn patience(&self) -> u64 {
        self.mean.saturating_add(self.deviation.saturating_mul(4))
    }
}

/// What recovery remembers. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) hole: Hole,
    peer: Peer,
    /// All from the hole on is being sent again, because of a NAK.
    going_back: bool,
    /// A READ was asked for again up to here: its responses are on their way.
    asked_until: Option<Psn>,
    /// The READ or atomic that was asked for again because of a NAK or a probe.
    again: Option<Again>,
    /// The hole is there to find out whether the peer has kept it.
    trial: bool,
    /// Packets that the hole stands for, from the oldest unacknowledged one on.
    run: u32,
    /// Round trips of packets that were sent once.
    packets: RoundTrip,
    /// From sending a hole to its answer. That is often shorter: behind a hole the window fills,
    /// and what was queued on the way drains.
    holes: RoundTrip,
    /// The shortest of all; 0 before the first.
    least: u64,
    /// A packet whose answer will be a sample, and when it was sent.
    timed: Option<(Psn, u64)>,
    /// When the first packet of those in flight was sent, or one that has been answered since.
    began: u64,
    /// How late packets are that others have overtaken: holes wait that long.
    lateness: u64,
    /// The packet that closes the hole is the one that was late, not the one sent again.
    original: bool,
    /// The response within a READ that was last asked for again.
    asked_within: Option<Psn>,
    /// The peer answers what was asked for again as a READ of its own, with FIRST or ONLY, as it should (C-07). Others go on
    /// with MIDDLE and LAST (rdma_rxe), and can't be told from what is late.
    starts_anew: bool,
    /// What was acknowledged last came too early for an answer to the hole that it closed.
    early: bool,
    pub(super) probe_at: Option<u64>,
    /// Probes since the last progress.
    probes: u32,
    /// Probes for the hole that is being sent.
    hole_probes: u32,
    /// Holes in a row that a peer known to hold packets has acknowledged without more.
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

    /// Returns the initial state in this mode.
    pub(super) const fn of(mode: RecoveryMode) -> Recovery {
        let mut recovery = Recovery::new();
        if matches!(mode, RecoveryMode::Strict) {
            recovery.peer = Peer::Drops;
        }
        recovery
    }

    /// Whether a round trip is known.
    fn is_measured(&self) -> bool {
        self.packets.mean != 0 || self.holes.mean != 0
    }

    /// Round trips as they usually are.
    fn usual(&self) -> RoundTrip {
        match self.packets.mean {
            0 => self.holes,
            _ => self.packets,
        }
    }

    /// Whether what was sent at that time can't have been answered yet.
    fn too_early(&self, at: u64, now: u64) -> bool {
        now.saturating_sub(at) < self.least >> 1
    }

    /// How long an answer takes at most, as far as measured; not less than the floor.
    fn patience(&self) -> u64 {
        let measured = match self.hole {
            Hole::Sent { .. } if self.holes.mean != 0 => self.holes,
            _ => self.usual(),
        };
        measured.patience().max(PROBE_FLOOR)
    }

    /// How late packets are that others have overtaken; 0 where none are.
    pub(super) fn lateness(&self) -> u64 {
        self.lateness
    }

    /// Whose answer would be a sample is no more.
    pub(super) fn forget_timing(&mut self) {
        self.timed = None;
    }

    /// A READ response that begins one came, within a READ or for what has been answered by now.
    #[cold]
    pub(super) fn begins_within(&mut self, psn: Psn) {
        self.starts_anew |= self.asked_within == Some(psn);
    }

    /// A READ response that goes on within one came.
    #[inline]
    pub(super) fn goes_on_within(&mut self) {
        self.original = self.starts_anew;
    }

    /// A packet was late by this much, not lost.
    fn late(&mut self, by: u64) {
        let by = by.saturating_add(by >> 2).min(self.patience());
        self.lateness = self.lateness.max(by);
    }
}

impl Requester {
    /// What is missing is to be sent again, once the reordering that was seen has had its time.
    pub(super) fn open_hole(&mut self, now: u64, cause: Cause) {
        let wait = match cause {
            Cause::Probe => 0,
            _ => self.recovery.lateness,
        };
        if cause != Cause::Nak {
            self.recovery.run = 1;
        }
        if cause != Cause::Probe && !self.recovery.is_measured() {
            // Whatever the answer is to, it was not sent before that. Without this, a hole in the first
            // flight that gets lost once more would wait for the consumer's timer.
            let longest = now.saturating_sub(self.recovery.began);
            self.recovery.holes.sample(longest);
        }
        self.recovery.hole = Hole::Due {
            since: now,
            at: (wait != 0).then(|| now.saturating_add(wait)),
            cause,
        };
    }

    /// As many again are missing behind what was sent for `before`, or something else is.
    pub(super) fn next_run(&mut self, before: Hole, advanced: u32) {
        let run = self.recovery.run;
        let behind = matches!(before, Hole::Sent { cause, .. } if cause != Cause::Gap);
        self.recovery.run = if behind && advanced == run {
            run.saturating_mul(2).min(MOST_RUN)
        } else {
            1
        };
        if self.recovery.run == BURST && !self.is_local_loss() {
            // Some queue on the way has overflowed.
            self.window.overflowed();
        }
    }

    /// Packets that the hole stands for.
    pub(super) fn run(&self) -> u32 {
        self.recovery.run
    }

    /// Whether the hole is to be sent now. If so it waits for the next poll, and for no timer any
    /// more.
    #[inline]
    pub(super) fn hole_is_due(&mut self, now: u64) -> bool {
        let Hole::Due { at, .. } = &mut self.recovery.hole else {
            return false;
        };
        *at = at.filter(|&at| at > now);
        at.is_none()
    }

    /// The hole was sent.
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
        // Karn: an answer might be to either.
        self.recovery.timed = None;
        self.arm_probe(now);
    }

    /// New packets wait until it is known what the peer does with them.
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

    /// A NAK for the oldest unacknowledged packet: whether it can't be about the last time that
    /// it was sent.
    pub(super) fn nak_is_stale(&self, now: u64) -> bool {
        if self.mode == RecoveryMode::Strict {
            return self.send_psn == self.una;
        }
        match self.recovery.hole {
            // After a timer all of it may have been sent again while the NAK was on its way.
            Hole::None => {
                self.send_psn == self.una || self.recovery.too_early(self.recovery.began, now)
            }
            Hole::Due { .. } => true,
            Hole::Sent { at, .. } => self.recovery.too_early(at, now),
        }
    }

    /// Whether a NAK is answered by sending everything again. `before` is the hole before the NAK
    /// acknowledged what it acknowledges.
    pub(super) fn goes_back(&mut self, before: Hole, advanced: u32) -> bool {
        if let Hole::Sent {
            cause: Cause::Nak, ..
        } = before
        {
            // A peer that keeps nothing would have acknowledged the hole, and no more.
            if advanced != 0 && !self.recovery.early {
                self.learn(Peer::Holds);
            }
            // What is behind the READ that was answered is missing, too: that is what was to be found out. There may be a NAK
            // for each READ, and never an answer that would tell.
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

    /// What the peer does has shown.
    fn learn(&mut self, peer: Peer) {
        self.recovery.bare = 0;
        if self.recovery.peer == peer || self.mode == RecoveryMode::Strict {
            return;
        }
        // What is sent beyond a gap to a peer that drops it is sent again.
        match peer {
            Peer::Drops => self.window.drops(),
            _ if self.recovery.peer == Peer::Drops => self.window.keeps(),
            _ => {}
        }
        self.recovery.peer = peer;
    }

    /// An acknowledgement of what was sent again. Packets travel in order, nearly always: what was
    /// sent before that and is not acknowledged by it is missing too.
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
                // The acknowledgement may be for what was sent before, and only late.
                _ => After::Nothing,
            };
        }
        // The hole and no more.
        match self.recovery.peer {
            Peer::Holds if self.recovery.bare < BARE_HOLES => {
                self.recovery.bare = self.recovery.bare.saturating_add(1);
                After::NextHole
            }
            _ => {
                // A hole that was sent more than once may have been acknowledged before.
                if cause == Cause::Nak && self.recovery.hole_probes == 0 {
                    // The answer to the hole alone, as round trips are without what waits in queues.
                    self.window.drained(self.recovery.least);
                    self.learn(Peer::Drops);
                    self.recovery.going_back = true;
                }
                After::GoBack
            }
        }
    }

    /// The oldest READ or atomic was answered whole. Whether all that follows is missing.
    pub(super) fn after_read(&mut self, now: u64) -> bool {
        let Some(again) = self.recovery.again.take() else {
            return false;
        };
        if again.until != self.una {
            // It is an earlier one, whose answer was late.
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
            // From a peer that has kept it, its answer comes right behind the one that has just come.
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

    /// Whether the READ's responses from `una` on have been asked for again, and are on their way.
    pub(super) fn is_asked(&self) -> bool {
        is_asked(&self.recovery, self.una) || self.gaps.was_asked(self.una)
    }

    /// A packet is being sent while nothing is in flight.
    #[inline]
    pub(super) fn flight_begins(&mut self, now: u64) {
        self.recovery.began = now;
        self.window.count_from(self.una, now, false);
    }

    /// Packets that may be in flight now.
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

    /// A packet was sent for the first time.
    #[inline]
    pub(super) fn time_packet(&mut self, psn: Psn, now: u64) {
        if self.recovery.timed.is_none() {
            self.recovery.timed = Some((psn, now));
        }
    }

    /// What was not acknowledged before, from `before` on, is now.
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
            // It had what came after a gap, after all.
            recovery.going_back = false;
            self.learn(Peer::Unknown);
        }
        self.arm_probe(now);
    }

    /// The same, for the hole that there was.
    #[cold]
    fn hole_progress(&mut self, hole: Hole, advanced: u32, now: u64) {
        let recovery = &mut self.recovery;
        recovery.early = matches!(hole, Hole::Sent { at, .. } if recovery.too_early(at, now));
        let late = recovery.original || recovery.early;
        let soon = matches!(hole, Hole::Sent { at, .. } if now.saturating_sub(at) < recovery.usual().mean >> 1);
        // Answered without having been asked for: the peer has kept it.
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
            // That it lacked nothing, where only an answer was lost, says nothing.
            Hole::Due {
                cause: Cause::Nak, ..
            }
            | Hole::Sent {
                cause: Cause::Nak, ..
            } if kept => self.learn(Peer::Holds),
            _ if kept => {}
            // It was only late.
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
                    // If the probe was answered, this is a round trip; if the packet before it was,
                    // which was only slow, a round trip takes longer still. (READs take as long as
                    // their responses.)
                    let known = recovery.packets.mean;
                    let longer = known != 0 && time > known && recovery.asked_until.is_none();
                    if cause == Cause::Probe && longer {
                        recovery.packets.sample(time);
                    }
                }
                // Losses are what there is now: wait less.
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
            // What comes behind a probe may be the answer to what was sent before. Otherwise queues on the way have drained: round
            // trips are shorter than they were when they were measured.
            if cause != Cause::Probe {
                recovery.least = recovery.least.min(now.saturating_sub(at));
            }
        }
        recovery.hole = Hole::None;
    }

    /// Transmission starts again at the oldest unacknowledged packet.
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

    /// Starts the probe's timer, if there is something in flight: the time that answers take,
    /// four times as long after each probe without one. Without a measurement there is no probe, nor if the
    /// consumer wants no timer (F-02), nor if its timer expires before, nor in the strict mode.
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

    /// The probe's timer has expired.
    pub(super) fn probe(&mut self, now: u64) {
        self.recovery.probe_at = None;
        if self.send_psn == self.una {
            return;
        }
        self.recovery.probes = self.recovery.probes.saturating_add(1);
        self.counters.probes = self.counters.probes.wrapping_add(1);
        // What the peer is known to lack stays so.
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

/// Whether what was asked for again goes beyond this PSN.
fn is_asked(recovery: &Recovery, una: Psn) -> bool {
    recovery
        .asked_until
        .is_some_and(|until| is_after(until, una))
}

/// Whether a PSN is one of the 2^23 after another.
pub(super) fn is_after(psn: Psn, other: Psn) -> bool {
    psn.since(other).wrapping_sub(1) < MAX_OUTSTANDING
}
