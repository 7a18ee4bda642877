// SPDX-License-Identifier: GPL-2.0

//! Delayed ACKs.
//!
//! An ACK sent alone costs a packet through two stacks. If the program answers each request with a
//! message soon afterwards, the ACK can follow that message in the same GSO packet. After
//! [`ANSWERS`] requests in a row that were answered soon, the receive side therefore defers an ACK
//! if it has nothing else to send.
//!
//! An ACK waits at most for `answer_wait_us` (a module parameter). If the program once fails
//! to answer in that time, ACKs leave at once again.
//!
//! The only cost falls on a peer that waits for the completion of its send and not for the answer.

use crate::limits::path::{ANSWERS, LONGEST_ANSWER_WAIT};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Returns the longest time, in nanoseconds, for which an ACK is deferred.
fn longest_wait() -> u64 {
    let wait = linux_rdma::parameter::<u32>(crate::module_parameters::answer_wait_us.value());
    u64::from(wait.min(LONGEST_ANSWER_WAIT)).saturating_mul(1000)
}

/// State of the delayed ACK of a queue pair.
///
/// A deferred ACK is claimed exactly once, by [`Answers::take`]. The claimant takes the ACK itself
/// from the responder under the receive lock, which also covers the handling of requests: while one
/// CPU still handles a request, another CPU may send the answer and receive the next request.
pub(super) struct Answers {
    /// Requests in a row that were answered soon; at most [`ANSWERS`].
    in_row: Atomic<u32>,
    /// Arrival time of the last unanswered request, in nanoseconds of CLOCK_MONOTONIC; 0 if none.
    heard: Atomic<u64>,
    /// Time at which the deferred ACK must leave, in nanoseconds of CLOCK_MONOTONIC; 0 if none.
    due: Atomic<u64>,
}

/// When the ACK of a received request is sent.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// At once.
    #[default]
    None,
    /// Later: the ACK is deferred.
    Begins,
    /// At once. The caller also sends the ACK that was deferred before.
    Ends,
}

impl Answers {
    pub(super) const fn new() -> Self {
        Self {
            in_row: Atomic::new(0),
            heard: Atomic::new(0),
            due: Atomic::new(0),
        }
    }

    /// Decides when the ACK of a request is sent. Must be called before the request is handled,
    /// because the program may answer as soon as handling begins.
    ///
    /// If it returns [`Wait::Begins`], the next send takes the ACK, and the caller checks
    /// [`Answers::due`] after the request was handled.
    #[inline]
    pub(super) fn expect(&self, now: u64) -> Wait {
        if self.in_row.load(Relaxed) < ANSWERS {
            return Wait::None;
        }
        let due = now.saturating_add(longest_wait());
        if self.due.cmpxchg(0, due, Full).is_ok() {
            return Wait::Begins;
        }
        // The program has not answered the request whose ACK is deferred.
        self.in_row.store(0, Relaxed);
        match self.take() {
            true => Wait::Ends,
            false => Wait::None,
        }
    }

    /// Returns the time at which the deferred ACK must leave, if there is one.
    #[inline]
    pub(super) fn due(&self) -> Option<u64> {
        Some(self.due.load(Relaxed)).filter(|due| *due != 0)
    }

    /// Records the arrival of a request whose ACK is sent at once. Must be called before the
    /// request is handled.
    #[inline]
    pub(super) fn hear(&self, heard: u64) {
        self.heard.store(heard, Relaxed);
    }

    /// Records that the queue pair sends messages of its own.
    #[inline]
    pub(super) fn answered(&self, now: u64) {
        let heard = self.heard.load(Relaxed);
        if heard != 0 {
            self.heard.store(0, Relaxed);
            let soon = now.saturating_sub(heard) < longest_wait();
            let before = if soon { self.in_row.load(Relaxed) } else { 0 };
            let in_row = before.saturating_add(soon.into());
            self.in_row.store(in_row.min(ANSWERS), Relaxed);
        }
    }

    /// Returns whether the caller must send an ACK whose time is up, and the time for the next
    /// check if the ACK stays deferred.
    pub(super) fn late(&self, now: u64) -> (bool, Option<u64>) {
        match self.due.load(Relaxed) {
            0 => (false, None),
            due if due > now => (false, Some(due)),
            _ => {
                self.in_row.store(0, Relaxed);
                (self.take(), None)
            }
        }
    }

    /// Claims the deferred ACK, if there is one. If this returns true, the caller must send it.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.due.load(Relaxed) != 0 && self.due.xchg(0, Full) != 0
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_answer)]
mod tests {
    use super::*;

    /// Returns the state after enough requests that were answered in time.
    fn expecting() -> Answers {
        let answers = Answers::new();
        for _ in 0..ANSWERS {
            assert!(answers.expect(1) == Wait::None);
            assert!(answers.due().is_none() && !answers.take());
            answers.hear(1);
            answers.answered(longest_wait());
        }
        answers
    }

    #[test]
    fn waits_for_who_answers() {
        let answers = expecting();
        for _ in 0..3 {
            let due = 5 + longest_wait();
            assert!(answers.expect(5) == Wait::Begins);
            assert_eq!(answers.due(), Some(due));
            assert_eq!(answers.late(6), (false, Some(due)));
            assert!(answers.take());
            answers.answered(7);
            assert_eq!(answers.late(due), (false, None));
            assert!(answers.due().is_none() && !answers.take());
        }
    }

    #[test]
    fn no_longer_than_until_it_is_late() {
        let answers = expecting();
        assert!(answers.expect(5) == Wait::Begins);
        assert_eq!(answers.late(5 + longest_wait()), (true, None));
        assert!(!answers.take());
        assert!(answers.expect(7 + longest_wait()) == Wait::None);
    }

    #[test]
    fn not_with_a_second_request() {
        let answers = expecting();
        assert!(answers.expect(5) == Wait::Begins);
        // The caller has the ACK that was deferred.
        assert!(answers.expect(6) == Wait::Ends);
        assert!(!answers.take());
        assert!(answers.expect(7) == Wait::None);
    }

    #[test]
    fn who_answers_late_is_not_waited_for() {
        let answers = Answers::new();
        for _ in 0..3 * ANSWERS {
            assert!(answers.expect(1) == Wait::None);
            answers.hear(1);
            answers.answered(1 + longest_wait());
        }
        // Messages that answer no request do not count.
        for _ in 0..3 * ANSWERS {
            answers.answered(1);
        }
        assert!(answers.expect(1) == Wait::None);
    }
}
