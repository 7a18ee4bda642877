// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The commands of uverbs (`rdma/ib_user_verbs.h`), as libibverbs' `ibv_cmd_*` functions issue them
//! (`infiniband/driver.h`).
//!
//! libibverbs fills in the core part of a command and reads the core part of its response. The
//! provider allocates the buffers and adds its own part behind the core part; [`crate::abi`]
//! defines the layout of that part. There must be no padding between the two.

use super::driver::{execute_ioctl, ibv_cmd_query_context, VerbsMr, VerbsQp, VerbsSrq, VerbsXrcd};
use super::os::{check, EOPNOTSUPP, EPROTONOSUPPORT};
use super::ptr::{Foreign, Ptr};
use super::verbs::*;
use crate::abi;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

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
    fn modify_cq = "ibv_cmd_modify_cq"(cq: Ptr<IbvCq>, attr: Foreign<IbvModifyCqAttr>) [40];
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

    /// `struct ibv_command_buffer` (`infiniband/cmd_ioctl.h`), which the attributes follow.
    struct IbvCommandBuffer (56) {
        @0 next: *mut IbvCommandBuffer,
        /// The end of the attributes.
        @8 next_attr: *mut IbUverbsAttr,
        /// The end of the space for attributes.
        @16 last_attr: *mut IbUverbsAttr,
        @24 uhw_in_idx: u8,
        @25 uhw_out_idx: u8,
        @26 unused_from_uhw_in_headroom_dwords: [u8; 6],
        @32 unused_length: u16,
        /// A member of `hdr`, as is the next one.
        @34 object_id: u16,
        @36 method_id: u16,
        @38 unused_num_attrs: u16,
        @40 unused_from_reserved1: [u64; 2],
    }

    /// `struct ib_uverbs_attr`.
    struct IbUverbsAttr (16) {
        @0 attr_id: u16,
        @2 len: u16,
        @4 flags: u16,
        @6 unused_attr_data: u16,
        @8 data: u64,
    }
}

/// `UVERBS_ATTR_F_MANDATORY`: the kernel refuses a command with an attribute that it does not know.
const ATTR_MANDATORY: u16 = 1;
/// `_UHW_NO_INDEX`: the command has no attributes for the driver's part of another command.
const NO_UHW: u8 = 0xff;

/// `UVERBS_OBJECT_DEVICE` (`rdma/ib_user_ioctl_cmds.h`).
const OBJECT_DEVICE: u16 = 0;
/// `UVERBS_OBJECT_PD`.
const OBJECT_PD: u16 = 1;
/// `UVERBS_OBJECT_DM`.
const OBJECT_DM: u16 = 14;
/// `UVERBS_METHOD_QUERY_CONTEXT`.
const METHOD_QUERY_CONTEXT: u16 = 4;

impl IbUverbsAttr {
    /// Returns an attribute that names an object by its handle.
    fn handle(attr_id: u16, handle: u32) -> Self {
        Self {
            attr_id,
            len: 0,
            flags: ATTR_MANDATORY,
            unused_attr_data: 0,
            data: handle.into(),
        }
    }

    /// Returns an attribute whose value the kernel writes to `to`.
    fn output<T>(attr_id: u16, to: *mut T) -> Self {
        const { assert!(size_of::<T>() <= u16::MAX as usize) };
        Self {
            attr_id,
            len: size_of::<T>() as u16,
            flags: ATTR_MANDATORY,
            unused_attr_data: 0,
            data: to as u64,
        }
    }
}

/// A command of uverbs with attributes of this provider.
#[repr(C)]
struct Ioctl<const N: usize> {
    head: IbvCommandBuffer,
    attrs: [IbUverbsAttr; N],
}

impl<const N: usize> Ioctl<N> {
    fn new(object_id: u16, method_id: u16, attrs: [IbUverbsAttr; N]) -> Self {
        Self {
            head: IbvCommandBuffer {
                next: null_mut(),
                next_attr: null_mut(),
                last_attr: null_mut(),
                uhw_in_idx: NO_UHW,
                uhw_out_idx: NO_UHW,
                unused_from_uhw_in_headroom_dwords: [0; 6],
                unused_length: 0,
                object_id,
                method_id,
                unused_num_attrs: 0,
                unused_from_reserved1: [0; 2],
            },
            attrs,
        }
    }

    /// Issues the command by `issue`, which gets its address. Fails with the kernel's error, and
    /// with `EOPNOTSUPP` if the kernel does not know the method or an attribute.
    fn issue(mut self, issue: impl FnOnce(*mut IbvCommandBuffer) -> c_int) -> Result<(), c_int> {
        let this = &raw mut self;
        // SAFETY: the command lives until the end of this function.
        let (head, end) = unsafe {
            let attrs = (&raw mut (*this).attrs).cast::<IbUverbsAttr>();
            (&raw mut (*this).head, attrs.wrapping_add(N))
        };
        // SAFETY: as above.
        unsafe {
            (*head).next_attr = end;
            (*head).last_attr = end;
        }
        // The address is that of the whole command.
        match issue(this.cast()) {
            EPROTONOSUPPORT => Err(EOPNOTSUPP),
            error => check(error),
        }
    }
}

/// Queries the kernel's context of a context that is being imported.
pub(crate) fn query_context(context: Ptr<IbvContext>) -> Result<abi::AllocUcontextResp, c_int> {
    let mut resp = abi::AllocUcontextResp::default();
    let attr = IbUverbsAttr::output(abi::import::CONTEXT_RESPONSE, &raw mut resp);
    let command = Ioctl::new(OBJECT_DEVICE, METHOD_QUERY_CONTEXT, [attr]);
    // SAFETY: the command is complete, and the kernel writes at most the size of the response.
    command.issue(|driver| unsafe { ibv_cmd_query_context(context, driver) })?;
    Ok(resp)
}

/// Fails unless a protection domain has the handle.
pub(crate) fn query_pd(context: Ptr<IbvContext>, handle: u32) -> Result<(), c_int> {
    let attr = IbUverbsAttr::handle(abi::import::PD_HANDLE, handle);
    let command = Ioctl::new(OBJECT_PD, abi::import::QUERY_PD, [attr]);
    // SAFETY: the command is complete.
    command.issue(|command| unsafe { execute_ioctl(context, command) })
}

/// Returns the length in bytes of the device memory with the handle.
pub(crate) fn query_dm(context: Ptr<IbvContext>, handle: u32) -> Result<u32, c_int> {
    let mut length = 0_u32;
    let attrs = [
        IbUverbsAttr::handle(abi::import::DM_HANDLE, handle),
        IbUverbsAttr::output(abi::import::DM_LENGTH, &raw mut length),
    ];
    let command = Ioctl::new(OBJECT_DM, abi::import::QUERY_DM, attrs);
    // SAFETY: the command is complete, and the kernel writes at most the size of the length.
    command.issue(|command| unsafe { execute_ioctl(context, command) })?;
    Ok(length)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_follow_the_head() {
        let mut place = 0_u32;
        let attrs = [
            IbUverbsAttr::handle(0x1000, u32::MAX),
            IbUverbsAttr::output(0x1001, &raw mut place),
        ];
        let issued = Ioctl::new(OBJECT_DM, 0x1000, attrs).issue(|command| {
            // SAFETY: the command has two attributes, and lives until this returns.
            let (head, attrs) = unsafe {
                let first = command.byte_add(56).cast::<IbUverbsAttr>();
                (&*command, core::slice::from_raw_parts(first, 2))
            };
            assert_eq!(head.next_attr.cast_const(), attrs.as_ptr_range().end);
            assert_eq!(head.last_attr, head.next_attr);
            assert!(head.next.is_null());
            assert_eq!((head.object_id, head.method_id), (OBJECT_DM, 0x1000));
            let seen = attrs
                .iter()
                .map(|attr| (attr.attr_id, attr.len, attr.flags));
            assert!(seen.eq([(0x1000, 0, 1), (0x1001, 4, 1)]));
            let data: Vec<u64> = attrs.iter().map(|attr| attr.data).collect();
            assert_eq!(data, [u64::from(u32::MAX), &raw const place as u64]);
            EPROTONOSUPPORT
        });
        assert_eq!(issued, Err(EOPNOTSUPP));
    }
}
