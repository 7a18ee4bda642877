// SPDX-License-Identifier: GPL-2.0

//! The memory behind regions and work requests, whose pages may be absent.
//!
//! A page becomes absent at random when it is accessed, as if it had been reclaimed, and comes back
//! after a random time. The driver then notifies each half whose access has failed.

use rrxe_core::Fault;
use rrxe_testkit::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Size in bytes of a page of remote memory.
const PAGE: usize = 1024;

/// Longest time, in nanoseconds, for which a page is absent: half of the shortest acknowledge
/// timeout, so that it costs the peer one retry.
const MAX_ABSENCE: u32 = 2_000_000;

/// A side of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    Send,
    Recv,
}

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// Remote memory: end point and page number.
    Remote(usize, usize),
    /// The payload of a packet: queue pair, message, packet.
    Payload(usize, usize, u32),
    /// The place of a READ response or of the result of an atomic: queue pair, message, packet.
    Result(usize, usize, u32),
    /// The place of a packet in a receive work request: queue, work request, offset.
    Receive(usize, usize, u32),
}

impl Page {
    /// Returns the page of a byte of an end point's memory.
    pub fn remote(host: usize, start: usize) -> Page {
        Page::Remote(host, start / PAGE)
    }
}

/// The pages that are absent.
pub struct Backing {
    random: Random,
    /// Probability, per mille, that an accessed page is absent.
    level: u32,
    /// The absent pages, each with the halves whose accesses have failed.
    absent: BTreeMap<Page, BTreeSet<(usize, Half)>>,
}

/// Result of an access to a page.
pub enum Access {
    Present,
    /// The page has just become absent, for this number of nanoseconds.
    Reclaimed(u64),
    /// The page is absent. The half has not met with it before.
    New,
    /// The page is absent, and the half waits for it already.
    Again,
}

impl Access {
    pub fn result(&self) -> Result<(), Fault> {
        match self {
            Access::Present => Ok(()),
            _ => Err(Fault::NotPresent),
        }
    }
}

impl Backing {
    pub fn new(random: Random, level: u32) -> Backing {
        Backing {
            random,
            level,
            absent: BTreeMap::new(),
        }
    }

    /// Accesses a page for a half of a queue pair. With `settled`, no page becomes absent.
    pub fn access(&mut self, page: Page, waiter: (usize, Half), settled: bool) -> Access {
        if let Some(waiters) = self.absent.get_mut(&page) {
            return if waiters.insert(waiter) {
                Access::New
            } else {
                Access::Again
            };
        }
        if settled || !self.random.chance(self.level) {
            return Access::Present;
        }
        self.absent.insert(page, BTreeSet::from([waiter]));
        let longest = self.random.pick(&[1_000, 100_000, MAX_ABSENCE]);
        Access::Reclaimed(u64::from(self.random.below(longest)) + 1)
    }

    /// Makes a page present. Returns the halves that wait for it.
    pub fn bring_in(&mut self, page: Page) -> BTreeSet<(usize, Half)> {
        self.absent.remove(&page).unwrap_or_default()
    }

    /// Forgets that a queue pair, which was reset, waits for pages.
    pub fn forget(&mut self, qp: usize) {
        for waiters in self.absent.values_mut() {
            waiters.retain(|waiter| waiter.0 != qp);
        }
    }

    /// Returns whether a half waits for a page.
    pub fn is_awaited_by(&self, qp: usize, half: Half) -> bool {
        self.absent
            .values()
            .any(|waiters| waiters.contains(&(qp, half)))
    }
}
