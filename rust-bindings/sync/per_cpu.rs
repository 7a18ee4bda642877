// SPDX-License-Identifier: GPL-2.0

//! Per-CPU counters.
//!
//! C header: `include/linux/percpu.h`.

use crate::raw;
use core::ptr::NonNull;
use kernel::prelude::*;

/// `N` 64-bit counters, of which each CPU has its own copy. Adding is one instruction on memory
/// that no other CPU writes to; reading sums over the CPUs.
///
/// # Invariants
///
/// `base` was returned by `__alloc_percpu` for `N` values of 64 bits.
pub struct PerCpuCounters<const N: usize> {
    base: NonNull<u64>,
}

// SAFETY: The memory belongs to all CPUs, not to a thread.
unsafe impl<const N: usize> Send for PerCpuCounters<N> {}
// SAFETY: Each CPU writes only to its own memory, with instructions that cannot be interrupted.
unsafe impl<const N: usize> Sync for PerCpuCounters<N> {}

impl<const N: usize> PerCpuCounters<N> {
    /// Creates counters with the value 0. Sleeps. Returns `ENOMEM` on failure.
    pub fn new() -> Result<Self> {
        Self::with_flags(raw::GFP_KERNEL)
    }

    /// Creates counters with the value 0, charged to the current process's memory cgroup. Sleeps.
    /// Returns `ENOMEM` on failure.
    pub fn new_accounted() -> Result<Self> {
        Self::with_flags(raw::GFP_KERNEL_ACCOUNT)
    }

    fn with_flags(gfp: raw::gfp_t) -> Result<Self> {
        let (size, align) = (size_of::<[u64; N]>(), align_of::<u64>());
        // SAFETY: Any size may be requested; sizes above PCPU_MIN_UNIT_SIZE fail. The memory is
        // zeroed (mm/percpu.c, `pcpu_alloc_noprof()`).
        let base = unsafe { raw::shim_alloc_percpu(size, align, gfp) };
        // INVARIANT: `__alloc_percpu` returned the memory just above.
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Adds `n` to a counter of this CPU. Does nothing if the counter does not exist. Any context.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        if index < N {
            // SAFETY: The counter exists by the type invariant. `this_cpu_add` may be used in any
            // context (linux/percpu-defs.h).
            unsafe { raw::shim_this_cpu_add_u64(self.base.as_ptr().wrapping_add(index), n) };
        }
    }

    /// Returns this CPU's value, or 0 if the counter does not exist. Any context.
    #[inline]
    pub(super) fn this_cpu(&self, index: usize) -> u64 {
        if index >= N {
            return 0;
        }
        // SAFETY: The counter exists by the type invariant. `this_cpu_read` may be used in any
        // context (linux/percpu-defs.h).
        unsafe { raw::shim_this_cpu_read_u64(self.base.as_ptr().wrapping_add(index)) }
    }

    /// Returns the sum over all CPUs. Concurrent additions may be missed.
    pub fn sum(&self, index: usize) -> u64 {
        if index >= N {
            return 0;
        }
        let counter = self.base.as_ptr().wrapping_add(index);
        // SAFETY: `cpu` is below `nr_cpu_ids`, as cpu_possible() (linux/cpumask.h) requires. By the
        // type invariant, the counter exists on every possible CPU.
        let on_cpu = |cpu| unsafe {
            raw::shim_cpu_possible(cpu).then(|| raw::shim_per_cpu_read_u64(counter, cpu))
        };
        (0..raw::safe::shim_nr_cpu_ids())
            .filter_map(on_cpu)
            .fold(0, u64::wrapping_add)
    }
}

impl<const N: usize> Drop for PerCpuCounters<N> {
    fn drop(&mut self) {
        // SAFETY: `base` is from `__alloc_percpu` (type invariant), and `drop` has exclusive
        // access. Any context (mm/percpu.c).
        unsafe { raw::free_percpu(self.base.as_ptr().cast()) };
    }
}
