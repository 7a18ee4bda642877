// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The commands of uverbs (`rdma/ib_user_verbs.h`), as libibverbs' `ibv_cmd_*` functions issue them
//! (`infiniband/driver.h`).
//!
//! libibverbs fills in the core part of a command and reads the core part of its response. The
//! provider allocates the buffers and adds its own part behind the core part; [`crate::abi`]
//! defines the layout of that part. There must be no padding between the two.

use super::driver::{VerbsMr, VerbsQp, VerbsSrq, VerbsXrcd};
use super::ptr::{Foreign, Ptr};
use super::verbs::*;
use crate::abi;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

/// A command or response: the core part, then the driver's part.
#[repr(C)]
pub(crate) struct WithDriver<C, D> {
    /// libibverbs' part.
    pub(crate) core: C,
    /// rrxe's part.
    pub(crate) driver: D,
}

/// Defines functions that issue a command. Each calls the C function that it names, with its own
/// arguments and the buffers of the command and of the response, if there is one. The numbers are
/// the sizes in bytes of the core parts; behind the `+` is the driver's part, which is the last
/// argument. The functions return 0 or an error number.
///
/// The types of the arguments state the contract of the C function: it accesses the object of a
/// [`Ptr`], and the structure of a reference or of a [`Foreign`].
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        fn $name:ident = $function:literal($($arg:ident: $type:ty),*)
            [$size:literal $(+ $driver:ident: $part:ty)?] $(-> [$resp:literal])?;
    )*) => {$(
        $(#[$doc])*
        pub(crate) extern "C" fn $name($($arg: $type,)* $($driver: $part)?) -> c_int {
            extern "C" {
                #[link_name = $function]
                fn command(
                    $($arg: $type,)*
                    cmd: *mut c_void,
                    cmd_size: usize,
                    $(resp: *mut [u64; $resp / 8 + 1], resp_size: usize,)?
                ) -> c_int;
            }
            let mut cmd = WithDriver {
                core: [0_u64; $size / 8],
                // The unit if the command has no such part.
                driver: ($($driver)?),
            };
            $(const {
                let size = size_of::<WithDriver<[u64; $size / 8], $part>>();
                assert!(size == $size + size_of::<$part>());
            })?
            $(let mut resp = [0_u64; $resp / 8 + 1];)?
            let cmd_size = size_of_val(&cmd);
            // SAFETY: the types of the arguments state the function's contract. The buffers are at
            // least as long as the sizes given.
            unsafe {
                command($($arg,)* (&raw mut cmd).cast(), cmd_size $(, &raw mut resp, $resp)?)
            }
        }
    )*};
}

commands! {
    fn query_port = "ibv_cmd_query_port"(
        context: Ptr<IbvContext>, port_num: u8, attr: Foreign<IbvPortAttr>
    ) [24];
    fn alloc_pd = "ibv_cmd_alloc_pd"(context: Ptr<IbvContext>, pd: &mut IbvPd) [16] -> [4];
    /// `ibv_reg_mr_iova`. The kernel pins the memory, so it may be any.
    fn reg_mr = "ibv_cmd_reg_mr"(
        pd: Ptr<IbvPd>, addr: *mut c_void, length: usize, hca_va: u64, access: c_int,
        mr: &mut VerbsMr
    ) [48] -> [12];
    fn rereg_mr = "ibv_cmd_rereg_mr"(
        mr: Ptr<VerbsMr>, flags: u32, addr: *mut c_void, length: usize, hca_va: u64, access: c_int,
        pd: Option<Ptr<IbvPd>>
    ) [56] -> [8];
    fn alloc_mw = "ibv_cmd_alloc_mw"(pd: Ptr<IbvPd>, mw_type: u32, mw: &mut IbvMw) [24] -> [8];
    fn create_cq = "ibv_cmd_create_cq"(
        context: Ptr<IbvContext>, cqe: c_int, channel: Option<Foreign<IbvCompChannel>>, comp_vector: c_int,
        cq: &UnsafeCell<IbvCqEx>
    ) [40 + ring: abi::RingSpec] -> [8];
    fn resize_cq = "ibv_cmd_resize_cq"(cq: Ptr<IbvCq>, cqe: c_int)
        [24 + ring: abi::RingSpec] -> [8];
    fn create_srq_ex = "ibv_cmd_create_srq_ex"(
        context: Ptr<IbvContext>, srq: &UnsafeCell<VerbsSrq>, attr: &mut IbvSrqInitAttrEx
    ) [56 + ring: abi::RingSpec] -> [16];
    fn modify_srq = "ibv_cmd_modify_srq"(
        srq: Ptr<IbvSrq>, attr: &IbvSrqAttr, mask: c_int
    ) [24];
    /// Replaces the ring of a shared receive queue.
    fn resize_srq = "ibv_cmd_modify_srq"(
        srq: Ptr<IbvSrq>, attr: &IbvSrqAttr, mask: c_int
    ) [24 + ring: abi::RingSpec];
    /// Writes the attributes if it succeeds.
    fn query_srq = "ibv_cmd_query_srq"(
        srq: Ptr<IbvSrq>, attr: &mut MaybeUninit<IbvSrqAttr>
    ) [24];
    /// `size` is that of a [`VerbsXrcd`].
    fn open_xrcd = "ibv_cmd_open_xrcd"(
        context: Ptr<IbvContext>, xrcd: &mut VerbsXrcd, size: c_int, attr: Foreign<IbvXrcdInitAttr>
    ) [24] -> [4];
    fn create_qp_ex = "ibv_cmd_create_qp_ex"(
        context: Ptr<IbvContext>, qp: &UnsafeCell<VerbsQp>, attr: &mut IbvQpInitAttrEx
    ) [64 + rings: abi::CreateQpCmd] -> [32];
    /// `size` is that of a [`VerbsQp`].
    fn open_qp = "ibv_cmd_open_qp"(
        context: Ptr<IbvContext>, qp: &UnsafeCell<VerbsQp>, size: c_int, attr: Foreign<IbvQpOpenAttr>
    ) [40] -> [32];
    fn modify_qp = "ibv_cmd_modify_qp"(
        qp: Ptr<IbvQp>, attr: &IbvQpAttr, attr_mask: c_int
    ) [120];
    /// Writes the attributes if it succeeds.
    fn query_qp = "ibv_cmd_query_qp"(
        qp: Ptr<IbvQp>, attr: &mut MaybeUninit<IbvQpAttr>, attr_mask: c_int,
        init_attr: &mut MaybeUninit<IbvQpInitAttr>
    ) [24];
}

/// `struct ibv_get_context` with [`abi::AllocUcontextCmd`].
pub(crate) type GetContext = WithDriver<[u64; 2], abi::AllocUcontextCmd>;
/// `struct ib_uverbs_get_context_resp` with [`abi::AllocUcontextResp`].
pub(crate) type GetContextResp = WithDriver<[u64; 1], abi::AllocUcontextResp>;
/// `struct ib_uverbs_create_ah_resp` with [`abi::CreateAhResp`].
pub(crate) type CreateAhResp = WithDriver<[u32; 1], abi::CreateAhResp>;

structures! {
    /// `struct ibv_post_send`, the doorbell.
    struct PostDoorbell (32) {
        /// [`POST_SEND`].
        @0 command: u32,
        /// Size of the command in 32-bit words.
        @4 in_words: u16,
        /// Size of the response in 32-bit words.
        @6 out_words: u16,
        /// Address of a 32-bit word that the kernel writes.
        @8 response: u64,
        /// Handle of the queue pair.
        @16 qp_handle: u32,
        /// Number of work requests in the command: 0.
        @20 wr_count: u32,
        /// Number of data segments in the command: 0.
        @24 sge_count: u32,
        /// [`SEND_WR_SIZE`].
        @28 wqe_size: u32,
    }
}

// There is no padding before the driver's part.
const _: () = {
    assert!(size_of::<GetContext>() == 16 + 8 && size_of::<GetContextResp>() == 8 + 24);
    assert!(size_of::<CreateAhResp>() == 4 + 8);
};

/// `IB_USER_VERBS_CMD_POST_SEND`.
pub(crate) const POST_SEND: u32 = 28;
/// `sizeof(struct ib_uverbs_send_wr)`.
pub(crate) const SEND_WR_SIZE: u32 = 56;

/// Returns zeroed memory for a C structure of this provider's declarations.
///
/// # Safety
///
/// All bytes zero must be a valid `T`.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's contract.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
