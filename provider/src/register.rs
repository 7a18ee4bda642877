// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration with libibverbs, which includes the devices that this provider serves.

use crate::abi;
use crate::context;
use crate::ffi::driver::{VerbsDevice, VerbsDeviceOps, VerbsMatchEnt, VerbsSysfsDev};
use crate::ffi::{command, pabi};

struct MatchTable([VerbsMatchEnt; 2]);

// SAFETY: immutable, and its pointers are null.
unsafe impl Sync for MatchTable {}

/// Matches the devices of the kernel driver rrxe. They are not matched by name, because `rdma dev
/// set ... name` changes it.
static MATCH_TABLE: MatchTable = MatchTable([
    VerbsMatchEnt::driver_id(abi::DRIVER_ID),
    VerbsMatchEnt::sentinel(),
]);

/// Description of the provider for libibverbs, which keeps the address.
static DEVICE_OPS: VerbsDeviceOps = VerbsDeviceOps {
    name: c"rrxe".as_ptr(),
    match_min_abi_version: abi::ABI_VERSION,
    match_max_abi_version: abi::ABI_VERSION,
    match_table: MATCH_TABLE.0.as_ptr(),
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
    unsafe { pabi::verbs_register_driver(&DEVICE_OPS) }
}

// Unit tests must not touch the devices of the machine that they run on.
#[cfg_attr(test, expect(dead_code, reason = "tests call what they test"))]
#[cfg_attr(not(test), used, link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

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
        let [first, last] = &MATCH_TABLE.0;
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
