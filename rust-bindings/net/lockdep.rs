// SPDX-License-Identifier: GPL-2.0

//! Lock classes of their own for sockets of the kernel.
//!
//! All sockets of an address family share the class of their lock. A kernel socket that is made
//! and released with locks held under which user sockets are locked too (RTNL, locks of an upper
//! layer that can run over TCP as well as over this socket) would give lockdep cycles that can't
//! happen.
//!
//! C header: `include/net/sock.h`.

use super::IpVersion;
use crate::raw;
use kernel::{str::CStrExt as _, types::Opaque};

/// A lock class that lives as long as the module.
struct StaticKey(Opaque<raw::lock_class_key>);

// SAFETY: Only lockdep uses a key, under its own lock.
unsafe impl Sync for StaticKey {}

impl StaticKey {
    const fn new() -> Self {
        // A static key is in use by its address alone; all zero is its initial state
        // (`static struct lock_class_key` in C).
        Self(Opaque::zeroed())
    }
}

static SOCK_KEYS: [StaticKey; 2] = [StaticKey::new(), StaticKey::new()];
static SLOCK_KEYS: [StaticKey; 2] = [StaticKey::new(), StaticKey::new()];

/// Gives the lock of a socket a class of its own.
///
/// # Safety
///
/// `sk` is a valid socket that nobody has locked or can look up, and that is released before the
/// module goes.
pub(super) unsafe fn reclassify(sk: *mut raw::sock, version: IpVersion) {
    let (index, slock_name, sock_name) = match version {
        IpVersion::V4 => (
            0,
            c"slock-AF_INET-UDP-TUNNEL",
            c"sk_lock-AF_INET-UDP-TUNNEL",
        ),
        IpVersion::V6 => (
            1,
            c"slock-AF_INET6-UDP-TUNNEL",
            c"sk_lock-AF_INET6-UDP-TUNNEL",
        ),
    };
    let (Some(slock_key), Some(sock_key)) = (SLOCK_KEYS.get(index), SOCK_KEYS.get(index)) else {
        return;
    };
    // SAFETY: The caller promises that the socket is not in use; keys and names are static. The
    // macro takes a reference to the module, for the keys' sake. Since the socket does not outlive
    // the module, that is given back at once: it would keep the module loaded for good.
    unsafe {
        raw::shim_sock_lock_init_class_and_name(
            sk,
            slock_name.as_char_ptr(),
            slock_key.0.get(),
            sock_name.as_char_ptr(),
            sock_key.0.get(),
        );
        raw::shim_sk_owner_put(sk);
        raw::shim_sk_owner_clear(sk);
    }
}
