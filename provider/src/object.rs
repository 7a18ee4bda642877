// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Code that the verbs that create objects have in common, and the objects without state of their
//! own, which the kernel implements: XRC domains and memory regions.
//!
//! An object is an [`Owned`] whose first member is the part that libibverbs and the program see.

use crate::abi;
use crate::dm::DmUse;
use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{self, EOPNOTSUPP};
use crate::ffi::ptr::{Foreign, Ptr, Public};
use crate::ffi::verbs::*;
use crate::memory::Owned;
use crate::shortage::{report_limit, NOT_PINNED};
use core::ffi::{c_int, c_void};

/// Creates an object with `make` and returns its public part. If `make` fails, returns null with
/// the error in `errno`.
pub(crate) fn create<T, P>(make: impl FnOnce() -> Result<Owned<T>, c_int>) -> *mut P {
    match make() {
        Ok(object) => object.into_raw().cast(),
        Err(error) => os::fail(error),
    }
}

/// Frees an object if `error`, the result of the kernel's command, is 0. Returns `error`.
///
/// # Safety
///
/// [`create`] made `object` of an [`Owned`] of its [`Public::Object`]. If `error` is 0, nothing
/// uses the object.
pub(crate) unsafe fn destroy<P: Public>(object: Ptr<P>, error: c_int) -> c_int {
    if error == 0 {
        // SAFETY: the object is no longer in use.
        drop(unsafe { Owned::from_raw(object.as_ptr().cast::<P::Object>()) });
    }
    error
}

/// Defines verbs that destroy an object. Each has the type of the public part, and the function
/// that destroys the kernel's part.
macro_rules! destroying {
    ($(fn $name:ident($public:ty) = $command:ident;)*) => {$(
        #[doc = concat!("`ibv_", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// Unless the call fails, nothing uses the object afterwards.
        pub(crate) unsafe extern "C" fn $name(object: Ptr<$public>) -> c_int {
            // SAFETY: the program passes an object that a verb made with `create`; the rest is this
            // function's contract.
            unsafe { destroy(object, $command(object)) }
        }
    )*};
}

destroying! {
    fn dereg_mr(VerbsMr) = dereg_unless_null;
    fn dealloc_mw(IbvMw) = ibv_cmd_dealloc_mw;
    fn destroy_ah(IbvAh) = ibv_cmd_destroy_ah;
    fn destroy_cq(IbvCq) = ibv_cmd_destroy_cq;
    fn destroy_srq(IbvSrq) = ibv_cmd_destroy_srq;
    fn close_xrcd(IbvXrcd) = ibv_cmd_close_xrcd;
}

/// `ibv_open_xrcd`.
pub(crate) extern "C" fn open_xrcd(
    context: Ptr<IbvContext>,
    attr: Foreign<IbvXrcdInitAttr>,
) -> *mut IbvXrcd {
    create(|| {
        let mut xrcd = Owned::new(VerbsXrcd::default())?;
        let size = size_of::<VerbsXrcd>() as c_int;
        let error = command::open_xrcd(context, &mut xrcd, size, attr);
        report_limit("an XRC domain", NOT_PINNED, error)?;
        Ok(xrcd)
    })
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    /// Public part, which libibverbs fills in.
    pub(crate) verbs: VerbsMr,
    /// The device memory that the region is in.
    _dm: Option<DmUse>,
}

// SAFETY: the public part is the first member.
unsafe impl Public for VerbsMr {
    type Object = Mr;
}

impl Mr {
    /// Returns a region for libibverbs to fill in.
    pub(crate) fn new(dm: Option<DmUse>) -> Self {
        Self {
            verbs: VerbsMr::default(),
            _dm: dm,
        }
    }
}

/// `ibv_reg_mr` and `ibv_reg_mr_iova`.
pub(crate) extern "C" fn reg_mr(
    pd: Ptr<IbvPd>,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut IbvMr {
    create(|| {
        // libibverbs fills it in.
        let mut mr = Owned::new(Mr::new(None))?;
        let error = command::reg_mr(pd, addr, length, hca_va, access, &mut mr.verbs);
        report_limit("a memory region", (addr as u64, length), error)?;
        Ok(mr)
    })
}

/// `ibv_alloc_null_mr`. Fails with `EOPNOTSUPP` if the kernel's driver is too old.
///
/// All programs use the kernel's null region. As for mlx5, the protection domain may be deallocated
/// before the region.
pub(crate) extern "C" fn alloc_null_mr(pd: Ptr<IbvPd>) -> *mut IbvMr {
    create(|| {
        let kernel = &pd.context().kernel;
        if kernel.features & abi::FEATURE_NULL_KEY == 0 {
            return Err(EOPNOTSUPP);
        }
        let mut mr = Owned::new(Mr::new(None))?;
        mr.verbs.mr_type = MR_TYPE_NULL;
        mr.verbs.ibv_mr.context = Some(pd.context());
        mr.verbs.ibv_mr.pd = Some(pd);
        mr.verbs.ibv_mr.length = usize::MAX;
        mr.verbs.ibv_mr.lkey = kernel.null_key;
        Ok(mr)
    })
}

/// Deregisters the kernel's part of a region. The kernel does not know null regions.
extern "C" fn dereg_unless_null(mr: Ptr<VerbsMr>) -> c_int {
    if mr.verbs.mr_type == MR_TYPE_NULL {
        return 0;
    }
    ibv_cmd_dereg_mr(mr)
}

/// `ibv_rereg_mr`. The region's keys change if its memory changes. The protection domain is null
/// unless the flags change it.
pub(crate) extern "C" fn rereg_mr(
    mr: Ptr<VerbsMr>,
    flags: c_int,
    pd: Option<Ptr<IbvPd>>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let iova = addr as u64;
    let error = command::rereg_mr(mr, flags as u32, addr, length, iova, access, pd);
    status(report_limit("a memory region", (iova, length), error))
}

/// `ibv_import_mr`. As with other providers, the region need not be in the protection domain.
pub(crate) extern "C" fn import_mr(pd: Ptr<IbvPd>, handle: u32) -> *mut IbvMr {
    create(|| {
        // libibverbs fills it in.
        let mut mr = Owned::new(Mr::new(None))?;
        os::check(ibv_cmd_query_mr(pd, &mut mr.verbs, handle))?;
        Ok(mr)
    })
}

/// `ibv_unimport_mr`. The kernel's region remains.
///
/// # Safety
///
/// Nothing uses the object afterwards.
pub(crate) unsafe extern "C" fn unimport_mr(mr: Ptr<VerbsMr>) {
    // SAFETY: the program passes a region of `import_mr` or of another verb of this library; the
    // rest is this function's contract.
    unsafe { destroy(mr, 0) };
}

/// Returns the result of a verb, which is 0 or an error number.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::domain::tests::pd;

    #[test]
    fn a_null_region_needs_a_kernel_that_has_one() {
        let pd = pd();
        let context = pd.context().as_ptr().cast::<Context>();
        for (features, key) in [(abi::FEATURE_POLL, None), (abi::FEATURE_NULL_KEY, Some(7))] {
            // SAFETY: the context of a test, which nothing else uses.
            unsafe {
                (*context).kernel.features = features;
                (*context).kernel.null_key = 7;
            }
            let mr = alloc_null_mr(pd);
            assert_eq!(mr.is_null(), key.is_none());
            let Some(key) = key else {
                assert_eq!(os::errno(), EOPNOTSUPP);
                continue;
            };
            // SAFETY: `alloc_null_mr` has returned the region, which is used until it is freed.
            unsafe {
                assert_eq!(((*mr).lkey, (*mr).length), (key, usize::MAX));
                assert_eq!((*mr).pd.map(Ptr::as_ptr), Some(pd.as_ptr()));
                // The kernel has no such context, and is not asked.
                assert_eq!(dereg_mr(Ptr::new(mr.cast())), 0);
            }
        }
    }
}
