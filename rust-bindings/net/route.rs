// SPDX-License-Identifier: GPL-2.0

//! Routes that are looked up once and used for many packets.
//!
//! C headers: `include/net/dst.h`, `include/net/route.h`, `include/net/ip6_route.h`.

use super::{
    addr::in6, device::shim_ll_reserved_space, IpAddr, IpVersion, NetDevice, NetNsCookie,
    IPPROTO_UDP,
};
use crate::raw;
use core::ptr::{self, NonNull};
use kernel::{
    error::{code::*, from_err_ptr, to_result, Result},
    sync::rcu,
};

/// The key of a route lookup: the fields of a UDP packet that routing may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Source address, which belongs to this host.
    pub source: IpAddr,
    /// Destination address, of the same version.
    pub destination: IpAddr,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

/// A route for packets of a [`Flow`] (`struct dst_entry`). The stack resolves the next hop.
///
/// # Invariants
///
/// Owns a reference to `dst`, which is a `struct rtable` or a `struct rt6_info` according to
/// `version`.
pub struct Route {
    dst: NonNull<raw::dst_entry>,
    /// Argument of `dst_check`: generation of the IPv6 routing tree, or 0 for IPv4.
    cookie: u32,
    version: IpVersion,
    /// The route leaves through a veth. The device of a valid route never changes.
    is_over_veth: bool,
    /// The other end of that veth.
    far_end: Option<FarEnd>,
    /// The namespace at the other end of the veth receives the packets.
    ends_at_peer: bool,
}

/// The state of a veth pair that decides where the packets of a route go.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FarEnd {
    namespace: NetNsCookie,
    /// Changes with the addresses of the namespace.
    addresses: u32,
    /// Neither end passes packets to anything but the network layer of the namespace.
    is_direct: bool,
}

impl FarEnd {
    /// Returns the current state of the pair that `dev` belongs to.
    #[inline]
    fn of(dev: &NetDevice, version: IpVersion, rcu: &rcu::Guard) -> Option<Self> {
        let peer = dev.peer(rcu)?;
        let net = peer.net(rcu);
        Some(Self {
            namespace: net.cookie(),
            addresses: net.address_generation(version),
            is_direct: dev.sends_directly(rcu) && peer.receives_directly(),
        })
    }
}

// SAFETY: A `struct dst_entry` belongs to no thread, and its count is atomic.
unsafe impl Send for Route {}
// SAFETY: Several CPUs may use a `struct dst_entry` at the same time.
unsafe impl Sync for Route {}

/// The space in front of the IP headers of the packets of a route, for headers that the stack adds.
///
/// # Invariants
///
/// `len` is at least what the stack reserves for packets of its own, and what the device of a route
/// of IP `version` needs.
#[derive(Clone, Copy)]
pub struct Headroom {
    /// In bytes.
    pub(super) len: u32,
    pub(super) version: IpVersion,
}

impl Route {
    /// Looks up a route out through `dev`. Returns `EINVAL` if the addresses are of different
    /// versions, or an error of the stack, such as `EHOSTUNREACH` or `ENETUNREACH`. Any context but
    /// a hard interrupt.
    pub fn lookup(dev: &NetDevice, flow: &Flow) -> Result<Self> {
        let dst = Self::destination(dev, flow)?;
        // INVARIANT: `dst` is a reference to a route of this version.
        let mut route = Self {
            dst: NonNull::new(dst).ok_or(EINVAL)?,
            cookie: 0,
            version: flow.source.version(),
            is_over_veth: false,
            far_end: None,
            ends_at_peer: false,
        };
        // SAFETY: `route` owns `dst`. The `error` of an unreachable route is its errno. A route of
        // IPv6 has a cookie.
        unsafe {
            to_result(raw::shim_dst_error(dst))?;
            if route.version == IpVersion::V6 {
                route.cookie = raw::shim_rt6_get_cookie(dst);
            }
        }
        route.follow_peer(&flow.destination);
        Ok(route)
    }

    /// Finds out whether the namespace at the other end of a veth receives the packets.
    fn follow_peer(&mut self, destination: &IpAddr) {
        let rcu = rcu::read_lock();
        let dev = self.device(&rcu);
        if !dev.is_kind(c"veth") {
            return;
        }
        // The state is read first: if the addresses change after that, the route is not valid.
        let far_end = FarEnd::of(dev, self.version, &rcu);
        let holds = |peer: &NetDevice| {
            let holder = peer.holder_of(destination, &rcu);
            holder.is_some_and(|holder| peer.shares_vrf_with(&holder, &rcu))
        };
        let ends_at_peer =
            far_end.is_some_and(|end| end.is_direct) && dev.peer(&rcu).is_some_and(holds);
        self.is_over_veth = true;
        self.far_end = far_end;
        self.ends_at_peer = ends_at_peer;
    }

    /// Has the stack look up a route. Returns a reference to it, which the caller owns.
    fn destination(dev: &NetDevice, flow: &Flow) -> Result<*mut raw::dst_entry> {
        let guard = rcu::read_lock();
        let net = dev.net(&guard).as_raw();
        let (sport, dport) = (flow.source_port.to_be(), flow.destination_port.to_be());
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut fl4: raw::flowi4 = pin_init::zeroed();
                // SAFETY: `fl4` is valid, and the namespace is valid under RCU.
                // `ip_route_output_flow` (net/ipv4/route.c) accepts a null socket. It returns an
                // error or a reference that the caller owns; the shim takes the address of a field
                // of it.
                unsafe {
                    raw::shim_flowi4_init(
                        &mut fl4,
                        dev.ifindex(),
                        flow.tos,
                        u32::from_ne_bytes(source),
                        u32::from_ne_bytes(destination),
                        sport,
                        dport,
                    );
                    let rt = raw::ip_route_output_flow(net, &mut fl4, ptr::null());
                    Ok(raw::shim_rtable_dst(from_err_ptr(rt)?))
                }
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut fl6: raw::flowi6 = pin_init::zeroed();
                fl6.__fl_common.flowic_oif = dev.ifindex();
                fl6.__fl_common.flowic_proto = IPPROTO_UDP;
                fl6.saddr = in6(source);
                fl6.daddr = in6(destination);
                fl6.uli.ports.sport = sport;
                fl6.uli.ports.dport = dport;
                // SAFETY: `fl6` is valid, and the namespace is valid under RCU.
                // `ip6_dst_lookup_flow` (net/ipv6/ip6_output.c) accepts a null socket. It returns
                // an error or a reference that the caller owns.
                from_err_ptr(unsafe {
                    fl6.flowlabel = raw::shim_ip6_make_flowinfo(u32::from(flow.tos));
                    raw::ip6_dst_lookup_flow(net, ptr::null(), &mut fl6, ptr::null())
                })
            }
            _ => Err(EINVAL),
        }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::dst_entry {
        self.dst.as_ptr()
    }

    /// Returns the IP version of packets that use this route.
    #[inline]
    pub fn version(&self) -> IpVersion {
        self.version
    }

    /// Returns the space that packets of the route need in front of the IP header.
    #[inline]
    pub fn headroom(&self, guard: &rcu::Guard) -> Headroom {
        let link = shim_ll_reserved_space(self.device(guard));
        // INVARIANT: The stack reserves `MAX_HEADER` bytes, and the device needs `link`.
        Headroom {
            len: link.max(raw::MAX_HEADER),
            version: self.version,
        }
    }

    /// Returns the route for a batch. Returns `None` if the route is invalid or ends elsewhere now:
    /// the caller must look it up again. If a veth accepts no GSO packets, the result does not end
    /// at the peer ([`Route::ends_at_peer`]). Cheap enough for each batch.
    #[inline]
    pub fn current(&self) -> Option<Self> {
        let rcu = rcu::read_lock();
        // SAFETY: `self` owns a reference to `dst`. Under RCU, `dst_check` (dst.h) may follow its
        // pointers.
        if unsafe { raw::shim_dst_check(self.as_raw(), self.cookie) }.is_null() {
            return None;
        }
        let mut ends_at_peer = self.ends_at_peer;
        if self.is_over_veth {
            let dev = self.device(&rcu);
            if !dev.can_segment_udp() {
                // Only GSO packets depend on their end.
                ends_at_peer = false;
            } else if self.far_end != FarEnd::of(dev, self.version, &rcu) {
                return None;
            }
        }
        let mut route = self.clone();
        route.ends_at_peer = ends_at_peer;
        Some(route)
    }

    /// Returns whether the packets leave through one end of a veth pair.
    #[inline]
    pub fn is_over_veth(&self) -> bool {
        self.is_over_veth
    }

    /// Returns whether the packets leave through one end of a veth pair, and the namespace of the
    /// other end receives them, as far as devices and addresses tell. Nothing on their way may then
    /// pass them to another device. (Rules of that namespace still may: DNAT, IPVS, policy
    /// routing.)
    #[inline]
    pub(super) fn ends_at_peer(&self) -> bool {
        self.ends_at_peer
    }

    /// Returns the device through which the packets leave.
    #[inline]
    pub fn device<'a>(&'a self, _guard: &'a rcu::Guard) -> &'a NetDevice {
        // SAFETY: `self` owns a reference to `dst`, whose device is valid under RCU: it is replaced
        // when the device is unregistered, and the device outlives a grace period.
        unsafe { NetDevice::from_raw(raw::shim_dst_dev_rcu(self.as_raw())) }
    }
}

impl Clone for Route {
    fn clone(&self) -> Self {
        // SAFETY: `self` owns a reference to `dst`.
        unsafe { raw::shim_dst_hold(self.as_raw()) };
        // INVARIANT: The clone owns the reference taken just above.
        Self { ..*self }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: `self` owns a reference to `dst`, which this gives up.
        unsafe { raw::dst_release(self.as_raw()) };
    }
}
