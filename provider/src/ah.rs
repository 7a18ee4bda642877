// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles. The kernel resolves the address and assigns the handle a number, which work
//! queue entries carry.

use crate::abi;
use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_create_ah, ibv_cmd_destroy_ah};
use crate::ffi::verbs::{IbvAh, IbvAhAttr, IbvPd};
use crate::{object, quota};
use core::ffi::c_int;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    ibv: IbvAh,
    number: u32,
}

/// Returns the number of an address handle for work queue entries.
///
/// # Safety
///
/// `ah` is an address handle of rrxe.
#[inline]
pub(crate) unsafe fn number(ah: *const IbvAh) -> u32 {
    // SAFETY: the public part is the first member of the `Ah` that `create_ah` returned. Nothing
    // writes the number after that.
    unsafe { (*ah.cast::<Ah>()).number }
}

/// `ibv_create_ah`.
///
/// # Safety
///
/// Called by libibverbs with a protection domain of an open rrxe device.
pub(crate) unsafe extern "C" fn create_ah(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh {
    object::create(|| {
        let mut resp = command::CreateAhResp {
            core: command::Words::zeroed(),
            driver: abi::CreateAhResp::default(),
        };
        // SAFETY: integers and pointers that may be null.
        let mut ah: Box<Ah> = Box::new(unsafe { command::zeroed() });
        // SAFETY: the caller's contract, and the response has the size given.
        object::check(unsafe {
            let error = ibv_cmd_create_ah(pd, &mut ah.ibv, attr, &mut resp, size_of_val(&resp));
            quota::explained((*pd).context, "an address handle", error)
        })?;
        ah.number = resp.driver.ah;
        Ok(ah)
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
///
/// Called by libibverbs with a handle that [`create_ah`] returned.
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut IbvAh) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<Ah, _>(ah, ibv_cmd_destroy_ah(ah)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates an address handle without a device, which lives as long as the test program.
    pub(crate) fn numbered(number: u32) -> *mut IbvAh {
        let null = core::ptr::null_mut();
        let ibv = IbvAh {
            context: null,
            pd: core::ptr::null_mut(),
            handle: 0,
        };
        Box::into_raw(Box::new(Ah { ibv, number })).cast()
    }
}
