// SPDX-License-Identifier: GPL-2.0

//! Events of network devices.
//!
//! C header: `include/linux/netdevice.h`.

use super::NetDevice;
use crate::raw;
use kernel::{error::to_result, ffi, prelude::*, types::Opaque};

/// What happened to a device (`enum netdev_cmd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevEvent {
    /// It was registered, or came into this namespace.
    Register,
    /// It goes, or leaves this namespace: give up references to it.
    Unregister,
    /// It was set up.
    Up,
    /// It was set down.
    Down,
    /// It is about to be set down.
    GoingDown,
    /// Its flags or its operational state changed.
    Change,
    /// Its MTU changed.
    ChangeMtu,
    /// Its hardware address changed.
    ChangeAddress,
    /// It was renamed.
    ChangeName,
    /// Anything else, as the kernel numbers it.
    Other(usize),
}

impl NetdevEvent {
    fn from_raw(event: usize) -> Self {
        // The kernel's numbers are small: what does not fit is not one of them.
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

/// Who wants to know what happens to devices.
pub trait NetdevEvents: Send + Sync + 'static {
    /// Called with RTNL held, for all devices of all namespaces. May sleep.
    fn event(&self, dev: &NetDevice, event: NetdevEvent);
}

/// Calls a [`NetdevEvents`] for each event, while it exists.
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
    // Not the first field, since fields are initialised in order: events arrive while `block` is
    // registered.
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
            // INVARIANT: Registered where this succeeds; otherwise there is no `Self`.
            block <- Opaque::try_ffi_init(|slot: *mut raw::notifier_block| {
                // SAFETY: `slot` is memory for a notifier block, all of which is written.
                unsafe {
                    slot.write(raw::notifier_block {
                        notifier_call: Some(notify::<T>),
                        next: core::ptr::null_mut(),
                        priority: 0,
                    })
                };
                // SAFETY: The block is initialised. It is pinned, and `drop` unregisters it before
                // its memory goes. If this fails, the chain does not have it
                // (`register_netdevice_notifier()`, net/core/dev.c).
                to_result(unsafe { raw::register_netdevice_notifier(slot) })
            }),
        }? Error)
    }

    /// The handler.
    pub fn handler(&self) -> &T {
        &self.handler
    }
}

#[pinned_drop]
impl<T: NetdevEvents> PinnedDrop for NetdevNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant. `unregister_netdevice_notifier()`
        // (net/core/dev.c) takes RTNL, with which the chain is called: after it there are no calls.
        unsafe { raw::unregister_netdevice_notifier(self.block.get()) };
    }
}

/// Passes an event on.
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
    // SAFETY: The block is in a pinned `NetdevNotifier<T>`, whose handler was initialised before
    // the block was registered, and is dropped after it was unregistered. It is borrowed alone: the
    // block may not be initialised yet for Rust, and changes.
    let handler = unsafe { &(*notifier).handler };
    // SAFETY: Netdevice chains are called by `call_netdevice_notifiers_info()` and
    // `call_netdevice_notifier()` (net/core/dev.c) only, with RTNL held, and pass a `struct
    // netdev_notifier_info`, whose device has a reference.
    let dev = unsafe { NetDevice::from_raw(raw::shim_netdev_notifier_dev(info)) };
    handler.event(dev, NetdevEvent::from_raw(event));
    raw::NOTIFY_DONE as ffi::c_int
}
