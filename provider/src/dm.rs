// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Device memory (`ibv_alloc_dm(3)`): memory of the kernel that the program maps.

use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{self, EBUSY, EFAULT, EINVAL, EOPNOTSUPP};
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
use crate::memory::Owned;
use crate::object::{self, Mr};
use crate::shortage::{report_limit, NOT_PINNED};
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A device memory.
///
/// # Invariants
///
/// `base` is the mapping of `length` bytes of the memory, in whole pages, that this value owns. The
/// two change only in calls during which the program uses the memory in no other thread.
#[repr(C)]
pub(crate) struct Dm {
    /// Public part, which libibverbs and the program read.
    verbs: VerbsDm,
    base: AtomicPtr<u8>,
    /// Bytes, or 0 if nothing is mapped.
    length: AtomicUsize,
    /// Number of regions in the memory.
    regions: AtomicU32,
}

/// The use of a memory by a region, until it is dropped.
///
/// # Invariants
///
/// The memory counts this region, so that it is not freed before.
pub(crate) struct DmUse(Ptr<IbvDm>);

impl DmUse {
    fn new(dm: Ptr<IbvDm>) -> Self {
        dm.regions.fetch_add(1, Ordering::Relaxed);
        // INVARIANT: just counted.
        Self(dm)
    }
}

impl Drop for DmUse {
    fn drop(&mut self) {
        self.0.regions.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: the public part is the first member, and does not change once it is created.
unsafe impl Public for IbvDm {
    type Object = Dm;
}
// SAFETY: as above.
unsafe impl Public for VerbsDm {
    type Object = Dm;
}

impl Dm {
    /// Returns the memory with a handle, which is not mapped.
    fn new(context: Ptr<IbvContext>, handle: u32) -> Self {
        // INVARIANT: it has no bytes yet.
        Self {
            verbs: VerbsDm {
                dm: IbvDm {
                    context,
                    memcpy_to_dm: Some(copy_to_dm),
                    memcpy_from_dm: Some(copy_from_dm),
                    comp_mask: DM_MASK_HANDLE,
                    handle,
                },
                handle,
            },
            base: AtomicPtr::new(null_mut()),
            length: AtomicUsize::new(0),
            regions: AtomicU32::new(0),
        }
    }

    /// Maps `length` bytes of the kernel's memory. Fails with the kernel's error.
    fn map(&self, length: usize) -> Result<(), c_int> {
        let base = map(&self.verbs, length).ok_or_else(os::errno)?;
        // INVARIANT: just mapped with that size.
        self.base.store(base.as_ptr(), Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        Ok(())
    }

    /// Unmaps the memory. Returns its length.
    ///
    /// # Safety
    ///
    /// The program does not use the mapping.
    unsafe fn unmap(&self) -> usize {
        let length = self.length.swap(0, Ordering::Relaxed);
        if let Ok(bytes @ 1..) = mapped(length) {
            // SAFETY: by the invariant the mapping is ours, and the caller's contract.
            unsafe { os::munmap(self.base.load(Ordering::Relaxed).cast(), bytes) };
        }
        length
    }

    /// Returns the address of `length` bytes from `offset` on. Fails with `EFAULT` if they are not
    /// inside the memory, or if one of the two is no multiple of 4. Memory of mlx5 consists of
    /// 32-bit words, and programs should not depend on more.
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, c_int> {
        let start = usize::try_from(offset).map_err(|_| EFAULT)?;
        match start.checked_add(length) {
            Some(end)
                if end <= self.length.load(Ordering::Relaxed) && (start | length) & 3 == 0 =>
            {
                Ok(self.base.load(Ordering::Relaxed).wrapping_add(start))
            }
            _ => Err(EFAULT),
        }
    }
}

/// Returns the bytes that are mapped for `length` bytes.
fn mapped(length: usize) -> Result<usize, c_int> {
    let page = os::getauxval(os::AT_PAGESZ) as usize;
    length.checked_next_multiple_of(page).ok_or(EINVAL)
}

/// `ibv_alloc_dm`.
///
/// # Safety
///
/// `attr` points to the attributes.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: Ptr<IbvContext>,
    attr: *const IbvAllocDmAttr,
) -> *mut IbvDm {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (length, comp_mask) = unsafe { ((*attr).length, (*attr).comp_mask) };
        if comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let mut dm = Owned::new(Dm::new(context, 0))?;
        // SAFETY: the caller's contract, and libibverbs fills in the memory's part.
        let error = unsafe { ibv_cmd_alloc_dm(context, attr, &mut dm.verbs, null_mut()) };
        report_limit("a device memory", NOT_PINNED, error)?;
        dm.verbs.dm.handle = dm.verbs.handle;
        dm.map(length).inspect_err(|_| {
            // SAFETY: libibverbs has filled it in, and nothing uses it.
            unsafe { ibv_cmd_free_dm(&mut dm.verbs) };
        })?;
        Ok(dm)
    })
}

/// `ibv_import_dm`.
pub(crate) extern "C" fn import_dm(context: Ptr<IbvContext>, handle: u32) -> *mut IbvDm {
    object::create(|| {
        let length = command::query_dm(context, handle)?;
        let dm = Owned::new(Dm::new(context, handle))?;
        // If the memory was freed meanwhile, and another one has the handle, the length differs and
        // the kernel refuses, or the program has the other one.
        dm.map(length as usize)?;
        Ok(dm)
    })
}

/// `ibv_unimport_dm`. The kernel's memory remains. The call cannot fail: a memory with regions of
/// this context stays, too.
///
/// # Safety
///
/// Nothing uses the memory afterwards, except regions in it.
pub(crate) unsafe extern "C" fn unimport_dm(dm: Ptr<IbvDm>) {
    if dm.regions.load(Ordering::Acquire) == 0 {
        // SAFETY: the program passes a memory of `import_dm` or `alloc_dm`; the rest is this
        // function's contract.
        unsafe {
            dm.unmap();
            object::destroy(dm, 0);
        }
    }
}

/// `ibv_free_dm`. Fails with `EBUSY` if a region is in the memory, of this context or another one
/// that shares the memory.
///
/// # Safety
///
/// Unless the call fails, nothing uses the memory afterwards.
pub(crate) unsafe extern "C" fn free_dm(dm: Ptr<IbvDm>) -> c_int {
    if dm.regions.load(Ordering::Acquire) != 0 {
        return EBUSY;
    }
    // The kernel counts memory as long as it is mapped. It frees memory without regions; if the
    // device is gone, libibverbs reports success (`verbs_is_destroy_err()`).
    // SAFETY: the caller's contract. A program that shares the memory frees it only when no other
    // thread uses it.
    let length = unsafe { dm.unmap() };
    // SAFETY: the memory's public part is the first member of this structure.
    let error = unsafe { ibv_cmd_free_dm(dm.as_ptr().cast()) };
    if error != 0 && length != 0 {
        // Another context has a region in the memory, or has freed it. Copies fail if the memory
        // cannot be mapped again.
        let _ = dm.map(length);
    }
    // SAFETY: the program passes a memory of `alloc_dm`; the rest is this function's contract.
    unsafe { object::destroy(dm, error) }
}

/// Maps `length` bytes of a memory of the kernel. Returns `None` with the error in `errno`.
fn map(dm: &VerbsDm, length: usize) -> Option<NonNull<u8>> {
    // The kernel's driver maps the memory whose handle is the number of the page.
    let offset = i64::from(dm.handle) << os::getauxval(os::AT_PAGESZ).trailing_zeros();
    let prot = os::PROT_READ | os::PROT_WRITE;
    let (bytes, fd) = (mapped(length).ok()?, dm.dm.context.doorbells.cmd_fd());
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let base = unsafe { os::mmap(null_mut(), bytes, prot, os::MAP_SHARED, fd, offset) };
    NonNull::new(base.cast::<u8>()).filter(|base| base.as_ptr() as isize != -1)
}

/// `ibv_reg_dm_mr`.
pub(crate) extern "C" fn reg_dm_mr(
    pd: Ptr<IbvPd>,
    dm: Ptr<IbvDm>,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut IbvMr {
    object::create(|| {
        let mut mr = Owned::new(Mr::new(Some(DmUse::new(dm))))?;
        // SAFETY: the memory's public part is the first member of this structure, and libibverbs
        // fills in the region.
        let error = unsafe {
            let dm = dm.as_ptr().cast();
            ibv_cmd_reg_dm_mr(pd, dm, offset, length, access, &mut mr.verbs, null_mut())
        };
        report_limit("a memory region", NOT_PINNED, error)?;
        Ok(mr)
    })
}

/// `ibv_memcpy_to_dm`. Fails as [`Dm::at`] does.
///
/// # Safety
///
/// `length` bytes can be read from `from`.
unsafe extern "C" fn copy_to_dm(
    dm: Ptr<IbvDm>,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    object::status(dm.at(offset, length).map(|to| {
        // SAFETY: the range is mapped, and the caller's contract. The two may overlap, if the
        // program copies within the mapping.
        unsafe { core::ptr::copy(from.cast::<u8>(), to, length) }
    }))
}

/// `ibv_memcpy_from_dm`. Fails as [`Dm::at`] does.
///
/// # Safety
///
/// `length` bytes can be written to `to`.
unsafe extern "C" fn copy_from_dm(
    to: *mut c_void,
    dm: Ptr<IbvDm>,
    offset: u64,
    length: usize,
) -> c_int {
    object::status(dm.at(offset, length).map(|from| {
        // SAFETY: the range is mapped, and the caller's contract.
        unsafe { core::ptr::copy(from, to.cast::<u8>(), length) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::context;

    #[test]
    fn copies_stay_inside_and_memory_in_use_stays() {
        let mut bytes = [7_u8; 64];
        let dm = Dm {
            verbs: VerbsDm {
                dm: IbvDm {
                    context: context(),
                    memcpy_to_dm: None,
                    memcpy_from_dm: None,
                    comp_mask: 0,
                    handle: 0,
                },
                handle: 0,
            },
            base: AtomicPtr::new((&raw mut bytes).cast()),
            length: AtomicUsize::new(64),
            regions: AtomicU32::new(0),
        };
        // SAFETY: the public part is the first member; the address is not used after the memory.
        let public: Ptr<IbvDm> = unsafe { Ptr::new((&raw const dm).cast_mut().cast()) };
        let region = DmUse::new(public);
        // SAFETY: a region is in the memory, so it stays.
        assert_eq!(unsafe { free_dm(public) }, EBUSY);
        drop(region);
        assert_eq!(dm.regions.load(Ordering::Relaxed), 0);
        let (data, mut back) = ([1_u8, 2, 3, 4], [0_u8; 4]);
        // SAFETY: the arrays have the lengths given.
        unsafe {
            for (offset, error) in [(60, 0), (57, EFAULT), (u64::MAX, EFAULT), (64, EFAULT)] {
                assert_eq!(copy_to_dm(public, offset, data.as_ptr().cast(), 4), error);
            }
            assert_eq!(copy_from_dm(back.as_mut_ptr().cast(), public, 60, 4), 0);
            assert_eq!(
                copy_from_dm(back.as_mut_ptr().cast(), public, 62, 4),
                EFAULT
            );
            assert_eq!(copy_from_dm(back.as_mut_ptr().cast(), public, 64, 0), 0);
        }
        assert_eq!(back, data);
        assert_eq!((bytes[59], bytes[63]), (7, 4));
    }

    #[test]
    fn unknown_attributes_are_refused() {
        let attr = IbvAllocDmAttr {
            length: 64,
            log_align_req: 0,
            comp_mask: 1,
        };
        // SAFETY: the attributes are complete.
        assert!(unsafe { alloc_dm(context(), &attr) }.is_null());
        assert_eq!(os::errno(), EOPNOTSUPP);
    }
}
