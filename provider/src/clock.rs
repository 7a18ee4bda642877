// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The clock of completion timestamps.
//!
//! A completion carries nanoseconds of `CLOCK_MONOTONIC`. The verbs present them as a 64-bit device
//! clock that ticks at 1 GHz.

use crate::ffi::os;

/// Returns the current time in ticks.
pub(crate) fn ticks() -> i64 {
    os::nanoseconds(os::CLOCK_MONOTONIC)
}

/// Converts a timestamp to nanoseconds of `CLOCK_REALTIME`, with that clock's current offset.
pub(crate) fn to_wallclock(timestamp: u64) -> u64 {
    let ahead = os::nanoseconds(os::CLOCK_REALTIME).wrapping_sub(ticks());
    timestamp.wrapping_add_signed(ahead)
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

    #[test]
    fn differences_stay() {
        let (earlier, later) = (to_wallclock(1_000_000), to_wallclock(5_000_000_000));
        assert!(later > earlier);
    }
}
