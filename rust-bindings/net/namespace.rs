// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: `include/net/net_namespace.h`.

use crate::raw;
use kernel::types::Opaque;

/// A network namespace (`struct net`).
///
/// Only ever borrowed from what keeps it alive: a reference of one's own would keep the namespace
/// of a container that has ended. [`cookie`](Self::cookie) tells namespaces apart for longer.
///
/// # Invariants
///
/// Made from pointers to a valid `struct net` only.
#[repr(transparent)]
pub struct NetNs(Opaque<raw::net>);

// SAFETY: `struct net` belongs to no thread; what is read of it here never changes.
unsafe impl Send for NetNs {}
// SAFETY: A shared reference reads what never changes.
unsafe impl Sync for NetNs {}

/// Names a namespace; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetNsCookie(u64);

impl NetNsCookie {
    /// The number, as `SO_NETNS_COOKIE` tells it.
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
    pub unsafe fn from_raw<'a>(net: *mut raw::net) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<net>`; the caller promises the rest.
        unsafe { &*net.cast() }
    }

    /// The C struct.
    #[inline]
    pub fn as_raw(&self) -> *mut raw::net {
        self.0.get()
    }

    /// What names this namespace.
    #[inline]
    pub fn cookie(&self) -> NetNsCookie {
        // SAFETY: The namespace is valid by the type invariant; the field is written once, before
        // the namespace is visible.
        NetNsCookie(unsafe { raw::shim_net_cookie(self.as_raw()) })
    }
}

impl PartialEq for NetNs {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for NetNs {}
