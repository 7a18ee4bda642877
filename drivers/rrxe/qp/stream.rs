// SPDX-License-Identifier: GPL-2.0

//! Doorbell moderation for programs that post streams of small messages.
//!
//! A program that posts small messages one by one pays for each of them with a system call, a
//! packet and an ACK. Many messages could share these. Once a program is seen to post a stream and
//! to receive nothing in between, the kernel polls its send ring: at intervals, and when an ACK
//! arrives. The program then rings the doorbell only once for a batch of messages, for a completion
//! that it wants, and before it waits. `abi.rs` has the rules.
//!
//! A program that waits for replies, or pauses between posts, is not streaming. A request from the
//! peer ends the stream. So does a poll that finds few work requests, or that finds no two of them
//! at once. The time that sending takes does not count: on a slow machine it can be long.
//!
//! A program that streams on one queue pair usually does so on others, and again later. The
//! completion queue remembers this in its [`Habit`], until a stream ends without having been
//! confirmed.

use crate::limits::path::{
    STREAM, STREAM_BATCH, STREAM_BYTES, STREAM_GAP, STREAM_LEAST, STREAM_LOOK, STREAM_MESSAGE,
};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Statistics of the work requests taken from a send ring.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fetched {
    count: u32,
    /// Bytes of the longest message.
    longest: u32,
    /// Bytes of all messages.
    bytes: u32,
}

impl Fetched {
    /// Adds a message of `length` bytes.
    #[inline]
    pub(super) fn add(&mut self, length: u32) {
        self.count = self.count.wrapping_add(1);
        self.longest = self.longest.max(length);
        self.bytes = self.bytes.saturating_add(length);
    }

    /// Returns whether no work request was taken.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Events reported to the send side: requests from the peer, and ends of send rounds.
pub(super) struct Talk {
    state: Atomic<u32>,
    /// Time at which the last send round ended, in nanoseconds of CLOCK_MONOTONIC.
    ended: Atomic<u64>,
}

const SILENT: u32 = 0;
const HEARD: u32 = 1;
const STREAMING: u32 = 2;

impl Talk {
    pub(super) const fn new() -> Self {
        Self {
            state: Atomic::new(SILENT),
            ended: Atomic::new(0),
        }
    }

    /// Records a request from the peer. Returns whether it ends a stream.
    #[inline]
    pub(super) fn hear(&self) -> bool {
        self.state.load(Relaxed) != HEARD && self.state.xchg(HEARD, Full) == STREAMING
    }

    /// Records that a send round has ended and the program continues.
    #[inline]
    pub(super) fn round_ended(&self, now: u64) {
        self.ended.store(now, Relaxed);
    }

    /// Returns whether no request has arrived since the last call.
    fn is_silent(&self) -> bool {
        self.state.load(Relaxed) != HEARD || self.state.cmpxchg(HEARD, SILENT, Full).is_err()
    }

    /// Begins a stream. Returns false if a request has arrived meanwhile.
    fn begin(&self) -> bool {
        match self.state.cmpxchg(SILENT, STREAMING, Full) {
            Ok(_) => true,
            // A stream is still marked as on after a reset or an error of the queue pair.
            Err(now) => now == STREAMING,
        }
    }

    fn end(&self) {
        let _ = self.state.cmpxchg(STREAMING, SILENT, Full);
    }
}

/// Whether the last stream posted to the queue pairs of a completion queue was confirmed. If so,
/// the next one is assumed at its first message.
pub(crate) struct Habit(Atomic<u32>);

impl Habit {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    #[inline]
    fn is_known(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    fn learn(&self, is_stream: bool) {
        if self.is_known() != is_stream {
            self.0.store(is_stream.into(), Relaxed);
        }
    }
}

/// Statistics of the work requests found between two polls.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Work requests.
    count: u32,
    /// Bytes of their messages.
    bytes: u32,
    /// Largest number of work requests found by one round.
    most: u32,
}

impl Found {
    fn add(&mut self, fetched: Fetched) {
        self.count = self.count.saturating_add(fetched.count);
        self.bytes = self.bytes.saturating_add(fetched.bytes);
        self.most = self.most.max(fetched.count);
    }

    /// Returns whether enough was found to continue. A few large messages take as long to send as
    /// many small ones.
    fn is_much(&self) -> bool {
        self.count >= STREAM_LEAST || self.bytes >= STREAM_MESSAGE
    }
}

/// Moderation state of one send queue.
#[derive(Default)]
pub(super) struct Stream {
    /// Consecutive rounds that found only small messages, each soon after the previous one.
    rounds: u32,
    /// In a stream: a poll has confirmed it.
    proven: bool,
    /// In a stream: the time of the next poll, in nanoseconds of CLOCK_MONOTONIC.
    look: Option<u64>,
    /// Statistics since the last poll.
    found: Found,
    /// Largest number of work requests found by one round, in the interval before the last poll.
    before: u32,
    /// Bytes of the longest message that the last round found.
    longest: u32,
}

impl Stream {
    /// Returns the number of work requests after which the program must ring the doorbell, for a
    /// queue of `capacity` entries. At most half of the queue: the driver sends one half while the
    /// program fills the other.
    pub(super) fn batch(&self, capacity: u32) -> u32 {
        let most = STREAM_BYTES.checked_div(self.longest);
        let most = most.map_or(STREAM_BATCH, |most| most.min(STREAM_BATCH));
        (capacity / 2).min(most).max(1)
    }

    /// Returns whether a stream is on: the program need not ring the doorbell for each batch.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.look.is_some()
    }

    #[inline]
    pub(super) fn next_look(&self) -> Option<u64> {
        self.look
    }

    /// Updates the state after a round has taken `fetched` from the ring.
    pub(super) fn follow(&mut self, fetched: Fetched, talk: &Talk, habit: &Habit, now: u64) {
        if fetched.longest > STREAM_MESSAGE || !talk.is_silent() {
            talk.end();
            self.end();
            return;
        }
        if !fetched.is_empty() {
            self.longest = fetched.longest;
        }
        match self.look {
            None if fetched.count != 0 => {
                if now.saturating_sub(talk.ended.load(Relaxed)) > STREAM_GAP {
                    self.rounds = 0;
                }
                self.rounds = self.rounds.saturating_add(1);
                if (self.rounds >= STREAM || habit.is_known()) && talk.begin() {
                    self.next(now);
                }
            }
            None => {}
            Some(look) => {
                self.found.add(fetched);
                if now < look {
                    return;
                }
                // A program that waits for each message posts one at a time.
                let several = self.found.most.max(self.before) >= 2;
                let ended = talk.ended.load(Relaxed);
                if several && self.found.is_much() {
                    self.proven = true;
                    habit.learn(true);
                    self.next(now);
                } else if self.found.count == 0 && now < ended.saturating_add(STREAM_LOOK) {
                    // The work requests found before have only just been sent.
                    self.look = Some(ended.saturating_add(STREAM_LOOK));
                } else {
                    if !self.proven {
                        habit.learn(false);
                    }
                    talk.end();
                    self.end();
                }
            }
        }
    }

    /// Starts the next interval.
    fn next(&mut self, now: u64) {
        self.look = Some(now.saturating_add(STREAM_LOOK));
        self.before = self.found.most;
        self.found = Found::default();
    }

    /// Ends the stream.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_stream)]
mod tests {
    use super::*;

    fn of(length: u32) -> Fetched {
        some(1, length)
    }

    fn some(count: u32, length: u32) -> Fetched {
        let mut fetched = Fetched::default();
        for _ in 0..count {
            fetched.add(length);
        }
        fetched
    }

    /// Returns a stream that has just begun, at time 0.
    fn streaming(talk: &Talk, habit: &Habit) -> Stream {
        let mut stream = Stream::default();
        for _ in 1..STREAM {
            stream.follow(of(64), talk, habit, 0);
            assert!(!stream.is_on());
        }
        stream.follow(of(64), talk, habit, 0);
        assert!(stream.is_on());
        stream
    }

    #[test]
    fn once_known_at_once() {
        let (habit, talk) = (Habit::new(), Talk::new());
        let mut stream = streaming(&talk, &habit);
        stream.follow(some(STREAM_LEAST, 64), &talk, &habit, 1);
        stream.follow(Fetched::default(), &talk, &habit, STREAM_LOOK);
        assert!(habit.is_known());
        stream.follow(Fetched::default(), &talk, &habit, 2 * STREAM_LOOK);
        // The stream was confirmed, and has ended.
        assert!(!stream.is_on() && habit.is_known());
        // A new stream begins at once, on this queue pair and on another. Then one ends
        // unconfirmed.
        let mut other = Stream::default();
        for stream in [&mut stream, &mut other] {
            let talk = Talk::new();
            assert!(habit.is_known());
            stream.follow(of(64), &talk, &habit, 9 * STREAM_LOOK);
            assert!(stream.is_on());
        }
        other.follow(Fetched::default(), &Talk::new(), &habit, 10 * STREAM_LOOK);
        assert!(!other.is_on() && !habit.is_known());
    }

    #[test]
    fn ends_where_nothing_comes() {
        let (habit, talk) = (Habit::new(), Talk::new());
        let mut stream = streaming(&talk, &habit);
        stream.follow(some(STREAM_LEAST, 64), &talk, &habit, STREAM_LOOK - 1);
        // Enough work requests have come since the last poll.
        stream.follow(Fetched::default(), &talk, &habit, STREAM_LOOK);
        assert_eq!(stream.next_look(), Some(2 * STREAM_LOOK));
        for _ in 1..STREAM_LEAST {
            stream.follow(of(64), &talk, &habit, 2 * STREAM_LOOK - 1);
        }
        assert!(stream.is_on());
        stream.follow(Fetched::default(), &talk, &habit, 2 * STREAM_LOOK);
        assert!(!stream.is_on() && !talk.hear());
    }

    #[test]
    fn one_at_a_time_is_none() {
        let (habit, talk) = (Habit::new(), Talk::new());
        let mut stream = streaming(&talk, &habit);
        let mut now = 1;
        for _ in 0..10 * STREAM_LEAST {
            stream.follow(of(64), &talk, &habit, now);
        }
        stream.follow(of(64), &talk, &habit, STREAM_LOOK);
        assert!(!stream.is_on() && !habit.is_known());
        // A stream that turns into single messages ends after two polls.
        let mut stream = streaming(&talk, &habit);
        stream.follow(some(STREAM_LEAST, 64), &talk, &habit, STREAM_LOOK);
        for looks in [2, 3] {
            assert!(stream.is_on());
            while now < looks * STREAM_LOOK {
                now += STREAM_LOOK / 8;
                stream.follow(of(64), &talk, &habit, now);
            }
        }
        assert!(!stream.is_on() && habit.is_known());
    }

    #[test]
    fn of_large_messages() {
        let (habit, talk) = (Habit::new(), Talk::new());
        let mut stream = streaming(&talk, &habit);
        stream.follow(some(2, STREAM_MESSAGE), &talk, &habit, 1);
        stream.follow(Fetched::default(), &talk, &habit, STREAM_LOOK);
        assert!(stream.is_on() && habit.is_known());
        // A single large message is enough if there were two before.
        stream.follow(of(STREAM_MESSAGE), &talk, &habit, 2 * STREAM_LOOK);
        assert!(stream.is_on());
        // The time that sending takes does not count as the program's.
        stream.follow(some(2, STREAM_MESSAGE), &talk, &habit, 3 * STREAM_LOOK);
        let ended = 9 * STREAM_LOOK;
        talk.round_ended(ended);
        stream.follow(Fetched::default(), &talk, &habit, ended + 1);
        assert_eq!(stream.next_look(), Some(ended + STREAM_LOOK));
        stream.follow(Fetched::default(), &talk, &habit, ended + STREAM_LOOK);
        assert!(!stream.is_on());
    }

    #[test]
    fn no_stream_at_leisure() {
        let (habit, talk, mut stream) = (Habit::new(), Talk::new(), Stream::default());
        let mut now = 0;
        for _ in 0..5 * STREAM {
            now += STREAM_GAP + 1;
            stream.follow(of(64), &talk, &habit, now);
            assert!(!stream.is_on());
            // The duration of the round does not matter.
            now += 1_000_000;
            talk.round_ended(now);
        }
        // The last of these rounds is also the first of a close sequence.
        for _ in 1..STREAM {
            assert!(!stream.is_on());
            now += STREAM_GAP;
            stream.follow(of(64), &talk, &habit, now);
            now += 1_000_000;
            talk.round_ended(now);
        }
        assert!(stream.is_on());
    }

    #[test]
    fn ends_with_an_answer() {
        let (habit, talk) = (Habit::new(), Talk::new());
        let mut stream = streaming(&talk, &habit);
        assert!(talk.hear());
        // Only once: the first caller ends the stream.
        assert!(!talk.hear());
        stream.follow(of(64), &talk, &habit, 1);
        assert!(!stream.is_on());
        drop(streaming(&talk, &habit));
    }

    #[test]
    fn no_stream_of_answers_nor_of_large_messages() {
        let (habit, talk, mut stream) = (Habit::new(), Talk::new(), Stream::default());
        for _ in 0..3 * STREAM {
            stream.follow(of(64), &talk, &habit, 0);
            assert!(!talk.hear());
            assert!(!stream.is_on());
        }
        let (habit, talk, mut stream) = (Habit::new(), Talk::new(), Stream::default());
        for _ in 0..3 * STREAM {
            stream.follow(of(STREAM_MESSAGE + 1), &talk, &habit, 0);
            assert!(!stream.is_on());
        }
        let mut stream = streaming(&talk, &habit);
        stream.follow(of(STREAM_MESSAGE + 1), &talk, &habit, 0);
        assert!(!stream.is_on() && !talk.hear());
    }

    #[test]
    fn half_of_the_queue() {
        let of = |longest| Stream {
            longest,
            ..Stream::default()
        };
        for small in [0, 8, STREAM_BYTES / STREAM_BATCH] {
            assert_eq!(
                [1, 4, 16, 128, 1 << 15].map(|capacity| of(small).batch(capacity)),
                [1, 2, 8, 64, STREAM_BATCH]
            );
        }
        // The batch of larger messages is limited by bytes.
        let batch = |longest| of(longest).batch(1 << 15);
        assert_eq!(batch(STREAM_BYTES / 3), 3);
        assert_eq!(batch(STREAM_MESSAGE), STREAM_BYTES / STREAM_MESSAGE);
        assert_eq!(batch(u32::MAX), 1);
    }
}
