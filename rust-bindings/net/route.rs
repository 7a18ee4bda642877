// SPDX-License-Identifier: GPL-2.0

//! Routes that are looked up once and used for many packets.
//!
//! C headers: `include/net/dst.h`, `include/net/route.h`, `include/net/ip6_route.h`.

use super::{IpAddr, IpVersion, NetDevice};
use crate::{errno::host_unreachable, raw};
use core::ptr::{self, NonNull};
use kernel::{
    error::{code::*, from_err_ptr, to_result, Result},
    sync::rcu,
};

/// Protocol number of UDP in IP headers (a value of an anonymous enum in C).
const IPPROTO_UDP: u8 = 17;

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
    /// Firewall mark; 0 for none.
    pub mark: u32,
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
}

// SAFETY: A `struct dst_entry` belongs to no thread, and its count is atomic.
unsafe impl Send for Route {}
// SAFETY: Several CPUs may use a `struct dst_entry` at the same time.
unsafe impl Sync for Route {}

impl Route {
    /// Looks up a route out through `dev`. Any context but a hard interrupt.
    ///
    /// # Errors
    ///
    /// Errors of the stack, such as `EHOSTUNREACH` or `ENETUNREACH`. `EINVAL`: the addresses are of
    /// different versions.
    pub fn lookup(dev: &NetDevice, flow: &Flow) -> Result<Self> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::lookup_v4(dev, flow, source, destination)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Self::lookup_v6(dev, flow, source, destination)
            }
            _ => Err(EINVAL),
        }
    }

    fn lookup_v4(
        dev: &NetDevice,
        flow: &Flow,
        source: [u8; 4],
        destination: [u8; 4],
    ) -> Result<Self> {
        let guard = rcu::read_lock();
        let mut fl4: raw::flowi4 = pin_init::zeroed();
        // SAFETY: `fl4` is valid, and the namespace is valid under RCU. `ip_route_output_flow`
        // (net/ipv4/route.c) accepts a null socket. It returns an error or a reference that the
        // caller owns; the shim takes the address of a field of it.
        let dst = unsafe {
            raw::shim_flowi4_init(
                &mut fl4,
                dev.ifindex(),
                flow.mark,
                flow.tos,
                u32::from_ne_bytes(source),
                u32::from_ne_bytes(destination),
                flow.source_port.to_be(),
                flow.destination_port.to_be(),
            );
            let rt = raw::ip_route_output_flow(dev.net(&guard).as_raw(), &mut fl4, ptr::null());
            raw::shim_rtable_dst(from_err_ptr(rt)?)
        };
        // INVARIANT: The reference to `rt` is the reference to its `dst`.
        Ok(Self {
            dst: NonNull::new(dst).ok_or_else(host_unreachable)?,
            cookie: 0,
            version: IpVersion::V4,
        })
    }

    fn lookup_v6(
        dev: &NetDevice,
        flow: &Flow,
        source: [u8; 16],
        destination: [u8; 16],
    ) -> Result<Self> {
        let guard = rcu::read_lock();
        let mut fl6: raw::flowi6 = pin_init::zeroed();
        fl6.__fl_common.flowic_oif = dev.ifindex();
        fl6.__fl_common.flowic_mark = flow.mark;
        fl6.__fl_common.flowic_proto = IPPROTO_UDP;
        fl6.saddr.in6_u.u6_addr8 = source;
        fl6.daddr.in6_u.u6_addr8 = destination;
        fl6.uli.ports.sport = flow.source_port.to_be();
        fl6.uli.ports.dport = flow.destination_port.to_be();
        // SAFETY: `fl6` is valid, and the namespace is valid under RCU. `ip6_dst_lookup_flow`
        // (net/ipv6/ip6_output.c) accepts a null socket. It returns an error or a reference that
        // the caller owns.
        let dst = unsafe {
            fl6.flowlabel = raw::shim_ip6_make_flowinfo(u32::from(flow.tos));
            raw::ip6_dst_lookup_flow(dev.net(&guard).as_raw(), ptr::null(), &mut fl6, ptr::null())
        };
        let dst = NonNull::new(from_err_ptr(dst)?).ok_or_else(host_unreachable)?;
        // INVARIANT: `ip6_dst_lookup_flow` returned a reference to an IPv6 route.
        let mut route = Self {
            dst,
            cookie: 0,
            version: IpVersion::V6,
        };
        // SAFETY: `route` owns `dst`, an IPv6 route. The `error` of an unreachable route is its
        // errno.
        unsafe {
            to_result(raw::shim_dst_error(dst.as_ptr()))?;
            route.cookie = raw::shim_rt6_get_cookie(dst.as_ptr());
        }
        Ok(route)
    }

    /// Returns a pointer to the C struct.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::dst_entry {
        self.dst.as_ptr()
    }

    /// Returns the IP version of packets that use this route.
    #[inline]
    pub fn version(&self) -> IpVersion {
        self.version
    }

    /// Returns whether the route is still valid; if not, the caller must look it up again. Cheap
    /// enough for each batch.
    #[inline]
    pub fn is_valid(&self) -> bool {
        let _guard = rcu::read_lock();
        // SAFETY: `self` owns a reference to `dst`. Under RCU, `dst_check` (dst.h) may follow its
        // pointers.
        !unsafe { raw::shim_dst_check(self.as_raw(), self.cookie) }.is_null()
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
