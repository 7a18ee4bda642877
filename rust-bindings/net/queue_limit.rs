// SPDX-License-Identifier: GPL-2.0

//! Dynamic queue limits: how much must wait in a queue so that its consumer never starves.
//!
//! C header: `include/linux/dynamic_queue_limits.h`.

use crate::raw;

/// A limit for what waits in a queue, which follows what the consumer takes (`struct dql`).
///
/// It grows if the queue has run empty although more could have been queued, and shrinks if less
/// would have been enough for a second.
pub struct QueueLimit(raw::dql);

impl QueueLimit {
    /// Creates a limit between `least` and `most` for an empty queue.
    pub fn new(least: u32, most: u32) -> Self {
        let mut dql: raw::dql = pin_init::zeroed();
        // SAFETY: The struct is valid for writes; it has no pointers, and may be moved.
        unsafe { raw::shim_dql_init(&mut dql) };
        dql.min_limit = least;
        dql.max_limit = most;
        dql.limit = least;
        dql.adj_limit = least;
        Self(dql)
    }

    /// Counts `count` more in the queue.
    pub fn queued(&mut self, count: u16) {
        if count != 0 {
            // SAFETY: The struct is valid, and nothing else uses it. 2^16 is less than
            // `DQL_MAX_OBJECT`.
            unsafe { raw::shim_dql_queued(&mut self.0, count.into()) };
        }
    }

    /// Counts `count` fewer in the queue. They must have been counted before.
    pub fn completed(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        let queued = self.0.num_queued.wrapping_sub(self.0.num_completed);
        // SAFETY: The struct is valid, and nothing else uses it. No more is completed than was
        // queued, which would be a BUG (lib/dynamic_queue_limits.c).
        unsafe { raw::dql_completed(&mut self.0, count.min(queued)) };
    }

    /// Returns how many more may be queued: up to the limit and one beyond it, which is how the
    /// limit learns that more would have been queued.
    pub fn room(&self) -> u32 {
        // SAFETY: The struct is valid.
        let available = unsafe { raw::shim_dql_avail(&self.0) };
        u32::try_from(available).map_or(0, |available| available.saturating_add(1))
    }
}
