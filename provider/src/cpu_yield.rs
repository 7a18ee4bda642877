// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Yields the CPU after repeated empty polls.
//!
//! A thread that spins on an empty completion queue can keep the CPU from the code that it depends
//! on: the program at the other end if both are on one host, a worker of the peer's driver, or the
//! kernel thread for poll mode or softirqs. The scheduler lets a busy thread run for milliseconds,
//! although a message takes microseconds. `sched_yield` costs a thread little if it
//! has a CPU of its own, but milliseconds if it shares the CPU with a compute-bound thread. So a
//! thread doubles the time before its next yield if a yield took too long for the completions that
//! it found afterwards. Otherwise it halves that time: beside a compute-bound thread, a reset would
//! cost it several yields.

use crate::clock;
use crate::ffi::os;
use core::cell::Cell;

/// Empty polls between two reads of the clock, which cost more than a poll.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Nanoseconds that other threads may run for each completion that the yielding thread finds
/// afterwards. It also limits the time that a thread polls before it yields.
const MAX_YIELD_COST_NS: u64 = 1_000_000;

/// Upper bound of [`YieldState::factor`].
const MAX_FACTOR: u64 = 1 << 10;

// The only use of `std`: a thread-local value without a destructor. Rust allocates nothing for it,
// but the C library may, at a thread's first access.
extern crate std;

std::thread_local! {
    /// State of a thread, not of a completion queue: a thread that polls several queues may have
    /// much work although one of them stays empty.
    static STATE: YieldState = const { YieldState::new() };
}

/// How a thread waits. Times are in nanoseconds.
struct YieldState {
    /// Empty polls since the last completion.
    polls: Cell<u32>,
    /// Time of the first read of the clock since the last completion.
    since: Cell<u64>,
    /// Time of the first yield since the last completion, or 0.
    yielded: Cell<u64>,
    /// The time before the first yield is multiplied by this power of two.
    factor: Cell<u64>,
}

/// Records that the calling thread has polled and found `completions` completions. `after` is the
/// time of empty polls, in nanoseconds, after which threads of this context yield; 0 for never.
#[inline]
pub(crate) fn after_completions(after: u64, completions: u32) {
    if after != 0 {
        STATE.with(|state| state.found(completions, now));
    }
}

/// Records that the calling thread has polled and found no completion. Yields the CPU if that is
/// due; `after` is the argument of [`after_completions`].
#[inline]
pub(crate) fn after_empty_poll(after: u64) {
    if after != 0 && STATE.with(|state| state.is_due(after, now)) {
        os::sched_yield();
    }
}

/// Returns the clock in nanoseconds, never 0.
#[cold]
fn now() -> u64 {
    (clock::ticks() as u64).max(1)
}

impl YieldState {
    const fn new() -> Self {
        Self {
            polls: Cell::new(0),
            since: Cell::new(0),
            yielded: Cell::new(0),
            factor: Cell::new(1),
        }
    }

    /// Counts an empty poll. Returns whether the thread should yield now; if it has yielded since
    /// the last completion, it keeps doing so at each read of the clock.
    #[inline]
    fn is_due(&self, after: u64, now: impl FnOnce() -> u64) -> bool {
        let polls = self.polls.get().wrapping_add(1);
        self.polls.set(polls);
        if polls % POLLS_PER_CLOCK_READ != 0 {
            return false;
        }
        let now = now();
        if polls == POLLS_PER_CLOCK_READ {
            self.since.set(now);
        }
        let wait = after.saturating_mul(self.factor.get());
        let wait = wait.min(MAX_YIELD_COST_NS.max(after));
        if self.yielded.get() == 0 && now.saturating_sub(self.since.get()) >= wait {
            self.yielded.set(now);
        }
        self.yielded.get() != 0
    }

    /// Ends the wait, and adapts the factor if the thread has yielded.
    #[inline]
    fn found(&self, completions: u32, now: impl FnOnce() -> u64) {
        self.polls.set(0);
        if self.yielded.get() != 0 {
            let time = now().saturating_sub(self.yielded.replace(0));
            let paid = time <= u64::from(completions).saturating_mul(MAX_YIELD_COST_NS);
            let factor = self.factor.get();
            self.factor.set(if paid {
                factor.wrapping_div(2).max(1)
            } else {
                factor.saturating_mul(2).min(MAX_FACTOR)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: u64 = 10_000;

    /// A simulated thread and the CPU that it shares.
    struct Thread {
        state: YieldState,
        now: u64,
        /// Time for which other threads run after a yield.
        others: u64,
        yields: Vec<u64>,
    }

    impl Thread {
        fn new(others: u64) -> Self {
            Self {
                state: YieldState::new(),
                now: 1 << 40,
                others,
                yields: Vec::new(),
            }
        }

        /// Polls an empty queue every 10 ns for `time` nanoseconds.
        fn poll(&mut self, time: u64) {
            let until = self.now.wrapping_add(time);
            while self.now < until {
                self.now = self.now.wrapping_add(10);
                if self.state.is_due(AFTER, || self.now) {
                    self.yields.push(self.now);
                    self.now = self.now.wrapping_add(self.others);
                }
            }
        }

        fn find(&mut self, completions: u32) {
            self.state.found(completions, || self.now);
        }
    }

    #[test]
    fn a_spinning_thread_yields_repeatedly() {
        let mut thread = Thread::new(300);
        let start = thread.now;
        thread.poll(1_000_000);
        let read = u64::from(POLLS_PER_CLOCK_READ) * 10;
        let first = thread.yields.first().map_or(0, |&first| first - start);
        assert!((AFTER..AFTER + 2 * read).contains(&first), "{first}");
        let pairs = thread.yields.iter().zip(thread.yields.iter().skip(1));
        assert!(pairs
            .map(|(one, next)| next - one)
            .all(|time| time == read + 300));
        assert!(thread.yields.len() > 2000);
    }

    #[test]
    fn a_completion_restarts_the_wait() {
        let mut thread = Thread::new(0);
        for _ in 0..100 {
            thread.poll(AFTER - 1_000);
            thread.find(1);
        }
        // A thread that polls again an hour later waits as long as before.
        thread.now += 3_600_000_000_000;
        thread.poll(AFTER - 1_000);
        assert_eq!(thread.yields, []);
    }

    #[test]
    fn costly_yields_become_rare() {
        let mut thread = Thread::new(4_000_000);
        // A reply takes 50 microseconds.
        for _ in 0..1000 {
            thread.poll(50_000);
            thread.find(1);
        }
        assert!((1..6).contains(&thread.yields.len()));
        // A thread with a long wait still yields to the others.
        thread.yields.clear();
        thread.poll(2 * MAX_YIELD_COST_NS);
        assert!(!thread.yields.is_empty());
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut thread = Thread::new(100_000_000);
        for _ in 0..50 {
            thread.poll(2 * MAX_YIELD_COST_NS);
            thread.find(1);
        }
        assert_eq!(thread.yields.len(), 50);
        thread.poll(MAX_YIELD_COST_NS - 10);
        assert_eq!(thread.yields.len(), 50);
    }

    #[test]
    fn useful_yields_stay_frequent() {
        let mut thread = Thread::new(4_000_000);
        for _ in 0..100 {
            thread.poll(50_000);
            thread.find(8);
        }
        assert_eq!(thread.yields.len(), 100);
        // The wait before a yield becomes shorter again, too.
        thread.state.factor.set(MAX_FACTOR);
        for _ in 0..10 {
            thread.poll(2 * MAX_YIELD_COST_NS);
            thread.find(8);
        }
        assert_eq!(thread.state.factor.get(), 1);
    }

    #[test]
    fn never_is_never() {
        for _ in 0..1000 {
            after_empty_poll(0);
        }
        let polls = || STATE.with(|state| state.polls.get());
        assert_eq!(polls(), 0);
        after_empty_poll(AFTER);
        assert_eq!(polls(), 1);
        after_completions(AFTER, 1);
        assert_eq!(polls(), 0);
    }
}
