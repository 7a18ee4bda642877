// SPDX-License-Identifier: GPL-2.0

//! Error numbers that the kernel crate has no names for.

use crate::raw;
use kernel::error::Error;

/// `EOPNOTSUPP`: what a device answers to a verb that it does not have. (User space knows no
/// `ENOTSUPP`.)
pub fn not_supported() -> Error {
    Error::from_errno((raw::EOPNOTSUPP as i32).wrapping_neg())
}

/// Whether the error is `EADDRINUSE`: somebody else has the port.
pub fn is_address_in_use(e: Error) -> bool {
    e.to_errno() == (raw::EADDRINUSE as i32).wrapping_neg()
}

/// Whether the error is `EAFNOSUPPORT`: the host does not have this IP version.
pub fn is_family_unknown(e: Error) -> bool {
    e.to_errno() == (raw::EAFNOSUPPORT as i32).wrapping_neg()
}
