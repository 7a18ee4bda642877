// SPDX-License-Identifier: GPL-2.0

//! Membership of network devices in IP multicast groups.
//!
//! C headers: `include/linux/igmp.h`, `include/net/addrconf.h`.

use super::{IpAddr, NetDevice};
use crate::raw;
use core::ptr;
use kernel::{error::to_result, prelude::*};

/// Holds RTNL, the lock of the network stack's configuration.
struct Rtnl(());

impl Rtnl {
    fn lock() -> Self {
        // SAFETY: The context may sleep, and has not got the lock: what the kernel diagnoses.
        unsafe { raw::rtnl_lock() };
        Self(())
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: Taken in `lock`.
        unsafe { raw::rtnl_unlock() };
    }
}

fn in6(address: &[u8; 16]) -> raw::in6_addr {
    let mut in6 = raw::in6_addr::default();
    // SAFETY: An in6_addr is sixteen bytes.
    unsafe { ptr::copy_nonoverlapping(address.as_ptr(), (&raw mut in6).cast(), 16) };
    in6
}

impl NetDevice {
    /// Makes the device a member of an IP multicast group: it then receives the group's packets,
    /// and says so to routers and switches (IGMP, MLD). Memberships are counted. Sleeps; without
    /// RTNL.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the address is no group's. `ENODEV`: the device has no such IP version.
    pub fn join_multicast(&self, group: &IpAddr) -> Result {
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        match group {
            IpAddr::V4(address) => {
                let _rtnl = Rtnl::lock();
                // SAFETY: The device is valid by the type invariant. RTNL is held, as both ask
                // (inetdevice.h; net/ipv4/igmp.c), and keeps what the first returns.
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
                // SAFETY: The device is valid by the type invariant; the context may sleep
                // (net/ipv6/mcast.c).
                let status = unsafe { raw::ipv6_dev_mc_inc(self.as_raw(), &in6(address)) };
                to_result(status).map_err(|_| ENODEV)
            }
        }
    }

    /// Ends a membership that [`NetDevice::join_multicast`] began. Where the stack has ended it
    /// with the device, nothing happens. Sleeps; without RTNL.
    pub fn leave_multicast(&self, group: &IpAddr) {
        match group {
            IpAddr::V4(address) => {
                let _rtnl = Rtnl::lock();
                // SAFETY: As in `join_multicast`.
                unsafe {
                    let in_dev = raw::shim___in_dev_get_rtnl(self.as_raw());
                    if !in_dev.is_null() {
                        raw::shim_ip_mc_dec_group(in_dev, u32::from_ne_bytes(*address));
                    }
                }
            }
            IpAddr::V6(address) => {
                // SAFETY: As in `join_multicast`. That there is nothing to leave is no harm.
                let _ = unsafe { raw::ipv6_dev_mc_dec(self.as_raw(), &in6(address)) };
            }
        }
    }
}
