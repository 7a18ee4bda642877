// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Explains which limit an object has exceeded, which the error number does not tell:
//!
//! - `ENOMEM`: the kernel counts the pages that it pins for a process, and they would exceed
//!   RLIMIT_MEMLOCK (`ib_umem_get()` in drivers/infiniband/core/umem.c).
//! - `EDQUOT`: the kernel counts the objects of each user, and the user has its share of the
//!   device's limit (drivers/rrxe/verbs/quota.rs).
//!
//! If the environment asks for it ([`EXPLAINS`]), the provider writes a line to standard error.

use crate::environment::EXPLAINS;
use crate::ffi::os;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

/// Bit of the capability to pin without a limit (CAP_IPC_LOCK, linux/capability.h) in the set that
/// /proc/self/status shows.
const MAY_PIN_ALL: u64 = 1 << 14;

/// The memory of an object for which the kernel pins none.
pub(crate) const NOT_PINNED: (u64, usize) = (0, 0);

/// Returns the result of a command that creates the object `what`, for which the kernel pins memory
/// (`pinned`: the address and the bytes). `error` is 0 or the error number; a shortage is explained
/// if the environment asks for it.
pub(crate) fn explained(what: &str, pinned: (u64, usize), error: c_int) -> Result<(), c_int> {
    if error == 0 {
        return Ok(());
    }
    let text = match error {
        _ if !EXPLAINS.load(Ordering::Relaxed) => None,
        os::ENOMEM => memlock(what, pinned),
        os::EDQUOT => Some(share(what)),
        _ => None,
    };
    if let Some(text) = text {
        eprintln!("{text}");
    }
    Err(error)
}

/// Explains the shortage of locked memory, or returns `None` if RLIMIT_MEMLOCK is not the cause.
fn memlock(what: &str, (addr, bytes): (u64, usize)) -> Option<String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = field(&limits, "Max locked memory")?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = touched(addr, bytes, os::getauxval(os::AT_PAGESZ));
    // Without a limit the text is "unlimited".
    shortage(what, bytes, limit.parse().ok()?, &status)
}

/// Returns the first word behind `name` in a file of /proc.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()
}

/// Returns the bytes of all pages that contain a part of the `bytes` bytes from `addr` on.
fn touched(addr: u64, bytes: usize, page: u64) -> u64 {
    let within = addr & page.wrapping_sub(1);
    let whole = within.saturating_add(bytes as u64);
    whole.checked_next_multiple_of(page).unwrap_or(whole)
}

/// Returns the line for a process with the given /proc/self/status that asked for `bytes` bytes, or
/// `None` if the limit allows for them.
fn shortage(what: &str, bytes: u64, limit: u64, status: &str) -> Option<String> {
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
    Some(format!(
        "librrxe: {what} takes {bytes} KiB of locked memory, but the limit (RLIMIT_MEMLOCK) is \
         {limit} KiB, of which {pinned} KiB are in use; raise it: ulimit -l in a shell, memlock in \
         /etc/security/limits.conf, LimitMEMLOCK= in a systemd unit"
    ))
}

fn share(what: &str) -> String {
    format!(
        "librrxe: {what} exceeds the share of this user (LIMITS in rrxe(7)); CAP_SYS_RESOURCE \
         lifts it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nVmPin:\t      48 kB\nCapEff:\t0000000000000000\n";
    const KIB: u64 = 1024;

    #[test]
    fn names_the_object() {
        assert!(share("a queue pair").contains("a queue pair exceeds the share"));
    }

    #[test]
    fn whole_pages_count() {
        for (addr, bytes, pages) in [(0, 1, 1), (0, 4096, 1), (4095, 2, 2), (4096, 4097, 2)] {
            assert_eq!(touched(addr, bytes, 4096), pages * 4096);
        }
        assert_eq!(touched(u64::MAX, usize::MAX, 4096), u64::MAX);
    }

    #[test]
    fn says_what_is_missing() {
        let text = shortage("a queue pair", 20 * KIB, 64 * KIB, STATUS).unwrap();
        for part in [
            "a queue pair takes 20 KiB",
            "is 64 KiB",
            "48 KiB are in use",
            "ulimit -l",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(shortage("a region", 20 * KIB, 64 * KIB, "").is_none());
        assert!(shortage("a region", 65 * KIB, 64 * KIB, "").is_some());
    }

    #[test]
    fn says_nothing_of_what_is_not_missing() {
        assert!(shortage("a region", 16 * KIB, 64 * KIB, STATUS).is_none());
        let root = STATUS.replace("0000000000000000", "000001ffffffffff");
        assert!(shortage("a region", 20 * KIB, 64 * KIB, &root).is_none());
    }
}
