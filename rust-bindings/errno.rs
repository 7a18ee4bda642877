// SPDX-License-Identifier: GPL-2.0

//! Error numbers that the kernel crate does not name.

use crate::raw;
use kernel::error::Error;

/// Returns the error with a number of C.
#[inline]
fn error(number: u32) -> Error {
    Error::from_errno((number as i32).wrapping_neg())
}

/// Returns `EOPNOTSUPP`, the error of a device that does not support a verb. (User space has no
/// `ENOTSUPP`.)
pub fn not_supported() -> Error {
    error(raw::EOPNOTSUPP)
}

/// Returns `EDQUOT`, the error of a user that has all that its quota allows.
pub fn quota_exceeded() -> Error {
    error(raw::EDQUOT)
}

/// Returns whether the error is `EADDRINUSE`: another socket has the port.
pub fn is_address_in_use(e: Error) -> bool {
    e == error(raw::EADDRINUSE)
}

/// Returns whether the error is `EAFNOSUPPORT`: the host does not have this IP version.
pub fn is_family_unknown(e: Error) -> bool {
    e == error(raw::EAFNOSUPPORT)
}
