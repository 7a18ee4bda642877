// SPDX-License-Identifier: GPL-2.0

//! UDP sockets of the kernel whose packets go to a handler.
//!
//! C header: `include/net/udp_tunnel.h`.

use super::{local_out, lockdep, HeldNet, IpVersion, NetDevice, RxSkb};
use crate::raw;
use core::{ffi::c_int, ptr};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Arc,
    },
    types::Opaque,
};

/// Who receives the packets of a [`UdpTunnelSocket`].
pub trait UdpReceive: Send + Sync + 'static {
    /// Takes a packet to the socket's port. In softirq context, inside an RCU read-side section;
    /// calls run in parallel on several CPUs.
    ///
    /// `dev` is where it came in: a VLAN device where there is one for its tag, the loopback
    /// device where the packet came from this host. UDP has verified its checksum (a zero checksum
    /// is fine). The packet may be several datagrams in a row: see [`RxSkb::datagrams`].
    fn receive(&self, dev: &NetDevice, skb: RxSkb);
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in `UdpTunnels::register`, once. Everything that uses it has a
    // `UdpTunnels`, or is called by the operations that one has registered.
    unsafe(uninit) static SOCKETS: Mutex<KVec<Entry>> = KVec::new();
}

/// Whether [`SOCKETS`] has been initialised.
static INITIALISED: Atomic<i32> = Atomic::new(0);

/// A socket that has not been released yet.
struct Entry {
    sk: *mut raw::sock,
    /// For comparison only: the namespace that the socket is in.
    net: *mut raw::net,
}

// SAFETY: A socket belongs to no thread.
unsafe impl Send for Entry {}

/// Registration for the end of namespaces.
///
/// A kernel socket does not keep its namespace, or containers would never end. So when a
/// namespace ends, the sockets and [hooks](super::LocalOutHook) in it are released, whoever still
/// has them; those are silent from then on.
///
/// A module keeps its reference until it goes, and drops it last and without RTNL: dropping the
/// last reference waits for namespaces that begin or end, which take RTNL.
///
/// # Invariants
///
/// `ops` is registered.
#[pin_data(PinnedDrop)]
pub struct UdpTunnels {
    #[pin]
    ops: Opaque<raw::pernet_operations>,
}

// SAFETY: Any task may unregister the operations, since `pernet_ops_rwsem` guards their list
// (net/core/net_namespace.c).
unsafe impl Send for UdpTunnels {}
// SAFETY: Nothing is done by a shared reference.
unsafe impl Sync for UdpTunnels {}

impl UdpTunnels {
    /// Registers. Once for a module; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the module has registered before. `ENOMEM`.
    pub fn register() -> Result<Arc<Self>> {
        if INITIALISED.xchg(1, Full) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: Called once, since `INITIALISED` is never cleared, and before any use: a socket
        // needs what is returned here, and so do the operations that are registered below.
        unsafe { SOCKETS.init() };
        // SAFETY: Called once, and before there can be a hook, which needs what is returned here, too.
        unsafe { local_out::prepare() };
        Arc::pin_init(
            try_pin_init!(Self {
                // INVARIANT: Registered where this succeeds; otherwise there is no `Self`.
                ops <- Opaque::try_ffi_init(|slot: *mut raw::pernet_operations| {
                    // SAFETY: `slot` is memory for the struct, for which zero is valid.
                    unsafe {
                        slot.write(pin_init::zeroed());
                        (*slot).exit = Some(namespace_exit);
                    }
                    // SAFETY: It is initialised and pinned, and `drop` unregisters it before its
                    // memory goes (`register_pernet_subsys()`, net/core/net_namespace.c).
                    to_result(unsafe { raw::register_pernet_subsys(slot) })
                }),
            }? Error),
            GFP_KERNEL,
        )
    }
}

#[pinned_drop]
impl PinnedDrop for UdpTunnels {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant. `unregister_pernet_subsys()`
        // (net/core/net_namespace.c) calls `exit` for each namespace, which finds no socket: each
        // of them holds a reference to us.
        unsafe { raw::unregister_pernet_subsys(self.ops.get()) };
        // A static is not dropped; its memory would be lost.
        *SOCKETS.lock() = KVec::new();
        local_out::end();
        // Softirqs that have looked a socket up before it was released may still be on their way
        // into `encap_receive`, which may be about to go.
        // SAFETY: No requirements but a context that may sleep.
        unsafe { raw::synchronize_net() };
    }
}

/// Releases the sockets and hooks of a namespace that ends.
///
/// # Safety
///
/// [`SOCKETS`] is initialised: a [`UdpTunnels`] has registered this as `exit`. `net` is only
/// compared.
unsafe extern "C" fn namespace_exit(net: *mut raw::net) {
    local_out::namespace_exit(net);
    SOCKETS.lock().retain(|entry| {
        if entry.net != net {
            return true;
        }
        // SAFETY: `open` made it a tunnel socket. What is in the list has not been released, and
        // its lock is held until it is taken out (`udp_tunnel_sock_release()`,
        // net/ipv4/udp_tunnel_core.c).
        unsafe { raw::udp_tunnel_sock_release(entry.sk) };
        false
    });
}

/// A UDP socket of the kernel that gives its packets to a handler.
///
/// # Invariants
///
/// `sk` is a socket as long as it is in [`SOCKETS`]. Its user data is what `handler` points to.
pub struct UdpTunnelSocket<H: UdpReceive> {
    sk: *mut raw::sock,
    handler: Arc<H>,
    _tunnels: Arc<UdpTunnels>,
}

// SAFETY: Any task may release a kernel socket; `H` is `Send` and `Sync`, and so is an `Arc` of it.
unsafe impl<H: UdpReceive> Send for UdpTunnelSocket<H> {}
// SAFETY: A shared reference compares `sk`, and lends `handler`, which is `Sync`.
unsafe impl<H: UdpReceive> Sync for UdpTunnelSocket<H> {}

impl<H: UdpReceive> UdpTunnelSocket<H> {
    /// The low bits of user data are flags of the socket (`SK_USER_DATA_PTRMASK`).
    const ALIGNED: () = assert!(
        align_of::<H>() >= 8,
        "a UDP receiver needs an alignment of 8: give it #[repr(align(8))]"
    );

    /// Opens a socket on `port` of all addresses of one IP version. Sleeps.
    ///
    /// `net` keeps the namespace from ending meanwhile: once it has begun to end, nothing would
    /// release the socket.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another socket has the port. `EAFNOSUPPORT`: the host has no IPv6. `ENOMEM`.
    pub fn open(
        tunnels: &Arc<UdpTunnels>,
        net: &HeldNet,
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
        // Room first, so that nothing can fail after the socket exists.
        let mut sockets = SOCKETS.lock();
        sockets.reserve(1, GFP_KERNEL)?;
        let mut sock = ptr::null_mut();
        // SAFETY: `net` holds the namespace, and `cfg` and `sock` are valid for the call
        // (`udp_sock_create()`, include/net/udp_tunnel.h).
        to_result(unsafe { raw::shim_udp_sock_create(net.as_raw(), &mut cfg, &mut sock) })?;
        let mut tunnel: raw::udp_tunnel_sock_cfg = pin_init::zeroed();
        tunnel.sk_user_data = Arc::as_ptr(&handler).cast_mut().cast();
        tunnel.encap_type = 1;
        tunnel.encap_rcv = Some(encap_receive::<H>);
        // SAFETY: `udp_sock_create()` succeeded, so `sock` is a socket of ours, on which nothing
        // has happened yet. The handler, which has the alignment that user data needs, lives for an
        // RCU grace period after the socket was released: see `drop`.
        let sk = unsafe {
            let sk = raw::shim_socket_sk(sock);
            lockdep::reclassify(sk, version);
            raw::setup_udp_tunnel_sock(net.as_raw(), sk, &mut tunnel);
            raw::shim_udp_accept_gso(sk);
            sk
        };
        sockets.push_within_capacity(Entry {
            sk,
            net: net.as_raw(),
        })?;
        // INVARIANT: Just put into the list; user data as above.
        Ok(Self {
            sk,
            handler,
            _tunnels: tunnels.clone(),
        })
    }

    /// The handler.
    pub fn handler(&self) -> &Arc<H> {
        &self.handler
    }

    /// Whether the socket is open: not where its namespace has ended.
    pub fn is_open(&self) -> bool {
        SOCKETS.lock().iter().any(|entry| entry.sk == self.sk)
    }
}

impl<H: UdpReceive> Drop for UdpTunnelSocket<H> {
    /// Releases the socket and waits for the handler. Sleeps.
    fn drop(&mut self) {
        SOCKETS.lock().retain(|entry| {
            if entry.sk != self.sk {
                return true;
            }
            // SAFETY: `open` made it a tunnel socket. What is in the list has not been released,
            // and its lock is held until it is taken out (`udp_tunnel_sock_release()`,
            // net/ipv4/udp_tunnel_core.c).
            unsafe { raw::udp_tunnel_sock_release(entry.sk) };
            false
        });
        // Releasing has cleared the user data. Who has read it before is in an RCU section.
        // SAFETY: No requirements but a context that may sleep.
        unsafe { raw::synchronize_net() };
    }
}

/// Gives a packet to the handler.
///
/// # Safety
///
/// - `sk` is valid, and its user data is null or a pointer to an `H` that lives for an RCU grace
///   period after it was cleared. This is called inside an RCU read-side section.
/// - The packet is the callee's, and its data starts at the UDP header.
unsafe extern "C" fn encap_receive<H: UdpReceive>(
    sk: *mut raw::sock,
    skb: *mut raw::sk_buff,
) -> c_int {
    // SAFETY: UDP is the only caller: `udp_queue_rcv_one_skb()` (net/ipv4/udp.c) and
    // `udpv6_queue_rcv_one_skb()` (net/ipv6/udp.c) give a packet away whose data starts at the UDP
    // header, unless more than 0 is returned, which this never does.
    let skb = unsafe { RxSkb::from_udp(skb) };
    // SAFETY: UDP has looked the socket up, and calls inside the RCU read-side section of
    // `ip_protocol_deliver_rcu()` (net/ipv4/ip_input.c) or of that of IPv6.
    let user_data = unsafe { raw::shim_sk_user_data_rcu(sk) }.cast::<H>();
    // SAFETY: Null, or what `open` set: an `H` that `UdpTunnelSocket` drops a grace period after
    // `udp_tunnel_sock_release()` has cleared the user data, so it lives for this section.
    if let Some(handler) = unsafe { user_data.as_ref() } {
        // SAFETY: The device of a packet that is being received is valid for the RCU section
        // (`netif_receive_skb()`, net/core/dev.c).
        let dev = unsafe { NetDevice::from_raw(skb.raw_dev()) };
        handler.receive(dev, skb);
    }
    // Taken: 0 means that UDP has nothing more to do with it.
    0
}
