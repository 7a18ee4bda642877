// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Macros that declare types of C.
//!
//! A declaration has the sizes and offsets that a C compiler gives to the original on x86-64, and a
//! build fails if one of them differs. `provider/layouts` compares them with the headers of
//! rdma-core. On other architectures the C library may have a longer mutex, which moves the members
//! behind it.

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_env = "gnu", target_env = "musl")
)))]
compile_error!("librrxe has the layouts of 64-bit Linux with glibc or musl only");

/// Bytes by which a `pthread_mutex_t` is longer than on x86-64 (`bits/pthreadtypes-arch.h` of
/// glibc, `bits/alltypes.h` of musl).
const MUTEX_GROWTH: usize = if cfg!(all(target_arch = "aarch64", target_env = "gnu")) {
    8
} else {
    0
};

/// Words of a `pthread_mutex_t`.
pub(super) const MUTEX_WORDS: usize = 5_usize.wrapping_add(MUTEX_GROWTH.wrapping_div(8));

/// Returns the offset of a member, or the size of a structure, that is `offset` on x86-64. `mutex`
/// is the offset of the structure's mutex, or `usize::MAX`.
#[expect(dead_code, reason = "rustc sees no use in an unnamed constant")]
pub(super) const fn offset(offset: usize, mutex: usize) -> usize {
    if offset > mutex {
        offset.wrapping_add(MUTEX_GROWTH)
    } else {
        offset
    }
}

/// Defines structures of C: `struct Name (size) { @offset member: type, }`, in bytes. A structure
/// that contains a mutex is `struct Name (size, mutex at offset)`.
macro_rules! structures {
    ($(
        $(#[$attr:meta])*
        struct $name:ident ($size:literal $(, mutex at $mutex:literal)?) {
            $($(#[$member_attr:meta])* @$offset:literal $member:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$attr])*
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$member_attr])* pub(crate) $member: $type,)*
        }

        const _: () = {
            use $crate::ffi::layout::offset;
            const MUTEX: usize = usize::MAX $(- usize::MAX + $mutex)?;
            assert!(core::mem::size_of::<$name>() == offset($size, MUTEX));
            $(assert!(core::mem::offset_of!($name, $member) == offset($offset, MUTEX));)*
        };
    )*};
}

/// Defines structures that only pass through this provider, by their address
/// ([`super::ptr::Foreign`]).
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub(crate) struct $name { _opaque: [u8; 0] })*
    };
}

/// Returns the type of a pointer to a C function, which may be null.
macro_rules! c_fn {
    (($($type:ty),*) $(-> $result:ty)?) => {
        Option<unsafe extern "C" fn($($type),*) $(-> $result)?>
    };
}
