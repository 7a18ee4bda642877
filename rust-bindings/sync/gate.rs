// SPDX-License-Identifier: GPL-2.0

//! A gate that callbacks pass until it is closed for good.

use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Completion,
    },
};

/// Set in the count once the gate is closed. The bits below count who is inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets callbacks run until [`close`](CallbackGate::close), which waits for those that run.
///
/// Any number may be inside at the same time, and the same context more than once.
///
/// # Examples
///
/// ```ignore
/// if let Some(_inside) = cq.gate.enter() {
///     consumer_handler(cq); // `close` waits until `_inside` is gone.
/// }
/// ```
#[pin_data]
pub struct CallbackGate {
    count: Atomic<usize>,
    #[pin]
    empty: Completion,
}

/// Evidence of being inside a [`CallbackGate`].
///
/// # Invariants
///
/// Owns one unit of the gate's count.
#[must_use = "the gate is left when the guard is dropped"]
pub struct GateGuard<'a>(&'a CallbackGate);

impl CallbackGate {
    /// An open gate.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count: Atomic::new(0),
            empty <- Completion::new(),
        })
    }

    /// Enters, or returns `None` where the gate is closed. Any context.
    #[inline]
    pub fn enter(&self) -> Option<GateGuard<'_>> {
        let before = self.count.fetch_add(1usize, Full);
        // INVARIANT: The unit was added just above.
        let guard = GateGuard(self);
        if before & CLOSED != 0 {
            // Dropping the guard takes the unit back.
            return None;
        }
        Some(guard)
    }

    /// Whether [`close`](Self::close) has been called.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.count.load(Relaxed) & CLOSED != 0
    }

    /// Closes the gate and waits until nobody is inside. Sleeps; must not be called from inside.
    ///
    /// Closing a closed gate waits too.
    pub fn close(&self) {
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
        // The last one out of a closed gate wakes the closer. Late visitors of a closed gate add
        // and take one, so this can happen more than once, which does no harm.
        if self.0.count.fetch_sub(1usize, Full) == CLOSED | 1 {
            self.0.empty.complete_all();
        }
    }
}
