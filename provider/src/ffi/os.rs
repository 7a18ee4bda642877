// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C library functions that the provider calls, with safe wrappers.

use core::ffi::{c_int, c_long, c_void};

/// `struct timespec`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Timespec {
    pub(crate) tv_sec: i64,
    pub(crate) tv_nsec: i64,
}

/// `ENOENT`: the completion queue is empty.
pub(crate) const ENOENT: c_int = 2;
pub(crate) const EIO: c_int = 5;
/// `ENOMEM`: no memory, or the work queue is full.
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EACCES: c_int = 13;
pub(crate) const EINVAL: c_int = 22;
/// `EDQUOT`: the user has its share of the objects of this kind.
pub(crate) const EDQUOT: c_int = 122;
pub(crate) const EOPNOTSUPP: c_int = 95;

/// `struct rlimit` with 64-bit members, as on every 64-bit system.
#[repr(C)]
struct Rlimit {
    current: u64,
    max: u64,
}

const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
/// From `asm-generic/resource.h`, which all architectures except Alpha, MIPS and SPARC use.
const RLIMIT_MEMLOCK: c_int = 8;
const RLIM_INFINITY: u64 = u64::MAX;
const SC_PAGESIZE: c_int = 30;

/// `CLOCK_REALTIME`.
pub(crate) const CLOCK_REALTIME: c_int = 0;
/// `CLOCK_MONOTONIC`, the clock of completion timestamps.
pub(crate) const CLOCK_MONOTONIC: c_int = 1;

extern "C" {
    fn mmap(
        addr: *mut c_void,
        length: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(addr: *mut c_void, length: usize) -> c_int;
    fn free(pointer: *mut c_void);
    fn write(fd: c_int, buf: *const c_void, count: usize) -> isize;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn getrlimit(resource: c_int, limit: *mut Rlimit) -> c_int;
    fn sysconf(name: c_int) -> c_long;
    fn __errno_location() -> *mut c_int;
}

/// Returns the calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: glibc returns the address of the calling thread's errno, valid while it lives.
    unsafe { *__errno_location() }
}

/// Sets `errno` to `error` and returns null, which is how verbs that create objects fail.
pub(crate) fn fail<T>(error: c_int) -> *mut T {
    // SAFETY: as in `errno`.
    unsafe { *__errno_location() = error };
    core::ptr::null_mut()
}

/// Converts the result of a C function, which is 0 or an error number.
pub(crate) fn check(error: c_int) -> Result<(), c_int> {
    match error {
        0 => Ok(()),
        _ => Err(error),
    }
}

/// Maps `length` bytes of zeroed private memory. Returns `None` if that fails.
pub(crate) fn map_anonymous(length: usize) -> Option<core::ptr::NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let at = unsafe {
        mmap(
            core::ptr::null_mut(),
            length,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at as isize == -1 {
        return None;
    }
    core::ptr::NonNull::new(at.cast())
}

/// Unmaps memory that [`map_anonymous`] mapped.
///
/// # Safety
///
/// `at` and `length` are those of one earlier [`map_anonymous`], and the memory is not in use.
pub(crate) unsafe fn unmap(at: core::ptr::NonNull<u8>, length: usize) {
    // SAFETY: the caller's contract.
    unsafe { munmap(at.as_ptr().cast(), length) };
}

/// Releases memory that libibverbs allocated with `calloc`.
///
/// # Safety
///
/// `pointer` came from the C allocator, and the memory is not in use.
pub(crate) unsafe fn release(pointer: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { free(pointer) }
}

/// Writes one command to the uverbs file `fd`. Fails with the kernel's error number.
///
/// # Safety
///
/// `command` is a complete command as its header describes, and the response that it points to may
/// be written.
pub(crate) unsafe fn write_command<T>(fd: c_int, command: &T) -> Result<(), c_int> {
    let size = size_of::<T>();
    // SAFETY: `command` is readable for its size; the rest is the caller's contract.
    let written = unsafe { write(fd, core::ptr::from_ref(command).cast(), size) };
    match usize::try_from(written) {
        Ok(n) if n == size => Ok(()),
        Ok(_) => Err(EIO),
        Err(_) => Err(errno()),
    }
}

/// Returns how many bytes the process may lock in memory (RLIMIT_MEMLOCK), or `None` without a
/// limit.
pub(crate) fn memlock_limit() -> Option<u64> {
    let mut limit = Rlimit { current: 0, max: 0 };
    // SAFETY: getrlimit(2) writes a `struct rlimit`, and `limit` is one.
    let error = unsafe { getrlimit(RLIMIT_MEMLOCK, &mut limit) };
    (error == 0 && limit.current != RLIM_INFINITY).then_some(limit.current)
}

/// Returns the bytes of a page.
pub(crate) fn page_size() -> u64 {
    // SAFETY: sysconf(3) accepts any name.
    let size = unsafe { sysconf(SC_PAGESIZE) };
    u64::try_from(size)
        .ok()
        .filter(|n| n.is_power_of_two())
        .unwrap_or(4096)
}

/// Returns the nanoseconds since the epoch of `clock` ([`CLOCK_MONOTONIC`] or [`CLOCK_REALTIME`]).
pub(crate) fn nanoseconds(clock: c_int) -> i64 {
    let mut time = Timespec::default();
    // SAFETY: `time` may be written. Both clocks exist on every Linux, so the call cannot fail.
    unsafe { clock_gettime(clock, &mut time) };
    time.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec)
}
