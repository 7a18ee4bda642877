// SPDX-License-Identifier: GPL-2.0

//! Doorbell moderation for programs that post streams of small messages.
//!
//! A doorbell starts a stream: the kernel polls the send ring, at intervals and when ACKs arrive,
//! and the program rings the doorbell only once for a batch of messages, for a completion that it
//! wants, and before it waits. `abi.rs` has the rules, docs/performance.md the reasons.
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
use rrxe_core::{Increment, Time};

/// Statistics of work requests fetched from a send ring.
#[derive(Clone, Copy, Default)]
pub(super) struct FetchStats {
    pub(super) count: u32,
    /// Bytes of the longest message.
    longest: u32,
    /// Bytes of all messages.
    bytes: u32,
}

impl FetchStats {
    /// Adds a message of `length` bytes.
    #[inline]
    pub(super) fn add(&mut self, length: u32) {
        self.count.increment();
        self.longest = self.longest.max(length);
        self.bytes = self.bytes.saturating_add(length);
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
    pub(super) fn round_ended(&self, now: Time) {
        self.ended.store(now.ns(), Relaxed);
    }

    /// Returns whether no request has arrived since the last call.
    fn no_request_seen(&self) -> bool {
        self.state.load(Relaxed) != REQUEST_SEEN
            || self.state.cmpxchg(REQUEST_SEEN, IDLE, Full).is_err()
    }

    /// Begins a stream. Returns false if a request has arrived meanwhile.
    fn begin(&self) -> bool {
        self.state.cmpxchg(IDLE, STREAMING, Full).is_ok()
    }

    fn end(&self) {
        let _ = self.state.cmpxchg(STREAMING, IDLE, Full);
    }
}

/// A stream, on since a doorbell.
#[derive(Default)]
struct Stream {
    /// Time of the next poll.
    poll_at: Time,
    /// A poll has found enough.
    confirmed: bool,
    /// Number of work requests found since the last poll, and bytes of their messages.
    count: u32,
    bytes: u32,
    /// A round since the last poll has found several work requests at once.
    several: bool,
    /// A round in the interval before the last poll did.
    several_before: bool,
}

impl Stream {
    fn new(now: Time) -> Self {
        Self {
            poll_at: now + STREAM_POLL_INTERVAL,
            ..Self::default()
        }
    }

    fn add(&mut self, fetched: FetchStats) {
        self.count = self.count.saturating_add(fetched.count);
        self.bytes = self.bytes.saturating_add(fetched.bytes);
        self.several |= fetched.count >= 2;
    }

    /// Returns whether enough was found since the last poll: several small messages, or few large
    /// ones. A program that waits for each message posts one at a time.
    fn has_found_enough(&self) -> bool {
        (self.several || self.several_before)
            && (self.count >= MIN_STREAM_REQUESTS || self.bytes >= MAX_STREAM_MESSAGE)
    }

    /// Polls at `now`; `ended` is the time at which the last send round ended. Returns whether the
    /// stream continues.
    fn poll(&mut self, now: Time, ended: Time) -> bool {
        let earliest = ended + STREAM_POLL_INTERVAL;
        if self.has_found_enough() {
            *self = Self {
                confirmed: true,
                several_before: self.several,
                ..Self::new(now)
            };
            return true;
        }
        // The work requests found before may have only just been sent.
        let was_early = self.count == 0 && now < earliest;
        if was_early {
            self.poll_at = earliest;
        }
        was_early
    }
}

/// Moderation state of one send queue.
#[derive(Default)]
pub(super) struct DoorbellModeration {
    stream: Option<Stream>,
    /// Outside of a stream: consecutive rounds that found only small messages.
    rounds: u32,
    /// Number of the last streams that ended before they had found enough.
    failures: u32,
    /// Bytes of the longest message that the last round found.
    longest: u32,
}

impl DoorbellModeration {
    /// Returns the number of work requests after which the program must ring the doorbell, for a
    /// queue of `capacity` entries. At most half of the queue: the driver sends one half while the
    /// program fills the other.
    pub(super) fn doorbell_interval(&self, capacity: u32) -> u32 {
        let max = MAX_STREAM_BATCH_BYTES.checked_div(self.longest);
        let max = max.map_or(MAX_STREAM_BATCH, |max| max.min(MAX_STREAM_BATCH));
        (capacity / 2).min(max).max(1)
    }

    /// Returns the number of rounds that start a stream.
    fn rounds_to_start(&self) -> u32 {
        let rounds = 1u32.checked_shl(self.failures);
        rounds.map_or(MAX_STREAM_DOORBELLS, |n| n.min(MAX_STREAM_DOORBELLS))
    }

    /// Returns whether a stream is on: the program need not ring the doorbell for each batch.
    #[inline]
    pub(super) fn is_streaming(&self) -> bool {
        self.stream.is_some()
    }

    #[inline]
    pub(super) fn next_poll(&self) -> Option<Time> {
        self.stream.as_ref().map(|stream| stream.poll_at)
    }

    /// Updates the state after a round has fetched `fetched` entries from the ring.
    pub(super) fn update(&mut self, fetched: FetchStats, events: &ModerationEvents, now: Time) {
        if let Some(stream) = &mut self.stream {
            stream.add(fetched);
        }
        if fetched.longest > MAX_STREAM_MESSAGE || !events.no_request_seen() {
            self.end(events);
            return;
        }
        if fetched.count != 0 {
            self.longest = fetched.longest;
        }
        match &mut self.stream {
            None if fetched.count != 0 => {
                self.rounds.increment();
                if self.rounds >= self.rounds_to_start() && events.begin() {
                    self.stream = Some(Stream::new(now));
                }
            }
            Some(stream) if now >= stream.poll_at => {
                let ended = Time::from_ns(events.ended.load(Relaxed));
                if !stream.poll(now, ended) {
                    self.end(events);
                }
            }
            _ => {}
        }
    }

    /// Ends the stream, if one is on, and counts rounds from 0 again.
    pub(super) fn end(&mut self, events: &ModerationEvents) {
        self.rounds = 0;
        if let Some(stream) = self.stream.take() {
            events.end();
            let succeeded = stream.confirmed || stream.has_found_enough();
            self.failures = if succeeded {
                0
            } else {
                self.failures.saturating_add(1)
            };
        }
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_doorbell_moderation)]
mod tests {
    use super::*;

    /// In nanoseconds.
    const STREAM_POLL_INTERVAL: u64 = super::STREAM_POLL_INTERVAL.ns();

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

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
        moderation.update(of(64), events, at(0));
        assert!(moderation.is_streaming());
        moderation
    }

    /// Returns the number of doorbells that start the next stream, and ends that stream.
    fn doorbells_to_start(moderation: &mut DoorbellModeration, events: &ModerationEvents) -> u32 {
        for doorbells in 1..1000 {
            moderation.update(of(64), events, at(0));
            if moderation.is_streaming() {
                moderation.update(FetchStats::default(), events, at(STREAM_POLL_INTERVAL));
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
        moderation.update(enough, &events, at(STREAM_POLL_INTERVAL));
        moderation.update(FetchStats::default(), &events, at(2 * STREAM_POLL_INTERVAL));
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
        // Only once: the first caller ends the stream.
        assert!(!events.request_seen());
        moderation.update(of(64), &events, at(1));
        assert!(!moderation.is_streaming());
        let next = doorbells_to_start(&mut moderation, &events);
        assert_eq!(next, 2);
        // Unless it has found enough before.
        let mut moderation = streaming(&events);
        moderation.update(some(MIN_STREAM_REQUESTS, 64), &events, at(1));
        assert!(events.request_seen());
        moderation.update(FetchStats::default(), &events, at(2));
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
            at(STREAM_POLL_INTERVAL - 1),
        );
        // Enough work requests have come since the last poll.
        moderation.update(FetchStats::default(), &events, at(STREAM_POLL_INTERVAL));
        assert_eq!(moderation.next_poll(), Some(at(2 * STREAM_POLL_INTERVAL)));
        for _ in 1..MIN_STREAM_REQUESTS {
            moderation.update(of(64), &events, at(2 * STREAM_POLL_INTERVAL - 1));
        }
        assert!(moderation.is_streaming());
        moderation.update(FetchStats::default(), &events, at(2 * STREAM_POLL_INTERVAL));
        assert!(!moderation.is_streaming() && !events.request_seen());
    }

    #[test]
    fn single_messages_are_no_stream() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        let mut now = 1;
        for _ in 0..10 * MIN_STREAM_REQUESTS {
            moderation.update(of(64), &events, at(now));
        }
        moderation.update(of(64), &events, at(STREAM_POLL_INTERVAL));
        assert!(!moderation.is_streaming() && moderation.failures > 0);
        // A stream that turns into single messages ends after two polls.
        let mut moderation = streaming(&events);
        moderation.update(
            some(MIN_STREAM_REQUESTS, 64),
            &events,
            at(STREAM_POLL_INTERVAL),
        );
        for polls in [2, 3] {
            assert!(moderation.is_streaming());
            while now < polls * STREAM_POLL_INTERVAL {
                now += STREAM_POLL_INTERVAL / 8;
                moderation.update(of(64), &events, at(now));
            }
        }
        assert!(!moderation.is_streaming() && moderation.failures == 0);
    }

    #[test]
    fn large_messages() {
        let events = ModerationEvents::new();
        let mut moderation = streaming(&events);
        moderation.update(some(2, MAX_STREAM_MESSAGE), &events, at(1));
        moderation.update(FetchStats::default(), &events, at(STREAM_POLL_INTERVAL));
        assert!(moderation.stream.as_ref().is_some_and(|s| s.confirmed));
        // A single large message is enough if there were two before.
        moderation.update(
            of(MAX_STREAM_MESSAGE),
            &events,
            at(2 * STREAM_POLL_INTERVAL),
        );
        assert!(moderation.is_streaming());
        // The time that sending takes does not count as the program's.
        moderation.update(
            some(2, MAX_STREAM_MESSAGE),
            &events,
            at(3 * STREAM_POLL_INTERVAL),
        );
        let ended = 9 * STREAM_POLL_INTERVAL;
        events.round_ended(at(ended));
        moderation.update(FetchStats::default(), &events, at(ended + 1));
        assert_eq!(
            moderation.next_poll(),
            Some(at(ended + STREAM_POLL_INTERVAL))
        );
        moderation.update(
            FetchStats::default(),
            &events,
            at(ended + STREAM_POLL_INTERVAL),
        );
        assert!(!moderation.is_streaming());
    }

    #[test]
    fn pauses_are_no_stream() {
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        let (mut now, mut streams) = (0, 0);
        for _ in 0..10 * MAX_STREAM_DOORBELLS {
            moderation.update(of(64), &events, at(now));
            // The duration of the round does not matter.
            now += 1_000_000;
            events.round_ended(at(now));
            now += STREAM_POLL_INTERVAL;
            if moderation.is_streaming() {
                streams += 1;
                moderation.update(FetchStats::default(), &events, at(now));
                assert!(!moderation.is_streaming());
            }
        }
        assert!(streams < 20);
    }

    #[test]
    fn replies_and_huge_messages_are_no_stream() {
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        // The first message starts a stream, and the reply ends it.
        moderation.update(of(64), &events, at(0));
        assert!(events.request_seen());
        for _ in 0..3 * MAX_STREAM_DOORBELLS {
            moderation.update(of(64), &events, at(0));
            assert!(!events.request_seen());
            assert!(!moderation.is_streaming());
        }
        let (events, mut moderation) = (ModerationEvents::new(), DoorbellModeration::default());
        for _ in 0..3 * MAX_STREAM_DOORBELLS {
            moderation.update(of(MAX_STREAM_MESSAGE + 1), &events, at(0));
            assert!(!moderation.is_streaming());
        }
        let mut moderation = streaming(&events);
        moderation.update(of(MAX_STREAM_MESSAGE + 1), &events, at(0));
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
