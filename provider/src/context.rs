// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context: an open device, its limits and its doorbells.

use crate::abi;
use crate::clock;
use crate::doorbell::Doorbells;
use crate::environment;
use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::layouts::LAYOUTS;
use crate::ffi::os::{self, check, EINVAL, EOPNOTSUPP};
use crate::ffi::ptr::{Foreign, Ptr, Public};
use crate::ffi::verbs::*;
use crate::register::OPS;
use crate::text::{say, Text};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::{addr_of_mut, null_mut};

/// An open rrxe device. It is zeroed when libibverbs allocates it, at the end of its own structure.
#[repr(C)]
pub(crate) struct Context {
    /// The public context, which ends libibverbs' own structure.
    public: UnsafeCell<IbvContext>,
    /// The start of the allocation.
    verbs: *mut VerbsContext,
    /// Limits of the device, queried when it was opened.
    pub(crate) device: IbvDeviceAttr,
    /// Further limits.
    pub(crate) kernel: abi::AllocUcontextResp,
    /// Nanoseconds of empty polls after which a thread yields the CPU, or 0 for never.
    pub(crate) yield_after: u64,
    pub(crate) doorbells: Doorbells,
}

// SAFETY: the public part is the first member of a `Context`, which libibverbs allocates as a
// whole, together with its own structure.
unsafe impl Public for IbvContext {
    type Object = Context;
}

/// Bytes to allocate for a context: the longest layout, and space for operations that a later
/// release may have added under the same number ([`layout_of`]).
const ALLOCATION: usize = {
    let mut longest = 0;
    let mut rest = LAYOUTS;
    while let [layout, layouts @ ..] = rest {
        if layout.context > longest {
            longest = layout.context;
        }
        rest = layouts;
    }
    longest.wrapping_add(size_of::<Context>()).wrapping_add(512)
};

/// Origin of the kernel's side of a context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It is created for the uverbs file.
    New,
    /// It exists: another context has the same uverbs file, in this process or another one.
    Imported,
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
    // SAFETY: the caller's contract.
    unsafe { open(device, cmd_fd, Origin::New) }
}

/// `ibv_import_device`. The contexts of a uverbs file share the kernel's side, with its objects,
/// but nothing in this library: an object of one context is unknown to the others until it is
/// imported.
///
/// # Safety
///
/// Called by libibverbs with a device that it matched and a descriptor of its uverbs file, whose
/// ownership passes to this function.
pub(crate) unsafe extern "C" fn import_context(
    device: *mut IbvDevice,
    cmd_fd: c_int,
) -> *mut VerbsContext {
    // SAFETY: the caller's contract.
    unsafe { open(device, cmd_fd, Origin::Imported) }
}

/// Opens or imports a device.
///
/// # Safety
///
/// As for [`alloc_context`].
unsafe fn open(device: *mut IbvDevice, cmd_fd: c_int, origin: Origin) -> *mut VerbsContext {
    // SAFETY: the caller's contract. libibverbs expects the offset of its own part in the
    // allocation as a pointer, here null, and returns null with an error number if it fails. It
    // does not share the context before this function returns. If that fails, the whole allocation
    // is released.
    unsafe {
        let id = abi::DRIVER_ID;
        let verbs = _verbs_init_and_alloc_context(device, cmd_fd, ALLOCATION, null_mut(), id);
        let verbs = verbs.cast::<VerbsContext>();
        if verbs.is_null() {
            return verbs;
        }
        match set_up(verbs, cmd_fd, origin) {
            Ok(operations) => verbs_set_ops(verbs, operations),
            Err(error) => {
                verbs_uninit_context(verbs);
                os::free(verbs.cast());
                return os::fail(error);
            }
        }
        verbs
    }
}

/// Returns the layout of a context that libibverbs has initialised, and its table of operations.
///
/// libibverbs writes the size of its structure right before the public context. One private ABI can
/// have several layouts, and so several places for the size. No other member there can have the
/// value: in rdma-core 62 and 63 the place of 59 to 61 is unused and 0, and in 59 to 61 that of 62
/// and 63 is the pointer to the device.
///
/// # Safety
///
/// `verbs` has [`ALLOCATION`] bytes.
unsafe fn layout_of(
    verbs: *const VerbsContext,
) -> Option<(&'static Layout, &'static VerbsContextOps)> {
    let mut layouts = LAYOUTS.iter().zip(&OPS);
    layouts.find(|(layout, _)| {
        let place = layout.context.wrapping_sub(size_of::<usize>());
        // SAFETY: the place is in the allocation, by the caller's contract, and aligned.
        let size = unsafe { verbs.byte_add(place).cast::<usize>().read() };
        size == layout.context_size()
    })
}

/// Opens or queries the kernel's side of a context, and queries the limits of the device. Returns
/// the operations.
///
/// # Safety
///
/// libibverbs has initialised `verbs`, of [`ALLOCATION`] bytes, with the uverbs file `cmd_fd`; it
/// is not yet shared.
unsafe fn set_up(
    verbs: *mut VerbsContext,
    cmd_fd: c_int,
    origin: Origin,
) -> Result<&'static VerbsContextOps, c_int> {
    // SAFETY: the caller's contract.
    let Some((layout, operations)) = (unsafe { layout_of(verbs) }) else {
        say(format_args!(
            "the installed libibverbs has a layout of private ABI {PABI} that this librrxe does not \
             know: install a later librrxe"
        ));
        return Err(EOPNOTSUPP);
    };
    let yield_us = environment::YIELD.read()?;
    let poll_idle_us = environment::POLL_IDLE.read()?;
    let debug = environment::read_debug();
    // SAFETY: the caller's contract. The public context is at that distance.
    let kernel = unsafe {
        match origin {
            Origin::New => get_context(verbs, poll_idle_us)?,
            Origin::Imported => {
                command::query_context(Ptr::new(verbs.byte_add(layout.context).cast()))?
            }
        }
    };
    let polled = kernel.features & abi::FEATURE_POLL != 0;
    if poll_idle_us != 0 && !polled && debug && origin == Origin::New {
        say(format_args!(
            "no poll mode is available, so each doorbell is a system call: raise the limit of \
             threads of the process or its control group (ulimit -u, pids.max), or enable poll \
             mode in the kernel (module parameter poll_mode, CONFIG_VHOST_TASK)"
        ));
    }
    // SAFETY: the context is not yet shared, and initialised as far as the query uses it. The
    // public context is at that distance, and a `Context` fits into the allocation from there on.
    // The size is that of the member that the query writes.
    check(unsafe {
        let context = verbs.byte_add(layout.context).cast::<Context>();
        (*context).verbs = verbs;
        (*context).kernel = kernel;
        (*context).yield_after = u64::from(yield_us).saturating_mul(1000);
        (*context).doorbells = Doorbells::new(cmd_fd, polled);
        let device = addr_of_mut!((*context).device).cast();
        query_device_ex(
            Ptr::new(context.cast()),
            None,
            device,
            size_of::<IbvDeviceAttr>(),
        )
    })?;
    Ok(operations)
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
    #[cfg(pabi = "34")]
    // SAFETY: the buffers have at least the sizes given.
    let error = unsafe { ibv_cmd_get_context(verbs, &mut cmd, size, &mut resp, room) };
    #[cfg(not(pabi = "34"))]
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
        let verbs = context.verbs;
        verbs_uninit_context(verbs);
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
    input: Option<Foreign<IbvQueryDeviceExInput>>,
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
    let part = |shift: u32| version.wrapping_shr(shift) & 0xffff;
    // Three numbers of at most five digits fit.
    let text = Text::<64>::new(format_args!("{}.{}.{}", part(32), part(16), part(0)));
    *to = text.into_bytes().map(|byte| byte as c_char);
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
        unsafe { Ptr::new(Box::into_raw(context).cast()) }
    }

    /// Returns the index of the layout of a context in which `words` have been written, each to the
    /// place of the size in a layout of `context` bytes before the public context.
    fn layout_with(words: &[(usize, usize)]) -> Option<usize> {
        let mut memory = [0_usize; ALLOCATION / 8];
        for &(context, word) in words {
            *memory.iter_mut().take(context / 8).last().unwrap() = word;
        }
        // SAFETY: the memory has that size.
        let (found, _) = unsafe { layout_of(memory.as_ptr().cast()) }?;
        LAYOUTS
            .iter()
            .position(|layout| layout.context == found.context)
    }

    #[test]
    fn the_size_tells_the_layout() {
        for (index, layout) in LAYOUTS.iter().enumerate() {
            let place = (layout.context, layout.context_size());
            assert_eq!(layout_with(&[place]), Some(index));
            for other in LAYOUTS
                .iter()
                .filter(|other| other.context != layout.context)
            {
                // A pointer or 0 is at the place of the other layout.
                let pointer = (other.context, 0x7f00_1234_5678);
                assert_eq!(layout_with(&[pointer, place]), Some(index));
            }
        }
    }

    #[test]
    fn an_unknown_layout_is_refused() {
        assert_eq!(layout_with(&[]), None);
        for layout in LAYOUTS {
            let (context, size) = (layout.context, layout.context_size());
            assert_eq!(layout_with(&[(context, size + 8)]), None);
            assert_eq!(layout_with(&[(context + 8, size + 24)]), None);
        }
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
