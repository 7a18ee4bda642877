// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The functions and constants of the C library that the provider uses.

use core::ffi::{c_char, c_int, c_ulong, c_void, CStr};

/// `struct timespec`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Timespec {
    pub(crate) tv_sec: i64,
    pub(crate) tv_nsec: i64,
}

/// `struct iovec`.
#[repr(C)]
struct IoVec {
    base: *const c_void,
    length: usize,
}

/// `ENOENT`: the completion queue is empty.
pub(crate) const ENOENT: c_int = 2;
/// `ENOMEM`: no memory, or the work queue is full.
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EACCES: c_int = 13;
pub(crate) const EFAULT: c_int = 14;
pub(crate) const EBUSY: c_int = 16;
pub(crate) const EINVAL: c_int = 22;
/// `EDQUOT`: the user has its share of the objects of this kind.
pub(crate) const EDQUOT: c_int = 122;
pub(crate) const EOPNOTSUPP: c_int = 95;
/// `EPROTONOSUPPORT`: the kernel does not know a method or an attribute of uverbs.
pub(crate) const EPROTONOSUPPORT: c_int = 93;

const O_RDONLY: c_int = 0;
const O_CLOEXEC: c_int = 0o2_000_000;

const STDERR_FILENO: c_int = 2;
/// `RWF_NOSIGNAL`: no SIGPIPE if a pipe or a socket has no reader (linux/fs.h, Linux 6.18).
const RWF_NOSIGNAL: c_int = 0x100;

/// `MADV_DONTNEED_LOCKED`: also pages of a program that called mlockall(2).
const MADV_DONTNEED_LOCKED: c_int = 24;

pub(crate) const PROT_READ: c_int = 1;
pub(crate) const PROT_WRITE: c_int = 2;
pub(crate) const MAP_SHARED: c_int = 1;
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
    fn madvise(addr: *mut c_void, length: usize, advice: c_int) -> c_int;
    pub(crate) fn free(pointer: *mut c_void);
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
    fn secure_getenv(name: *const c_char) -> *const c_char;
    fn pwritev2(fd: c_int, iov: *const IoVec, iovcnt: c_int, offset: i64, flags: c_int) -> isize;
    pub(crate) fn write(fd: c_int, buf: *const c_void, count: usize) -> isize;
    fn __errno_location() -> *mut c_int;
}

// SAFETY: clock_gettime(2) writes `time` only, getauxval(3) and malloc(3) accept any number,
// close(2) is called with descriptors of this module only, and sched_yield(2) has no argument.
unsafe extern "C" {
    pub(crate) safe fn malloc(size: usize) -> *mut c_void;
    safe fn close(fd: c_int) -> c_int;
    pub(crate) safe fn sched_yield() -> c_int;
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

/// Gives back the memory of pages, if the kernel can do that. Their contents are lost.
///
/// # Safety
///
/// The pages are an anonymous mapping of the caller, which expects no contents in them.
pub(crate) unsafe fn discard(base: *mut c_void, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { madvise(base, bytes, MADV_DONTNEED_LOCKED) };
}

/// Returns the value of an environment variable. Returns `None` if it is not set, or if the program
/// has more privileges than its user, for example by set-user-ID (secure_getenv(3)).
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends with a zero.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: the value ends with a zero. It lives until the program changes the variable, which a
    // program with several threads must not do (getenv(3)); callers use it at once.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Reads the start of a file, as much as fits into `buffer`. Returns the bytes read: none if the
/// file cannot be read.
pub(crate) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends with a zero.
    let fd = unsafe { open(path.as_ptr(), O_RDONLY | O_CLOEXEC) };
    if fd < 0 {
        return &[];
    }
    let mut length = 0_usize;
    while let Some(room) = buffer.get_mut(length..).filter(|room| !room.is_empty()) {
        // SAFETY: `room` is a part of the buffer.
        match unsafe { read(fd, room.as_mut_ptr().cast(), room.len()) } {
            count @ 1.. => length = length.wrapping_add(count as usize),
            _ => break,
        }
    }
    close(fd);
    buffer.get(..length).unwrap_or_default()
}

/// Writes `text` to standard error. Failures are ignored, and no signal is raised. If standard
/// error is closed, and the descriptor became that of a uverbs file, nothing is written: such a
/// file accepts no flags.
pub(crate) fn write_to_stderr(text: &[u8]) {
    let vector = IoVec {
        base: text.as_ptr().cast(),
        length: text.len(),
    };
    // SAFETY: the vector describes `text`, which is readable.
    unsafe { pwritev2(STDERR_FILENO, &vector, 1, -1, RWF_NOSIGNAL) };
}
