// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A rate limit of wrong keys, for queue pairs that survive them.
//!
//! A reliable connection ends with the first wrong key. An unreliable one continues, so its peer,
//! or an attacker that forges the peer's packets, could try keys as fast as packets arrive.

/// Maximum number of wrong keys in a period.
pub const MAX_WRONG: u32 = 8;

/// Length of a period in nanoseconds.
pub const PERIOD: u64 = 1_000_000_000;

/// Recent wrong keys of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guesses {
    /// Start of the period: the time of a wrong key.
    since: u64,
    wrong: u32,
}

impl Guesses {
    /// Returns whether the queue pair may check a key now: not after [`MAX_WRONG`] wrong ones in
    /// the current period.
    #[inline]
    pub fn may_try(&self, now: u64) -> bool {
        self.wrong < MAX_WRONG || self.is_over(now)
    }

    /// Counts a wrong key.
    pub fn note_wrong(&mut self, now: u64) {
        if self.wrong == 0 || self.is_over(now) {
            self.since = now;
            self.wrong = 0;
        }
        self.wrong = self.wrong.saturating_add(1);
    }

    fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.since) >= PERIOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_per_period() {
        let mut guesses = Guesses::default();
        let start = 5 * PERIOD + 3;
        for now in start..start + u64::from(MAX_WRONG) {
            assert!(guesses.may_try(now));
            guesses.note_wrong(now);
        }
        assert!(!guesses.may_try(start + 10));
        assert!(!guesses.may_try(start + PERIOD - 1));
        assert!(guesses.may_try(start + PERIOD));
        // Only a wrong key starts another period.
        guesses.note_wrong(start + 7 * PERIOD);
        for _ in 1..MAX_WRONG {
            assert!(guesses.may_try(start + 7 * PERIOD + 1));
            guesses.note_wrong(start + 7 * PERIOD + 1);
        }
        assert!(!guesses.may_try(start + 8 * PERIOD - 1));
        assert!(guesses.may_try(start + 8 * PERIOD));
    }
}
