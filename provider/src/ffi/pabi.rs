// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The differences between private ABI 34 of libibverbs (rdma-core 56.1) and 65 (rdma-core 65.0),
//! besides the operations that only 65 has ([`super::operations`]).

use super::command::{GetContext, GetContextResp};
use super::driver::{VerbsContext, VerbsCq, VerbsDeviceOps, VerbsQp};
use super::ptr::Ptr;
use super::verbs::*;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

/// Returns the number that holds for the private ABI of this build.
pub(crate) const fn by_pabi(pabi34: usize, pabi65: usize) -> usize {
    if cfg!(feature = "pabi65") {
        pabi65
    } else {
        pabi34
    }
}

extern "C" {
    /// `verbs_register_driver`, whose name carries the number of the private ABI.
    #[cfg_attr(not(feature = "pabi65"), link_name = "verbs_register_driver_34")]
    #[cfg_attr(feature = "pabi65", link_name = "verbs_register_driver_65")]
    pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);
}

/// Declares functions of libibverbs with the arguments that they have in private ABI 34. In 65 they
/// have one more, in place of the semicolon; the provider does not use it and passes null.
macro_rules! functions {
    ($(
        $(#[$attr:meta])*
        fn $name:ident($($before:ident: $b:ty),*; $($after:ident: $a:ty),*);
    )*) => {$(
        #[cfg(not(feature = "pabi65"))]
        extern "C" {
            pub(crate) fn $name($($before: $b,)* $($after: $a),*) -> c_int;
        }

        /// Calls the C function without the argument that is new.
        ///
        /// # Safety
        ///
        /// The contract of the C function: `cmd` and `resp` have at least the sizes given, and
        /// flags do not ask for the argument that is new.
        #[cfg(feature = "pabi65")]
        $(#[$attr])*
        pub(crate) unsafe fn $name($($before: $b,)* $($after: $a),*) -> c_int {
            extern "C" {
                fn $name($($before: $b,)* none: *mut c_void, $($after: $a),*) -> c_int;
            }
            // SAFETY: the caller's contract. libibverbs checks an array of file descriptors for
            // null, ends a chain of attributes at null, and uses a buffer only if flags ask for it.
            unsafe { $name($($before,)* core::ptr::null_mut(), $($after),*) }
        }
    )*};
}

functions! {
    fn ibv_cmd_get_context(
        context: *mut VerbsContext, cmd: &mut GetContext, cmd_size: usize;
        resp: &mut GetContextResp, resp_size: usize
    );
    #[expect(clippy::too_many_arguments, reason = "those of the C function")]
    fn ibv_cmd_create_cq_ex(
        context: Ptr<IbvContext>, cq_attr: &IbvCqInitAttrEx; cq: &UnsafeCell<VerbsCq>,
        cmd: *mut c_void, cmd_size: usize, resp: *mut c_void, resp_size: usize, cmd_flags: u32
    );
    fn ibv_cmd_create_qp_ex2(
        context: Ptr<IbvContext>, qp: &UnsafeCell<VerbsQp>, attr: &mut IbvQpInitAttrEx,
        cmd: *mut c_void, cmd_size: usize, resp: *mut c_void, resp_size: usize;
    );
}
