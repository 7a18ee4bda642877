// SPDX-License-Identifier: GPL-2.0

//! Events of network devices.
//!
//! C header: `include/linux/netdevice.h`.

use super::NetDevice;
use crate::raw;
use kernel::{error::to_result, ffi, prelude::*, types::Opaque};

/// An event of a network device (`enum netdev_cmd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevEvent {
    /// The device was registered, or moved into this namespace.
    Register,
    /// The device is being unregistered, or leaves this namespace: drop references to it.
    Unregister,
    /// The device was set up.
    Up,
    /// The device was set down.
    Down,
    /// The device is about to be set down.
    GoingDown,
    /// The device's flags or operational state changed.
    Change,
    /// The device's MTU changed.
    ChangeMtu,
    /// The device's hardware address changed.
    ChangeAddress,
    /// The device was renamed.
    ChangeName,
    /// Any other event, with the kernel's number.
    Other(usize),
}

impl NetdevEvent {
    fn from_raw(event: usize) -> Self {
        // The kernel's numbers are small: a larger value matches none of them.
        match u32::try_from(event) {
            Ok(raw::netdev_cmd_NETDEV_REGISTER) => Self::Register,
            Ok(raw::netdev_cmd_NETDEV_UNREGISTER) => Self::Unregister,
            Ok(raw::netdev_cmd_NETDEV_UP) => Self::Up,
            Ok(raw::netdev_cmd_NETDEV_DOWN) => Self::Down,
            Ok(raw::netdev_cmd_NETDEV_GOING_DOWN) => Self::GoingDown,
            Ok(raw::netdev_cmd_NETDEV_CHANGE) => Self::Change,
            Ok(raw::netdev_cmd_NETDEV_CHANGEMTU) => Self::ChangeMtu,
            Ok(raw::netdev_cmd_NETDEV_CHANGEADDR) => Self::ChangeAddress,
            Ok(raw::netdev_cmd_NETDEV_CHANGENAME) => Self::ChangeName,
            _ => Self::Other(event),
        }
    }
}

/// A handler for events of network devices.
pub trait NetdevEvents: Send + Sync + 'static {
    /// Called with RTNL held, for all devices of all namespaces. May sleep.
    fn event(&self, dev: &NetDevice, event: NetdevEvent);
}

/// Calls a [`NetdevEvents`] handler for each event until it is dropped.
///
/// Registering replays [`Register`](NetdevEvent::Register) and [`Up`](NetdevEvent::Up) of the
/// devices that exist. Dropping takes RTNL, and replays [`Down`](NetdevEvent::Down) and
/// [`Unregister`](NetdevEvent::Unregister).
///
/// # Invariants
///
/// `block` is registered, with `notify::<T>` as its function.
#[pin_data(PinnedDrop)]
pub struct NetdevNotifier<T: NetdevEvents> {
    // The handler must be initialised before `block`, whose registration already delivers events.
    // Fields are initialised in order.
    handler: T,
    #[pin]
    block: Opaque<raw::notifier_block>,
}

// SAFETY: Any task may unregister the block (`unregister_netdevice_notifier()`, net/core/dev.c);
// `handler` is `Send`.
unsafe impl<T: NetdevEvents> Send for NetdevNotifier<T> {}
// SAFETY: Shared references reach `handler` only, which is `Sync`.
unsafe impl<T: NetdevEvents> Sync for NetdevNotifier<T> {}

impl<T: NetdevEvents> NetdevNotifier<T> {
    /// Registers a handler. Takes RTNL.
    pub fn new(handler: T) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            handler,
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
impl<T: NetdevEvents> PinnedDrop for NetdevNotifier<T> {
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
/// `block` is that of a registered [`NetdevNotifier<T>`], and `info` points to a `struct
/// netdev_notifier_info` whose device is valid for the call.
unsafe extern "C" fn notify<T: NetdevEvents>(
    block: *mut raw::notifier_block,
    event: ffi::c_ulong,
    info: *mut ffi::c_void,
) -> ffi::c_int {
    let notifier = block
        .wrapping_byte_sub(core::mem::offset_of!(NetdevNotifier<T>, block))
        .cast::<NetdevNotifier<T>>();
    // SAFETY: The block is inside a pinned `NetdevNotifier<T>`, whose handler is initialised before
    // the block is registered and dropped after it is unregistered. Only the handler is borrowed:
    // the `block` field may still be uninitialised for Rust, and C changes it.
    // `call_netdevice_notifiers_info()` and `call_netdevice_notifier()` (net/core/dev.c) are the
    // only callers of netdevice chains. They hold RTNL and pass a `struct netdev_notifier_info`,
    // whose device has a reference.
    let (handler, dev) = unsafe {
        (
            &(*notifier).handler,
            NetDevice::from_raw(raw::shim_netdev_notifier_dev(info)),
        )
    };
    handler.event(dev, NetdevEvent::from_raw(event));
    raw::NOTIFY_DONE as ffi::c_int
}
