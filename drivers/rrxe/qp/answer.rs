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
    let wait = linux_rdma::parameter::<u32>(crate::module_parameters::answer_wait_us.value());
    u64::from(wait.min(LONGEST_ANSWER_WAIT)).saturating_mul(1000)
}

/// Whether acknowledgements wait for answers, and whether one does now. An acknowledgement that waits is always taken by one of those who
/// want it; who takes it together with the acknowledgement itself, or sees to what is left, does so under the lock of the receive side, as
/// requests are handled: on another processor the answer may leave, and the next request come, before the first one is done with.
pub(super) struct Answers {
    /// Requests in a row that were answered soon.
    in_row: Atomic<u32>,
    /// When the last request came that has not been answered, in nanoseconds of CLOCK_MONOTONIC; 0 where there is none.
    heard: Atomic<u64>,
    /// When the acknowledgement that waits is to leave; 0 where none does.
    due: Atomic<u64>,
}

/// What becomes of the acknowledgement of a request that has come.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// It leaves at once.
    #[default]
    None,
    /// It waits.
    Begins,
    /// It leaves at once, as does the one that has waited until now, which the caller is to send.
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

    /// A request has come, and is going to be handled: whoever waits for it may answer as soon as that has begun. What becomes of its
    /// acknowledgement; where that waits, whoever sends takes it, and the caller sees in the end to what is left: see [`Answers::due`].
    #[inline]
    pub(super) fn expect(&self, now: u64) -> Wait {
        if self.in_row.load(Relaxed) < ANSWERS {
            return Wait::None;
        }
        let due = now.saturating_add(longest_wait());
        if self.due.cmpxchg(0, due, Full).is_ok() {
            return Wait::Begins;
        }
        // What waits already has waited in vain.
        self.in_row.store(0, Relaxed);
        match self.take() {
            true => Wait::Ends,
            false => Wait::None,
        }
    }

    /// When the acknowledgement that waits is to leave, if one does.
    #[inline]
    pub(super) fn due(&self) -> Option<u64> {
        Some(self.due.load(Relaxed)).filter(|due| *due != 0)
    }

    /// A request comes at this time that is acknowledged at once. To be called before it is handled, as [`Answers::expect`].
    #[inline]
    pub(super) fn hear(&self, heard: u64) {
        self.heard.store(heard, Relaxed);
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
        // The caller has what has waited.
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
        // Nor who sends by himself.
        for _ in 0..3 * ANSWERS {
            answers.answered(1);
        }
        assert!(answers.expect(1) == Wait::None);
    }
}
