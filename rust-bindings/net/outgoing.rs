// SPDX-License-Identifier: GPL-2.0

//! A filter for packets that leave a namespace: those that its sockets send, and those that it
//! forwards.
//!
//! C header: `include/linux/netfilter.h`.

use super::{
    addr::{field, source},
    net_exit::{InNamespace, NetExit, Owned, Siblings},
    skb::Skb,
    tx_chain::spread_changes,
    IpVersion, NetDevice, NetNs, NetRef, IPPROTO_UDP,
};
use crate::raw;
use core::{
    ffi::{c_uint, c_void},
    ptr::{self, NonNull},
};
use kernel::{
    prelude::*,
    sync::{aref::ARef, rcu, Arc},
    types::Opaque,
};

/// Offset of the destination port in a UDP header.
const DESTINATION_PORT: i32 = 2;

/// The fragment offset in the flags and offset of an IPv4 header.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Decides whether packets may leave. Called in an RCU read-side section, in any context but a hard
/// interrupt, on several CPUs in parallel.
pub trait Outgoing: Send + Sync + 'static {
    /// Returns whether a packet of a socket may leave. If not, the sender gets `EPERM`.
    ///
    /// Packets without a full socket always leave, without a call: those of the kernel, and those
    /// that TCP sends before or after a connection.
    fn may_leave(&self, packet: &LocalPacket<'_>) -> bool;

    /// Returns whether a packet that a network device has received may be forwarded. If not, it is
    /// dropped silently. Source NAT has already changed its source.
    ///
    /// Frames that a bridge forwards always leave, without a call.
    fn may_forward(&self, packet: &ForwardedPacket<'_>) -> bool;
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
    out: &'a NetDevice,
}

impl LocalPacket<'_> {
    /// Returns the IP header, without options or extension headers.
    #[inline]
    fn ip_header(&self) -> &[u8] {
        // SAFETY: By the type invariant, the packet has a whole, linear IP header.
        unsafe { self.skb.ip_header() }
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
        // SAFETY: By their type invariants, the packet and the socket are valid. The functions that
        // make UDP headers set the transport header to them (`udp_send_skb()`, net/ipv4/udp.c;
        // `udp_v6_send_skb()`, net/ipv6/udp.c; `udp_tunnel_xmit_skb()`,
        // net/ipv4/udp_tunnel_core.c; `raw_send_hdrinc()`, net/ipv4/raw.c).
        let offset = unsafe {
            // The header may name another protocol because IPv6 extension headers come first.
            if !is_udp && raw::shim_sk_protocol(self.sk.as_ptr()) != IPPROTO_UDP.into() {
                return None;
            }
            raw::shim_skb_transport_offset(self.skb.as_raw())
        };
        destination_port(self.skb, offset)
    }

    /// Returns the device that has the packet's source address.
    pub fn source_holder(&self) -> Option<ARef<NetDevice>> {
        let source = source(self.skb.version(), self.ip_header());
        self.out.holder_of(&source, &rcu::read_lock())
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
                ptr::null_mut()
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

/// Returns the destination port in the UDP header at this offset of a packet's data.
fn destination_port(skb: &Skb, offset: i32) -> Option<u16> {
    let mut port = [0; 2];
    let at = offset.saturating_add(DESTINATION_PORT);
    // SAFETY: The packet is valid by its type invariant, and `port` is valid for two bytes.
    // `skb_copy_bits()` (net/core/skbuff.c) refuses a range outside the packet.
    let result = unsafe { raw::skb_copy_bits(skb.as_raw(), at, port.as_mut_ptr().cast(), 2) };
    (result == 0).then(|| u16::from_be_bytes(port))
}

/// A packet that a network device has received, and that is about to leave, IP header included.
///
/// # Invariants
///
/// The packet has a whole, linear IP header of the version that its `protocol` says, at which its
/// data begins. `'a` is inside an RCU read-side section.
pub struct ForwardedPacket<'a> {
    skb: &'a Skb,
    out: &'a NetDevice,
}

impl ForwardedPacket<'_> {
    /// Returns the IP header, without options or extension headers.
    #[inline]
    fn ip_header(&self) -> &[u8] {
        // SAFETY: By the type invariant, the packet has a whole, linear IP header.
        unsafe { self.skb.ip_header() }
    }

    /// Returns the destination port if the packet is a UDP datagram, or its first fragment. The
    /// other fragments have no port; without the first one, no receiver can make a datagram of
    /// them.
    #[inline]
    pub fn udp_destination_port(&self) -> Option<u16> {
        let offset = match self.skb.version() {
            IpVersion::V4 => {
                let ip = self.ip_header();
                let [version_len] = field(ip, 0);
                let is_udp = field(ip, 9) == [IPPROTO_UDP];
                let is_first = u16::from_be_bytes(field(ip, 6)) & FRAGMENT_OFFSET == 0;
                (is_udp && is_first).then(|| i32::from(version_len & 0xf).wrapping_mul(4))?
            }
            IpVersion::V6 => self.udp_behind_extensions()?,
        };
        destination_port(self.skb, offset)
    }

    /// Returns the offset of the UDP header of an IPv6 packet, if it has one.
    fn udp_behind_extensions(&self) -> Option<i32> {
        let mut offset = 0;
        let udp = i32::from(IPPROTO_UDP);
        // SAFETY: By the type invariant, the packet has a whole IPv6 header. `ipv6_find_hdr()`
        // (net/ipv6/exthdrs_core.c) starts at it because `offset` is 0, accepts null for results
        // that are not wanted, and finds nothing in fragments other than the first.
        let found = unsafe {
            let (fragment, flags) = (ptr::null_mut(), ptr::null_mut());
            raw::ipv6_find_hdr(self.skb.as_raw(), &mut offset, udp, fragment, flags)
        };
        (found == udp).then(|| i32::try_from(offset).ok())?
    }

    /// Returns the device of this namespace that has the packet's source address, behind source
    /// NAT, if the address is a local one.
    pub fn source_holder(&self) -> Option<ARef<NetDevice>> {
        let source = source(self.skb.version(), self.ip_header());
        self.out.holder_of(&source, &rcu::read_lock())
    }
}

/// Registers a filter for the packets that leave a namespace, over IPv4 and IPv6. Sleeps.
///
/// Packets of sockets pass it after all hooks that may change them (`NF_IP_PRI_LAST`). Forwarded
/// packets pass it after source NAT, and just before connection tracking enters their connection
/// into its table (`NF_IP_PRI_CONNTRACK_CONFIRM`). A flowtable forwards packets of connections in
/// the table past the filter, so a refused packet must not get its connection there.
///
/// `net` keeps the namespace from ending during the call. Returns `EOPNOTSUPP` if the kernel was
/// built without `CONFIG_NETFILTER`.
pub fn hook_outgoing<H: Outgoing>(
    exit: &Arc<NetExit>,
    net: &NetRef,
    handler: Arc<H>,
) -> Result<InNamespace<H>> {
    if !cfg!(CONFIG_NETFILTER) {
        return Err(crate::errno::not_supported());
    }
    let data = Arc::as_ptr(&handler).cast_mut().cast();
    let hooks = KBox::new(Hooks::zeroed(), GFP_KERNEL)?;
    let create = |_: &Siblings<'_>| {
        let [local, forwarded] = &hooks.0;
        // SAFETY: The namespace is valid, and `hooks` is valid for writes and lives until it is
        // unregistered. Netfilter may call the functions from here on.
        unsafe {
            raw::shim_nf_local_out_init(local.get(), Some(local_hook::<H>), data);
            raw::shim_nf_forwarded_init(forwarded.get(), Some(forwarded_hook::<H>), data);
            #[cfg(CONFIG_NETFILTER)]
            kernel::error::to_result(raw::nf_register_net_hooks(
                net.as_raw(),
                hooks.as_raw(),
                Hooks::COUNT,
            ))?;
        }
        Ok(Owned::Hooks(hooks))
    };
    // SAFETY: `create` returns hooks that are registered in `net`, and that nothing else
    // unregisters. Netfilter calls hooks inside RCU read-side sections (`nf_hook()`,
    // include/linux/netfilter.h).
    unsafe { InNamespace::new(exit, net, handler, create) }
}

/// The hooks of a filter: for packets of sockets, and for forwarded packets.
pub(super) struct Hooks([Opaque<raw::nf_hook_ops>; 2]);

impl Hooks {
    /// Number of hooks.
    pub(super) const COUNT: c_uint = 2;

    fn zeroed() -> Self {
        Self([Opaque::zeroed(), Opaque::zeroed()])
    }

    /// Returns a pointer to the first of [`COUNT`](Self::COUNT) hooks.
    pub(super) fn as_raw(&self) -> *mut raw::nf_hook_ops {
        Opaque::cast_into(self.0.as_ptr())
    }
}

/// Asks the handler whether a packet of a socket may leave.
///
/// # Safety
///
/// Only netfilter calls this, as a hook of [`hook_outgoing`], whose `H` is `data`.
unsafe extern "C" fn local_hook<H: Outgoing>(
    data: *mut c_void,
    skb: *mut raw::sk_buff,
    state: *const raw::nf_hook_state,
) -> c_uint {
    // SAFETY: `nf_hook()` (netfilter.h) passes a packet, and a state on its stack. Its callers
    // (named below) keep the namespace, the socket and the outgoing device. `InNamespace` keeps the
    // handler until no CPU is in the hook.
    let (skb, sk, net, out, handler) = unsafe {
        (
            Skb::from_raw(skb),
            NonNull::new((*state).sk).filter(|sk| raw::shim_sk_fullsock(sk.as_ptr())),
            NetNs::from_raw((*state).net),
            NetDevice::from_raw((*state).out),
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
    let packet = LocalPacket { skb, sk, net, out };
    if handler.may_leave(&packet) {
        raw::NF_ACCEPT
    } else {
        raw::NF_DROP
    }
}

/// Asks the handler whether a forwarded packet may leave.
///
/// # Safety
///
/// Only netfilter calls this, as a hook of [`hook_outgoing`], whose `H` is `data`.
unsafe extern "C" fn forwarded_hook<H: Outgoing>(
    data: *mut c_void,
    skb: *mut raw::sk_buff,
    state: *const raw::nf_hook_state,
) -> c_uint {
    // SAFETY: `nf_hook()` (netfilter.h) passes a packet, and a state on its stack. All callers for
    // POST_ROUTING name the outgoing device, which is valid under RCU. `InNamespace` keeps the
    // handler until no CPU is in the hook.
    let (skb, incoming, out, handler) = unsafe {
        (
            Skb::from_raw(skb),
            (*state).in_,
            NetDevice::from_raw((*state).out),
            &*data.cast::<H>(),
        )
    };
    // In a VRF, packets of this host have an incoming device, too: the VRF. No device has received
    // them (`vrf_ip_out_direct()`, drivers/net/vrf.c). Packets on a bridge have no incoming device
    // (`br_nf_post_routing()`, net/bridge/br_netfilter_hooks.c).
    if !skb.was_received() {
        // SAFETY: This host sends the packet, and this is the last hook that it passes. The callers
        // of `nf_hook()` pass packets with a whole, linear IP header and a `protocol`.
        unsafe { spread_changes(skb) };
        return raw::NF_ACCEPT;
    }
    if incoming.is_null() {
        return raw::NF_ACCEPT;
    }
    // INVARIANT: The callers of `nf_hook()` with an incoming device (`ip_output()`,
    // net/ipv4/ip_output.c; `ip6_output()`, net/ipv6/ip6_output.c; `xfrm4_output()`,
    // net/ipv4/xfrm4_output.c; `vrf_output()`, drivers/net/vrf.c) pass a packet with a whole,
    // linear IP header and a `protocol`. The call is inside an RCU read-side section.
    let packet = ForwardedPacket { skb, out };
    if handler.may_forward(&packet) {
        raw::NF_ACCEPT
    } else {
        raw::NF_DROP
    }
}
