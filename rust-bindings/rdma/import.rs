// SPDX-License-Identifier: GPL-2.0

//! Import of a context: a program that gets a context's file from another one, or that duplicates
//! it, makes a second `struct ibv_context` for the same kernel context.
//!
//! import.c adds an attribute and two methods to uverbs, which the program uses: the driver's
//! response for the context ([`ContextQuery`]), a check of the handle of a protection domain, and
//! the length of a device memory. uverbs itself has a method for memory regions.

use crate::raw;
use core::{marker::PhantomData, mem::size_of, ptr::NonNull};
use kernel::{error::to_result, prelude::*, transmute::AsBytes};

/// The attribute of `UVERBS_METHOD_QUERY_CONTEXT` for the driver's response.
pub const CONTEXT_RESPONSE: u16 = raw::rdma_import_id_RDMA_IMPORT_CONTEXT_RESPONSE as u16;
/// The method of `UVERBS_OBJECT_PD` that fails unless a protection domain has the handle.
pub const QUERY_PD: u16 = raw::rdma_import_id_RDMA_IMPORT_QUERY_PD as u16;
/// The attribute of [`QUERY_PD`] for the handle.
pub const PD_HANDLE: u16 = raw::rdma_import_id_RDMA_IMPORT_PD_HANDLE as u16;
/// The method of `UVERBS_OBJECT_DM` that returns the length of a device memory.
pub const QUERY_DM: u16 = raw::rdma_import_id_RDMA_IMPORT_QUERY_DM as u16;
/// The attribute of [`QUERY_DM`] for the handle.
pub const DM_HANDLE: u16 = raw::rdma_import_id_RDMA_IMPORT_DM_HANDLE as u16;
/// The attribute of [`QUERY_DM`] for the length in bytes, a `u32`.
pub const DM_LENGTH: u16 = raw::rdma_import_id_RDMA_IMPORT_DM_LENGTH as u16;

/// A running command that queries a context for a program that imports it.
///
/// # Invariants
///
/// The pointer is valid while the command runs, in the context of the calling process. The command
/// has the attribute [`CONTEXT_RESPONSE`].
pub struct ContextQuery<'a>(
    NonNull<raw::uverbs_attr_bundle>,
    PhantomData<&'a mut raw::uverbs_attr_bundle>,
);

impl ContextQuery<'_> {
    /// Wraps the attributes of the command. Returns `None` for null.
    ///
    /// # Safety
    ///
    /// `attrs` is null or was passed by uverbs to the operation `query_ucontext`, which does not
    /// return during `'a`, of a device with the definitions of import.c.
    pub(super) unsafe fn from_ptr(attrs: *mut raw::uverbs_attr_bundle) -> Option<Self> {
        // INVARIANT: The caller guarantees that the command runs for `'a`. The definitions make
        // the attribute mandatory.
        NonNull::new(attrs).map(|attrs| Self(attrs, PhantomData))
    }

    /// Copies the driver's response. The user's buffer is truncated or padded with zeroes.
    pub fn write<T: AsBytes>(&mut self, value: &T) -> Result {
        let from = core::ptr::from_ref(value).cast();
        // SAFETY: The attributes are valid by the type invariant.
        // uverbs_copy_to_struct_or_zero() (ib_core_uverbs.c) reads `size_of::<T>()` bytes of
        // `value`, which are initialized since `T: AsBytes`.
        to_result(unsafe {
            let (attrs, id) = (self.0.as_ptr(), usize::from(CONTEXT_RESPONSE));
            raw::uverbs_copy_to_struct_or_zero(attrs, id, from, size_of::<T>())
        })
    }
}

/// Returns the definitions of import.c, for `struct ib_device`.
pub(super) fn definitions() -> *const raw::uapi_definition {
    (&raw const raw::rdma_import_definitions).cast()
}
