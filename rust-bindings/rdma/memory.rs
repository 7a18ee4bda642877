// SPDX-License-Identifier: GPL-2.0

//! Memory of consumers: pinned user memory, kernel memory, and rings shared with user space.
//!
//! User space may change all of it at any time, so Rust references never point into it. Accesses
//! are copies or atomic operations.

mod backing;
mod device_memory;
mod kernel_memory;
#[cfg(CONFIG_MMU_NOTIFIER)]
mod on_demand;
#[cfg(not(CONFIG_MMU_NOTIFIER))]
#[path = "memory/no_on_demand.rs"]
mod on_demand;
mod pinned;
mod shared;
#[cfg(CONFIG_KUNIT = "y")]
mod test_memory;

use crate::{
    net::{Fragment, PacketWriter},
    shared_bytes,
    sync::HAS_USER_THREADS,
};
use kernel::{page::PAGE_SIZE, prelude::*, sync::atomic::Atomic};
use pinned::PageTable;

pub use backing::{Backing, Unavailable};
pub use device_memory::{DeviceMemory, DeviceRange};
pub use kernel_memory::{KernelMemory, KernelPages};
pub use on_demand::{current_mm, OnDemand, Paging, WINDOW};
pub use pinned::{PinOwner, Pinned, Umem};
pub use shared::SharedMemory;
#[cfg(CONFIG_KUNIT = "y")]
pub use test_memory::TestMemory;

/// Whether the kernel has on-demand paging: MMU notifiers, and threads that bring pages in.
pub const HAS_ON_DEMAND_PAGING: bool = cfg!(CONFIG_MMU_NOTIFIER) && HAS_USER_THREADS;

/// `IB_ACCESS_*` flags.
pub mod access {
    #![expect(missing_docs, reason = "named as in ib_verbs.h")]
    use crate::raw;
    pub const LOCAL_WRITE: u32 = raw::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    pub const REMOTE_WRITE: u32 = raw::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
    pub const REMOTE_READ: u32 = raw::ib_access_flags_IB_ACCESS_REMOTE_READ;
    pub const REMOTE_ATOMIC: u32 = raw::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
    pub const FLUSH_GLOBAL: u32 = raw::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL;
    pub const FLUSH_PERSISTENT: u32 = raw::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT;
    pub const HUGETLB: u32 = raw::ib_access_flags_IB_ACCESS_HUGETLB;
    pub const ON_DEMAND: u32 = raw::ib_access_flags_IB_ACCESS_ON_DEMAND;
    pub const MW_BIND: u32 = raw::ib_access_flags_IB_ACCESS_MW_BIND;
    pub const ZERO_BASED: u32 = raw::ib_access_flags_IB_ZERO_BASED;
    /// Flags that a device may ignore, such as relaxed ordering.
    pub(crate) const OPTIONAL: u32 = raw::ib_access_flags_IB_ACCESS_OPTIONAL;
    /// Flags that require memory to which the process may write (`ib_access_writable()` in
    /// ib_verbs.h).
    pub const WRITABLE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
}

/// The bytes that reads of memory without contents find.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Access to memory of a consumer, which may change at any time.
///
/// # Invariants
///
/// While this exists, the memory stays at its place in the direct map: it is pinned, or a kernel
/// consumer guarantees it. A page of memory that is not pinned stays there from its look-up on.
/// [`Place::Null`] has no memory.
#[derive(Clone, Copy)]
pub struct MappedMemory<'a>(Place<'a>);

/// The place of memory in the direct map.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The addresses in a table.
    Pages(&'a PageTable),
    /// An address and a length. The memory is writable.
    Contiguous(usize, u64),
    /// Pages that may be absent, and are looked up in each access.
    OnDemand(&'a OnDemand),
    /// No memory: reads find zeroes, and writes are discarded.
    Null,
}

impl<'a> MappedMemory<'a> {
    /// Returns memory of any length without contents (`ibv_alloc_null_mr(3)`): reads find zeroes,
    /// and writes are discarded.
    #[inline]
    pub fn null() -> Self {
        // INVARIANT: There is no memory but the static `ZEROES`.
        Self(Place::Null)
    }

    /// Returns the address of byte `offset`, and how many of the following `len` bytes are
    /// contiguous. Returns `EFAULT` if the range extends past the end, or `EAGAIN` if the page is
    /// absent or, to `write`, not writable now.
    #[inline]
    fn piece(&self, offset: u64, len: usize, write: bool) -> Result<(*mut u8, usize)> {
        match self.0 {
            Place::Pages(table) => table.piece(offset, len).ok_or(EFAULT),
            Place::Contiguous(start, size) => {
                let end = offset.checked_add(len as u64).ok_or(EFAULT)?;
                let address = start.wrapping_add(offset as usize) as *mut u8;
                (end <= size).then_some((address, len)).ok_or(EFAULT)
            }
            Place::OnDemand(memory) => memory.piece(offset, len, write),
            Place::Null => {
                debug_assert!(!write, "there is nothing to write to");
                Ok((ZEROES.as_ptr().cast_mut(), len.min(ZEROES.len())))
            }
        }
    }

    /// Returns the size in bytes, and whether the memory may be written to.
    #[inline]
    fn properties(&self) -> (u64, bool) {
        match self.0 {
            Place::Pages(table) => (table.len, table.writable),
            Place::Contiguous(_, size) => (size, true),
            Place::OnDemand(memory) => memory.properties(),
            Place::Null => (u64::MAX, false),
        }
    }

    /// Calls `f` for each contiguous piece of `len` bytes at `offset`, with the bytes before it in
    /// the range. Returns `EFAULT`, without a call, if the range is not inside the memory. Returns
    /// `EAGAIN` at the first page that is absent or, to `write`, not writable now.
    #[inline]
    fn for_each(
        &self,
        offset: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result {
        let end = offset.checked_add(len as u64).ok_or(EFAULT)?;
        if end > self.properties().0 {
            return Err(EFAULT);
        }
        let mut done = 0;
        while done < len {
            // The range was checked, so the offset does not wrap around.
            let here = offset.wrapping_add(done as u64);
            let (p, n) = self.piece(here, len.wrapping_sub(done), write)?;
            f(p, done, n);
            done = done.wrapping_add(n);
        }
        Ok(())
    }

    /// Appends `len` bytes at `offset` to `to`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: they are not inside the memory. `EMSGSIZE`: there is no space for them. `EAGAIN`:
    /// some are absent; those before them may have been appended.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, to: &mut PacketWriter<'_>) -> Result {
        if len > to.left() {
            return Err(EMSGSIZE);
        }
        self.fragments(offset, len, |fragment| {
            // There is space, because the pieces add up to `len`.
            let _ = to.push_fragment(&fragment);
        })
    }

    /// Calls `f` in order for each piece of `len` bytes at `offset`. Returns `EFAULT` if they are
    /// not inside the memory, or `EAGAIN` at the first piece that is absent.
    #[inline]
    pub fn fragments(&self, offset: u64, len: usize, mut f: impl FnMut(Fragment<'_>)) -> Result {
        self.for_each(offset, len, false, |p, _, n| {
            // SAFETY: While `self` exists, the memory stays at its place (type invariant), and each
            // piece is inside it. `f` cannot keep a fragment.
            f(unsafe { Fragment::new(p, n) })
        })
    }

    /// Copies bytes to `offset`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the range is not inside the memory or is read-only. `EAGAIN`: a part of it is
    /// absent; the bytes before that part may have been copied.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        self.write_fragment(offset, &Fragment::of(from))
    }

    /// Copies a fragment of a received packet to `offset`. Fails as [`MappedMemory::write`] does.
    #[inline]
    pub fn write_fragment(&self, offset: u64, from: &Fragment<'_>) -> Result {
        if !self.properties().1 {
            return matches!(self.0, Place::Null).then_some(()).ok_or(EFAULT);
        }
        self.for_each(offset, from.len(), true, |p, done, n| {
            // SAFETY: The memory stays at its place (type invariant), is writable, and each piece
            // is inside it. The fragment is valid for reads of its length, to which the pieces add
            // up. A program of this host may write to it during the copy, and it may even overlap
            // this memory; any value is a valid byte.
            unsafe { shared_bytes::copy_polled(p, from.as_ptr().add(done), n) }
        })
    }

    /// Returns the 64-bit word at `offset` for modification.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the word is not inside the memory, or is read-only, or there is no memory.
    /// `EINVAL`: it is not naturally aligned. `EAGAIN`: it is absent.
    pub fn word(&self, offset: u64) -> Result<&'a Atomic<u64>> {
        if !self.properties().1 {
            return Err(EFAULT);
        }
        let end = offset.checked_add(8).ok_or(EFAULT)?;
        if end > self.properties().0 {
            return Err(EFAULT);
        }
        match self.piece(offset, 8, true)? {
            (p, 8) if p as usize & 7 == 0 => {
                // SAFETY: These are eight aligned bytes of memory that stays at its place (type
                // invariant). Others, including user space, may change an `Atomic`; the CPU
                // serializes their atomic instructions.
                Ok(unsafe { Atomic::from_ptr(p.cast::<u64>()) })
            }
            _ => Err(EINVAL),
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_memory)]
mod tests {
    use super::*;
    use crate::sync::BurstGuard;
    use kernel::sync::atomic::Relaxed;

    /// Read-only memory rejects writes, whatever the driver requests.
    #[test]
    fn memory_is_as_it_was_pinned() -> Result {
        for writable in [false, true] {
            let mut words = KVec::from_elem(0u64, 2, GFP_KERNEL)?;
            let mut blocks = KVVec::new();
            blocks.push(words.as_mut_ptr() as usize, GFP_KERNEL)?;
            let table = PageTable {
                blocks,
                shift: 4,
                offset: 0,
                len: 16,
                writable,
            };
            // INVARIANT: The words are at the address in the table.
            let memory = MappedMemory(Place::Pages(&table));
            assert_eq!(memory.write(8, &[1; 8]).is_ok(), writable);
            assert_eq!(memory.word(0).is_ok(), writable);
            let second = memory.word(8).map_or(0, |word| word.load(Relaxed));
            let written = second != 0;
            assert_eq!(written, writable);
        }
        Ok(())
    }

    /// Memory without contents reads as zeroes, keeps no data, and has no word for an atomic
    /// operation.
    #[test]
    fn memory_without_contents() -> Result {
        let null = MappedMemory::null();
        for (offset, len) in [(5, 3 * 4096), (u64::MAX - 1, 1), (0, 0)] {
            assert!(null.write(offset, &[1; 8]).is_ok());
            let (mut bytes, mut zeroes) = (0, true);
            null.fragments(offset, len, |fragment| {
                let mut copy = [1u8; 4096];
                let n = fragment.len().min(copy.len());
                // SAFETY: The fragment is valid for reads of its length, and the array is private.
                unsafe { shared_bytes::copy(copy.as_mut_ptr(), fragment.as_ptr(), n) };
                bytes += fragment.len();
                zeroes &= copy
                    .get(..n)
                    .is_some_and(|copy| copy.iter().all(|&b| b == 0));
            })?;
            assert_eq!((bytes, zeroes), (len, true));
        }
        assert_eq!(null.word(0).err(), Some(EFAULT));
        assert_eq!(null.fragments(u64::MAX, 1, |_| {}).err(), Some(EFAULT));
        Ok(())
    }

    /// Access ends at the length that the work request gives.
    #[test]
    fn access_to_kernel_memory_ends() -> Result {
        let mut words = KVec::from_elem(0u64, 2, GFP_KERNEL)?;
        let (memory, burst) = (KernelMemory::new(), BurstGuard::enter());
        // SAFETY: The words outlive the access, which is shorter than they are.
        let access = unsafe { memory.access(&burst, words.as_mut_ptr() as u64, 12) };
        let (part, _) = access.map_err(|_| EFAULT)?;
        assert!(part.write(4, &[1; 8]).is_ok());
        assert_eq!(part.write(5, &[1; 8]).err(), Some(EFAULT));
        assert_eq!(part.write(u64::MAX, &[1; 8]).err(), Some(EFAULT));
        assert!(part.word(0).is_ok());
        assert_eq!(part.word(4).err(), Some(EINVAL));
        assert_eq!(part.word(8).err(), Some(EFAULT));
        Ok(())
    }
}
