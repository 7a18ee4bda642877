// SPDX-License-Identifier: GPL-2.0

//! Events of network devices.
//!
//! C header: `include/linux/netdevice.h`.

use super::NetDevice;
use crate::raw;
use kernel::{error::to_result, ffi, prelude::*, types::Opaque};

/// A handler for events of network devices.
pub trait NetdevEvents: 'static {
    /// Called when a device is being unregistered or leaves its namespace (`NETDEV_UNREGISTER`):
    /// references to it must be dropped. RTNL is held. May sleep.
    fn unregister(dev: &NetDevice);

    /// Called after a device was added to or removed from a device above it, for example a VRF
    /// (`NETDEV_CHANGEUPPER`). RTNL is held. May sleep.
    fn upper_changed(dev: &NetDevice);
}

/// Calls a [`NetdevEvents`] handler for the events of all devices of all namespaces until it is
/// dropped. Dropping takes RTNL, and calls [`NetdevEvents::unregister`] for the devices that exist.
///
/// # Invariants
///
/// `block` is registered.
#[pin_data(PinnedDrop)]
pub struct NetdevNotifier {
    #[pin]
    block: Opaque<raw::notifier_block>,
}

// SAFETY: Any task may unregister the block (`unregister_netdevice_notifier()`, net/core/dev.c).
unsafe impl Send for NetdevNotifier {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for NetdevNotifier {}

impl NetdevNotifier {
    /// Registers a handler. Takes RTNL.
    pub fn new<T: NetdevEvents>() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: If this fails, there is no `Self`; otherwise the block is registered.
            block <- Opaque::try_ffi_init(|slot: *mut raw::notifier_block| {
                // SAFETY: `slot` is valid for writes of a notifier block, and pinned. `drop`
                // unregisters the block before its memory is freed. On failure,
                // `register_netdevice_notifier()` (net/core/dev.c) leaves it out of the chain.
                to_result(unsafe {
                    slot.write(raw::notifier_block {
                        notifier_call: Some(notify::<T>),
                        next: core::ptr::null_mut(),
                        priority: 0,
                    });
                    raw::register_netdevice_notifier(slot)
                })
            }),
        }? Error)
    }
}

#[pinned_drop]
impl PinnedDrop for NetdevNotifier {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The block is registered by the type invariant. `unregister_netdevice_notifier()`
        // (net/core/dev.c) takes RTNL, under which the chain is called, so no call is running
        // afterwards.
        unsafe { raw::unregister_netdevice_notifier(self.block.get()) };
    }
}

/// Passes an event to the handler.
///
/// # Safety
///
/// Only netdevice notifier chains call this, for the block of a [`NetdevNotifier`].
unsafe extern "C" fn notify<T: NetdevEvents>(
    _block: *mut raw::notifier_block,
    event: ffi::c_ulong,
    info: *mut ffi::c_void,
) -> ffi::c_int {
    let call = match u32::try_from(event) {
        Ok(raw::netdev_cmd_NETDEV_UNREGISTER) => T::unregister,
        Ok(raw::netdev_cmd_NETDEV_CHANGEUPPER) => T::upper_changed,
        _ => return raw::NOTIFY_DONE as ffi::c_int,
    };
    // SAFETY: `call_netdevice_notifiers_info()` and `call_netdevice_notifier()` (net/core/dev.c)
    // pass a `struct netdev_notifier_info`, whose device has a reference.
    call(unsafe { NetDevice::from_raw(raw::shim_netdev_notifier_dev(info)) });
    raw::NOTIFY_DONE as ffi::c_int
}
