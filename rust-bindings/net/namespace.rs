// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: `include/net/net_namespace.h`.

use crate::raw;
use kernel::types::Opaque;

/// A network namespace (`struct net`).
///
/// A namespace is only ever borrowed from an object that keeps it alive. An owned reference would
/// keep the namespace of a container that has ended. A [`cookie`](Self::cookie) identifies the
/// namespace beyond the borrow.
///
/// # Invariants
///
/// Only created from pointers to a valid `struct net`.
#[repr(transparent)]
pub struct NetNs(Opaque<raw::net>);

// SAFETY: A `struct net` belongs to no thread; the methods read only fields that never change.
unsafe impl Send for NetNs {}
// SAFETY: A shared reference only reads fields that never change.
unsafe impl Sync for NetNs {}

#[allow(improper_ctypes, reason = "C code sees a `struct net`")]
// Safe: this is the signature of the shim, which takes any valid namespace. `preinit_net()`
// (net/core/net_namespace.c) writes the cookie once, before the namespace is visible.
unsafe extern "C" {
    safe fn shim_net_cookie(net: &NetNs) -> u64;
}

/// Identifies a namespace. The kernel never reuses the number for another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetNsCookie(u64);

impl NetNsCookie {
    /// Returns the number, as `SO_NETNS_COOKIE` reports it.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl NetNs {
    /// Borrows a namespace from its pointer.
    ///
    /// # Safety
    ///
    /// `net` points to a `struct net` that is valid for `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(net: *mut raw::net) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<net>`, and the caller guarantees that `net` is
        // valid for `'a`.
        unsafe { &*net.cast() }
    }

    /// Returns a pointer to the C struct.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut raw::net {
        self.0.get()
    }

    /// Returns the cookie of this namespace.
    #[inline]
    pub fn cookie(&self) -> NetNsCookie {
        NetNsCookie(shim_net_cookie(self))
    }
}

impl PartialEq for NetNs {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for NetNs {}
