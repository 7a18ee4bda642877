// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context: an open device, its limits and its doorbells.

use crate::abi;
use crate::doorbell::Doorbells;
use crate::ffi::driver::*;
use crate::ffi::os::{self, check, EINVAL};
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
use crate::ffi::{command, pabi};
use crate::{clock, environment, object, shortage};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::mem::{offset_of, size_of};
use core::ptr::addr_of_mut;
use std::io::Write;

/// An open rrxe device. libibverbs allocates it, zeroed.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<VerbsContext>,
    pub(crate) limits: Limits,
    /// Nanoseconds of empty polls after which a thread yields the CPU, or 0 for never.
    pub(crate) yield_after: u64,
    /// The provider explains failures on standard error.
    explains: bool,
    pub(crate) doorbells: Doorbells,
}

// SAFETY: the public context is that member of a `Context`, which libibverbs allocates as a whole.
unsafe impl Public for IbvContext {
    type Object = Context;
    const OFFSET: usize =
        offset_of!(Context, verbs).wrapping_add(offset_of!(VerbsContext, context));
}

/// Limits of the device, queried once when it is opened (`ibv_query_device(3)`, and
/// [`abi::AllocUcontextResp`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_srq_sge: u32,
}

impl Context {
    /// Opens a device. Returns libibverbs' part of the context.
    ///
    /// # Safety
    ///
    /// libibverbs has matched `device`, and `cmd_fd` is a descriptor of its uverbs file, whose
    /// ownership passes to this function.
    pub(crate) unsafe fn open(
        device: *mut IbvDevice,
        cmd_fd: c_int,
    ) -> Result<*mut VerbsContext, c_int> {
        let offset = core::ptr::without_provenance_mut(offset_of!(Context, verbs));
        // SAFETY: the caller's contract. libibverbs expects the offset of its own part of the
        // allocation as a pointer, and returns null with an error number if it fails. It does not
        // share the context before this function returns. If that fails, the whole allocation is
        // released.
        unsafe {
            let context = _verbs_init_and_alloc_context(
                device,
                cmd_fd,
                size_of::<Context>(),
                offset,
                abi::DRIVER_ID,
            )
            .cast::<Context>();
            if context.is_null() {
                return Err(os::errno());
            }
            let verbs = addr_of_mut!((*context).verbs).cast::<VerbsContext>();
            match set_up(context, cmd_fd) {
                Ok(()) => Ok(verbs),
                Err(error) => {
                    verbs_uninit_context(verbs);
                    os::free(context.cast());
                    Err(error)
                }
            }
        }
    }

    /// Explains on standard error why `result`, that of a command that creates the object `what`,
    /// is a failure, if the environment asks for it. `pinned` are address and size in bytes of the
    /// memory that the kernel pins for the object. Returns `result`.
    pub(crate) fn explained(
        &self,
        what: &str,
        pinned: (u64, usize),
        result: Result<(), c_int>,
    ) -> Result<(), c_int> {
        if let (Err(error), true) = (result, self.explains) {
            shortage::explain(what, pinned, error);
        }
        result
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
    // SAFETY: the caller's contract.
    let features = unsafe { get_context(context, poll_idle_us)? };
    let polled = features.features & abi::FEATURE_POLL != 0;
    if poll_idle_us != 0 && !polled && environment::explains() {
        eprintln!(
            "librrxe: no poll mode, sends are system calls: the process or its control group may \
             have no further thread (ulimit -u, pids.max), or the kernel has no poll mode \
             (poll_mode=0, no CONFIG_VHOST_TASK)"
        );
    }

    // SAFETY: integers and arrays of them.
    let mut attr: IbvDeviceAttrEx = unsafe { command::zeroed() };
    // SAFETY: the size is that of the first member, so nothing else is accessed. The context is
    // initialised as far as the function uses it.
    check(unsafe {
        let public = Ptr::new(context.byte_add(IbvContext::OFFSET).cast());
        query_device_ex(public, None, &mut attr, size_of::<IbvDeviceAttr>())
    })?;
    let attr = attr.orig_attr;
    let count = |n: c_int| u32::try_from(n).unwrap_or(0);
    let limits = Limits {
        max_qp_wr: count(attr.max_qp_wr),
        max_sge: features.max_sge,
        max_inline: features.max_inline,
        max_cqe: count(attr.max_cqe),
        max_srq_wr: count(attr.max_srq_wr),
        max_srq_sge: count(attr.max_srq_sge),
    };
    // SAFETY: the context is not yet shared.
    unsafe {
        (*context).limits = limits;
        (*context).yield_after = u64::from(yield_us).saturating_mul(1000);
        (*context).explains = environment::explains();
        (*context).doorbells = Doorbells::new(cmd_fd, polled);
    }
    Ok(())
}

/// Opens the kernel's side of a context, in poll mode if `poll_idle_us` is not 0 and the kernel
/// supports it.
///
/// # Safety
///
/// libibverbs has initialised `context`; it is not yet shared.
unsafe fn get_context(
    context: *mut Context,
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
    let cmd_size = if poll_idle_us == 0 {
        size_of_val(&cmd.core)
    } else {
        size_of_val(&cmd)
    };
    let resp_size = size_of_val(&resp);
    // SAFETY: the buffers have at least the sizes given.
    let result = check(unsafe {
        let verbs = addr_of_mut!((*context).verbs).cast();
        pabi::ibv_cmd_get_context(verbs, &mut cmd, cmd_size, &mut resp, resp_size)
    });
    match result {
        Ok(()) => Ok(resp.driver),
        // The kernel does not support poll mode: open the context without it.
        // SAFETY: the caller's contract; nothing was opened.
        Err(os::EOPNOTSUPP) if poll_idle_us != 0 => unsafe { get_context(context, 0) },
        Err(error) => Err(error),
    }
}

/// Closes a device.
///
/// # Safety
///
/// Nothing uses the context afterwards.
pub(crate) unsafe extern "C" fn free_context(context: Ptr<IbvContext>) {
    let context = context.as_ptr();
    // SAFETY: libibverbs allocated the context for `Context::open`, and nothing uses it.
    unsafe {
        let whole = context.byte_sub(IbvContext::OFFSET).cast::<Context>();
        verbs_uninit_context(addr_of_mut!((*whole).verbs).cast());
        os::free(whole.cast());
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

/// `ibv_query_port`.
pub(crate) extern "C" fn query_port(
    context: Ptr<IbvContext>,
    port_num: u8,
    attr: &mut IbvPortAttr,
) -> c_int {
    object::status(command::query_port(context, port_num, attr))
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

    pub(crate) const DEVICE: Limits = Limits {
        max_qp_wr: 1024,
        max_sge: 32,
        max_inline: 512,
        max_cqe: 1024,
        max_srq_wr: 64,
        max_srq_sge: 4,
    };

    /// Creates a context without a device, which lives as long as the test program. Doorbells have
    /// no effect.
    pub(crate) fn context() -> Ptr<IbvContext> {
        let null = std::fs::File::options().write(true).open("/dev/null");
        // SAFETY: integers, arrays, pointers that may be null.
        let mut context: Box<Context> = Box::new(unsafe { command::zeroed() });
        context.limits = DEVICE;
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
