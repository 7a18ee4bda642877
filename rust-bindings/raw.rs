// SPDX-License-Identifier: GPL-2.0

//! Generated bindings: the C items with their C names, `unsafe` as generated.
//!
//! Items of the kernel crate's bindings are re-exported. bindgen generates the others from
//! `bindings.h`. Nothing outside this crate uses this module.

#![allow(
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use kernel::ffi;
use pin_init::{MaybeZeroable, Zeroable};

// The generated items below shadow these.
pub use kernel::bindings::*;

include!(env!("LINUX_RDMA_BINDINGS"));

// SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`. (bindgen does not derive
// this, see <https://github.com/rust-lang/rust-bindgen/issues/3196>.)
unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

/// An opaque type: only pointers to it are used.
#[repr(C)]
pub struct uverbs_attr_bundle {
    _private: [u8; 0],
}

/// An opaque type: only pointers to it are used.
#[repr(C)]
pub struct uapi_definition {
    _private: [u8; 0],
}
