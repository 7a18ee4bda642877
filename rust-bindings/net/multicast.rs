// SPDX-License-Identifier: GPL-2.0

//! Membership of network devices in IP multicast groups.
//!
//! C headers: `include/linux/igmp.h`, `include/net/addrconf.h`.

use super::{IpAddr, NetDevice};
use crate::raw;
use core::ptr;
use kernel::{error::to_result, prelude::*};

/// A guard for RTNL, the lock of the network stack's configuration.
struct Rtnl(());

impl Rtnl {
    fn lock() -> Self {
        // SAFETY: rtnl_lock() only requires a context that may sleep and a task that does not hold
        // the lock. The kernel reports a violation of either.
        unsafe { raw::rtnl_lock() };
        Self(())
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: `lock` acquired it.
        unsafe { raw::rtnl_unlock() };
    }
}

fn in6(address: &[u8; 16]) -> raw::in6_addr {
    let mut in6 = raw::in6_addr::default();
    // SAFETY: Both are valid for sixteen bytes, the size of an in6_addr, and do not overlap.
    unsafe { ptr::copy_nonoverlapping(address.as_ptr(), (&raw mut in6).cast(), 16) };
    in6
}

impl NetDevice {
    /// Makes the device a member of an IP multicast group. It then receives the group's packets and
    /// reports the membership to routers and switches (IGMP, MLD). Memberships are counted. Sleeps;
    /// call without RTNL.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not a multicast address. `ENODEV`: the device does not have this IP version.
    pub fn join_multicast(&self, group: &IpAddr) -> Result {
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        match group {
            IpAddr::V4(address) => {
                let _rtnl = Rtnl::lock();
                // SAFETY: The device is valid by the type invariant. RTNL is held, as
                // `__in_dev_get_rtnl` (inetdevice.h) and `ip_mc_inc_group` (net/ipv4/igmp.c)
                // require; it keeps `in_dev` valid.
                unsafe {
                    let in_dev = raw::shim___in_dev_get_rtnl(self.as_raw());
                    if in_dev.is_null() {
                        return Err(ENODEV);
                    }
                    raw::ip_mc_inc_group(in_dev, u32::from_ne_bytes(*address));
                }
                Ok(())
            }
            IpAddr::V6(address) => {
                // SAFETY: The device is valid by the type invariant. `ipv6_dev_mc_inc`
                // (net/ipv6/mcast.c) may sleep, as this function does.
                let status = unsafe { raw::ipv6_dev_mc_inc(self.as_raw(), &in6(address)) };
                to_result(status).map_err(|_| ENODEV)
            }
        }
    }

    /// Ends a membership that [`NetDevice::join_multicast`] began. Does nothing if the stack has
    /// already ended it with the device. Sleeps; call without RTNL.
    pub fn leave_multicast(&self, group: &IpAddr) {
        match group {
            IpAddr::V4(address) => {
                let _rtnl = Rtnl::lock();
                // SAFETY: The device is valid by the type invariant. RTNL is held, as
                // `__in_dev_get_rtnl` (inetdevice.h) requires; it keeps `in_dev` valid for
                // `ip_mc_dec_group`.
                unsafe {
                    let in_dev = raw::shim___in_dev_get_rtnl(self.as_raw());
                    if !in_dev.is_null() {
                        raw::shim_ip_mc_dec_group(in_dev, u32::from_ne_bytes(*address));
                    }
                }
            }
            IpAddr::V6(address) => {
                // SAFETY: The device is valid by the type invariant, and the context may sleep.
                // `ipv6_dev_mc_dec` (net/ipv6/mcast.c) only returns an error if there is no
                // membership.
                let _ = unsafe { raw::ipv6_dev_mc_dec(self.as_raw(), &in6(address)) };
            }
        }
    }
}
