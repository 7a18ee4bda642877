// SPDX-License-Identifier: GPL-2.0

//! Doorbell moderation for programs that post streams of small messages.
//!
//! A program that posts small messages one by one pays for each of them with a system call, a
//! packet and an ACK. Many messages could share these. So a doorbell starts a stream: the kernel
//! polls the send ring, at intervals and when an ACK arrives, and the program rings the doorbell
//! only once for a batch of messages, for a completion that it wants, and before it waits. `abi.rs`
//! has the rules.
//!
//! A program that waits for replies, or pauses between posts, is not streaming. A request from the
//! peer ends the stream. So does a poll that finds few work requests, or that finds no two of them
//! at once. The time that sending takes does not count: on a slow machine it can be long. If a
//! stream ends before it has found enough, the number of consecutive doorbells needed to start the
//! next one doubles, up to [`MAX_STREAM_DOORBELLS`].

use crate::limits::path::{
    MAX_STREAM_BATCH, MAX_STREAM_BATCH_BYTES, MAX_STREAM_DOORBELLS, MAX_STREAM_MESSAGE,
    MIN_STREAM_REQUESTS, STREAM_POLL_INTERVAL,
};
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Statistics of the work requests taken from a send ring.
#[derive(Clone, Copy, Default)]
pub(crate) struct FetchStats {
    count: u32,
    /// Bytes of the longest message.
    longest: u32,
    /// Bytes of all messages.
    bytes: u32,
}

impl FetchStats {
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
pub(super) struct ModerationEvents {
    state: Atomic<u32>,
    /// Time at which the last send round ended, in nanoseconds of CLOCK_MONOTONIC.
    ended: Atomic<u64>,
}

const IDLE: u32 = 0;
const REQUEST_SEEN: u32 = 1;
const STREAMING: u32 = 2;

impl ModerationEvents {
    pub(super) const fn new() -> Self {
        Self {
            state: Atomic::new(IDLE),
            ended: Atomic::new(0),
        }
    }

    /// Records a request from the peer. Returns whether it ends a stream.
    #[inline]
    pub(super) fn request_seen(&self) -> bool {
        self.state.load(Relaxed) != REQUEST_SEEN && self.state.xchg(REQUEST_SEEN, Full) == STREAMING
    }

    /// Records that a send round has ended and the program continues.
    #[inline]
    pub(super) fn round_ended(&self, now: u64) {
        self.ended.store(now, Relaxed);
    }

    /// Returns whether no request has arrived since the last call.
    fn no_request_seen(&self) -> bool {
        self.state.load(Relaxed) != REQUEST_SEEN
            || self.state.cmpxchg(REQUEST_SEEN, IDLE, Full).is_err()
    }

    /// Begins a stream. Returns false if a request has arrived meanwhile.
    fn begin(&self) -> bool {
        match self.state.cmpxchg(IDLE, STREAMING, Full) {
            Ok(_) => true,
            // A stream is still marked as on after a reset or an error of the queue pair.
            Err(now) => now == STREAMING,
        }
    }

    fn end(&self) {
        let _ = self.state.cmpxchg(STREAMING, IDLE, Full);
    }
}

/// Statistics of the work requests found between two polls.
#[derive(Clone, Copy, Default)]
struct IntervalStats {
    /// Work requests.
    count: u32,
    /// Bytes of their messages.
    bytes: u32,
    /// Largest number of work requests found by one round.
    max_per_round: u32,
}

impl IntervalStats {
    fn add(&mut self, fetched: FetchStats) {
        self.count = self.count.saturating_add(fetched.count);
        self.bytes = self.bytes.saturating_add(fetched.bytes);
        self.max_per_round = self.max_per_round.max(fetched.count);
    }

    /// Returns whether enough was found to continue. A few large messages take as long to send as
    /// many small ones.
    fn is_enough(&self) -> bool {
        self.count >= MIN_STREAM_REQUESTS || self.bytes >= MAX_STREAM_MESSAGE
    }
}

/// Moderation state of one send queue.
pub(super) struct DoorbellModeration {
    /// Outside of a stream: consecutive rounds that found only small messages.
    rounds: u32,
    /// Number of such rounds that start a stream.
    rounds_to_start: u32,
    /// In a stream: a poll has found enough.
    confirmed: bool,
    /// In a stream: the time of the next poll, in nanoseconds of CLOCK_MONOTONIC.
    poll_at: Option<u64>,
    /// Statistics since the last poll.
    interval: IntervalStats,
    /// Largest number of work requests found by one round, in the interval before the last poll.
    previous_max: u32,
    /// Bytes of the longest message that the last round found.
    longest: u32,
}

impl DoorbellModeration {
    /// Returns the state outside of a stream.
    fn idle(rounds_to_start: u32) -> Self {
        Self {
            rounds: 0,
            rounds_to_start,
            confirmed: false,
            poll_at: None,
            interval: IntervalStats::default(),
            previous_max: 0,
            longest: 0,
        }
    }

    /// Returns the number of work requests after which the program must ring the doorbell, for a
    /// queue of `capacity` entries. At most half of the queue: the driver sends one half while the
    /// program fills the other.
    pub(super) fn doorbell_interval(&self, capacity: u32) -> u32 {
        let max = MAX_STREAM_BATCH_BYTES.checked_div(self.longest);
        let max = max.map_or(MAX_STREAM_BATCH, |max| max.min(MAX_STREAM_BATCH));
        (capacity / 2).min(max).max(1)
    }

    /// Returns whether a stream is on: the program need not ring the doorbell for each batch.
    #[inline]
    pub(super) fn is_streaming(&self) -> bool {
        self.poll_at.is_some()
    }

    #[inline]
    pub(super) fn next_poll(&self) -> Option<u64> {
        self.poll_at
    }

    /// Updates the state after a round has taken `fetched` from the ring.
    pub(super) fn update(&mut self, fetched: FetchStats, events: &ModerationEvents, now: u64) {
        if self.is_streaming() {
            self.interval.add(fetched);
        }
        if fetched.longest > MAX_STREAM_MESSAGE || !events.no_request_seen() {
            events.end();
            self.end();
            return;
        }
        if !fetched.is_empty() {
            self.longest = fetched.longest;
        }
        match self.poll_at {
            None if fetched.count != 0 => {
                self.rounds = self.rounds.saturating_add(1);
                if self.rounds >= self.rounds_to_start && events.begin() {
                    self.next(now);
                }
            }
            None => {}
            Some(poll_at) => {
                if now < poll_at {
                    return;
                }
                let ended = events.ended.load(Relaxed);
                if self.has_found_enough() {
                    self.confirmed = true;
                    self.next(now);
                } else if self.interval.count == 0
                    && now < ended.saturating_add(STREAM_POLL_INTERVAL)
                {
                    // The work requests found before have only just been sent.
                    self.poll_at = Some(ended.saturating_add(STREAM_POLL_INTERVAL));
                } else {
                    events.end();
                    self.end();
                }
            }
        }
    }

    /// Returns whether enough was found since the last poll. A program that waits for each message
    /// posts one at a time.
    fn has_found_enough(&self) -> bool {
        let several = self.interval.max_per_round.max(self.previous_max) >= 2;
        several && self.interval.is_enough()
    }

    /// Starts the next interval.
    fn next(&mut self, now: u64) {
        self.poll_at = Some(now.saturating_add(STREAM_POLL_INTERVAL));
        self.previous_max = self.interval.max_per_round;
        self.interval = IntervalStats::default();
    }

    /// Ends the stream, if one is on.
    pub(super) fn end(&mut self) {
        let confirmed = self.confirmed || self.has_found_enough();
        let rounds_to_start = match (self.is_streaming(), confirmed) {
            (false, _) => self.rounds_to_start,
            (true, true) => 1,
            (true, false) => self.rounds_to_start.saturating_mul(2),
        };
        *self = Self::idle(rounds_to_start.min(MAX_STREAM_DOORBELLS));
    }
}

impl Default for DoorbellModeration {
    fn default() -> Self {
        Self::idle(1)
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_doorbell_moderation)]
mod tests {
    use super::*;

    fn of(length: u32) -> FetchStats {
        some(1, length)
    }

    fn some(count: u32, length: u32) -> FetchStats {
        let mut fetched = FetchStats::default();
        for _ in 0..count {
            fetched.add(length);
        }
        fetched
    }

    /// Returns the state of a stream that has just begun, at time 0.
    fn streaming(events: &ModerationEvents) -> DoorbellModeration {
        let mut moderation = DoorbellModeration::default();
        assert!(!moderation.is_streaming());
        moderation.update(of(64), events, 0);
        assert!(moderation.is_streaming());
        moderation
    }

    /// Returns the number of doorbells that start the next stream, and ends that stream.
    fn doorbells_to_start(moderation: &mut DoorbellModeration, events: &ModerationEvents) -> u32 {
        for doorbells in 1..1000 {
            moderation.update(of(64), events, 0);
            if moderation.is_streaming() {
                moderation.update(FetchStats::default(), events, STREAM_POLL_INTERVAL);
                assert!(!moderation.is_streaming());
                return doorbells;
            }
        }
        0
    }

    #[test]
    fn streams_that_fail_delay_the_next() {
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        let mut expected = 1;
        while expected < MAX_STREAM_DOORBELLS {
            assert_eq!(doorbells_to_start(&mut moderation, &events), expected);
            expected *= 2;
        }
        for _ in 0..3 {
            let doorbells = doorbells_to_start(&mut moderation, &events);
            assert_eq!(doorbells, MAX_STREAM_DOORBELLS);
        }
    }

    #[test]
    fn a_confirmed_stream_lets_the_next_start_at_once() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        let enough = some(MIN_STREAM_REQUESTS, 64);
        moderation.update(enough, &events, STREAM_POLL_INTERVAL);
        moderation.update(FetchStats::default(), &events, 2 * STREAM_POLL_INTERVAL);
        assert!(!moderation.is_streaming());
        // These two are not confirmed.
        assert_eq!(doorbells_to_start(&mut moderation, &events), 1);
        assert_eq!(doorbells_to_start(&mut moderation, &events), 2);
    }

    #[test]
    fn a_request_fails_the_stream() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        assert!(events.request_seen());
        moderation.update(of(64), &events, 1);
        let next = doorbells_to_start(&mut moderation, &events);
        assert_eq!(next, 2);
        // Unless it has found enough before.
        let mut moderation = streaming(&events);
        moderation.update(some(MIN_STREAM_REQUESTS, 64), &events, 1);
        assert!(events.request_seen());
        moderation.update(FetchStats::default(), &events, 2);
        assert!(!moderation.is_streaming());
        assert_eq!(doorbells_to_start(&mut moderation, &events), 1);
    }

    #[test]
    fn ends_if_nothing_is_posted() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        moderation.update(
            some(MIN_STREAM_REQUESTS, 64),
            &events,
            STREAM_POLL_INTERVAL - 1,
        );
        // Enough work requests have come since the last poll.
        moderation.update(FetchStats::default(), &events, STREAM_POLL_INTERVAL);
        assert_eq!(moderation.next_poll(), Some(2 * STREAM_POLL_INTERVAL));
        for _ in 1..MIN_STREAM_REQUESTS {
            moderation.update(of(64), &events, 2 * STREAM_POLL_INTERVAL - 1);
        }
        assert!(moderation.is_streaming());
        moderation.update(FetchStats::default(), &events, 2 * STREAM_POLL_INTERVAL);
        assert!(!moderation.is_streaming() && !events.request_seen());
    }

    #[test]
    fn single_messages_are_no_stream() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        let mut now = 1;
        for _ in 0..10 * MIN_STREAM_REQUESTS {
            moderation.update(of(64), &events, now);
        }
        moderation.update(of(64), &events, STREAM_POLL_INTERVAL);
        assert!(!moderation.is_streaming() && moderation.rounds_to_start > 1);
        // A stream that turns into single messages ends after two polls.
        let mut moderation = streaming(&events);
        moderation.update(some(MIN_STREAM_REQUESTS, 64), &events, STREAM_POLL_INTERVAL);
        for polls in [2, 3] {
            assert!(moderation.is_streaming());
            while now < polls * STREAM_POLL_INTERVAL {
                now += STREAM_POLL_INTERVAL / 8;
                moderation.update(of(64), &events, now);
            }
        }
        assert!(!moderation.is_streaming() && moderation.rounds_to_start == 1);
    }

    #[test]
    fn large_messages() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        moderation.update(some(2, MAX_STREAM_MESSAGE), &events, 1);
        moderation.update(FetchStats::default(), &events, STREAM_POLL_INTERVAL);
        assert!(moderation.is_streaming() && moderation.confirmed);
        // A single large message is enough if there were two before.
        moderation.update(of(MAX_STREAM_MESSAGE), &events, 2 * STREAM_POLL_INTERVAL);
        assert!(moderation.is_streaming());
        // The time that sending takes does not count as the program's.
        moderation.update(
            some(2, MAX_STREAM_MESSAGE),
            &events,
            3 * STREAM_POLL_INTERVAL,
        );
        let ended = 9 * STREAM_POLL_INTERVAL;
        events.round_ended(ended);
        moderation.update(FetchStats::default(), &events, ended + 1);
        assert_eq!(moderation.next_poll(), Some(ended + STREAM_POLL_INTERVAL));
        moderation.update(FetchStats::default(), &events, ended + STREAM_POLL_INTERVAL);
        assert!(!moderation.is_streaming());
    }

    #[test]
    fn pauses_are_no_stream() {
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        let (mut now, mut streams) = (0, 0);
        for _ in 0..10 * MAX_STREAM_DOORBELLS {
            moderation.update(of(64), &events, now);
            // The duration of the round does not matter.
            now += 1_000_000;
            events.round_ended(now);
            now += STREAM_POLL_INTERVAL;
            if moderation.is_streaming() {
                streams += 1;
                moderation.update(FetchStats::default(), &events, now);
                assert!(!moderation.is_streaming());
            }
        }
        assert!(streams < 20);
    }

    #[test]
    fn a_request_ends_it() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        assert!(events.request_seen());
        // Only once: the first caller ends the stream.
        assert!(!events.request_seen());
        moderation.update(of(64), &events, 1);
        assert!(!moderation.is_streaming());
        drop(streaming(&events));
    }

    #[test]
    fn replies_and_huge_messages_are_no_stream() {
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        // The first message starts a stream, and the reply ends it.
        moderation.update(of(64), &events, 0);
        assert!(events.request_seen());
        for _ in 0..3 * MAX_STREAM_DOORBELLS {
            moderation.update(of(64), &events, 0);
            assert!(!events.request_seen());
            assert!(!moderation.is_streaming());
        }
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        for _ in 0..3 * MAX_STREAM_DOORBELLS {
            moderation.update(of(MAX_STREAM_MESSAGE + 1), &events, 0);
            assert!(!moderation.is_streaming());
        }
        let mut moderation = streaming(&events);
        moderation.update(of(MAX_STREAM_MESSAGE + 1), &events, 0);
        assert!(!moderation.is_streaming() && !events.request_seen());
    }

    #[test]
    fn half_of_the_queue() {
        let of = |longest| DoorbellModeration {
            longest,
            ..DoorbellModeration::default()
        };
        for small in [0, 8, MAX_STREAM_BATCH_BYTES / MAX_STREAM_BATCH] {
            assert_eq!(
                [1, 4, 16, 128, 1 << 15].map(|capacity| of(small).doorbell_interval(capacity)),
                [1, 2, 8, 64, MAX_STREAM_BATCH]
            );
        }
        // The batch of larger messages is limited by bytes.
        let batch = |longest| of(longest).doorbell_interval(1 << 15);
        assert_eq!(batch(MAX_STREAM_BATCH_BYTES / 3), 3);
        assert_eq!(
            batch(MAX_STREAM_MESSAGE),
            MAX_STREAM_BATCH_BYTES / MAX_STREAM_MESSAGE
        );
        assert_eq!(batch(u32::MAX), 1);
    }
}
