// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The scoreboard of RFC 6675: READ responses that are missing beyond the lost packet.
//!
//! The requester asks for whole READs, and peers that restart READs for parts of them, as soon as a
//! response beyond them arrives. Otherwise each loss would delay its repair by the round trip of
//! the one before it.

use super::transmit::Poll;
use super::{Ctx, DriverPart, Requester, RequesterEnv as Env, SendSlot};
use crate::congestion::CongestionControl;
use crate::psn::Psn;
use crate::{RingCounter, TxError};

/// Maximum number of gaps tracked. Later ones are found when nothing before them is missing.
const MAX_GAPS: usize = 8;

/// Maximum number of work requests that are searched for the READ of a gap. Each early response
/// causes a search, and local operations, which have no PSN, may fill the queue behind a READ.
const MAX_SEARCH: usize = 64;

/// Responses of one READ, from the first missing one to the last.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: Psn,
    /// One beyond the last PSN of the READ.
    until: Psn,
    /// Counter value of the READ's work request; see `Requester::slot`.
    number: RingCounter,
    asked: bool,
}

/// The READ responses that are missing beyond the lost packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    /// One beyond the highest PSN with a response; stale if not beyond `una`.
    seen: Psn,
    gaps: [Option<Gap>; MAX_GAPS],
}

impl Scoreboard {
    /// Returns a scoreboard for responses from the oldest unacknowledged packet on.
    pub(super) fn at(una: Psn) -> Self {
        Self {
            seen: una,
            ..Self::default()
        }
    }

    /// Returns whether a gap has not been asked for yet.
    pub(super) fn has_due_gap(&self) -> bool {
        self.gaps.iter().flatten().any(|gap| !gap.asked)
    }

    /// Returns whether this PSN was asked for again as part of a gap.
    pub(super) fn was_asked(&self, psn: Psn) -> bool {
        self.gaps
            .iter()
            .flatten()
            .any(|gap| gap.asked && psn.since(gap.from) < gap.until.since(gap.from))
    }

    /// Asserts what holds between two events, with this number of PSNs outstanding from `una` on.
    pub(super) fn assert_invariants(&self, una: Psn, outstanding: u32) {
        for (n, gap) in self.gaps.iter().enumerate() {
            let Some(gap) = gap else {
                continue;
            };
            debug_assert!(gap.until.is_after(gap.from), "a gap without a response");
            debug_assert!(
                (1..=outstanding).contains(&gap.until.since(una)),
                "a gap that is closed or was never sent"
            );
            debug_assert!(
                gap.asked || !una.is_after(gap.from),
                "a gap closes that was not asked for"
            );
            let mut others = self.gaps.iter().take(n).flatten();
            debug_assert!(
                others.all(|other| other.until != gap.until),
                "two gaps of one READ"
            );
        }
    }

    /// Adds a gap, unless a gap of its READ is in the list or the list is full.
    fn push(&mut self, gap: Gap) {
        debug_assert!(gap.until.is_after(gap.from), "a gap without a response");
        debug_assert!(!gap.asked, "a new gap that was asked for");
        if self.gaps.iter().flatten().any(|g| g.until == gap.until) {
            return;
        }
        if let Some(entry) = self.gaps.iter_mut().find(|entry| entry.is_none()) {
            *entry = Some(gap);
        }
    }

    /// Forgets the gaps whose responses have come, or begin to come before they were asked for.
    #[inline(always)]
    pub(super) fn progress(&mut self, una: Psn, max: Psn) {
        let left = max.since(una);
        for entry in &mut self.gaps {
            // An outstanding gap ends after `una` and at most at `max`. The list is nearly always
            // empty, so the loop avoids writes.
            entry.take_if(|gap| {
                let begins = !gap.asked && una.is_after(gap.from);
                begins || !(1..=left).contains(&gap.until.since(una))
            });
        }
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Notes a READ response beyond `una`.
    pub(super) fn note_response<P: DriverPart>(&mut self, slots: &[SendSlot<P>], psn: Psn) {
        debug_assert!(self.is_outstanding(psn), "a response to no request");
        let at = psn.since(self.psn.una);
        let before = self.distance(self.loss.scoreboard.seen);
        if at >= before {
            self.loss.scoreboard.seen = psn.next();
        }
        if at <= before {
            return;
        }
        // A gap that starts at `una` is repaired as a loss. With reordering, a late packet is not
        // asked for at once.
        if before == 0 || self.gaps.is_late() {
            return;
        }
        if let Some(gap) = self.find_gap(slots, before, at) {
            self.loss.scoreboard.push(gap);
        }
    }

    /// Returns the distance from `una` to a PSN of the scoreboard; 0 if that is stale.
    fn distance(&self, psn: Psn) -> u32 {
        match psn.since(self.psn.una) {
            distance if distance <= self.psn.end.since(self.psn.una) => distance,
            _ => 0,
        }
    }

    /// Finds the first started READ, other than the oldest work request, with PSNs in this range,
    /// counted from `una`, among the [`MAX_SEARCH`] oldest work requests.
    ///
    /// Its earlier responses may only be buffered, and the driver may drop them. A peer that
    /// continues with MIDDLE takes a repeated request as a confirmation that they have arrived, and
    /// never sends them again (rdma_rxe: `duplicate_request()` in rxe_resp.c). So only peers that
    /// are known to restart READs are asked for the rest of one. Others are asked for whole READs,
    /// but not for one behind a READ of which a part is missing: without a loss, that costs goodput
    /// on paths that reorder.
    fn find_gap<P: DriverPart>(&self, slots: &[SendSlot<P>], from: u32, to: u32) -> Option<Gap> {
        let mut number = self.queue.tail.next();
        for _ in 0..MAX_SEARCH {
            let slot = self.slot(slots, number).filter(|slot| slot.is_started())?;
            let first = slot.progress.first_psn.since(self.psn.una);
            if first >= to && !slot.op.is_local() {
                return None;
            }
            if slot.last_psn().since(self.psn.una) >= from && slot.op.is_read() {
                let is_whole = first >= from;
                return (is_whole || self.peer.restarts_reads()).then(|| Gap {
                    from: self.psn.una.add(first.max(from)),
                    until: slot.last_psn().next(),
                    number,
                    asked: false,
                });
            }
            number.advance();
        }
        None
    }

    /// Asks for the gaps beyond the lost packet. Returns whether more packets may be sent.
    pub(super) fn send_gaps(&mut self, cx: &mut Ctx<'_, impl Env>, poll: &mut Poll) -> bool {
        for n in 0..MAX_GAPS {
            let gap = self.loss.scoreboard.gaps.get(n).copied().flatten();
            let Some(gap) = gap.filter(|gap| !gap.asked) else {
                continue;
            };
            if self.retry.rnr_wait.is_some() || !self.congestion.admit(cx.now) {
                return true;
            }
            if poll.progress.sent >= poll.budget {
                poll.progress.more = true;
                return false;
            }
            let sent = self.send_again(cx, poll, gap.number, gap.from);
            if matches!(sent, Err(TxError::Full)) {
                return false;
            }
            // A gap that cannot be asked for now is repaired when nothing before it is missing.
            let asked = sent.is_ok().then_some(Gap { asked: true, ..gap });
            if let Some(entry) = self.loss.scoreboard.gaps.get_mut(n) {
                *entry = asked;
            }
            self.gaps.comes_again(gap.until.prev());
            let len = gap.until.since(gap.from);
            self.rtt.retransmitted(gap.from, len);
        }
        true
    }
}

/// An impossible state, which an assertion catches.
#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a gap that is closed or was never sent")]
    fn closed_gap() {
        let mut scoreboard = Scoreboard::at(Psn::new(0));
        scoreboard.push(Gap {
            from: Psn::new(3),
            until: Psn::new(5),
            number: RingCounter::new(1),
            asked: false,
        });
        scoreboard.assert_invariants(Psn::new(0), 5);
        scoreboard.assert_invariants(Psn::new(5), 5);
    }
}
