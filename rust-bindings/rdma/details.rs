// SPDX-License-Identifier: GPL-2.0

//! The driver's details of an object, which `rdma resource show … -dd` prints.
//!
//! C header: [`include/rdma/restrack.h`](srctree/include/rdma/restrack.h).

use crate::raw;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{error::to_result, prelude::*, str::CStrExt};

/// A table of names and values in a netlink message.
///
/// # Invariants
///
/// `message` is a message with an open nest of `RDMA_NLDEV_ATTR_DRIVER`, which nothing else uses.
pub struct Details<'a> {
    message: NonNull<raw::sk_buff>,
    _message: PhantomData<&'a mut ()>,
}

impl Details<'_> {
    /// Calls `fill` with a table of the message.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: the message is full. An error of `fill` is returned, too. After either, the
    /// message has no table.
    ///
    /// # Safety
    ///
    /// `message` is a message of nldev (nldev.c) that nothing else uses during the call.
    pub(super) unsafe fn fill(
        message: *mut raw::sk_buff,
        fill: impl FnOnce(&mut Details<'_>) -> Result,
    ) -> Result {
        let message = NonNull::new(message).ok_or(EINVAL)?;
        let kind = raw::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER as i32;
        // SAFETY: The caller passes a message. nla_nest_start_noflag() (netlink.h) returns null if
        // it is full.
        let nest = unsafe { raw::shim_nla_nest_start(message.as_ptr(), kind) };
        if nest.is_null() {
            return Err(EMSGSIZE);
        }
        // INVARIANT: The nest was opened just above.
        let mut details = Details {
            message,
            _message: PhantomData,
        };
        let result = fill(&mut details);
        // SAFETY: The nest is that of the message, and is open.
        unsafe {
            match result {
                Ok(()) => raw::shim_nla_nest_end(message.as_ptr(), nest),
                Err(_) => raw::shim_nla_nest_cancel(message.as_ptr(), nest),
            }
        }
        result
    }

    /// Adds a number. Returns `EMSGSIZE` if the message is full.
    pub fn number(&mut self, name: &CStr, value: u64) -> Result {
        // SAFETY: By the invariant. The function copies the name.
        to_result(unsafe {
            raw::rdma_nl_put_driver_u64(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a text. Returns `EMSGSIZE` if the message is full.
    pub fn text(&mut self, name: &CStr, value: &CStr) -> Result {
        let (name, value) = (name.as_char_ptr(), value.as_char_ptr());
        // SAFETY: By the invariant. The function copies both strings.
        to_result(unsafe { raw::rdma_nl_put_driver_string(self.message.as_ptr(), name, value) })
    }
}
