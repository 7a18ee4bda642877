// SPDX-License-Identifier: GPL-2.0

//! The user of the current process, and its capabilities.
//!
//! C headers: `include/linux/cred.h`, `include/linux/capability.h`.

use crate::raw;
use kernel::task::Kuid;

/// Returns the effective UID of the current process, in the initial user namespace.
pub fn current_euid() -> u32 {
    Kuid::current_euid().into_raw().val
}

/// Returns whether the current process has CAP_SYS_RESOURCE in the initial user namespace.
pub fn has_sys_resource() -> bool {
    raw::safe::capable(raw::CAP_SYS_RESOURCE as i32)
}
