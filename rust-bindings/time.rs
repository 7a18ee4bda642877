// SPDX-License-Identifier: GPL-2.0

//! The monotonic clock as a plain number.
//!
//! C header: `include/linux/timekeeping.h`.

use crate::raw;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Returns `CLOCK_MONOTONIC` in nanoseconds. Any context but an NMI.
#[inline]
pub fn monotonic_ns() -> u64 {
    raw::safe::ktime_get() as u64
}

/// A limit of log messages that a program can cause: one a minute.
pub struct LogLimit {
    /// Earliest time of the next message, in nanoseconds of the monotonic clock.
    next: Atomic<u64>,
}

impl LogLimit {
    const INTERVAL: u64 = 60_000_000_000;

    /// Returns a limit that permits a message now.
    #[expect(clippy::new_without_default, reason = "made once, as a static")]
    pub const fn new() -> Self {
        Self {
            next: Atomic::new(0),
        }
    }

    /// Returns whether a message may be printed now; if so, the next one may follow a minute later.
    pub fn may_print(&self) -> bool {
        let (now, next) = (monotonic_ns(), self.next.load(Relaxed));
        let later = now.saturating_add(Self::INTERVAL);
        now >= next && self.next.cmpxchg(next, later, Relaxed).is_ok()
    }
}
