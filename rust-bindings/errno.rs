// SPDX-License-Identifier: GPL-2.0

//! Error numbers that the kernel crate does not name.

use crate::raw;
use kernel::error::Error;

/// Returns `EOPNOTSUPP`, the error of a device that does not support a verb. (User space has no
/// `ENOTSUPP`.)
pub fn not_supported() -> Error {
    Error::from_errno((raw::EOPNOTSUPP as i32).wrapping_neg())
}

/// Returns `EDQUOT`, the error of a user that has all that its quota allows.
pub fn quota_exceeded() -> Error {
    Error::from_errno((raw::EDQUOT as i32).wrapping_neg())
}

/// Returns whether the error is `EADDRINUSE`: another socket has the port.
pub fn is_address_in_use(e: Error) -> bool {
    e.to_errno() == (raw::EADDRINUSE as i32).wrapping_neg()
}

/// Returns whether the error is `EAFNOSUPPORT`: the host does not have this IP version.
pub fn is_family_unknown(e: Error) -> bool {
    e.to_errno() == (raw::EAFNOSUPPORT as i32).wrapping_neg()
}
