// SPDX-License-Identifier: GPL-2.0

//! Allocation and reuse of the memory blocks that packets are made of.
//!
//! Packets that stay on this host are soon freed, while their memory is still in the cache. Each
//! CPU therefore remembers the blocks that it wrote last. It reuses the oldest one if nothing else
//! still refers to it.

use super::owner::OWNED;
use crate::{raw, sync::PerCpu};
use core::ptr::{self, NonNull};
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

/// The blocks that a CPU remembers.
///
/// # Invariants
///
/// Owns a reference to each of `blocks` and to `divided`. The last `left` bytes of `divided` are
/// unused.
#[derive(pin_init::Zeroable)]
struct Remembered {
    blocks: [Option<NonNull<u8>>; REMEMBERED],
    /// Index of the oldest block.
    next: usize,
    /// The block that [`take_part`] divides.
    divided: Option<NonNull<u8>>,
    /// Bytes of `divided` that are left, at its end.
    left: usize,
}

/// The per-CPU [`Remembered`], or null while no [`Prepared`] exists.
static MEMORY: Atomic<*mut Remembered> = Atomic::new(ptr::null_mut());

/// Per-module state for packets: reuses their memory and allows them to have owners. At most one
/// exists, and a module drops it last.
///
/// Packets can also be made without it or while it is being dropped. They then have no owners.
pub struct Prepared(PerCpu<Remembered>);

impl Prepared {
    /// Prepares the per-CPU memory. Sleeps. Returns `EBUSY` if a `Prepared` already exists.
    pub fn new() -> Result<Self> {
        // INVARIANT: The memory is zeroed: there are no blocks.
        let memory = PerCpu::zeroed(raw::GFP_KERNEL)?;
        let published = MEMORY.cmpxchg(ptr::null_mut(), memory.as_ptr(), Full);
        published.map_err(|_| EBUSY)?;
        OWNED.reopen();
        Ok(Self(memory))
    }
}

impl Drop for Prepared {
    /// Waits until no packet has an owner, and makes the CPUs release their blocks. Later packets
    /// have no owners and use new blocks. Sleeps.
    fn drop(&mut self) {
        OWNED.close();
        // A task that was preempted in a destructor after its last access has left it when
        // synchronize_rcu_tasks() (kernel/rcu/tasks.h) returns, so the code can be unloaded.
        raw::safe::shim_synchronize_rcu_tasks();
        MEMORY.store(ptr::null_mut(), Release);
        // `take` uses the memory with softirqs disabled, which is an RCU read-side section
        // (Documentation/RCU/whatisRCU.rst). After the grace period it only sees null.
        raw::safe::synchronize_rcu();
        for remembered in self.0.of_all_cpus() {
            // SAFETY: Nothing else uses the memory: `take` no longer finds it, and a grace period
            // has passed. The references are its own (type invariant), and it is freed next.
            unsafe {
                let Remembered {
                    blocks, divided, ..
                } = remembered.read();
                for block in Iterator::chain(blocks.into_iter().flatten(), divided) {
                    put(block);
                }
            }
        }
    }
}

/// Calls `f` with the blocks of this CPU. Returns `None` if they do not exist, or unless softirqs
/// are disabled outside of hard interrupts. `f` must not call this function.
#[inline]
fn with_remembered<R>(f: impl FnOnce(&mut Remembered) -> R) -> Option<R> {
    let alone = !cfg!(CONFIG_PREEMPT_RT) && raw::safe::shim_in_softirq_level();
    let memory = MEMORY.load(Acquire);
    if memory.is_null() || !alone {
        return None;
    }
    // SAFETY: Softirqs are disabled, so this is an RCU read-side section, and `Prepared` waits for
    // a grace period before it frees the memory. Nothing else uses this CPU's part: a task is not
    // preempted, no softirq runs, hard interrupts and NMIs do not get here, and the callers in this
    // file pass only methods of `Remembered`, which do not call this function.
    let remembered = unsafe { &mut *raw::shim_this_cpu_ptr(memory.cast()).cast::<Remembered>() };
    Some(f(remembered))
}

/// Returns a block, with a reference that the caller owns. Its contents are unspecified. A
/// remembered block is reused only with softirqs disabled and outside of hard interrupts. Returns
/// `ENOMEM` on failure. Any context.
#[inline]
pub(super) fn take() -> Result<NonNull<u8>> {
    with_remembered(Remembered::take).unwrap_or_else(allocate)
}

/// Returns `len` bytes of a block, with a reference to the block that the caller owns. The bytes
/// are aligned to [`PART_ALIGNMENT`], and their contents are unspecified. Returns `None` unless
/// softirqs are disabled outside of hard interrupts, and if there is no memory or `len` is more
/// than a block. Any context.
#[inline]
pub(super) fn take_part(len: usize) -> Option<NonNull<u8>> {
    with_remembered(|remembered| remembered.take_part(len)).flatten()
}

/// Releases what [`take`] or [`take_part`] returned.
///
/// # Safety
///
/// `block` was returned by one of them, and the caller still owns its reference.
pub(super) unsafe fn put(block: NonNull<u8>) {
    // SAFETY: The caller guarantees a block to which it owns a reference. `put_page`
    // (include/linux/mm.h) may be called for any page of it.
    unsafe { raw::shim_put_page(block.as_ptr().cast()) };
}

/// Allocates a block. Returns `ENOMEM` on failure.
fn allocate() -> Result<NonNull<u8>> {
    // SAFETY: __get_free_pages() may be called with any order; GFP_ATOMIC does not sleep.
    let block = unsafe { raw::shim_alloc_block(raw::GFP_ATOMIC, ORDER) };
    NonNull::new(block.cast()).ok_or(ENOMEM)
}

impl Remembered {
    #[inline]
    fn take(&mut self) -> Result<NonNull<u8>> {
        let at = self.next % REMEMBERED;
        self.next = at.wrapping_add(1);
        let slot = self.blocks.get_mut(at).ok_or(ENOMEM)?;
        if let Some(block) = *slot {
            // SAFETY: `self` owns a reference to the block (type invariant). If that is the only
            // one, nothing else can take one, and the block can be reused. Otherwise its other
            // owners free it.
            unsafe {
                if raw::shim_page_ref_count(block.as_ptr().cast()) == 1 {
                    raw::shim_get_page(block.as_ptr().cast());
                    return Ok(block);
                }
                *slot = None;
                put(block);
            }
        }
        let block = allocate()?;
        // SAFETY: The block is new. `dev_page_is_reusable()` (skbuff.h) excludes blocks of the
        // emergency reserve and of distant memory nodes.
        unsafe {
            if raw::shim_dev_page_is_reusable(block.as_ptr().cast()) {
                raw::shim_get_page(block.as_ptr().cast());
                *slot = Some(block);
            }
        }
        Ok(block)
    }

    #[inline]
    fn take_part(&mut self, len: usize) -> Option<NonNull<u8>> {
        let len = len.max(1).checked_next_multiple_of(PART_ALIGNMENT);
        let len = len.filter(|len| *len <= SIZE)?;
        let block = match self.divided {
            Some(block) if self.left >= len => block,
            old => {
                let block = self.take().ok()?;
                if let Some(old) = old {
                    // SAFETY: `take` returned `old`, to which `self` owned a reference.
                    unsafe { put(old) };
                }
                (self.divided, self.left) = (Some(block), SIZE);
                block
            }
        };
        let at = SIZE.wrapping_sub(self.left);
        self.left = self.left.wrapping_sub(len);
        // SAFETY: `self` owns a reference to the block, whose last `left` bytes are unused (type
        // invariant); `len` of them follow `at`.
        unsafe {
            raw::shim_get_page(block.as_ptr().cast());
            Some(block.add(at))
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_blocks)]
mod tests {
    use super::*;
    use crate::sync::BhGuard;

    /// The module owns the only `Prepared`.
    #[test]
    fn there_is_one_memory() {
        assert_eq!(Prepared::new().err(), Some(EBUSY));
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
