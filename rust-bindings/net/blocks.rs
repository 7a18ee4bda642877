// SPDX-License-Identifier: GPL-2.0

//! Memory of packets, in blocks that are used again.
//!
//! What stays on this host is soon consumed, and then its memory is warm: each CPU remembers the blocks that it has last written,
//! and takes the oldest again, if nobody else has it any more.

use crate::{raw, sync::synchronize_rcu};
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full, Release},
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

/// Has the CPUs remember blocks as long as it exists. There is one at most.
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
    /// Allocates the memory. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is one already. `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let (size, align) = (size_of::<Remembered>(), align_of::<Remembered>());
        // SAFETY: Any size may be asked for. The memory is zeroed (mm/percpu.c), which is no page.
        let memory = unsafe { raw::shim_alloc_percpu(size, align, raw::GFP_KERNEL) };
        let memory = NonNull::<Remembered>::new(memory.cast()).ok_or(ENOMEM)?;
        if MEMORY.cmpxchg(0, memory.as_ptr() as usize, Full).is_err() {
            // SAFETY: Allocated just above, and nobody else has it.
            unsafe { raw::free_percpu(memory.as_ptr().cast()) };
            return Err(EBUSY);
        }
        // INVARIANT: Allocated just above; all pages are null.
        Ok(Self { memory })
    }
}

impl Drop for Memory {
    /// Has the CPUs forget their blocks. Packets that are made afterwards take new ones. Sleeps.
    fn drop(&mut self) {
        MEMORY.store(0, Release);
        // `take` uses the memory with softirqs disabled, which is an RCU read-side section
        // (Documentation/RCU/whatisRCU.rst): from here on it sees 0.
        synchronize_rcu();
        // SAFETY: Reads a number that is set at boot (lib/cpumask.c).
        let cpus = unsafe { raw::shim_nr_cpu_ids() };
        for cpu in 0..cpus {
            // SAFETY: The CPU is possible if its memory is looked at, which exists by the type
            // invariant. Nobody else uses it: `take` does not find it, and a grace period has
            // passed.
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
        // SAFETY: `__alloc_percpu()` returned it, by the type invariant, and nobody uses it: see
        // above.
        unsafe { raw::free_percpu(self.memory.as_ptr().cast()) };
    }
}

/// Takes a block, with a reference that is the caller's; its bytes are whatever they are. Only with
/// softirqs disabled, and outside of hard interrupts, it can be one that this CPU remembers. Any
/// context.
///
/// # Errors
///
/// `ENOMEM`.
#[inline]
pub(super) fn take() -> Result<NonNull<u8>> {
    #[cfg(not(CONFIG_PREEMPT_RT))]
    {
        // SAFETY: Reads the preemption count, in any context (include/linux/preempt.h).
        let alone = unsafe { raw::shim_in_softirq_level() };
        let memory = MEMORY.load(Acquire);
        if memory != 0 && alone {
            // SAFETY: `Memory` allocated it, and waits for a grace period before it frees it:
            // softirqs are disabled here, and so this is an RCU read-side section. Nobody else uses
            // this CPU's part: with softirqs disabled a task is not preempted and no softirq runs,
            // and hard interrupts and NMIs do not come here. `Remembered::take` does not call this
            // function.
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
        self.next = at.wrapping_add(1);
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

    /// The module has the one memory that there is.
    #[test]
    fn there_is_one_memory() {
        assert_eq!(Memory::new().err(), Some(EBUSY));
    }

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
