// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory windows. Work requests bind them; for type 1 `ibv_bind_mw` posts the work request.

use crate::abi::WqeOp;
use crate::ffi::command;
use crate::ffi::driver::{ibv_cmd_alloc_mw, ibv_cmd_dealloc_mw};
use crate::ffi::os::EINVAL;
use crate::ffi::verbs::*;
use crate::{object, post, quota};
use core::ffi::c_int;

/// `ibv_alloc_mw`.
///
/// # Safety
///
/// Called by libibverbs with a protection domain of an open rrxe device.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut IbvPd, mw_type: u32) -> *mut IbvMw {
    object::create(|| {
        let mut cmd = command::AllocMw::zeroed();
        let mut resp = command::AllocMwResp::zeroed();
        // SAFETY: integers and pointers that may be null.
        let mut mw: Box<IbvMw> = Box::new(unsafe { command::zeroed() });
        // SAFETY: the caller's contract, and the buffers have the sizes given. libibverbs fills in
        // the window.
        object::check(unsafe {
            let error = ibv_cmd_alloc_mw(
                pd,
                mw_type,
                &mut *mw,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            );
            quota::explained((*pd).context, "a memory window", error)
        })?;
        Ok(mw)
    })
}

/// `ibv_dealloc_mw`.
///
/// # Safety
///
/// Called by libibverbs with a window that [`alloc_mw`] returned.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut IbvMw) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<IbvMw, _>(mw, ibv_cmd_dealloc_mw(mw)) }
}

/// Returns the key after `rkey`. It differs in the low eight bits, which belong to the consumer
/// (`ibv_inc_rkey`).
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// `ibv_bind_mw`: binds a window of type 1, which changes its key.
///
/// # Safety
///
/// Called by libibverbs with a queue pair and a window of rrxe, of type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut IbvQp,
    mw: *mut IbvMw,
    bind: *mut IbvMwBind,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let rkey = next_key((*mw).rkey);
        let op = operands(rkey, &(*bind).bind_info);
        let error = post::bind_window(qp, (*bind).wr_id, (*bind).send_flags, op);
        if error == 0 {
            (*mw).rkey = rkey;
        }
        error
    }
}

/// Returns the operands of a work request that binds a window of type 2. Fails with `EINVAL` if the
/// key is not one of the window's, or if the window is of type 1.
///
/// # Safety
///
/// `mw` is null or a window of rrxe, and the region in `info` is null or one of rrxe.
pub(crate) unsafe fn encode(
    mw: *const IbvMw,
    rkey: u32,
    info: &IbvMwBindInfo,
) -> Result<WqeOp, c_int> {
    // SAFETY: the caller's contract.
    match unsafe { mw.as_ref() } {
        Some(mw) if mw.mw_type == mw_type::TYPE_2 && (mw.rkey ^ rkey) < 0x100 => {
            // SAFETY: the caller's contract.
            Ok(unsafe { operands(rkey, info) })
        }
        _ => Err(EINVAL),
    }
}

/// # Safety
///
/// The region in `info` is null or one of rrxe.
unsafe fn operands(rkey: u32, info: &IbvMwBindInfo) -> WqeOp {
    WqeOp {
        remote_addr: info.addr,
        compare_add: info.length,
        swap: info.mw_access_flags.into(),
        rkey_or_qkey: rkey,
        // SAFETY: the caller's contract.
        remote_qpn: unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(mw_type: u32) -> IbvMw {
        IbvMw {
            context: core::ptr::null_mut(),
            pd: core::ptr::null_mut(),
            rkey: 0x1234_56ff,
            handle: 0,
            mw_type,
        }
    }

    #[test]
    fn keys_follow_each_other() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }

    #[test]
    fn keys_are_those_of_the_window() {
        let info = IbvMwBindInfo {
            mr: core::ptr::null_mut(),
            addr: 5,
            length: 6,
            mw_access_flags: 7,
        };
        // SAFETY: the windows live; there is no region.
        unsafe {
            let op = encode(&window(2), 0x1234_5601, &info).unwrap();
            assert_eq!((op.remote_addr, op.compare_add, op.swap), (5, 6, 7));
            assert_eq!((op.rkey_or_qkey, op.remote_qpn), (0x1234_5601, 0));
            assert_eq!(encode(&window(2), 0x1234_5701, &info).err(), Some(EINVAL));
            assert_eq!(encode(&window(1), 0x1234_5601, &info).err(), Some(EINVAL));
            let none = core::ptr::null();
            assert_eq!(encode(none, 0x1234_5601, &info).err(), Some(EINVAL));
        }
    }
}
