// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions, which are implemented by the kernel.

use crate::ffi::command;
use crate::ffi::driver::VerbsMr;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{IbvMr, IbvPd};
use crate::object;
use core::ffi::{c_int, c_void};

/// Name of the object in messages.
const WHAT: &str = "a memory region";

/// `ibv_reg_mr` and `ibv_reg_mr_iova`.
pub(crate) extern "C" fn reg_mr(
    pd: Ptr<IbvPd>,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut IbvMr {
    object::create(|| {
        // libibverbs fills in the rest.
        let mut mr = Box::new(VerbsMr {
            ibv_mr: IbvMr {
                context: pd.context,
                pd: Some(pd),
                addr,
                length,
                handle: 0,
                lkey: 0,
                rkey: 0,
            },
            mr_type: 0,
            access,
        });
        let registered = command::reg_mr(pd, addr, length, hca_va, access, &mut mr);
        pd.context
            .explained(WHAT, (addr as u64, length), registered)?;
        Ok(mr)
    })
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
    let changed = command::rereg_mr(mr, flags as u32, addr, length, iova, access, pd);
    let context = mr.ibv_mr.context;
    object::status(context.explained(WHAT, (iova, length), changed))
}
