// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context: an open device, its limits and its operations.

use crate::abi;
use crate::doorbell::DeferredDoorbell;
use crate::ffi::driver::*;
use crate::ffi::operations::VerbsContextOps;
use crate::ffi::os::{self, EINVAL};
use crate::ffi::verbs::*;
use crate::ffi::{command, pabi};
use crate::{ah, clock, cq, environment, mr, mw, pd, post, qp, srq, xrcd};
use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::addr_of_mut;
use std::io::Write;

/// An open rrxe device. libibverbs allocates it, zeroed.
#[repr(C)]
pub(crate) struct Context {
    verbs: VerbsContext,
    limits: Limits,
    /// Poll mode: while its polling thread is awake, the kernel looks at send queues by itself.
    polled: bool,
    /// The kernel raises the event of an armed completion queue that is not empty.
    notifies_waiting: bool,
    /// Nanoseconds of empty polls after which a thread yields the CPU, or 0 for never.
    yield_after: u64,
    /// The provider explains failures on standard error.
    explains: bool,
    deferred_doorbell: DeferredDoorbell,
}

/// Limits of the device, queried once when it is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of work requests of a queue.
    pub(crate) max_qp_wr: u32,
    /// Maximum number of data segments of a work request.
    pub(crate) max_sge: u32,
    /// Maximum bytes of inline data of a work request.
    pub(crate) max_inline: u32,
    /// Maximum number of entries of a completion queue.
    pub(crate) max_cqe: u32,
    /// Maximum number of work requests of a shared receive queue.
    pub(crate) max_srq_wr: u32,
    /// Maximum number of data segments of a work request of a shared receive queue.
    pub(crate) max_srq_sge: u32,
    /// Ring strides need not be powers of two: [`abi::FEATURE_PACKED`].
    pub(crate) packed: bool,
}

impl Limits {
    /// Returns the stride of a ring that needs at least `min` bytes for an entry. Fails with
    /// `EINVAL` if `min` is `None`.
    pub(crate) fn stride(self, min: Option<u32>) -> Result<u32, c_int> {
        let stride = if self.packed {
            min
        } else {
            min.and_then(u32::checked_next_power_of_two)
        };
        stride.ok_or(EINVAL)
    }
}

/// Verbs that this provider implements. libibverbs returns `EOPNOTSUPP` for all others.
pub(crate) static OPS: VerbsContextOps = VerbsContextOps {
    query_device_ex: Some(query_device_ex),
    query_port: Some(query_port),
    query_rt_values: Some(query_rt_values),
    free_context: Some(free_context),
    alloc_pd: Some(pd::alloc_pd),
    dealloc_pd: Some(pd::dealloc_pd),
    reg_mr: Some(mr::reg_mr),
    rereg_mr: Some(mr::rereg_mr),
    dereg_mr: Some(mr::dereg_mr),
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(mw::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    create_ah: Some(ah::create_ah),
    destroy_ah: Some(ah::destroy_ah),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    destroy_cq: Some(cq::destroy_cq),
    resize_cq: Some(cq::resize_cq),
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    modify_qp: Some(qp::modify_qp),
    query_qp: Some(qp::query_qp),
    destroy_qp: Some(qp::destroy_qp),
    open_xrcd: Some(xrcd::open_xrcd),
    close_xrcd: Some(xrcd::close_xrcd),
    open_qp: Some(qp::open_qp),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    get_srq_num: Some(srq::get_srq_num),
    modify_srq: Some(srq::modify_srq),
    query_srq: Some(srq::query_srq),
    destroy_srq: Some(srq::destroy_srq),
    post_srq_recv: Some(srq::post_srq_recv),
    attach_mcast: Some(qp::attach_mcast),
    detach_mcast: Some(ibv_cmd_detach_mcast),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    ..VerbsContextOps::empty()
};

/// Returns the context that contains the public one.
///
/// # Safety
///
/// `context` is the public part of an open rrxe device.
#[inline]
unsafe fn of(context: *mut IbvContext) -> *mut Context {
    let offset = offset_of!(Context, verbs).wrapping_add(offset_of!(VerbsContext, context));
    // SAFETY: the caller's contract: it is a member of the one that `alloc_context` returned.
    unsafe { context.byte_sub(offset) }.cast()
}

/// Returns the limits of the device of `context`.
///
/// # Safety
///
/// `context` is an open rrxe device.
pub(crate) unsafe fn limits(context: *mut IbvContext) -> Limits {
    // SAFETY: the public context is a member of the one that `alloc_context` returned. Nothing
    // writes the limits after that.
    unsafe { (*of(context)).limits }
}

/// Returns whether the device is in poll mode. False for null, which unit tests pass.
///
/// # Safety
///
/// `context` is an open rrxe device, or null.
#[inline]
pub(crate) unsafe fn is_polled(context: *mut IbvContext) -> bool {
    // SAFETY: the public context is a member of the one that `alloc_context` returned. Nothing
    // writes this after that.
    !context.is_null() && unsafe { (*of(context)).polled }
}

/// Returns whether the kernel raises the event of an armed completion queue that is not empty.
/// False for null, which unit tests pass.
///
/// # Safety
///
/// `context` is an open rrxe device, or null.
#[inline]
pub(crate) unsafe fn notifies_waiting(context: *mut IbvContext) -> bool {
    // SAFETY: the public context is a member of the one that `alloc_context` returned. Nothing
    // writes this after that.
    !context.is_null() && unsafe { (*of(context)).notifies_waiting }
}

/// Returns the nanoseconds of empty polls after which a thread yields the CPU, or 0 for never.
/// Returns 0 for null, which unit tests pass.
///
/// # Safety
///
/// `context` is an open rrxe device, or null.
#[inline]
pub(crate) unsafe fn yield_after(context: *mut IbvContext) -> u64 {
    if context.is_null() {
        return 0;
    }
    // SAFETY: the public context is a member of the one that `alloc_context` returned. Nothing
    // writes this after that.
    unsafe { (*of(context)).yield_after }
}

/// Returns whether the provider explains failures of calls with this context on standard error.
///
/// # Safety
///
/// `context` is an open rrxe device.
pub(crate) unsafe fn explains(context: *mut IbvContext) -> bool {
    // SAFETY: the public context is a member of the one that `alloc_context` returned. Nothing
    // writes this after that.
    unsafe { (*of(context)).explains }
}

/// Returns the deferred doorbell of the context, or `None` for null, which unit tests pass.
///
/// # Safety
///
/// `context` is an open rrxe device, or null; it stays open for `'a`.
#[inline]
pub(crate) unsafe fn deferred_doorbell<'a>(
    context: *mut IbvContext,
) -> Option<&'a DeferredDoorbell> {
    // SAFETY: the public context is a member of the one that `alloc_context` returned, zeroed, and
    // zeros are a valid `DeferredDoorbell`. It is changed only by atomics.
    (!context.is_null()).then(|| unsafe { &(*of(context)).deferred_doorbell })
}

/// Opens a device.
///
/// # Safety
///
/// Called by libibverbs with a device that it matched and a descriptor of its uverbs file, whose
/// ownership passes to this function.
pub(crate) unsafe extern "C" fn alloc_context(
    device: *mut IbvDevice,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut VerbsContext {
    // SAFETY: the caller's contract. libibverbs expects the offset of its own part of the
    // allocation as a pointer.
    let context = unsafe {
        _verbs_init_and_alloc_context(
            device,
            cmd_fd,
            size_of::<Context>(),
            core::ptr::without_provenance_mut(offset_of!(Context, verbs)),
            abi::DRIVER_ID,
        )
    }
    .cast::<Context>();
    if context.is_null() {
        // errno is set.
        return core::ptr::null_mut();
    }
    // SAFETY: just allocated for this type, zeroed, and not yet shared.
    let result = unsafe { open(context) };
    // SAFETY: as above; on failure the whole allocation is released. libibverbs' part does not
    // move.
    unsafe {
        let verbs = addr_of_mut!((*context).verbs);
        match result {
            Ok(()) => {
                verbs_set_ops(verbs, &OPS);
                verbs
            }
            Err(error) => {
                verbs_uninit_context(verbs);
                os::release(context.cast());
                os::fail(error)
            }
        }
    }
}

/// Opens the kernel's side of a context and queries the limits of the device.
///
/// # Safety
///
/// `context` was initialised by libibverbs and is not yet shared.
unsafe fn open(context: *mut Context) -> Result<(), c_int> {
    let yield_us = environment::yield_us()?;
    let poll_idle_us = environment::poll_idle_us()?;
    // SAFETY: the caller's contract.
    let resp = unsafe { get_context(context, poll_idle_us)? };
    let polled = resp.driver.features & abi::FEATURE_POLL != 0;
    if poll_idle_us != 0 && !polled && environment::explains() {
        eprintln!(
            "librrxe: no poll mode, sends are system calls: the process or its control group may \
             have no further thread (ulimit -u, pids.max), or the kernel has no poll mode \
             (poll_mode=0, no CONFIG_VHOST_TASK)"
        );
    }

    // SAFETY: integers and arrays of them.
    let mut attr: IbvDeviceAttrEx = unsafe { command::zeroed() };
    let mut resp_dev = command::ExQueryDeviceResp::zeroed();
    let mut resp_dev_size = size_of_val(&resp_dev);
    // SAFETY: the buffers have the sizes given, and a size of just the first member asks for no
    // more than that.
    let error = unsafe {
        ibv_cmd_query_device_any(
            addr_of_mut!((*context).verbs.context),
            core::ptr::null(),
            &mut attr,
            size_of::<IbvDeviceAttr>(),
            &mut resp_dev,
            &mut resp_dev_size,
        )
    };
    if error != 0 {
        return Err(error);
    }
    let count = |n: c_int| u32::try_from(n).unwrap_or(0);
    let limits = Limits {
        max_qp_wr: count(attr.orig_attr.max_qp_wr),
        max_sge: resp.driver.max_sge,
        max_inline: resp.driver.max_inline,
        max_cqe: count(attr.orig_attr.max_cqe),
        max_srq_wr: count(attr.orig_attr.max_srq_wr),
        max_srq_sge: count(attr.orig_attr.max_srq_sge),
        packed: resp.driver.features & abi::FEATURE_PACKED != 0,
    };
    // SAFETY: the context is not yet shared.
    unsafe {
        (*context).limits = limits;
        (*context).yield_after = u64::from(yield_us).saturating_mul(1000);
        (*context).explains = environment::explains();
        (*context).polled = polled;
        (*context).notifies_waiting = resp.driver.features & abi::FEATURE_NOTIFY_WAITING != 0;
    }
    Ok(())
}

/// Opens the kernel's side of a context, in poll mode if `poll_idle_us` is not 0 and the kernel
/// supports it.
///
/// # Safety
///
/// `context` was initialised by libibverbs and is not yet shared.
unsafe fn get_context(
    context: *mut Context,
    poll_idle_us: u32,
) -> Result<command::GetContextResp, c_int> {
    let mut cmd = command::GetContext::new(abi::AllocUcontextCmd {
        poll_idle_us,
        reserved: 0,
    });
    let mut resp = command::GetContextResp::new(abi::AllocUcontextResp::default());
    // A kernel without poll mode rejects the extended command.
    let cmd_size = if poll_idle_us == 0 {
        size_of_val(&cmd.core)
    } else {
        size_of_val(&cmd)
    };
    // SAFETY: the buffers have at least the sizes given.
    let error = unsafe {
        pabi::ibv_cmd_get_context(
            addr_of_mut!((*context).verbs),
            &mut cmd,
            cmd_size,
            &mut resp,
            size_of_val(&resp),
        )
    };
    match error {
        0 => Ok(resp),
        // The kernel does not support poll mode: open the context without it.
        // SAFETY: the caller's contract; nothing was opened.
        os::EOPNOTSUPP if poll_idle_us != 0 => unsafe { get_context(context, 0) },
        _ => Err(error),
    }
}

/// Closes a device.
///
/// # Safety
///
/// Called by libibverbs with an open device that is not in use.
unsafe extern "C" fn free_context(context: *mut IbvContext) {
    let offset = offset_of!(VerbsContext, context);
    // SAFETY: the public context is a member of the one that `alloc_context` returned, and
    // libibverbs allocated that.
    unsafe {
        let verbs = context.byte_sub(offset).cast::<VerbsContext>();
        verbs_uninit_context(verbs);
        os::release(verbs.byte_sub(offset_of!(Context, verbs)).cast());
    }
}

/// `ibv_query_device_ex` and `ibv_query_device`.
///
/// # Safety
///
/// Called by libibverbs; `attr` has room for `attr_size` bytes.
unsafe extern "C" fn query_device_ex(
    context: *mut IbvContext,
    input: *const IbvQueryDeviceExInput,
    attr: *mut IbvDeviceAttrEx,
    attr_size: usize,
) -> c_int {
    let mut resp = command::ExQueryDeviceResp::zeroed();
    let mut resp_size = size_of_val(&resp);
    // SAFETY: the caller's contract, and the response has the size given.
    let error = unsafe {
        ibv_cmd_query_device_any(context, input, attr, attr_size, &mut resp, &mut resp_size)
    };
    if error != 0 {
        return error;
    }
    // SAFETY: libibverbs refused sizes below that of the first member.
    let fw_ver = unsafe { &mut *addr_of_mut!((*attr).orig_attr.fw_ver) };
    write_version(fw_ver, resp.first());

    // The kernel does not know the unit of the timestamps in the ring: see `crate::clock`.
    let clock_end = offset_of!(IbvDeviceAttrEx, hca_core_clock).wrapping_add(size_of::<u64>());
    if attr_size >= clock_end {
        // SAFETY: the caller's structure is long enough to have both members.
        unsafe {
            (*attr).completion_timestamp_mask = clock::TIMESTAMP_MASK;
            (*attr).hca_core_clock = clock::FREQUENCY_KHZ;
        }
    }
    0
}

/// Writes a firmware version (three 16-bit numbers) as zero-terminated text.
fn write_version(to: &mut [c_char; 64], version: u64) {
    let mut text = [0_u8; 64];
    let part = |shift: u32| version.wrapping_shr(shift) & 0xffff;
    let mut rest = text.as_mut_slice();
    // Three numbers of at most five digits fit.
    let _ = write!(rest, "{}.{}.{}", part(32), part(16), part(0));
    *to = text.map(|byte| byte as c_char);
}

/// `ibv_query_port`.
///
/// # Safety
///
/// Called by libibverbs.
unsafe extern "C" fn query_port(
    context: *mut IbvContext,
    port_num: u8,
    attr: *mut IbvPortAttr,
) -> c_int {
    let mut cmd = command::QueryPort::zeroed();
    // SAFETY: the caller's contract, and the command has the size given.
    unsafe { ibv_cmd_query_port(context, port_num, attr, &mut cmd, size_of_val(&cmd)) }
}

/// `ibv_query_rt_values_ex`: the clock of completion timestamps. All ticks are in `tv_nsec`, as
/// with other providers.
///
/// # Safety
///
/// Called by libibverbs; `values` may be read and written.
unsafe extern "C" fn query_rt_values(_context: *mut IbvContext, values: *mut IbvValuesEx) -> c_int {
    // SAFETY: the caller's contract.
    let values = unsafe { &mut *values };
    if values.comp_mask & !VALUES_MASK_RAW_CLOCK != 0 {
        return EINVAL;
    }
    if values.comp_mask & VALUES_MASK_RAW_CLOCK != 0 {
        values.raw_clock = os::Timespec {
            tv_sec: 0,
            tv_nsec: clock::ticks(),
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_package() {
        let mut text = [1; 64];
        write_version(&mut text, abi::VERSION);
        let text = text.map(|c| c as u8);
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        assert_eq!(text.split(|&c| c == 0).next(), Some(version));
        assert_eq!(abi::VERSION_TEXT.to_bytes(), version);
    }

    #[test]
    fn firmware_version_is_text() {
        let mut text = [1; 64];
        write_version(&mut text, 0x0001_0002_0003);
        let text = text.map(|c| c as u8);
        assert_eq!(text.split(|&c| c == 0).next(), Some(b"1.2.3".as_slice()));
        let mut text = [1; 64];
        write_version(&mut text, u64::MAX);
        let text = text.map(|c| c as u8);
        assert_eq!(
            text.split(|&c| c == 0).next(),
            Some(b"65535.65535.65535".as_slice())
        );
    }

    #[test]
    fn raw_clock_is_asked_for() {
        // SAFETY: integers.
        let mut values: IbvValuesEx = unsafe { command::zeroed() };
        let null = core::ptr::null_mut();
        // SAFETY: the values are writable; the context is not looked at.
        unsafe {
            assert_eq!(query_rt_values(null, &mut values), 0);
            assert_eq!(values.raw_clock.tv_nsec, 0);
            values.comp_mask = VALUES_MASK_RAW_CLOCK;
            assert_eq!(query_rt_values(null, &mut values), 0);
            assert_ne!(values.raw_clock.tv_nsec, 0);
            values.comp_mask = 2;
            assert_eq!(query_rt_values(null, &mut values), EINVAL);
        }
    }
}
