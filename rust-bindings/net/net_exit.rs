// SPDX-License-Identifier: GPL-2.0

//! Sockets and hooks that must not outlive their network namespace.
//!
//! They do not keep their namespace, because otherwise containers would never end. Each is released
//! by its owner or at the end of the namespace, whichever comes first.

use super::NetRef;
use crate::raw;
use kernel::prelude::*;

kernel::sync::global_lock! {
    // SAFETY: `prepare` initialises it, before there can be an entry.
    unsafe(uninit) static ENTRIES: Mutex<Entries> = Entries::new();
}

/// The sockets and hooks that have not been released.
struct Entries {
    list: KVec<Entry>,
    /// The number of entries so far.
    made: u64,
}

impl Entries {
    const fn new() -> Self {
        Self {
            list: KVec::new(),
            made: 0,
        }
    }
}

/// A socket or hook.
pub(super) enum Owned {
    /// A socket that `setup_udp_tunnel_sock()` has configured.
    Socket(*mut raw::sock),
    /// A hook that is registered.
    Hook(*mut raw::nf_hook_ops),
}

/// Identifies a socket or hook, also after its release. (Its memory may be that of another one
/// then.)
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u64);

/// A socket or hook that has not been released.
struct Entry {
    id: Id,
    owned: Owned,
    net: *mut raw::net,
}

// SAFETY: Neither the socket or hook nor the namespace belongs to a thread.
unsafe impl Send for Entry {}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(super) unsafe fn prepare() {
    // SAFETY: The caller guarantees that this is the only call, and the first one.
    unsafe { ENTRIES.init() };
}

/// Frees the list, which is empty by now.
pub(super) fn end() {
    // Statics are not dropped, so free the memory here.
    ENTRIES.lock().list = KVec::new();
}

/// Creates a socket or hook of a namespace. It is valid until [`release`] or the end of the
/// namespace.
///
/// # Safety
///
/// `create` returns a valid socket or hook of this namespace, and leaves it to the list.
pub(super) unsafe fn add(net: &NetRef, create: impl FnOnce() -> Result<Owned>) -> Result<Id> {
    // Reserve an entry first, so that nothing can fail once there is a socket or hook.
    let mut entries = ENTRIES.lock();
    entries.list.reserve(1, GFP_KERNEL)?;
    let owned = create()?;
    entries.made = entries.made.wrapping_add(1);
    let id = Id(entries.made);
    entries.list.push_within_capacity(Entry {
        id,
        owned,
        net: net.as_raw(),
    })?;
    Ok(id)
}

/// Releases the socket or hook, unless its namespace has ended, and waits until no CPU uses it.
/// Sleeps.
pub(super) fn release(id: Id) {
    release_all(|entry| entry.id == id);
    // Both are used only in RCU read-side sections.
    raw::safe::synchronize_net();
}

/// Releases the sockets and hooks of a namespace that is ending.
///
/// # Safety
///
/// Called as `exit` of `struct pernet_operations`, after [`prepare`]. `net` is only compared.
pub(super) unsafe extern "C" fn namespace_exit(net: *mut raw::net) {
    release_all(|entry| entry.net == net);
}

/// Releases what these entries name, and removes them from the list.
fn release_all(which: impl Fn(&Entry) -> bool) {
    ENTRIES.lock().list.retain(|entry| {
        if !which(entry) {
            return true;
        }
        match entry.owned {
            // SAFETY: `add` guarantees a tunnel socket. A socket in the list has not been released,
            // and the list stays locked until the entry is removed (`udp_tunnel_sock_release()`,
            // net/ipv4/udp_tunnel_core.c).
            Owned::Socket(sk) => unsafe { raw::udp_tunnel_sock_release(sk) },
            #[cfg(CONFIG_NETFILTER)]
            // SAFETY: `add` guarantees a registered hook of `net`. The list stays locked until the
            // entry is removed, so `net` has not yet ended (`nf_unregister_net_hook()`,
            // net/netfilter/core.c).
            Owned::Hook(ops) => unsafe { raw::nf_unregister_net_hook(entry.net, ops) },
            #[cfg(not(CONFIG_NETFILTER))]
            Owned::Hook(_) => {}
        }
        false
    });
}
