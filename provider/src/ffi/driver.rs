// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The private interface between libibverbs and its providers (`infiniband/driver.h`), as far as
//! all versions that this provider supports agree. [`super::pabi`] has the differences between the
//! private ABIs.

use super::command;
use super::operations::VerbsContextOps;
use super::pabi::PRIVATE_WORDS;
use super::ptr::{Ptr, Public};
use super::verbs::*;
use core::ffi::{c_char, c_int, c_void};

/// `struct verbs_match_ent`: one way to recognise a device.
#[repr(C)]
pub(crate) struct VerbsMatchEnt {
    pub(crate) driver_data: *mut c_void,
    /// The member `driver_id` of the union `u`.
    pub(crate) driver_id: u64,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) kind: u8,
}

/// `VERBS_MATCH_SENTINEL`: the end of a table.
pub(crate) const MATCH_SENTINEL: u8 = 0;
/// `VERBS_MATCH_DRIVER_ID`: match by the number that the kernel driver reports.
pub(crate) const MATCH_DRIVER_ID: u8 = 3;

impl VerbsMatchEnt {
    /// Creates an entry that matches a kernel driver's number.
    pub(crate) const fn driver_id(id: u32) -> Self {
        Self {
            driver_data: core::ptr::null_mut(),
            driver_id: id as u64,
            vendor: 0,
            device: 0,
            kind: MATCH_DRIVER_ID,
        }
    }

    /// Creates the entry that ends a table.
    pub(crate) const fn sentinel() -> Self {
        Self {
            driver_data: core::ptr::null_mut(),
            driver_id: 0,
            vendor: 0,
            device: 0,
            kind: MATCH_SENTINEL,
        }
    }
}

/// `struct verbs_sysfs_dev`, which is opaque.
#[repr(C)]
pub(crate) struct VerbsSysfsDev {
    _opaque: [u8; 0],
}

/// `struct verbs_device_ops`: the description that a provider registers.
#[repr(C)]
pub(crate) struct VerbsDeviceOps {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const VerbsMatchEnt,
    pub(crate) static_providers: *const *const VerbsDeviceOps,
    pub(crate) match_device: Option<unsafe extern "C" fn(device: *mut VerbsSysfsDev) -> bool>,
    pub(crate) alloc_context: Option<
        unsafe extern "C" fn(
            device: *mut IbvDevice,
            cmd_fd: c_int,
            private_data: *mut c_void,
        ) -> *mut VerbsContext,
    >,
    pub(crate) import_context:
        Option<unsafe extern "C" fn(device: *mut IbvDevice, cmd_fd: c_int) -> *mut VerbsContext>,
    pub(crate) alloc_device:
        Option<unsafe extern "C" fn(device: *mut VerbsSysfsDev) -> *mut VerbsDevice>,
    pub(crate) uninit_device: Option<unsafe extern "C" fn(device: *mut VerbsDevice)>,
}

// SAFETY: libibverbs only reads a registered table, and everything it points to is immutable.
unsafe impl Sync for VerbsDeviceOps {}

/// `struct verbs_device`, which libibverbs fills in.
#[repr(C)]
pub(crate) struct VerbsDevice {
    pub(crate) device: IbvDevice,
    pub(crate) ops: *const VerbsDeviceOps,
    pub(crate) refcount: c_int,
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut VerbsSysfsDev,
    pub(crate) core_support: u64,
}

/// `struct verbs_context`: libibverbs' own members, followed by the public context.
#[repr(C)]
pub(crate) struct VerbsContext {
    /// Members up to and including `sz`.
    pub(crate) private: [usize; PRIVATE_WORDS],
    pub(crate) context: IbvContext,
}

/// `struct verbs_mr`.
#[repr(C)]
pub(crate) struct VerbsMr {
    pub(crate) ibv_mr: IbvMr,
    pub(crate) mr_type: u32,
    pub(crate) access: c_int,
}

// SAFETY: a region consists of the public part alone.
unsafe impl Public for VerbsMr {
    type Object = Self;
}

/// `struct verbs_cq`: a union of [`IbvCq`] and [`IbvCqEx`]. The latter is larger and starts with
/// the former.
#[repr(C)]
pub(crate) struct VerbsCq {
    pub(crate) cq_ex: IbvCqEx,
}

/// `struct verbs_srq`.
#[repr(C)]
pub(crate) struct VerbsSrq {
    pub(crate) srq: IbvSrq,
    pub(crate) srq_type: u32,
    pub(crate) xrcd: Option<Ptr<IbvXrcd>>,
    pub(crate) cq: Option<Ptr<IbvCq>>,
    pub(crate) srq_num: u32,
}

/// `struct verbs_xrcd`.
#[repr(C)]
pub(crate) struct VerbsXrcd {
    pub(crate) xrcd: IbvXrcd,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

// SAFETY: the public part is the first member. Nothing else of a domain is used.
unsafe impl Public for IbvXrcd {
    type Object = VerbsXrcd;
}

/// `struct verbs_qp`: starts with a union of [`IbvQp`] and [`IbvQpEx`]. The latter is larger and
/// starts with the former.
#[repr(C)]
pub(crate) struct VerbsQp {
    pub(crate) qp_ex: IbvQpEx,
    pub(crate) comp_mask: u32,
    pub(crate) xrcd: Option<Ptr<IbvXrcd>>,
}

/// `VERBS_QP_EX` in [`VerbsQp::comp_mask`]: the `ibv_wr_*` functions in [`IbvQpEx`] are set.
pub(crate) const VERBS_QP_EX: u32 = 1 << 1;

// build.rs names the library to link with.
extern "C" {
    pub(crate) fn _verbs_init_and_alloc_context(
        device: *mut IbvDevice,
        cmd_fd: c_int,
        alloc_size: usize,
        context_offset: *mut VerbsContext,
        driver_id: u32,
    ) -> *mut c_void;
    pub(crate) fn verbs_uninit_context(context: *mut VerbsContext);
    pub(crate) fn verbs_set_ops(context: *mut VerbsContext, ops: *const VerbsContextOps);

    pub(crate) fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int;
    pub(crate) fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int;

    pub(crate) fn ibv_cmd_query_device_any(
        context: Ptr<IbvContext>,
        input: Option<&IbvQueryDeviceExInput>,
        attr: *mut IbvDeviceAttrEx,
        attr_size: usize,
        resp: &mut command::ExQueryDeviceResp,
        resp_size: &mut usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_ah(
        pd: Ptr<IbvPd>,
        ah: &mut IbvAh,
        attr: &IbvAhAttr,
        resp: &mut command::CreateAhResp,
        resp_size: usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_post_send(
        qp: Ptr<IbvQp>,
        wr: *mut IbvSendWr,
        bad_wr: &mut *mut IbvSendWr,
    ) -> c_int;
    pub(crate) fn ibv_cmd_post_recv(
        qp: Ptr<IbvQp>,
        wr: *mut IbvRecvWr,
        bad_wr: &mut *mut IbvRecvWr,
    ) -> c_int;
}

// SAFETY: these are functions of libibverbs (`infiniband/driver.h`, and the manual pages of the
// verbs) that access the object of the `Ptr` and read `gid`. One that frees the kernel's part of an
// object leaves the provider's, and fails if the kernel's part is gone.
unsafe extern "C" {
    pub(crate) safe fn ibv_cmd_dealloc_pd(pd: Ptr<IbvPd>) -> c_int;
    pub(crate) safe fn ibv_cmd_dereg_mr(vmr: Ptr<VerbsMr>) -> c_int;
    pub(crate) safe fn ibv_cmd_dealloc_mw(mw: Ptr<IbvMw>) -> c_int;
    pub(crate) safe fn ibv_cmd_req_notify_cq(cq: Ptr<IbvCq>, solicited_only: c_int) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_cq(cq: Ptr<IbvCq>) -> c_int;
    pub(crate) safe fn ibv_cmd_close_xrcd(xrcd: Ptr<IbvXrcd>) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_srq(srq: Ptr<IbvSrq>) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_qp(qp: Ptr<IbvQp>) -> c_int;
    pub(crate) safe fn ibv_cmd_attach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int;
    pub(crate) safe fn ibv_cmd_detach_mcast(qp: Ptr<IbvQp>, gid: &IbvGid, lid: u16) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_ah(ah: Ptr<IbvAh>) -> c_int;
}
