// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate-limits invalid R_Keys on UC, which does not enter Error on an access violation.
//!
//! A reliable connection enters Error on the first invalid R_Key. An unreliable one continues, so
//! its peer, or an attacker that forges the peer's packets, could try keys as fast as packets
//! arrive. The limit does not concern keys that the queue pair has accepted before: an attacker
//! cannot stop the peer by invalid keys.

use crate::{Increment, Span, Time};

/// Maximum number of invalid keys in a period.
pub const MAX_INVALID: u32 = 8;

/// Length of a period.
pub const PERIOD: Span = Span::from_us(1_000_000);

/// Maximum number of accepted keys that are remembered.
pub const MAX_ACCEPTED: usize = 16;

/// Recent invalid and accepted keys of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guesses {
    /// Start of the period: the time of an invalid key.
    since: Time,
    invalid: u32,
    /// The keys accepted last, and the index of the oldest.
    accepted: [Option<u32>; MAX_ACCEPTED],
    oldest: usize,
}

impl Guesses {
    /// Returns whether the queue pair may check this key now: one that it has accepted before, or
    /// any before [`MAX_INVALID`] invalid ones in the current period.
    #[inline]
    pub fn may_try(&self, key: u32, now: Time) -> bool {
        self.invalid < MAX_INVALID || self.is_over(now) || self.accepted.contains(&Some(key))
    }

    /// Notes that the queue pair has accepted a key.
    #[inline]
    pub fn note_accepted(&mut self, key: u32) {
        if self.accepted.contains(&Some(key)) {
            return;
        }
        debug_assert!(
            self.oldest < MAX_ACCEPTED,
            "the oldest key is none of the keys"
        );
        if let Some(entry) = self.accepted.get_mut(self.oldest) {
            *entry = Some(key);
        }
        self.oldest = match self.oldest.checked_add(1) {
            Some(next) if next < MAX_ACCEPTED => next,
            _ => 0,
        };
    }

    /// Counts an invalid key.
    pub fn note_invalid(&mut self, now: Time) {
        if self.invalid == 0 || self.is_over(now) {
            self.since = now;
            self.invalid = 0;
        }
        self.invalid.increment();
    }

    fn is_over(&self, now: Time) -> bool {
        now.since(self.since) >= PERIOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that was never accepted.
    const KEY: u32 = 1;

    #[test]
    fn limit_per_period() {
        let mut guesses = Guesses::default();
        let (start, ns) = (Time::from_ns(3) + PERIOD * 5, Span::from_ns(1));
        for n in 0..MAX_INVALID {
            assert!(guesses.may_try(KEY, start + ns * n));
            guesses.note_invalid(start + ns * n);
        }
        assert!(!guesses.may_try(KEY, start + ns * 10));
        assert!(!guesses.may_try(KEY, start + PERIOD - ns));
        assert!(guesses.may_try(KEY, start + PERIOD));
        // Only an invalid key starts another period.
        guesses.note_invalid(start + PERIOD * 7);
        for _ in 1..MAX_INVALID {
            assert!(guesses.may_try(KEY, start + PERIOD * 7 + ns));
            guesses.note_invalid(start + PERIOD * 7 + ns);
        }
        assert!(!guesses.may_try(KEY, start + PERIOD * 8 - ns));
        assert!(guesses.may_try(KEY, start + PERIOD * 8));
    }

    /// Wrong keys do not stop the use of a key that was accepted before.
    #[test]
    fn accepted_keys_are_never_limited() {
        let (mut guesses, now) = (Guesses::default(), Time::from_ns(7));
        for key in 10..10 + MAX_ACCEPTED as u32 {
            guesses.note_accepted(key);
            guesses.note_accepted(key);
        }
        for _ in 0..MAX_INVALID {
            guesses.note_invalid(now);
        }
        assert!((10..10 + MAX_ACCEPTED as u32).all(|key| guesses.may_try(key, now)));
        assert!(!guesses.may_try(KEY, now));
        // Of more keys, those accepted last are remembered.
        guesses.note_accepted(KEY);
        assert!(guesses.may_try(KEY, now) && guesses.may_try(11, now));
        assert!(!guesses.may_try(10, now));
    }
}
