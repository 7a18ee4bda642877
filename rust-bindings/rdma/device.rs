// SPDX-License-Identifier: GPL-2.0

//! Devices: allocation, registration, and `rdma link add`.

use super::{object::Driver, ops};
use crate::{net::NetDevice, raw};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
    ptr::NonNull,
};
use kernel::{
    error::to_result,
    prelude::*,
    str::CStr,
    sync::atomic::{Atomic, Full, Release},
};

/// A device with the driver's data behind it; ib_core owns it once it is registered.
///
/// # Invariants
///
/// Allocated by [`UnregisteredDevice::new`], so `data` is initialized; it is dropped by the
/// `dealloc_driver` operation.
#[repr(C)]
pub struct Device<D: Driver> {
    ib: UnsafeCell<raw::ib_device>,
    /// Where the C trampolines find the operations that have an enum in their signature (see
    /// trampolines.h): must follow `ib`.
    enum_ops: *const raw::rdma_enum_ops,
    /// The texts of the files in sysfs (attributes.c): must follow `enum_ops`.
    identity: *const raw::rdma_identity,
    data: UnsafeCell<MaybeUninit<D::Device>>,
}

impl<D: Driver> Device<D> {
    /// # Safety
    ///
    /// `ib` is a device of driver `D`, valid for `'a`.
    pub(crate) unsafe fn from_raw<'a>(ib: *mut raw::ib_device) -> &'a Self {
        // SAFETY: The ib struct is the first field of the `repr(C)` struct.
        unsafe { &*ib.cast::<Self>() }
    }

    /// The ib_device, for calls into ib_core.
    pub(crate) fn as_raw(&self) -> *mut raw::ib_device {
        self.ib.get()
    }

    /// The driver's data.
    pub fn data(&self) -> &D::Device {
        // SAFETY: Initialized by the type invariant, and never written to while shared.
        unsafe { (*self.data.get()).assume_init_ref() }
    }

    /// # Safety
    ///
    /// Called once, when ib_core has stopped using the driver.
    pub(crate) unsafe fn drop_data(&self) {
        // SAFETY: Initialized by the type invariant; nobody uses it any more.
        unsafe { (*self.data.get()).assume_init_drop() };
    }

    /// Speed and width of the port's network device, for QUERY_PORT.
    pub fn fill_speed(&self, port: u32, attr: &mut super::attr::PortAttr<'_>) -> Result {
        let (mut speed, mut width) = (0u16, 0u8);
        // SAFETY: The device has a netdev set for the port, or the call fails (verbs.c).
        to_result(unsafe { raw::ib_get_eth_speed(self.as_raw(), port, &mut speed, &mut width) })?;
        attr.raw_speed(speed, width);
        Ok(())
    }

    /// The network device of a port, as ib_core has it; `None` once it has gone.
    pub fn netdev(&self, port: u32) -> Option<kernel::sync::aref::ARef<NetDevice>> {
        // SAFETY: Returns a held reference or null (device.c).
        let ndev = unsafe { raw::ib_device_get_netdev(self.as_raw(), port) };
        // SAFETY: The reference is ours now.
        NonNull::new(ndev).map(|p| unsafe { kernel::sync::aref::ARef::from_raw(p.cast()) })
    }

    /// Tells consumers that a port became active or went down.
    pub fn port_event(&self, port: u32, active: bool) {
        // SAFETY: ib_dispatch_event() copies the event and works on it in a workqueue (device.c).
        unsafe {
            let mut event: raw::ib_event = core::mem::zeroed();
            event.device = self.as_raw();
            event.element.port_num = ManuallyDrop::new(port);
            event.event = if active {
                raw::ib_event_type_IB_EVENT_PORT_ACTIVE
            } else {
                raw::ib_event_type_IB_EVENT_PORT_ERR
            };
            raw::ib_dispatch_event(&event);
        }
    }
}

/// A reference to a registered device, which can't be unregistered while it is held.
///
/// # Invariants
///
/// Owns a reference that `ib_device_get_by_netdev()` (device.c) returned.
pub struct DeviceRef<D: Driver>(NonNull<Device<D>>);

impl<D: Driver> core::ops::Deref for DeviceRef<D> {
    type Target = Device<D>;
    fn deref(&self) -> &Device<D> {
        // SAFETY: The reference keeps the device.
        unsafe { self.0.as_ref() }
    }
}

impl<D: Driver> DeviceRef<D> {
    /// Unregisters and frees the device from a workqueue: for network device notifiers, which hold
    /// the RTNL lock. Calls after the first do nothing.
    pub fn unregister_queued(&self) {
        // SAFETY: The reference says that the device is registered, and keeps it so until it is
        // dropped; `dealloc_driver` is always set. `ib_unregister_device_queued()` (device.c) holds
        // the device until its work has run.
        unsafe { raw::ib_unregister_device_queued(self.as_raw()) };
    }
}

impl<D: Driver> Drop for DeviceRef<D> {
    fn drop(&mut self) {
        // SAFETY: Balances ib_device_get_by_netdev() (device.c).
        unsafe { raw::ib_device_put(self.as_raw()) };
    }
}

/// The device of driver `D` on a network device.
pub fn by_netdev<D: Driver>(netdev: &NetDevice) -> Option<DeviceRef<D>> {
    // SAFETY: Looks up a hash table by the pointer (device.c). The driver id is that of `D`, so
    // the device is one of `D`'s.
    let ib = unsafe { raw::ib_device_get_by_netdev(netdev.as_raw(), D::DRIVER_ID) };
    NonNull::new(ib.cast()).map(DeviceRef)
}

/// A device that ib_core does not know yet.
pub struct UnregisteredDevice<D: Driver>(NonNull<Device<D>>);

impl<D: Driver> UnregisteredDevice<D> {
    /// Allocates a device on port 1 of one network device, in the network namespace of that.
    /// `guid` is its node GUID.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the namespace is being removed; `ENOMEM`.
    pub fn new(
        data: D::Device,
        netdev: &NetDevice,
        guid: [u8; 8],
        description: &CStr,
        completion_vectors: u32,
        link_ops: &'static LinkOps<D>,
    ) -> Result<Self> {
        let net = netdev.hold_net().ok_or(ENODEV)?;
        // SAFETY: Allocates zeroed memory of that size, initialized as an ib_device (device.c). The
        // namespace is held during the call; when it ends, ib_core moves its devices to the
        // initial one (`rdma_dev_exit_net()`).
        let ib = unsafe { raw::_ib_alloc_device(core::mem::size_of::<Device<D>>(), net.as_raw()) };
        let device = NonNull::new(ib.cast::<Device<D>>()).ok_or(ENOMEM)?;
        let enum_ops = ops::enum_ops::<D>();
        // SAFETY: We are the only owner of the device, which is large enough.
        unsafe {
            (*device.as_ptr()).enum_ops = enum_ops;
            (*device.as_ptr()).identity = ops::identity::<D>();
            (*(*device.as_ptr()).data.get()).write(data);
            ops::set_ops::<D>(ib);
        }
        // INVARIANT: Initialized; dropped by `dealloc_driver`.
        let this = Self(device);
        // SAFETY: As above; ib_device_set_netdev() may be called before registration (device.c).
        unsafe {
            (*ib).node_type = raw::RDMA_NODE_IB_CA as u8;
            (*ib).phys_port_cnt = 1;
            (*ib).num_comp_vectors = completion_vectors as i32;
            (*ib).local_dma_lkey = 0;
            (*ib).node_guid = u64::from_ne_bytes(guid);
            (*ib).link_ops = link_ops.ops.get();
            (*ib).uverbs_cmd_mask |= (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND)
                | (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV)
                | (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
            for (to, from) in (*ib).node_desc.iter_mut().zip(description.to_bytes()) {
                *to = *from;
            }
            (*ib).name_assign_type = raw::rdma_nl_name_assign_type_RDMA_NAME_ASSIGN_TYPE_USER;
            to_result(raw::ib_device_set_netdev(ib, netdev.as_raw(), 1))?;
        }
        Ok(this)
    }

    /// Registers the device under a name. From here on it belongs to ib_core, until it is
    /// unregistered by `rdma link delete`, by its network device or by the driver's unloading.
    pub fn register(self, name: &CStr) -> Result {
        // SAFETY: The device was initialized in `new`; without a DMA device, ib_core hands out
        // kernel addresses (device.c).
        to_result(unsafe {
            raw::ib_register_device(
                self.0.as_ptr().cast(),
                name.as_char_ptr(),
                core::ptr::null_mut(),
            )
        })?;
        core::mem::forget(self);
        Ok(())
    }
}

impl<D: Driver> Drop for UnregisteredDevice<D> {
    fn drop(&mut self) {
        // SAFETY: Never registered, or registration failed, after which the caller deallocates
        // (device.c, ib_register_device()). Calls `dealloc_driver`, which drops the data.
        unsafe { raw::ib_dealloc_device(self.0.as_ptr().cast()) };
    }
}

/// `struct rdma_link_ops`: how `rdma link add` reaches a driver. A static of the driver's.
pub struct LinkOps<D: Driver> {
    ops: UnsafeCell<raw::rdma_link_ops>,
    /// Whether there is a [`LinkRegistration`] of these: 0 or 1.
    registered: Atomic<u32>,
    _driver: PhantomData<D>,
}

// SAFETY: Changed by ib_core only, under its lock (nldev.c).
unsafe impl<D: Driver> Sync for LinkOps<D> {}

impl<D: Driver> LinkOps<D> {
    /// The operations of driver `D`.
    #[expect(clippy::new_without_default, reason = "made once, as a static")]
    pub const fn new() -> Self {
        // SAFETY: A C struct of pointers, for which zeroes are valid.
        let mut raw: raw::rdma_link_ops = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.type_ = kernel::str::as_char_ptr_in_const_context(D::LINK_TYPE).cast();
        raw.newlink = Some(Self::newlink);
        raw.dellink = Some(Self::dellink);
        Self {
            ops: UnsafeCell::new(raw),
            registered: Atomic::new(0),
            _driver: PhantomData,
        }
    }

    /// # Safety
    ///
    /// Called by ib_core only.
    unsafe extern "C" fn newlink(
        name: *const kernel::ffi::c_char,
        ndev: *mut raw::net_device,
    ) -> i32 {
        // SAFETY: nldev.c passes a NUL-terminated name and a network device that it holds.
        let (name, ndev) = unsafe { (CStr::from_char_ptr(name), NetDevice::from_raw(ndev)) };
        super::object::errno(D::newlink(name, ndev))
    }

    /// # Safety
    ///
    /// Called by ib_core only.
    unsafe extern "C" fn dellink(device: *mut raw::ib_device) -> i32 {
        // SAFETY: nldev.c passes a device whose link_ops are these, and holds a reference on it.
        super::object::errno(D::dellink(unsafe { Device::from_raw(device) }))
    }
}

/// Registration of [`LinkOps`] and, when it goes, the end of all devices of the driver.
///
/// # Invariants
///
/// The operations are registered, and there is no other registration of them.
pub struct LinkRegistration<D: Driver>(&'static LinkOps<D>);

impl<D: Driver> LinkRegistration<D> {
    /// Registers the operations: from now on users can create devices. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: they are registered.
    pub fn new(ops: &'static LinkOps<D>) -> Result<Self> {
        if ops.registered.xchg(1, Full) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: The static lives as long as the module, and `drop` unregisters it before that
        // ends. It is in no list, by the test above (`rdma_link_register()`, nldev.c). The type's
        // name is the driver's own.
        unsafe { raw::rdma_link_register(ops.ops.get()) };
        // INVARIANT: Registered just above.
        Ok(Self(ops))
    }
}

impl<D: Driver> Drop for LinkRegistration<D> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. After it, no device can appear;
        // ib_unregister_driver() (device.c) then unregisters those that exist and waits for them.
        unsafe {
            raw::rdma_link_unregister(self.0.ops.get());
            raw::ib_unregister_driver(D::DRIVER_ID);
        }
        self.0.registered.store(0, Release);
    }
}
