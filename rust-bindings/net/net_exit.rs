// SPDX-License-Identifier: GPL-2.0

//! Sockets and hooks that must not outlive their network namespace.
//!
//! They do not keep their namespace, because otherwise containers would never end. Each is released
//! by its owner or at the end of the namespace, whichever comes first.

use super::{outgoing::Hooks, NetRef};
use crate::raw;
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Arc,
    },
    types::Opaque,
};

kernel::sync::global_lock! {
    // SAFETY: `NetExit::register` initialises it, before there can be an entry.
    unsafe(uninit) static ENTRIES: Mutex<Entries> = Entries { list: KVec::new(), made: 0 };
}

/// Whether a [`NetExit`] was registered.
static REGISTERED: Atomic<i32> = Atomic::new(0);

/// The sockets and hooks that have not been released.
struct Entries {
    list: KVec<Entry>,
    /// The number of entries so far.
    made: u64,
}

/// A socket, or the hooks of a filter.
pub(super) enum Owned {
    /// A socket that `setup_udp_tunnel_sock()` has configured.
    Socket(*mut raw::sock),
    /// Hooks that are registered.
    Hooks(KBox<Hooks>),
}

/// A socket or hook that has not been released.
struct Entry {
    /// Identifies the entry. (The memory of a released one may be that of another one.)
    id: u64,
    owned: Owned,
    net: *mut raw::net,
}

/// The sockets of a namespace, while another one is created there.
pub(super) struct Siblings<'a> {
    list: &'a [Entry],
    net: *mut raw::net,
}

impl Siblings<'_> {
    /// Sets whether a socket of the same user may share the port of these sockets (SO_REUSEPORT).
    pub(super) fn set_reuseport(&self, on: bool) {
        for entry in self.list.iter().filter(|entry| entry.net == self.net) {
            if let Owned::Socket(sk) = entry.owned {
                // SAFETY: The entry's socket is valid: it is released under the lock of the list,
                // which is held. Nothing else writes to this byte of a kernel socket's fields after
                // `setup_udp_tunnel_sock()`.
                unsafe { raw::shim_sk_set_reuseport(sk, on) };
            }
        }
    }
}

// SAFETY: Neither the socket or hook nor the namespace belongs to a thread.
unsafe impl Send for Entry {}

/// Registration for the end of namespaces: the sockets and hooks of a namespace that ends are
/// released, even if their owners still have them. They receive nothing from then on.
///
/// A module keeps a reference until it is unloaded, and drops it last and without RTNL. Dropping
/// the last reference waits for namespaces that begin or end, which take RTNL.
///
/// # Invariants
///
/// `ops` is registered.
#[pin_data(PinnedDrop)]
pub struct NetExit {
    #[pin]
    ops: Opaque<raw::pernet_operations>,
}

// SAFETY: Any task may unregister the operations: `pernet_ops_rwsem` (net/core/net_namespace.c)
// protects their list.
unsafe impl Send for NetExit {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for NetExit {}

impl NetExit {
    /// Registers for the end of namespaces, once per module. Returns `EBUSY` on the second call.
    /// Sleeps.
    pub fn register() -> Result<Arc<Self>> {
        if REGISTERED.xchg(1, Full) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: `REGISTERED` is never cleared, so this runs once. It precedes every use: a socket
        // or hook needs the value returned here, and the operations are registered below.
        unsafe { ENTRIES.init() };
        Arc::pin_init(
            try_pin_init!(Self {
                // INVARIANT: If this fails, there is no `Self`; otherwise the operations are
                // registered.
                ops <- Opaque::try_ffi_init(|slot: *mut raw::pernet_operations| {
                    let mut ops: raw::pernet_operations = pin_init::zeroed();
                    ops.exit = Some(namespace_exit);
                    // SAFETY: `slot` is valid for writes of the struct, and pinned. `drop`
                    // unregisters it before its memory is freed (`register_pernet_subsys()`,
                    // net/core/net_namespace.c).
                    to_result(unsafe {
                        slot.write(ops);
                        raw::register_pernet_subsys(slot)
                    })
                }),
            }? Error),
            GFP_KERNEL,
        )
    }
}

#[pinned_drop]
impl PinnedDrop for NetExit {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The operations are registered by the type invariant. `unregister_pernet_subsys()`
        // (net/core/net_namespace.c) calls `exit` for each namespace. It finds no socket or hook,
        // because each holds a reference to `self`.
        unsafe { raw::unregister_pernet_subsys(self.ops.get()) };
        // Statics are not dropped, so free the memory here.
        ENTRIES.lock().list = KVec::new();
        // A softirq that found a socket before it was released may still be about to enter its
        // handler, whose code may soon be unloaded.
        raw::safe::synchronize_net();
    }
}

/// A socket or hook of a network namespace, with its handler `H`. Dropping it releases the socket
/// or hook, unless the namespace has ended, and waits for the handler. This sleeps.
pub struct InNamespace<H> {
    id: u64,
    _handler: Arc<H>,
    _exit: Arc<NetExit>,
}

impl<H> InNamespace<H> {
    /// Creates a socket or hook of a namespace. It is valid until the result is dropped or the
    /// namespace ends, and `handler` until a grace period after that.
    ///
    /// # Safety
    ///
    /// `create` returns a valid socket or hook of this namespace, and nothing else releases it.
    pub(super) unsafe fn new(
        exit: &Arc<NetExit>,
        net: &NetRef,
        handler: Arc<H>,
        create: impl FnOnce(&Siblings<'_>) -> Result<Owned>,
    ) -> Result<Self> {
        // Reserve an entry first, so that nothing can fail once there is a socket or hook.
        let mut entries = ENTRIES.lock();
        entries.list.reserve(1, GFP_KERNEL)?;
        let net = net.as_raw();
        let siblings = Siblings {
            list: &entries.list,
            net,
        };
        let owned = create(&siblings)?;
        entries.made = entries.made.wrapping_add(1);
        let id = entries.made;
        let entry = Entry { id, owned, net };
        entries.list.push_within_capacity(entry)?;
        Ok(Self {
            id,
            _handler: handler,
            _exit: exit.clone(),
        })
    }
}

impl<H> Drop for InNamespace<H> {
    fn drop(&mut self) {
        release(|entry| entry.id == self.id);
    }
}

/// Releases the sockets and hooks of a namespace that is ending.
///
/// # Safety
///
/// Called as `exit` of `struct pernet_operations` of a [`NetExit`]. `net` is only compared.
unsafe extern "C" fn namespace_exit(net: *mut raw::net) {
    release(|entry| entry.net == net);
}

/// Releases the sockets and hooks of these entries, and waits until no CPU uses them.
fn release(which: impl Fn(&Entry) -> bool) {
    let mut entries = ENTRIES.lock();
    while let Some(at) = entries.list.iter().position(&which) {
        let Ok(entry) = entries.list.remove(at) else {
            return;
        };
        match &entry.owned {
            // SAFETY: `InNamespace::new` guarantees a tunnel socket. Nothing else releases those of
            // entries, and the list is locked (`udp_tunnel_sock_release()`,
            // net/ipv4/udp_tunnel_core.c).
            Owned::Socket(sk) => unsafe { raw::udp_tunnel_sock_release(*sk) },
            #[cfg(CONFIG_NETFILTER)]
            // SAFETY: `InNamespace::new` guarantees hooks registered in `net`. Nothing else
            // releases those of entries, and `net` ends only after `namespace_exit`, which the
            // locked list holds up (`nf_unregister_net_hooks()`, net/netfilter/core.c).
            Owned::Hooks(hooks) => unsafe {
                raw::nf_unregister_net_hooks(entry.net, hooks.as_raw(), Hooks::COUNT);
            },
            #[cfg(not(CONFIG_NETFILTER))]
            Owned::Hooks(_) => {}
        }
        // The handlers and the hook's `ops` are used in RCU read-side sections only
        // (net/netfilter/nfnetlink_hook.c).
        raw::safe::synchronize_net();
    }
}
