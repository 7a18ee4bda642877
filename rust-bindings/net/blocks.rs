// SPDX-License-Identifier: GPL-2.0

//! Allocation and reuse of the memory blocks that packets are made of.
//!
//! Packets that stay on this host are soon freed, while their memory is still in the cache. Each
//! CPU therefore remembers the blocks that it wrote last. It reuses the oldest one if nothing else
//! still refers to it.

use crate::raw;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full, Release},
};

/// Pages per block, as a power of 2. This is the largest order that the page allocator keeps in its
/// per-CPU lists (`PAGE_ALLOC_COSTLY_ORDER`).
const ORDER: u32 = 3;

/// Bytes of a block: 32 KiB.
pub(super) const SIZE: usize = PAGE_SIZE << ORDER;

/// Alignment in bytes of parts of a block: a cache line.
const PART_ALIGNMENT: usize = 64;

/// Blocks that a CPU remembers: 512 KiB, which is more than a batch.
const REMEMBERED: usize = 16;

/// The blocks that a CPU remembers. Initially all zeros.
#[repr(C)]
struct Remembered {
    /// Blocks, each with a reference of its own, or null.
    pages: [*mut kernel::bindings::page; REMEMBERED],
    /// Index of the oldest block.
    next: usize,
    /// The block that [`take_part`] divides, with a reference of its own.
    divided: Option<NonNull<u8>>,
    /// Bytes of `divided` that are left, at its end.
    left: usize,
}

/// Address of the per-CPU [`Remembered`], or 0 while no `Memory` exists.
static MEMORY: Atomic<usize> = Atomic::new(0);

/// Enables the reuse of blocks while it exists. At most one exists.
///
/// # Invariants
///
/// `memory` was returned by `__alloc_percpu` for [`Remembered`]. Each of its pages is null or a
/// block to which it owns a reference, and so is `divided`, of which `left` bytes are unused.
pub(super) struct Memory {
    memory: NonNull<Remembered>,
}

// SAFETY: The memory belongs to all CPUs, not to a thread.
unsafe impl Send for Memory {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates the memory. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: another `Memory` exists. `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let (size, align) = (size_of::<Remembered>(), align_of::<Remembered>());
        // SAFETY: Any size may be requested. The memory is zeroed (mm/percpu.c), so all pages are
        // null. A failed exchange does not publish it.
        unsafe {
            let memory = raw::shim_alloc_percpu(size, align, raw::GFP_KERNEL);
            let memory = NonNull::<Remembered>::new(memory.cast()).ok_or(ENOMEM)?;
            if MEMORY.cmpxchg(0, memory.as_ptr() as usize, Full).is_err() {
                raw::free_percpu(memory.as_ptr().cast());
                return Err(EBUSY);
            }
            // INVARIANT: Allocated just above; all pages are null.
            Ok(Self { memory })
        }
    }
}

impl Drop for Memory {
    /// Makes the CPUs release their blocks. Later packets use new blocks. Sleeps.
    fn drop(&mut self) {
        MEMORY.store(0, Release);
        // `take` uses the memory with softirqs disabled, which is an RCU read-side section
        // (Documentation/RCU/whatisRCU.rst). After the grace period it only sees 0.
        raw::safe::synchronize_rcu();
        // SAFETY: `__alloc_percpu()` returned the memory, and the references to its blocks belong
        // to `self` (type invariant). Only possible CPUs are accessed. Nothing else uses the
        // memory: `take` no longer finds it, and a grace period has passed.
        unsafe {
            let memory = self.memory.as_ptr().cast();
            for cpu in 0..raw::safe::shim_nr_cpu_ids() {
                if !raw::shim_cpu_possible(cpu) {
                    continue;
                }
                let remembered = &*raw::shim_per_cpu_ptr(memory, cpu).cast::<Remembered>();
                for page in remembered.pages.iter().filter(|page| !page.is_null()) {
                    raw::shim_put_page(*page);
                }
                if let Some(divided) = remembered.divided {
                    put(divided);
                }
            }
            raw::free_percpu(memory);
        }
    }
}

/// Calls `f` with the blocks of this CPU. Returns `None` if they do not exist, or unless softirqs
/// are disabled outside of hard interrupts. `f` must not call this function.
#[inline]
fn with_remembered<R>(f: impl FnOnce(&mut Remembered) -> R) -> Option<R> {
    let alone = !cfg!(CONFIG_PREEMPT_RT) && raw::safe::shim_in_softirq_level();
    let memory = MEMORY.load(Acquire);
    if memory == 0 || !alone {
        return None;
    }
    // SAFETY: Softirqs are disabled, so this is an RCU read-side section, and `Memory` waits for a
    // grace period before it frees the memory. Nothing else uses this CPU's part: a task is not
    // preempted, no softirq runs, hard interrupts and NMIs do not get here, and the callers in this
    // file pass only methods of `Remembered`, which do not call this function.
    let remembered = unsafe { &mut *raw::shim_this_cpu_ptr(memory as *mut _).cast::<Remembered>() };
    Some(f(remembered))
}

/// Returns a block, with a reference that the caller owns. Its contents are unspecified. A
/// remembered block is reused only with softirqs disabled and outside of hard interrupts. Returns
/// `ENOMEM` on failure. Any context.
#[inline]
pub(super) fn take() -> Result<NonNull<u8>> {
    if let Some(block) = with_remembered(Remembered::take) {
        return block;
    }
    let page = allocate()?;
    // SAFETY: `allocate` returned the page, which is in the direct map.
    NonNull::new(unsafe { raw::shim_page_address(page) }.cast()).ok_or(ENOMEM)
}

/// Returns `len` bytes of a block, with a reference to the block that the caller owns. The bytes
/// are aligned to [`PART_ALIGNMENT`], and their contents are unspecified. Returns `None` unless
/// softirqs are disabled outside of hard interrupts, and if there is no memory or `len` is more
/// than a block. Any context.
#[inline]
pub(super) fn take_part(len: usize) -> Option<NonNull<u8>> {
    with_remembered(|remembered| remembered.take_part(len))?.ok()
}

/// Releases what [`take`] or [`take_part`] returned.
///
/// # Safety
///
/// `block` was returned by one of them, and the caller still owns its reference.
pub(super) unsafe fn put(block: NonNull<u8>) {
    // SAFETY: The caller guarantees a block to which it owns a reference. `put_page`
    // (include/linux/mm.h) may be called for any page of it.
    unsafe { raw::shim_put_page(raw::shim_virt_to_page(block.as_ptr().cast())) };
}

fn allocate() -> Result<*mut kernel::bindings::page> {
    // SAFETY: alloc_pages() may be called with any order; GFP_ATOMIC does not sleep.
    let page = unsafe { raw::shim_alloc_pages(raw::GFP_ATOMIC, ORDER) };
    Some(page).filter(|page| !page.is_null()).ok_or(ENOMEM)
}

impl Remembered {
    #[inline]
    fn take(&mut self) -> Result<NonNull<u8>> {
        let at = self.next % REMEMBERED;
        self.next = at.wrapping_add(1);
        let Some(slot) = self.pages.get_mut(at) else {
            return Err(ENOMEM);
        };
        // SAFETY: A remembered page is a block to which `Memory` owns a reference (its invariant).
        // If that is the only reference, nothing else can take one, and the block can be reused.
        // Otherwise its other owners free it. `dev_page_is_reusable()` (skbuff.h) excludes blocks
        // of the emergency reserve and of distant memory nodes.
        unsafe {
            if slot.is_null() || raw::shim_page_ref_count(*slot) != 1 {
                let old = core::mem::replace(slot, core::ptr::null_mut());
                if !old.is_null() {
                    raw::shim_put_page(old);
                }
                let page = allocate()?;
                if raw::shim_dev_page_is_reusable(page) {
                    raw::shim_get_page(page);
                    *slot = page;
                }
                return NonNull::new(raw::shim_page_address(page).cast()).ok_or(ENOMEM);
            }
            raw::shim_get_page(*slot);
            NonNull::new(raw::shim_page_address(*slot).cast()).ok_or(ENOMEM)
        }
    }

    #[inline]
    fn take_part(&mut self, len: usize) -> Result<NonNull<u8>> {
        let len = len.max(1).checked_next_multiple_of(PART_ALIGNMENT);
        let len = len.ok_or(EINVAL)?;
        if self.left < len {
            if len > SIZE {
                return Err(EINVAL);
            }
            let block = self.take()?;
            if let Some(old) = self.divided.replace(block) {
                // SAFETY: `take` returned `old`, to which `Memory` owned a reference.
                unsafe { put(old) };
            }
            self.left = SIZE;
        }
        let block = self.divided.ok_or(ENOMEM)?; // It exists, since `len` is not 0.
        let at = SIZE.wrapping_sub(self.left);
        self.left = self.left.wrapping_sub(len);
        // SAFETY: `Memory` owns a reference to the block (its invariant), so another one can be
        // taken. The last `left` bytes of the block are unused, and `len` of them follow `at`.
        unsafe {
            raw::shim_get_page(raw::shim_virt_to_page(block.as_ptr().cast()));
            Ok(block.add(at))
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_blocks)]
mod tests {
    use super::*;
    use crate::sync::BhGuard;

    /// The module owns the only `Memory`.
    #[test]
    fn there_is_one_memory() {
        assert_eq!(Memory::new().err(), Some(EBUSY));
    }

    /// A block that was taken, remembered or new, has one owner. A block that was given back is
    /// reused.
    #[test]
    fn a_block_has_one_owner() -> Result {
        let _guard = BhGuard::new();
        let mut last = None;
        for _ in 0..2 {
            let mut taken = KVec::new();
            for number in 0..2 * REMEMBERED {
                let block = take()?;
                // SAFETY: The test owns the block, which has `SIZE` bytes.
                unsafe { block.as_ptr().write_bytes(number as u8, SIZE) };
                taken.push(block, GFP_ATOMIC)?;
            }
            for (number, block) in taken.iter().enumerate() {
                // SAFETY: The test owns the block, and all of its `SIZE` bytes were written above.
                let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), SIZE) };
                assert!(bytes.iter().all(|byte| *byte == number as u8));
            }
            if let Some(last) = last {
                assert!(taken.contains(&last));
            }
            last = taken.last().copied();
            while let Some(block) = taken.pop() {
                // SAFETY: The block was returned by `take`, and the test owns its reference.
                unsafe { put(block) };
            }
        }
        Ok(())
    }

    /// Parts are aligned and do not overlap. None is larger than a block.
    #[test]
    fn a_part_has_one_owner() -> Result {
        let _guard = BhGuard::new();
        let len = 1000;
        let mut taken = KVec::new();
        for number in 0..3 * SIZE / len {
            let part = take_part(len).ok_or(ENOMEM)?;
            assert_eq!(part.as_ptr() as usize % PART_ALIGNMENT, 0);
            // SAFETY: The test owns the part, which has `len` bytes.
            unsafe { part.as_ptr().write_bytes(number as u8, len) };
            taken.push(part, GFP_ATOMIC)?;
        }
        for (number, part) in taken.iter().enumerate() {
            // SAFETY: The test owns the part, and all of its `len` bytes were written above.
            let bytes = unsafe { core::slice::from_raw_parts(part.as_ptr(), len) };
            assert!(bytes.iter().all(|byte| *byte == number as u8));
            // SAFETY: `take_part` returned the part, which is not used again.
            unsafe { put(*part) };
        }
        assert!(take_part(SIZE + 1).is_none());
        Ok(())
    }
}
