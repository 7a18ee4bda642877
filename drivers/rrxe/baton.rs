// SPDX-License-Identifier: GPL-2.0

//! The right to do something that one does at a time: to send for one side of a queue pair, to tell a consumer.

use kernel::{
    sync::atomic::{Atomic, Full, Relaxed},
    time::{delay::fsleep, Delta},
};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and something came up since.
const AGAIN: u32 = 2;
const CLOSED: u32 = 3;

/// One runner at a time. Who finds it held leaves a note, for which the holder looks before it
/// lets go: so nothing is left undone, and nobody waits.
pub(crate) struct Baton(Atomic<u32>);

impl Baton {
    pub(crate) fn new() -> Self {
        Self(Atomic::new(FREE))
    }

    /// Takes it, or leaves a note with who has it.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        let mut now = FREE;
        loop {
            let next = match now {
                FREE => HELD,
                HELD => AGAIN,
                _ => return false,
            };
            match self.0.cmpxchg(now, next, Full) {
                Ok(_) => return next == HELD,
                Err(other) => now = other,
            }
        }
    }

    /// Lets go, unless there is a note: then the holder goes on.
    #[must_use]
    pub(crate) fn give_back(&self) -> bool {
        match self.0.cmpxchg(HELD, FREE, Full) {
            Ok(_) => true,
            Err(_) => {
                // Only the holder takes notes down.
                let _ = self.0.cmpxchg(AGAIN, HELD, Full);
                false
            }
        }
    }

    /// Waits until nobody has it, and lets nobody have it any more. Sleeps.
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

/// What came up for the holder of a baton to do, a bit for each: raised before the baton is taken, so that whoever holds it does it.
pub(crate) struct Raised(Atomic<u32>);

impl Raised {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// These bits are set, beside those that were.
    pub(crate) fn raise(&self, bits: u32) {
        let mut now = self.0.load(Relaxed);
        while let Err(other) = self.0.cmpxchg(now, now | bits, Full) {
            now = other;
        }
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Takes all that are set.
    pub(crate) fn take(&self) -> u32 {
        self.0.xchg(0, Full)
    }
}
