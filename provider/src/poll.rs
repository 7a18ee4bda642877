// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Poll mode: what the environment asks for.

use crate::abi::MAX_POLL_IDLE_US;
use crate::ffi::os::EINVAL;
use core::ffi::c_int;
use std::ffi::OsStr;

/// The variable that asks for it: an idle time in microseconds.
const VARIABLE: &str = "RRXE_POLL_IDLE_US";

/// The idle time that the environment asks for, in microseconds; 0 where it does not ask. `EINVAL` where it asks for what
/// can't be, which is told by a line on standard error.
pub(crate) fn idle() -> Result<u32, c_int> {
    let value = std::env::var_os(VARIABLE);
    parse(value.as_deref()).ok_or_else(|| {
        eprintln!("librrxe: {VARIABLE} must be a number of microseconds up to {MAX_POLL_IDLE_US}, or 0 for no poll mode");
        EINVAL
    })
}

/// What a value of the variable, if it is set, means.
fn parse(value: Option<&OsStr>) -> Option<u32> {
    let Some(value) = value else {
        return Some(0);
    };
    match value.to_str()? {
        "" => Some(0),
        text => text.parse().ok().filter(|&us| us <= MAX_POLL_IDLE_US),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_nothing() {
        let of = |text: &str| parse(Some(OsStr::new(text)));
        assert_eq!(parse(None), Some(0));
        assert_eq!(
            [of(""), of("0"), of("1"), of("1000000")],
            [Some(0), Some(0), Some(1), Some(1_000_000)]
        );
        for bad in ["1000001", "-1", "1ms", "0x10", " 5", "99999999999999999999"] {
            assert_eq!(of(bad), None);
        }
    }
}
