// SPDX-License-Identifier: GPL-2.0

//! Module parameters that are texts, in addition to the numbers of `module!`.
//!
//! C header: include/linux/moduleparam.h.

use crate::raw;
use core::ptr::{self, from_ref};
use kernel::{
    ffi::c_char,
    module_param::KernelParam,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// A module parameter that is a text (`charp`). Declared by
/// [`text_parameter`](crate::text_parameter).
///
/// # Invariants
///
/// The pointer is null, or the kernel has set it to a text that lives as long as the module.
#[repr(transparent)]
pub struct TextParameter(Atomic<*mut c_char>);

impl TextParameter {
    /// Creates a parameter that is not set. Used by [`text_parameter`](crate::text_parameter).
    #[doc(hidden)]
    pub const fn unset() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Returns the value, if it was set. Called when the module has been loaded.
    pub fn get(&self) -> Option<&CStr> {
        let text = self.0.load(Relaxed);
        // SAFETY: By the type invariant, a text is a C string, which is not freed before the module
        // (`param_set_charp()`, `param_free_charp()`, kernel/params.c).
        (!text.is_null()).then(|| unsafe { CStr::from_char_ptr(text) })
    }
}

/// Returns an entry of a module's parameter table. Used by
/// [`text_parameter`](crate::text_parameter).
#[doc(hidden)]
pub const fn entry(name: &'static CStr, parameter: &'static TextParameter) -> KernelParam {
    KernelParam::new(raw::kernel_param {
        name: kernel::str::as_char_ptr_in_const_context(name),
        mod_: (&raw const raw::__this_module).cast_mut(),
        ops: &raw const raw::param_ops_charp,
        // Not visible in sysfs, like the parameters of `module!`.
        perm: 0,
        level: -1,
        flags: 0,
        // INVARIANT: `perm` allows changes only while the module is being loaded, before its code
        // runs.
        __bindgen_anon_1: raw::kernel_param__bindgen_ty_1 {
            arg: from_ref(parameter).cast_mut().cast(),
        },
    })
}

/// Returns the bytes of a text of length `N`. Used by [`text_parameter`](crate::text_parameter).
#[doc(hidden)]
pub const fn bytes<const N: usize>(text: &str) -> [u8; N] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

/// Declares a module parameter that is a text and can be set when the module is loaded. `$name` is
/// the [`TextParameter`] that holds the value, `$word` the parameter's name.
#[macro_export]
macro_rules! text_parameter {
    ($name:ident, $word:literal, $description:literal) => {
        static $name: $crate::parameter::TextParameter = $crate::parameter::TextParameter::unset();

        const _: () = {
            const TYPE: &str = concat!("parmtype=", $word, ":charp\0");
            const TEXT: &str = concat!("parm=", $word, ":", $description, "\0");

            #[link_section = ".modinfo"]
            #[used(compiler)]
            static TYPE_LINE: [u8; TYPE.len()] = $crate::parameter::bytes(TYPE);
            #[link_section = ".modinfo"]
            #[used(compiler)]
            static TEXT_LINE: [u8; TEXT.len()] = $crate::parameter::bytes(TEXT);
            #[link_section = "__param"]
            #[used(compiler)]
            static ENTRY: ::kernel::module_param::KernelParam = $crate::parameter::entry(
                match ::core::ffi::CStr::from_bytes_with_nul(concat!($word, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a zero byte in the name of a parameter"),
                },
                &$name,
            );
        };
    };
}
