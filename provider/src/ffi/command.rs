// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Buffers of the uverbs commands (`rdma/ib_user_verbs.h`, as `infiniband/kern-abi.h` wraps it).
//!
//! libibverbs fills in the core part of a command and reads the core part of its response. The
//! provider allocates the buffers and adds its own part behind the core part; [`crate::abi`]
//! defines the layout of that part. There must be no padding between the two, which
//! [`super::layout`] asserts.

use crate::abi;
use core::mem::MaybeUninit;

/// Buffer for a core part of `N` 32-bit words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Words<const N: usize>([u32; N]);

impl<const N: usize> Words<N> {
    /// Returns a buffer of zeros.
    pub(crate) const fn zeroed() -> Self {
        Self([0; N])
    }
}

/// Buffer for a core part of `N` 64-bit words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Quads<const N: usize>([u64; N]);

impl<const N: usize> Quads<N> {
    /// Returns a buffer of zeros.
    pub(crate) const fn zeroed() -> Self {
        Self([0; N])
    }

    /// Returns the first word.
    pub(crate) const fn first(&self) -> u64 {
        let [first, ..] = self.0.as_slice() else {
            return 0;
        };
        *first
    }
}

/// A command or response: the core part, then the driver's part.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WithDriver<C, D> {
    /// libibverbs' part.
    pub(crate) core: C,
    /// rrxe's part.
    pub(crate) driver: D,
}

impl<const N: usize, D> WithDriver<Quads<N>, D> {
    /// Creates a command whose core part libibverbs fills in.
    pub(crate) const fn new(driver: D) -> Self {
        Self {
            core: Quads::zeroed(),
            driver,
        }
    }
}

/// `struct ibv_get_context` with [`abi::AllocUcontextCmd`].
pub(crate) type GetContext = WithDriver<Quads<2>, abi::AllocUcontextCmd>;
/// `struct ib_uverbs_get_context_resp` with [`abi::AllocUcontextResp`].
pub(crate) type GetContextResp = WithDriver<Quads<1>, abi::AllocUcontextResp>;
/// `struct ib_uverbs_ex_query_device_resp`: starts with the firmware version.
pub(crate) type ExQueryDeviceResp = Quads<38>;
/// `struct ibv_query_port`.
pub(crate) type QueryPort = Quads<3>;
/// `struct ibv_alloc_pd`.
pub(crate) type AllocPd = Quads<2>;
/// `struct ib_uverbs_alloc_pd_resp`.
pub(crate) type AllocPdResp = Words<1>;
/// `struct ibv_reg_mr`.
pub(crate) type RegMr = Quads<6>;
/// `struct ib_uverbs_reg_mr_resp`.
pub(crate) type RegMrResp = Words<3>;
/// `struct ibv_rereg_mr`.
pub(crate) type ReregMr = Quads<7>;
/// `struct ib_uverbs_rereg_mr_resp`.
pub(crate) type ReregMrResp = Words<2>;
/// `struct ibv_alloc_mw`.
pub(crate) type AllocMw = Quads<3>;
/// `struct ib_uverbs_alloc_mw_resp`.
pub(crate) type AllocMwResp = Words<2>;
/// `struct ibv_create_cq` with [`abi::CreateCqCmd`].
pub(crate) type CreateCq = WithDriver<Quads<5>, abi::CreateCqCmd>;
/// `struct ib_uverbs_create_cq_resp`.
pub(crate) type CreateCqResp = Quads<1>;
/// `struct ibv_create_cq_ex` with [`abi::CreateCqCmd`].
pub(crate) type CreateCqEx = WithDriver<Quads<7>, abi::CreateCqCmd>;
/// `struct ib_uverbs_ex_create_cq_resp`.
pub(crate) type CreateCqExResp = Quads<2>;
/// `struct ibv_resize_cq` with [`abi::CreateCqCmd`].
pub(crate) type ResizeCq = WithDriver<Quads<3>, abi::CreateCqCmd>;
/// `struct ib_uverbs_resize_cq_resp`.
pub(crate) type ResizeCqResp = Quads<1>;
/// `struct ibv_create_qp` with [`abi::CreateQpCmd`].
pub(crate) type CreateQp = WithDriver<Quads<8>, abi::CreateQpCmd>;
/// `struct ib_uverbs_create_qp_resp`.
pub(crate) type CreateQpResp = Words<8>;
/// `struct ibv_create_qp_ex` with [`abi::CreateQpCmd`].
pub(crate) type CreateQpEx = WithDriver<Quads<11>, abi::CreateQpCmd>;
/// `struct ib_uverbs_ex_create_qp_resp`.
pub(crate) type CreateQpExResp = Quads<5>;
/// `struct ibv_create_srq` with [`abi::CreateSrqCmd`].
pub(crate) type CreateSrq = WithDriver<Quads<5>, abi::CreateSrqCmd>;
/// `struct ib_uverbs_create_srq_resp`.
pub(crate) type CreateSrqResp = Words<4>;
/// `struct ibv_create_xsrq` with [`abi::CreateSrqCmd`].
pub(crate) type CreateXsrq = WithDriver<Quads<7>, abi::CreateSrqCmd>;
/// `struct ibv_open_xrcd`.
pub(crate) type OpenXrcd = Quads<3>;
/// `struct ib_uverbs_open_xrcd_resp`.
pub(crate) type OpenXrcdResp = Words<1>;
/// `struct ibv_open_qp`.
pub(crate) type OpenQp = Quads<5>;
/// `struct ibv_modify_srq`.
pub(crate) type ModifySrq = Quads<3>;
/// `struct ibv_modify_srq` with [`abi::CreateSrqCmd`].
pub(crate) type ResizeSrq = WithDriver<Quads<3>, abi::CreateSrqCmd>;
/// `struct ibv_query_srq`.
pub(crate) type QuerySrq = Quads<3>;
/// `struct ibv_query_qp`.
pub(crate) type QueryQp = Quads<3>;
/// `struct ibv_modify_qp`.
pub(crate) type ModifyQp = Quads<15>;
/// `struct ib_uverbs_create_ah_resp` with [`abi::CreateAhResp`].
pub(crate) type CreateAhResp = WithDriver<Words<1>, abi::CreateAhResp>;

/// `struct ibv_post_send` and `struct ibv_post_recv`, which have one layout: the doorbells.
#[repr(C)]
pub(crate) struct PostDoorbell {
    /// `IB_USER_VERBS_CMD_POST_SEND` or `IB_USER_VERBS_CMD_POST_RECV`.
    pub(crate) command: u32,
    /// Size of the command in 32-bit words.
    pub(crate) in_words: u16,
    /// Size of the response in 32-bit words.
    pub(crate) out_words: u16,
    /// Address of a 32-bit word that the kernel writes.
    pub(crate) response: u64,
    /// Handle of the queue pair.
    pub(crate) qp_handle: u32,
    /// Number of work requests in the command: 0.
    pub(crate) wr_count: u32,
    /// Number of data segments in the command: 0.
    pub(crate) sge_count: u32,
    /// Bytes of a work request in a command that has some.
    pub(crate) wqe_size: u32,
}

/// Value of [`PostDoorbell::in_words`].
pub(crate) const POST_DOORBELL_WORDS: u16 = 8;
const _: () = assert!(size_of::<PostDoorbell>() == 4 * POST_DOORBELL_WORDS as usize);

/// `IB_USER_VERBS_CMD_POST_SEND`.
pub(crate) const POST_SEND: u32 = 28;
/// `IB_USER_VERBS_CMD_POST_RECV`.
pub(crate) const POST_RECV: u32 = 29;
/// `sizeof(struct ib_uverbs_send_wr)`.
pub(crate) const SEND_WR_SIZE: u32 = 56;
/// `sizeof(struct ib_uverbs_recv_wr)`.
pub(crate) const RECV_WR_SIZE: u32 = 16;

/// Returns zeroed memory for a C structure of this provider's declarations.
///
/// # Safety
///
/// All bytes zero must be a valid `T`.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's contract.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
