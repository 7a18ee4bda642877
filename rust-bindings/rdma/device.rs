// SPDX-License-Identifier: GPL-2.0

//! Devices: allocation, registration, and `rdma link add`.

use super::{
    import,
    object::Driver,
    ops::Ops,
    roce::{DMA_DEVICE, PORT},
};
use crate::{
    net::{NetDevice, NetNs},
    raw,
};
use core::{cell::UnsafeCell, marker::PhantomData, mem::MaybeUninit, ptr::NonNull};
use kernel::{
    error::to_result,
    ffi::c_char,
    prelude::*,
    str::CStr,
    sync::{aref::ARef, SetOnce},
};

/// A device, followed by the driver's data. Once it is registered, ib_core owns it.
///
/// # Invariants
///
/// [`register`] allocates it with its data, which the `dealloc_driver` operation drops.
#[repr(C)]
pub struct Device<D: Driver> {
    ib: UnsafeCell<raw::ib_device>,
    /// For the C trampolines and sysfs files (`struct rdma_rust_device` in trampolines.h). Must
    /// follow `ib`.
    driver: *const raw::rdma_rust_driver,
    pub(super) data: UnsafeCell<MaybeUninit<D::Device>>,
}

impl<D: Driver> Device<D> {
    /// Borrows a device from ib_core's pointer.
    ///
    /// # Safety
    ///
    /// `ib` is a device of driver `D` that is valid for `'a`.
    pub(crate) unsafe fn from_raw<'a>(ib: *mut raw::ib_device) -> &'a Self {
        // SAFETY: The ib struct is the first field of the `repr(C)` struct, and the caller
        // guarantees that it is a device of `D`.
        unsafe { &*ib.cast::<Self>() }
    }

    /// Returns the ib_device, for calls into ib_core.
    pub(crate) fn as_raw(&self) -> *mut raw::ib_device {
        self.ib.get()
    }

    /// Returns the driver's data.
    pub fn data(&self) -> &D::Device {
        // SAFETY: The data is initialized by the type invariant, and not written to while shared.
        unsafe { (*self.data.get()).assume_init_ref() }
    }

    /// Returns whether programs in a network namespace may use the device: all may, unless devices
    /// belong to one namespace each (`rdma system set netns exclusive`).
    pub fn is_accessible_from(&self, net: &NetNs) -> bool {
        // SAFETY: The device and the namespace are valid (`rdma_dev_access_netns()`, device.c).
        unsafe { raw::rdma_dev_access_netns(self.as_raw(), net.as_raw()) }
    }

    /// Returns the network device of the port, or `None` after it was removed.
    pub fn netdev(&self) -> Option<ARef<NetDevice>> {
        // SAFETY: The device is valid; ib_device_get_netdev() (device.c) returns null or a device
        // with a reference for the caller.
        unsafe {
            NonNull::new(raw::ib_device_get_netdev(self.as_raw(), PORT))
                .map(|netdev| ARef::from_raw(netdev.cast()))
        }
    }
}

/// A reference to a registered device that keeps it from being unregistered.
///
/// # Invariants
///
/// Owns a reference that `ib_device_get_by_netdev()` (device.c) returned for a device that
/// [`register`] has created.
pub struct DeviceRef<D: Driver>(NonNull<Device<D>>);

impl<D: Driver> core::ops::Deref for DeviceRef<D> {
    type Target = Device<D>;
    fn deref(&self) -> &Device<D> {
        // SAFETY: The reference keeps the device (type invariant).
        unsafe { self.0.as_ref() }
    }
}

impl<D: Driver> DeviceRef<D> {
    /// Unregisters and frees the device from a workqueue, for network device notifiers, which hold
    /// RTNL. Later calls do nothing.
    pub fn unregister_queued(&self) {
        // SAFETY: The reference keeps the device registered until it is dropped, and
        // `dealloc_driver` is always set. `ib_unregister_device_queued()` (device.c) holds the
        // device until its work has run.
        unsafe { raw::ib_unregister_device_queued(self.as_raw()) };
    }
}

impl<D: Driver> Drop for DeviceRef<D> {
    fn drop(&mut self) {
        // SAFETY: Releases the reference of ib_device_get_by_netdev() (device.c), which `self`
        // owns.
        unsafe { raw::ib_device_put(self.as_raw()) };
    }
}

/// Returns the device of driver `D` on a network device.
pub fn by_netdev<D: Driver>(netdev: &NetDevice) -> Option<DeviceRef<D>> {
    // SAFETY: ib_device_get_by_netdev() (device.c) looks up a hash table by the pointer.
    let ib = unsafe { raw::ib_device_get_by_netdev(netdev.as_raw(), D::DRIVER_ID) };
    let ib = NonNull::new(ib)?;
    // SAFETY: The device is valid because of the reference, and its link operations do not change
    // once it is registered.
    if unsafe { (*ib.as_ptr()).link_ops } != D::link_ops().ops.get().cast_const() {
        // A driver in C has the same ID. (RDMA_DRIVER_UNKNOWN is the ID of any driver.)
        // SAFETY: Releases the reference from above.
        unsafe { raw::ib_device_put(ib.as_ptr()) };
        return None;
    }
    // INVARIANT: Owns the reference from above. Only [`register`] gives devices the operations of a
    // `LinkOps<D>`, and creates each as a `Device<D>`.
    Some(DeviceRef(ib.cast()))
}

/// A running call of `rdma link add` for driver `D`: permission to [`register`] a device.
///
/// # Invariants
///
/// A [`LinkRegistration<D>`] exists until the call returns. Dropping that registration waits for
/// the call (`rdma_link_unregister()` in nldev.c), and then unregisters the driver's devices.
pub struct LinkRequest<'a, D: Driver>(PhantomData<&'a LinkOps<D>>);

/// Creates a device with one port, which uses `netdev`, in the network namespace of `netdev`, and
/// registers it under a name. ib_core then owns the device until it is unregistered: by `rdma link
/// delete`, by its network device, or when the [`LinkRegistration`] is dropped, which cannot happen
/// before `_request` ends. `guid` is the node GUID.
///
/// # Errors
///
/// `ENODEV`: the namespace is being removed. `EEXIST`, `ENFILE`: a device has the name. `ENOMEM`.
pub fn register<D: Driver>(
    _request: &LinkRequest<'_, D>,
    name: &CStr,
    netdev: &NetDevice,
    guid: [u8; 8],
    completion_vectors: u32,
    data: D::Device,
) -> Result {
    let net = netdev.get_net().ok_or(ENODEV)?;
    // SAFETY: _ib_alloc_device() (device.c) allocates zeroed memory of that size and initializes
    // the ib_device. The namespace is held during the call; when it ends, ib_core moves its devices
    // to the initial namespace (`rdma_dev_exit_net()`).
    let ib = unsafe { raw::_ib_alloc_device(core::mem::size_of::<Device<D>>(), net.as_raw()) };
    let device = NonNull::new(ib.cast::<Device<D>>()).ok_or(ENOMEM)?;
    // SAFETY: This function is the only owner of the device, which has the size of `Device<D>`.
    // ib_device_set_netdev() (device.c) may be called before registration. If registration fails,
    // the caller must deallocate the device (device.c, ib_register_device()): this calls
    // `dealloc_driver`.
    unsafe {
        (*device.as_ptr()).driver = Ops::<D>::FOR_C;
        // INVARIANT: The data is initialized, and `dealloc_driver` drops it.
        (*(*device.as_ptr()).data.get()).write(data);
        Ops::<D>::install(ib);
        (*ib).node_type = raw::RDMA_NODE_IB_CA as u8;
        (*ib).phys_port_cnt = PORT;
        (*ib).num_comp_vectors = completion_vectors as i32;
        (*ib).local_dma_lkey = 0;
        (*ib).node_guid = u64::from_ne_bytes(guid);
        (*ib).link_ops = D::link_ops().ops.get();
        if D::HAS_QUERY_UCONTEXT {
            (*ib).driver_def = import::definitions();
        }
        (*ib).uverbs_cmd_mask |= (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND)
            | (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV)
            | (1 << raw::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
        for (to, from) in (*ib).node_desc.iter_mut().zip(D::LINK_TYPE.to_bytes()) {
            *to = *from;
        }
        (*ib).name_assign_type = raw::rdma_nl_name_assign_type_RDMA_NAME_ASSIGN_TYPE_USER;
        to_result(raw::ib_device_set_netdev(ib, netdev.as_raw(), PORT))
            .and_then(|()| to_result(raw::ib_register_device(ib, name.as_char_ptr(), DMA_DEVICE)))
            .inspect_err(|_| raw::ib_dealloc_device(ib))
    }
}

/// The operations of `rdma link add` for a driver (`struct rdma_link_ops`). Used as a static.
pub struct LinkOps<D: Driver> {
    ops: UnsafeCell<raw::rdma_link_ops>,
    /// Set by the first [`LinkRegistration`] of these operations.
    registered: SetOnce<()>,
    _driver: PhantomData<D>,
}

// SAFETY: Only ib_core changes it, under its lock (nldev.c).
unsafe impl<D: Driver> Sync for LinkOps<D> {}

impl<D: Driver> LinkOps<D> {
    /// Creates the operations of driver `D`.
    #[expect(clippy::new_without_default, reason = "made once, as a static")]
    pub const fn new() -> Self {
        let mut raw: raw::rdma_link_ops = pin_init::zeroed();
        raw.type_ = kernel::str::as_char_ptr_in_const_context(D::LINK_TYPE).cast();
        raw.newlink = Some(Self::newlink);
        raw.dellink = Some(Self::dellink);
        Self {
            ops: UnsafeCell::new(raw),
            registered: SetOnce::new(),
            _driver: PhantomData,
        }
    }

    /// Implements `rdma link add`. Only ib_core calls it.
    unsafe extern "C" fn newlink(name: *const c_char, ndev: *mut raw::net_device) -> i32 {
        // SAFETY: nldev.c passes a NUL-terminated name and a network device to which it holds a
        // reference.
        let (name, ndev) = unsafe { (CStr::from_char_ptr(name), NetDevice::from_raw(ndev)) };
        // INVARIANT: Only `LinkRegistration` registers operations. `nldev_newlink()` (nldev.c)
        // makes this call with `link_ops_rwsem` held, which `rdma_link_unregister()` takes.
        super::object::errno(D::newlink(&LinkRequest(PhantomData), name, ndev))
    }

    /// Implements the driver's part of `rdma link delete`. Only ib_core calls it.
    unsafe extern "C" fn dellink(device: *mut raw::ib_device) -> i32 {
        // SAFETY: nldev.c passes a device whose link_ops are these, and holds a reference to it.
        super::object::errno(D::dellink(unsafe { Device::from_raw(device) }))
    }
}

/// Registration of [`LinkOps`]. Dropping it unregisters all devices of the driver.
///
/// # Invariants
///
/// The operations are registered, and there is no other registration of them.
pub struct LinkRegistration<D: Driver>(&'static LinkOps<D>);

impl<D: Driver> LinkRegistration<D> {
    /// Registers the operations of driver `D`, after which users can create devices. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: they are or were registered.
    pub fn new() -> Result<Self> {
        let ops = D::link_ops();
        if !ops.registered.populate(()) {
            return Err(EBUSY);
        }
        // SAFETY: The static lives as long as the module, and `drop` unregisters it before the
        // module is unloaded. The check above shows that it is not in a list yet
        // (`rdma_link_register()`, nldev.c). The name of the type belongs to this driver.
        unsafe { raw::rdma_link_register(ops.ops.get()) };
        // INVARIANT: `ops` was registered just above.
        Ok(Self(ops))
    }
}

impl<D: Driver> Drop for LinkRegistration<D> {
    fn drop(&mut self) {
        // SAFETY: The operations are registered by the type invariant. After
        // rdma_link_unregister(), no device can appear; ib_unregister_driver() (device.c) then
        // unregisters the existing ones and waits for them.
        unsafe {
            raw::rdma_link_unregister(self.0.ops.get());
            raw::ib_unregister_driver(D::DRIVER_ID);
        }
    }
}
