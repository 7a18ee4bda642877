// SPDX-License-Identifier: GPL-2.0

//! Programs that post in a stream.
//!
//! A program that posts one small message behind the other pays for each with a system call, a packet
//! and an acknowledgement, most of which many messages can share. So once a program is seen to do that
//! and to hear nothing in between, the kernel looks at its ring by itself: from time to time, and where an
//! acknowledgement comes in. The program calls for a batch of messages, for a completion that it
//! wants, and as it begins to wait; `abi.rs` has the rules.
//!
//! Who waits for an answer posts no stream, nor who takes his time between messages: a request of the peer ends it, and so does a
//! look that finds little, or one message at a time only. What sending itself takes does not count, which on a slow machine may be long.
//!
//! A program that posts a stream to one queue pair does so to others, and again after a while: it has a [`Habit`], by its completion queue, until a stream
//! turns out to be none.

use crate::limits::path::{
    STREAM, STREAM_BATCH, STREAM_BYTES, STREAM_GAP, STREAM_LEAST, STREAM_LOOK, STREAM_MESSAGE,
};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// What was taken from a send ring.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fetched {
    count: u32,
    /// Bytes of the longest message.
    longest: u32,
    /// Bytes of all.
    bytes: u32,
}

impl Fetched {
    /// A message of so many bytes.
    #[inline]
    pub(super) fn add(&mut self, length: u32) {
        self.count = self.count.wrapping_add(1);
        self.longest = self.longest.max(length);
        self.bytes = self.bytes.saturating_add(length);
    }

    /// Whether that was nothing.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What the send side is told of, by the receive side and as a round has ended.
pub(super) struct Talk {
    state: Atomic<u32>,
    /// When a round has ended last, in nanoseconds of CLOCK_MONOTONIC.
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

    /// A request has come in. Whether that ends a stream.
    #[inline]
    pub(super) fn hear(&self) -> bool {
        self.state.load(Relaxed) != HEARD && self.state.xchg(HEARD, Full) == STREAMING
    }

    /// A round ends, and the program goes on.
    #[inline]
    pub(super) fn round_ended(&self, now: u64) {
        self.ended.store(now, Relaxed);
    }

    /// Whether nothing has come in since this was asked last.
    fn is_silent(&self) -> bool {
        self.state.load(Relaxed) != HEARD || self.state.cmpxchg(HEARD, SILENT, Full).is_err()
    }

    /// Begins a stream, unless something has come in just now.
    fn begin(&self) -> bool {
        match self.state.cmpxchg(SILENT, STREAMING, Full) {
            Ok(_) => true,
            // One that ended with the state of the queue pair.
            Err(now) => now == STREAMING,
        }
    }

    fn end(&self) {
        let _ = self.state.cmpxchg(STREAMING, SILENT, Full);
    }
}

/// Whether what a program posts to the queue pairs of a completion queue was a stream last time: then it is taken for one at once.
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

/// What was found from one look to the next.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Work requests.
    count: u32,
    /// Bytes of their messages.
    bytes: u32,
    /// Work requests at once.
    most: u32,
}

impl Found {
    fn add(&mut self, fetched: Fetched) {
        self.count = self.count.saturating_add(fetched.count);
        self.bytes = self.bytes.saturating_add(fetched.bytes);
        self.most = self.most.max(fetched.count);
    }

    /// Whether that is a lot. It takes as long to send a few large messages as many small ones.
    fn is_much(&self) -> bool {
        self.count >= STREAM_LEAST || self.bytes >= STREAM_MESSAGE
    }
}

/// How a program posts.
#[derive(Default)]
pub(super) struct Stream {
    /// Rounds in a row that have found small messages only, one soon after the other.
    rounds: u32,
    /// While it is a stream: a look has found that it is.
    proven: bool,
    /// While it is a stream: when the ring is to be looked at, in nanoseconds of CLOCK_MONOTONIC.
    look: Option<u64>,
    /// What was found since the last look.
    found: Found,
    /// Work requests found at once, in the time before that.
    before: u32,
    /// Bytes of the longest message that the last round has found.
    longest: u32,
}

impl Stream {
    /// Work requests after which the program is to call, of a queue for so many. While it posts the other half, this one is sent.
    pub(super) fn batch(&self, capacity: u32) -> u32 {
        let most = STREAM_BYTES.checked_div(self.longest);
        let most = most.map_or(STREAM_BATCH, |most| most.min(STREAM_BATCH));
        (capacity / 2).min(most).max(1)
    }

    /// The program need not call for each batch.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.look.is_some()
    }

    #[inline]
    pub(super) fn next_look(&self) -> Option<u64> {
        self.look
    }

    /// The ring has been looked at.
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
                // One at a time is what a program posts that waits for each.
                let several = self.found.most.max(self.before) >= 2;
                let ended = talk.ended.load(Relaxed);
                if several && self.found.is_much() {
                    self.proven = true;
                    habit.learn(true);
                    self.next(now);
                } else if self.found.count == 0 && now < ended.saturating_add(STREAM_LOOK) {
                    // What has been found before has only just been sent.
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

    /// Goes on until the next look.
    fn next(&mut self, now: u64) {
        self.look = Some(now.saturating_add(STREAM_LOOK));
        self.before = self.found.most;
        self.found = Found::default();
    }

    /// It is none any more.
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

    /// As many rounds as make a stream, at time 0.
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
        // It was one, and is over.
        assert!(!stream.is_on() && habit.is_known());
        // Again, and to another queue pair; and then it was none.
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
        // Enough has come since the last look.
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
        // Nor where a stream has become that, as soon as two looks have found it so.
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
        // One of them is much, too, where there were two before.
        stream.follow(of(STREAM_MESSAGE), &talk, &habit, 2 * STREAM_LOOK);
        assert!(stream.is_on());
        // What it takes to send them is not the program's time.
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
            // However long that took.
            now += 1_000_000;
            talk.round_ended(now);
        }
        // The last of them was the first of those that follow closely.
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
        // Once only: whoever was told ends it.
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
        // Of larger ones, so many bytes.
        let batch = |longest| of(longest).batch(1 << 15);
        assert_eq!(batch(STREAM_BYTES / 3), 3);
        assert_eq!(batch(STREAM_MESSAGE), STREAM_BYTES / STREAM_MESSAGE);
        assert_eq!(batch(u32::MAX), 1);
    }
}
