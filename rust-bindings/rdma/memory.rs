// SPDX-License-Identifier: GPL-2.0

//! Memory of consumers: pinned user memory, kernel memory, and rings shared with user space.
//!
//! User space may change all of it at any time, so Rust references never point into it. Accesses
//! are copies or atomic operations.

use super::{device::Device, object::Driver};
use crate::{
    net::{Fragment, PacketWriter},
    raw, shared_bytes,
    sync::synchronize_rcu_expedited,
    vector::{self, Vector},
};
use core::{
    marker::PhantomData,
    mem::{size_of, MaybeUninit},
    ptr::{self, NonNull},
};
use kernel::{
    alloc::flags::{GFP_KERNEL_ACCOUNT, __GFP_ZERO},
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        rcu, Arc,
    },
    transmute::{AsBytes, FromBytes},
};

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
    pub const MW_BIND: u32 = raw::ib_access_flags_IB_ACCESS_MW_BIND;
    pub const ZERO_BASED: u32 = raw::ib_access_flags_IB_ZERO_BASED;
    /// Flags that a device may ignore, such as relaxed ordering.
    pub(crate) const OPTIONAL: u32 = raw::ib_access_flags_IB_ACCESS_OPTIONAL;
    /// Flags that require memory to which the process may write (`ib_access_writable()` in
    /// ib_verbs.h).
    pub(super) const WRITABLE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
}

/// User memory that is pinned and charged to its process (`struct ib_umem`).
///
/// Must be dropped in process context, because unpinning may sleep.
pub struct Umem(NonNull<raw::ib_umem>);

// SAFETY: Any task may call ib_umem_release() (umem.c keeps the owner's mm).
unsafe impl Send for Umem {}
// SAFETY: Shared references only read fields that never change.
unsafe impl Sync for Umem {}

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

    /// Returns the address and the length in bytes of the pinned memory.
    fn range(&self) -> (u64, usize) {
        // SAFETY: `self` owns the umem, and neither field changes (umem.c).
        unsafe {
            let umem = self.0.as_ptr();
            ((*umem).address as u64, (*umem).length)
        }
    }

    /// Returns whether the memory was pinned for writing.
    fn is_writable(&self) -> bool {
        // SAFETY: `self` owns the umem, and the field does not change (umem.c).
        unsafe { (*self.0.as_ptr()).writable() != 0 }
    }

    /// Lists the memory in blocks of the largest page size that fits.
    fn page_table(&self) -> Result<PageTable> {
        self.blocks(usize::MAX & !(PAGE_SIZE - 1))
    }

    /// Lists the memory in blocks of the largest fitting size in the bitmap `sizes`.
    fn blocks(&self, sizes: usize) -> Result<PageTable> {
        let umem = self.0.as_ptr();
        // SAFETY: `self` owns the umem. The "virtual address" for which the block size is chosen is
        // the memory's own address, so the page size always fits.
        let (block, offset, len, sgl, nents) = unsafe {
            let addr = (*umem).address;
            let block = raw::ib_umem_find_best_pgsz(umem, sizes, addr as u64);
            let sgt = &(*umem).sgt_append.sgt;
            (
                block,
                addr & (block.wrapping_sub(1)),
                (*umem).length,
                sgt.sgl,
                sgt.nents,
            )
        };
        if !block.is_power_of_two() {
            return Err(EINVAL);
        }
        let shift = block.trailing_zeros();
        // The block size is not 0, so it has a mask of lower bits.
        let below = block.wrapping_sub(1);
        let count = (offset.checked_add(len).ok_or(EINVAL)?)
            .checked_add(below)
            .ok_or(EINVAL)?
            >> shift;
        let mut table = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut iter = MaybeUninit::<raw::ib_block_iter>::zeroed();
        // SAFETY: __rdma_block_iter_start() (verbs.c) initializes `iter`, which only
        // __rdma_block_iter_next() uses afterwards. The scatter list lives as long as the umem. If
        // the memory begins in the middle of a block of pages, so does the first scatter entry, and
        // the iteration aligns down.
        unsafe {
            raw::__rdma_block_iter_start(iter.as_mut_ptr(), sgl, nents, block);
            (*iter.as_mut_ptr()).__sg_advance =
                (((*umem).address & (PAGE_SIZE - 1)) & !below) as u32;
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
            shift,
            offset,
            len: len as u64,
            writable: self.is_writable(),
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
struct PageTable {
    blocks: KVVec<usize>,
    shift: u32,
    /// Offset of the first byte in the first block.
    offset: usize,
    len: u64,
    /// Whether the memory may be written to.
    writable: bool,
}

impl PageTable {
    /// Returns the address of byte `offset`, and how many of the following `len` bytes are
    /// contiguous. Returns `None` if the range extends past the end.
    #[inline]
    fn span(&self, offset: u64, len: usize) -> Option<(*mut u8, usize)> {
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

    /// Calls `f` for each contiguous piece of the range.
    ///
    /// # Safety
    ///
    /// The memory is at the addresses in the table.
    #[inline]
    unsafe fn for_each(
        &self,
        mut offset: u64,
        mut len: usize,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result {
        let mut done = 0;
        // Check the whole range first, so that nothing is copied if it does not fit.
        if offset.checked_add(len as u64).ok_or(EFAULT)? > self.len {
            return Err(EFAULT);
        }
        while len != 0 {
            let (p, n) = self.span(offset, len).ok_or(EFAULT)?;
            f(p, done, n);
            // `n` is at most the remaining part of the range, which was checked.
            done = n.wrapping_add(done);
            offset = offset.wrapping_add(n as u64);
            len = len.saturating_sub(n);
        }
        Ok(())
    }
}

/// Pinned user memory for RCU readers: its page table, and whether it is still pinned.
///
/// The [`PinOwner`] unpins the memory.
pub struct Pinned {
    table: PageTable,
    /// Nonzero until the owner begins to unpin the memory.
    pinned: Atomic<u32>,
}

impl Pinned {
    /// Returns the size of the memory in bytes.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Returns access to the memory under the RCU read lock, or `None` once it is being unpinned.
    #[inline]
    pub fn access<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<MappedMemory<'a>> {
        // INVARIANT: The memory is pinned. The owner clears `pinned` and then waits for a grace
        // period before it unpins the memory. The grace period includes any reader that still sees
        // it set.
        (self.pinned.load(Acquire) != 0).then_some(MappedMemory(&self.table))
    }
}

/// The owner of [`Pinned`] memory. Dropping it unpins the memory, which sleeps.
pub struct PinOwner {
    shared: Arc<Pinned>,
    umem: Umem,
}

impl PinOwner {
    /// Shares pinned memory with RCU readers.
    pub fn new(umem: Umem) -> Result<Self> {
        let shared = Arc::new(
            Pinned {
                table: umem.page_table()?,
                pinned: Atomic::new(1),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self { shared, umem })
    }

    /// Returns the address in the process and the length in bytes of the memory.
    pub fn range(&self) -> (u64, usize) {
        self.umem.range()
    }

    /// Returns whether the memory, as pinned, can be given all of these `IB_ACCESS_*` rights.
    pub fn allows(&self, access: u32) -> bool {
        access & access::WRITABLE == 0 || self.umem.is_writable()
    }

    /// Returns the part that readers share.
    pub fn shared(&self) -> &Arc<Pinned> {
        &self.shared
    }
}

impl Drop for PinOwner {
    fn drop(&mut self) {
        self.shared.pinned.store(0, Release);
        // Expedited, because a program waits in DEREG_MR. The grace period keeps a late packet from
        // writing to memory that the program may already use for something else.
        synchronize_rcu_expedited();
    }
}

/// Access to the memory of a page table.
///
/// # Invariants
///
/// While this exists, the memory is in the direct map at the addresses in the table: it is pinned,
/// or a kernel consumer guarantees it.
#[derive(Clone, Copy)]
pub struct MappedMemory<'a>(&'a PageTable);

impl<'a> MappedMemory<'a> {
    /// Appends `len` bytes at `offset` to `to`. Returns `EFAULT` if they are not inside the memory,
    /// or `EMSGSIZE` if there is no room for them.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, to: &mut PacketWriter<'_>) -> Result {
        if len > to.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: The memory is at the addresses in the table (type invariant), and each piece is
        // inside it. User space may write to it during the copy; any value is a valid byte.
        unsafe {
            self.0.for_each(offset, len, |p, _, n| {
                // There is room, because the pieces add up to `len`.
                let _ = to.push_raw(p, n);
            })
        }
    }

    /// Calls `f` in order for each piece of `len` bytes at `offset`. Returns `EFAULT` if they are
    /// not inside the memory.
    #[inline]
    pub fn fragments(
        &self,
        offset: u64,
        len: usize,
        vector: &Vector,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        // SAFETY: While `self` exists, the memory is at the addresses in the table (type
        // invariant), and each piece is inside it. `f` cannot keep a fragment.
        unsafe {
            self.0
                .for_each(offset, len, |p, _, n| f(Fragment::new(p, n, vector)))
        }
    }

    /// Copies bytes to `offset`. Returns `EFAULT` if the range is not inside the memory or is
    /// read-only.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        // SAFETY: The slice is valid for reads of its length.
        unsafe { self.write_from(offset, from.as_ptr(), from.len(), &Vector::new()) }
    }

    /// Copies a fragment of a received packet to `offset`. Returns `EFAULT` if the range is not
    /// inside the memory or is read-only.
    #[inline]
    pub fn write_fragment(&self, offset: u64, from: &Fragment<'_>) -> Result {
        // SAFETY: The fragment is valid for reads of its length. A program of this host may write
        // to it during the copy, and it may even overlap this memory; any value is a valid byte.
        unsafe { self.write_from(offset, from.as_ptr(), from.len(), from.vector()) }
    }

    /// # Safety
    ///
    /// `src` is valid for reads of `len` bytes.
    #[inline]
    unsafe fn write_from(
        &self,
        offset: u64,
        src: *const u8,
        len: usize,
        vector: &Vector,
    ) -> Result {
        if !self.0.writable {
            return Err(EFAULT);
        }
        // SAFETY: The memory is at the addresses in the table (type invariant) and writable, and
        // each piece is inside it. `src + done` is valid for `n` bytes, because the pieces add up
        // to `len`.
        unsafe {
            self.0.for_each(offset, len, |p, done, n| {
                vector::copy_within(vector, p, src.add(done), n)
            })
        }
    }

    /// Returns the 64-bit word at `offset` for modification.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the word is not inside the memory, or is read-only. `EINVAL`: it is not naturally
    /// aligned.
    pub fn word(&self, offset: u64) -> Result<Word<'a>> {
        if !self.0.writable {
            return Err(EFAULT);
        }
        match self.0.span(offset, 8).ok_or(EFAULT)? {
            (p, 8) if p as usize & 7 == 0 => {
                // SAFETY: These are eight aligned bytes of memory that stays valid (type
                // invariant). Others, including user space, may change an `Atomic`; the CPU
                // serializes their atomic instructions.
                Ok(Word(unsafe { Atomic::from_ptr(p.cast::<u64>()) }))
            }
            _ => Err(EINVAL),
        }
    }
}

/// A naturally aligned 64-bit word of a consumer's memory, for atomics.
pub struct Word<'a>(&'a Atomic<u64>);

impl Word<'_> {
    /// Stores the word with a single access, after all earlier writes.
    pub fn store(self, value: u64) {
        self.0.store(value, Release);
    }

    /// Atomically replaces the word with `swap` if it equals `compare`. Returns the old value.
    pub fn compare_swap(self, compare: u64, swap: u64) -> u64 {
        match self.0.cmpxchg(compare, swap, Full) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Atomically adds to the word. Returns the old value.
    pub fn fetch_add(self, addend: u64) -> u64 {
        self.0.fetch_add(addend, Full)
    }
}

/// All kernel memory, by address: the region that the L_Key of `get_dma_mr` names.
///
/// Only kernel consumers use it. They are trusted to name only their own memory.
pub struct KernelMemory(());

/// Memory that a kernel consumer has named by an address.
///
/// # Invariants
///
/// The `len` bytes at `start` are valid for reads and writes for `'a`, but may change concurrently.
pub struct KernelSpan<'a> {
    start: *mut u8,
    len: u64,
    _memory: PhantomData<&'a KernelMemory>,
}

impl KernelMemory {
    /// Creates the memory for the region of a kernel consumer.
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Returns the `len` bytes at address `addr`.
    ///
    /// # Safety
    ///
    /// A kernel consumer has posted a work request that names these bytes with the L_Key of this
    /// region, and the work request does not complete while the span exists. The consumer thereby
    /// guarantees that they are in the direct map and stay there (ib_verbs.h, `ib_dma_map_single()`
    /// without a DMA device).
    #[inline]
    pub unsafe fn span(&self, addr: u64, len: u64) -> KernelSpan<'_> {
        // INVARIANT: The caller guarantees that the bytes stay valid while the span exists.
        KernelSpan {
            start: addr as usize as *mut u8,
            len,
            _memory: PhantomData,
        }
    }
}

impl<'a> KernelSpan<'a> {
    /// Returns the address of the `len` bytes at `offset`, or `EFAULT` if they are not inside the
    /// span.
    #[inline]
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.start.wrapping_add(offset as usize)),
            _ => Err(EFAULT),
        }
    }

    /// Appends `len` bytes at `offset` to `to`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the range is not inside the span. `EMSGSIZE`: there is no room for the bytes.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, to: &mut PacketWriter<'_>) -> Result {
        let from = self.place(offset, len)?;
        // SAFETY: `place` has checked the range, and the span is valid for reads by the type
        // invariant.
        unsafe { to.push_raw(from, len) }
    }

    /// Copies bytes to `offset`. Returns `EFAULT` if the range is not inside the span.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        let to = self.place(offset, from.len())?;
        // SAFETY: `place` has checked the range, and the span is valid for writes by the type
        // invariant. The slice is private memory of the kernel and does not overlap a consumer's.
        unsafe { vector::copy(&Vector::new(), to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies a fragment of a received packet to `offset`. Returns `EFAULT` if the range is not
    /// inside the span.
    #[inline]
    pub fn write_fragment(&self, offset: u64, from: &Fragment<'_>) -> Result {
        let to = self.place(offset, from.len())?;
        // SAFETY: By the type invariants, the fragment is valid for reads of its length and the
        // destination for writes.
        unsafe { vector::copy_within(from.vector(), to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Returns the 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the word is not inside the span. `EINVAL`: it is not naturally aligned.
    pub fn word(&self, offset: u64) -> Result<Word<'a>> {
        let at = self.place(offset, 8)?;
        if at as usize & 7 != 0 {
            return Err(EINVAL);
        }
        // SAFETY: These are eight aligned bytes of the span, valid for `'a` by the type invariant.
        // The CPU serializes atomics with the instructions through which others change the bytes.
        Ok(Word(unsafe { Atomic::from_ptr(at.cast::<u64>()) }))
    }
}

/// Memory of a kernel consumer in pages of one size, mapped for a fast registration.
pub struct KernelPages {
    table: PageTable,
}

impl KernelPages {
    /// Allocates room for `count` pages.
    pub fn with_capacity(count: usize) -> Result<Self> {
        Ok(Self {
            table: PageTable {
                blocks: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
                shift: 0,
                offset: 0,
                len: 0,
                writable: true,
            },
        })
    }

    /// Returns the size of the mapping in bytes.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Removes the mapping.
    pub fn clear(&mut self) {
        self.table.blocks.clear();
        self.table.len = 0;
    }

    /// Adds a page. Returns `ENOMEM` if there is no room.
    pub fn push(&mut self, address: u64) -> Result {
        if self.table.blocks.len() >= self.table.blocks.capacity() {
            return Err(ENOMEM);
        }
        self.table
            .blocks
            .push_within_capacity(usize::try_from(address)?)?;
        Ok(())
    }

    /// Completes the mapping: `len` bytes, the first of which has this address. Returns `EINVAL` if
    /// that is more than the pages hold.
    pub fn finish(&mut self, address: u64, len: u64, page_size: u32) -> Result {
        if !page_size.is_power_of_two() {
            return Err(EINVAL);
        }
        let shift = page_size.trailing_zeros();
        let offset = address & u64::from(page_size.wrapping_sub(1));
        let room = (self.table.blocks.len() as u64) << shift;
        if offset.checked_add(len).is_none_or(|end| end > room) {
            return Err(EINVAL);
        }
        self.table.shift = shift;
        self.table.offset = usize::try_from(offset)?;
        self.table.len = len;
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
        MappedMemory(&self.table)
    }
}

/// Memory that a program and the kernel access concurrently: a ring.
///
/// Must be dropped in process context.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// The user's pages, mapped contiguously.
    User { _umem: Umem },
    /// Kernel memory.
    Kernel { _buffer: KVVec<u64> },
}

// SAFETY: The memory is only accessed through raw pointers and atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: Shared references only use volatile accesses, C copies and atomics.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Pins and maps `len` bytes at the page-aligned address `addr` of the current process.
    pub fn from_user<D: Driver>(device: &Device<D>, addr: u64, len: usize) -> Result<Self> {
        if addr as usize % PAGE_SIZE != 0 || len == 0 {
            return Err(EINVAL);
        }
        let umem = Umem::get(device, addr, len, access::LOCAL_WRITE)?;
        let table = umem.blocks(PAGE_SIZE)?;
        let mut pages = KVVec::with_capacity(table.blocks.len(), GFP_KERNEL_ACCOUNT)?;
        for &block in &table.blocks {
            // SAFETY: `block` is the address of a pinned page in the direct map.
            let page = unsafe { raw::shim_virt_to_page(block as *const _) };
            pages.push(page, GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: `pages` has the given number of pages, pinned by `umem`, which is dropped after
        // vunmap().
        let base = unsafe { raw::shim_vmap(pages.as_mut_ptr(), pages.len() as u32) };
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(ENOMEM)?,
            len,
            backing: Backing::User { _umem: umem },
        })
    }

    /// Allocates zeroed memory for a kernel consumer.
    pub fn for_kernel(len: usize) -> Result<Self> {
        let words = len.div_ceil(size_of::<u64>());
        let mut buffer = KVVec::<u64>::with_capacity(words, GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
        Ok(Self {
            base: NonNull::new(buffer.as_mut_ptr().cast()).ok_or(ENOMEM)?,
            len,
            backing: Backing::Kernel { _buffer: buffer },
        })
    }

    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        // The base is page- or word-aligned.
        if end > self.len || offset & core::mem::align_of::<T>().wrapping_sub(1) != 0 {
            return None;
        }
        // SAFETY: The offset was checked to be inside the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) }.cast())
    }

    fn word(&self, offset: usize) -> Option<&Atomic<u32>> {
        let p = self.at::<u32>(offset)?;
        // SAFETY: `at` returns four aligned bytes inside the mapping. The kernel changes them only
        // atomically; a program that does otherwise only harms itself.
        Some(unsafe { Atomic::from_ptr(p) })
    }

    /// Reads a value, once.
    #[inline]
    pub fn read<T: FromBytes + Copy>(&self, offset: usize) -> Result<T> {
        let p = self.at::<T>(offset).ok_or(EFAULT)?;
        // SAFETY: `at` returns an aligned pointer inside the mapping, and any bytes are a valid
        // `T`. The read is volatile, so the compiler cannot repeat it.
        Ok(unsafe { ptr::read_volatile(p) })
    }

    /// Copies bytes from the memory.
    #[inline]
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) -> Result {
        let end = offset.checked_add(to.len()).ok_or(EFAULT)?;
        if end > self.len {
            return Err(EFAULT);
        }
        // SAFETY: The range is inside the mapping. `to` is private memory of the kernel and does
        // not overlap it.
        unsafe { shared_bytes::copy(to.as_mut_ptr(), self.base.as_ptr().add(offset), to.len()) };
        Ok(())
    }

    /// Writes a value.
    #[inline]
    pub fn write<T: AsBytes + Copy>(&self, offset: usize, value: &T) -> Result {
        let p = self.at::<T>(offset).ok_or(EFAULT)?;
        // SAFETY: `at` returns an aligned pointer inside the mapping.
        unsafe { ptr::write_volatile(p, *value) };
        Ok(())
    }

    /// Copies bytes to the memory.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result {
        let end = offset.checked_add(from.len()).ok_or(EFAULT)?;
        if end > self.len {
            return Err(EFAULT);
        }
        // SAFETY: The range is inside the mapping. `from` is private memory of the kernel and does
        // not overlap it.
        unsafe { shared_bytes::copy(self.base.as_ptr().add(offset), from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Reads a word with acquire ordering: earlier writes of the other side are visible afterwards.
    /// Returns 0 if the word is not inside the memory.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |w| w.load(Acquire))
    }

    /// Reads a word without ordering. Returns 0 if the word is not inside the memory.
    #[inline]
    pub fn load_relaxed(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |w| w.load(Relaxed))
    }

    /// Writes a word with release ordering: a reader of the word sees all earlier writes.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u32) {
        if let Some(w) = self.word(offset) {
            w.store(value, Release);
        }
    }

    /// Exchanges a word with full ordering, and returns its old value. Returns 0 if the word is not
    /// inside the memory.
    #[inline]
    pub fn exchange(&self, offset: usize, value: u32) -> u32 {
        self.word(offset).map_or(0, |w| w.xchg(value, Full))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Backing::User { .. } = self.backing {
            // SAFETY: vmap() mapped the memory in `from_user`, and `drop` has exclusive access. The
            // pages are unpinned afterwards, when the umem is dropped.
            unsafe { raw::vunmap(self.base.as_ptr().cast()) };
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_memory)]
mod tests {
    use super::*;

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
            let memory = MappedMemory(&table);
            assert_eq!(memory.write(8, &[1; 8]).is_ok(), writable);
            assert_eq!(memory.word(0).is_ok(), writable);
            let second = memory.word(8).map_or(0, |word| word.fetch_add(0));
            let written = second != 0;
            assert_eq!(written, writable);
        }
        Ok(())
    }

    /// Access ends at the length that the work request gives.
    #[test]
    fn a_span_has_an_end() -> Result {
        let mut words = KVec::from_elem(0u64, 2, GFP_KERNEL)?;
        let memory = KernelMemory::new();
        // SAFETY: The words outlive the span, which is shorter than they are.
        let span = unsafe { memory.span(words.as_mut_ptr() as u64, 12) };
        assert!(span.write(4, &[1; 8]).is_ok());
        assert_eq!(span.write(5, &[1; 8]).err(), Some(EFAULT));
        assert_eq!(span.write(u64::MAX, &[1; 8]).err(), Some(EFAULT));
        assert!(span.word(0).is_ok());
        assert_eq!(span.word(4).err(), Some(EINVAL));
        assert_eq!(span.word(8).err(), Some(EFAULT));
        Ok(())
    }
}
