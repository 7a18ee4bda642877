// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration with libibverbs: the devices that this provider serves, and the verbs that it
//! implements.

use crate::abi;
use crate::context::{self, Context};
use crate::ffi::driver::*;
use crate::ffi::operations::VerbsContextOps;
use crate::ffi::verbs::IbvDevice;
use crate::ffi::{command, os, pabi};
use crate::{ah, cq, mr, mw, object, pd, post, qp, srq};
use core::ffi::{c_int, c_void};

/// Matches the devices of the kernel driver rrxe. They are not matched by name, because `rdma dev
/// set ... name` changes it.
static MATCH_TABLE: [VerbsMatchEnt; 2] = [
    VerbsMatchEnt::driver_id(abi::DRIVER_ID),
    VerbsMatchEnt::sentinel(),
];

/// Description of the provider for libibverbs, which keeps the address.
static DEVICE_OPS: VerbsDeviceOps = VerbsDeviceOps {
    name: c"rrxe".as_ptr(),
    match_min_abi_version: abi::ABI_VERSION,
    match_max_abi_version: abi::ABI_VERSION,
    match_table: MATCH_TABLE.as_ptr(),
    static_providers: core::ptr::null(),
    match_device: None,
    alloc_context: Some(alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// Runs when the library is loaded.
extern "C" fn register() {
    // SAFETY: the table lives as long as the library, which is never unloaded.
    unsafe { pabi::verbs_register_driver(&DEVICE_OPS) }
}

// Unit tests must not touch the devices of the machine that they run on.
#[cfg_attr(test, expect(dead_code, reason = "tests call what they test"))]
#[cfg_attr(not(test), used, link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

/// Verbs that this provider implements. libibverbs returns `EOPNOTSUPP` for all others.
static OPS: VerbsContextOps = VerbsContextOps {
    query_device_ex: Some(context::query_device_ex),
    query_port: Some(context::query_port),
    query_rt_values: Some(context::query_rt_values),
    free_context: Some(context::free_context),
    alloc_pd: Some(pd::alloc_pd),
    dealloc_pd: Some(object::dealloc_pd),
    reg_mr: Some(mr::reg_mr),
    rereg_mr: Some(mr::rereg_mr),
    dereg_mr: Some(object::dereg_mr),
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(post::bind_mw),
    dealloc_mw: Some(object::dealloc_mw),
    create_ah: Some(ah::create_ah),
    destroy_ah: Some(object::destroy_ah),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    destroy_cq: Some(object::destroy_cq),
    resize_cq: Some(cq::resize_cq),
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    modify_qp: Some(qp::modify_qp),
    query_qp: Some(qp::query_qp),
    destroy_qp: Some(qp::destroy_qp),
    open_xrcd: Some(pd::open_xrcd),
    close_xrcd: Some(object::close_xrcd),
    open_qp: Some(qp::open_qp),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    get_srq_num: Some(srq::get_srq_num),
    modify_srq: Some(srq::modify_srq),
    query_srq: Some(srq::query_srq),
    destroy_srq: Some(object::destroy_srq),
    post_srq_recv: Some(srq::post_srq_recv),
    attach_mcast: Some(qp::attach_mcast),
    detach_mcast: Some(ibv_cmd_detach_mcast),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    ..VerbsContextOps::empty()
};

/// Opens a device.
///
/// # Safety
///
/// Called by libibverbs with a device that it matched and a descriptor of its uverbs file, whose
/// ownership passes to this function.
unsafe extern "C" fn alloc_context(
    device: *mut IbvDevice,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut VerbsContext {
    // SAFETY: the caller's contract. The table matches libibverbs' private ABI.
    unsafe {
        match Context::open(device, cmd_fd) {
            Ok(context) => {
                verbs_set_ops(context, &OPS);
                context
            }
            Err(error) => os::fail(error),
        }
    }
}

/// Allocates a device that libibverbs has found; libibverbs fills it in.
///
/// # Safety
///
/// Called by libibverbs.
unsafe extern "C" fn alloc_device(_sysfs_dev: *mut VerbsSysfsDev) -> *mut VerbsDevice {
    // SAFETY: integers, pointers that may be null, and byte arrays.
    Box::into_raw(Box::new(unsafe { command::zeroed() }))
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
    use crate::ffi::driver;

    #[test]
    fn matches_by_number_only() {
        let [first, last] = &MATCH_TABLE;
        assert_eq!(
            (first.kind, first.driver_id),
            (driver::MATCH_DRIVER_ID, 0x7272_7865)
        );
        assert_eq!(last.kind, driver::MATCH_SENTINEL);
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
            assert!((*device).sysfs.is_null());
            uninit_device(device);
        }
    }
}
