// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The private interface between libibverbs and its providers (`infiniband/driver.h`).
//!
//! The private ABIs differ in the name of `verbs_register_driver`, in an argument of
//! `ibv_cmd_get_context`, and in two structures ([`Layout`]): `struct verbs_context` and `struct
//! verbs_context_ops`. One number, 59, stands for two layouts: rdma-core 59 to 61 have one, 62 and
//! 63 the other.

use super::command;
use super::ptr::{Foreign, Ptr, Public};
use super::verbs::*;
use core::ffi::{c_char, c_int, c_void};

// Defines PABI, the number of the private ABI of this build, and declares `verbs_register_driver`,
// whose name contains it. build.rs writes the file.
include!(concat!(env!("OUT_DIR"), "/pabi.rs"));

/// A layout of the two structures that differ between the releases of rdma-core.
pub(crate) struct Layout {
    /// Bytes in `struct verbs_context` before the public context, which ends it.
    pub(crate) context: usize,
    /// Names of the operations in `struct verbs_context_ops`, all of which are pointers.
    pub(crate) operations: &'static [&'static str],
}

impl Layout {
    /// Returns `sizeof(struct verbs_context)`, which libibverbs writes into the member `sz`.
    pub(crate) const fn context_size(&self) -> usize {
        self.context.wrapping_add(size_of::<IbvContext>())
    }

    /// Returns the position of an operation. It is evaluated at compile time, and fails if there is
    /// no such operation.
    pub(crate) const fn position(&self, operation: &str) -> usize {
        let mut names = self.operations;
        let mut position = 0_usize;
        while let [name, rest @ ..] = names {
            if is_equal(name.as_bytes(), operation.as_bytes()) {
                return position;
            }
            (names, position) = (rest, position.wrapping_add(1));
        }
        panic!("libibverbs has no such operation")
    }
}

const fn is_equal(mut one: &[u8], mut other: &[u8]) -> bool {
    while let ([a, one_rest @ ..], [b, other_rest @ ..]) = (one, other) {
        if *a != *b {
            return false;
        }
        (one, other) = (one_rest, other_rest);
    }
    one.is_empty() && other.is_empty()
}

opaque! {
    VerbsSysfsDev;
    /// `struct verbs_context`: private members, the size of the structure, and the public context.
    VerbsContext;
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
        @0 unused: [u64; 89],
    }

    #[derive(Default)]
    struct VerbsMr (56) {
        @0 ibv_mr: IbvMr,
        /// `enum ibv_mr_type`.
        @48 mr_type: u32,
        @52 unused_access: u32,
    }

    struct VerbsDm (40) {
        @0 dm: IbvDm,
        @32 handle: u32,
    }

    struct VerbsSrq (160, mutex at 32) {
        @0 srq: IbvSrq,
        @128 srq_type: u32,
        @136 unused_from_xrcd: [u64; 2],
        @152 srq_num: u32,
    }

    #[derive(Default)]
    struct VerbsXrcd (16) {
        @0 unused: [u64; 2],
    }

    /// `struct verbs_qp`: starts with a union of [`IbvQp`] and [`IbvQpEx`]. The latter is larger
    /// and starts with the former.
    struct VerbsQp (376, mutex at 64) {
        @0 qp_ex: IbvQpEx,
        @360 comp_mask: u32,
        @368 unused_xrcd: u64,
    }
}

/// Number of operations of the longest table.
const OPERATIONS: usize = 128;

/// `struct verbs_context_ops`: pointers to functions, or null for operations that the provider does
/// not implement. libibverbs fails those with `EOPNOTSUPP`, or falls back to others (`reg_mr_ex`,
/// `alloc_buf`). Its own table may be shorter.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct VerbsContextOps(pub(crate) [*const c_void; OPERATIONS]);

/// A table without operations.
pub(crate) const NO_OPERATIONS: VerbsContextOps = VerbsContextOps([core::ptr::null(); OPERATIONS]);

/// `VERBS_MATCH_DRIVER_ID`: match by the number that the kernel driver reports.
pub(crate) const MATCH_DRIVER_ID: u8 = 3;

/// The entry that ends a table (`VERBS_MATCH_SENTINEL`).
pub(crate) const MATCH_SENTINEL: VerbsMatchEnt = VerbsMatchEnt {
    driver_data: core::ptr::null_mut(),
    driver_id: 0,
    vendor: 0,
    device: 0,
    kind: 0,
};

// SAFETY: libibverbs only reads a registered table, and everything it points to is immutable.
unsafe impl Sync for VerbsDeviceOps {}
// SAFETY: as above; the table of devices is a part of that.
unsafe impl Sync for VerbsMatchEnt {}
// SAFETY: as above; the pointers are those of functions.
unsafe impl Sync for VerbsContextOps {}

// SAFETY: the public part is the first member. Nothing else of a domain is used.
unsafe impl Public for IbvXrcd {
    type Object = VerbsXrcd;
}

/// `IBV_MR_TYPE_NULL_MR`.
pub(crate) const MR_TYPE_NULL: u32 = 1;
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
    pub(crate) fn ibv_cmd_get_context(
        context: *mut VerbsContext,
        cmd: &mut command::GetContext,
        cmd_size: usize,
        // An array of file descriptors, or null.
        #[cfg(not(pabi = "34"))] fd_arr: *mut c_void,
        resp: &mut command::GetContextResp,
        resp_size: usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_query_device_any(
        context: Ptr<IbvContext>,
        input: Option<Foreign<IbvQueryDeviceExInput>>,
        attr: *mut IbvDeviceAttrEx,
        attr_size: usize,
        // `struct ib_uverbs_ex_query_device_resp`, which starts with the firmware version.
        resp: &mut [u64; 38],
        resp_size: &mut usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_query_context(
        context: Ptr<IbvContext>,
        driver: *mut command::IbvCommandBuffer,
    ) -> c_int;
    pub(crate) fn execute_ioctl(
        context: Ptr<IbvContext>,
        cmd: *mut command::IbvCommandBuffer,
    ) -> c_int;
    pub(crate) fn ibv_cmd_create_ah(
        pd: Ptr<IbvPd>,
        ah: &mut IbvAh,
        attr: Foreign<IbvAhAttr>,
        resp: &mut command::CreateAhResp,
        resp_size: usize,
    ) -> c_int;
    pub(crate) fn ibv_cmd_alloc_dm(
        context: Ptr<IbvContext>,
        attr: *const IbvAllocDmAttr,
        dm: &mut VerbsDm,
        // Attributes of the driver's own.
        link: *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_cmd_free_dm(dm: *mut VerbsDm) -> c_int;
    pub(crate) fn ibv_cmd_reg_dm_mr(
        pd: Ptr<IbvPd>,
        dm: *mut VerbsDm,
        offset: u64,
        length: usize,
        access: u32,
        mr: &mut VerbsMr,
        // Attributes of the driver's own.
        link: *mut c_void,
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
// verbs) that access the object of the `Ptr`, read `gid` and fill in `vmr`. One that frees the
// kernel's part of an object leaves the provider's, and fails if the kernel's part is gone.
unsafe extern "C" {
    pub(crate) safe fn ibv_cmd_dealloc_pd(pd: Ptr<IbvPd>) -> c_int;
    pub(crate) safe fn ibv_cmd_query_mr(pd: Ptr<IbvPd>, vmr: &mut VerbsMr, handle: u32) -> c_int;
    pub(crate) safe fn ibv_cmd_dereg_mr(vmr: Ptr<VerbsMr>) -> c_int;
    pub(crate) safe fn ibv_cmd_dealloc_mw(mw: Ptr<IbvMw>) -> c_int;
    pub(crate) safe fn ibv_cmd_req_notify_cq(cq: Ptr<IbvCq>, solicited_only: c_int) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_cq(cq: Ptr<IbvCq>) -> c_int;
    pub(crate) safe fn ibv_cmd_close_xrcd(xrcd: Ptr<IbvXrcd>) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_srq(srq: Ptr<IbvSrq>) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_qp(qp: Ptr<IbvQp>) -> c_int;
    pub(crate) safe fn ibv_cmd_advise_mr(
        pd: Ptr<IbvPd>,
        advice: u32,
        flags: u32,
        list: Option<Foreign<IbvSge>>,
        count: u32,
    ) -> c_int;
    pub(crate) safe fn ibv_cmd_attach_mcast(
        qp: Ptr<IbvQp>,
        gid: Foreign<IbvGid>,
        lid: u16,
    ) -> c_int;
    pub(crate) safe fn ibv_cmd_detach_mcast(
        qp: Ptr<IbvQp>,
        gid: Foreign<IbvGid>,
        lid: u16,
    ) -> c_int;
    pub(crate) safe fn ibv_cmd_destroy_ah(ah: Ptr<IbvAh>) -> c_int;
}
