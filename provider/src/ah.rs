// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles. The kernel resolves the address and assigns the handle a number, which work
//! queue entries carry.

use crate::abi;
use crate::ffi::command;
use crate::ffi::driver::ibv_cmd_create_ah;
use crate::ffi::ptr::{Foreign, Ptr, Public};
use crate::ffi::verbs::{IbvAh, IbvAhAttr, IbvPd};
use crate::memory::Owned;
use crate::object;
use crate::shortage::{report_limit, NOT_PINNED};

/// An address handle.
#[derive(Default)]
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
pub(crate) extern "C" fn create_ah(pd: Ptr<IbvPd>, attr: Foreign<IbvAhAttr>) -> *mut IbvAh {
    object::create(|| {
        let mut ah = Owned::new(Ah::default())?;
        let mut resp = command::CreateAhResp {
            core: [0],
            driver: abi::CreateAhResp::default(),
        };
        let size = size_of_val(&resp);
        // SAFETY: the response has the size given.
        let error = unsafe { ibv_cmd_create_ah(pd, &mut ah.ibv, attr, &mut resp, size) };
        report_limit("an address handle", NOT_PINNED, error)?;
        ah.number = resp.driver.ah;
        Ok(ah)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates an address handle without a device, which lives as long as the test program.
    pub(crate) fn numbered(number: u32) -> Ptr<IbvAh> {
        let ibv = IbvAh::default();
        // SAFETY: the box is never freed.
        unsafe { Ptr::new(Box::into_raw(Box::new(Ah { ibv, number })).cast()) }
    }
}
