// SPDX-License-Identifier: GPL-2.0

//! Counters that each CPU has for itself.
//!
//! C header: `include/linux/percpu.h`.

use crate::raw;
use core::ptr::NonNull;
use kernel::prelude::*;

/// `N` counters of 64 bits, of which each CPU has its own. Adding is one instruction on memory that
/// no other CPU writes to; reading sums up.
///
/// # Invariants
///
/// `base` is what `__alloc_percpu` returned for `N` values of 64 bits.
pub struct PerCpuCounters<const N: usize> {
    base: NonNull<u64>,
}

// SAFETY: Memory of all CPUs, which belongs to no thread.
unsafe impl<const N: usize> Send for PerCpuCounters<N> {}
// SAFETY: Each CPU writes to its own memory, by instructions that nothing on the CPU interrupts.
unsafe impl<const N: usize> Sync for PerCpuCounters<N> {}

impl<const N: usize> PerCpuCounters<N> {
    /// Counters that stand at 0. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        Self::with_flags(raw::GFP_KERNEL)
    }

    /// As [`new`](Self::new); the memory is charged to the current process's memory cgroup.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new_accounted() -> Result<Self> {
        Self::with_flags(raw::GFP_KERNEL_ACCOUNT)
    }

    fn with_flags(gfp: raw::gfp_t) -> Result<Self> {
        let (size, align) = (size_of::<[u64; N]>(), align_of::<u64>());
        // SAFETY: Any size up to PCPU_MIN_UNIT_SIZE may be asked for; a larger one fails. The
        // memory is zeroed (mm/percpu.c, `pcpu_alloc_noprof()`).
        let base = unsafe { raw::shim_alloc_percpu(size, align, gfp) };
        // INVARIANT: Allocated just above.
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Adds to a counter of this CPU. Any context. A counter that does not exist counts nothing.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        if index < N {
            // SAFETY: The counter exists by the type invariant; `this_cpu_add` may be used in any
            // context (linux/percpu-defs.h).
            unsafe { raw::shim_this_cpu_add_u64(self.base.as_ptr().wrapping_add(index), n) };
        }
    }

    /// What this CPU has counted; 0 for a counter that does not exist. Any context.
    #[inline]
    pub fn here(&self, index: usize) -> u64 {
        if index >= N {
            return 0;
        }
        // SAFETY: The counter exists by the type invariant; `this_cpu_read` may be used in any context.
        unsafe { raw::shim_this_cpu_read_u64(self.base.as_ptr().wrapping_add(index)) }
    }

    /// What all CPUs have counted. Counters that change meanwhile may be missed.
    pub fn sum(&self, index: usize) -> u64 {
        if index >= N {
            return 0;
        }
        let counter = self.base.as_ptr().wrapping_add(index);
        // SAFETY: Reads a number that is set at boot (lib/cpumask.c).
        let cpus = unsafe { raw::shim_nr_cpu_ids() };
        (0..cpus)
            // SAFETY: `cpu` is below `nr_cpu_ids`.
            .filter(|&cpu| unsafe { raw::shim_cpu_possible(cpu) })
            // SAFETY: The counter exists on every possible CPU, by the type invariant.
            .map(|cpu| unsafe { raw::shim_per_cpu_read_u64(counter, cpu) })
            .fold(0, u64::wrapping_add)
    }
}

impl<const N: usize> Drop for PerCpuCounters<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nobody counts any more. Any context (mm/percpu.c).
        unsafe { raw::free_percpu(self.base.as_ptr().cast()) };
    }
}
