// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles. The kernel resolves the address and assigns the handle a number, which work
//! queue entries carry.

use crate::abi;
use crate::ffi::command;
use crate::ffi::driver::ibv_cmd_create_ah;
use crate::ffi::os::check;
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::{IbvAh, IbvAhAttr, IbvPd};
use crate::object;
use crate::shortage::NOT_PINNED;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    ibv: IbvAh,
    /// Number of the address handle for work queue entries.
    pub(crate) number: u32,
}

// SAFETY: the public part is the first member.
unsafe impl Public for IbvAh {
    type Object = Ah;
}

/// `ibv_create_ah`.
pub(crate) extern "C" fn create_ah(pd: Ptr<IbvPd>, attr: &IbvAhAttr) -> *mut IbvAh {
    object::create(|| {
        let mut resp = command::CreateAhResp {
            core: [0],
            driver: abi::CreateAhResp::default(),
        };
        let mut ibv = IbvAh {
            context: pd.context,
            pd: Some(pd),
            handle: 0,
        };
        let size = size_of_val(&resp);
        // SAFETY: the response has the size given.
        let created = check(unsafe { ibv_cmd_create_ah(pd, &mut ibv, attr, &mut resp, size) });
        pd.context
            .explained("an address handle", NOT_PINNED, created)?;
        let number = resp.driver.ah;
        Ok(Box::new(Ah { ibv, number }))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::tests::context;

    /// Creates an address handle without a device, which lives as long as the test program.
    pub(crate) fn numbered(number: u32) -> Ptr<IbvAh> {
        let ibv = IbvAh {
            context: context(),
            pd: None,
            handle: 0,
        };
        // SAFETY: the box is never freed.
        unsafe { Ptr::new(Box::into_raw(Box::new(Ah { ibv, number })).cast()) }
    }
}
