// SPDX-License-Identifier: GPL-2.0

//! The nesting depth of calls.

use super::{BhGuard, PerCpuCounters};
use kernel::prelude::*;

/// Counts, for each CPU, how deeply calls of one kind are nested. Softirqs are disabled during a
/// call, so only a nested call can begin before it ends.
pub struct Nesting(PerCpuCounters<1>);

impl Nesting {
    /// Creates a counter without calls. Sleeps. Returns `ENOMEM` on failure.
    pub fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    /// Begins a call, which ends when the returned value is dropped. Softirqs are disabled until
    /// then. Must be called with interrupts enabled.
    #[inline]
    pub fn enter(&self) -> Nested<'_> {
        let bh = BhGuard::new();
        self.0.add(0, 1);
        Nested {
            nesting: self,
            _bh: bh,
        }
    }

    /// Returns the number of calls in progress on this CPU. Any context.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.0.this_cpu(0)
    }
}

/// A call in progress; see [`Nesting::enter`].
#[must_use = "the call ends when this is dropped"]
pub struct Nested<'a> {
    nesting: &'a Nesting,
    // Dropped after the body of `drop`, so the call ends on the CPU on which it began.
    _bh: BhGuard,
}

impl Drop for Nested<'_> {
    #[inline]
    fn drop(&mut self) {
        self.nesting.0.add(0, u64::MAX);
    }
}
