// SPDX-License-Identifier: GPL-2.0

//! Module parameters whose value is one of several words, in addition to the numbers of `module!`.
//!
//! C header: include/linux/moduleparam.h.

use crate::raw;
use core::{marker::PhantomData, ptr::from_ref};
use kernel::{
    error::from_result,
    ffi,
    module_param::{KernelParam, ModuleParam},
    prelude::*,
    sync::SetOnce,
};

/// The `kernel_param_ops` of parameters of type `T`.
struct Operations<T>(PhantomData<T>);

impl<T: ModuleParam + Send + Sync + 'static> Operations<T> {
    const TABLE: &'static raw::kernel_param_ops = &raw::kernel_param_ops {
        flags: 0,
        set: Some(Self::set),
        get: None,
        free: None,
    };

    /// Sets the parameter, once.
    ///
    /// # Safety
    ///
    /// `value` is null or a C string, and [`entry`] has made `parameter` for this type.
    unsafe extern "C" fn set(
        value: *const ffi::c_char,
        parameter: *const raw::kernel_param,
    ) -> ffi::c_int {
        from_result(|| {
            if value.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: The value is not null. `parse_one()` (kernel/params.c) passes a part of the
            // command line that ends with a zero byte, and an entry of the module's table. In each
            // entry with these operations, `entry` has set `arg` to the address of a static
            // `SetOnce<T>`.
            let (word, target) = unsafe {
                let target = (*parameter).__bindgen_anon_1.arg;
                (CStr::from_char_ptr(value), &*target.cast::<SetOnce<T>>())
            };
            let choice = T::try_from_param_arg(word.as_ref())?;
            target.populate(choice).then_some(0).ok_or(EEXIST)
        })
    }
}

/// Returns an entry of a module's parameter table. Used by [`choice_parameter`].
#[doc(hidden)]
pub const fn entry<T: ModuleParam + Send + Sync>(
    name: &'static CStr,
    parameter: &'static SetOnce<T>,
) -> KernelParam {
    KernelParam::new(raw::kernel_param {
        name: kernel::str::as_char_ptr_in_const_context(name),
        mod_: (&raw const raw::__this_module).cast_mut(),
        ops: from_ref(Operations::<T>::TABLE),
        // Not visible in sysfs, like the parameters of `module!`.
        perm: 0,
        level: -1,
        flags: 0,
        __bindgen_anon_1: raw::kernel_param__bindgen_ty_1 {
            arg: from_ref(parameter).cast_mut().cast(),
        },
    })
}

/// Returns the bytes of a text of length `N`. Used by [`choice_parameter`].
#[doc(hidden)]
pub const fn bytes<const N: usize>(text: &str) -> [u8; N] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

/// Declares a module parameter of a type that implements [`ModuleParam`], which can be set when the
/// module is loaded. `$name` is the [`SetOnce`] that holds the value, `$word` the parameter's name.
#[macro_export]
macro_rules! choice_parameter {
    ($name:ident: $type:ty, $word:literal, $description:literal) => {
        static $name: ::kernel::sync::SetOnce<$type> = ::kernel::sync::SetOnce::new();

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
