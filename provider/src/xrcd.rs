// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! XRC domains, which are implemented by the kernel.

use crate::ffi::command;
use crate::ffi::driver::VerbsXrcd;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{IbvContext, IbvXrcd, IbvXrcdInitAttr};
use crate::object;
use crate::shortage::NOT_PINNED;
use core::ffi::c_int;

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
