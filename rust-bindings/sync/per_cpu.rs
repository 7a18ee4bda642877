// SPDX-License-Identifier: GPL-2.0

//! Per-CPU memory and counters.
//!
//! C header: `include/linux/percpu.h`.

use crate::raw;
use core::ptr::NonNull;
use kernel::{cpu::nr_cpu_ids, prelude::*};
use pin_init::Zeroable;

/// Returns the number of possible CPUs, present or not.
#[inline]
pub fn num_possible_cpus() -> u32 {
    raw::safe::shim_num_possible_cpus()
}

/// A `T` of each possible CPU.
///
/// # Invariants
///
/// The pointer was returned by `__alloc_percpu_gfp` for `T`.
struct PerCpu<T>(NonNull<T>);

// SAFETY: The memory belongs to all CPUs, not to a thread, and is only reached by raw pointers.
unsafe impl<T> Send for PerCpu<T> {}
// SAFETY: As above.
unsafe impl<T> Sync for PerCpu<T> {}

impl<T: Zeroable> PerCpu<T> {
    /// Allocates the memory, all zeros. Sleeps. Returns `ENOMEM` on failure.
    fn zeroed(gfp: raw::gfp_t) -> Result<Self> {
        // SAFETY: Any size may be requested; sizes above PCPU_MIN_UNIT_SIZE fail. The memory is
        // zeroed (mm/percpu.c, `pcpu_alloc_noprof()`).
        let memory = unsafe { raw::shim_alloc_percpu(size_of::<T>(), align_of::<T>(), gfp) };
        // INVARIANT: `__alloc_percpu_gfp` returned the memory just above.
        Ok(Self(NonNull::new(memory.cast()).ok_or(ENOMEM)?))
    }
}

impl<T> PerCpu<T> {
    /// Returns the per-CPU pointer. It cannot be dereferenced.
    #[inline]
    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Returns a pointer to the `T` of each possible CPU, valid as long as `self`.
    fn of_all_cpus(&self) -> impl Iterator<Item = *mut T> + '_ {
        // SAFETY: `cpu` is below `nr_cpu_ids`, as cpu_possible() (linux/cpumask.h) requires. By the
        // type invariant, the memory exists on every possible CPU.
        let on_cpu = |cpu| unsafe {
            raw::shim_cpu_possible(cpu)
                .then(|| raw::shim_per_cpu_ptr(self.as_ptr().cast(), cpu).cast())
        };
        (0..nr_cpu_ids()).filter_map(on_cpu)
    }
}

impl<T> Drop for PerCpu<T> {
    fn drop(&mut self) {
        // SAFETY: The memory is from `__alloc_percpu_gfp` (type invariant), and nothing uses it any
        // more. Any context (mm/percpu.c).
        unsafe { raw::free_percpu(self.as_ptr().cast()) };
    }
}

/// `N` 64-bit counters, of which each CPU has its own copy. Adding is one instruction on memory
/// that no other CPU writes to; reading sums over the CPUs.
pub struct PerCpuCounters<const N: usize>(PerCpu<[u64; N]>);

impl<const N: usize> PerCpuCounters<N> {
    /// Creates counters with the value 0. Sleeps. Returns `ENOMEM` on failure.
    pub fn new() -> Result<Self> {
        Ok(Self(PerCpu::zeroed(raw::GFP_KERNEL)?))
    }

    /// Creates counters with the value 0, charged to the current process's memory cgroup. Sleeps.
    /// Returns `ENOMEM` on failure.
    pub fn new_accounted() -> Result<Self> {
        Ok(Self(PerCpu::zeroed(raw::GFP_KERNEL_ACCOUNT)?))
    }

    /// Returns the per-CPU pointer to a counter, if it exists.
    #[inline]
    fn counter(&self, index: usize) -> Option<*mut u64> {
        (index < N).then(|| self.0.as_ptr().cast::<u64>().wrapping_add(index))
    }

    /// Adds `n` to a counter of this CPU. Does nothing if the counter does not exist. Any context.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        if let Some(counter) = self.counter(index) {
            // SAFETY: The counter exists. `this_cpu_add` may be used in any context
            // (linux/percpu-defs.h).
            unsafe { raw::shim_this_cpu_add_u64(counter, n) };
        }
    }

    /// Returns this CPU's value, or 0 if the counter does not exist. Any context.
    #[inline]
    pub(super) fn this_cpu(&self, index: usize) -> u64 {
        // SAFETY: The counter exists. `this_cpu_read` may be used in any context
        // (linux/percpu-defs.h).
        let read = |counter: *mut u64| unsafe { raw::shim_this_cpu_read_u64(counter) };
        self.counter(index).map_or(0, read)
    }

    /// Returns the sum over all CPUs, or 0 if the counter does not exist. Concurrent additions may
    /// be missed.
    pub fn sum(&self, index: usize) -> u64 {
        if index >= N {
            return 0;
        }
        let read = |counters: *mut [u64; N]| {
            // SAFETY: The counter exists. Its CPU may change it during the read, which is volatile.
            unsafe { counters.cast::<u64>().add(index).read_volatile() }
        };
        self.0.of_all_cpus().map(read).fold(0, u64::wrapping_add)
    }
}
