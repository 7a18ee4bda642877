// SPDX-License-Identifier: GPL-2.0

//! A gate for work that one context does at a time: sending for one side of a queue pair, notifying
//! a consumer.

use kernel::{
    sync::atomic::{Atomic, Full},
    time::{delay::fsleep, Delta},
};

const FREE: u32 = 0;
const ENTERED: u32 = 1;
/// Entered, and more work is pending.
const PENDING: u32 = 2;
const CLOSED: u32 = 3;

/// A try-lock with a pending flag.
///
/// If [`SerialGate::try_enter`] fails, it has marked more work as pending, and the owner runs again
/// before it leaves. No caller blocks, and no work is lost.
pub(crate) struct SerialGate(Atomic<u32>);

impl SerialGate {
    pub(crate) fn new() -> Self {
        Self(Atomic::new(FREE))
    }

    /// Enters the gate, or marks more work as pending for the owner.
    #[must_use]
    pub(crate) fn try_enter(&self) -> bool {
        let mut now = FREE;
        loop {
            let next = match now {
                FREE => ENTERED,
                ENTERED => PENDING,
                _ => return false,
            };
            match self.0.cmpxchg(now, next, Full) {
                Ok(_) => return next == ENTERED,
                Err(other) => now = other,
            }
        }
    }

    /// Leaves the gate. Returns false if more work is pending: the caller is still the owner then,
    /// and must run again.
    #[must_use]
    pub(crate) fn try_leave(&self) -> bool {
        match self.0.cmpxchg(ENTERED, FREE, Full) {
            Ok(_) => true,
            Err(_) => {
                // Only the owner clears the pending flag.
                let _ = self.0.cmpxchg(PENDING, ENTERED, Full);
                false
            }
        }
    }

    /// Waits until the lock is free, and keeps it closed from then on. Sleeps.
    pub(crate) fn close(&self) {
        while self
            .0
            .cmpxchg(FREE, CLOSED, Full)
            .is_err_and(|now| now != CLOSED)
        {
            fsleep(Delta::from_micros(20));
        }
    }
}
