// SPDX-License-Identifier: GPL-2.0

//! Events in simulated time.

use std::collections::BTreeMap;

/// Future events, by time. Those of one time are in the order of scheduling.
pub struct Schedule<E> {
    events: BTreeMap<(u64, u64), E>,
    sequence: u64,
}

impl<E> Default for Schedule<E> {
    fn default() -> Schedule<E> {
        Schedule {
            events: BTreeMap::new(),
            sequence: 0,
        }
    }
}

impl<E> Schedule<E> {
    /// Adds an event at this time.
    pub fn push(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    /// Returns the next event and its time.
    pub fn peek(&self) -> Option<(u64, &E)> {
        let ((at, _), event) = self.events.first_key_value()?;
        Some((*at, event))
    }

    /// Returns the time of the next event.
    pub fn next_time(&self) -> Option<u64> {
        self.peek().map(|(at, _)| at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<E> {
        self.events.pop_first().map(|(_, event)| event)
    }
}
