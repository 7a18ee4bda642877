// SPDX-License-Identifier: GPL-2.0

//! Memory of packets, in blocks that are used again.
//!
//! What stays on this host is soon consumed, and then its memory is warm: each CPU remembers the blocks that it has last written,
//! and takes the oldest again, if nobody else has it any more.

use crate::raw;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// Pages of a block, as a power of 2: the largest that the page allocator keeps for each CPU (`PAGE_ALLOC_COSTLY_ORDER`).
const ORDER: u32 = 3;

/// Bytes of a block: 32 KiB.
pub(super) const SIZE: usize = PAGE_SIZE << ORDER;

/// Blocks that a CPU remembers: half a MiB, which is more than a batch.
const REMEMBERED: usize = 16;

/// What a CPU remembers. All zeros at first.
#[repr(C)]
struct Remembered {
    /// References of its own.
    pages: [*mut kernel::bindings::page; REMEMBERED],
    /// The oldest.
    next: usize,
}

/// What the CPUs remember, as a number; 0 where they don't.
static MEMORY: Atomic<usize> = Atomic::new(0);

/// Has the CPUs remember blocks, as long as it exists.
///
/// # Invariants
///
/// `memory` is what `__alloc_percpu` returned for [`Remembered`], and each of its pages is null or a block with a reference.
pub(super) struct Memory {
    memory: NonNull<Remembered>,
}

// SAFETY: Memory of all CPUs, which belongs to no thread.
unsafe impl Send for Memory {}
// SAFETY: Nothing is done by a reference.
unsafe impl Sync for Memory {}

impl Memory {
    /// There must not be another one. Sleeps. `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let (size, align) = (size_of::<Remembered>(), align_of::<Remembered>());
        // SAFETY: Any size may be asked for. The memory is zeroed (mm/percpu.c), which is no page.
        let memory = unsafe { raw::shim_alloc_percpu(size, align, raw::GFP_KERNEL) };
        let memory = NonNull::new(memory.cast()).ok_or(ENOMEM)?;
        MEMORY.store(memory.as_ptr() as usize, Release);
        // INVARIANT: Allocated just above.
        Ok(Self { memory })
    }
}

impl Drop for Memory {
    /// To be called when no packets are made any more.
    fn drop(&mut self) {
        MEMORY.store(0, Release);
        // SAFETY: Reads a number that is set at boot (lib/cpumask.c).
        let cpus = unsafe { raw::shim_nr_cpu_ids() };
        for cpu in 0..cpus {
            // SAFETY: The CPU is possible where we look at its memory, which exists by the type invariant, and nobody else
            // uses.
            let remembered = unsafe {
                if !raw::shim_cpu_possible(cpu) {
                    continue;
                }
                &*raw::shim_per_cpu_ptr(self.memory.as_ptr().cast(), cpu).cast::<Remembered>()
            };
            for page in remembered.pages.iter().filter(|page| !page.is_null()) {
                // SAFETY: The reference is ours by the type invariant.
                unsafe { raw::shim_put_page(*page) };
            }
        }
        // SAFETY: By the type invariant; nobody uses it.
        unsafe { raw::free_percpu(self.memory.as_ptr().cast()) };
    }
}

/// A block, with a reference that is the caller's; its bytes are whatever they are. Any context. `ENOMEM`.
#[inline]
pub(super) fn take() -> Result<NonNull<u8>> {
    #[cfg(not(CONFIG_PREEMPT_RT))]
    {
        let memory = MEMORY.load(Acquire);
        // SAFETY: Any context. Whoever has disabled softirqs is not preempted, nor interrupted by another of these.
        if memory != 0 && unsafe { raw::shim_softirq_count() } != 0 {
            // SAFETY: It is memory of this CPU (the invariant of `Memory`), which nobody else uses, as said.
            let remembered =
                unsafe { &mut *raw::shim_this_cpu_ptr(memory as *mut _).cast::<Remembered>() };
            return remembered.take();
        }
    }
    let page = allocate()?;
    // SAFETY: A page that `allocate` returned.
    NonNull::new(unsafe { raw::shim_page_address(page) }.cast()).ok_or(ENOMEM)
}

/// Gives back what [`take`] gave.
///
/// # Safety
///
/// `block` is from `take`, and its reference has not been given away.
pub(super) unsafe fn give_back(block: NonNull<u8>) {
    // SAFETY: The caller promises a block with a reference.
    unsafe { raw::shim_put_page(raw::shim_virt_to_page(block.as_ptr().cast())) };
}

fn allocate() -> Result<*mut kernel::bindings::page> {
    // SAFETY: Any order may be asked for.
    let page = unsafe { raw::shim_alloc_pages(raw::GFP_ATOMIC, ORDER) };
    Some(page).filter(|page| !page.is_null()).ok_or(ENOMEM)
}

impl Remembered {
    #[inline]
    fn take(&mut self) -> Result<NonNull<u8>> {
        let at = self.next % REMEMBERED;
        self.next = at + 1;
        let Some(slot) = self.pages.get_mut(at) else {
            return Err(ENOMEM);
        };
        // SAFETY: What is remembered is a block with a reference of ours (invariant of `Memory`). If that is the only one, nobody
        // can take another: the block is ours. If not, its other owners free it. Blocks of a reserve or from far away are
        // not remembered.
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
}

#[kernel::prelude::kunit_tests(linux_rdma_blocks)]
mod tests {
    use super::*;
    use crate::sync::BhGuard;

    /// What is taken is nobody else's, whether it is remembered or new; what has been given back is taken again.
    #[test]
    fn a_block_has_one_owner() -> Result {
        let _guard = BhGuard::new();
        let mut last = None;
        for _ in 0..2 {
            let mut taken = KVec::new();
            for number in 0..2 * REMEMBERED {
                let block = take()?;
                // SAFETY: A block of so many bytes, which is ours.
                unsafe { block.as_ptr().write_bytes(number as u8, SIZE) };
                taken.push(block, GFP_ATOMIC)?;
            }
            for (number, block) in taken.iter().enumerate() {
                // SAFETY: As above; all bytes were written.
                let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), SIZE) };
                assert!(bytes.iter().all(|byte| *byte == number as u8));
            }
            if let Some(last) = last {
                assert!(taken.contains(&last));
            }
            last = taken.last().copied();
            while let Some(block) = taken.pop() {
                // SAFETY: From `take`, and its reference is ours.
                unsafe { give_back(block) };
            }
        }
        Ok(())
    }
}
