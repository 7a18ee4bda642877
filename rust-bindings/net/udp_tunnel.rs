// SPDX-License-Identifier: GPL-2.0

//! Kernel UDP sockets that pass their packets to a handler.
//!
//! C header: `include/net/udp_tunnel.h`.

use super::{
    gro::{gro_complete, gro_receive, KEY as GRO_KEY},
    net_exit::{InNamespace, NetExit, Owned, Siblings},
    skb::shim_skb_dev,
    IpAddr, IpVersion, NetDevice, NetRef, RxSkb,
};
use crate::{raw, sync::BurstGuard};
use core::{
    ffi::c_int,
    ptr::{self, NonNull},
};
use kernel::{
    error::to_result,
    prelude::*,
    static_lock_class,
    sync::{rcu, Arc},
};

/// A receiver of the packets of a UDP tunnel socket.
pub trait UdpReceive: Send + Sync + 'static {
    /// Handles a packet to the socket's port. Called in softirq context, inside a burst, on several
    /// CPUs in parallel.
    ///
    /// `dev` is the interface that received the frame: a VLAN device if there is one for the
    /// packet's tag, the bridge or bond of a port, the member of a VRF. If the packet came from
    /// this host, it is the loopback device or the device of a VRF. UDP has verified the checksum
    /// (zero means none). The packet may hold several datagrams: see
    /// [`UdpPacket::datagrams`](super::UdpPacket::datagrams).
    fn receive(&self, dev: &NetDevice, skb: RxSkb, burst: &BurstGuard);

    /// Returns whether two datagrams of one UDP flow, which start with these bytes, have the same
    /// receiver.
    fn is_same_receiver(one: &[u8; GRO_KEY], other: &[u8; GRO_KEY]) -> bool;

    /// Returns whether GRO may make a chain of packets that are like this one, which `dev`, the
    /// device of the driver, has received. Neither another host nor another namespace may be its
    /// destination, and no capture may see it. Called in softirq context.
    fn may_chain(
        &self,
        dev: &NetDevice,
        destination: &IpAddr,
        key: &[u8; GRO_KEY],
        rcu: &rcu::Guard,
    ) -> bool;
}

/// The start of an address to bind to (`struct sockaddr_in`, `struct sockaddr_in6`): any local
/// address.
#[repr(C, align(8))]
struct AnyAddress {
    family: u16,
    port: [u8; 2],
    /// IPv4 has 12 bytes, IPv6 has 24.
    zero: [u8; 24],
}

/// A socket that is released when this is dropped.
struct Created(NonNull<raw::socket>);

impl Drop for Created {
    fn drop(&mut self) {
        // SAFETY: `sock_create_kern()` returned the socket, which nothing else uses.
        unsafe { raw::sock_release(self.0.as_ptr()) };
    }
}

impl Created {
    /// Creates a UDP socket of the kernel, which belongs to the user root of the initial user
    /// namespace, whichever process runs.
    fn new(net: &NetRef, family: u32) -> Result<Self> {
        let mut sock = ptr::null_mut();
        // SAFETY: The current task uses the kernel's credentials until it reverts to its own, which
        // it keeps (`override_creds()`, include/linux/cred.h). `net` holds the namespace, and
        // `sock` is valid for writes.
        let result = unsafe {
            let own = raw::shim_override_kernel_creds();
            let kind = raw::sock_type_SOCK_DGRAM as c_int;
            let result = raw::sock_create_kern(net.as_raw(), family as c_int, kind, 0, &mut sock);
            raw::shim_revert_creds(own);
            result
        };
        to_result(result)?;
        NonNull::new(sock).map(Self).ok_or(ENOMEM)
    }

    fn sock(&self) -> *mut raw::sock {
        // SAFETY: `sock_create_kern()` returned the socket, with a `sk` that it owns.
        unsafe { (*self.0.as_ptr()).sk }
    }

    /// Binds the socket to a port, and to a VRF if its index is not 0.
    ///
    /// Sockets of all VRFs and that of none exclude each other, unless all permit the sharing of
    /// the port (SO_REUSEPORT) by the same user. The kernel's sockets permit it to each other while
    /// one of them is bound. Then the port is theirs alone.
    fn bind(&self, version: IpVersion, port: u16, vrf: u32, siblings: &Siblings<'_>) -> Result {
        let (family, len) = match version {
            IpVersion::V4 => (raw::AF_INET, 16),
            IpVersion::V6 => (raw::AF_INET6, 28),
        };
        let mut address = AnyAddress {
            family: family as u16,
            port: port.to_be_bytes(),
            zero: [0; 24],
        };
        let sk = self.sock();
        // SAFETY: The socket is valid and unbound. The address has at least `len` bytes
        // (`kernel_bind()`, net/socket.c).
        unsafe {
            if version == IpVersion::V6 {
                to_result(raw::shim_ip6_sock_set_v6only(sk))?;
                raw::shim_udp_accept_no_check6(sk);
            }
            if vrf != 0 {
                to_result(raw::sock_bindtoindex(sk, c_int::try_from(vrf)?, true))?;
            }
            raw::shim_sk_set_reuseport(sk, true);
            siblings.set_reuseport(true);
            let address = (&raw mut address).cast();
            let result = raw::shim_kernel_bind(self.0.as_ptr(), address, len);
            siblings.set_reuseport(false);
            raw::shim_sk_set_reuseport(sk, false);
            to_result(result)
        }
    }
}

/// Opens a socket on `port` of all addresses of one IP version in a VRF, given by the index of its
/// device, or outside of VRFs if that is 0. Sleeps.
///
/// `net` keeps the namespace from ending during the call. In a namespace that has begun to end,
/// nothing would release the socket.
///
/// # Errors
///
/// `EADDRINUSE`: another socket has the port. `EAFNOSUPPORT`: the host has no IPv6. `ENOMEM`.
pub fn open_udp_tunnel<H: UdpReceive>(
    exit: &Arc<NetExit>,
    net: &NetRef,
    version: IpVersion,
    port: u16,
    vrf: u32,
    handler: Arc<H>,
) -> Result<InNamespace<H>> {
    const {
        // The socket uses the low bits of its user data as flags (`SK_USER_DATA_PTRMASK`).
        assert!(
            align_of::<H>() >= 8,
            "a UDP receiver needs an alignment of 8: give it #[repr(align(8))]"
        );
    }
    let family = match version {
        IpVersion::V4 => raw::AF_INET,
        IpVersion::V6 => raw::AF_INET6,
    };
    let user_data = Arc::as_ptr(&handler).cast_mut().cast();
    let create = |siblings: &Siblings<'_>| {
        let created = Created::new(net, family)?;
        created.bind(version, port, vrf, siblings)?;
        let sk = created.sock();
        core::mem::forget(created);
        let mut tunnel: raw::udp_tunnel_sock_cfg = pin_init::zeroed();
        tunnel.sk_user_data = user_data;
        tunnel.encap_type = 1;
        tunnel.encap_rcv = Some(encap_receive::<H>);
        tunnel.gro_receive = Some(gro_receive::<H>);
        tunnel.gro_complete = Some(gro_complete);
        // SAFETY: `sk` is an unused socket that this function owns. The handler has the alignment
        // that user data requires, and lives for an RCU grace period after the socket was released
        // (`InNamespace`).
        unsafe {
            reclassify(sk);
            raw::setup_udp_tunnel_sock(net.as_raw(), sk, &mut tunnel);
            raw::shim_udp_accept_gso(sk);
            Ok(Owned::Socket(sk))
        }
    };
    // SAFETY: `create` returns a tunnel socket of `net` that nothing else releases.
    unsafe { InNamespace::new(exit, net, handler, create) }
}

/// Gives the lock of a socket a class of kernel sockets.
///
/// All sockets of an address family share one lock class. This kernel socket is created and
/// released under locks that are also held while user sockets are locked: RTNL, and locks of an
/// upper layer that can run over TCP as well as over this socket. In a shared class, lockdep would
/// report cycles that cannot occur.
///
/// # Safety
///
/// `sk` is a valid socket that is not locked and that nothing can look up. It is released before
/// the module is unloaded.
unsafe fn reclassify(sk: *mut raw::sock) {
    let (slock_key, key) = (static_lock_class!(), static_lock_class!());
    // SAFETY: The caller guarantees that the socket is not in use; keys and names are static. The
    // macro takes a reference to the module to protect the keys. That reference would keep the
    // module loaded forever. The socket does not outlive the module, so the reference is dropped
    // here.
    unsafe {
        raw::shim_sock_lock_init_class_and_name(
            sk,
            c"slock-UDP-TUNNEL".as_char_ptr(),
            slock_key.as_ptr(),
            c"sk_lock-UDP-TUNNEL".as_char_ptr(),
            key.as_ptr(),
        );
        raw::shim_sk_owner_put(sk);
        raw::shim_sk_owner_clear(sk);
    }
}

/// Passes a packet to the handler.
///
/// # Safety
///
/// Only UDP calls this, for a socket that [`open_udp_tunnel`] has configured with an `H`.
unsafe extern "C" fn encap_receive<H: UdpReceive>(
    sk: *mut raw::sock,
    skb: *mut raw::sk_buff,
) -> c_int {
    // SAFETY: UDP is the only caller. `udp_queue_rcv_one_skb()` (net/ipv4/udp.c) and
    // `udpv6_queue_rcv_one_skb()` (net/ipv6/udp.c) pass a packet whose data starts at the UDP
    // header. They give it away unless more than 0 is returned, which this function never does.
    let skb = unsafe { RxSkb::from_udp(skb) };
    // SAFETY: UDP calls inside the RCU read-side section of `ip_protocol_deliver_rcu()`
    // (net/ipv4/ip_input.c) or of its IPv6 counterpart, with a socket that it has looked up. The
    // user data is null or the `H` that `open_udp_tunnel` set, which lives for a grace period after
    // `udp_tunnel_sock_release()` has cleared the user data.
    let handler = unsafe { raw::shim_sk_user_data_rcu(sk).cast::<H>().as_ref() };
    // SAFETY: The device of a packet that is being received is valid for that section, too
    // (`netif_receive_skb()`, net/core/dev.c).
    let dev = unsafe { NetDevice::from_raw(shim_skb_dev(skb.fields())) };
    let Some(handler) = handler else {
        return 0;
    };
    // SAFETY: UDP receives packets in softirqs, or with softirqs disabled (`netif_receive_skb()`,
    // net/core/dev.c), until this function has returned.
    let burst = unsafe { BurstGuard::enter_in_softirq() };
    // The stack gives the VRF as the device of each packet that has come to one of its members.
    let member = if dev.is_vrf() { skb.vrf_member() } else { 0 };
    if member == 0 {
        handler.receive(dev, skb, &burst);
        // 0 tells UDP that the packet has been consumed.
        return 0;
    }
    // SAFETY: UDP has looked up the socket.
    let is_in_vrf = unsafe { raw::shim_sk_bound_dev_if(sk) } != 0;
    if !is_in_vrf && skb.destination().is_multicast() {
        // With udp_l3mdev_accept, UDP gives this socket a copy of what that of the VRF receives.
        skb.consume();
        return 0;
    }
    if let Some(member) = dev.net(&burst).device(member, &burst) {
        handler.receive(member, skb, &burst);
    }
    0
}
