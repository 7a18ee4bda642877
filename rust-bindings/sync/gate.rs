// SPDX-License-Identifier: GPL-2.0

//! A count of users that can be closed.

use super::wait;
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Set in the count while the gate is closed. The lower bits count the users inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets users (callbacks, packets, threads) in until [`close`](Gate::close), which waits until all
/// have left. Any number of them may be inside, and one context may enter several times.
pub(crate) struct Gate(Atomic<usize>);

/// Proof of being inside a [`Gate`].
///
/// # Invariants
///
/// Owns one unit of the gate's count.
#[must_use = "the gate is left when the guard is dropped"]
pub(crate) struct GateGuard<'a>(&'a Gate);

impl Gate {
    /// Creates an open gate.
    pub(crate) const fn open() -> Self {
        Self(Atomic::new(0))
    }

    /// Creates a gate that is closed until [`reopen`](Self::reopen).
    pub(crate) const fn closed() -> Self {
        Self(Atomic::new(CLOSED))
    }

    /// Opens the gate, which is closed.
    pub(crate) fn reopen(&self) {
        self.0.fetch_sub(CLOSED, Full);
    }

    /// Enters the gate. Returns `None` if it is closed. Any context.
    #[inline]
    pub(crate) fn enter(&self) -> Option<GateGuard<'_>> {
        let before = self.0.fetch_add(1usize, Full);
        // INVARIANT: The unit was added just above.
        let guard = GateGuard(self);
        // If the gate is closed, dropping the guard removes the unit.
        (before & CLOSED == 0).then_some(guard)
    }

    /// Returns whether users are let in. Another context may close the gate at any time.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Relaxed) & CLOSED == 0
    }

    /// Leaves the gate in place of a guard that was forgotten.
    ///
    /// # Safety
    ///
    /// Called once for each [`GateGuard`] of this gate that was forgotten.
    #[inline]
    pub(crate) unsafe fn leave(&self) {
        // INVARIANT: The new guard owns the unit of the one that was forgotten.
        drop(GateGuard(self));
    }

    /// Closes the gate and waits until all users have left, also if it is closed already. Sleeps;
    /// must not be called from inside.
    pub(crate) fn close(&self) {
        let mut now = self.0.load(Relaxed);
        while let Err(other) = self.0.cmpxchg(now, now | CLOSED, Full) {
            now = other;
        }
        // The last user wakes this context.
        wait::wait_for_value(&self.0, CLOSED);
    }
}

impl Drop for GateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // The gate may be freed as soon as the unit is removed.
        let count = self.0 .0.as_ptr();
        if self.0 .0.fetch_sub(1usize, Full) == CLOSED | 1 {
            wait::wake(count);
        }
    }
}
