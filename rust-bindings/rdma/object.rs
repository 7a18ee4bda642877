// SPDX-License-Identifier: GPL-2.0

//! The verbs objects and the trait that a driver implements.

use super::{
    address::AddressInfo,
    attr::{CqInitAttr, DeviceAttr, PortAttr, PortImmutable},
    device::Device,
    event::{CqTarget, QpTarget},
    qp::{QpAttr, QpAttrMask, QpCap, QpInit},
    udata::Udata,
    wr::{RecvWrs, SendWrs, Wc},
};
use crate::raw;
use core::{cell::UnsafeCell, ffi::c_int, mem::MaybeUninit};
use kernel::{prelude::*, str::CStr, sync::Arc, ThisModule};

/// An ib_core object with the driver's data behind it.
///
/// ib_core allocates and zeroes it, initializes the ib struct, calls the driver's create
/// operation, and frees it after the destroy operation returned.
///
/// # Invariants
///
/// `data` is initialized from the moment at which the driver's create operation succeeded until
/// its destroy operation was called.
#[repr(C)]
pub struct Object<I, T> {
    ib: UnsafeCell<I>,
    data: UnsafeCell<MaybeUninit<T>>,
}

impl<I, T> Object<I, T> {
    /// Turns ib_core's pointer into a reference to the object.
    ///
    /// # Safety
    ///
    /// `ib` points to an ib struct that ib_core allocated with the size of `Self` (or the driver
    /// with [`Object::new_boxed`]), and the object lives for `'a`.
    pub(crate) unsafe fn from_ptr<'a>(ib: *mut I) -> &'a Self {
        // SAFETY: The ib struct is the first field of the `repr(C)` struct `Self`; the rest is
        // the caller's promise. Both fields are in cells, so that others may change them.
        unsafe { &*ib.cast::<Self>() }
    }

    /// The driver's data.
    ///
    /// # Safety
    ///
    /// The create operation of this object has succeeded and its destroy operation has not begun.
    pub(crate) unsafe fn data(&self) -> &T {
        // SAFETY: Initialized, by the caller's promise and the type invariant; only the create and
        // destroy operations write to it, and ib_core calls them when nobody else uses the object.
        unsafe { (*self.data.get()).assume_init_ref() }
    }

    /// Stores the driver's data.
    ///
    /// # Safety
    ///
    /// Called once, from the create operation.
    pub(crate) unsafe fn init(&self, data: T) {
        // INVARIANT: The create operation succeeds.
        // SAFETY: Nobody else has a reference to the data yet, by the caller's promise.
        unsafe { (*self.data.get()).write(data) };
    }

    /// Drops the driver's data.
    ///
    /// # Safety
    ///
    /// Called once, from the destroy operation; the data is not used afterwards.
    pub(crate) unsafe fn deinit(&self) {
        // SAFETY: Initialized by the type invariant; nobody uses it now or later, by the caller's
        // promise.
        unsafe { (*self.data.get()).assume_init_drop() };
    }

    /// Allocates an object that the driver, not ib_core, owns (`struct ib_mr`).
    pub(crate) fn new_boxed(data: T) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                // SAFETY: ib structs are C structs of integers and pointers, for which all zeroes
                // is valid.
                ib: UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }),
                // INVARIANT: Initialized.
                data: UnsafeCell::new(MaybeUninit::new(data)),
            },
            GFP_KERNEL,
        )?)
    }
}

/// The keys of a memory region.
#[derive(Clone, Copy)]
pub struct MrKeys {
    /// For local access.
    pub lkey: u32,
    /// For remote access.
    pub rkey: u32,
}

/// How a QP and its target are kept in ib_core's object: dropped after the driver's data.
pub struct QpData<D: Driver> {
    pub(crate) driver: D::Qp,
    pub(crate) target: Arc<QpTarget>,
}

/// The same for a CQ.
pub struct CqData<D: Driver> {
    pub(crate) driver: D::Cq,
    pub(crate) target: Arc<CqTarget>,
}

/// An RDMA driver: its objects and what they do.
///
/// ib_core serializes creation and destruction of an object against its other operations, except
/// where a function says otherwise. Functions may sleep unless they say otherwise.
pub trait Driver: Sized + Send + Sync + 'static {
    /// What the driver keeps for a device.
    type Device: Send + Sync;
    /// For each process that opened the device.
    type Ucontext: Send + Sync;
    /// Protection domain.
    type Pd: Send + Sync;
    /// Address handle.
    type Ah: Send + Sync;
    /// Completion queue.
    type Cq: Send + Sync;
    /// Queue pair.
    type Qp: Send + Sync;
    /// Memory region.
    type Mr: Send + Sync;

    /// `enum rdma_driver_id`; any number that no other driver uses.
    const DRIVER_ID: u32;
    /// ABI version for the user-space provider.
    const ABI_VERSION: u32;
    /// Type of link in `rdma link add`.
    const LINK_TYPE: &'static CStr;

    /// The module that holds the driver.
    fn module() -> &'static ThisModule;

    /// Creates a device on a network device: `rdma link add NAME type TYPE netdev NETDEV`.
    fn newlink(name: &CStr, netdev: &crate::net::NetDevice) -> Result;

    /// `rdma link delete` of the device is about to unregister it.
    fn dellink(_device: &Device<Self>) -> Result {
        Ok(())
    }

    /// The device is gone from ib_core; what it holds of the outside is released here.
    fn dealloc(_device: &Self::Device) {}

    /// Attributes of the device.
    fn query_device(device: &Device<Self>, attr: &mut DeviceAttr<'_>) -> Result;
    /// Attributes of a port, numbered from 1.
    fn query_port(device: &Device<Self>, port: u32, attr: &mut PortAttr<'_>) -> Result;
    /// Attributes of a port that never change.
    fn port_immutable(device: &Device<Self>, port: u32) -> Result<PortImmutable>;
    /// An entry of the P_Key table.
    fn query_pkey(device: &Device<Self>, port: u32, index: u16) -> Result<u16>;

    /// A process opened the device.
    fn alloc_ucontext(device: &Device<Self>, udata: &mut Udata<'_>) -> Result<Self::Ucontext>;

    /// Creates a protection domain.
    fn alloc_pd(device: &Device<Self>, udata: Option<&mut Udata<'_>>) -> Result<Self::Pd>;

    /// Creates an address handle. Must not sleep where `may_sleep` is false.
    fn create_ah(
        device: &Device<Self>,
        pd: &Self::Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Self::Ah>;
    /// The address that it was created with.
    fn query_ah(ah: &Self::Ah) -> AddressInfo;
    /// Destroys an address handle. May be called where it must not sleep.
    fn destroy_ah(ah: &Self::Ah);

    /// Creates a completion queue with at least `attr.cqe` entries. Returns it with the number of
    /// entries that it has.
    fn create_cq(
        device: &Device<Self>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Cq, u32)>;
    /// Resizes a user's completion queue; returns the number of entries that it has now.
    fn resize_cq(
        device: &Device<Self>,
        cq: &Self::Cq,
        cqe: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<u32>;
    /// Destroys a completion queue.
    fn destroy_cq(cq: &Self::Cq);
    /// Takes completions of a kernel consumer. Any context but hard interrupts.
    fn poll_cq(cq: &Self::Cq, wc: &mut [Wc]) -> Result<usize>;
    /// Arms a completion queue; true where completions may have been missed and `report_missed`
    /// asked for that. Any context but hard interrupts.
    fn req_notify_cq(cq: &Self::Cq, solicited_only: bool, report_missed: bool) -> Result<bool>;

    /// Creates a queue pair; returns it with its number. `init.cap` is updated to what was
    /// granted.
    fn create_qp(
        device: &Device<Self>,
        pd: &Self::Pd,
        init: &mut QpInit<'_, Self>,
        target: Arc<QpTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Qp, u32)>;
    /// Changes the attributes in `mask`; all of them or, on failure, none.
    fn modify_qp(device: &Device<Self>, qp: &Self::Qp, attr: &QpAttr, mask: QpAttrMask) -> Result;
    /// All attributes of a queue pair, what it was created for, and whether it signals every work
    /// request.
    fn query_qp(qp: &Self::Qp) -> Result<(QpAttr, QpCap, bool)>;
    /// Destroys a queue pair.
    fn destroy_qp(qp: &Self::Qp) -> Result;
    /// Posts send work requests; a user's doorbell comes with an empty list. Any context but hard
    /// interrupts. On failure, the last work request taken from the list is the bad one.
    fn post_send(qp: &Self::Qp, wrs: &mut SendWrs<'_, Self>) -> Result;
    /// Posts receive work requests, likewise.
    fn post_recv(qp: &Self::Qp, wrs: &mut RecvWrs<'_>) -> Result;

    /// A region of all of the kernel's memory, for kernel consumers.
    fn get_dma_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        memory: super::memory::KernelMemory,
        access: u32,
    ) -> Result<(Self::Mr, MrKeys)>;
    /// Registers user memory.
    fn reg_user_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        start: u64,
        length: u64,
        iova: u64,
        access: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Mr, MrKeys)>;
    /// Deregisters a region.
    fn dereg_mr(mr: &Self::Mr) -> Result;
}

/// ib_core's objects as this driver has them.
pub(crate) type Ucontext<D> = Object<raw::ib_ucontext, <D as Driver>::Ucontext>;
pub(crate) type Pd<D> = Object<raw::ib_pd, <D as Driver>::Pd>;
pub(crate) type Ah<D> = Object<raw::ib_ah, <D as Driver>::Ah>;
pub(crate) type Cq<D> = Object<raw::ib_cq, CqData<D>>;
pub(crate) type Qp<D> = Object<raw::ib_qp, QpData<D>>;
pub(crate) type Mr<D> = Object<raw::ib_mr, <D as Driver>::Mr>;

/// An ib_core return value from a `Result`.
pub(crate) fn errno(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
