// SPDX-License-Identifier: GPL-2.0

//! Memory of kernel consumers.

use super::{backing::Revocation, pinned::PageTable, Backing, MappedMemory, Place, Unavailable};
use crate::sync::BurstGuard;
use kernel::{alloc::flags::GFP_KERNEL_ACCOUNT, prelude::*};

/// All kernel memory, by address: the region that the L_Key of `get_dma_mr` names.
///
/// Only kernel consumers use it. They are trusted to name only their own memory.
pub struct KernelMemory(Revocation);

impl KernelMemory {
    /// Creates the memory for the region of a kernel consumer.
    pub(crate) fn new() -> Self {
        Self(Revocation::new())
    }
}

impl Backing for KernelMemory {
    /// Returns access to the `len` bytes at address `offset`. A kernel consumer that has posted a
    /// work request that names these bytes guarantees that they are in the direct map and stay
    /// there (ib_verbs.h, `ib_dma_map_single()` without a DMA device).
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        self.0.check(burst)?;
        // INVARIANT: The caller guarantees that the bytes stay valid while the access exists.
        Ok((MappedMemory(Place::Contiguous(offset as usize, len)), 0))
    }

    fn revoke(&self) {
        self.0.revoke();
    }
}

/// Memory of a kernel consumer in pages of one size, mapped for a fast registration.
pub struct KernelPages(PageTable);

impl KernelPages {
    /// Allocates space for `count` pages.
    pub fn with_capacity(count: usize) -> Result<Self> {
        Ok(Self(PageTable {
            blocks: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
            shift: 0,
            offset: 0,
            len: 0,
            writable: true,
        }))
    }

    /// Returns the size of the mapping in bytes.
    pub fn size(&self) -> u64 {
        self.0.len
    }

    /// Removes the mapping.
    pub fn clear(&mut self) {
        self.0.blocks.clear();
        self.0.len = 0;
    }

    /// Adds a page. Returns `ENOMEM` if there is no space.
    pub fn push(&mut self, address: u64) -> Result {
        let pushed = (self.0.blocks).push_within_capacity(usize::try_from(address)?);
        pushed.map_err(|_| ENOMEM)
    }

    /// Completes the mapping: `len` bytes, the first of which has this address. Returns `EINVAL` if
    /// that is more than the pages hold.
    pub fn finish(&mut self, address: u64, len: u64, page_size: u32) -> Result {
        if !page_size.is_power_of_two() {
            return Err(EINVAL);
        }
        let shift = page_size.trailing_zeros();
        let offset = address & u64::from(page_size.wrapping_sub(1));
        let size = (self.0.blocks.len() as u64) << shift;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(EINVAL);
        }
        self.0.shift = shift;
        self.0.offset = usize::try_from(offset)?;
        self.0.len = len;
        Ok(())
    }

    /// Returns access to the mapped memory.
    ///
    /// # Safety
    ///
    /// - The pages, the address and the page size are those that were passed to
    ///   `Driver::map_mr_page` and `Driver::map_mr_end` for one region since its last
    ///   `Driver::unmap_mr`.
    /// - A key of the region is valid, and is not invalidated while the access exists. A kernel
    ///   consumer that maps pages of the direct map (verbs.c, `ib_map_mr_sg()`) guarantees that
    ///   they stay valid that long.
    #[inline]
    pub unsafe fn access(&self) -> MappedMemory<'_> {
        // INVARIANT: The caller guarantees that the pages are in the direct map and stay there.
        MappedMemory(Place::Pages(&self.0))
    }
}
