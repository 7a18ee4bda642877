// SPDX-License-Identifier: GPL-2.0

//! Index allocation.
//!
//! C header: `include/linux/idr.h`.

use crate::raw;
use core::ops::RangeInclusive;
use kernel::{alloc::Flags, error::to_result, prelude::*, types::Opaque};

/// A pool of indices, backed by `struct ida`. It uses memory in proportion to the indices in use.
///
/// # Invariants
///
/// The `ida` is initialised.
#[pin_data(PinnedDrop)]
pub struct IndexPool {
    #[pin]
    ida: Opaque<raw::ida>,
}

// SAFETY: `struct ida` has its own lock (lib/idr.c).
unsafe impl Send for IndexPool {}
// SAFETY: Changes through shared references are protected by that lock.
unsafe impl Sync for IndexPool {}

impl IndexPool {
    /// Creates an empty pool.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `slot` is valid for writes, and `ida_init` (linux/idr.h) initialises all of
            // it.
            ida <- Opaque::ffi_init(|slot| unsafe { raw::shim_ida_init(slot) }),
        })
    }

    /// Allocates the lowest free index of `range`. Returns `ENOSPC` if no index is free, `EINVAL`
    /// if the range extends beyond `i32::MAX`, `ENOMEM` if memory is needed and missing. Any
    /// context that `flags` allows: `GFP_KERNEL`, `GFP_NOWAIT` or `GFP_ATOMIC`. Memory is charged
    /// to the current process's memory cgroup, except with `GFP_ATOMIC`.
    pub fn alloc(&self, range: RangeInclusive<u32>, flags: Flags) -> Result<u32> {
        let (min, max) = (*range.start(), *range.end());
        if max > i32::MAX as u32 {
            return Err(EINVAL);
        }
        // The kernel crate's `Flags` do not expose their value.
        let gfp = if flags.contains(GFP_KERNEL) {
            raw::GFP_KERNEL_ACCOUNT
        } else if flags.contains(GFP_ATOMIC) {
            raw::GFP_ATOMIC
        } else {
            // With `__GFP_ACCOUNT`, which has no binding of its own.
            raw::GFP_NOWAIT | raw::GFP_KERNEL_ACCOUNT & !raw::GFP_KERNEL
        };
        // SAFETY: The ida is initialised by the type invariant, and `ida_alloc_range` (lib/idr.c)
        // locks it.
        let index = unsafe { raw::ida_alloc_range(self.ida.get(), min, max, gfp) };
        to_result(index)?;
        Ok(index as u32)
    }

    /// Allocates the first free index of `range` that is at least `hint`. Without such an index,
    /// allocates the lowest free index of the range.
    ///
    /// If `hint` is one above the last allocated index, an index is reused only after all others. A
    /// stale index of its previous owner then most likely finds nothing. Errors are those of
    /// [`alloc`](Self::alloc).
    pub fn alloc_from(&self, hint: u32, range: RangeInclusive<u32>, flags: Flags) -> Result<u32> {
        let from = hint.max(*range.start());
        match self.alloc(from..=*range.end(), flags) {
            Err(e) if e == ENOSPC => self.alloc(range, flags),
            result => result,
        }
    }

    /// Frees an index that [`alloc`](Self::alloc) returned. Any context.
    pub fn free(&self, index: u32) {
        // SAFETY: The ida is initialised by the type invariant. `ida_free` (lib/idr.c) only warns
        // if the index is not allocated.
        unsafe { raw::ida_free(self.ida.get(), index) };
    }
}

#[pinned_drop]
impl PinnedDrop for IndexPool {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The ida is initialised by the type invariant, and `drop` has exclusive access to
        // it.
        unsafe { raw::ida_destroy(self.ida.get()) };
    }
}
