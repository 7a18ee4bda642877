// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The invariants of a requester, which hold between two events. Builds with debug assertions check
//! them after each event: the tests, the simulation, the model, the fuzzers, and kernels with
//! CONFIG_RUST_DEBUG_ASSERTIONS.

use super::loss::MAX_UNCOUNTED_RETRIES;
use super::request::SlotState;
use super::{DriverPart, RecoveryMode, Requester, SendSlot, State};
use crate::congestion::CongestionControl;
use crate::psn::MAX_OUTSTANDING;
use crate::Stat;

/// Maximum number of work requests that are examined after an event.
const MAX_EXAMINED: u32 = 64;

impl<C: CongestionControl> Requester<C> {
    /// Asserts what holds between two events.
    #[inline]
    pub(super) fn assert_invariants<P: DriverPart>(&self, slots: &[SendSlot<P>]) {
        if cfg!(debug_assertions) {
            self.assert_cursors(slots);
            self.assert_psns();
            self.assert_timers();
            self.assert_retries();
            self.assert_slots(slots);
            let outstanding = self.psn.end.since(self.psn.una);
            self.loss
                .scoreboard
                .assert_invariants(self.psn.una, outstanding);
            self.rtt.assert_invariants();
        }
    }

    /// Asserts the order of the cursors in the ring of slots.
    fn assert_cursors<P: DriverPart>(&self, slots: &[SendSlot<P>]) {
        let outstanding = self.outstanding();
        debug_assert!(
            self.queue.next.since(self.queue.tail) <= outstanding,
            "a work request is sent that was not posted"
        );
        debug_assert!(
            outstanding as usize <= slots.len(),
            "more work requests than slots"
        );
        debug_assert!(
            outstanding == 0 || slots.len().is_power_of_two(),
            "a work request in a ring of the wrong size"
        );
    }

    /// Asserts the order of the PSNs: `una` <= `next` <= `end`.
    fn assert_psns(&self) {
        let outstanding = self.psn.end.since(self.psn.una);
        let sent = self.psn.next.since(self.psn.una);
        debug_assert!(sent <= outstanding, "the next PSN is beyond the last one");
        debug_assert!(
            outstanding <= MAX_OUTSTANDING,
            "more PSNs outstanding than a responder can tell apart"
        );
        debug_assert!(
            self.psn.responses <= sent,
            "more responses are expected than PSNs are outstanding"
        );
        debug_assert!(
            !self.awaits_memory || self.psn.next == self.psn.una,
            "a packet was sent while the memory for a response is absent"
        );
        debug_assert!(
            outstanding == 0 || self.service.is_reliable(),
            "an unreliable service expects an acknowledgement"
        );
        debug_assert!(
            outstanding == 0 || self.queue.head != self.queue.tail,
            "a PSN is outstanding without a work request"
        );
        debug_assert!(
            outstanding == 0 || self.state == State::Ready,
            "a PSN is outstanding in a state that receives nothing"
        );
        let timed = self.rtt.timed.map(|(psn, _)| psn);
        debug_assert!(
            timed.is_none_or(|psn| self.is_outstanding(psn)),
            "the timed packet is acknowledged"
        );
        let ahead = self.credits.sent.since(self.credits.completed);
        debug_assert!(
            ahead <= self.queue.next.since(self.queue.tail),
            "more messages use credits than were sent"
        );
    }

    /// Asserts that a timer is armed only if something is pending.
    fn assert_timers(&self) {
        let pending = self.psn.una != self.psn.end;
        debug_assert!(
            self.retry.deadline.is_none() || pending,
            "the acknowledge timer is armed without a packet"
        );
        debug_assert!(
            self.retry.deadline.is_none() || self.attr.ack_timeout.is_some(),
            "the acknowledge timer is armed but disabled"
        );
        debug_assert!(
            self.loss.probe_at.is_none() || self.psn.next != self.psn.una,
            "the probe timer is armed without a packet in flight"
        );
        debug_assert!(
            self.loss.probe_at.is_none() || self.attr.ack_timeout.is_some(),
            "the probe timer is armed without an acknowledge timer"
        );
        debug_assert!(
            self.loss.probe_at.is_none() || self.attr.mode == RecoveryMode::Selective,
            "a strict requester probes"
        );
        debug_assert!(
            self.retry
                .rnr_wait
                .is_none_or(|wait| self.is_outstanding(wait.from)),
            "the request that waits for the receiver is acknowledged"
        );
        debug_assert!(
            self.loss.repair.is_none() || pending,
            "a repair without a packet to repair"
        );
    }

    /// Asserts the bounds of the retry counts, and what is known of the peer.
    fn assert_retries(&self) {
        debug_assert!(
            self.attr.retry_count <= 7,
            "a retry count of more than three bits"
        );
        debug_assert!(
            self.retry.left <= self.attr.retry_count,
            "more retries are left than there are"
        );
        debug_assert!(
            self.attr.rnr_retry <= 7,
            "an RNR retry count of more than three bits"
        );
        debug_assert!(
            self.retry.rnr_left <= self.attr.rnr_retry,
            "more RNR retries are left than there are"
        );
        debug_assert!(
            self.retry.uncounted <= MAX_UNCOUNTED_RETRIES,
            "too many retries were not counted"
        );
        debug_assert!(
            self.attr.mode == RecoveryMode::Selective || self.peer.arq.drops(),
            "a strict requester expects the peer to keep packets"
        );
        debug_assert!(self.congestion.window() != 0, "the window is closed");
        self.loss.assert_invariants();
    }

    /// Asserts the states and the PSNs of the oldest work requests. They are executed in order, so
    /// none has started behind one that has not.
    fn assert_slots<P: DriverPart>(&self, slots: &[SendSlot<P>]) {
        if self.state != State::Ready {
            return;
        }
        let tail = self.slot(slots, self.queue.tail);
        debug_assert!(
            tail.is_none_or(|slot| !slot.op.is_local() || !slot.is_started()),
            "an executed local operation is not complete"
        );
        let asked = self.loss.has_asked();
        debug_assert!(
            !asked || tail.is_some_and(|slot| slot.op.is_read_or_atomic()),
            "a READ was asked for again that is complete"
        );
        let (mut number, mut psn, mut reads) = (self.queue.tail, self.psn.una, Stat::default());
        let mut waiting = false;
        for _ in 0..MAX_EXAMINED {
            let Some(slot) = self.slot(slots, number) else {
                break;
            };
            match slot.progress.state {
                SlotState::Failed(_) => return,
                SlotState::Posted => waiting = true,
                SlotState::Started => {
                    debug_assert!(!waiting, "a work request has overtaken another one");
                }
            }
            debug_assert!(slot.progress.packets != 0, "a work request without packets");
            if slot.is_started() && !slot.op.is_local() {
                debug_assert!(
                    slot.contains(psn),
                    "the PSNs of two work requests are not adjacent"
                );
                psn = slot.last_psn().next();
                reads.add(slot.op.is_read_or_atomic().into());
                let last = slot.op.is_read() || slot.progress.packets == 1;
                debug_assert!(
                    !last || slot.last_psn().since(self.psn.una) < self.psn.end.since(self.psn.una),
                    "a request was sent without all of its PSNs"
                );
            }
            number.advance();
        }
        if self.slot(slots, number).is_none() {
            debug_assert!(
                reads == u32::from(self.reads),
                "READs and atomics are miscounted"
            );
        }
        let next = self.slot(slots, self.queue.next);
        debug_assert!(
            next.is_none_or(|slot| !slot.is_started()
                || slot.op.is_local()
                || slot.contains(self.psn.next)),
            "the next PSN is not one of the next work request"
        );
        debug_assert!(
            next.is_none_or(
                |slot| slot.progress.state != SlotState::Posted || self.psn.next == self.psn.end
            ),
            "a new work request would use a PSN again"
        );
    }
}

/// Impossible states, each of which an assertion catches.
#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::congestion::FixedWindow;
    use crate::psn::Psn;
    use crate::{RingCounter, Service, Time};

    /// Makes a requester without work requests impossible, and checks it.
    fn seed(change: impl FnOnce(&mut Requester<FixedWindow>, &mut [SendSlot])) {
        let mut requester = Requester::new(Service::Rc);
        let mut slots = [SendSlot::default(); 4];
        requester.start();
        requester.assert_invariants(&slots);
        change(&mut requester, &mut slots);
        requester.assert_invariants(&slots);
    }

    #[test]
    #[should_panic(expected = "a work request is sent that was not posted")]
    fn crossed_cursors() {
        seed(|requester, _| requester.queue.next.advance());
    }

    #[test]
    #[should_panic(expected = "the next PSN is beyond the last one")]
    fn psns_out_of_order() {
        seed(|requester, _| requester.psn.next = Psn::new(1));
    }

    #[test]
    #[should_panic(expected = "a packet was sent while the memory for a response is absent")]
    fn transmission_without_memory() {
        seed(|requester, _| {
            requester.awaits_memory = true;
            requester.psn.next = Psn::new(1);
            requester.psn.end = Psn::new(1);
        });
    }

    #[test]
    #[should_panic(expected = "the acknowledge timer is armed without a packet")]
    fn timer_without_a_packet() {
        seed(|requester, _| requester.retry.deadline = Some(Time::from_ns(1)));
    }

    #[test]
    #[should_panic(expected = "more retries are left than there are")]
    fn too_many_retries() {
        seed(|requester, _| requester.retry.left = 1);
    }

    #[test]
    #[should_panic(expected = "the window is closed")]
    fn closed_window() {
        seed(|requester, _| requester.congestion.0 = 0);
    }

    #[test]
    #[should_panic(expected = "READs and atomics are miscounted")]
    fn miscounted_reads() {
        seed(|requester, _| requester.reads = 1);
    }

    #[test]
    #[should_panic(expected = "a work request has overtaken another one")]
    fn overtaken_work_request() {
        seed(|requester, slots| {
            requester.queue.head = RingCounter::new(2);
            for slot in slots.iter_mut() {
                slot.progress.packets = 1;
            }
            slots[1].progress.state = SlotState::Started;
        });
    }
}
