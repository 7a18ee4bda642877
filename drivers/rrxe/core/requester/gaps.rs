// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Missing READ responses beyond the first lost packet.
//!
//! The requester asks for a lost packet as soon as an answer beyond it arrives. It can ask for
//! later gaps in the same way, because each answer implies everything before it. Otherwise each
//! loss would wait a round trip for the repair of the one before it. Meanwhile the driver buffers
//! the out-of-order packets.

use super::request::SlotState;
use super::{Requester, RequesterEnv, SendOp, SendSlot};
use crate::psn::Psn;
use crate::{Progress, TxError};

/// Maximum number of gaps tracked. Later ones are found when nothing before them is missing.
const MAX_GAPS: usize = 8;

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

/// Gaps that the answers received so far reveal.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    /// One beyond the highest answered PSN; stale if not beyond `una`.
    seen: Psn,
    /// One beyond the highest missing PSN that is not in the list; stale if not beyond `una`.
    passed: Psn,
    list: [Option<Gap>; MAX_GAPS],
}

impl Gaps {
    pub(super) const fn new() -> Gaps {
        Gaps {
            seen: Psn::new(0),
            passed: Psn::new(0),
            list: [None; MAX_GAPS],
        }
    }

    /// Returns whether a gap has not been asked for yet.
    pub(super) fn are_due(&self) -> bool {
        self.list.iter().flatten().any(|gap| !gap.asked)
    }

    /// Returns whether this PSN was asked for again as part of a gap.
    pub(super) fn was_asked(&self, psn: Psn) -> bool {
        self.list
            .iter()
            .flatten()
            .any(|gap| gap.asked && psn.since(gap.from) < gap.until.since(gap.from))
    }

    /// Forgets all gaps, because everything is retransmitted or nothing is in flight.
    pub(super) fn clear(&mut self, una: Psn) {
        *self = Gaps {
            seen: una,
            passed: una,
            ..Gaps::new()
        };
    }

    /// Adds a gap. Returns whether it is in the list now.
    fn push(&mut self, gap: Gap) -> bool {
        if self.list.iter().flatten().any(|g| g.until == gap.until) {
            return true;
        }
        let free = self.list.iter_mut().find(|entry| entry.is_none());
        free.is_some_and(|entry| {
            *entry = Some(gap);
            true
        })
    }

    /// Forgets the gaps that have been answered.
    #[inline]
    pub(super) fn progress(&mut self, una: Psn, max: Psn) {
        let left = max.since(una);
        for entry in &mut self.list {
            // An outstanding gap ends after `una` and at most at `max`. (The list is nearly always
            // empty, so the loop avoids writes.)
            let is_over = |gap: &Gap| gap.until.since(una).wrapping_sub(1) >= left;
            if entry.as_ref().is_some_and(is_over) {
                *entry = None;
            }
        }
    }
}

impl Requester {
    /// Notes a READ response beyond `una`.
    pub(super) fn note_answer<P>(&mut self, slots: &[SendSlot<P>], psn: Psn) {
        let at = psn.since(self.una);
        let before = match self.gaps.seen.since(self.una) {
            seen if seen <= self.max_psn.since(self.una) => seen,
            // The answers up to `seen` have all been acknowledged, and another packet is lost.
            _ => 0,
        };
        if at < before {
            return;
        }
        self.gaps.seen = psn.next();
        if at == before {
            return;
        }
        let Some(gap) = self.unanswered(slots, before, at) else {
            return;
        };
        // A gap that starts at `una` is repaired as a loss. With reordering, a late packet is not
        // asked for at once.
        let asks =
            before != 0 && self.recovery.reorder_window() == 0 && !self.is_passed(slots, &gap);
        if !asks || !self.gaps.push(gap) || gap.until.since(self.una) < at {
            self.gaps.passed = psn;
        }
    }

    /// Returns whether responses of the same READ may be missing that are not in the list. The
    /// requester asks for the parts of a READ in order: a peer that answers a later part may take
    /// that answer for the whole READ (rdma_rxe does).
    fn is_passed<P>(&self, slots: &[SendSlot<P>], gap: &Gap) -> bool {
        let passed = self.gaps.passed.since(self.una);
        passed <= self.max_psn.since(self.una)
            && self
                .slot(slots, gap.number)
                .is_some_and(|slot| slot.progress.first_psn.since(self.una) < passed)
    }

    /// Returns the first started READ, other than the oldest work request, with PSNs in this range,
    /// counted from `una`.
    fn unanswered<P>(&self, slots: &[SendSlot<P>], from: u32, to: u32) -> Option<Gap> {
        let mut number = self.tail.wrapping_add(1);
        while let Some(slot) = self.slot(slots, number) {
            if slot.progress.state != SlotState::Started {
                return None;
            }
            if !slot.op.is_local() {
                let (first, last) = (slot.progress.first_psn, slot.last_psn());
                if first.since(self.una) >= to {
                    return None;
                }
                if last.since(self.una) >= from && slot.op == SendOp::Read {
                    let start = first.since(self.una).max(from);
                    return Some(Gap {
                        from: self.una.add(start),
                        until: last.next(),
                        number,
                        asked: false,
                    });
                }
            }
            number = number.wrapping_add(1);
        }
        None
    }

    /// Asks for the gaps beyond the lost packet. Returns whether there is room for more packets.
    pub(super) fn send_gaps<E: RequesterEnv>(
        &mut self,
        slots: &mut [SendSlot<E::Local>],
        now: u64,
        budget: u32,
        env: &mut E,
        progress: &mut Progress,
    ) -> bool {
        for n in 0..MAX_GAPS {
            let gap = self.gaps.list.get(n).copied().flatten();
            let Some(gap) = gap.filter(|gap| !gap.asked) else {
                continue;
            };
            if self.rnr_wait.is_some() || !self.rate.ready(now) {
                return true;
            }
            if progress.sent >= budget {
                progress.more = true;
                return false;
            }
            let sent = self.send_again(slots, gap.number, gap.from, now, env, progress);
            if matches!(sent, Err(TxError::NoRoom)) {
                return false;
            }
            // A gap that cannot be asked for now is repaired when nothing before it is missing.
            let asked = sent.is_ok().then_some(Gap { asked: true, ..gap });
            if let Some(entry) = self.gaps.list.get_mut(n) {
                *entry = asked;
            }
            // Karn's algorithm: an answer could be to either transmission.
            self.recovery.forget_timing();
        }
        true
    }
}
