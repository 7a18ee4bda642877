// SPDX-License-Identifier: GPL-2.0

//! The module parameter `recovery`: how queue pairs detect and repair losses (docs/transport.md).

use kernel::prelude::*;
use linux_rdma::{choice_parameter, parameter::Choice};
use rrxe_core::RecoveryMode;

/// A value of the parameter.
#[derive(Clone, Copy, Default)]
struct Recovery(RecoveryMode);

impl Choice for Recovery {
    fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"selective" => Some(Self(RecoveryMode::Selective)),
            b"strict" => Some(Self(RecoveryMode::Strict)),
            _ => None,
        }
    }

    fn report_invalid() {
        pr_err!("recovery must be selective or strict\n");
    }
}

choice_parameter!(
    PARAMETER: Recovery,
    "recovery",
    "How losses are repaired: selective, or strict: go-back-N with the timers of the specification alone (default selective)"
);

/// Returns the mode for a new queue pair.
pub(crate) fn mode() -> RecoveryMode {
    PARAMETER.value().0
}
