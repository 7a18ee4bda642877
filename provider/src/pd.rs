// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use crate::ffi::command;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{IbvContext, IbvPd};
use crate::object;
use crate::shortage::NOT_PINNED;

/// `ibv_alloc_pd`.
pub(crate) extern "C" fn alloc_pd(context: Ptr<IbvContext>) -> *mut IbvPd {
    object::create(|| {
        let mut pd = Box::new(IbvPd { context, handle: 0 });
        let allocated = command::alloc_pd(context, &mut pd);
        context.explained("a protection domain", NOT_PINNED, allocated)?;
        Ok(pd)
    })
}
