// SPDX-License-Identifier: GPL-2.0

//! A gate that lets callbacks run until it is closed permanently.

use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Completion,
    },
};

/// Set in the count once the gate is closed. The lower bits count the callbacks inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets callbacks run until [`close`](CallbackGate::close), which waits for running callbacks.
///
/// Any number of callbacks may be inside at the same time, and one context may enter several times.
#[pin_data]
pub(crate) struct CallbackGate {
    count: Atomic<usize>,
    #[pin]
    empty: Completion,
}

/// Proof of being inside a [`CallbackGate`].
///
/// # Invariants
///
/// Owns one unit of the gate's count.
#[must_use = "the gate is left when the guard is dropped"]
pub(crate) struct GateGuard<'a>(&'a CallbackGate);

impl CallbackGate {
    /// Creates an open gate.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count: Atomic::new(0),
            empty <- Completion::new(),
        })
    }

    /// Enters the gate. Returns `None` if it is closed. Any context.
    #[inline]
    pub(crate) fn enter(&self) -> Option<GateGuard<'_>> {
        let before = self.count.fetch_add(1usize, Full);
        // INVARIANT: The unit was added just above.
        let guard = GateGuard(self);
        if before & CLOSED != 0 {
            // Dropping the guard removes the unit.
            return None;
        }
        Some(guard)
    }

    /// Closes the gate and waits until all callbacks have left. Sleeps; must not be called from
    /// inside.
    ///
    /// Closing a closed gate also waits.
    pub(crate) fn close(&self) {
        let mut before = self.count.load(Relaxed);
        while let Err(now) = self.count.cmpxchg(before, before | CLOSED, Full) {
            before = now;
        }
        if before & !CLOSED != 0 {
            self.empty.wait_for_completion();
        }
    }
}

impl Drop for GateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // The last callback to leave a closed gate wakes the closer. A failed `enter` adds and
        // removes a unit, so this can happen more than once, which is harmless.
        if self.0.count.fetch_sub(1usize, Full) == CLOSED | 1 {
            self.0.empty.complete_all();
        }
    }
}
