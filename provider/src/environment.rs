// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Environment variables, read when a device is opened. Times are in microseconds.
//!
//! A set-user-ID program uses the defaults ([`os::variable`]).

use crate::abi::MAX_POLL_IDLE_US;
use crate::ffi::os::{self, EINVAL};
use crate::text::say;
use core::ffi::{c_int, CStr};
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether to explain failures on standard error: see [`read_debug`].
pub(crate) static DEBUG: AtomicBool = AtomicBool::new(false);

/// A variable that can be set to a time.
pub(crate) struct Variable {
    name: &'static CStr,
    /// Largest allowed time, in microseconds.
    max: u32,
    /// Default if the variable is unset or empty.
    usual: u32,
    /// Meaning of 0, for the message about an invalid value.
    zero: &'static str,
}

/// How long the kernel's polling thread stays awake (poll mode).
pub(crate) const POLL_IDLE: Variable = Variable {
    name: c"RRXE_POLL_IDLE_US",
    max: MAX_POLL_IDLE_US,
    usual: 0,
    zero: "no poll mode",
};

/// How long a thread polls an empty completion queue before it yields the CPU. The default is a
/// little less than the round trip of a message, and far less than the milliseconds of a scheduler
/// slice.
pub(crate) const YIELD: Variable = Variable {
    name: c"RRXE_YIELD_US",
    max: 1_000_000,
    usual: 10,
    zero: "never",
};

/// Sets [`DEBUG`] to whether `RRXE_DEBUG` is set and neither empty nor 0, and returns it.
pub(crate) fn read_debug() -> bool {
    let debug = is_yes(os::variable(c"RRXE_DEBUG"));
    DEBUG.store(debug, Ordering::Relaxed);
    debug
}

fn is_yes(value: Option<&CStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != c"0")
}

impl Variable {
    /// Returns the time in microseconds. If the value is invalid, prints a line to standard error
    /// and fails with `EINVAL`.
    pub(crate) fn read(&self) -> Result<u32, c_int> {
        self.parse(os::variable(self.name)).ok_or_else(|| {
            let Variable { max, zero, .. } = self;
            let name = self.name.to_str().unwrap_or_default();
            say(format_args!(
                "{name} must be a number of microseconds up to {max}, or 0: {zero}"
            ));
            EINVAL
        })
    }

    /// Parses a value of the variable, `None` if it is not set. Returns `None` if the value is
    /// invalid.
    fn parse(&self, value: Option<&CStr>) -> Option<u32> {
        let Some(value) = value else {
            return Some(self.usual);
        };
        match value.to_str().ok()? {
            "" => Some(self.usual),
            text => text.parse().ok().filter(|&us| us <= self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_or_no() {
        for (value, yes) in [(c"", false), (c"0", false), (c"1", true), (c"yes", true)] {
            assert_eq!(is_yes(Some(value)), yes);
        }
        assert!(!is_yes(None));
    }

    #[test]
    fn a_number_or_nothing() {
        for variable in [POLL_IDLE, YIELD] {
            let of = |text: &CStr| variable.parse(Some(text));
            assert_eq!(variable.parse(None), Some(variable.usual));
            assert_eq!(
                [of(c""), of(c"0"), of(c"1"), of(c"1000000")],
                [Some(variable.usual), Some(0), Some(1), Some(1_000_000)]
            );
            for bad in [
                c"1000001",
                c"-1",
                c"1ms",
                c"0x10",
                c" 5",
                c"99999999999999999999",
                c"\xff",
            ] {
                assert_eq!(of(bad), None);
            }
        }
        assert_eq!((POLL_IDLE.usual, YIELD.usual), (0, 10));
    }
}
