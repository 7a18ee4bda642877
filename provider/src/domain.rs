// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains, thread domains and parent domains (`ibv_alloc_parent_domain(3)`).
//!
//! The kernel knows protection domains only. A thread domain is a promise of the program that one
//! thread uses the objects of the domain. A parent domain stands for a protection domain in all
//! verbs, and adds a thread domain, memory of the program's own for rings, or both.

use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
use crate::memory::Owned;
use crate::object;
use crate::shortage::{report_limit, NOT_PINNED};
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

/// A protection domain, or a parent domain.
#[repr(C)]
pub(crate) struct Pd {
    /// Public part, which never changes. That of a parent domain has the kernel's handle of its
    /// protection domain.
    verbs: IbvPd,
    /// `None` for a protection domain.
    parent: Option<Parent>,
    /// Number of parent domains that are made of it, and of rings in memory of its program.
    users: AtomicU32,
}

/// The parts of a parent domain.
struct Parent {
    pd: Ptr<IbvPd>,
    td: Option<Ptr<IbvTd>>,
    allocator: Option<Allocator>,
}

/// A thread domain.
#[repr(C)]
pub(crate) struct Td {
    /// Public part, which never changes.
    verbs: IbvTd,
    /// Number of parent domains that are made of it.
    users: AtomicU32,
}

// SAFETY: the public part is the first member.
unsafe impl Public for IbvPd {
    type Object = Pd;
}
// SAFETY: as above.
unsafe impl Public for IbvTd {
    type Object = Td;
}

/// A program's functions that allocate memory for rings.
///
/// # Invariants
///
/// The functions do what `ibv_alloc_parent_domain(3)` says, and the domain that they are called
/// with lives as long as this value.
#[derive(Clone, Copy)]
pub(crate) struct Allocator {
    domain: Ptr<IbvPd>,
    context: *mut c_void,
    alloc: AllocFn,
    free: FreeFn,
}

// SAFETY: a program that uses a domain in several threads has functions that allow it.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// The type of resource that a program's functions get: the number of this provider, and 0 for a
/// ring.
const RESOURCE: u64 = (crate::abi::DRIVER_ID as u64) << 32;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

impl Allocator {
    /// Allocates `bytes` bytes, which begin at a multiple of `align`. Returns `None` if the program
    /// leaves that to the provider. Fails with `ENOMEM`, or with `EINVAL` if the address is no such
    /// multiple.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        align: usize,
    ) -> Result<Option<NonNull<u8>>, c_int> {
        // SAFETY: by the invariants.
        let memory =
            unsafe { (self.alloc)(self.domain.as_ptr(), self.context, bytes, align, RESOURCE) };
        if memory.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(ENOMEM)?;
        self.domain.users.fetch_add(1, Ordering::Relaxed);
        if memory.addr().get() & align.wrapping_sub(1) != 0 {
            // SAFETY: the memory was allocated just above, and nothing uses it.
            unsafe { self.free(memory) };
            return Err(EINVAL);
        }
        Ok(Some(memory))
    }

    /// Frees memory.
    ///
    /// # Safety
    ///
    /// [`Allocator::allocate`] returned it, and nothing uses it.
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by the invariants and the caller's contract.
        unsafe {
            let domain = self.domain.as_ptr();
            (self.free)(domain, self.context, memory.as_ptr().cast(), RESOURCE);
        }
        self.domain.users.fetch_sub(1, Ordering::Release);
    }
}

impl Pd {
    /// Returns whether one thread uses the objects of the domain, as the program promises.
    pub(crate) fn is_of_one_thread(&self) -> bool {
        let parent = self.parent.as_ref();
        parent.is_some_and(|parent| parent.td.is_some())
    }

    /// Returns the functions that allocate memory for the rings of the domain.
    pub(crate) fn allocator(&self) -> Option<Allocator> {
        self.parent.as_ref()?.allocator
    }

    /// Returns the device that the domain belongs to.
    pub(crate) fn context(&self) -> Ptr<IbvContext> {
        self.verbs.context
    }
}

/// `ibv_alloc_pd`.
pub(crate) extern "C" fn alloc_pd(context: Ptr<IbvContext>) -> *mut IbvPd {
    object::create(|| {
        let mut pd = Owned::new(Pd {
            verbs: IbvPd { context, handle: 0 },
            parent: None,
            users: AtomicU32::new(0),
        })?;
        let error = command::alloc_pd(context, &mut pd.verbs);
        report_limit("a protection domain", NOT_PINNED, error)?;
        Ok(pd)
    })
}

/// `ibv_import_pd`.
pub(crate) extern "C" fn import_pd(context: Ptr<IbvContext>, handle: u32) -> *mut IbvPd {
    object::create(|| {
        command::query_pd(context, handle)?;
        Owned::new(Pd {
            verbs: IbvPd { context, handle },
            parent: None,
            users: AtomicU32::new(0),
        })
    })
}

/// `ibv_alloc_td`.
///
/// # Safety
///
/// `attr` points to the attributes.
pub(crate) unsafe extern "C" fn alloc_td(
    context: Ptr<IbvContext>,
    attr: *const IbvTdInitAttr,
) -> *mut IbvTd {
    object::create(|| {
        // SAFETY: the caller's contract.
        if unsafe { (*attr).comp_mask } != 0 {
            return Err(EOPNOTSUPP);
        }
        Owned::new(Td {
            verbs: IbvTd { context },
            users: AtomicU32::new(0),
        })
    })
}

/// `ibv_dealloc_td`. Fails with `EBUSY` if a parent domain is made of it.
///
/// # Safety
///
/// Unless the call fails, nothing uses the domain afterwards.
pub(crate) unsafe extern "C" fn dealloc_td(td: Ptr<IbvTd>) -> c_int {
    let error = if_unused(&td.users);
    // SAFETY: the program passes a domain of `alloc_td`; the rest is this function's contract.
    unsafe { object::destroy(td, error) }
}

/// Returns 0 if nothing uses an object, or `EBUSY`.
fn if_unused(users: &AtomicU32) -> c_int {
    match users.load(Ordering::Acquire) {
        0 => 0,
        _ => EBUSY,
    }
}

/// Returns the functions of a parent domain. Fails with `EINVAL` if one is missing.
///
/// # Safety
///
/// `domain` will be the address of the domain. `attr` has the members that its `comp_mask` names.
unsafe fn allocator(
    domain: *mut IbvPd,
    attr: *const IbvParentDomainInitAttr,
) -> Result<Option<Allocator>, c_int> {
    // SAFETY: the caller's contract. A program that passes fewer members has fewer in memory.
    unsafe {
        let comp_mask = (*attr).comp_mask;
        if comp_mask & parent_domain_init_attr::ALLOCATORS == 0 {
            return Ok(None);
        }
        let context = match comp_mask & parent_domain_init_attr::PD_CONTEXT {
            0 => ptr::null_mut(),
            _ => (*attr).pd_context,
        };
        // INVARIANT: the program passes its functions for this purpose. The domain counts the
        // memory that they allocate, and is not deallocated before it is freed.
        Ok(Some(Allocator {
            domain: Ptr::new(domain),
            context,
            alloc: (*attr).alloc.ok_or(EINVAL)?,
            free: (*attr).free.ok_or(EINVAL)?,
        }))
    }
}

/// `ibv_alloc_parent_domain`.
///
/// # Safety
///
/// `attr` has the members up to `comp_mask`, and those that `comp_mask` names.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: Ptr<IbvContext>,
    attr: *const IbvParentDomainInitAttr,
) -> *mut IbvPd {
    object::create(|| {
        let known = parent_domain_init_attr::ALLOCATORS | parent_domain_init_attr::PD_CONTEXT;
        // SAFETY: the caller's contract.
        let (pd, td, comp_mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
        let pd = pd.ok_or(EINVAL)?;
        if comp_mask & !known != 0 {
            return Err(EOPNOTSUPP);
        }
        // A parent domain is made of a protection domain of the same device.
        if pd.parent.is_some() || pd.context().as_ptr() != context.as_ptr() {
            return Err(EINVAL);
        }
        let mut parent = Owned::new(Pd {
            verbs: IbvPd {
                context,
                handle: pd.verbs.handle,
            },
            parent: Some(Parent {
                pd,
                td,
                allocator: None,
            }),
            users: AtomicU32::new(0),
        })?;
        if comp_mask != 0 {
            let domain = &raw mut parent.verbs;
            // SAFETY: the caller's contract: `comp_mask` names members.
            let allocator = unsafe { allocator(domain, attr) }?;
            if let Some(parts) = &mut parent.parent {
                parts.allocator = allocator;
            }
        }
        pd.users.fetch_add(1, Ordering::Relaxed);
        if let Some(td) = td {
            td.users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(parent)
    })
}

/// `ibv_dealloc_pd`. Fails with `EBUSY` if a parent domain is made of the domain, or if a ring is
/// in memory that the functions of the domain have allocated.
///
/// # Safety
///
/// Unless the call fails, nothing uses the domain afterwards.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: Ptr<IbvPd>) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { release(pd, Some(ibv_cmd_dealloc_pd)) }
}

/// `ibv_unimport_pd`. The kernel's protection domain remains. The call cannot fail: a domain that
/// [`dealloc_pd`] would refuse with `EBUSY` keeps its memory.
///
/// # Safety
///
/// Nothing uses the domain afterwards, except parent domains that are made of it.
pub(crate) unsafe extern "C" fn unimport_pd(pd: Ptr<IbvPd>) {
    // SAFETY: the caller's contract.
    unsafe { release(pd, None) };
}

/// Frees a domain, after `kernel`, if there is one, has freed the kernel's part of a protection
/// domain.
///
/// # Safety
///
/// Unless this fails, nothing uses the domain afterwards.
unsafe fn release(pd: Ptr<IbvPd>, kernel: Option<extern "C" fn(Ptr<IbvPd>) -> c_int>) -> c_int {
    let error = match (&pd.parent, if_unused(&pd.users)) {
        (Some(parent), 0) => {
            parent.pd.users.fetch_sub(1, Ordering::Release);
            if let Some(td) = parent.td {
                td.users.fetch_sub(1, Ordering::Release);
            }
            0
        }
        (None, 0) => kernel.map_or(0, |kernel| kernel(pd)),
        (_, error) => error,
    };
    // SAFETY: the program passes a domain of this file; the rest is this function's contract.
    unsafe { object::destroy(pd, error) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::tests::context;
    use crate::ffi::os;
    use core::ffi::c_int;

    /// Returns a protection domain that the kernel does not know.
    pub(crate) fn pd() -> Ptr<IbvPd> {
        let pd = alloc_pd(context());
        assert!(!pd.is_null());
        // SAFETY: the domain lives until it is deallocated.
        unsafe { Ptr::new(pd) }
    }

    unsafe extern "C" fn alloc(
        _: *mut IbvPd,
        context: *mut c_void,
        size: usize,
        align: usize,
        resource: u64,
    ) -> *mut c_void {
        assert_eq!((align, resource >> 32), (4096, 0x7272_7865));
        // SAFETY: the tests pass a counter of their own.
        unsafe { context.cast::<usize>().write(size) };
        let layout = std::alloc::Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not zero.
        unsafe { std::alloc::alloc(layout).cast() }
    }

    unsafe extern "C" fn free(_: *mut IbvPd, context: *mut c_void, memory: *mut c_void, _: u64) {
        assert!(!memory.is_null());
        // SAFETY: as above. The memory is leaked.
        unsafe { *context.cast::<usize>() = 0 };
    }

    unsafe extern "C" fn default(
        _: *mut IbvPd,
        _: *mut c_void,
        _: usize,
        _: usize,
        _: u64,
    ) -> *mut c_void {
        ptr::without_provenance_mut(USE_DEFAULT)
    }

    fn attributes(pd: Option<Ptr<IbvPd>>) -> IbvParentDomainInitAttr {
        IbvParentDomainInitAttr {
            pd,
            td: None,
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: ptr::null_mut(),
        }
    }

    fn make(attr: &IbvParentDomainInitAttr) -> Result<Ptr<IbvPd>, c_int> {
        let context = attr.pd.map_or_else(context, |pd| pd.context());
        // SAFETY: the attributes are complete, and the domain lives until it is deallocated.
        unsafe {
            match alloc_parent_domain(context, attr) {
                made if made.is_null() => Err(os::errno()),
                made => Ok(Ptr::new(made)),
            }
        }
    }

    #[test]
    fn domains_in_use_stay() {
        let pd = pd();
        // SAFETY: the attributes are complete, and objects are not used after their end.
        unsafe {
            let td = alloc_td(context(), &IbvTdInitAttr { comp_mask: 0 });
            let td = Ptr::new(td);
            let mut attr = attributes(Some(pd));
            attr.td = Some(td);
            let parent = make(&attr).ok().unwrap();
            assert!(parent.is_of_one_thread() && !pd.is_of_one_thread());
            assert_eq!((dealloc_td(td), dealloc_pd(pd)), (EBUSY, EBUSY));
            assert_eq!(make(&attributes(Some(parent))).err(), Some(EINVAL));
            assert_eq!(make(&attributes(None)).err(), Some(EINVAL));
            attr.comp_mask = 4;
            assert_eq!(make(&attr).err(), Some(EOPNOTSUPP));
            assert_eq!(dealloc_pd(parent), 0);
            assert_eq!((dealloc_td(td), dealloc_pd(pd)), (0, 0));
            let odd = alloc_td(context(), &IbvTdInitAttr { comp_mask: 1 });
            assert!(odd.is_null() && os::errno() == EOPNOTSUPP);
        }
    }

    #[test]
    fn an_imported_domain_in_use_stays() {
        let imported = import_pd(context(), 7);
        assert!(!imported.is_null());
        // SAFETY: the domain lives until its import ends without a parent domain.
        unsafe {
            let pd = Ptr::new(imported);
            assert_eq!((*imported).handle, 7);
            let parent = make(&attributes(Some(pd))).ok().unwrap();
            assert_eq!(parent.verbs.handle, 7);
            unimport_pd(pd);
            assert_eq!(pd.users.load(Ordering::Relaxed), 1);
            unimport_pd(parent);
            assert_eq!(pd.users.load(Ordering::Relaxed), 0);
            unimport_pd(pd);
        }
    }

    #[test]
    fn rings_are_in_memory_of_the_program() {
        let (pd, mut used) = (pd(), 0_usize);
        let mut attr = attributes(Some(pd));
        attr.comp_mask = parent_domain_init_attr::ALLOCATORS | parent_domain_init_attr::PD_CONTEXT;
        assert_eq!(make(&attr).err(), Some(EINVAL));
        attr.alloc = Some(alloc);
        attr.free = Some(free);
        attr.pd_context = (&raw mut used).cast();
        let parent = make(&attr).ok().unwrap();
        let allocator = parent.allocator();
        let ring = crate::ring::Ring::allocate_in(allocator.as_ref(), 64, 64).unwrap();
        assert_eq!(ring.spec().addr % 4096, 0);
        assert_eq!(ring.producer().load(Ordering::Relaxed), 0);
        // SAFETY: the counter outlives the domain.
        assert_eq!(unsafe { (&raw const used).read_volatile() }, 8192);
        // SAFETY: the domain is in use, so it stays.
        assert_eq!(unsafe { dealloc_pd(parent) }, EBUSY);
        drop(ring);
        // SAFETY: as above.
        assert_eq!(unsafe { (&raw const used).read_volatile() }, 0);
        attr.alloc = Some(default);
        let usual = make(&attr).ok().unwrap();
        let allocator = usual.allocator();
        drop(crate::ring::Ring::allocate_in(allocator.as_ref(), 64, 64).unwrap());
        // SAFETY: nothing uses the domains afterwards.
        unsafe {
            assert_eq!((dealloc_pd(parent), dealloc_pd(usual)), (0, 0));
            assert_eq!(dealloc_pd(pd), 0);
        }
    }
}
