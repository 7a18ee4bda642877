// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a uverbs command.

use super::object::{Driver, Ucontext};
use crate::{errno::not_supported, raw};
use core::{marker::PhantomData, mem::size_of, ptr::NonNull};
use kernel::{
    error::to_result,
    prelude::*,
    transmute::{AsBytes, FromBytes},
};

/// The driver-specific input and output of a command from user space (`struct ib_udata`).
///
/// # Invariants
///
/// The pointer is valid while the command runs, in the context of the calling process.
pub struct Udata<'a>(NonNull<raw::ib_udata>, PhantomData<&'a mut raw::ib_udata>);

impl Udata<'_> {
    /// Wraps ib_core's pointer. Returns `None` for a kernel consumer.
    ///
    /// # Safety
    ///
    /// `ptr` is null or was passed by ib_core to an operation that does not return during `'a`.
    pub(crate) unsafe fn from_ptr(ptr: *mut raw::ib_udata) -> Option<Self> {
        // INVARIANT: The caller guarantees that the command runs for `'a`.
        NonNull::new(ptr).map(|p| Self(p, PhantomData))
    }

    /// Copies the driver's input. Returns `EINVAL` if it is shorter than `T`, or `EOPNOTSUPP` if it
    /// is longer and the additional bytes are not zero.
    pub fn read<T: FromBytes>(&mut self) -> Result<T> {
        self.read_at_least(size_of::<T>())
    }

    /// Copies the driver's input from a program that may use a shorter `T`, or none. Missing bytes
    /// are zero.
    pub fn read_as_far_as_known<T: FromBytes>(&mut self) -> Result<T> {
        self.read_at_least(0)
    }

    /// Copies the driver's input, which must have at least `min` bytes. Missing bytes are zero.
    fn read_at_least<T: FromBytes>(&mut self, min: usize) -> Result<T> {
        let mut value = core::mem::MaybeUninit::<T>::zeroed();
        let (udata, to, size) = (self.0.as_ptr(), value.as_mut_ptr().cast(), size_of::<T>());
        // SAFETY: `udata` is valid by the type invariant. `_ib_copy_validate_udata_in()`
        // (ib_core_uverbs.c) writes at most `size` bytes to `value`. All bytes are initialized
        // (zeroes, then the user's bytes), and any bytes are a valid `T`.
        unsafe {
            to_result(raw::_ib_copy_validate_udata_in(udata, to, size, min))?;
            Ok(value.assume_init())
        }
    }

    /// Returns driver `D`'s data for the context that issued this command.
    ///
    /// # Safety
    ///
    /// The command is for a device of `D`, and does not create the context.
    pub(crate) unsafe fn context<D: Driver>(&self) -> Option<&D::Ucontext> {
        // SAFETY: The udata is valid by the type invariant, and part of the attributes of a command
        // (uverbs_ioctl.h, `struct uverbs_attr_bundle`). The caller guarantees a context of `D`,
        // which outlives its commands (uverbs_main.c, `uverbs_destroy_ufile_hw()`).
        unsafe { Ucontext::<D>::data_of(raw::shim_udata_context(self.0.as_ptr())) }
    }

    /// Returns `EOPNOTSUPP` if the command has one of these attributes (`UVERBS_ATTR_*`), which
    /// ib_core leaves to the driver to read.
    pub(crate) fn expect_without(&self, attributes: &[u32]) -> Result {
        // SAFETY: The udata is valid by the type invariant, and part of the attributes of a command
        // (uverbs_ioctl.h, `struct uverbs_attr_bundle`), whose `attr_present` has a bit for each
        // attribute that any command may have.
        let has = |&id: &u32| unsafe { raw::shim_udata_has_attr(self.0.as_ptr(), id) };
        if attributes.iter().any(has) {
            return Err(not_supported());
        }
        Ok(())
    }

    /// Returns `EOPNOTSUPP` if there is input that is not zero.
    pub fn expect_no_input(&mut self) -> Result {
        self.read_as_far_as_known::<[u8; 0]>().map(|_| ())
    }

    /// Copies the driver's response. The user's buffer is truncated or padded with zeroes.
    pub fn write<T: AsBytes>(&mut self, value: &T) -> Result {
        let from = core::ptr::from_ref(value).cast();
        // SAFETY: `self.0` is valid by the type invariant. `_ib_respond_udata()` reads
        // `size_of::<T>()` bytes of `value`, which are initialized since `T: AsBytes`.
        to_result(unsafe { raw::_ib_respond_udata(self.0.as_ptr(), from, size_of::<T>()) })
    }

    /// Sends an empty response: fills the user's buffer with zeroes.
    pub fn write_nothing(&mut self) -> Result {
        self.write(&())
    }
}

/// Checks that a command without a driver-specific part has no input, and sends an empty response.
pub fn no_udata(udata: Option<&mut Udata<'_>>) -> Result {
    udata.map_or(Ok(()), |udata| {
        udata.expect_no_input()?;
        udata.write_nothing()
    })
}
