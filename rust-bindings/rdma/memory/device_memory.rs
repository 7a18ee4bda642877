// SPDX-License-Identifier: GPL-2.0

//! Memory of a device (`ibv_alloc_dm(3)`): pages of the kernel, which a program can map.

use super::{backing::Revocation, pinned::PageTable, Backing, MappedMemory, Place, Unavailable};
use crate::{raw, sync::BurstGuard};
use kernel::{
    alloc::flags::{GFP_KERNEL_ACCOUNT, __GFP_ZERO},
    mm::virt::VmaNew,
    page::{Page, PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::Arc,
};

/// Memory of a device. A mapping keeps its pages, also after the device and this are gone.
pub struct DeviceMemory {
    pages: KVVec<Page>,
    table: PageTable,
}

impl DeviceMemory {
    /// Allocates `len` zeroed bytes in whole pages, which are charged to the control group of the
    /// current process. Returns `EINVAL` if `len` is 0.
    pub fn new(len: usize) -> Result<Arc<Self>> {
        if len == 0 {
            return Err(EINVAL);
        }
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut blocks = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            let page = Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            // SAFETY: The page is valid, and on 64-bit machines each page is in the direct map.
            let address = unsafe { raw::shim_page_address(page.as_ptr()) }.addr();
            pages.push(page, GFP_KERNEL_ACCOUNT)?;
            blocks.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        let table = PageTable {
            blocks,
            shift: PAGE_SHIFT as u32,
            offset: 0,
            len: len as u64,
            writable: true,
        };
        Ok(Arc::new(Self { pages, table }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Returns whether a mapping has one of the pages. A concurrent call of
    /// [`DeviceMemory::map`] changes that.
    pub fn is_mapped(&self) -> bool {
        // SAFETY: The pages are valid. Their counts may change concurrently.
        let count = |page: &Page| unsafe { raw::shim_page_count(page.as_ptr()) };
        self.pages.iter().any(|page| count(page) > 1)
    }

    /// Maps the whole memory. Returns `EINVAL` if the area has another size or is executable.
    pub fn map(&self, area: &VmaNew) -> Result {
        let (start, end) = (area.start(), area.end());
        if end.wrapping_sub(start) >> PAGE_SHIFT != self.pages.len() {
            return Err(EINVAL);
        }
        area.try_clear_mayexec()?;
        area.set_dontexpand();
        let area = area.set_mixedmap();
        for (address, page) in (start..end).step_by(PAGE_SIZE).zip(&self.pages) {
            area.vm_insert_page(address, page)?;
        }
        Ok(())
    }
}

/// A part of the memory of a device, behind a region.
pub struct DeviceRange {
    memory: Arc<DeviceMemory>,
    /// Offset of the first byte in the memory.
    start: u64,
    revocation: Revocation,
}

impl DeviceRange {
    /// Returns `len` bytes of the memory from `start` on, or `EINVAL` if they are not inside it.
    pub fn new(memory: Arc<DeviceMemory>, start: u64, len: u64) -> Result<Self> {
        let end = start.checked_add(len).ok_or(EINVAL)?;
        if end > memory.size() {
            return Err(EINVAL);
        }
        Ok(Self {
            memory,
            start,
            revocation: Revocation::new(),
        })
    }
}

impl Backing for DeviceRange {
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        _len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        self.revocation.check(burst)?;
        // INVARIANT: The pages exist as long as `self`.
        let memory = MappedMemory(Place::Pages(&self.memory.table));
        // The offset is inside the region, and so inside the range.
        Ok((memory, self.start.wrapping_add(offset)))
    }

    fn revoke(&self) {
        self.revocation.revoke();
    }
}
