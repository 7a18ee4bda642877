// SPDX-License-Identifier: GPL-2.0

//! Finding network devices by number or address.

use super::{IpAddr, NetDevice, NetNs};
use crate::raw;
use core::ptr::{self, NonNull};
use kernel::sync::{aref::ARef, rcu};

impl NetNs {
    /// The device with this index in the namespace.
    #[inline]
    pub fn device<'a>(&self, ifindex: u32, _rcu: &'a rcu::Guard) -> Option<&'a NetDevice> {
        let ifindex = i32::try_from(ifindex).ok()?;
        // SAFETY: The namespace is valid, and the RCU read lock is held, as
        // dev_get_by_index_rcu() (net/core/dev.c) asks.
        let dev = unsafe { raw::dev_get_by_index_rcu(self.as_raw(), ifindex) };
        // SAFETY: What it returns is valid under RCU.
        (!dev.is_null()).then(|| unsafe { NetDevice::from_raw(dev) })
    }

    /// The device that has this local address in the namespace.
    pub fn device_of_address(&self, address: &IpAddr) -> Option<ARef<NetDevice>> {
        let _rcu = rcu::read_lock();
        let dev = match address {
            // SAFETY: The namespace is valid. Without a reference, the device is valid under RCU
            // (net/ipv4/devinet.c).
            IpAddr::V4(a) => unsafe {
                raw::__ip_dev_find(self.as_raw(), u32::from_ne_bytes(*a), false)
            },
            IpAddr::V6(a) => {
                let mut in6 = raw::in6_addr::default();
                // SAFETY: An in6_addr is sixteen bytes.
                unsafe { ptr::copy_nonoverlapping(a.as_ptr(), (&raw mut in6).cast(), 16) };
                // SAFETY: The namespace is valid; no device is given to start from
                // (net/ipv6/addrconf.c).
                unsafe { raw::ipv6_dev_find(self.as_raw(), &in6, ptr::null_mut()) }
            }
        };
        let dev = NonNull::new(dev)?;
        // SAFETY: Valid under RCU, so a reference may be taken.
        Some(ARef::from(unsafe { NetDevice::from_raw(dev.as_ptr()) }))
    }
}

/// A reference that keeps a namespace from ending.
pub struct HeldNet(NonNull<raw::net>);

impl core::ops::Deref for HeldNet {
    type Target = NetNs;
    fn deref(&self) -> &NetNs {
        // SAFETY: The reference keeps it valid.
        unsafe { NetNs::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for HeldNet {
    fn drop(&mut self) {
        // SAFETY: Balances the reference that `hold_net` took.
        unsafe { raw::shim_put_net(self.0.as_ptr()) };
    }
}

impl NetDevice {
    /// Keeps the namespace that the device is in from ending; `None` where that has begun.
    pub fn hold_net(&self) -> Option<HeldNet> {
        let rcu = rcu::read_lock();
        // SAFETY: The namespace is valid under RCU, and maybe_get_net() (net_namespace.h) takes a
        // reference only where there is one left.
        NonNull::new(unsafe { raw::shim_maybe_get_net(self.net(&rcu).as_raw()) }).map(HeldNet)
    }
}
