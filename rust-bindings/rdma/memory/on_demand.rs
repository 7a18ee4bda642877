// SPDX-License-Identifier: GPL-2.0

//! Memory of programs that is not pinned: on-demand paging.
//!
//! [`OnDemand`] mirrors a part of a process's page tables. A page is absent until
//! [`OnDemand::bring_in`] has put its address into the mirror. The kernel announces each change of
//! the process's page tables (munmap, reclaim, fork, migration, write-back, …) to an MMU notifier,
//! which takes the addresses out again before the change is made.
//!
//! C headers: `include/linux/mmu_notifier.h`, `include/linux/mm.h`, `include/linux/xarray.h`.

use super::{access, backing::Revocation, Backing, MappedMemory, Place, Unavailable};
use crate::{
    raw,
    sync::{wait_for_bursts, BurstGuard},
};
use core::{ffi::c_void, ptr};
use kernel::{
    alloc::flags::GFP_KERNEL_ACCOUNT,
    container_of,
    error::to_result,
    new_mutex,
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Release},
        Arc, Mutex,
    },
    types::Opaque,
};

/// Most pages that one call of [`OnDemand::bring_in`] brings in: those of [`WINDOW`] bytes.
const BATCH: usize = WINDOW / PAGE_SIZE + 1;

/// Bytes that one call of [`OnDemand::bring_in`] can bring in, wherever they begin.
pub const WINDOW: usize = 256 * 1024;

/// How often [`OnDemand::bring_in`] begins again because the page tables have changed meanwhile.
const ATTEMPTS: u32 = 16;

/// Flag of an entry of the mirror: the page may be written to. (Addresses of pages are multiples of
/// the page size.)
const WRITABLE: usize = 1;

/// Values of [`OnDemand::subscription`].
const NONE: u32 = 0;
const SUBSCRIBED: u32 = 1;

/// How [`OnDemand::bring_in`] gets absent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// As a page fault of the process would: reads files, allocates memory, waits for a handler.
    Fault,
    /// Only those that the process has in its page tables.
    NoFault,
}

/// Memory of a process, of which pages may be absent.
///
/// # Invariants
///
/// - An entry of `pages` is the address in the direct map of a page that the process has in its
///   page tables, possibly with [`WRITABLE`], which means that the page may be written to and is
///   dirty there. Entries are added with `lock` held, and only if no invalidation has begun since
///   the page was looked up. An invalidation removes them with `lock` held.
/// - If `subscription` is [`SUBSCRIBED`], `notifier` was inserted and not removed.
#[pin_data(PinnedDrop)]
pub struct OnDemand {
    #[pin]
    notifier: Opaque<raw::mmu_interval_notifier>,
    subscription: Atomic<u32>,
    /// The mirror, by the number of the page in the memory.
    #[pin]
    pages: Opaque<raw::xarray>,
    /// Serializes changes of `pages`. Nothing allocates memory with this lock held, because reclaim
    /// invalidates pages.
    #[pin]
    lock: Mutex<()>,
    revocation: Revocation,
    /// The process's memory, as an address to compare with.
    mm: usize,
    /// Address of the first byte in the process.
    start: usize,
    len: u64,
    /// Whether the memory may be written to, if the process may.
    writable: bool,
}

// SAFETY: Any task may use the notifier and the xarray: C synchronizes access to both.
unsafe impl Send for OnDemand {}
// SAFETY: See above. `lock` serializes changes of `pages`, which readers access under RCU.
unsafe impl Sync for OnDemand {}

/// The callback of the notifiers.
static OPERATIONS: raw::mmu_interval_notifier_ops = raw::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    ..pin_init::zeroed()
};

/// Returns the identity of the current process's memory. Returns `EINVAL` for a kernel thread.
pub fn current_mm() -> Result<usize> {
    let task = kernel::current!();
    Ok(task.mm().ok_or(EINVAL)?.as_raw().addr())
}

impl OnDemand {
    /// Returns an initializer for `len` bytes from address `start` of the current process, all of
    /// which are absent. The memory exists only while it is subscribed.
    fn new(start: usize, len: u64, writable: bool) -> Result<impl PinInit<Self>> {
        let mm = current_mm()?;
        Ok(pin_init!(Self {
            notifier <- Opaque::zeroed(),
            subscription: Atomic::new(NONE),
            // SAFETY: xa_init_flags() (xarray.h) initializes all of the array, and needs nothing.
            pages <- Opaque::ffi_init(|pages| unsafe { raw::shim_xa_init_accounted(pages) }),
            lock <- new_mutex!((), "rdma_on_demand"),
            revocation: Revocation::new(),
            mm,
            start,
            len,
            writable,
        }))
    }

    /// Registers `len` bytes from address `start` of the current process. No page is touched. The
    /// whole address space is `0` and `u64::MAX`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the caller is a kernel thread, or the range is not in the address space; addresses
    /// with tags are not. `ENOMEM`.
    pub fn register(start: u64, len: u64, writable: bool) -> Result<Arc<Self>> {
        let start = usize::try_from(start)?;
        let this = Arc::pin_init(Self::new(start, len, writable)?, GFP_KERNEL_ACCOUNT)?;
        let first = start & !(PAGE_SIZE - 1);
        let end = match usize::try_from(len)? {
            usize::MAX => usize::MAX & !(PAGE_SIZE - 1),
            len if is_user_range(start, len) => start
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE))
                .ok_or(EINVAL)?,
            _ => return Err(EINVAL),
        };
        let task = kernel::current!();
        let mm = task.mm().ok_or(EINVAL)?;
        // SAFETY: The current task has a reference to its mm. The notifier is zeroed and stays in
        // its place until it is removed, which `revoke` or the destructor does before it is freed.
        to_result(unsafe {
            raw::mmu_interval_notifier_insert(
                this.notifier.get(),
                mm.as_raw(),
                first,
                end.wrapping_sub(first),
                &OPERATIONS,
            )
        })?;
        // INVARIANT: It was inserted just above.
        this.subscription.store(SUBSCRIBED, Release);
        Ok(this)
    }

    /// Returns the address in the process and the length in bytes of the memory.
    pub fn range(&self) -> (u64, u64) {
        (self.start as u64, self.len)
    }

    /// Returns the length in bytes, and whether the memory may be written to.
    #[inline]
    pub(super) fn properties(&self) -> (u64, bool) {
        (self.len, self.writable)
    }

    /// Returns whether the memory can be given all of these `IB_ACCESS_*` flags.
    pub fn allows(&self, access: u32) -> bool {
        access & access::ON_DEMAND != 0 && (access & access::WRITABLE == 0 || self.writable)
    }

    /// Returns the number of the page with byte `offset`, and the position of the byte in the page.
    /// The offset is inside the memory, so the sum does not overflow.
    #[inline]
    fn page_of(&self, offset: u64) -> (usize, usize) {
        let position = (offset as usize).wrapping_add(self.start & (PAGE_SIZE - 1));
        (position >> PAGE_SHIFT, position & (PAGE_SIZE - 1))
    }

    /// Returns the address of a page, if it is present and, to `write`, writable.
    #[inline]
    fn page(&self, index: usize, write: bool) -> Option<usize> {
        // SAFETY: The array is initialized. xa_load() (xarray.c) reads it under RCU.
        let entry = unsafe { raw::xa_load(self.pages.get(), index) }.addr();
        let usable = entry != 0 && (!write || entry & WRITABLE != 0);
        usable.then_some(entry & !WRITABLE)
    }

    /// Returns the address of byte `offset`, and how many of the following `len` bytes are in the
    /// same page, in a burst. Returns `EAGAIN` if the page is absent. The bytes are inside the
    /// memory.
    #[inline]
    pub(super) fn piece(&self, offset: u64, len: usize, write: bool) -> Result<(*mut u8, usize)> {
        let (index, within) = self.page_of(offset);
        let page = self.page(index, write).ok_or(EAGAIN)?;
        // Wraps around neither: the position is inside the page.
        let (address, left) = (page.wrapping_add(within), PAGE_SIZE.wrapping_sub(within));
        Ok((address as *mut u8, len.min(left)))
    }

    /// Returns the offset of the first byte after the page with byte `offset`.
    pub fn end_of_page(&self, offset: u64) -> u64 {
        let (_, within) = self.page_of(offset);
        offset.saturating_add(PAGE_SIZE.wrapping_sub(within) as u64)
    }

    /// Returns the offset of the first byte of `offset..offset + len` in a page that is absent, or
    /// to `write` not writable.
    pub fn first_absent(&self, offset: u64, len: u64, write: bool) -> Option<u64> {
        let end = offset.checked_add(len)?;
        let mut at = offset;
        while at < end {
            let (index, _) = self.page_of(at);
            if self.page(index, write).is_none() {
                return Some(at);
            }
            at = self.end_of_page(at);
        }
        None
    }

    /// Brings in the page with byte `offset` and those after it, up to the end of the next `len`
    /// bytes, but at most [`BATCH`] pages. Returns once at least the first page was present.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal is pending. `EAGAIN`: the page tables change all the time; the caller
    /// should try again. `EFAULT`: the process does not have the first page, or
    /// may not access it this way, or the memory was revoked, or the current process is another
    /// one. `ENOMEM`. Others are those of the memory, such as `EHWPOISON`.
    pub fn bring_in(&self, offset: u64, len: u64, write: bool, paging: Paging) -> Result {
        let end = offset.checked_add(len.max(1)).ok_or(EFAULT)?;
        if end > self.len || current_mm()? != self.mm || !self.revocation.is_accessible() {
            return Err(EFAULT);
        }
        let (first, _) = self.page_of(offset);
        let (last, _) = self.page_of(end.wrapping_sub(1));
        let count = last.wrapping_sub(first).saturating_add(1).min(BATCH);
        let result = self.bring_in_pages(first, count, write, paging);
        if !self.revocation.is_accessible() {
            // `revoke` may have emptied the array before space was reserved. It may also be waiting
            // for bursts that use the pages.
            self.revocation.revoke();
            self.clear();
        }
        result
    }

    /// Brings in `count` pages, which is at most [`BATCH`].
    fn bring_in_pages(&self, first: usize, count: usize, write: bool, paging: Paging) -> Result {
        let address = (self.start & !(PAGE_SIZE - 1)).wrapping_add(first << PAGE_SHIFT);
        // get_user_pages_unlocked() (gup.c) ignores the tag of an address. The notifier does not.
        if !is_user_range(address, count << PAGE_SHIFT) {
            return Err(EFAULT);
        }
        let result = self.reserve_and_look_up(first, count, write, paging);
        for index in (first..).take(count) {
            // SAFETY: The array is initialized. xa_release() (xarray.h) frees what was reserved and
            // not stored.
            unsafe { raw::shim_xa_release(self.pages.get(), index) };
        }
        result
    }

    /// Reserves entries of the mirror for `count` pages, and looks the pages up until the page
    /// tables stay the same. Reserved entries without a page remain.
    fn reserve_and_look_up(
        &self,
        first: usize,
        count: usize,
        write: bool,
        paging: Paging,
    ) -> Result {
        for _ in 0..ATTEMPTS {
            for index in (first..).take(count) {
                // SAFETY: The array is initialized. Reserving may sleep.
                to_result(unsafe { raw::shim_xa_reserve(self.pages.get(), index) })?;
            }
            if self.look_up(first, count, write, paging)? {
                return Ok(());
            }
        }
        Err(EAGAIN)
    }

    /// Empties the array of memory that is revoked, or of which the registration has failed.
    fn clear(&self) {
        // SAFETY: The array is initialized, and xa_destroy() (xarray.c) leaves it so. It frees
        // nodes after a grace period.
        unsafe { raw::xa_destroy(self.pages.get()) };
    }

    /// Looks up pages of the process and adds them to the mirror, for which there is space. Returns
    /// whether at least the first page is present: not if the page tables have changed meanwhile.
    fn look_up(&self, first: usize, count: usize, write: bool, paging: Paging) -> Result<bool> {
        let mut found = [ptr::null_mut(); BATCH];
        let mut flags = raw::FOLL_INTERRUPTIBLE;
        if write {
            flags |= raw::FOLL_WRITE;
        }
        if paging == Paging::NoFault {
            flags |= raw::FOLL_NOFAULT;
        }
        let address = (self.start & !(PAGE_SIZE - 1)).wrapping_add(first << PAGE_SHIFT);
        // SAFETY: The notifier is initialized. While the memory exists, its mm does, too.
        let seq = unsafe { raw::mmu_interval_read_begin(self.notifier.get()) };
        // SAFETY: The array has space for `count` pages, and the current task has an mm.
        let got = unsafe {
            let pages = found.as_mut_ptr();
            raw::get_user_pages_unlocked(address, count, pages, flags)
        };
        let got = match i32::try_from(got)? {
            error if error < 0 => {
                let error = Error::from_errno(error);
                // Waiting for a lock of the process was interrupted.
                return Err(if error == EAGAIN { EINTR } else { error });
            }
            0 => return Err(EFAULT),
            got => found.get(..got as usize).ok_or(EINVAL)?,
        };
        let is_present = {
            let _lock = self.lock.lock();
            if !self.revocation.is_accessible() {
                put_pages(got);
                return Err(EFAULT);
            }
            // SAFETY: The notifier is initialized, and its callback changes the sequence number
            // with `lock` held.
            let changed = unsafe { raw::shim_mmu_interval_read_retry(self.notifier.get(), seq) };
            if !changed {
                self.insert(first, got, write);
            }
            !changed && self.page(first, write).is_some()
        };
        put_pages(got);
        Ok(is_present)
    }

    /// Adds pages to the mirror. The caller holds `lock`.
    fn insert(&self, first: usize, pages: &[*mut raw::page], write: bool) {
        for (index, &page) in (first..).zip(pages) {
            // SAFETY: The page is valid, and on 64-bit machines each page is in the direct map.
            let address = unsafe { raw::shim_page_address(page) }.addr();
            let entry = if write { address | WRITABLE } else { address };
            // SAFETY: The array is initialized. The entry is an aligned address, or one with the
            // lowest bit set, which xarray.h calls a value.
            let old = unsafe { raw::xa_load(self.pages.get(), index) }.addr();
            if old & !WRITABLE == address && old & WRITABLE >= entry & WRITABLE {
                continue;
            }
            // SAFETY: As above. Without flags, xa_store() (xarray.c) does not sleep. It has the
            // space that `bring_in` has reserved; if an invalidation or another call has taken that
            // away, it may fail, and the page stays absent.
            // INVARIANT: The page was looked up, and no invalidation has begun since. With
            // `FOLL_WRITE` the look-up has made it dirty (gup.c, `follow_page_pte()`), and
            // write-back invalidates it before it cleans it (rmap.c, `page_vma_mkclean_one()`).
            unsafe { raw::xa_store(self.pages.get(), index, entry as *mut c_void, 0) };
        }
    }

    /// Removes the pages from `first` to `last`. Returns whether there were any. The caller holds
    /// `lock`.
    fn remove(&self, first: usize, last: usize) -> bool {
        let (mut index, mut any) = (first, false);
        // SAFETY: The array is initialized.
        while unsafe { !raw::shim_xa_find_present(self.pages.get(), &mut index, last).is_null() } {
            // SAFETY: As above. xa_erase() (xarray.c) does not allocate.
            unsafe { raw::xa_erase(self.pages.get(), index) };
            any = true;
        }
        any
    }

    /// Returns whether a page from `first` to `last` is present.
    fn has_any(&self, first: usize, last: usize) -> bool {
        let mut index = first;
        // SAFETY: The array is initialized.
        unsafe { !raw::shim_xa_find_present(self.pages.get(), &mut index, last).is_null() }
    }

    /// Returns the numbers of the first and the last page that the addresses from `start` to before
    /// `end` of the process have in common with the memory.
    fn overlap(&self, start: usize, end: usize) -> (usize, usize) {
        let base = self.start >> PAGE_SHIFT;
        let first = (start >> PAGE_SHIFT).saturating_sub(base);
        let last = (end.saturating_sub(1) >> PAGE_SHIFT).saturating_sub(base);
        (first, last)
    }

    /// Ends the calls of the notifier, and empties the array. Sleeps.
    fn unsubscribe(&self) {
        if self.subscription.xchg(NONE, Full) == SUBSCRIBED {
            // SAFETY: By the type invariant the notifier was inserted, and the exchange has made
            // this the only call. No lock is held that the callback takes.
            unsafe { raw::mmu_interval_notifier_remove(self.notifier.get()) };
            self.clear();
        }
    }
}

/// Returns whether `start..start + len` is in the address space of the current process, which is
/// not a kernel thread.
fn is_user_range(start: usize, len: usize) -> bool {
    // SAFETY: The callers have found that the current task has an mm, whose size never changes.
    unsafe { raw::shim_is_user_range(start, len) }
}

/// Drops the references to pages.
fn put_pages(pages: &[*mut raw::page]) {
    for &page in pages {
        // SAFETY: The caller has a reference to each, which get_user_pages_unlocked() (gup.c) has
        // taken, and does not use it afterwards.
        unsafe { raw::shim_put_page(page) };
    }
}

/// Called before pages of a process change or go away.
///
/// # Safety
///
/// The caller is mmu_notifier.c. `notifier` is that of an [`OnDemand`] and is not removed during
/// the call; `range` is valid.
unsafe extern "C" fn invalidate(
    notifier: *mut raw::mmu_interval_notifier,
    range: *const raw::mmu_notifier_range,
    seq: usize,
) -> bool {
    // SAFETY: The notifier is the field of an `OnDemand` (its only use), which removes it before it
    // is freed.
    let this = unsafe { &*container_of!(Opaque::cast_from(notifier), OnDemand, notifier) };
    // SAFETY: The caller guarantees the range.
    let ((start, end), may_sleep) = unsafe {
        let may_sleep = raw::shim_mmu_notifier_range_blockable(range);
        (((*range).start, (*range).end), may_sleep)
    };
    let (first, last) = this.overlap(start, end);
    let lock = if may_sleep {
        Some(this.lock.lock())
    } else {
        // The wait for bursts below sleeps.
        let lock = this.lock.try_lock();
        lock.filter(|_| !this.has_any(first, last))
    };
    let Some(_lock) = lock else {
        return false;
    };
    // SAFETY: The notifier is valid, and the lock is that of `look_up`.
    unsafe { raw::shim_mmu_interval_set_seq(notifier, seq) };
    if this.remove(first, last) {
        // No burst that has found one of the pages may still access it on return.
        wait_for_bursts();
    }
    true
}

impl Backing for OnDemand {
    /// Returns access to the memory. Its pages are looked up when they are accessed.
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        _len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        self.revocation.check(burst)?;
        // INVARIANT: A page that is looked up in this burst stays at its place until the burst
        // ends, because `invalidate` waits for it.
        Ok((MappedMemory(Place::OnDemand(self)), offset))
    }

    fn revoke(&self) {
        self.revocation.revoke();
        // `look_up` adds nothing from now on.
        drop(self.lock.lock());
        self.unsubscribe();
    }
}

#[pinned_drop]
impl PinnedDrop for OnDemand {
    fn drop(self: Pin<&mut Self>) {
        // Does something only if the registration of a region has failed, in process context: any
        // other memory was revoked. The array is empty then, and owns nothing.
        self.unsubscribe();
    }
}
