// SPDX-License-Identifier: GPL-2.0

//! Finding network devices by number or address.

use super::{addr::in6, IpAddr, NetDevice, NetNs};
use crate::raw;
use core::ptr::{self, NonNull};
use kernel::sync::{aref::ARef, rcu};

impl NetNs {
    /// Returns the device with this index in the namespace.
    #[inline]
    pub fn device<'a>(&self, ifindex: u32, _rcu: &'a rcu::Guard) -> Option<&'a NetDevice> {
        let ifindex = i32::try_from(ifindex).ok()?;
        // SAFETY: The namespace is valid, and the guard holds the RCU read lock, as
        // dev_get_by_index_rcu() (net/core/dev.c) requires. It returns null or a device that is
        // valid while the guard exists.
        unsafe {
            let dev = raw::dev_get_by_index_rcu(self.as_raw(), ifindex);
            (!dev.is_null()).then(|| NetDevice::from_raw(dev))
        }
    }

    /// Returns the device that has this local address in the namespace.
    pub fn device_of_address(&self, address: &IpAddr) -> Option<ARef<NetDevice>> {
        let _rcu = rcu::read_lock();
        // SAFETY: The namespace is valid, and the RCU read lock is held, as ipv6_dev_find()
        // (net/ipv6/addrconf.c) requires, and __ip_dev_find() (net/ipv4/devinet.c) of a caller that
        // does not ask for a reference. They return null or a device that is valid under RCU, which
        // is held while `ARef::from` takes a reference. ipv6_dev_find() accepts a null device.
        unsafe {
            let dev = match address {
                IpAddr::V4(a) => raw::__ip_dev_find(self.as_raw(), u32::from_ne_bytes(*a), false),
                IpAddr::V6(a) => raw::ipv6_dev_find(self.as_raw(), &in6(*a), ptr::null_mut()),
            };
            NonNull::new(dev).map(|dev| ARef::from(NetDevice::from_raw(dev.as_ptr())))
        }
    }
}

#[allow(improper_ctypes, reason = "C code sees a `struct net`")]
// Safe: this is the signature of the shim. maybe_get_net() (net_namespace.h) takes any valid
// namespace, and takes a reference only if the count is not yet zero.
unsafe extern "C" {
    safe fn shim_maybe_get_net(net: &NetNs) -> *mut raw::net;
}

/// A reference that keeps a namespace from ending.
pub struct NetRef(NonNull<raw::net>);

impl core::ops::Deref for NetRef {
    type Target = NetNs;
    fn deref(&self) -> &NetNs {
        // SAFETY: `self` holds a reference to the namespace.
        unsafe { NetNs::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for NetRef {
    fn drop(&mut self) {
        // SAFETY: Releases the reference that `get_net` took.
        unsafe { raw::shim_put_net(self.0.as_ptr()) };
    }
}

impl NetDevice {
    /// Takes a reference that keeps the device's namespace from ending. Returns `None` if the
    /// namespace has begun to end.
    pub fn get_net(&self) -> Option<NetRef> {
        let rcu = rcu::read_lock();
        NonNull::new(shim_maybe_get_net(self.net(&rcu))).map(NetRef)
    }
}
