// SPDX-License-Identifier: GPL-2.0

//! Separate lock classes for kernel sockets.
//!
//! All sockets of an address family share one lock class. This kernel socket is created and
//! released under locks that are also held while user sockets are locked: RTNL, and locks of an
//! upper layer that can run over TCP as well as over this socket. In a shared class, lockdep would
//! report cycles that cannot occur.
//!
//! C header: `include/net/sock.h`.

use super::IpVersion;
use crate::raw;
use kernel::{str::CStrExt as _, types::Opaque};

/// A lock class that lives as long as the module.
struct StaticKey(Opaque<raw::lock_class_key>);

// SAFETY: Only lockdep uses the key, under its own lock.
unsafe impl Sync for StaticKey {}

impl StaticKey {
    const fn new() -> Self {
        // Lockdep identifies a static key by its address. All zeros is its initial state (`static
        // struct lock_class_key` in C).
        Self(Opaque::zeroed())
    }
}

static SOCK_KEYS: [StaticKey; 2] = [StaticKey::new(), StaticKey::new()];
static SLOCK_KEYS: [StaticKey; 2] = [StaticKey::new(), StaticKey::new()];

/// Gives the lock of a socket its own class.
///
/// # Safety
///
/// `sk` is a valid socket that is not locked and that nothing can look up. It is released before
/// the module is unloaded.
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
    // SAFETY: The caller guarantees that the socket is not in use; keys and names are static. The
    // macro takes a reference to the module to protect the keys. That reference would keep the
    // module loaded forever. The socket does not outlive the module, so the reference is dropped
    // here.
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
