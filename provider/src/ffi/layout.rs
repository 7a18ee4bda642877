// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Macros that declare types of C.
//!
//! A declaration has the sizes and offsets that a C compiler gives to the original, measured on
//! x86-64 with the headers of rdma-core 56.1 and 65.0. A build fails if one of them differs.

/// Defines structures of C: `struct Name (size) { @offset member: type, }`, in bytes.
macro_rules! structures {
    ($(
        $(#[$attr:meta])*
        struct $name:ident ($size:expr) {
            $($(#[$member_attr:meta])* @$offset:tt $member:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$attr])*
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$member_attr])* pub(crate) $member: $type,)*
        }

        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $member) == $offset);)*
        };
    )*};
}

/// Defines structures that only pass through this provider.
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
