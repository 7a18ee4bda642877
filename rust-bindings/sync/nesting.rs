// SPDX-License-Identifier: GPL-2.0

//! How deep calls are nested.

use super::{BhGuard, PerCpuCounters};
use kernel::prelude::*;

/// Counts, for each CPU, how deep calls of some kind are nested on it: with softirqs disabled one call can't be interrupted by
/// another that is not made by it.
pub struct Nesting(PerCpuCounters<1>);

impl Nesting {
    /// No call. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    /// A call begins, and ends when the returned value is dropped; softirqs are disabled meanwhile. Must be made where
    /// interrupts are enabled.
    #[inline]
    pub fn enter(&self) -> Nested<'_> {
        let bh = BhGuard::new();
        self.0.add(0, 1);
        Nested {
            nesting: self,
            _bh: bh,
        }
    }

    /// Calls that are going on on this CPU: 0 outside of them. Any context.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.0.here(0)
    }
}

/// A call: [`Nesting::enter`].
#[must_use = "the call ends when this is dropped"]
pub struct Nested<'a> {
    nesting: &'a Nesting,
    // Dropped after the body of `drop`: until then this is the CPU on which it began.
    _bh: BhGuard,
}

impl Drop for Nested<'_> {
    #[inline]
    fn drop(&mut self) {
        self.nesting.0.add(0, u64::MAX);
    }
}
