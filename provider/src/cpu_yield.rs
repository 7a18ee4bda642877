// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Yields the CPU after repeated empty polls.
//!
//! A thread that spins on an empty completion queue can keep the code it waits for off the CPU: the
//! program at the other end if both are on one host, a worker of the peer's driver, or the kernel
//! thread for poll mode or softirqs. The scheduler sees a busy thread and lets it run for
//! milliseconds, although a message takes microseconds.
//!
//! A thread that has a CPU of its own loses nothing: `sched_yield` returns at once, and a
//! completion is found at most the duration of that call later. A thread that shares its CPU with a
//! compute-bound one would lose much, because it gets the CPU back only milliseconds later. This
//! case is detected by the few completions that have arrived in all that time; the thread then
//! doubles the time that it polls before its next yield.

use crate::clock;
use crate::ffi::os;
use core::cell::Cell;

/// Empty polls between two reads of the clock, which cost more than a poll.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Longest average interval between polls, in nanoseconds, of a thread that does nothing else. A
/// thread that polls less often has other work for its CPU.
const MAX_POLL_INTERVAL_NS: u64 = 10_000;

/// Nanoseconds that other threads may have run for each completion that arrived meanwhile. It also
/// limits the time that a thread polls before it yields.
const MAX_YIELD_COST_NS: u64 = 1_000_000;

/// Upper bound of [`YieldState::doubled`].
const MAX_DOUBLINGS: u32 = 10;

thread_local! {
    /// State of a thread, not of a completion queue: a thread that polls several queues may have
    /// much to do although one of them stays empty.
    static STATE: YieldState = const { YieldState::new() };
}

/// How a thread waits. Times are in nanoseconds.
struct YieldState {
    /// Empty polls since the last completion, or [`POLLS_PER_CLOCK_READ`] plus those since the time
    /// `since`.
    polls: Cell<u32>,
    since: Cell<u64>,
    /// Time of the first yield since the last completion, or 0.
    yielded: Cell<u64>,
    /// How often the time before the first yield is doubled.
    doubled: Cell<u32>,
}

/// Records that the calling thread has polled and found `completions` completions. `after` is the
/// time of empty polls, in nanoseconds, after which threads of this context yield; 0 for never.
#[inline]
pub(crate) fn after_completions(after: u64, completions: u32) {
    if after != 0 {
        STATE.with(|state| {
            state.polls.set(0);
            if state.yielded.get() != 0 {
                adapt(state, completions);
            }
        });
    }
}

#[cold]
fn adapt(state: &YieldState, completions: u32) {
    state.adapt(now(), completions);
}

/// Records that the calling thread has polled and found no completion. Yields the CPU if that is
/// due; `after` is the argument of [`after_completions`].
#[inline]
pub(crate) fn after_empty_poll(after: u64) {
    if after != 0 {
        STATE.with(|state| {
            if state.counts() {
                check_clock(state, after);
            }
        });
    }
}

#[cold]
fn check_clock(state: &YieldState, after: u64) {
    if state.is_too_long(now(), after) {
        os::yield_processor();
        state.count_from(now());
    }
}

/// Returns the clock in nanoseconds, never 0.
fn now() -> u64 {
    (clock::ticks() as u64).max(1)
}

impl YieldState {
    const fn new() -> Self {
        Self {
            polls: Cell::new(0),
            since: Cell::new(0),
            yielded: Cell::new(0),
            doubled: Cell::new(0),
        }
    }

    /// Counts an empty poll. Returns whether to read the clock.
    #[inline]
    fn counts(&self) -> bool {
        let polls = self.polls.get().wrapping_add(1);
        self.polls.set(polls);
        polls % POLLS_PER_CLOCK_READ == 0
    }

    /// Returns whether the thread should yield. Called after [`YieldState::counts`]; the caller
    /// then yields.
    fn is_too_long(&self, now: u64, after: u64) -> bool {
        let spun = u64::from(self.polls.get()).saturating_sub(u64::from(POLLS_PER_CLOCK_READ));
        let time = now.saturating_sub(self.since.get());
        if spun == 0 || time > spun.saturating_mul(MAX_POLL_INTERVAL_NS) {
            self.yielded.set(0);
            self.count_from(now);
            return false;
        }
        // A thread that has already yielded since the last completion keeps doing so.
        if self.yielded.get() == 0 {
            if time < self.yield_after(after) {
                return false;
            }
            self.yielded.set(now);
        }
        true
    }

    fn yield_after(&self, after: u64) -> u64 {
        let doubled = 1_u64.wrapping_shl(self.doubled.get());
        after
            .saturating_mul(doubled)
            .min(MAX_YIELD_COST_NS.max(after))
    }

    fn count_from(&self, now: u64) {
        self.polls.set(POLLS_PER_CLOCK_READ);
        self.since.set(now);
    }

    /// Adapts to the completions that arrived after a yield.
    fn adapt(&self, now: u64, completions: u32) {
        let time = now.saturating_sub(self.yielded.replace(0));
        let doubled = self.doubled.get();
        self.doubled.set(
            if time > u64::from(completions).saturating_mul(MAX_YIELD_COST_NS) {
                doubled.saturating_add(1).min(MAX_DOUBLINGS)
            } else {
                doubled.saturating_sub(1)
            },
        );
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
        /// Time between polls, and time that other threads take.
        period: u64,
        others: u64,
        yields: Vec<u64>,
    }

    impl Thread {
        fn new(period: u64, others: u64) -> Self {
            Self {
                state: YieldState::new(),
                now: 1 << 40,
                period,
                others,
                yields: Vec::new(),
            }
        }

        /// Polls an empty queue for `time` nanoseconds.
        fn poll(&mut self, time: u64) {
            let until = self.now.wrapping_add(time);
            while self.now < until {
                self.now = self.now.wrapping_add(self.period);
                if self.state.counts() && self.state.is_too_long(self.now, AFTER) {
                    self.yields.push(self.now);
                    self.now = self.now.wrapping_add(self.others);
                    self.state.count_from(self.now);
                }
            }
        }

        fn find(&mut self, completions: u32) {
            self.state.polls.set(0);
            if self.state.yielded.get() != 0 {
                self.state.adapt(self.now, completions);
            }
        }
    }

    #[test]
    fn a_spinning_thread_yields_repeatedly() {
        let mut thread = Thread::new(10, 300);
        let start = thread.now;
        thread.poll(1_000_000);
        let first = thread.yields.first().map_or(0, |&first| first - start);
        assert!(
            (AFTER..AFTER + 2 * u64::from(POLLS_PER_CLOCK_READ) * 10).contains(&first),
            "{first}"
        );
        let again = u64::from(POLLS_PER_CLOCK_READ) * 10 + 300;
        let pairs = thread.yields.iter().zip(thread.yields.iter().skip(1));
        assert!(pairs
            .map(|(one, next)| next - one)
            .all(|time| time == again));
        assert!(thread.yields.len() > 2000);
    }

    #[test]
    fn slow_polling_yields_too() {
        let mut thread = Thread::new(MAX_POLL_INTERVAL_NS, 0);
        thread.poll(1_000_000);
        assert!(!thread.yields.is_empty());
    }

    #[test]
    fn a_thread_with_other_work_does_not_yield() {
        let mut thread = Thread::new(MAX_POLL_INTERVAL_NS + 1, 0);
        thread.poll(1_000_000_000);
        assert_eq!(thread.yields, []);
        // Nor does a thread that waited once, an hour ago.
        let mut thread = Thread::new(10, 0);
        thread.poll(100_000);
        thread.yields.clear();
        thread.now += 3_600_000_000_000;
        thread.poll(AFTER - 1_000);
        assert_eq!(thread.yields, []);
    }

    #[test]
    fn a_completion_restarts_the_wait() {
        let mut thread = Thread::new(10, 0);
        for _ in 0..100 {
            thread.poll(AFTER - 1_000);
            thread.find(1);
        }
        assert_eq!(thread.yields, []);
    }

    #[test]
    fn costly_yields_become_rare() {
        let mut thread = Thread::new(10, 4_000_000);
        // A reply takes 50 microseconds.
        for _ in 0..1000 {
            thread.poll(50_000);
            thread.find(1);
        }
        assert!((1..6).contains(&thread.yields.len()));
        // A thread that waits for long lets the others run nevertheless.
        thread.yields.clear();
        thread.poll(2 * MAX_YIELD_COST_NS);
        assert!(!thread.yields.is_empty());
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut thread = Thread::new(10, 100_000_000);
        for _ in 0..20 {
            thread.poll(2 * MAX_YIELD_COST_NS);
            thread.find(1);
        }
        assert_eq!(thread.yields.len(), 20);
        assert_eq!(thread.state.yield_after(AFTER), MAX_YIELD_COST_NS);
        assert_eq!(
            thread.state.yield_after(3 * MAX_YIELD_COST_NS),
            3 * MAX_YIELD_COST_NS
        );
    }

    #[test]
    fn useful_yields_stay_frequent() {
        let mut thread = Thread::new(10, 4_000_000);
        for _ in 0..100 {
            thread.poll(50_000);
            thread.find(8);
        }
        assert_eq!(thread.yields.len(), 100);
        // The wait before a yield shrinks again, too.
        thread.state.doubled.set(MAX_DOUBLINGS);
        for _ in 0..MAX_DOUBLINGS {
            thread.poll(2 * MAX_YIELD_COST_NS);
            thread.find(8);
        }
        assert_eq!(thread.state.yield_after(AFTER), AFTER);
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
