// SPDX-License-Identifier: GPL-2.0

//! Dynamic queue limits: how much to queue so that a consumer never runs out of work.
//!
//! C header: `include/linux/dynamic_queue_limits.h`.

use crate::raw;
use kernel::ffi::{c_int, c_uint};

// Safe: these are the signatures of the functions. They only access the struct, which has no
// pointers (dynamic_queue_limits.h, lib/dynamic_queue_limits.c).
unsafe extern "C" {
    safe fn dql_completed(dql: &mut raw::dql, count: c_uint);
    safe fn shim_dql_avail(dql: &raw::dql) -> c_int;
    safe fn shim_dql_init(dql: &mut raw::dql);
    safe fn shim_dql_queued(dql: &mut raw::dql, count: c_uint);
}

/// A limit on the contents of a queue that adapts to the consumer (`struct dql`).
///
/// It grows if the queue ran empty although more could have been queued. It shrinks if a smaller
/// limit would have sufficed for a second.
pub struct QueueLimit(raw::dql);

impl QueueLimit {
    /// Creates a limit between `min` and `max`, for an empty queue.
    pub fn new(min: u32, max: u32) -> Self {
        let mut dql: raw::dql = pin_init::zeroed();
        shim_dql_init(&mut dql);
        dql.min_limit = min;
        dql.max_limit = max;
        dql.limit = min;
        dql.adj_limit = min;
        Self(dql)
    }

    /// Records `count` more objects in the queue.
    pub fn queued(&mut self, count: u16) {
        if count != 0 {
            shim_dql_queued(&mut self.0, count.into());
        }
    }

    /// Records that the consumer has removed an object, which must have been recorded before.
    pub fn completed(&mut self) {
        // More than the number queued would be a BUG in dql_completed().
        if self.0.num_queued != self.0.num_completed {
            dql_completed(&mut self.0, 1);
        }
    }

    /// Returns how many more objects may be queued: up to one beyond the limit, so that the limit
    /// notices when more could have been queued.
    pub fn space(&self) -> u32 {
        u32::try_from(shim_dql_avail(&self.0)).map_or(0, |available| available.saturating_add(1))
    }
}
