// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration with libibverbs: the devices that this provider serves, and the verbs that it
//! implements.

use crate::abi;
use crate::ffi::driver::*;
use crate::ffi::layouts::LAYOUTS;
use crate::ffi::ptr::{Foreign, Ptr};
use crate::ffi::verbs::*;
use crate::ffi::{command, os};
use crate::memory::Owned;
use crate::{ah, context, cq, dm, domain, mw, object, post, qp, srq};
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
    import_context: Some(context::import_context),
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

/// Defines `operations`, which returns the table of operations in a layout. Each operation has its
/// name in `struct verbs_context_ops`, its function, and the C type.
///
/// The types state what libibverbs guarantees: a [`Ptr`] points to an object of this provider, a
/// [`Foreign`] or a reference to a structure of the program (or of libibverbs) that may be read, a
/// mutable reference to one that may also be written. An optional argument may be null.
macro_rules! operations {
    ($(
        $name:ident = $function:path: fn($($type:ty),*) $(-> $result:ty)?;
    )*) => {
        #[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
        const fn operations(layout: &Layout) -> VerbsContextOps {
            let mut table = NO_OPERATIONS;
            $({
                let function: unsafe extern "C" fn($($type),*) $(-> $result)? = $function;
                table.0[layout.position(stringify!($name))] = function as *const c_void;
            })*
            table
        }
    };
}

operations! {
    query_device_ex = context::query_device_ex: fn(
        Ptr<IbvContext>, Option<Foreign<IbvQueryDeviceExInput>>, *mut IbvDeviceAttrEx, usize
    ) -> c_int;
    query_port = command::query_port: fn(Ptr<IbvContext>, u8, Foreign<IbvPortAttr>) -> c_int;
    query_rt_values = context::query_rt_values: fn(Ptr<IbvContext>, &mut IbvValuesEx) -> c_int;
    free_context = context::free_context: fn(Ptr<IbvContext>);
    alloc_pd = domain::alloc_pd: fn(Ptr<IbvContext>) -> *mut IbvPd;
    dealloc_pd = domain::dealloc_pd: fn(Ptr<IbvPd>) -> c_int;
    import_pd = domain::import_pd: fn(Ptr<IbvContext>, u32) -> *mut IbvPd;
    unimport_pd = domain::unimport_pd: fn(Ptr<IbvPd>);
    alloc_td = domain::alloc_td: fn(Ptr<IbvContext>, *const IbvTdInitAttr) -> *mut IbvTd;
    dealloc_td = domain::dealloc_td: fn(Ptr<IbvTd>) -> c_int;
    alloc_parent_domain = domain::alloc_parent_domain: fn(
        Ptr<IbvContext>, *const IbvParentDomainInitAttr
    ) -> *mut IbvPd;
    reg_mr = object::reg_mr: fn(Ptr<IbvPd>, *mut c_void, usize, u64, c_int) -> *mut IbvMr;
    alloc_null_mr = object::alloc_null_mr: fn(Ptr<IbvPd>) -> *mut IbvMr;
    rereg_mr = object::rereg_mr: fn(
        Ptr<VerbsMr>, c_int, Option<Ptr<IbvPd>>, *mut c_void, usize, c_int
    ) -> c_int;
    advise_mr = ibv_cmd_advise_mr: fn(
        Ptr<IbvPd>, u32, u32, Option<Foreign<IbvSge>>, u32
    ) -> c_int;
    alloc_dm = dm::alloc_dm: fn(Ptr<IbvContext>, *const IbvAllocDmAttr) -> *mut IbvDm;
    free_dm = dm::free_dm: fn(Ptr<IbvDm>) -> c_int;
    reg_dm_mr = dm::reg_dm_mr: fn(Ptr<IbvPd>, Ptr<IbvDm>, u64, usize, u32) -> *mut IbvMr;
    import_dm = dm::import_dm: fn(Ptr<IbvContext>, u32) -> *mut IbvDm;
    unimport_dm = dm::unimport_dm: fn(Ptr<IbvDm>);
    import_mr = object::import_mr: fn(Ptr<IbvPd>, u32) -> *mut IbvMr;
    unimport_mr = object::unimport_mr: fn(Ptr<VerbsMr>);
    dereg_mr = object::dereg_mr: fn(Ptr<VerbsMr>) -> c_int;
    alloc_mw = mw::alloc_mw: fn(Ptr<IbvPd>, u32) -> *mut IbvMw;
    bind_mw = post::bind_mw: fn(Ptr<IbvQp>, Ptr<IbvMw>, &IbvMwBind) -> c_int;
    dealloc_mw = object::dealloc_mw: fn(Ptr<IbvMw>) -> c_int;
    create_ah = ah::create_ah: fn(Ptr<IbvPd>, Foreign<IbvAhAttr>) -> *mut IbvAh;
    destroy_ah = object::destroy_ah: fn(Ptr<IbvAh>) -> c_int;
    create_cq = cq::create_cq: fn(
        Ptr<IbvContext>, c_int, Option<Foreign<IbvCompChannel>>, c_int
    ) -> *mut IbvCq;
    create_cq_ex = cq::create_cq_ex: fn(Ptr<IbvContext>, *const IbvCqInitAttrEx) -> *mut IbvCqEx;
    destroy_cq = object::destroy_cq: fn(Ptr<IbvCq>) -> c_int;
    resize_cq = cq::resize_cq: fn(Ptr<IbvCq>, c_int) -> c_int;
    modify_cq = command::modify_cq: fn(Ptr<IbvCq>, Foreign<IbvModifyCqAttr>) -> c_int;
    poll_cq = cq::poll_cq: fn(Ptr<IbvCq>, c_int, *mut IbvWc) -> c_int;
    req_notify_cq = cq::req_notify_cq: fn(Ptr<IbvCq>, c_int) -> c_int;
    create_qp = qp::create_qp: fn(Ptr<IbvPd>, &mut IbvQpInitAttr) -> *mut IbvQp;
    create_qp_ex = qp::create_qp_ex: fn(Ptr<IbvContext>, *mut IbvQpInitAttrEx) -> *mut IbvQp;
    modify_qp = qp::modify_qp: fn(Ptr<IbvQp>, &IbvQpAttr, c_int) -> c_int;
    query_qp = qp::query_qp: fn(
        Ptr<IbvQp>, &mut MaybeUninit<IbvQpAttr>, c_int, &mut MaybeUninit<IbvQpInitAttr>
    ) -> c_int;
    destroy_qp = qp::destroy_qp: fn(Ptr<IbvQp>) -> c_int;
    open_xrcd = object::open_xrcd: fn(Ptr<IbvContext>, Foreign<IbvXrcdInitAttr>) -> *mut IbvXrcd;
    close_xrcd = object::close_xrcd: fn(Ptr<IbvXrcd>) -> c_int;
    open_qp = qp::open_qp: fn(Ptr<IbvContext>, Foreign<IbvQpOpenAttr>) -> *mut IbvQp;
    create_srq = srq::create_srq: fn(Ptr<IbvPd>, &mut IbvSrqInitAttr) -> *mut IbvSrq;
    create_srq_ex = srq::create_srq_ex: fn(Ptr<IbvContext>, *mut IbvSrqInitAttrEx) -> *mut IbvSrq;
    get_srq_num = srq::get_srq_num: fn(Ptr<IbvSrq>, &mut MaybeUninit<u32>) -> c_int;
    modify_srq = srq::modify_srq: fn(Ptr<IbvSrq>, &IbvSrqAttr, c_int) -> c_int;
    query_srq = command::query_srq: fn(Ptr<IbvSrq>, &mut MaybeUninit<IbvSrqAttr>) -> c_int;
    destroy_srq = object::destroy_srq: fn(Ptr<IbvSrq>) -> c_int;
    post_srq_recv = srq::post_srq_recv: fn(Ptr<IbvSrq>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
    attach_mcast = qp::attach_mcast: fn(Ptr<IbvQp>, Foreign<IbvGid>, u16) -> c_int;
    detach_mcast = ibv_cmd_detach_mcast: fn(Ptr<IbvQp>, Foreign<IbvGid>, u16) -> c_int;
    post_send = post::post_send: fn(Ptr<IbvQp>, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
    post_recv = post::post_recv: fn(Ptr<IbvQp>, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
}

/// Verbs that this provider implements, for each layout.
pub(crate) static OPS: [VerbsContextOps; LAYOUTS.len()] = {
    let mut tables = [NO_OPERATIONS; LAYOUTS.len()];
    let mut rest: (&[Layout], &mut [VerbsContextOps]) = (LAYOUTS, &mut tables);
    while let ([layout, layouts @ ..], [table, tables @ ..]) = rest {
        *table = operations(layout);
        rest = (layouts, tables);
    }
    tables
};

/// Allocates a device that libibverbs has found; libibverbs fills it in.
///
/// # Safety
///
/// Called by libibverbs.
unsafe extern "C" fn alloc_device(_sysfs_dev: *mut VerbsSysfsDev) -> *mut VerbsDevice {
    match Owned::new(VerbsDevice { unused: [0; 89] }) {
        Ok(device) => device.into_raw(),
        Err(error) => os::fail(error),
    }
}

/// Frees a device.
///
/// # Safety
///
/// Called by libibverbs with an unused device that [`alloc_device`] returned.
unsafe extern "C" fn uninit_device(device: *mut VerbsDevice) {
    // SAFETY: the caller's contract.
    drop(unsafe { Owned::from_raw(device) });
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
