// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains and XRC domains, which are implemented by the kernel.

use crate::ffi::command;
use crate::ffi::driver::VerbsXrcd;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{IbvContext, IbvPd, IbvXrcd, IbvXrcdInitAttr};
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

/// `ibv_open_xrcd`.
pub(crate) extern "C" fn open_xrcd(
    context: Ptr<IbvContext>,
    attr: &IbvXrcdInitAttr,
) -> *mut IbvXrcd {
    object::create(|| {
        let mut xrcd = Box::new(VerbsXrcd {
            xrcd: IbvXrcd { context },
            comp_mask: 0,
            handle: 0,
        });
        let size = size_of::<VerbsXrcd>() as c_int;
        let opened = command::open_xrcd(context, &mut xrcd, size, attr);
        context.explained("an XRC domain", NOT_PINNED, opened)?;
        Ok(xrcd)
    })
}
