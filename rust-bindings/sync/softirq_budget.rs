// SPDX-License-Identifier: GPL-2.0

//! A limit of the time for which one softirq does some kind of work.

use super::{BhGuard, PerCpuCounters};
use crate::time::monotonic_ns;
use kernel::prelude::*;

/// Nanoseconds between two pieces of work of different softirqs. Within one softirq, the next piece
/// follows sooner.
const PAUSE: u64 = 5_000;

/// Indices of the counters of a CPU: when the last piece of work ended, and the nanoseconds that
/// the pieces without a pause between them have taken.
const END: usize = 0;
const USED: usize = 1;

/// The time for which a CPU may do some kind of work without a pause.
pub struct SoftirqBudget {
    cpus: PerCpuCounters<2>,
    limit_ns: u64,
}

impl SoftirqBudget {
    /// Creates a budget of `limit_ns` nanoseconds. Sleeps. Returns `ENOMEM` on failure.
    pub fn new(limit_ns: u64) -> Result<Self> {
        Ok(Self {
            cpus: PerCpuCounters::new()?,
            limit_ns,
        })
    }

    /// Calls `work` unless this CPU has used up its budget since the last pause of 5 us. Returns
    /// whether it has called `work`. Softirqs are disabled during the call. Must be called with
    /// interrupts enabled.
    pub fn run(&self, work: impl FnOnce()) -> bool {
        let _bh = BhGuard::new();
        let begin = monotonic_ns();
        if begin.wrapping_sub(self.cpus.this_cpu(END)) > PAUSE {
            self.set(USED, 0);
        }
        let used = self.cpus.this_cpu(USED);
        let is_left = used < self.limit_ns;
        let end = if is_left {
            work();
            monotonic_ns()
        } else {
            begin
        };
        self.set(USED, used.wrapping_add(end.wrapping_sub(begin)));
        self.set(END, end);
        is_left
    }

    /// Sets a counter of this CPU. Softirqs must be disabled.
    fn set(&self, index: usize, value: u64) {
        self.cpus
            .add(index, value.wrapping_sub(self.cpus.this_cpu(index)));
    }
}
