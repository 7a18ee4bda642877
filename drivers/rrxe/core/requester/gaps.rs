// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! READ responses that are missing beyond the hole.
//!
//! A hole is asked for as soon as an answer beyond it comes, and so can be what is missing further on: an answer tells of
//! everything before it. Without that, each loss would wait for the one before to be repaired, a round trip
//! each. What waits for nothing but its turn is kept by the driver meanwhile.

use super::request::SlotState;
use super::{Requester, RequesterEnv, SendOp, SendSlot};
use crate::psn::Psn;
use crate::{Progress, TxError};

/// Most of them at a time. What is beyond is found when its turn comes.
const MOST: usize = 8;

/// Responses of one READ, from the first that is missing to its last.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: Psn,
    /// One beyond the last PSN of the READ.
    until: Psn,
    /// The number of the READ among the work requests.
    number: u32,
    asked: bool,
}

/// What is missing, as far as answers have told.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    /// One beyond the highest PSN that was answered; old where it is not beyond `una`.
    seen: Psn,
    /// One beyond the highest PSN that is missing and not in the list; old where it is not beyond `una`.
    passed: Psn,
    list: [Option<Gap>; MOST],
}

impl Gaps {
    pub(super) const fn new() -> Gaps {
        Gaps {
            seen: Psn::new(0),
            passed: Psn::new(0),
            list: [None; MOST],
        }
    }

    /// Some are to be asked for.
    pub(super) fn are_due(&self) -> bool {
        self.list.iter().flatten().any(|gap| !gap.asked)
    }

    /// Whether this PSN was asked for again here.
    pub(super) fn was_asked(&self, psn: Psn) -> bool {
        self.list
            .iter()
            .flatten()
            .any(|gap| gap.asked && psn.since(gap.from) < gap.until.since(gap.from))
    }

    /// Everything is sent again, or nothing is in flight.
    pub(super) fn clear(&mut self, una: Psn) {
        *self = Gaps {
            seen: una,
            passed: una,
            ..Gaps::new()
        };
    }

    /// Whether it is in the list now.
    fn push(&mut self, gap: Gap) -> bool {
        if self.list.iter().flatten().any(|g| g.until == gap.until) {
            return true;
        }
        let free = self.list.iter_mut().find(|place| place.is_none());
        free.is_some_and(|place| {
            *place = Some(gap);
            true
        })
    }

    /// Forgets what has been answered.
    #[inline]
    pub(super) fn progress(&mut self, una: Psn, max: Psn) {
        let left = max.since(una);
        for place in &mut self.list {
            // One beyond its end is at most `max`, where something of it is outstanding. (There are hardly ever any: what
            // is not written is not copied.)
            let is_over = |gap: &Gap| gap.until.since(una).wrapping_sub(1) >= left;
            if place.as_ref().is_some_and(is_over) {
                *place = None;
            }
        }
    }
}

impl Requester {
    /// A READ response beyond `una` has come.
    pub(super) fn note_answer(&mut self, slots: &[SendSlot], psn: Psn) {
        let at = psn.since(self.una);
        let before = match self.gaps.seen.since(self.una) {
            seen if seen <= self.max_psn.since(self.una) => seen,
            // What was seen has been answered since, and there is a new hole.
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
        // What is missing from `una` on is the hole, and what is late is not asked for at once.
        let asks = before != 0 && self.recovery.lateness() == 0 && !self.is_passed(slots, &gap);
        if !asks || !self.gaps.push(gap) || gap.until.since(self.una) < at {
            self.gaps.passed = psn;
        }
    }

    /// Whether something of the same READ may be missing that is not in the list. A part of a READ is not asked for before
    /// another that comes before it: who has answered the later one may take that for all of the READ (rdma_rxe does).
    fn is_passed(&self, slots: &[SendSlot], gap: &Gap) -> bool {
        let passed = self.gaps.passed.since(self.una);
        passed <= self.max_psn.since(self.una)
            && self
                .slot(slots, gap.number)
                .is_some_and(|slot| slot.first_psn.since(self.una) < passed)
    }

    /// The first READ with PSNs between these, counted from `una`, unless that is the oldest.
    fn unanswered(&self, slots: &[SendSlot], from: u32, to: u32) -> Option<Gap> {
        let mut number = self.tail.wrapping_add(1);
        while let Some(slot) = self.slot(slots, number) {
            if slot.state != SlotState::Started {
                return None;
            }
            if !slot.op.is_local() {
                let (first, last) = (slot.first_psn, slot.last_psn());
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

    /// Asks for what is missing beyond the hole. Whether there is room for more.
    pub(super) fn send_gaps<E: RequesterEnv>(
        &mut self,
        slots: &mut [SendSlot],
        now: u64,
        budget: u32,
        env: &mut E,
        progress: &mut Progress,
    ) -> bool {
        for n in 0..MOST {
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
            let index = Self::index(slots, gap.number);
            let sent = self.send_again(slots, index, gap.from, now, env, progress);
            if matches!(sent, Err(TxError::NoRoom)) {
                return false;
            }
            // What can't be asked for is found as its turn comes.
            let asked = sent.is_ok().then_some(Gap { asked: true, ..gap });
            if let Some(place) = self.gaps.list.get_mut(n) {
                *place = asked;
            }
            // Karn: an answer might be to either.
            self.recovery.forget_timing();
        }
        true
    }
}
