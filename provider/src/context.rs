// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context: an open device, its limits and its doorbells.

use crate::abi;
use crate::clock;
use crate::doorbell::Doorbells;
use crate::environment;
use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{self, check, EINVAL};
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
use crate::register::OPS;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::{addr_of_mut, null_mut};
use std::io::Write;

/// An open rrxe device. libibverbs allocates it, zeroed.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<VerbsContext>,
    /// Limits of the device, queried when it was opened.
    pub(crate) device: IbvDeviceAttr,
    /// Further limits.
    pub(crate) kernel: abi::AllocUcontextResp,
    /// Nanoseconds of empty polls after which a thread yields the CPU, or 0 for never.
    pub(crate) yield_after: u64,
    pub(crate) doorbells: Doorbells,
}

// SAFETY: the public context is that member of libibverbs' part, the first member of a `Context`,
// which libibverbs allocates as a whole.
unsafe impl Public for IbvContext {
    type Object = Context;
    const OFFSET: usize = offset_of!(VerbsContext, context);
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
    let (size, id) = (size_of::<Context>(), abi::DRIVER_ID);
    // SAFETY: the caller's contract. libibverbs expects the offset of its own part in the
    // allocation as a pointer, here null, and returns null with an error number if it fails. It
    // does not share the context before this function returns. If that fails, the whole allocation
    // is released. The table of operations matches the private ABI.
    unsafe {
        let verbs = _verbs_init_and_alloc_context(device, cmd_fd, size, null_mut(), id);
        let verbs = verbs.cast::<VerbsContext>();
        if verbs.is_null() {
            return verbs;
        }
        if let Err(error) = set_up(verbs.cast(), cmd_fd) {
            verbs_uninit_context(verbs);
            os::free(verbs.cast());
            return os::fail(error);
        }
        verbs_set_ops(verbs, &OPS);
        verbs
    }
}

/// Opens the kernel's side of a context and queries the limits of the device.
///
/// # Safety
///
/// libibverbs has initialised `context`, with the uverbs file `cmd_fd`; it is not yet shared.
unsafe fn set_up(context: *mut Context, cmd_fd: c_int) -> Result<(), c_int> {
    let yield_us = environment::YIELD.read()?;
    let poll_idle_us = environment::POLL_IDLE.read()?;
    let explains = environment::read_debug();
    // SAFETY: the caller's contract.
    let kernel = unsafe { get_context(context.cast(), poll_idle_us)? };
    let polled = kernel.features & abi::FEATURE_POLL != 0;
    if poll_idle_us != 0 && !polled && explains {
        eprintln!(
            "librrxe: no poll mode, sends are system calls: the process or its control group may \
             have no further thread (ulimit -u, pids.max), or the kernel has no poll mode \
             (poll_mode=0, no CONFIG_VHOST_TASK)"
        );
    }
    // SAFETY: the context is not yet shared, and initialised as far as the query uses it. The size
    // is that of the member that the query writes.
    check(unsafe {
        (*context).kernel = kernel;
        (*context).yield_after = u64::from(yield_us).saturating_mul(1000);
        (*context).doorbells = Doorbells::new(cmd_fd, polled);
        let public = Ptr::new(context.byte_add(IbvContext::OFFSET).cast());
        let device = addr_of_mut!((*context).device).cast();
        query_device_ex(public, None, device, size_of::<IbvDeviceAttr>())
    })
}

/// Opens the kernel's side of a context, in poll mode if `poll_idle_us` is not 0 and the kernel
/// supports it.
///
/// # Safety
///
/// libibverbs has initialised `verbs`; it is not yet shared.
unsafe fn get_context(
    verbs: *mut VerbsContext,
    poll_idle_us: u32,
) -> Result<abi::AllocUcontextResp, c_int> {
    let mut cmd = command::GetContext {
        core: [0; 2],
        driver: abi::AllocUcontextCmd {
            poll_idle_us,
            reserved: 0,
        },
    };
    let mut resp = command::GetContextResp {
        core: [0],
        driver: abi::AllocUcontextResp::default(),
    };
    // A kernel without poll mode rejects the extended command.
    let size = if poll_idle_us == 0 {
        size_of_val(&cmd.core)
    } else {
        size_of_val(&cmd)
    };
    let room = size_of_val(&resp);
    #[cfg(not(feature = "pabi65"))]
    // SAFETY: the buffers have at least the sizes given.
    let error = unsafe { ibv_cmd_get_context(verbs, &mut cmd, size, &mut resp, room) };
    #[cfg(feature = "pabi65")]
    // SAFETY: the buffers have at least the sizes given; there are no file descriptors.
    let error = unsafe { ibv_cmd_get_context(verbs, &mut cmd, size, null_mut(), &mut resp, room) };
    match error {
        0 => Ok(resp.driver),
        // The kernel does not support poll mode: open the context without it.
        // SAFETY: the caller's contract; nothing was opened.
        os::EOPNOTSUPP if poll_idle_us != 0 => unsafe { get_context(verbs, 0) },
        _ => Err(error),
    }
}

/// Closes a device.
///
/// # Safety
///
/// Nothing uses the context afterwards.
pub(crate) unsafe extern "C" fn free_context(context: Ptr<IbvContext>) {
    // SAFETY: libibverbs allocated the context for `alloc_context`, and nothing uses it.
    unsafe {
        let verbs = context.as_ptr().byte_sub(IbvContext::OFFSET);
        verbs_uninit_context(verbs.cast());
        os::free(verbs.cast());
    }
}

/// `ibv_query_device_ex` and `ibv_query_device`.
///
/// # Safety
///
/// `attr` has room for `attr_size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: Ptr<IbvContext>,
    input: Option<&IbvQueryDeviceExInput>,
    attr: *mut IbvDeviceAttrEx,
    attr_size: usize,
) -> c_int {
    let mut resp = [0; 38];
    let mut resp_size = size_of_val(&resp);
    // SAFETY: the caller's contract, and the response has the size given.
    let error = unsafe {
        ibv_cmd_query_device_any(context, input, attr, attr_size, &mut resp, &mut resp_size)
    };
    if error != 0 {
        return error;
    }
    let [version, ..] = resp;
    let clock_end = offset_of!(IbvDeviceAttrEx, hca_core_clock).wrapping_add(size_of::<u64>());
    // SAFETY: libibverbs refused sizes below that of the first member. The structure has the other
    // two if it is long enough.
    unsafe {
        write_version(&mut *addr_of_mut!((*attr).orig_attr.fw_ver), version);
        // The kernel does not know the unit of the timestamps in the ring: see `crate::clock`.
        if attr_size >= clock_end {
            (*attr).completion_timestamp_mask = u64::MAX;
            (*attr).hca_core_clock = 1_000_000;
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

/// `ibv_query_rt_values_ex`: the clock of completion timestamps. All ticks are in `tv_nsec`, as
/// with other providers.
pub(crate) extern "C" fn query_rt_values(
    _context: Ptr<IbvContext>,
    values: &mut IbvValuesEx,
) -> c_int {
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
pub(crate) mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    /// Creates a context without a device, which lives as long as the test program. Doorbells have
    /// no effect.
    pub(crate) fn context() -> Ptr<IbvContext> {
        let null = std::fs::File::options().write(true).open("/dev/null");
        // SAFETY: integers, arrays, pointers that may be null.
        let mut context: Box<Context> = Box::new(unsafe { command::zeroed() });
        context.device.max_qp_wr = 1024;
        context.device.max_cqe = 1024;
        (context.device.max_srq_wr, context.device.max_srq_sge) = (64, 4);
        (context.kernel.max_sge, context.kernel.max_inline) = (32, 512);
        context.doorbells = Doorbells::new(null.unwrap().into_raw_fd(), false);
        // SAFETY: the public part of a context that is never freed.
        unsafe { Ptr::new(Box::into_raw(context).byte_add(IbvContext::OFFSET).cast()) }
    }

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
        assert_eq!(query_rt_values(context(), &mut values), 0);
        assert_eq!(values.raw_clock.tv_nsec, 0);
        values.comp_mask = VALUES_MASK_RAW_CLOCK;
        assert_eq!(query_rt_values(context(), &mut values), 0);
        assert_ne!(values.raw_clock.tv_nsec, 0);
        values.comp_mask = 2;
        assert_eq!(query_rt_values(context(), &mut values), EINVAL);
    }
}
