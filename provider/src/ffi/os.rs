// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions and constants of the C library that the provider uses.

use core::ffi::{c_int, c_ulong, c_void};

/// `struct timespec`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Timespec {
    pub(crate) tv_sec: i64,
    pub(crate) tv_nsec: i64,
}

/// `ENOENT`: the completion queue is empty.
pub(crate) const ENOENT: c_int = 2;
/// `ENOMEM`: no memory, or the work queue is full.
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EACCES: c_int = 13;
pub(crate) const EINVAL: c_int = 22;
/// `EDQUOT`: the user has its share of the objects of this kind.
pub(crate) const EDQUOT: c_int = 122;
pub(crate) const EOPNOTSUPP: c_int = 95;

pub(crate) const PROT_READ: c_int = 1;
pub(crate) const PROT_WRITE: c_int = 2;
pub(crate) const MAP_PRIVATE: c_int = 2;
pub(crate) const MAP_ANONYMOUS: c_int = 0x20;

pub(crate) const CLOCK_REALTIME: c_int = 0;
/// `CLOCK_MONOTONIC`, the clock of completion timestamps.
pub(crate) const CLOCK_MONOTONIC: c_int = 1;

/// `AT_PAGESZ`: the bytes of a page.
pub(crate) const AT_PAGESZ: c_ulong = 6;

extern "C" {
    pub(crate) fn mmap(
        addr: *mut c_void,
        length: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    pub(crate) fn munmap(addr: *mut c_void, length: usize) -> c_int;
    pub(crate) fn free(pointer: *mut c_void);
    pub(crate) fn write(fd: c_int, buf: *const c_void, count: usize) -> isize;
    fn __errno_location() -> *mut c_int;
}

// SAFETY: clock_gettime(2) writes `time` only, and getauxval(3) accepts any number.
unsafe extern "C" {
    safe fn clock_gettime(clock: c_int, time: &mut Timespec) -> c_int;
    pub(crate) safe fn getauxval(kind: c_ulong) -> c_ulong;
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

/// Returns the nanoseconds since the epoch of `clock` ([`CLOCK_MONOTONIC`] or [`CLOCK_REALTIME`]).
pub(crate) fn nanoseconds(clock: c_int) -> i64 {
    let mut time = Timespec::default();
    // Both clocks exist on every Linux, so the call cannot fail.
    clock_gettime(clock, &mut time);
    time.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec)
}
