// SPDX-License-Identifier: GPL-2.0

//! Decisions about the packets that sockets of this host send.
//!
//! C header: `include/linux/netfilter.h`.

use super::{HeldNet, IpAddr, NetNs, UdpTunnels};
use crate::raw;
use core::{
    ffi::{c_uint, c_void},
    marker::PhantomData,
    ptr::NonNull,
};
use kernel::{error::to_result, prelude::*, sync::Arc, types::Opaque};

/// UDP in an IP header (RFC 768).
const UDP: u8 = 17;

/// The place of the destination port in a UDP header.
const DESTINATION_PORT: i32 = 2;

/// Decides whether packets may leave.
pub trait LocalOut: Send + Sync + 'static {
    /// Returns whether a packet of a socket may leave. If not, the sender gets `EPERM`. In an RCU
    /// read-side section, in any context but a hard interrupt; calls run in parallel.
    ///
    /// Packets that no socket sends are not asked about: they always leave.
    fn may_leave(&self, packet: &LocalPacket<'_>) -> bool;
}

/// A packet that a socket of this host is about to send, IP header included.
///
/// # Invariants
///
/// `skb`, `sk` and `net` are valid for `'a`, which is inside an RCU read-side section. The packet
/// has a whole IP header of the version that its `protocol` says.
pub struct LocalPacket<'a> {
    skb: *mut raw::sk_buff,
    sk: NonNull<raw::sock>,
    net: *mut raw::net,
    _lifetime: PhantomData<&'a NetNs>,
}

impl LocalPacket<'_> {
    /// Returns the namespace that the packet leaves from.
    pub fn net(&self) -> &NetNs {
        // SAFETY: Valid by the type invariant.
        unsafe { NetNs::from_raw(self.net) }
    }

    /// Returns whether it is IPv6.
    #[inline]
    fn is_ipv6(&self) -> bool {
        // SAFETY: The packet is valid by the type invariant.
        u32::from(u16::from_be(unsafe { raw::shim_skb_protocol(self.skb) })) == raw::ETH_P_IPV6
    }

    /// Returns whether it is UDP: by its header, or, since IPv6 extension headers may come first,
    /// by its socket.
    #[inline]
    fn is_udp(&self) -> bool {
        // SAFETY: The packet is valid by the type invariant, and has that header.
        let protocol = unsafe {
            if self.is_ipv6() {
                raw::shim_ipv6_nexthdr(self.skb)
            } else {
                raw::shim_ipv4_protocol(self.skb)
            }
        };
        if protocol == UDP {
            return true;
        }
        let sk = self.sk.as_ptr();
        // SAFETY: The socket is valid by the type invariant; a full one has a protocol
        // (`sk_fullsock()`, include/net/sock.h).
        unsafe { raw::shim_sk_fullsock(sk) && raw::shim_sk_protocol(sk) == UDP.into() }
    }

    /// Returns the destination port if the packet is a UDP datagram. A large one has not been cut
    /// into fragments or segments yet.
    #[inline]
    pub fn udp_destination_port(&self) -> Option<u16> {
        if !self.is_udp() {
            return None;
        }
        let mut port = [0; 2];
        // SAFETY: The packet is valid by the type invariant, and `port` for two bytes.
        // `skb_copy_bits()` (net/core/skbuff.c) refuses a range outside the packet. A function that
        // makes a UDP header sets the transport header to it (`udp_send_skb()`, net/ipv4/udp.c;
        // `udp_v6_send_skb()`, net/ipv6/udp.c; `udp_tunnel_xmit_skb()`,
        // net/ipv4/udp_tunnel_core.c; `raw_send_hdrinc()`, net/ipv4/raw.c).
        let result = unsafe {
            let offset = raw::shim_skb_transport_offset(self.skb);
            let at = offset.saturating_add(DESTINATION_PORT);
            raw::skb_copy_bits(self.skb, at, port.as_mut_ptr().cast(), 2)
        };
        (result == 0).then(|| u16::from_be_bytes(port))
    }

    /// Returns its source address.
    pub fn source(&self) -> IpAddr {
        // SAFETY: The packet is valid by the type invariant, and has a whole header, which is
        // linear: at least 20 bytes of IPv4, or 40 of IPv6.
        unsafe {
            let header = raw::shim_skb_network_header(self.skb);
            if self.is_ipv6() {
                IpAddr::V6(*header.add(8).cast())
            } else {
                IpAddr::V4(*header.add(12).cast())
            }
        }
    }

    /// Returns whether the process that opened the socket had CAP_NET_RAW over the namespace at
    /// that moment. A socket that no process has open, or that a process has closed, has no opener.
    pub fn opener_has_net_raw(&self) -> bool {
        let sk = self.sk.as_ptr();
        // SAFETY: The socket and the namespace are valid by the type invariant. `sk_socket` is
        // cleared under this lock (`sock_orphan()`, include/net/sock.h), when the file is being
        // closed but has not been freed (`__sock_release()`, net/socket.c; `__fput()`,
        // fs/file_table.c): so while the lock is held, both stay. `security_capable()` does not
        // sleep: it is called with spin locks held all over the kernel.
        unsafe {
            if !raw::shim_sk_fullsock(sk) {
                return false;
            }
            raw::shim_sk_callback_lock(sk);
            let socket = raw::shim_sk_socket(sk);
            let file = if socket.is_null() {
                core::ptr::null_mut()
            } else {
                raw::shim_socket_file(socket)
            };
            let result = !file.is_null()
                && raw::file_ns_capable(
                    file,
                    raw::shim_net_user_ns(self.net),
                    raw::CAP_NET_RAW as i32,
                );
            raw::shim_sk_callback_unlock(sk);
            result
        }
    }

    /// Returns the user that owns the socket, as the initial user namespace numbers users.
    pub fn owner(&self) -> u32 {
        let sk = self.sk.as_ptr();
        // SAFETY: The socket is valid by the type invariant; a full one has an owner
        // (include/net/sock.h).
        unsafe {
            if raw::shim_sk_fullsock(sk) {
                raw::shim_sk_uid(sk)
            } else {
                0
            }
        }
    }
}

kernel::sync::global_lock! {
    // SAFETY: Initialised by `prepare`, before there can be a hook.
    unsafe(uninit) static HOOKS: Mutex<KVec<Entry>> = KVec::new();
}

/// A hook that is registered.
struct Entry {
    ops: *mut raw::nf_hook_ops,
    net: *mut raw::net,
}

// SAFETY: A hook belongs to no thread.
unsafe impl Send for Entry {}

impl Entry {
    /// Unregisters the hook.
    ///
    /// # Safety
    ///
    /// It is registered, and the namespace has not ended.
    unsafe fn unregister(&self) {
        // SAFETY: As the caller promises.
        #[cfg(CONFIG_NETFILTER)]
        unsafe {
            raw::nf_unregister_net_hook(self.net, self.ops)
        };
    }
}

/// Makes the list of hooks.
///
/// # Safety
///
/// Called once, before there can be a hook.
pub(super) unsafe fn prepare() {
    // SAFETY: As the caller promises.
    unsafe { HOOKS.init() };
}

/// Frees the list of hooks, which is empty.
pub(super) fn end() {
    // A static is not dropped; its memory would be lost.
    *HOOKS.lock() = KVec::new();
}

/// Unregisters the hooks of a namespace that ends.
pub(super) fn namespace_exit(net: *mut raw::net) {
    HOOKS.lock().retain(|entry| {
        if entry.net != net {
            return true;
        }
        // SAFETY: Each entry of the list is registered, and we have its lock.
        unsafe { entry.unregister() };
        false
    });
}

/// Asks a [`LocalOut`] about the packets that sockets of a namespace send, over IPv4 and IPv6,
/// while it exists. It comes after everything that may change the packet (`NF_IP_PRI_LAST`).
///
/// # Invariants
///
/// `ops` is registered as long as it is in [`HOOKS`]; its `priv` is what `handler` points to.
pub struct LocalOutHook<H: LocalOut> {
    ops: KBox<Opaque<raw::nf_hook_ops>>,
    _handler: Arc<H>,
    _tunnels: Arc<UdpTunnels>,
}

// SAFETY: A hook belongs to no thread; `H` is `Send` and `Sync`.
unsafe impl<H: LocalOut> Send for LocalOutHook<H> {}
// SAFETY: As above.
unsafe impl<H: LocalOut> Sync for LocalOutHook<H> {}

impl<H: LocalOut> LocalOutHook<H> {
    /// Registers a hook. Sleeps.
    ///
    /// `net` keeps the namespace from ending meanwhile. `tunnels` unregisters the hook if the
    /// namespace ends later.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the kernel was built without `CONFIG_NETFILTER`. `ENOMEM`.
    pub fn register(tunnels: &Arc<UdpTunnels>, net: &HeldNet, handler: Arc<H>) -> Result<Self> {
        let ops = KBox::new(Opaque::<raw::nf_hook_ops>::zeroed(), GFP_KERNEL)?;
        // Room first, so that nothing can fail after the hook is registered.
        let mut hooks = HOOKS.lock();
        hooks.reserve(1, GFP_KERNEL)?;
        let data = Arc::as_ptr(&handler).cast_mut().cast();
        // SAFETY: It is ours, and nobody else has it yet.
        unsafe { raw::shim_nf_local_out_init(ops.get(), Some(hook::<H>), data) };
        register(net, ops.get())?;
        hooks.push_within_capacity(Entry {
            ops: ops.get(),
            net: net.as_raw(),
        })?;
        // INVARIANT: Just put into the list; its `priv` as above.
        Ok(Self {
            ops,
            _handler: handler,
            _tunnels: tunnels.clone(),
        })
    }
}

/// Registers a hook.
#[cfg(CONFIG_NETFILTER)]
fn register(net: &NetNs, ops: *mut raw::nf_hook_ops) -> Result {
    // SAFETY: The namespace is valid, and `ops` is initialised; the caller keeps it until it is
    // unregistered. `hook` may be called from here on.
    to_result(unsafe { raw::nf_register_net_hook(net.as_raw(), ops) })
}

/// Registers a hook.
#[cfg(not(CONFIG_NETFILTER))]
fn register(_net: &NetNs, _ops: *mut raw::nf_hook_ops) -> Result {
    to_result(-(raw::EOPNOTSUPP as i32))
}

impl<H: LocalOut> Drop for LocalOutHook<H> {
    /// Unregisters the hook and waits for the handler. Sleeps.
    fn drop(&mut self) {
        HOOKS.lock().retain(|entry| {
            if entry.ops != self.ops.get() {
                return true;
            }
            // SAFETY: Each entry of the list is registered, and we have its lock: the namespace has
            // not got to `namespace_exit`.
            unsafe { entry.unregister() };
            false
        });
        // Hooks are called inside RCU read-side sections (`nf_hook()`, include/linux/netfilter.h).
        // SAFETY: No requirements but a context that may sleep.
        unsafe { raw::synchronize_net() };
    }
}

/// Asks the handler about a packet.
///
/// # Safety
///
/// Called by netfilter only, as the hook of a [`LocalOutHook<H>`] with its `priv`, in the place
/// `NF_INET_LOCAL_OUT`: inside an RCU read-side section, with a packet that has a whole, linear IP
/// header and `protocol` set (`__ip_local_out()`, net/ipv4/ip_output.c; `__ip6_local_out()`,
/// net/ipv6/output_core.c).
unsafe extern "C" fn hook<H: LocalOut>(
    data: *mut c_void,
    skb: *mut raw::sk_buff,
    state: *const raw::nf_hook_state,
) -> c_uint {
    // SAFETY: `nf_hook()` passes a valid state.
    let state = unsafe { &*state };
    let Some(sk) = NonNull::new(state.sk) else {
        return raw::NF_ACCEPT;
    };
    // INVARIANT: By the requirements. The caller of `nf_hook()` keeps the socket.
    let packet = LocalPacket {
        skb,
        sk,
        net: state.net,
        _lifetime: PhantomData,
    };
    // SAFETY: The handler lives until no hook is being called, see `drop`.
    let handler = unsafe { &*data.cast::<H>() };
    if handler.may_leave(&packet) {
        raw::NF_ACCEPT
    } else {
        raw::NF_DROP
    }
}
