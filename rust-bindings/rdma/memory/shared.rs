// SPDX-License-Identifier: GPL-2.0

//! Rings that programs and the kernel share.

use super::{access, pinned::Umem};
use crate::{
    raw,
    rdma::{device::Device, object::Driver},
    shared_bytes,
};
use core::{
    mem::size_of,
    ptr::{self, NonNull},
};
use kernel::{
    alloc::flags::{GFP_KERNEL_ACCOUNT, __GFP_ZERO},
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full, Release},
    transmute::{AsBytes, FromBytes},
};

/// Memory that a program and the kernel access concurrently: a ring.
///
/// Must be dropped in process context.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    /// The user's pages, mapped contiguously; `None` for memory of the kernel.
    umem: Option<Umem>,
    /// Memory of the kernel; empty for the user's pages.
    _buffer: KVVec<u64>,
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
        // SAFETY: Each block is the address of a page in the direct map, which `umem` has pinned.
        // `umem` is dropped after vunmap().
        let base = unsafe {
            for &block in &table.blocks {
                let page = raw::shim_virt_to_page(block as *const _);
                pages.push(page, GFP_KERNEL_ACCOUNT)?;
            }
            raw::shim_vmap(pages.as_mut_ptr(), pages.len() as u32)
        };
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(ENOMEM)?,
            len,
            umem: Some(umem),
            _buffer: KVVec::new(),
        })
    }

    /// Allocates zeroed memory for a kernel consumer.
    pub fn for_kernel(len: usize) -> Result<Self> {
        let words = len.div_ceil(size_of::<u64>());
        let mut buffer = KVVec::<u64>::with_capacity(words, GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
        Ok(Self {
            base: NonNull::new(buffer.as_mut_ptr().cast()).ok_or(ENOMEM)?,
            len,
            umem: None,
            _buffer: buffer,
        })
    }

    /// Returns the address of `len` bytes at `offset`, or `EFAULT` if they are not inside the
    /// memory.
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base.as_ptr().wrapping_add(offset)),
            _ => Err(EFAULT),
        }
    }

    /// Returns the address of a `T` at `offset`, or `EFAULT` if it is not inside the memory or not
    /// aligned.
    #[inline]
    fn at<T>(&self, offset: usize) -> Result<*mut T> {
        let place = self.range(offset, size_of::<T>())?.cast::<T>();
        place.is_aligned().then_some(place).ok_or(EFAULT)
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&Atomic<u32>> {
        let p = self.at::<u32>(offset).ok()?;
        // SAFETY: `at` returns four aligned bytes inside the mapping. The kernel changes them only
        // atomically; a program that does otherwise only harms itself.
        Some(unsafe { Atomic::from_ptr(p) })
    }

    /// Reads a value, once.
    #[inline]
    pub fn read<T: FromBytes + Copy>(&self, offset: usize) -> Result<T> {
        let p = self.at::<T>(offset)?;
        // SAFETY: `at` returns an aligned pointer inside the mapping, and any bytes are a valid
        // `T`. The read is volatile, so the compiler cannot repeat it.
        Ok(unsafe { ptr::read_volatile(p) })
    }

    /// Copies bytes from the memory.
    #[inline]
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.range(offset, to.len())?;
        // SAFETY: The range is inside the mapping. `to` is private memory of the kernel and does
        // not overlap it.
        unsafe { shared_bytes::copy(to.as_mut_ptr(), from, to.len()) };
        Ok(())
    }

    /// Writes a value.
    #[inline]
    pub fn write<T: AsBytes + Copy>(&self, offset: usize, value: &T) -> Result {
        let p = self.at::<T>(offset)?;
        // SAFETY: `at` returns an aligned pointer inside the mapping.
        unsafe { ptr::write_volatile(p, *value) };
        Ok(())
    }

    /// Copies bytes to the memory.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.range(offset, from.len())?;
        // SAFETY: The range is inside the mapping. `from` is private memory of the kernel and does
        // not overlap it.
        unsafe { shared_bytes::copy(to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Reads a word with acquire ordering: earlier writes of the other side are visible afterwards.
    /// Returns 0 if the word is not inside the memory.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).map_or(0, |w| w.load(Acquire))
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
        if self.umem.is_some() {
            // SAFETY: vmap() mapped the memory in `from_user`, and `drop` has exclusive access. The
            // pages are unpinned afterwards, when the umem is dropped.
            unsafe { raw::vunmap(self.base.as_ptr().cast()) };
        }
    }
}
