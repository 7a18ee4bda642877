// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of programs.

use super::{access, backing::Revocation, Backing, MappedMemory, Place, Unavailable};
use crate::{
    raw,
    rdma::{device::Device, object::Driver},
    sync::BurstGuard,
};
use core::{
    mem::MaybeUninit,
    num::NonZero,
    ptr::{self, NonNull},
};
use kernel::{
    alloc::flags::GFP_KERNEL_ACCOUNT,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Largest number of entries of a [`PageTable`]: kvmalloc() (mm/slub.c) warns of sizes above
/// `INT_MAX`.
const MAX_BLOCKS: usize = i32::MAX as usize / size_of::<usize>();

/// Returns the number of blocks of a size that memory of `len` bytes is in, if it begins at
/// `offset` in the first one.
///
/// # Errors
///
/// `ENOMEM`: more than [`MAX_BLOCKS`]. `EINVAL`: the end of the memory overflows.
fn block_count(offset: usize, len: usize, block: NonZero<usize>) -> Result<usize> {
    let end = offset.checked_add(len).ok_or(EINVAL)?;
    let count = end.div_ceil(block.get());
    (count <= MAX_BLOCKS).then_some(count).ok_or(ENOMEM)
}

/// User memory that is pinned and charged to its process (`struct ib_umem`).
///
/// Must be dropped in process context, because unpinning may sleep.
pub struct Umem(NonNull<raw::ib_umem>);

// SAFETY: Any task may call ib_umem_release() (umem.c keeps the owner's mm). It is not `Sync`,
// because ib_umem_find_best_pgsz() (umem.c) writes to the umem.
unsafe impl Send for Umem {}

impl Umem {
    /// Pins `len` bytes from `addr` of the current process, for writing if `access` requires it.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: it would exceed RLIMIT_MEMLOCK. `EFAULT`: the memory is not mapped with these
    /// rights. `EINVAL`: the caller is a kernel thread, which has no user memory.
    pub fn get<D: Driver>(device: &Device<D>, addr: u64, len: usize, access: u32) -> Result<Self> {
        let task = kernel::current!();
        task.mm().ok_or(EINVAL)?;
        // SAFETY: The device is valid, and the current task has an mm, which
        // ib_umem_get_attr_or_va() (umem.c) assumes. Null attributes are allowed: ib_umem_get_va()
        // in ib_umem.h passes them.
        let umem = from_err_ptr(unsafe {
            raw::ib_umem_get_attr_or_va(device.as_raw(), ptr::null(), 0, addr, len, access as i32)
        })?;
        NonNull::new(umem).map(Self).ok_or(EINVAL)
    }

    /// Lists the memory in blocks of the largest fitting size in the bitmap `sizes`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory for the list, or it would be too long. `EINVAL`: no size fits.
    pub(super) fn blocks(&self, sizes: usize) -> Result<PageTable> {
        // SAFETY: `self` owns the umem, and only `ib_umem_find_best_pgsz()` (umem.c) changes it.
        // The "virtual address" for which the block size is chosen is the memory's own address, so
        // the page size always fits.
        let (block, umem) = unsafe {
            let virt = (*self.0.as_ptr()).address as u64;
            let block = raw::ib_umem_find_best_pgsz(self.0.as_ptr(), sizes, virt);
            (block, self.0.as_ref())
        };
        let (address, len) = (umem.address, umem.length);
        let size = NonZero::new(block).filter(|size| size.is_power_of_two());
        let size = size.ok_or(EINVAL)?;
        // The block size is not 0, so it has a mask of lower bits.
        let below = block.wrapping_sub(1);
        let offset = address & below;
        let count = block_count(offset, len, size)?;
        let mut table = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut iter = MaybeUninit::<raw::ib_block_iter>::zeroed();
        // SAFETY: __rdma_block_iter_start() (iter.c) initializes `iter`, which only
        // __rdma_block_iter_next() uses afterwards. The scatter list lives as long as the umem. If
        // the memory begins in the middle of a block of pages, so does the first scatter entry, and
        // the iteration aligns down.
        unsafe {
            let sgt = &umem.sgt_append.sgt;
            raw::__rdma_block_iter_start(iter.as_mut_ptr(), sgt.sgl, sgt.nents, block);
            (*iter.as_mut_ptr()).__sg_advance = (address & (PAGE_SIZE - 1) & !below) as u32;
            while table.len() < count && raw::__rdma_block_iter_next(iter.as_mut_ptr()) {
                // Without a DMA device, ib_core's "DMA addresses" are addresses in the kernel's
                // direct map (device.c, ib_dma_virt_map_sg()).
                let address = (*iter.as_ptr()).__dma_addr as usize & !below;
                table.push(address, GFP_KERNEL_ACCOUNT)?;
            }
        }
        if table.len() != count {
            return Err(EINVAL);
        }
        Ok(PageTable {
            blocks: table,
            shift: block.trailing_zeros(),
            offset,
            len: len as u64,
            writable: umem.writable() != 0,
        })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: `self` owns the umem and, by the type's rule, is dropped in process context.
        unsafe { raw::ib_umem_release(self.0.as_ptr()) };
    }
}

/// The addresses of pinned memory in the kernel's direct map, with an entry for each block of the
/// largest page size that fits.
///
/// The table does not keep the memory pinned (see [`Pinned`]).
pub(super) struct PageTable {
    pub(super) blocks: KVVec<usize>,
    pub(super) shift: u32,
    /// Offset of the first byte in the first block.
    pub(super) offset: usize,
    pub(super) len: u64,
    /// Whether the memory may be written to.
    pub(super) writable: bool,
}

impl PageTable {
    /// Returns the address of byte `offset`, and how many of the following `len` bytes are
    /// contiguous. Returns `None` if the range extends past the end.
    #[inline]
    pub(super) fn piece(&self, offset: u64, len: usize) -> Option<(*mut u8, usize)> {
        if offset.checked_add(len as u64)? > self.len {
            return None;
        }
        let position = usize::try_from(offset).ok()?.checked_add(self.offset)?;
        let block = 1usize << self.shift;
        let within = position & block.wrapping_sub(1);
        let base = *self.blocks.get(position >> self.shift)?;
        Some((
            base.wrapping_add(within) as *mut u8,
            len.min(block.wrapping_sub(within)),
        ))
    }
}

/// Pinned user memory for the data path: its page table, and whether it is still pinned.
///
/// The [`PinOwner`] unpins the memory.
pub struct Pinned {
    table: PageTable,
    /// Revoked before the owner unpins the memory.
    revocation: Revocation,
    /// The umem, which the owner releases. Never changes.
    umem: Atomic<*mut raw::ib_umem>,
}

impl Pinned {
    /// Returns the size of the memory in bytes.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Returns access to the memory in a burst, or `None` once it is revoked.
    #[inline]
    pub fn map<'a>(&'a self, burst: &'a BurstGuard) -> Option<MappedMemory<'a>> {
        // INVARIANT: The memory is pinned. The owner revokes it before it unpins it, which waits
        // for all bursts in which access was allowed.
        self.revocation.check(burst).ok()?;
        Some(MappedMemory(Place::Pages(&self.table)))
    }
}

impl Backing for Pinned {
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        _len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        let memory = self.map(burst).ok_or(Unavailable::Revoked)?;
        Ok((memory, offset))
    }

    fn revoke(&self) {
        self.revocation.revoke();
    }
}

/// The owner of [`Pinned`] memory. Dropping it unpins the memory, which sleeps.
pub struct PinOwner(Arc<Pinned>);

impl PinOwner {
    /// Shares pinned memory with the data path.
    pub fn new(umem: Umem) -> Result<Self> {
        let shared = Arc::new(
            Pinned {
                // Blocks of any size from that of a page.
                table: umem.blocks(usize::MAX & !(PAGE_SIZE - 1))?,
                revocation: Revocation::new(),
                umem: Atomic::new(umem.0.as_ptr()),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        // The owner releases it from now on.
        core::mem::forget(umem);
        Ok(Self(shared))
    }

    /// Returns the address in the process and the length in bytes of the memory.
    pub fn range(&self) -> (u64, u64) {
        let umem = self.0.umem.load(Relaxed);
        // SAFETY: Only `drop` releases the umem. Neither field changes (umem.c).
        unsafe { ((*umem).address as u64, (*umem).length as u64) }
    }

    /// Returns whether the memory, as pinned, can be given all of these `IB_ACCESS_*` flags.
    pub fn allows(&self, access: u32) -> bool {
        access & access::ON_DEMAND == 0 && (access & access::WRITABLE == 0 || self.0.table.writable)
    }

    /// Returns the part that the data path uses.
    pub fn shared(&self) -> &Arc<Pinned> {
        &self.0
    }
}

impl Drop for PinOwner {
    fn drop(&mut self) {
        // After this, no late packet reads or writes memory that the program may already use for
        // something else.
        self.0.revoke();
        drop(NonNull::new(self.0.umem.load(Relaxed)).map(Umem));
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_blocks_of_memory)]
mod tests {
    use super::*;

    /// The list of a region's blocks is never so large that kvmalloc() warns of its size.
    #[test]
    fn lists_are_not_too_long() {
        let page = NonZero::new(PAGE_SIZE).unwrap();
        assert_eq!(block_count(0, 1, page), Ok(1));
        assert_eq!(block_count(PAGE_SIZE - 1, 1, page), Ok(1));
        assert_eq!(block_count(PAGE_SIZE - 1, 2, page), Ok(2));
        let most = MAX_BLOCKS * PAGE_SIZE;
        assert_eq!(block_count(0, most, page), Ok(MAX_BLOCKS));
        assert_eq!(block_count(0, most + 1, page), Err(ENOMEM));
        assert_eq!(block_count(1, most, page), Err(ENOMEM));
        // 1 TiB of scattered pages takes a list of 2 GiB.
        assert_eq!(block_count(0, 1 << 40, page), Err(ENOMEM));
        assert_eq!(block_count(1, usize::MAX, page), Err(EINVAL));
        // In huge pages it is short.
        let huge = NonZero::new(2 << 20).unwrap();
        assert_eq!(block_count(0, 1 << 40, huge), Ok(1 << 19));
        assert!(MAX_BLOCKS * size_of::<usize>() <= i32::MAX as usize);
    }
}
