// SPDX-License-Identifier: GPL-2.0

//! Memory of consumers: pinned user memory, the kernel's own, and rings shared with user space.
//!
//! User space may change all of it at any time, so no Rust reference is ever made into it: it is
//! copied from and to, or accessed atomically.

use super::{device::Device, object::Driver};
use crate::{
    net::{Fragment, Room},
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
    /// Flags that a device may ignore (relaxed ordering and the like).
    pub const OPTIONAL: u32 = raw::ib_access_flags_IB_ACCESS_OPTIONAL;
    /// Of these, each needs memory that its process may write to (`ib_access_writable()` in
    /// ib_verbs.h).
    pub const WRITABLE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
}

/// User memory, pinned and charged to the process that owns it (`struct ib_umem`).
///
/// Must be dropped in process context: unpinning may sleep.
pub struct Umem(NonNull<raw::ib_umem>);

// SAFETY: ib_umem_release() may be called by any task (umem.c keeps the owner's mm).
unsafe impl Send for Umem {}
// SAFETY: Nothing is changed through a shared reference.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins `len` bytes from `addr` of the current process, writable if `access` says so. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: RLIMIT_MEMLOCK does not allow it. `EFAULT`: it is not mapped so. `EINVAL`: this is
    /// a kernel thread, which has no memory of its own.
    pub fn get<D: Driver>(device: &Device<D>, addr: u64, len: usize, access: u32) -> Result<Self> {
        let task = kernel::current!();
        task.mm().ok_or(EINVAL)?;
        // SAFETY: The device is valid, and the current task has memory, which
        // ib_umem_get_attr_or_va() (umem.c) takes for granted. It takes no attributes if they are
        // null, as ib_umem_get_va() in ib_umem.h calls it.
        let umem = from_err_ptr(unsafe {
            raw::ib_umem_get_attr_or_va(device.as_raw(), ptr::null(), 0, addr, len, access as i32)
        })?;
        NonNull::new(umem).map(Self).ok_or(EINVAL)
    }

    /// The address and the bytes that it was pinned with.
    fn range(&self) -> (u64, usize) {
        // SAFETY: The umem is valid while `self` is; neither changes (umem.c).
        unsafe {
            let umem = self.0.as_ptr();
            ((*umem).address as u64, (*umem).length)
        }
    }

    /// Whether it was pinned to be written to.
    fn is_writable(&self) -> bool {
        // SAFETY: As for `range`.
        unsafe { (*self.0.as_ptr()).writable() != 0 }
    }

    /// Lists the pages in blocks of the largest size that fits.
    pub fn page_table(&self) -> Result<PageTable> {
        self.blocks(usize::MAX & !(PAGE_SIZE - 1))
    }

    /// Lists the memory in blocks of a size in the bitmap `sizes`.
    fn blocks(&self, sizes: usize) -> Result<PageTable> {
        let umem = self.0.as_ptr();
        // SAFETY: The umem is valid while `self` is. The "virtual address" for which the blocks
        // are chosen is the memory's own, so that page size always fits.
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
        // Not 0, and so there is a mask of the bits below.
        let below = block.wrapping_sub(1);
        let count = (offset.checked_add(len).ok_or(EINVAL)?)
            .checked_add(below)
            .ok_or(EINVAL)?
            >> shift;
        let mut table = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut iter = MaybeUninit::<raw::ib_block_iter>::zeroed();
        // SAFETY: `iter` is initialized by __rdma_block_iter_start() (verbs.c) and then only used
        // by __rdma_block_iter_next(); the scatter list lives as long as the umem. Where the
        // memory starts in the middle of a block of pages, the first scatter entry does too, and
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
        // SAFETY: We own the umem; process context, by the type's rule.
        unsafe { raw::ib_umem_release(self.0.as_ptr()) };
    }
}

/// Where the bytes of pinned user memory are in the kernel's direct map: an entry for each block
/// of the largest page size that fits.
///
/// It does not keep the memory pinned (see [`Pinned`]).
pub struct PageTable {
    blocks: KVVec<usize>,
    shift: u32,
    /// Of the first byte in the first block.
    offset: usize,
    len: u64,
    /// The memory may be written to.
    writable: bool,
}

impl PageTable {
    /// Bytes of a block.
    pub fn block_size(&self) -> u64 {
        1 << self.shift
    }

    /// The address of byte `offset` and how many of `len` bytes are contiguous there. `None` past
    /// the end.
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

    /// Calls `f` with each contiguous piece of the range.
    ///
    /// # Safety
    ///
    /// The memory is where the table says.
    #[inline]
    unsafe fn for_each(
        &self,
        mut offset: u64,
        mut len: usize,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result {
        let mut done = 0;
        // One check of the whole range, so that nothing is copied where it does not fit.
        if offset.checked_add(len as u64).ok_or(EFAULT)? > self.len {
            return Err(EFAULT);
        }
        while len != 0 {
            let (p, n) = self.span(offset, len).ok_or(EFAULT)?;
            f(p, done, n);
            // `n` is no more than what is left of a range that was checked.
            done = n.wrapping_add(done);
            offset = offset.wrapping_add(n as u64);
            len = len.saturating_sub(n);
        }
        Ok(())
    }
}

/// User memory that RCU readers access: its page table, and whether it is still pinned.
///
/// Whoever may unpin it holds the [`PinOwner`].
pub struct Pinned {
    table: PageTable,
    /// Not zero until the owner begins to unpin.
    pinned: Atomic<u32>,
}

impl Pinned {
    /// Bytes of the memory.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Access to the memory while the RCU read lock is held; `None` once it is being unpinned.
    #[inline]
    pub fn access<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<MappedMemory<'a>> {
        // INVARIANT: Pinned. The owner clears `pinned` and then waits for a grace period before it
        // unpins; who still reads it set is a reader that the grace period waits for.
        (self.pinned.load(Acquire) != 0).then_some(MappedMemory(&self.table))
    }
}

/// The owner of [`Pinned`] memory. Unpins it when dropped, which sleeps.
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

    /// Where the memory is in its process, and how many bytes it has.
    pub fn range(&self) -> (u64, usize) {
        self.umem.range()
    }

    /// Whether the memory can have all of these `IB_ACCESS_*` rights as it is pinned.
    pub fn allows(&self, access: u32) -> bool {
        access & access::WRITABLE == 0 || self.umem.is_writable()
    }

    /// What readers hold.
    pub fn shared(&self) -> &Arc<Pinned> {
        &self.shared
    }
}

impl Drop for PinOwner {
    fn drop(&mut self) {
        self.shared.pinned.store(0, Release);
        // Expedited: this is DEREG_MR, for which a program waits; it is what keeps a late packet
        // from writing to memory that the program uses for something else by now.
        synchronize_rcu_expedited();
    }
}

/// The memory of a page table in use.
///
/// # Invariants
///
/// The memory is in the direct map where the table says while this exists: it is pinned, or a
/// kernel consumer promises it.
#[derive(Clone, Copy)]
pub struct MappedMemory<'a>(&'a PageTable);

impl<'a> MappedMemory<'a> {
    /// Appends `len` bytes at `offset` to a packet; `EFAULT` where they are not inside the memory,
    /// `EMSGSIZE` where there is no room for them.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, to: &mut Room<'_>) -> Result {
        if len > to.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: The memory is where the table says (type invariant), and each piece is inside
        // it. User space may write meanwhile: whatever is copied are bytes.
        unsafe {
            self.0.for_each(offset, len, |p, _, n| {
                // There is room: the pieces add up to `len`.
                let _ = to.push_raw(p, n);
            })
        }
    }

    /// Calls `f` with each piece of `len` bytes at `offset`, in their order; `EFAULT` where they are not inside the memory.
    #[inline]
    pub fn fragments(
        &self,
        offset: u64,
        len: usize,
        vector: &Vector,
        mut f: impl FnMut(Fragment<'_>),
    ) -> Result {
        // SAFETY: The memory is where the table says (type invariant), for as long as this exists,
        // and each piece is inside it. `f` can't keep a fragment.
        unsafe {
            self.0
                .for_each(offset, len, |p, _, n| f(Fragment::new(p, n, vector)))
        }
    }

    /// Copies to the memory at `offset`; `EFAULT` if that is not inside it, or may only be read.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        // SAFETY: Valid for reads of its length.
        unsafe { self.write_from(offset, from.as_ptr(), from.len(), &Vector::new()) }
    }

    /// As [`MappedMemory::write`], from a fragment of a received packet.
    #[inline]
    pub fn write_fragment(&self, offset: u64, from: &Fragment<'_>) -> Result {
        // SAFETY: Valid for reads of its length. It may be memory that a program of this host can
        // write to meanwhile, even this memory: whatever is copied are bytes.
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
        // SAFETY: The memory is where the table says (type invariant), and may be written to; each
        // piece is inside it, and `src + done` has `n` bytes, since the pieces add up to `len`.
        unsafe {
            self.0.for_each(offset, len, |p, done, n| {
                vector::copy_within(vector, p, src.add(done), n)
            })
        }
    }

    /// Returns the word at `offset`, to be changed.
    ///
    /// # Errors
    ///
    /// `EFAULT`: it is not inside the memory, or may only be read. `EINVAL`: it is not naturally
    /// aligned.
    pub fn word(&self, offset: u64) -> Result<Word<'a>> {
        if !self.0.writable {
            return Err(EFAULT);
        }
        match self.0.span(offset, 8).ok_or(EFAULT)? {
            (p, 8) if p as usize & 7 == 0 => {
                // SAFETY: Eight aligned bytes of memory that stays (type invariant); an `Atomic`
                // may be changed by others, also by user space, which the CPU's atomics serialize
                // with.
                Ok(Word(unsafe { Atomic::from_ptr(p.cast::<u64>()) }))
            }
            _ => Err(EINVAL),
        }
    }
}

/// A naturally aligned 64-bit word of a consumer's memory, for atomics.
pub struct Word<'a>(&'a Atomic<u64>);

impl Word<'_> {
    /// Stores it in one, after all that was written before.
    pub fn store(self, value: u64) {
        self.0.store(value, Release);
    }

    /// Atomically replaces it by `swap` if it is `compare`; returns what it was.
    pub fn compare_swap(self, compare: u64, swap: u64) -> u64 {
        match self.0.cmpxchg(compare, swap, Full) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Atomically adds to it; returns what it was.
    pub fn fetch_add(self, addend: u64) -> u64 {
        self.0.fetch_add(addend, Full)
    }
}

/// All of the kernel's memory by its addresses: what the L_Key of `get_dma_mr` names.
///
/// Kernel consumers are trusted to name memory that is theirs; nothing else is.
pub struct KernelMemory(());

/// Memory of a kernel consumer, which it has named by an address.
///
/// # Invariants
///
/// The `len` bytes at `start` are valid for reads and writes for `'a`, though others may change
/// them.
pub struct KernelSpan<'a> {
    start: *mut u8,
    len: u64,
    _memory: PhantomData<&'a KernelMemory>,
}

impl KernelMemory {
    /// Made for the region of a kernel consumer.
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Returns the `len` bytes at address `addr`.
    ///
    /// # Safety
    ///
    /// A kernel consumer has posted a work request that names these bytes with the L_Key of this
    /// region, and the work request does not complete while the span exists. So the consumer
    /// promises (ib_verbs.h, `ib_dma_map_single()` without a DMA device) that they are in the
    /// direct map, and stay.
    #[inline]
    pub unsafe fn span(&self, addr: u64, len: u64) -> KernelSpan<'_> {
        // INVARIANT: The caller promises it.
        KernelSpan {
            start: addr as usize as *mut u8,
            len,
            _memory: PhantomData,
        }
    }
}

impl<'a> KernelSpan<'a> {
    /// Returns where the `len` bytes at `offset` are; `EFAULT` if they are not inside the span.
    #[inline]
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.start.wrapping_add(offset as usize)),
            _ => Err(EFAULT),
        }
    }

    /// Appends `len` bytes at `offset` to a packet.
    ///
    /// # Errors
    ///
    /// `EFAULT`: they are not inside the span. `EMSGSIZE`: there is no room for them.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, to: &mut Room<'_>) -> Result {
        let from = self.place(offset, len)?;
        // SAFETY: Inside the span, which is valid for reads by the type invariant.
        unsafe { to.push_raw(from, len) }
    }

    /// Copies bytes to `offset`; `EFAULT` if that is not inside the span.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        let to = self.place(offset, from.len())?;
        // SAFETY: Inside the span, which is valid for writes by the type invariant. The slice is
        // the kernel's own, and no consumer's.
        unsafe { vector::copy(&Vector::new(), to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies a fragment of a received packet to `offset`; `EFAULT` if that is not inside the span.
    #[inline]
    pub fn write_fragment(&self, offset: u64, from: &Fragment<'_>) -> Result {
        let to = self.place(offset, from.len())?;
        // SAFETY: The fragment is valid for reads of its length, and the destination for writes, by
        // the type invariants.
        unsafe { vector::copy_within(from.vector(), to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Returns the word at `offset`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: it is not inside the span. `EINVAL`: it is not naturally aligned.
    pub fn word(&self, offset: u64) -> Result<Word<'a>> {
        let at = self.place(offset, 8)?;
        if at as usize & 7 != 0 {
            return Err(EINVAL);
        }
        // SAFETY: Eight aligned bytes of the span, valid for `'a` by the type invariant. Others
        // change them by the CPU's instructions, with which atomics are serialized.
        Ok(Word(unsafe { Atomic::from_ptr(at.cast::<u64>()) }))
    }
}

/// Memory of a kernel consumer in pages of one size, as it was mapped for a fast registration.
pub struct KernelPages {
    table: PageTable,
}

impl KernelPages {
    /// Room for `count` pages.
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

    /// Bytes that are mapped.
    pub fn size(&self) -> u64 {
        self.table.len
    }

    /// Forgets what is mapped.
    pub fn clear(&mut self) {
        self.table.blocks.clear();
        self.table.len = 0;
    }

    /// Adds a page. `ENOMEM` where there is no room.
    pub fn push(&mut self, address: u64) -> Result {
        if self.table.blocks.len() >= self.table.blocks.capacity() {
            return Err(ENOMEM);
        }
        self.table
            .blocks
            .push_within_capacity(usize::try_from(address)?)?;
        Ok(())
    }

    /// All pages were added: `len` bytes, the first of which is at this address. `EINVAL` where
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

    /// Access to what is mapped.
    ///
    /// # Safety
    ///
    /// - The pages, the address and the page size are those that `Driver::map_mr_page` and
    ///   `Driver::map_mr_end` got for one region since the last `Driver::unmap_mr`.
    /// - A key of the region is valid, and is not invalidated while the access exists: a kernel
    ///   consumer that maps pages of the direct map (verbs.c, `ib_map_mr_sg()`) promises that they
    ///   stay as long.
    #[inline]
    pub unsafe fn access(&self) -> MappedMemory<'_> {
        // INVARIANT: The caller promises it.
        MappedMemory(&self.table)
    }
}

/// Memory that a program and the kernel work on together: a ring.
///
/// Must be dropped in process context.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// The user's pages, mapped together.
    User { _umem: Umem },
    /// The kernel's.
    Kernel { _buffer: KVVec<u64> },
}

// SAFETY: The memory is only accessed through raw pointers and atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: Shared references access the memory by volatile copies, C's copies and atomics only.
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
            // SAFETY: An address in the direct map of a pinned page.
            let page = unsafe { raw::shim_virt_to_page(block as *const _) };
            pages.push(page, GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: As many pages as said, pinned by `umem`, which is dropped after vunmap().
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
        // SAFETY: Inside the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) }.cast())
    }

    fn word(&self, offset: usize) -> Option<&Atomic<u32>> {
        let p = self.at::<u32>(offset)?;
        // SAFETY: Four aligned bytes of the mapping, changed by others only atomically or by a
        // program that hurts nobody but itself.
        Some(unsafe { Atomic::from_ptr(p) })
    }

    /// Copies a value out, once.
    #[inline]
    pub fn read<T: FromBytes + Copy>(&self, offset: usize) -> Result<T> {
        let p = self.at::<T>(offset).ok_or(EFAULT)?;
        // SAFETY: Inside the mapping and aligned; any bytes are a valid `T`. Volatile, so that the
        // compiler can't read it again.
        Ok(unsafe { ptr::read_volatile(p) })
    }

    /// Copies bytes out.
    #[inline]
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) -> Result {
        let end = offset.checked_add(to.len()).ok_or(EFAULT)?;
        if end > self.len {
            return Err(EFAULT);
        }
        // SAFETY: Inside the mapping; `to` is the kernel's own.
        unsafe { shared_bytes::copy(to.as_mut_ptr(), self.base.as_ptr().add(offset), to.len()) };
        Ok(())
    }

    /// Copies a value in.
    #[inline]
    pub fn write<T: AsBytes + Copy>(&self, offset: usize, value: &T) -> Result {
        let p = self.at::<T>(offset).ok_or(EFAULT)?;
        // SAFETY: Inside the mapping and aligned.
        unsafe { ptr::write_volatile(p, *value) };
        Ok(())
    }

    /// Copies bytes in.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result {
        let end = offset.checked_add(from.len()).ok_or(EFAULT)?;
        if end > self.len {
            return Err(EFAULT);
        }
        // SAFETY: Inside the mapping; `from` is the kernel's own.
        unsafe { shared_bytes::copy(self.base.as_ptr().add(offset), from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Reads a word of the ring's header; what the other side wrote before it is visible after.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |w| w.load(Acquire))
    }

    /// Reads a word without ordering.
    #[inline]
    pub fn load_relaxed(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |w| w.load(Relaxed))
    }

    /// Writes a word; what was written before it is visible to who reads it.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u32) {
        if let Some(w) = self.word(offset) {
            w.store(value, Release);
        }
    }

    /// Exchanges a word.
    #[inline]
    pub fn exchange(&self, offset: usize, value: u32) -> u32 {
        self.word(offset).map_or(0, |w| w.xchg(value, Full))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Backing::User { .. } = self.backing {
            // SAFETY: Mapped by vmap() in `from_user`, and nobody uses it any more. The pages are
            // unpinned after this, when the umem is dropped.
            unsafe { raw::vunmap(self.base.as_ptr().cast()) };
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_memory)]
mod tests {
    use super::*;

    /// Memory that may only be read is not written to, whatever a driver asks for.
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
            // INVARIANT: The words are where the table says.
            let memory = MappedMemory(&table);
            assert_eq!(memory.write(8, &[1; 8]).is_ok(), writable);
            assert_eq!(memory.word(0).is_ok(), writable);
            let second = memory.word(8).map_or(0, |word| word.fetch_add(0));
            let written = second != 0;
            assert_eq!(written, writable);
        }
        Ok(())
    }

    /// A consumer's memory ends where its work request says.
    #[test]
    fn a_span_has_an_end() -> Result {
        let mut words = KVec::from_elem(0u64, 2, GFP_KERNEL)?;
        let memory = KernelMemory::new();
        // SAFETY: The words live as long as the span, which is less than they are.
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
