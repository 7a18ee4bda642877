// SPDX-License-Identifier: GPL-2.0

//! Routes, looked up once and used for many packets.
//!
//! C headers: `include/net/dst.h`, `include/net/route.h`, `include/net/ip6_route.h`.

use super::{IpAddr, IpVersion, NetDevice};
use crate::raw;
use core::ptr::{self, NonNull};
use kernel::{
    error::{code::*, from_err_ptr, to_result, Error, Result},
    sync::rcu,
};

/// Protocol number of UDP in IP headers (an enumerator without a name for its type in C).
const IPPROTO_UDP: u8 = 17;

/// What a route is looked up for: the fields of a UDP packet that routing may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Source address; one of our own.
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

/// What the stack says where there is no way; the kernel crate has no name for it.
fn host_unreachable() -> Error {
    Error::from_errno((raw::EHOSTUNREACH as i32).wrapping_neg())
}

/// The way that packets of a [`Flow`] take (`struct dst_entry`). The stack resolves the next hop.
///
/// # Invariants
///
/// Owns a reference to `dst`, which is a `struct rtable` or a `struct rt6_info` as `version` says.
pub struct Route {
    dst: NonNull<raw::dst_entry>,
    /// What `dst_check` compares with: generation of the IPv6 tree; 0 for IPv4.
    cookie: u32,
    version: IpVersion,
}

// SAFETY: A `struct dst_entry` belongs to no thread, and its count is atomic.
unsafe impl Send for Route {}
// SAFETY: A `struct dst_entry` may be used by many at the same time.
unsafe impl Sync for Route {}

impl Route {
    /// Looks up the way out through `dev`. Any context but a hard interrupt.
    ///
    /// # Errors
    ///
    /// What the stack says: `EHOSTUNREACH`, `ENETUNREACH` and so on. `EINVAL` where the addresses
    /// are of different versions.
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
        // SAFETY: `fl4` is valid. The namespace is valid under RCU, and `ip_route_output_flow`
        // (net/ipv4/route.c) needs no socket. What it returns is an error or a reference of ours.
        let rt = unsafe {
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
            raw::ip_route_output_flow(dev.net(&guard).as_raw(), &mut fl4, ptr::null())
        };
        let rt = from_err_ptr(rt)?;
        // SAFETY: `rt` is a valid route.
        let dst = unsafe { raw::shim_rtable_dst(rt) };
        // INVARIANT: The reference of `rt` is the one to its `dst`.
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
        // SAFETY: `fl6` is valid. The namespace is valid under RCU, and `ip6_dst_lookup_flow`
        // (net/ipv6/ip6_output.c) needs no socket. What it returns is an error or a reference of
        // ours.
        let dst = unsafe {
            fl6.flowlabel = raw::shim_ip6_make_flowinfo(u32::from(flow.tos));
            raw::ip6_dst_lookup_flow(dev.net(&guard).as_raw(), ptr::null(), &mut fl6, ptr::null())
        };
        let dst = NonNull::new(from_err_ptr(dst)?).ok_or_else(host_unreachable)?;
        // INVARIANT: `dst` is a reference of ours to an IPv6 route.
        let mut route = Self {
            dst,
            cookie: 0,
            version: IpVersion::V6,
        };
        // SAFETY: `dst` is a valid IPv6 route. An unreachable one carries its errno.
        unsafe {
            to_result(raw::shim_dst_error(dst.as_ptr()))?;
            route.cookie = raw::shim_rt6_get_cookie(dst.as_ptr());
        }
        Ok(route)
    }

    /// The C struct.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut raw::dst_entry {
        self.dst.as_ptr()
    }

    /// Version of the packets that go this way.
    #[inline]
    pub fn version(&self) -> IpVersion {
        self.version
    }

    /// Whether this is still the way; if not, look it up again. Cheap enough for each batch.
    #[inline]
    pub fn is_valid(&self) -> bool {
        let _guard = rcu::read_lock();
        // SAFETY: `dst` is valid by the type invariant, and under RCU `dst_check` may follow what
        // it points to.
        !unsafe { raw::shim_dst_check(self.as_raw(), self.cookie) }.is_null()
    }

    /// As [`NetDevice::segmentation_limit`], of the device that the packets leave through.
    #[inline]
    pub fn segmentation_limit(&self) -> u32 {
        let guard = rcu::read_lock();
        self.device(&guard).segmentation_limit()
    }

    /// Whether the way leads back to this host through the loopback device.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        let guard = rcu::read_lock();
        self.device(&guard).is_loopback()
    }

    /// The device that the packets leave through.
    #[inline]
    pub fn device<'a>(&'a self, _guard: &'a rcu::Guard) -> &'a NetDevice {
        // SAFETY: `dst` is valid by the type invariant; under RCU its device is too (it changes
        // to another one when it is unregistered, and a device outlives a grace period).
        unsafe { NetDevice::from_raw(raw::shim_dst_dev_rcu(self.as_raw())) }
    }
}

impl Clone for Route {
    fn clone(&self) -> Self {
        // SAFETY: `dst` is valid by the type invariant.
        unsafe { raw::shim_dst_hold(self.as_raw()) };
        // INVARIANT: The reference was taken just above.
        Self { ..*self }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariant.
        unsafe { raw::dst_release(self.as_raw()) };
    }
}
