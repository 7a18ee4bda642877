// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reports the limit that an object has exceeded, which the error number does not show:
//!
//! - `ENOMEM`: the kernel counts the pages that it pins for a process, and they would exceed
//!   RLIMIT_MEMLOCK (`ib_umem_get()` in drivers/infiniband/core/umem.c).
//! - `EDQUOT`: the kernel counts the objects of each user, and the user has its share of the
//!   device's limit (drivers/rrxe/quota.rs).
//!
//! If the environment requests it ([`DEBUG`]), the provider writes a line to standard error.

use crate::environment::DEBUG;
use crate::ffi::os;
use crate::text::say;
use core::ffi::c_int;
use core::fmt;
use core::sync::atomic::Ordering;

/// Bit of the capability to pin without a limit (CAP_IPC_LOCK, linux/capability.h) in the set that
/// /proc/self/status shows.
const MAY_PIN_ALL: u64 = 1 << 14;

/// The memory of an object for which the kernel pins none.
pub(crate) const NOT_PINNED: (u64, usize) = (0, 0);

/// Returns the result of a command that creates the object `what`, for which the kernel pins memory
/// (`pinned`: the address and the bytes). `error` is 0 or the error number; the exceeded limit
/// is reported if the environment requests it.
pub(crate) fn report_limit(what: &str, pinned: (u64, usize), error: c_int) -> Result<(), c_int> {
    if error == 0 {
        return Ok(());
    }
    if DEBUG.load(Ordering::Relaxed) {
        match error {
            os::ENOMEM => explain_memlock(what, pinned),
            os::EDQUOT => explain_share(what),
            _ => {}
        }
    }
    Err(error)
}

/// Explains the shortage of locked memory, if RLIMIT_MEMLOCK is the cause.
fn explain_memlock(what: &str, (addr, bytes): (u64, usize)) {
    let (mut limits, mut status) = ([0; 2048], [0; 8192]);
    let limits = os::read_file(c"/proc/self/limits", &mut limits);
    let status = os::read_file(c"/proc/self/status", &mut status);
    // Without a limit the text is "unlimited".
    let limit = field(limits, "Max locked memory").and_then(|text| text.parse().ok());
    let bytes = touched(addr, bytes, os::getauxval(os::AT_PAGESZ));
    if let Some(shortage) = limit.and_then(|limit| shortage(what, bytes, limit, status)) {
        say(format_args!("{shortage}"));
    }
}

/// Returns the first word behind `name` in a file of /proc.
fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    core::str::from_utf8(line).ok()?.split_whitespace().next()
}

/// Returns the bytes of all pages that contain a part of the `bytes` bytes from `addr` on.
fn touched(addr: u64, bytes: usize, page: u64) -> u64 {
    let within = addr & page.wrapping_sub(1);
    let whole = within.saturating_add(bytes as u64);
    whole.checked_next_multiple_of(page).unwrap_or(whole)
}

/// A shortage of locked memory. Sizes are in KiB.
struct Shortage<'a> {
    what: &'a str,
    bytes: u64,
    limit: u64,
    pinned: u64,
}

impl fmt::Display for Shortage<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            bytes,
            limit,
            pinned,
        } = self;
        write!(
            to,
            "{what} needs {bytes} KiB of locked memory, but the limit (RLIMIT_MEMLOCK) is {limit} \
             KiB, of which {pinned} KiB are in use; raise it: ulimit -l in a shell, memlock in \
             /etc/security/limits.conf, LimitMEMLOCK= in a systemd unit"
        )
    }
}

/// Returns the shortage of a process with the given /proc/self/status that asked for `bytes` bytes,
/// or `None` if the limit allows for them.
fn shortage<'a>(what: &'a str, bytes: u64, limit: u64, status: &[u8]) -> Option<Shortage<'a>> {
    let capabilities = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    if capabilities.is_some_and(|all| all & MAY_PIN_ALL != 0) {
        return None;
    }
    let pinned = field(status, "VmPin:").and_then(|text| text.parse::<u64>().ok());
    let pinned = pinned.unwrap_or(0).saturating_mul(1024);
    if pinned.saturating_add(bytes) <= limit {
        return None;
    }
    let [bytes, limit, pinned] = [bytes, limit, pinned].map(|n| n.div_ceil(1024));
    Some(Shortage {
        what,
        bytes,
        limit,
        pinned,
    })
}

fn explain_share(what: &str) {
    say(format_args!(
        "{what} exceeds the share of this user (LIMITS in rrxe(7)); destroy objects that are not \
         in use, or give the program CAP_SYS_RESOURCE"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tx\nVmPin:\t      48 kB\nCapEff:\t0000000000000000\n";
    const KIB: u64 = 1024;

    #[test]
    fn whole_pages_count() {
        for (addr, bytes, pages) in [(0, 1, 1), (0, 4096, 1), (4095, 2, 2), (4096, 4097, 2)] {
            assert_eq!(touched(addr, bytes, 4096), pages * 4096);
        }
        assert_eq!(touched(u64::MAX, usize::MAX, 4096), u64::MAX);
    }

    #[test]
    fn says_what_is_missing() {
        let shortage = |what, bytes, status| {
            let found = shortage(what, bytes, 64 * KIB, status)?;
            Some(std::string::ToString::to_string(&found))
        };
        let text = shortage("a queue pair", 20 * KIB, STATUS).unwrap();
        for part in [
            "a queue pair needs 20 KiB",
            "is 64 KiB",
            "48 KiB are in use",
            "ulimit -l",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(shortage("a region", 20 * KIB, b"").is_none());
        assert!(shortage("a region", 65 * KIB, b"").is_some());
    }

    #[test]
    fn no_shortage_within_the_limit() {
        assert!(shortage("a region", 16 * KIB, 64 * KIB, STATUS).is_none());
        let root = b"VmPin:\t      48 kB\nCapEff:\t000001ffffffffff\n";
        assert!(shortage("a region", 20 * KIB, 64 * KIB, root).is_none());
    }
}
