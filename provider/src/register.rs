// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration with libibverbs: the devices that this provider serves, and the verbs that it
//! implements.

use crate::abi;
use crate::ffi::driver::*;
use crate::ffi::verbs::*;
use crate::ffi::{command, ptr::Ptr};
use crate::{ah, context, cq, mw, object, post, qp, srq};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

/// Matches the devices of the kernel driver rrxe. They are not matched by name, because `rdma dev
/// set ... name` changes it.
static MATCH_TABLE: [VerbsMatchEnt; 2] = [
    VerbsMatchEnt {
        driver_id: abi::DRIVER_ID as u64,
        kind: MATCH_DRIVER_ID,
        ..MATCH_SENTINEL
    },
    MATCH_SENTINEL,
];

/// Description of the provider for libibverbs, which keeps the address.
static DEVICE_OPS: VerbsDeviceOps = VerbsDeviceOps {
    name: c"rrxe".as_ptr(),
    match_min_abi_version: abi::ABI_VERSION,
    match_max_abi_version: abi::ABI_VERSION,
    match_table: MATCH_TABLE.as_ptr(),
    static_providers: core::ptr::null(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// Runs when the library is loaded.
extern "C" fn register() {
    // SAFETY: the table lives as long as the library, which is never unloaded.
    unsafe { verbs_register_driver(&DEVICE_OPS) }
}

// Unit tests must not touch the devices of the machine that they run on.
#[cfg_attr(test, expect(dead_code, reason = "tests call what they test"))]
#[cfg_attr(not(test), used, link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

/// Returns the table of operations: each has its offset in the table of private ABI 34 and of 65,
/// which inserts operations between those of 34, its function, and the C type.
///
/// The types state what libibverbs guarantees: a [`Ptr`] points to an object of this provider, a
/// reference to a structure of the program (or of libibverbs) that may be read, a mutable one to
/// one that may also be written. An optional argument may be null.
macro_rules! operations {
    ($(
        ($pabi34:literal, $pabi65:literal) $function:path: fn($($type:ty),*) $(-> $result:ty)?;
    )*) => {{
        let mut table = [core::ptr::null(); OPERATIONS];
        $({
            let function: unsafe extern "C" fn($($type),*) $(-> $result)? = $function;
            table[const { by_pabi($pabi34, $pabi65) / 8 }] = function as *const c_void;
        })*
        VerbsContextOps(table)
    }};
}

/// Verbs that this provider implements.
pub(crate) static OPS: VerbsContextOps = operations! {
    (464, 552) context::query_device_ex: fn(
        Ptr<IbvContext>, Option<&IbvQueryDeviceExInput>, *mut IbvDeviceAttrEx, usize
    ) -> c_int;
    (480, 568) command::query_port: fn(Ptr<IbvContext>, u8, &mut IbvPortAttr) -> c_int;
    (504, 600) context::query_rt_values: fn(Ptr<IbvContext>, &mut IbvValuesEx) -> c_int;
    (312, 368) context::free_context: fn(Ptr<IbvContext>);
    (40, 56) object::alloc_pd: fn(Ptr<IbvContext>) -> *mut IbvPd;
    (208, 240) object::dealloc_pd: fn(Ptr<IbvPd>) -> c_int;
    (544, 656) object::reg_mr: fn(Ptr<IbvPd>, *mut c_void, usize, u64, c_int) -> *mut IbvMr;
    (560, 680) object::rereg_mr: fn(
        Ptr<VerbsMr>, c_int, Option<Ptr<IbvPd>>, *mut c_void, usize, c_int
    ) -> c_int;
    (224, 256) object::dereg_mr: fn(Ptr<VerbsMr>) -> c_int;
    (16, 32) mw::alloc_mw: fn(Ptr<IbvPd>, u32) -> *mut IbvMw;
    (80, 96) post::bind_mw: fn(Ptr<IbvQp>, Ptr<IbvMw>, &IbvMwBind) -> c_int;
    (200, 232) object::dealloc_mw: fn(Ptr<IbvMw>) -> c_int;
    (104, 120) ah::create_ah: fn(Ptr<IbvPd>, &IbvAhAttr) -> *mut IbvAh;
    (232, 264) object::destroy_ah: fn(Ptr<IbvAh>) -> c_int;
    (120, 144) cq::create_cq: fn(
        Ptr<IbvContext>, c_int, Option<&IbvCompChannel>, c_int
    ) -> *mut IbvCq;
    (128, 152) cq::create_cq_ex: fn(Ptr<IbvContext>, &IbvCqInitAttrEx) -> *mut IbvCqEx;
    (248, 288) object::destroy_cq: fn(Ptr<IbvCq>) -> c_int;
    (568, 688) cq::resize_cq: fn(Ptr<IbvCq>, c_int) -> c_int;
    (424, 496) cq::poll_cq: fn(Ptr<IbvCq>, c_int, *mut IbvWc) -> c_int;
    (552, 672) cq::req_notify_cq: fn(Ptr<IbvCq>, c_int) -> c_int;
    (152, 176) qp::create_qp: fn(Ptr<IbvPd>, &mut IbvQpInitAttr) -> *mut IbvQp;
    (160, 184) qp::create_qp_ex: fn(Ptr<IbvContext>, &mut IbvQpInitAttrEx) -> *mut IbvQp;
    (376, 448) qp::modify_qp: fn(Ptr<IbvQp>, &IbvQpAttr, c_int) -> c_int;
    (488, 584) qp::query_qp: fn(
        Ptr<IbvQp>, &mut MaybeUninit<IbvQpAttr>, c_int, &mut MaybeUninit<IbvQpInitAttr>
    ) -> c_int;
    (272, 312) qp::destroy_qp: fn(Ptr<IbvQp>) -> c_int;
    (416, 488) object::open_xrcd: fn(Ptr<IbvContext>, &IbvXrcdInitAttr) -> *mut IbvXrcd;
    (88, 104) object::close_xrcd: fn(Ptr<IbvXrcd>) -> c_int;
    (408, 480) qp::open_qp: fn(Ptr<IbvContext>, &IbvQpOpenAttr) -> *mut IbvQp;
    (176, 200) srq::create_srq: fn(Ptr<IbvPd>, &mut IbvSrqInitAttr) -> *mut IbvSrq;
    (184, 208) srq::create_srq_ex: fn(Ptr<IbvContext>, &mut IbvSrqInitAttrEx) -> *mut IbvSrq;
    (328, 384) srq::get_srq_num: fn(Ptr<IbvSrq>, &mut MaybeUninit<u32>) -> c_int;
    (392, 464) srq::modify_srq: fn(Ptr<IbvSrq>, &IbvSrqAttr, c_int) -> c_int;
    (512, 608) command::query_srq: fn(Ptr<IbvSrq>, &mut MaybeUninit<IbvSrqAttr>) -> c_int;
    (288, 328) object::destroy_srq: fn(Ptr<IbvSrq>) -> c_int;
    (456, 528) srq::post_srq_recv: fn(Ptr<IbvSrq>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
    (72, 88) qp::attach_mcast: fn(Ptr<IbvQp>, &IbvGid, u16) -> c_int;
    (304, 344) ibv_cmd_detach_mcast: fn(Ptr<IbvQp>, &IbvGid, u16) -> c_int;
    (440, 512) post::post_send: fn(Ptr<IbvQp>, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
    (432, 504) post::post_recv: fn(Ptr<IbvQp>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
};

/// Allocates a device that libibverbs has found; libibverbs fills it in.
///
/// # Safety
///
/// Called by libibverbs.
unsafe extern "C" fn alloc_device(_sysfs_dev: *mut VerbsSysfsDev) -> *mut VerbsDevice {
    Box::into_raw(Box::new(VerbsDevice { unused: [0; 89] }))
}

/// Frees a device.
///
/// # Safety
///
/// Called by libibverbs with an unused device that [`alloc_device`] returned.
unsafe extern "C" fn uninit_device(device: *mut VerbsDevice) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(device) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_by_number_only() {
        let [first, last] = &MATCH_TABLE;
        assert_eq!(
            (first.kind, first.driver_id),
            (MATCH_DRIVER_ID, 0x7272_7865)
        );
        assert_eq!(last.kind, MATCH_SENTINEL.kind);
        assert_eq!(
            (
                DEVICE_OPS.match_min_abi_version,
                DEVICE_OPS.match_max_abi_version
            ),
            (64, 64)
        );
    }

    #[test]
    fn devices_come_and_go() {
        // SAFETY: the device is freed right away.
        unsafe {
            let device = alloc_device(core::ptr::null_mut());
            assert_eq!((*device).unused, [0; 89]);
            uninit_device(device);
        }
    }
}
