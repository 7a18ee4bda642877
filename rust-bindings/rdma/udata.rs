// SPDX-License-Identifier: GPL-2.0

//! The driver's part of a uverbs command.

use super::object::{Driver, Ucontext};
use crate::raw;
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
    /// `None` for a kernel consumer.
    ///
    /// # Safety
    ///
    /// `ptr` is null or what ib_core handed to an operation that has not returned for `'a`.
    pub(crate) unsafe fn from_ptr(ptr: *mut raw::ib_udata) -> Option<Self> {
        // INVARIANT: By the caller's promise.
        NonNull::new(ptr).map(|p| Self(p, PhantomData))
    }

    /// Copies the driver's input: `EINVAL` where it is shorter than `T`, `EOPNOTSUPP` where it is
    /// longer and what follows is not zero.
    pub fn read<T: FromBytes>(&mut self) -> Result<T> {
        self.read_at_least(size_of::<T>())
    }

    /// As [`Self::read`], of a program that may know a shorter `T`, or none: the rest of it is zero.
    pub fn read_as_far_as_known<T: FromBytes>(&mut self) -> Result<T> {
        self.read_at_least(0)
    }

    /// As [`Self::read`], where so many bytes must be there; what is not is zero.
    fn read_at_least<T: FromBytes>(&mut self, least: usize) -> Result<T> {
        let mut value = core::mem::MaybeUninit::<T>::zeroed();
        let (to, size) = (value.as_mut_ptr().cast(), size_of::<T>());
        // SAFETY: `self.0` is valid by the type invariant; `value` has room for `size` bytes, which is all that
        // `_ib_copy_validate_udata_in()` (ib_core_uverbs.c) writes.
        to_result(unsafe { raw::_ib_copy_validate_udata_in(self.0.as_ptr(), to, size, least) })?;
        // SAFETY: Wholly initialized (zeroes, then the user's bytes), and any bytes are a valid `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// What driver `D` keeps for the context whose command this is.
    ///
    /// # Safety
    ///
    /// The command is one of a device of `D`, and not the one that creates the context.
    pub(crate) unsafe fn context<D: Driver>(&self) -> Option<&D::Ucontext> {
        // SAFETY: Valid by the type invariant, and part of the attributes of a command
        // (uverbs_ioctl.h, `struct uverbs_attr_bundle`), as all that ib_core passes are.
        let context = unsafe { raw::shim_udata_context(self.0.as_ptr()) };
        let context = NonNull::new(context)?;
        // SAFETY: By the requirements a live context of `D`, which goes only after its commands
        // (uverbs_main.c, `uverbs_destroy_ufile_hw()`).
        Some(unsafe { Ucontext::<D>::from_ptr(context.as_ptr()).data() })
    }

    /// Checks that there is no input that this driver would ignore.
    pub fn expect_no_input(&mut self) -> Result {
        // SAFETY: Valid by the type invariant.
        if unsafe { (*self.0.as_ptr()).inlen } == 0 {
            return Ok(());
        }
        // SAFETY: As in `read`; nothing is written for a kernel size of zero.
        to_result(unsafe {
            raw::_ib_copy_validate_udata_in(self.0.as_ptr(), core::ptr::null_mut(), 0, 0)
        })
    }

    /// Copies the driver's response; the user's buffer is truncated or filled up with zeroes.
    pub fn write<T: AsBytes>(&mut self, value: &T) -> Result {
        // SAFETY: `self.0` is valid by the type invariant; `_ib_respond_udata()` reads
        // `size_of::<T>()` bytes of `value`, which are initialized since `T: AsBytes`.
        to_result(unsafe {
            raw::_ib_respond_udata(
                self.0.as_ptr(),
                core::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Answers with nothing: fills the user's buffer with zeroes.
    pub fn write_nothing(&mut self) -> Result {
        // SAFETY: As in `write`; no byte is read.
        to_result(unsafe { raw::_ib_respond_udata(self.0.as_ptr(), core::ptr::null(), 0) })
    }

    /// Both of the above, for commands without a driver part.
    pub fn expect_nothing(&mut self) -> Result {
        self.expect_no_input()?;
        self.write_nothing()
    }
}
