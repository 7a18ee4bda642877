// SPDX-License-Identifier: GPL-2.0

//! Programs that answer.
//!
//! Where each request is answered by a message of our own soon after, an acknowledgement by itself costs a packet through two stacks that
//! could leave behind the answer, in one packet of the stack. So once that is seen to happen, an acknowledgement that is all there is to send waits for the answer.
//! It does not wait long (the module's parameter `answer_wait_us`), and whoever fails to answer once has his acknowledgements sent at once again.
//!
//! Nobody loses by it but who waits for the completion of his send, and not for the answer.

use crate::limits::path::{ANSWERS, LONGEST_ANSWER_WAIT};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Nanoseconds that an acknowledgement waits at most.
fn longest_wait() -> u64 {
    let wait = *crate::module_parameters::answer_wait_us.value();
    u64::from(wait.min(LONGEST_ANSWER_WAIT)).saturating_mul(1000)
}

/// Whether acknowledgements wait for answers, and whether one does now. What two processors do at the same time may be counted
/// wrongly; an acknowledgement that waits is always taken by one of them.
pub(super) struct Answers {
    /// Requests in a row that were answered soon.
    in_row: Atomic<u32>,
    /// When the last request came that has not been answered, in nanoseconds of CLOCK_MONOTONIC; 0 where there is none.
    heard: Atomic<u64>,
    /// When the acknowledgement that waits is to leave; 0 where none does.
    due: Atomic<u64>,
}

impl Answers {
    pub(super) const fn new() -> Self {
        Self {
            in_row: Atomic::new(0),
            heard: Atomic::new(0),
            due: Atomic::new(0),
        }
    }

    /// Requests have come that are to be acknowledged. Whether an answer is expected, for which that can wait: see [`Answers::wait`].
    #[inline]
    pub(super) fn expected(&self, now: u64) -> bool {
        // One that waits already has waited in vain.
        if self.take() {
            self.in_row.store(0, Relaxed);
        }
        if self.in_row.load(Relaxed) >= ANSWERS {
            return true;
        }
        self.heard.store(now, Relaxed);
        false
    }

    /// The acknowledgement waits from now on. Until when: a timer must look then.
    #[inline]
    pub(super) fn wait(&self, now: u64) -> u64 {
        let due = now.saturating_add(longest_wait());
        self.due.store(due, Relaxed);
        due
    }

    /// Messages of our own leave.
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

    /// Whether one has waited until now; when that is to be asked again, if one goes on waiting. A caller who is told so sends it.
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

    /// Takes the acknowledgement that waits, if one does: the caller sends it.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.due.load(Relaxed) != 0 && self.due.xchg(0, Full) != 0
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_answer)]
mod tests {
    use super::*;

    /// One that expects answers, after as many requests as it takes, each answered in time.
    fn expecting() -> Answers {
        let answers = Answers::new();
        for _ in 0..ANSWERS {
            assert!(!answers.expected(1));
            assert!(!answers.take());
            answers.answered(longest_wait());
        }
        answers
    }

    #[test]
    fn waits_for_who_answers() {
        let answers = expecting();
        for _ in 0..3 {
            assert!(answers.expected(5));
            assert_eq!(answers.wait(5), 5 + longest_wait());
            assert_eq!(answers.late(6), (false, Some(5 + longest_wait())));
            assert!(answers.take());
            answers.answered(7);
            assert_eq!(answers.late(5 + longest_wait()), (false, None));
            assert!(!answers.take());
        }
    }

    #[test]
    fn no_longer_than_until_it_is_late() {
        let answers = expecting();
        assert!(answers.expected(5));
        answers.wait(5);
        assert_eq!(answers.late(5 + longest_wait()), (true, None));
        assert!(!answers.take());
        assert!(!answers.expected(7 + longest_wait()));
    }

    #[test]
    fn not_with_a_second_request() {
        let answers = expecting();
        assert!(answers.expected(5));
        answers.wait(5);
        assert!(!answers.expected(6));
        assert!(!answers.take());
    }

    #[test]
    fn who_answers_late_is_not_waited_for() {
        let answers = Answers::new();
        for _ in 0..3 * ANSWERS {
            assert!(!answers.expected(1));
            answers.answered(1 + longest_wait());
        }
        // Nor who sends by himself.
        for _ in 0..3 * ANSWERS {
            answers.answered(1);
        }
        assert!(!answers.expected(1));
    }
}
