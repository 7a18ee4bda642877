// SPDX-License-Identifier: GPL-2.0

//! Kernel UDP sockets that pass their packets to a handler.
//!
//! C header: `include/net/udp_tunnel.h`.

use super::{
    net_exit::{self, Owned},
    skb::shim_skb_dev,
    IpVersion, NetDevice, NetRef, RxSkb,
};
use crate::raw;
use core::{ffi::c_int, ptr};
use kernel::{
    error::to_result,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Full},
        Arc,
    },
    types::Opaque,
};

/// A receiver of the packets of a [`UdpTunnelSocket`].
pub trait UdpReceive: Send + Sync + 'static {
    /// Handles a packet to the socket's port. Called in softirq context, inside an RCU read-side
    /// section, on several CPUs in parallel.
    ///
    /// `dev` is the device that received the packet: a VLAN device if there is one for the packet's
    /// tag, the loopback device if the packet came from this host. UDP has verified the checksum
    /// (zero means none). The packet may hold several datagrams: see [`RxSkb::datagrams`].
    fn receive(&self, dev: &NetDevice, skb: RxSkb);
}

/// Whether a [`UdpTunnels`] was registered.
static REGISTERED: Atomic<i32> = Atomic::new(0);

/// Registration of a handler for the end of namespaces.
///
/// A kernel socket does not keep its namespace, because otherwise containers would never end. So
/// when a namespace ends, its sockets and [hooks](super::LocalOutHook) are released, even if their
/// owners still have them. They receive nothing from then on.
///
/// A module keeps a reference until it is unloaded, and drops it last and without RTNL. Dropping
/// the last reference waits for namespaces that begin or end, which take RTNL.
///
/// # Invariants
///
/// `ops` is registered.
#[pin_data(PinnedDrop)]
pub struct UdpTunnels {
    #[pin]
    ops: Opaque<raw::pernet_operations>,
}

// SAFETY: Any task may unregister the operations: `pernet_ops_rwsem` (net/core/net_namespace.c)
// protects their list.
unsafe impl Send for UdpTunnels {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for UdpTunnels {}

impl UdpTunnels {
    /// Registers the handler, once per module. Returns `EBUSY` on the second call. Sleeps.
    pub fn register() -> Result<Arc<Self>> {
        if REGISTERED.xchg(1, Full) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: `REGISTERED` is never cleared, so this runs once. It precedes every use: a socket
        // or hook needs the value returned here, and the operations are registered below.
        unsafe { net_exit::prepare() };
        Arc::pin_init(
            try_pin_init!(Self {
                // INVARIANT: If this fails, there is no `Self`; otherwise the operations are
                // registered.
                ops <- Opaque::try_ffi_init(|slot: *mut raw::pernet_operations| {
                    let mut ops: raw::pernet_operations = pin_init::zeroed();
                    ops.exit = Some(net_exit::namespace_exit);
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
impl PinnedDrop for UdpTunnels {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The operations are registered by the type invariant. `unregister_pernet_subsys()`
        // (net/core/net_namespace.c) calls `exit` for each namespace. It finds no socket or hook,
        // because each holds a reference to `self`.
        unsafe { raw::unregister_pernet_subsys(self.ops.get()) };
        net_exit::end();
        // A softirq that found a socket before it was released may still be about to enter
        // `encap_receive`, whose code may soon be unloaded.
        raw::safe::synchronize_net();
    }
}

/// A kernel UDP socket that passes its packets to a handler.
///
/// # Invariants
///
/// Until `net_exit` releases the socket, its user data points to `_handler`.
pub struct UdpTunnelSocket<H: UdpReceive> {
    id: net_exit::Id,
    _handler: Arc<H>,
    _tunnels: Arc<UdpTunnels>,
}

impl<H: UdpReceive> UdpTunnelSocket<H> {
    /// The socket uses the low bits of its user data as flags (`SK_USER_DATA_PTRMASK`).
    const ALIGNED: () = assert!(
        align_of::<H>() >= 8,
        "a UDP receiver needs an alignment of 8: give it #[repr(align(8))]"
    );

    /// Opens a socket on `port` of all addresses of one IP version. Sleeps.
    ///
    /// `net` keeps the namespace from ending during the call. In a namespace that has begun to end,
    /// nothing would release the socket.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another socket has the port. `EAFNOSUPPORT`: the host has no IPv6. `ENOMEM`.
    pub fn open(
        tunnels: &Arc<UdpTunnels>,
        net: &NetRef,
        version: IpVersion,
        port: u16,
        handler: Arc<H>,
    ) -> Result<Self> {
        let () = Self::ALIGNED;
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
        let create = || {
            let mut sock = ptr::null_mut();
            // SAFETY: `net` holds the namespace, and `cfg` and `sock` are valid for the call
            // (`udp_sock_create()`, include/net/udp_tunnel.h).
            to_result(unsafe { raw::shim_udp_sock_create(net.as_raw(), &mut cfg, &mut sock) })?;
            let mut tunnel: raw::udp_tunnel_sock_cfg = pin_init::zeroed();
            tunnel.sk_user_data = Arc::as_ptr(&handler).cast_mut().cast();
            tunnel.encap_type = 1;
            tunnel.encap_rcv = Some(encap_receive::<H>);
            // SAFETY: `udp_sock_create()` succeeded, so `sock` is an unused socket that this
            // function owns. The handler has the alignment that user data requires, and it lives
            // for an RCU grace period after the socket was released (see `drop`).
            unsafe {
                let sk = (*sock).sk;
                reclassify(sk, version);
                raw::setup_udp_tunnel_sock(net.as_raw(), sk, &mut tunnel);
                raw::shim_udp_accept_gso(sk);
                Ok(Owned::Socket(sk))
            }
        };
        // INVARIANT: `handler` is the user data of the socket.
        Ok(Self {
            // SAFETY: `create` returns a tunnel socket of `net` that nothing else releases.
            id: unsafe { net_exit::add(net, create) }?,
            _handler: handler,
            _tunnels: tunnels.clone(),
        })
    }
}

impl<H: UdpReceive> Drop for UdpTunnelSocket<H> {
    /// Releases the socket and waits for the handler. Sleeps.
    fn drop(&mut self) {
        // Releasing clears the user data, which is read inside RCU read-side sections.
        net_exit::release(self.id);
    }
}

/// Gives the lock of a socket its own class.
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
unsafe fn reclassify(sk: *mut raw::sock, version: IpVersion) {
    let (slock_name, slock_key, sock_name, sock_key) = match version {
        IpVersion::V4 => (
            c"slock-AF_INET-UDP-TUNNEL",
            static_lock_class!(),
            c"sk_lock-AF_INET-UDP-TUNNEL",
            static_lock_class!(),
        ),
        IpVersion::V6 => (
            c"slock-AF_INET6-UDP-TUNNEL",
            static_lock_class!(),
            c"sk_lock-AF_INET6-UDP-TUNNEL",
            static_lock_class!(),
        ),
    };
    // SAFETY: The caller guarantees that the socket is not in use; keys and names are static. The
    // macro takes a reference to the module to protect the keys. That reference would keep the
    // module loaded forever. The socket does not outlive the module, so the reference is dropped
    // here.
    unsafe {
        raw::shim_sock_lock_init_class_and_name(
            sk,
            slock_name.as_char_ptr(),
            slock_key.as_ptr(),
            sock_name.as_char_ptr(),
            sock_key.as_ptr(),
        );
        raw::shim_sk_owner_put(sk);
        raw::shim_sk_owner_clear(sk);
    }
}

/// Passes a packet to the handler.
///
/// # Safety
///
/// Only UDP calls this, for a socket that [`UdpTunnelSocket::<H>::open`] has configured.
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
    // user data is null or the `H` that `open` set. `UdpTunnelSocket` drops that `H` a grace period
    // after `udp_tunnel_sock_release()` has cleared the user data.
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
