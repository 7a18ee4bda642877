// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory windows. Work requests bind them ([`crate::post`]).

use crate::abi::WqeOp;
use crate::ffi::command;
use crate::ffi::os::EINVAL;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::*;
use crate::memory::Owned;
use crate::object;
use crate::shortage::{report_limit, NOT_PINNED};
use core::ffi::c_int;

/// `ibv_alloc_mw`.
pub(crate) extern "C" fn alloc_mw(pd: Ptr<IbvPd>, mw_type: u32) -> *mut IbvMw {
    object::create(|| {
        // libibverbs fills it in.
        let mut mw = Owned::new(IbvMw::default())?;
        let error = command::alloc_mw(pd, mw_type, &mut mw);
        report_limit("a memory window", NOT_PINNED, error)?;
        Ok(mw)
    })
}

/// Returns the key after `rkey`. It differs in the low eight bits, which belong to the consumer
/// (`ibv_inc_rkey`).
pub(crate) fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// Returns the operands of a work request that binds a window of type 2. Only the low eight bits of
/// `rkey` count, as for mlx5: they become those of the window's key. Fails with `EINVAL` if the
/// window is of type 1.
pub(crate) fn encode(
    mw: Option<Ptr<IbvMw>>,
    rkey: u32,
    info: &IbvMwBindInfo,
) -> Result<WqeOp, c_int> {
    match mw {
        Some(mw) if mw.mw_type == MW_TYPE_2 => {
            let key = mw.rkey.get() & !0xff | rkey & 0xff;
            Ok(operands(key, info))
        }
        _ => Err(EINVAL),
    }
}

/// Returns the operands of a work request that binds a window, whose key becomes `rkey`.
pub(crate) fn operands(rkey: u32, info: &IbvMwBindInfo) -> WqeOp {
    WqeOp {
        remote_addr: info.addr,
        compare_add: info.length,
        swap: info.mw_access_flags.into(),
        rkey_or_qkey: rkey,
        remote_qpn: info.mr.map_or(0, |mr| mr.lkey),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::cell::Cell;

    /// Creates a window without a device, which lives as long as the test program.
    pub(crate) fn window(mw_type: u32, rkey: u32) -> Option<Ptr<IbvMw>> {
        let mw = IbvMw {
            rkey: Cell::new(rkey),
            mw_type,
            ..IbvMw::default()
        };
        // SAFETY: the box is never freed.
        Some(unsafe { Ptr::new(Box::into_raw(Box::new(mw))) })
    }

    #[test]
    fn keys_follow_each_other() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }

    #[test]
    fn the_consumer_chooses_eight_bits_of_a_key() {
        let info = IbvMwBindInfo {
            mr: None,
            addr: 5,
            length: 6,
            mw_access_flags: 7,
        };
        let encode = |mw_type, key| encode(window(mw_type, 0x1234_56ff), key, &info);
        let op = encode(2, 0x1234_5601).unwrap();
        assert_eq!((op.remote_addr, op.compare_add, op.swap), (5, 6, 7));
        assert_eq!((op.rkey_or_qkey, op.remote_qpn), (0x1234_5601, 0));
        assert_eq!(encode(2, 0x5701).unwrap().rkey_or_qkey, 0x1234_5601);
        assert_eq!(encode(1, 0x1234_5601).err(), Some(EINVAL));
        assert_eq!(super::encode(None, 0x1234_5601, &info).err(), Some(EINVAL));
    }
}
