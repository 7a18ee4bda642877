// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The private interface between libibverbs and its providers (`infiniband/driver.h`), as far as
//! all versions that this provider supports agree. [`super::pabi`] has the differences between the
//! private ABIs.

use super::command;
use super::operations::VerbsContextOps;
use super::pabi::by_pabi;
use super::ptr::{Ptr, Public};
use super::verbs::*;
use core::ffi::{c_char, c_int, c_void};

opaque! {
    VerbsSysfsDev;
}

structures! {
    /// `struct verbs_match_ent`: one way to recognise a device.
    struct VerbsMatchEnt (24) {
        @0 driver_data: *mut c_void,
        /// The member `driver_id` of the union `u`.
        @8 driver_id: u64,
        @16 vendor: u16,
        @18 device: u16,
        @20 kind: u8,
    }

    /// `struct verbs_device_ops`: the description that a provider registers.
    struct VerbsDeviceOps (72) {
        @0 name: *const c_char,
        @8 match_min_abi_version: u32,
        @12 match_max_abi_version: u32,
        @16 match_table: *const VerbsMatchEnt,
        @24 static_providers: *const *const VerbsDeviceOps,
        @32 match_device: c_fn!((*mut VerbsSysfsDev) -> bool),
        @40 alloc_context: c_fn!((*mut IbvDevice, c_int, *mut c_void) -> *mut VerbsContext),
        @48 import_context: c_fn!((*mut IbvDevice, c_int) -> *mut VerbsContext),
        @56 alloc_device: c_fn!((*mut VerbsSysfsDev) -> *mut VerbsDevice),
        @64 uninit_device: c_fn!((*mut VerbsDevice)),
    }

    /// `struct verbs_device`, which libibverbs fills in.
    struct VerbsDevice (712) {
        @0 device: IbvDevice,
        @664 ops: *const VerbsDeviceOps,
        @672 refcount: c_int,
        @680 entry: [*mut c_void; 2],
        @696 sysfs: *mut VerbsSysfsDev,
        @704 core_support: u64,
    }

    /// `struct verbs_context`: libibverbs' own members, followed by the public context.
    struct VerbsContext (by_pabi(648, 696)) {
        /// Members up to and including `sz`.
        @0 private: [usize; by_pabi(320, 368) / 8],
        @(by_pabi(320, 368)) context: IbvContext,
    }

    struct VerbsMr (56) {
        @0 ibv_mr: IbvMr,
        @48 mr_type: u32,
        @52 access: c_int,
    }

    /// `struct verbs_cq`: a union of [`IbvCq`] and [`IbvCqEx`]. The latter is larger and starts
    /// with the former.
    struct VerbsCq (288) {
        @0 cq_ex: IbvCqEx,
    }

    struct VerbsSrq (160) {
        @0 srq: IbvSrq,
        @128 srq_type: u32,
        @136 xrcd: Option<Ptr<IbvXrcd>>,
        @144 cq: Option<Ptr<IbvCq>>,
        @152 srq_num: u32,
    }

    struct VerbsXrcd (16) {
        @0 xrcd: IbvXrcd,
        @8 comp_mask: u32,
        @12 handle: u32,
    }

    /// `struct verbs_qp`: starts with a union of [`IbvQp`] and [`IbvQpEx`]. The latter is larger
    /// and starts with the former.
    struct VerbsQp (376) {
        @0 qp_ex: IbvQpEx,
        @360 comp_mask: u32,
        @368 xrcd: Option<Ptr<IbvXrcd>>,
    }
}

/// `VERBS_MATCH_SENTINEL`: the end of a table.
pub(crate) const MATCH_SENTINEL: u8 = 0;
/// `VERBS_MATCH_DRIVER_ID`: match by the number that the kernel driver reports.
pub(crate) const MATCH_DRIVER_ID: u8 = 3;

impl VerbsMatchEnt {
    /// Creates an entry that matches a kernel driver's number.
    pub(crate) const fn driver_id(id: u32) -> Self {
        Self {
            driver_id: id as u64,
            kind: MATCH_DRIVER_ID,
            ..Self::sentinel()
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

// SAFETY: libibverbs only reads a registered table, and everything it points to is immutable.
unsafe impl Sync for VerbsDeviceOps {}
// SAFETY: as above; the table of devices is a part of that.
unsafe impl Sync for VerbsMatchEnt {}

// SAFETY: a region consists of the public part alone.
unsafe impl Public for VerbsMr {
    type Object = Self;
}

// SAFETY: the public part is the first member. Nothing else of a domain is used.
unsafe impl Public for IbvXrcd {
    type Object = VerbsXrcd;
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
