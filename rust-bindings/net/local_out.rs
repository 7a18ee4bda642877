// SPDX-License-Identifier: GPL-2.0

//! A filter for packets that sockets of this host send.
//!
//! C header: `include/linux/netfilter.h`.

use super::{
    addr::source,
    net_exit::{InNamespace, NetExit, Owned, Siblings},
    skb::Skb,
    IpAddr, IpVersion, NetNs, NetRef, IPPROTO_UDP,
};
use crate::raw;
use core::{
    ffi::{c_uint, c_void},
    ptr::NonNull,
    slice,
};
use kernel::{prelude::*, sync::Arc, types::Opaque};

/// Offset of the destination port in a UDP header.
const DESTINATION_PORT: i32 = 2;

/// Decides whether packets may leave.
pub trait LocalOut: Send + Sync + 'static {
    /// Returns whether a packet of a socket may leave. If not, the sender gets `EPERM`. Called in
    /// an RCU read-side section, in any context but a hard interrupt, on several CPUs in parallel.
    ///
    /// Packets without a full socket always leave, without a call: those of the kernel, and those
    /// that TCP sends before or after a connection.
    fn may_leave(&self, packet: &LocalPacket<'_>) -> bool;
}

/// A packet that a socket of this host is about to send, IP header included.
///
/// # Invariants
///
/// `sk` is a full socket, and valid for `'a`, which is inside an RCU read-side section. The packet
/// has a whole, linear IP header of the version that its `protocol` says.
pub struct LocalPacket<'a> {
    skb: &'a Skb,
    sk: NonNull<raw::sock>,
    net: &'a NetNs,
}

impl LocalPacket<'_> {
    /// Returns the namespace that the packet leaves from.
    pub fn net(&self) -> &NetNs {
        self.net
    }

    /// Returns the IP header, without options or extension headers.
    #[inline]
    fn ip_header(&self) -> &[u8] {
        let len = self.skb.version().header_len();
        // SAFETY: By the type invariant, the packet has a header of at least this length.
        unsafe { slice::from_raw_parts(raw::shim_skb_network_header(self.skb.as_raw()), len) }
    }

    /// Returns the destination port if the packet is a UDP datagram. A large datagram has not yet
    /// been fragmented or segmented.
    #[inline]
    pub fn udp_destination_port(&self) -> Option<u16> {
        let protocol = match self.skb.version() {
            IpVersion::V4 => 9,
            IpVersion::V6 => 6,
        };
        let is_udp = self.ip_header().get(protocol) == Some(&IPPROTO_UDP);
        let mut port = [0; 2];
        let skb = self.skb.as_raw();
        // SAFETY: By their type invariants, the packet and the socket are valid; `port` is valid
        // for two bytes. `skb_copy_bits()` (net/core/skbuff.c) refuses a range outside the packet.
        // The functions that make UDP headers set the transport header to them (`udp_send_skb()`,
        // net/ipv4/udp.c; `udp_v6_send_skb()`, net/ipv6/udp.c; `udp_tunnel_xmit_skb()`,
        // net/ipv4/udp_tunnel_core.c; `raw_send_hdrinc()`, net/ipv4/raw.c).
        let result = unsafe {
            // The header may name another protocol because IPv6 extension headers come first.
            if !is_udp && raw::shim_sk_protocol(self.sk.as_ptr()) != IPPROTO_UDP.into() {
                return None;
            }
            let offset = raw::shim_skb_transport_offset(skb);
            let at = offset.saturating_add(DESTINATION_PORT);
            raw::skb_copy_bits(skb, at, port.as_mut_ptr().cast(), 2)
        };
        (result == 0).then(|| u16::from_be_bytes(port))
    }

    /// Returns the packet's source address.
    pub fn source(&self) -> IpAddr {
        source(self.skb.version(), self.ip_header())
    }

    /// Returns whether the process that opened the socket had CAP_NET_RAW over the namespace when
    /// it did so. Returns false for a socket that was not opened by a process, or that was closed.
    pub fn opener_has_net_raw(&self) -> bool {
        let sk = self.sk.as_ptr();
        // SAFETY: By the type invariant, the socket and the namespace are valid. `sock_orphan()`
        // (include/net/sock.h) clears `sk_socket` under this lock, while the file is being closed
        // but not yet freed (`__sock_release()`, net/socket.c; `__fput()`, fs/file_table.c). So
        // both stay valid while the lock is held. `security_capable()` does not sleep: the kernel
        // also calls it with spin locks held.
        unsafe {
            raw::shim_sk_callback_lock(sk);
            let socket = raw::shim_sk_socket(sk);
            let file = if socket.is_null() {
                core::ptr::null_mut()
            } else {
                (&raw const (*socket).file).read_volatile()
            };
            let result = !file.is_null()
                && raw::file_ns_capable(
                    file,
                    raw::shim_net_user_ns(self.net.as_raw()),
                    raw::CAP_NET_RAW as i32,
                );
            raw::shim_sk_callback_unlock(sk);
            result
        }
    }

    /// Returns the UID of the socket's owner in the initial user namespace.
    pub fn owner(&self) -> u32 {
        // SAFETY: By the type invariant, the socket is valid and full: it has an owner
        // (include/net/sock.h).
        unsafe { raw::shim_sk_uid(self.sk.as_ptr()) }
    }
}

/// Registers a filter for the packets that sockets of a namespace send, over IPv4 and IPv6. It runs
/// after all hooks that may change the packet (`NF_IP_PRI_LAST`). Sleeps.
///
/// `net` keeps the namespace from ending during the call. Returns `EOPNOTSUPP` if the kernel was
/// built without `CONFIG_NETFILTER`.
pub fn hook_local_out<H: LocalOut>(
    exit: &Arc<NetExit>,
    net: &NetRef,
    handler: Arc<H>,
) -> Result<InNamespace<H>> {
    if !cfg!(CONFIG_NETFILTER) {
        return Err(crate::errno::not_supported());
    }
    let data = Arc::as_ptr(&handler).cast_mut().cast();
    let ops = KBox::new(Opaque::<raw::nf_hook_ops>::zeroed(), GFP_KERNEL)?;
    let create = |_: &Siblings<'_>| {
        // SAFETY: The namespace is valid, and `ops` is valid for writes and lives until it is
        // unregistered. Netfilter may call `hook` from here on.
        unsafe {
            raw::shim_nf_local_out_init(ops.get(), Some(hook::<H>), data);
            #[cfg(CONFIG_NETFILTER)]
            kernel::error::to_result(raw::nf_register_net_hook(net.as_raw(), ops.get()))?;
        }
        Ok(Owned::Hook(ops))
    };
    // SAFETY: `create` returns a hook that is registered in `net`, and that nothing else
    // unregisters. Netfilter calls hooks inside RCU read-side sections (`nf_hook()`,
    // include/linux/netfilter.h).
    unsafe { InNamespace::new(exit, net, handler, create) }
}

/// Asks the handler whether a packet may leave.
///
/// # Safety
///
/// Only netfilter calls this, as a hook of [`hook_local_out`], whose `H` is `data`.
unsafe extern "C" fn hook<H: LocalOut>(
    data: *mut c_void,
    skb: *mut raw::sk_buff,
    state: *const raw::nf_hook_state,
) -> c_uint {
    // SAFETY: `nf_hook()` (netfilter.h) passes a packet, and a state on its stack. Its caller keeps
    // the namespace and the socket. `InNamespace` keeps the handler until no CPU is in the hook.
    let (skb, sk, net, handler) = unsafe {
        (
            Skb::from_raw(skb),
            NonNull::new((*state).sk).filter(|sk| raw::shim_sk_fullsock(sk.as_ptr())),
            NetNs::from_raw((*state).net),
            &*data.cast::<H>(),
        )
    };
    let Some(sk) = sk else {
        return raw::NF_ACCEPT;
    };
    // INVARIANT: The callers of `nf_hook()` (`__ip_local_out()`, net/ipv4/ip_output.c;
    // `__ip6_local_out()`, net/ipv6/output_core.c) keep the socket and the namespace, and pass a
    // packet with a whole, linear IP header and a `protocol`. The call is inside an RCU read-side
    // section.
    let packet = LocalPacket { skb, sk, net };
    if handler.may_leave(&packet) {
        raw::NF_ACCEPT
    } else {
        raw::NF_DROP
    }
}
