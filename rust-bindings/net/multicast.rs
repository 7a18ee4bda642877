// SPDX-License-Identifier: GPL-2.0

//! Membership of network devices in IP multicast groups.
//!
//! C headers: `include/linux/igmp.h`, `include/net/addrconf.h`.

use super::{addr::in6, IpAddr, NetDevice};
use crate::raw;
use kernel::{error::to_result, ffi::c_int, prelude::*};

#[allow(improper_ctypes, reason = "C code sees a `struct net_device`")]
// Safe: these are the signatures of the functions (net/ipv6/mcast.c). Both take any valid device
// and address, in a context that may sleep.
unsafe extern "C" {
    safe fn ipv6_dev_mc_dec(dev: &NetDevice, addr: &raw::in6_addr) -> c_int;
    safe fn ipv6_dev_mc_inc(dev: &NetDevice, addr: &raw::in6_addr) -> c_int;
}

impl NetDevice {
    /// Makes the device a member of an IP multicast group. It then receives the group's packets and
    /// reports the membership to routers and switches (IGMP, MLD). Memberships are counted. Returns
    /// `ENODEV` if the device does not have this IP version. Sleeps; call without RTNL.
    pub fn join_multicast(&self, group: &IpAddr) -> Result {
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        match group {
            IpAddr::V4(address) => self.with_in_device(|in_dev| {
                // SAFETY: The device is valid, and RTNL is held, as `ip_mc_inc_group`
                // (net/ipv4/igmp.c) requires.
                unsafe { raw::ip_mc_inc_group(in_dev, u32::from_ne_bytes(*address)) }
            }),
            IpAddr::V6(address) => {
                to_result(ipv6_dev_mc_inc(self, &in6(*address))).map_err(|_| ENODEV)
            }
        }
    }

    /// Ends a membership that [`NetDevice::join_multicast`] began. Does nothing if the stack has
    /// already ended it with the device. Sleeps; call without RTNL.
    pub fn leave_multicast(&self, group: &IpAddr) {
        match group {
            // This only returns an error if the stack has ended the membership.
            IpAddr::V4(address) => drop(self.with_in_device(|in_dev| {
                // SAFETY: The device is valid, and RTNL is held, as `ip_mc_dec_group`
                // (net/ipv4/igmp.c) requires.
                unsafe { raw::shim_ip_mc_dec_group(in_dev, u32::from_ne_bytes(*address)) }
            })),
            // This only returns an error if there is no membership.
            IpAddr::V6(address) => drop(ipv6_dev_mc_dec(self, &in6(*address))),
        }
    }

    /// Calls `f` with the IPv4 part of the device, with RTNL held. Returns `ENODEV` without one.
    fn with_in_device(&self, f: impl FnOnce(*mut raw::in_device)) -> Result {
        raw::safe::rtnl_lock();
        // SAFETY: The device is valid by the type invariant. RTNL is held, as `__in_dev_get_rtnl`
        // (inetdevice.h) requires; it keeps `in_dev` valid.
        let in_dev = unsafe { raw::shim___in_dev_get_rtnl(self.as_raw()) };
        let exists = !in_dev.is_null();
        if exists {
            f(in_dev);
        }
        // SAFETY: It was locked above.
        unsafe { raw::rtnl_unlock() };
        exists.then_some(()).ok_or(ENODEV)
    }
}
