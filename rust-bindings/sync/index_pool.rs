// SPDX-License-Identifier: GPL-2.0

//! Index allocation.
//!
//! C header: `include/linux/idr.h`.

use crate::raw;
use core::ops::RangeInclusive;
use kernel::{alloc::Flags, error::to_result, prelude::*, types::Opaque};

/// A pool of indices, backed by `struct ida`: memory in proportion to the indices in use.
///
/// # Invariants
///
/// The `ida` is initialised.
#[pin_data(PinnedDrop)]
pub struct IndexPool {
    #[pin]
    ida: Opaque<raw::ida>,
}

// SAFETY: `struct ida` has a lock of its own (lib/idr.c).
unsafe impl Send for IndexPool {}
// SAFETY: Shared references change it under that lock.
unsafe impl Sync for IndexPool {}

impl IndexPool {
    /// An empty pool.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `slot` is valid for writes; `ida_init` initialises all of it.
            ida <- Opaque::ffi_init(|slot| unsafe { raw::shim_ida_init(slot) }),
        })
    }

    /// Allocates the lowest free index of `range`. Any context, if `flags` allows it.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: no index is free. `ENOMEM`. `EINVAL`: the range reaches above `i32::MAX`.
    pub fn alloc(&self, range: RangeInclusive<u32>, flags: Flags) -> Result<u32> {
        let (min, max) = (*range.start(), *range.end());
        if max > i32::MAX as u32 {
            return Err(EINVAL);
        }
        if min > max {
            return Err(ENOSPC);
        }
        // The kernel crate does not tell what is in its flags.
        let gfp = if flags.contains(GFP_KERNEL_ACCOUNT) {
            raw::GFP_KERNEL_ACCOUNT
        } else if flags.contains(GFP_KERNEL) {
            raw::GFP_KERNEL
        } else {
            raw::GFP_ATOMIC
        };
        // SAFETY: The ida is initialised by the type invariant; `ida_alloc_range` locks it.
        let index = unsafe { raw::ida_alloc_range(self.ida.get(), min, max, gfp) };
        to_result(index)?;
        Ok(index as u32)
    }

    /// Allocates the first free index of `range` from `hint` up, and where there is none, the
    /// lowest of the range.
    ///
    /// With `hint` one above the last index allocated, an index is used again only after all
    /// others, so that what still names its last owner finds nothing.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_from(&self, hint: u32, range: RangeInclusive<u32>, flags: Flags) -> Result<u32> {
        if range.contains(&hint) {
            match self.alloc(hint..=*range.end(), flags) {
                Err(e) if e == ENOSPC => {}
                other => return other,
            }
        }
        self.alloc(range, flags)
    }

    /// Frees an index that [`alloc`](Self::alloc) returned. Any context.
    pub fn free(&self, index: u32) {
        // SAFETY: The ida is initialised by the type invariant. Freeing what is not allocated
        // only warns.
        unsafe { raw::ida_free(self.ida.get(), index) };
    }
}

#[pinned_drop]
impl PinnedDrop for IndexPool {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The ida is initialised by the type invariant, and nobody else uses it.
        unsafe { raw::ida_destroy(self.ida.get()) };
    }
}
