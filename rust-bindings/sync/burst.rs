// SPDX-License-Identifier: GPL-2.0

//! Bursts: sections of the data path that a revocation waits for.
//!
//! A CPU begins a burst when it enters the data path: for a batch of received packets, a round of
//! transmission, a timer. Only in a burst may it access memory that a consumer can take back. A
//! context that takes memory or rights back unpublishes them, and calls [`wait_for_bursts`]. On
//! return, no burst uses them: a burst that began before has ended, and one that begins later finds
//! nothing.
//!
//! Each CPU has a word that only the CPU itself writes: it counts its bursts. So a burst costs two
//! stores and a memory barrier, and a revocation reads one word of each CPU. It waits only for CPUs
//! that are in a burst at that moment, for as long as this burst takes. It interrupts no CPU, and
//! needs neither a worker nor an RCU grace period. The readers' side resembles that of SRCU, but
//! softirqs are disabled in a burst, so that the bursts of a CPU nest and one word is enough.
//!
//! With `PREEMPT_RT` softirqs can be preempted, and bursts of several tasks can overlap on one CPU.
//! This module then needs two counters for each CPU, as SRCU has; it does not support such kernels.

use super::{in_softirq, smp_mb, BhGuard};
use crate::{raw, time::monotonic_ns};
use core::ops::Deref;
use kernel::{
    cpu::nr_cpu_ids,
    processor::cpu_relax,
    sync::{
        atomic::{Acquire, Atomic, Release},
        rcu,
    },
    task::might_sleep,
    time::{delay::fsleep, Delta},
};

/// Part of the word of a CPU: the number of guards that it has. The CPU is in a burst unless it is
/// 0.
const GUARDS: u64 = ONE_BURST - 1;
/// One burst that has ended, in the word of a CPU.
const ONE_BURST: u64 = 1 << 32;

/// Time for which [`wait_for_bursts`] spins, in nanoseconds. Nearly all bursts are shorter, unless
/// a hypervisor has stopped their CPU.
const SPIN_NS: u64 = 50_000;
/// Interval in microseconds at which it looks again after that.
const SLEEP_US: i64 = 20;

/// Number of CPUs whose bursts [`wait_for_bursts`] remembers at a time. It waits for bursts of
/// these that have begun by one moment, and for each further group from a later moment on.
const GROUP: usize = 64;

/// The bursts of a CPU. Only that CPU writes to it, with softirqs disabled and not in a hard
/// interrupt, so that no write interrupts another.
#[repr(transparent)]
pub(super) struct Bursts(Atomic<u64>);

impl Bursts {
    /// Returns those of a CPU that is in no burst.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) const fn none() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns those of this CPU. They are those of another CPU once the caller is migrated.
    #[inline]
    pub(super) fn of_this_cpu() -> &'static Self {
        // SAFETY: The variable (data.c) exists as long as the module, whose code this is, and has
        // the layout of an `Atomic<u64>`. Only this type accesses it.
        unsafe { &*raw::safe::shim_bursts_of_this_cpu().cast() }
    }

    /// Returns those of a CPU, if it is possible.
    fn of_cpu(cpu: u32) -> Option<&'static Self> {
        // SAFETY: `cpu` is below `nr_cpu_ids`, as cpu_possible() (linux/cpumask.h) requires, and
        // each possible CPU has the variable. The rest is as in `of_this_cpu`.
        let on_cpu = |cpu| unsafe {
            raw::shim_cpu_possible(cpu).then(|| &*raw::shim_bursts_of_cpu(cpu).cast::<Self>())
        };
        (cpu < nr_cpu_ids()).then_some(cpu).and_then(on_cpu)
    }

    /// Reads the word on its own CPU.
    #[inline]
    fn own(&self) -> u64 {
        // SAFETY: The word is valid. Only this CPU writes to it, so this cannot race. A volatile
        // read is READ_ONCE() (asm-generic/rwonce.h); `Atomic::load()` calls a function of C.
        unsafe { self.0.as_ptr().read_volatile() }
    }

    /// Begins a burst, unless the CPU is in one.
    #[inline]
    pub(super) fn enter(&self) {
        let before = self.own();
        // SAFETY: The word is valid. Other CPUs read it concurrently, which a volatile write of an
        // aligned word permits, as WRITE_ONCE() does (asm-generic/rwonce.h).
        unsafe { self.0.as_ptr().write_volatile(before.wrapping_add(1)) };
        if before & GUARDS == 0 {
            // Pairs with the barrier in `wait_for_bursts`: either that function sees the burst, or
            // the burst sees what its caller has unpublished.
            smp_mb();
        }
    }

    /// Takes back a call of [`enter`](Self::enter). The last one ends the burst.
    #[inline]
    pub(super) fn leave(&self) {
        let left = self.own().wrapping_sub(1);
        let ended = if left & GUARDS == 0 { ONE_BURST } else { 0 };
        // Release: all accesses of the burst precede its end.
        self.0.store(left.wrapping_add(ended), Release);
    }

    /// Returns the word, for [`is_over`](Self::is_over).
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Returns whether the burst in which the CPU was at `then` has ended, or whether it was in
    /// none.
    pub(super) fn is_over(&self, then: u64) -> bool {
        let now = self.now();
        then & GUARDS == 0 || now & GUARDS == 0 || now / ONE_BURST != then / ONE_BURST
    }
}

/// A section of the data path on this CPU, in which memory that can be revoked may be accessed.
///
/// It is a softirq-disabled section and an RCU read-side section, too. Guards nest, and can be
/// dropped in any order; the burst ends with the last one. Entering another burst inside one costs
/// no barrier. Must be created with interrupts enabled.
///
/// # Invariants
///
/// Owns one call of [`Bursts::enter`] on this CPU.
#[must_use = "the burst ends when the guard is dropped"]
pub struct BurstGuard {
    bursts: &'static Bursts,
    // Fields are dropped in declaration order, after the body of `drop`.
    rcu: rcu::Guard,
    /// `None` in a softirq.
    _bh: Option<BhGuard>,
}

impl BurstGuard {
    /// Enters a burst.
    #[inline]
    pub fn enter() -> Self {
        let bh = Some(BhGuard::new());
        // SAFETY: The guard keeps softirqs disabled.
        unsafe { Self::new(bh) }
    }

    /// Enters a burst in a softirq.
    ///
    /// # Safety
    ///
    /// The CPU handles a softirq, or softirqs are disabled on it, until the guard is dropped.
    #[inline]
    pub(crate) unsafe fn enter_in_softirq() -> Self {
        debug_assert!(in_softirq());
        // SAFETY: The caller's contract.
        unsafe { Self::new(None) }
    }

    /// Enters a burst.
    ///
    /// # Safety
    ///
    /// The CPU handles a softirq, or softirqs are disabled on it, until the guard is dropped; `bh`
    /// may be what disables them.
    #[inline]
    unsafe fn new(bh: Option<BhGuard>) -> Self {
        let rcu = rcu::read_lock();
        // The context stays on this CPU.
        let bursts = Bursts::of_this_cpu();
        bursts.enter();
        // INVARIANT: The call is just above.
        Self {
            bursts,
            rcu,
            _bh: bh,
        }
    }
}

impl Deref for BurstGuard {
    type Target = rcu::Guard;

    #[inline]
    fn deref(&self) -> &rcu::Guard {
        &self.rcu
    }
}

impl Drop for BurstGuard {
    #[inline]
    fn drop(&mut self) {
        self.bursts.leave();
    }
}

/// Waits until all bursts have ended that may still use what the caller has unpublished.
///
/// Stores that precede the call are visible to each burst that this function does not wait for. All
/// accesses of a burst for which it waits precede its return. So the caller may then reuse, or
/// return to its owner, what only bursts have accessed.
///
/// Spins for as long as bursts usually take, then sleeps. Must not be called in a burst.
pub fn wait_for_bursts() {
    might_sleep();
    smp_mb();
    let mut begin = None;
    let mut wait = |bursts: &Bursts, then| {
        while !bursts.is_over(then) {
            let now = monotonic_ns();
            if now.wrapping_sub(*begin.get_or_insert(now)) < SPIN_NS {
                cpu_relax();
            } else {
                fsleep(Delta::from_micros(SLEEP_US));
            }
        }
    };
    for first in (0..nr_cpu_ids()).step_by(GROUP) {
        let mut seen = [0; GROUP];
        for (cpu, seen) in (first..).zip(&mut seen) {
            *seen = Bursts::of_cpu(cpu).map_or(0, Bursts::now);
        }
        for (cpu, &seen) in (first..).zip(&seen) {
            if let Some(bursts) = Bursts::of_cpu(cpu) {
                wait(bursts, seen);
            }
        }
    }
}
