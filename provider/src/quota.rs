// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Explains that a user has its share of the objects of one kind.
//!
//! The kernel counts the objects of each user, and fails with `EDQUOT` at the user's share of a
//! device's limit (drivers/rrxe/quota.rs). If the environment asks for it
//! ([`crate::environment::explains`]), the provider writes a line to standard error.

use crate::context;
use crate::ffi::os;
use crate::ffi::verbs::IbvContext;
use core::ffi::c_int;

/// Explains `error`, the result of a command that creates the object `what`. Returns `error`.
///
/// # Safety
///
/// `context` is an open rrxe device.
pub(crate) unsafe fn explained(context: *mut IbvContext, what: &str, error: c_int) -> c_int {
    // SAFETY: the caller's contract.
    if error == os::EDQUOT && unsafe { context::explains(context) } {
        eprintln!("{}", explanation(what));
    }
    error
}

fn explanation(what: &str) -> String {
    format!(
        "librrxe: {what} exceeds the share of this user, half of what other users leave of the \
         device's limit (LIMITS in rrxe(7)); CAP_SYS_RESOURCE lifts it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_object() {
        assert!(explanation("a queue pair").contains("a queue pair exceeds the share"));
    }
}
