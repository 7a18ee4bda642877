// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use crate::ffi::command;
use crate::ffi::driver::ibv_cmd_dealloc_pd;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{IbvContext, IbvPd};
use crate::object;
use crate::shortage::NOT_PINNED;
use core::ffi::c_int;

/// `ibv_alloc_pd`.
pub(crate) extern "C" fn alloc_pd(context: Ptr<IbvContext>) -> *mut IbvPd {
    object::create(|| {
        let mut pd = Box::new(IbvPd { context, handle: 0 });
        let allocated = command::alloc_pd(context, &mut pd);
        context.explained("a protection domain", NOT_PINNED, allocated)?;
        Ok(pd)
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
///
/// Unless the call fails, nothing uses the domain afterwards.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: Ptr<IbvPd>) -> c_int {
    // SAFETY: `alloc_pd` created the domain; the rest is this function's contract.
    unsafe { object::destroy(pd, ibv_cmd_dealloc_pd(pd)) }
}
