// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How many packets may be in flight, and how that is found out.
//!
//! To a peer that keeps what is beyond a gap, a loss costs what was lost, so the window is twice what the way was seen to
//! hold. What is beyond a gap to a peer that drops it is sent again, so there it is no more than twice what the way was seen to
//! hold, halved with losses, and grows with what arrives between them.

use crate::psn::Psn;

/// Packets that a requester has in flight at most, until it adapts to the path. READ and atomic
/// requests count as one each, whatever comes back.
pub const WINDOW: u32 = 256;

/// Packets that a requester ever has in flight, on a path that holds so many.
pub const MOST_WINDOW: u32 = 2048;

/// The smallest window to a peer that drops what is beyond a gap, and the largest where the way was not seen to hold
/// more than half of it: two messages of 64 KiB, one to be acknowledged while the other is under way.
const LEAST: u32 = 32;

/// Packets without a loss after which losses are rare, and the window to such a peer grows faster: by half of what is
/// acknowledged, not by an eighth.
const SMOOTH: u32 = 256;

/// Nanoseconds that packets are counted for at least: on a short way what several round trips bring may be a burst.
const STEADY: u64 = 2_000_000;

/// Where a count of acknowledged packets began.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// In nanoseconds.
    since: u64,
    from: Psn,
    /// Behind a hole: packets may have arrived already that are counted only when they are acknowledged.
    disturbed: bool,
}

/// The window of a requester, in packets.
#[derive(Clone, Debug)]
pub(super) struct Window {
    size: u32,
    /// Packets that the way holds, as far as measured.
    way: u32,
    /// The shortest round trip by then, in nanoseconds.
    round_trip: u64,
    /// Packets acknowledged since the last loss.
    smooth: u32,
    /// Since when acknowledged PSNs are counted to find out what the way holds.
    counted: Counted,
}

impl Window {
    pub(super) const fn new() -> Window {
        Window {
            size: WINDOW,
            way: 0,
            round_trip: 0,
            smooth: 0,
            counted: Counted {
                since: 0,
                from: Psn::new(0),
                disturbed: false,
            },
        }
    }

    /// Packets that may be in flight. What is beyond a hole and kept there has left the way: as much again may follow
    /// until the hole is closed, which takes another round trip.
    #[inline]
    pub(super) fn room(&self, kept_beyond: bool) -> u32 {
        if kept_beyond {
            self.size.saturating_mul(2).min(MOST_WINDOW)
        } else {
            self.size
        }
    }

    /// Packets after which one asks for an acknowledgement: some are always on their way to be acknowledged while others are
    /// sent, and a peer is not asked for one with each few packets.
    #[inline]
    pub(super) fn ackreq_after(&self) -> u32 {
        (self.size >> 2).max(LEAST >> 1)
    }

    /// The shortest round trip is known to be this now, in nanoseconds. What waited in queues in a longer one was taken for what
    /// the way holds.
    pub(super) fn drained(&mut self, least: u64) {
        let shorter = least.min(self.round_trip);
        let way = u64::from(self.way).saturating_mul(shorter);
        // No more than it was.
        self.way = way.checked_div(self.round_trip).unwrap_or(0) as u32;
        self.round_trip = shorter;
    }

    /// The peer turns out to drop what is beyond a gap.
    pub(super) fn drops(&mut self) {
        // With a large window, bursts were taken for what the way holds.
        self.way >>= 1;
        self.size = LEAST.max(self.way);
    }

    /// The peer turns out not to drop it.
    pub(super) fn keeps(&mut self) {
        self.size = WINDOW;
    }

    /// A queue on the way to a peer that keeps what is beyond a gap has overflowed.
    pub(super) fn overflowed(&mut self) {
        self.size = (self.size >> 1).max(WINDOW);
    }

    /// Something got lost on the way to a peer that drops what is beyond it.
    pub(super) fn lost(&mut self) {
        self.smooth = 0;
        self.way = self.way.saturating_sub(self.way >> 4);
        self.size = (self.size >> 1).max(LEAST).max(self.way);
    }

    /// So many packets more have been acknowledged by a peer that drops what is beyond a gap.
    pub(super) fn grow(&mut self, acknowledged: u32) {
        self.smooth = self.smooth.saturating_add(acknowledged);
        let more = if self.smooth > SMOOTH {
            acknowledged >> 1
        } else {
            acknowledged.saturating_add(7) >> 3
        };
        // What is measured on a short way, where a burst is as much as that holds, may be that.
        let burst = self.way.saturating_mul(4).saturating_sub(LEAST << 1);
        let twice = self.way.saturating_mul(2).min(burst);
        let most = LEAST.max(twice).max(self.size);
        self.size = self.size.saturating_add(more).min(most);
    }

    /// A count of what is acknowledged begins.
    #[inline]
    pub(super) fn count_from(&mut self, una: Psn, now: u64, disturbed: bool) {
        self.counted = Counted {
            since: now,
            from: una,
            disturbed,
        };
    }

    /// Everything before `una` has been acknowledged, where the shortest round trip is `least` (0: not known). The window
    /// grows to twice what the way holds: what is acknowledged within the time of two of the shortest round trips, on
    /// average. (The other half is for what waits in queues, so that they never run empty.) For a peer that drops what is
    /// beyond a gap it grows to once that.
    pub(super) fn count(&mut self, una: Psn, now: u64, least: u64, disturbed: bool, drops: bool) {
        let time = now.saturating_sub(self.counted.since);
        if time == 0 {
            // Acknowledged before the count began.
            self.counted.from = una;
            return;
        }
        // One round trip may be a burst; and what has arrived before counts for little in a longer time.
        let round_trips = if self.counted.disturbed { 4 } else { 2 };
        let steady = if drops { STEADY } else { 0 };
        if least == 0 || time < least.saturating_mul(round_trips).max(steady) {
            return;
        }
        let acknowledged = u64::from(una.since(self.counted.from));
        let on_the_way = acknowledged
            .saturating_mul(least)
            .checked_div(time)
            .unwrap_or(0);
        let on_the_way = on_the_way.min(u64::from(MOST_WINDOW >> 1)) as u32;
        if on_the_way >= self.way {
            self.way = on_the_way;
            self.round_trip = least;
        }
        let wanted = if drops {
            on_the_way
        } else {
            on_the_way.saturating_mul(2)
        };
        self.size = self.size.max(wanted);
        self.count_from(una, now, disturbed);
    }
}
