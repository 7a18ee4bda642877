// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: `include/net/net_namespace.h`.

use super::{addr::in6, IpAddr, IpVersion, NetDevice};
use crate::raw;
use core::ptr::{self, NonNull};
use kernel::{
    sync::{aref::ARef, rcu},
    types::Opaque,
};

/// A network namespace (`struct net`).
///
/// A namespace is only ever borrowed from an object that keeps it alive. An owned reference would
/// keep the namespace of a container that has ended. A [`cookie`](Self::cookie) identifies the
/// namespace beyond the borrow.
///
/// # Invariants
///
/// Only created from pointers to a valid `struct net`.
#[repr(transparent)]
pub struct NetNs(Opaque<raw::net>);

// SAFETY: A `struct net` belongs to no thread; the methods read only fields that never change, and
// atomics.
unsafe impl Send for NetNs {}
// SAFETY: A shared reference only reads fields that never change, and atomics.
unsafe impl Sync for NetNs {}

#[allow(improper_ctypes, reason = "C code sees a `struct net`")]
// Safe: these are the signatures of the shims, which take any valid namespace. `preinit_net()`
// (net/core/net_namespace.c) writes the cookie once, before the namespace is visible.
// maybe_get_net() (net_namespace.h) takes a reference only if the count is not yet zero. The
// generations are atomics.
unsafe extern "C" {
    safe fn shim_ipv4_address_generation(net: &NetNs) -> u32;
    safe fn shim_ipv6_address_generation(net: &NetNs) -> u32;
    safe fn shim_maybe_get_net(net: &NetNs) -> *mut raw::net;
    safe fn shim_net_cookie(net: &NetNs) -> u64;
}

/// Identifies a namespace. The kernel never reuses the number for another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetNsCookie(u64);

impl NetNs {
    /// Borrows a namespace from its pointer.
    ///
    /// # Safety
    ///
    /// `net` points to a `struct net` that is valid for `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(net: *mut raw::net) -> &'a Self {
        // SAFETY: `Self` is transparent over `Opaque<net>`, and the caller guarantees that `net` is
        // valid for `'a`.
        unsafe { &*net.cast() }
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut raw::net {
        self.0.get()
    }

    /// Returns the cookie of this namespace.
    #[inline]
    pub fn cookie(&self) -> NetNsCookie {
        NetNsCookie(shim_net_cookie(self))
    }

    /// Returns a number that changes when an address of this version is added to the namespace or
    /// removed from it (`fib_inetaddr_event()`, net/ipv4/fib_frontend.c; `ipv6_ifa_notify()`,
    /// net/ipv6/addrconf.c). Later look-ups see at least the addresses of that time.
    #[inline]
    pub(super) fn address_generation(&self, version: IpVersion) -> u32 {
        match version {
            IpVersion::V4 => shim_ipv4_address_generation(self),
            IpVersion::V6 => shim_ipv6_address_generation(self),
        }
    }

    /// Returns whether the current process runs in this namespace.
    pub fn is_current(&self) -> bool {
        // SAFETY: Only the task itself changes its `nsproxy` (kernel/nsproxy.c), which is null
        // while the task exits, and which holds its namespaces.
        unsafe {
            let nsproxy = raw::shim_current_nsproxy();
            !nsproxy.is_null() && raw::shim_nsproxy_net(nsproxy) == self.as_raw()
        }
    }

    /// Returns whether the current process has CAP_NET_RAW over this namespace.
    pub fn may_send_raw(&self) -> bool {
        self.is_capable(raw::CAP_NET_RAW)
    }

    /// Returns whether the current process has CAP_NET_ADMIN over this namespace.
    pub fn may_administer(&self) -> bool {
        self.is_capable(raw::CAP_NET_ADMIN)
    }

    fn is_capable(&self, capability: u32) -> bool {
        // SAFETY: The namespace is valid and holds a reference to its user namespace.
        // `ns_capable()` (kernel/capability.c) does not sleep.
        unsafe {
            let owner = raw::shim_net_user_ns(self.as_raw());
            raw::ns_capable(owner, capability as i32)
        }
    }

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

    /// Returns the device that has this local address in the namespace. An IPv6 address of a VRF is
    /// not found: see [`NetDevice::holder_of`].
    pub(super) fn device_of_address(&self, address: &IpAddr) -> Option<ARef<NetDevice>> {
        self.find_address(address, ptr::null_mut())
    }

    /// Returns the device that has this local address. IPv6 searches the VRF of `near`, or outside
    /// all VRFs if that is null. `near` is null or a valid device of the namespace.
    fn find_address(
        &self,
        address: &IpAddr,
        near: *mut raw::net_device,
    ) -> Option<ARef<NetDevice>> {
        let _rcu = rcu::read_lock();
        // SAFETY: The namespace is valid, and the RCU read lock is held, as ipv6_dev_find()
        // (net/ipv6/addrconf.c) requires, and __ip_dev_find() (net/ipv4/devinet.c) of a caller that
        // does not ask for a reference. They return null or a device that is valid under RCU, which
        // is held while `ARef::from` takes a reference. ipv6_dev_find() accepts a null device.
        unsafe {
            let dev = match address {
                IpAddr::V4(a) => raw::__ip_dev_find(self.as_raw(), u32::from_ne_bytes(*a), false),
                IpAddr::V6(a) => raw::ipv6_dev_find(self.as_raw(), &in6(*a), near),
            };
            NonNull::new(dev).map(|dev| ARef::from(NetDevice::from_raw(dev.as_ptr())))
        }
    }
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
    /// Returns the device that has this local address in the namespace and the VRF of this device,
    /// or else in the namespace outside all VRFs. For an IPv6 address of another device of the VRF
    /// it returns this device.
    pub(super) fn holder_of(&self, address: &IpAddr, rcu: &rcu::Guard) -> Option<ARef<NetDevice>> {
        let net = self.net(rcu);
        if let IpAddr::V6(bytes) = address {
            // SAFETY: The namespace and the device are valid. `ipv6_chk_addr()`
            // (net/ipv6/addrconf.c) compares only the VRF of the device with that of the address.
            let is_here =
                unsafe { raw::ipv6_chk_addr(net.as_raw(), &in6(*bytes), self.as_raw(), 0) };
            if is_here != 0 {
                let found = net.find_address(address, self.as_raw());
                let found = found.or_else(|| net.device_of_address(address));
                return Some(found.unwrap_or_else(|| ARef::from(self)));
            }
        }
        net.device_of_address(address)
    }

    /// Takes a reference that keeps the device's namespace from ending. Returns `None` if the
    /// namespace has begun to end.
    pub fn get_net(&self) -> Option<NetRef> {
        let rcu = rcu::read_lock();
        NonNull::new(shim_maybe_get_net(self.net(&rcu))).map(NetRef)
    }
}
