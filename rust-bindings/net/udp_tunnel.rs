// SPDX-License-Identifier: GPL-2.0

//! Kernel UDP sockets that pass their packets to a handler.
//!
//! C header: `include/net/udp_tunnel.h`.

use super::{
    net_exit::{InNamespace, NetExit, Owned},
    skb::shim_skb_dev,
    IpVersion, NetDevice, NetRef, RxSkb,
};
use crate::raw;
use core::{ffi::c_int, ptr};
use kernel::{error::to_result, prelude::*, static_lock_class, sync::Arc};

/// A receiver of the packets of a UDP tunnel socket.
pub trait UdpReceive: Send + Sync + 'static {
    /// Handles a packet to the socket's port. Called in softirq context, inside an RCU read-side
    /// section, on several CPUs in parallel.
    ///
    /// `dev` is the device that received the packet: a VLAN device if there is one for the packet's
    /// tag, the loopback device if the packet came from this host. UDP has verified the checksum
    /// (zero means none). The packet may hold several datagrams: see [`RxSkb::datagrams`].
    fn receive(&self, dev: &NetDevice, skb: RxSkb);
}

/// Opens a socket on `port` of all addresses of one IP version. Sleeps.
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
    handler: Arc<H>,
) -> Result<InNamespace<H>> {
    const {
        // The socket uses the low bits of its user data as flags (`SK_USER_DATA_PTRMASK`).
        assert!(
            align_of::<H>() >= 8,
            "a UDP receiver needs an alignment of 8: give it #[repr(align(8))]"
        );
    }
    let mut cfg = raw::udp_port_cfg {
        local_udp_port: port.to_be(),
        ..Default::default()
    };
    match version {
        IpVersion::V4 => cfg.family = raw::AF_INET as u8,
        IpVersion::V6 => {
            cfg.family = raw::AF_INET6 as u8;
            cfg.set_ipv6_v6only(1);
        }
    }
    let user_data = Arc::as_ptr(&handler).cast_mut().cast();
    let create = || {
        let mut sock = ptr::null_mut();
        // SAFETY: `net` holds the namespace, and `cfg` and `sock` are valid for the call
        // (`udp_sock_create()`, include/net/udp_tunnel.h).
        to_result(unsafe { raw::shim_udp_sock_create(net.as_raw(), &mut cfg, &mut sock) })?;
        let mut tunnel: raw::udp_tunnel_sock_cfg = pin_init::zeroed();
        tunnel.sk_user_data = user_data;
        tunnel.encap_type = 1;
        tunnel.encap_rcv = Some(encap_receive::<H>);
        // SAFETY: `udp_sock_create()` succeeded, so `sock` is an unused socket that this function
        // owns. The handler has the alignment that user data requires, and lives for an RCU grace
        // period after the socket was released (`InNamespace`).
        unsafe {
            let sk = (*sock).sk;
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
    if let Some(handler) = handler {
        handler.receive(dev, skb);
    }
    // 0 tells UDP that the packet has been consumed.
    0
}
