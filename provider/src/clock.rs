// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The clock of completion timestamps.
//!
//! A completion carries nanoseconds of `CLOCK_MONOTONIC`. The verbs present them as a 64-bit device
//! clock that ticks at 1 GHz.

use crate::ffi::os;
use core::cell::Cell;

/// Returns the current time in ticks.
pub(crate) fn ticks() -> i64 {
    os::nanoseconds(os::CLOCK_MONOTONIC)
}

/// Nanoseconds by which a clock is set back at least. The offsets that are measured for
/// neighbouring completions differ by less: two clocks cannot be read at once, and
/// `CLOCK_REALTIME` is slewed.
const SET_BACK: u64 = 1_000_000_000;

/// Converts a timestamp to nanoseconds of `CLOCK_REALTIME`, with that clock's current offset.
fn to_wallclock(timestamp: u64) -> u64 {
    let ahead = os::nanoseconds(os::CLOCK_REALTIME).wrapping_sub(ticks());
    timestamp.wrapping_add_signed(ahead)
}

/// Converts the timestamps of a completion queue. The results do not decrease, unless the clock was
/// set back.
#[derive(Default)]
pub(crate) struct Wallclock {
    /// The last result.
    last: Cell<u64>,
}

impl Wallclock {
    /// Converts the timestamp of the next completion to nanoseconds of `CLOCK_REALTIME`.
    pub(crate) fn convert(&self, timestamp: u64) -> u64 {
        self.next(to_wallclock(timestamp))
    }

    /// Returns the result for a timestamp that was converted by itself.
    fn next(&self, converted: u64) -> u64 {
        let last = self.last.get();
        let result = if last.saturating_sub(converted) < SET_BACK {
            converted.max(last)
        } else {
            converted
        };
        self.last.set(result);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_now_on_both_clocks() {
        let before = os::nanoseconds(os::CLOCK_REALTIME);
        let now = to_wallclock(ticks() as u64) as i64;
        // The limit is a day: the clocks may be set while the test runs, but they differ by
        // decades.
        assert!((now - before).abs() < 86_400_000_000_000);
    }

    /// Neighbours may be converted with offsets that differ a little. A clock that is set back is
    /// followed.
    #[test]
    fn wall_clock_times_do_not_go_back() {
        let clock = Wallclock::default();
        let second = 1_000_000_000;
        for (converted, result) in [
            (9 * second, 9 * second),
            (9 * second - 10, 9 * second),
            (9 * second + 5, 9 * second + 5),
            (8 * second + 6, 9 * second + 5),
            (8 * second + 5, 8 * second + 5),
        ] {
            assert_eq!(clock.next(converted), result);
        }
        let times = [(); 1000].map(|()| clock.convert(ticks() as u64));
        assert!(times.is_sorted());
    }

    #[test]
    fn differences_stay() {
        let (earlier, later) = (to_wallclock(1_000_000), to_wallclock(5_000_000_000));
        assert!(later > earlier);
    }
}
