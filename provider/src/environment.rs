// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The variables of the environment, as they are when a device is opened. Times are in
//! microseconds.

use crate::abi::MAX_POLL_IDLE_US;
use crate::ffi::os::EINVAL;
use core::ffi::c_int;
use std::ffi::OsStr;

/// A variable that may be set to a time.
struct Variable {
    name: &'static str,
    /// The largest time, in microseconds.
    most: u32,
    /// What it is where the variable is not set, or empty.
    usual: u32,
    /// What 0 means, for who has set it to what can't be.
    zero: &'static str,
}

/// How long the kernel's thread of poll mode stays awake.
const POLL_IDLE: Variable = Variable {
    name: "RRXE_POLL_IDLE_US",
    most: MAX_POLL_IDLE_US,
    usual: 0,
    zero: "no poll mode",
};

/// How long a program polls in vain before it lets others have its processor: a little less than a message and its answer take, and
/// far shorter than the milliseconds that the scheduler lets a program have it.
const YIELD: Variable = Variable {
    name: "RRXE_YIELD_US",
    most: 1_000_000,
    usual: 10,
    zero: "never",
};

/// The idle time of poll mode, in microseconds; 0 where none is asked for. `EINVAL` where what is asked for
/// can't be, which is told by a line on standard error.
pub(crate) fn poll_idle_us() -> Result<u32, c_int> {
    POLL_IDLE.read()
}

/// The time after which a program that polls in vain lets others run, in microseconds; 0: never. Errors: as for
/// [`poll_idle_us`].
pub(crate) fn yield_us() -> Result<u32, c_int> {
    YIELD.read()
}

/// Whether to explain failures on standard error: `RRXE_DEBUG` is set, and neither empty nor 0.
pub(crate) fn explains() -> bool {
    is_yes(std::env::var_os("RRXE_DEBUG").as_deref())
}

fn is_yes(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

impl Variable {
    fn read(&self) -> Result<u32, c_int> {
        let value = std::env::var_os(self.name);
        self.parse(value.as_deref()).ok_or_else(|| {
            let Variable {
                name, most, zero, ..
            } = self;
            eprintln!(
                "librrxe: {name} must be a number of microseconds up to {most}, or 0: {zero}"
            );
            EINVAL
        })
    }

    /// What a value of the variable, if it is set, means.
    fn parse(&self, value: Option<&OsStr>) -> Option<u32> {
        let Some(value) = value else {
            return Some(self.usual);
        };
        match value.to_str()? {
            "" => Some(self.usual),
            text => text.parse().ok().filter(|&us| us <= self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_or_no() {
        for (value, yes) in [("", false), ("0", false), ("1", true), ("yes", true)] {
            assert_eq!(is_yes(Some(OsStr::new(value))), yes);
        }
        assert!(!is_yes(None));
    }

    #[test]
    fn a_number_or_nothing() {
        for variable in [POLL_IDLE, YIELD] {
            let of = |text: &str| variable.parse(Some(OsStr::new(text)));
            assert_eq!(variable.parse(None), Some(variable.usual));
            assert_eq!(
                [of(""), of("0"), of("1"), of("1000000")],
                [Some(variable.usual), Some(0), Some(1), Some(1_000_000)]
            );
            for bad in ["1000001", "-1", "1ms", "0x10", " 5", "99999999999999999999"] {
                assert_eq!(of(bad), None);
            }
        }
        assert_eq!((POLL_IDLE.usual, YIELD.usual), (0, 10));
    }
}
