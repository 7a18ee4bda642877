// SPDX-License-Identifier: GPL-2.0

//! The verbs objects and the trait that a driver implements.

use super::{
    address::AddressInfo,
    attr::{CqInitAttr, DeviceAttr, PortAttr, PortImmutable, StatName},
    device::Device,
    event::{CqTarget, QpTarget, SrqTarget, Target},
    qp::{QpAttr, QpAttrMask, QpCap, QpInit},
    srq::{SrqAttr, SrqAttrMask, XrcSrq},
    udata::Udata,
    wr::{RecvWrs, SendWrs, Wc},
};
use crate::raw;
use core::{cell::UnsafeCell, ffi::c_int, mem::MaybeUninit, ptr::NonNull};
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

    /// The create operation: what `create` makes becomes the driver's data.
    ///
    /// # Safety
    ///
    /// As for [`Object::from_ptr`]; called once for an object, while nobody else uses it.
    pub(crate) unsafe fn create(ib: *mut I, create: impl FnOnce() -> Result<T>) -> Result {
        // SAFETY: By the caller's promise.
        let object = unsafe { Self::from_ptr(ib) };
        let data = create()?;
        // INVARIANT: The create operation succeeds.
        // SAFETY: Nobody else has a reference to the data yet, by the caller's promise.
        unsafe { (*object.data.get()).write(data) };
        Ok(())
    }

    /// The destroy operation: drops the driver's data, unless `destroy` fails.
    ///
    /// # Safety
    ///
    /// As for [`Object::from_ptr`]. The create operation of the object has succeeded; nobody else
    /// uses it, nor does anybody later where this succeeds.
    pub(crate) unsafe fn destroy(ib: *mut I, destroy: impl FnOnce(&T) -> Result) -> Result {
        // SAFETY: By the caller's promise.
        let object = unsafe { Self::from_ptr(ib) };
        // SAFETY: Created and not destroyed yet, by the caller's promise.
        destroy(unsafe { object.data() })?;
        // SAFETY: Initialized by the type invariant; nobody uses it now or later, by the caller's
        // promise.
        unsafe { (*object.data.get()).assume_init_drop() };
        Ok(())
    }

    /// Allocates an object that the driver, not ib_core, owns (`struct ib_mr`), for what `make` makes,
    /// if anything. There is memory for it before `make` is called.
    pub(crate) fn new_boxed<K>(
        make: impl FnOnce() -> Result<Option<(T, K)>>,
    ) -> Result<Option<(KBox<Self>, K)>> {
        let room = KBox::<Self>::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let boxed = |(data, more)| {
            let object = Self {
                // SAFETY: ib structs are C structs of integers and pointers, for which all zeroes
                // is valid.
                ib: UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }),
                // INVARIANT: Initialized.
                data: UnsafeCell::new(MaybeUninit::new(data)),
            };
            (KBox::write(room, object), more)
        };
        Ok(make()?.map(boxed))
    }
}

/// The data of an object that reports events: the target is dropped after the driver's part.
pub struct Reporting<I, T> {
    driver: T,
    target: Arc<Target<I>>,
}

impl<I, T> Object<I, Reporting<I, T>> {
    /// The driver's part of the data.
    ///
    /// # Safety
    ///
    /// As for [`Object::data`].
    #[inline]
    pub(crate) unsafe fn driver(&self) -> &T {
        // SAFETY: By the caller's promise.
        unsafe { &self.data().driver }
    }

    /// As [`Object::create`]; `create` gets the target for the events.
    ///
    /// # Safety
    ///
    /// As for [`Object::create`]; if it succeeds, the object is destroyed by
    /// [`Object::destroy_reporting`].
    pub(crate) unsafe fn create_reporting(
        ib: *mut I,
        create: impl FnOnce(Arc<Target<I>>) -> Result<T>,
    ) -> Result {
        let make = || {
            // SAFETY: The target is closed before ib_core frees the object: below where creation
            // fails, in the destroy operation otherwise.
            let target = unsafe { Target::new(NonNull::new(ib).ok_or(EINVAL)?) }?;
            let driver = create(target.clone()).inspect_err(|_| target.close())?;
            Ok(Reporting { driver, target })
        };
        // SAFETY: By the caller's promise.
        unsafe { Self::create(ib, make) }
    }

    /// As [`Object::destroy`]; no event is reported afterwards.
    ///
    /// # Safety
    ///
    /// As for [`Object::destroy`].
    pub(crate) unsafe fn destroy_reporting(
        ib: *mut I,
        destroy: impl FnOnce(&T) -> Result,
    ) -> Result {
        let end = |data: &Reporting<I, T>| {
            destroy(&data.driver)?;
            data.target.close();
            Ok(())
        };
        // SAFETY: By the caller's promise.
        unsafe { Self::destroy(ib, end) }
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

/// What a region of user memory is to become (`ibv_rereg_mr()`): `None` stays as it is.
pub struct MrChange {
    /// Other memory.
    pub memory: Option<UserMemory>,
    /// Other rights: `IB_ACCESS_*` flags, without those that a device may ignore.
    pub access: Option<u32>,
}

/// Memory of the current process, to be registered.
pub struct UserMemory {
    /// Where it is.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// The address of its first byte in work requests.
    pub iova: u64,
}

/// Names and version of a driver's devices, as `ibstat` and `ibv_devinfo` show them.
pub struct Identity {
    /// Version of the driver, in place of a firmware's.
    pub version: &'static CStr,
    /// Type of channel adapter.
    pub hca_type: &'static CStr,
    /// Hardware revision.
    pub hw_rev: &'static CStr,
    /// Board identifier.
    pub board_id: &'static CStr,
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
    /// Shared receive queue.
    type Srq: Send + Sync;
    /// XRC domain.
    type Xrcd: Send + Sync;
    /// Memory region.
    type Mr: Send + Sync;
    /// Memory window.
    type Mw: Send + Sync;
    /// Counters that `rdma statistic` binds to queue pairs.
    type Counter: Send + Sync;

    /// `enum rdma_driver_id`; any number that no other driver uses.
    const DRIVER_ID: u32;
    /// ABI version for the user-space provider.
    const ABI_VERSION: u32;
    /// The statistics of a port.
    const PORT_STATS: &'static [StatName];
    /// Those of them, by their places, that counters of queue pairs do not have.
    const PORT_ONLY_STATS: &'static [usize];
    /// Type of link in `rdma link add`.
    const LINK_TYPE: &'static CStr;
    /// The names and version of the devices.
    const IDENTITY: Identity;

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

    /// The statistics of a port, in the order of [`PORT_STATS`](Self::PORT_STATS). ib_core adds the
    /// values of all [counters](Self::Counter) that there are or were.
    fn port_stats(device: &Device<Self>, port: u32, values: &mut [u64]) -> Result;

    /// Creates counters for queue pairs; returns them with their number, which is not 0 and which
    /// no other counters of the device have.
    fn create_counter(device: &Device<Self>) -> Result<(Self::Counter, u32)>;
    /// Destroys counters to which no queue pair is bound.
    fn destroy_counter(device: &Device<Self>, counter: &Self::Counter);
    /// Has counters count for a queue pair; `EBUSY` if others do.
    fn bind_counter(counter: &Self::Counter, qp: &Self::Qp) -> Result;
    /// Unbinds a queue pair from its counters. They count nothing of it after this has returned.
    fn unbind_counter(qp: &Self::Qp);
    /// Returns the value of a statistic, by its place in [`PORT_STATS`](Self::PORT_STATS).
    fn counter_value(counter: &Self::Counter, stat: usize) -> u64;

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
    /// granted. XRC targets have no protection domain and no `udata`. `context` is that of the user program.
    fn create_qp(
        device: &Device<Self>,
        context: Option<&Self::Ucontext>,
        pd: Option<&Self::Pd>,
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
    /// Has a datagram queue pair receive what is sent to a multicast GID.
    fn attach_mcast(device: &Device<Self>, qp: &Self::Qp, gid: &[u8; 16]) -> Result;
    /// Ends that.
    fn detach_mcast(device: &Device<Self>, qp: &Self::Qp, gid: &[u8; 16]) -> Result;
    /// Posts send work requests; a user's doorbell comes with an empty list. Any context but hard
    /// interrupts. On failure, the last work request taken from the list is the bad one.
    fn post_send(qp: &Self::Qp, wrs: &mut SendWrs<'_, Self>) -> Result;
    /// Posts receive work requests, likewise.
    fn post_recv(qp: &Self::Qp, wrs: &mut RecvWrs<'_>) -> Result;

    /// Creates an XRC domain.
    fn alloc_xrcd(device: &Device<Self>, udata: Option<&mut Udata<'_>>) -> Result<Self::Xrcd>;

    /// Creates a shared receive queue; returns it with its number, which only one for XRC has. `attr`
    /// is updated to what was granted; its limit means nothing yet.
    fn create_srq(
        device: &Device<Self>,
        pd: &Self::Pd,
        attr: &mut SrqAttr,
        xrc: Option<XrcSrq<'_, Self>>,
        target: Arc<SrqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Srq, u32)>;
    /// Changes the attributes in `mask`; all of them or, on failure, none.
    fn modify_srq(
        device: &Device<Self>,
        srq: &Self::Srq,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        udata: Option<&mut Udata<'_>>,
    ) -> Result;
    /// The attributes as they are now.
    fn query_srq(srq: &Self::Srq) -> Result<SrqAttr>;
    /// Destroys a shared receive queue that no queue pair has.
    fn destroy_srq(srq: &Self::Srq);
    /// Posts receive work requests of a kernel consumer. As [`Driver::post_recv`].
    fn post_srq_recv(srq: &Self::Srq, wrs: &mut RecvWrs<'_>) -> Result;

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
        memory: &UserMemory,
        access: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Mr, MrKeys)>;
    /// Changes a region of user memory, which is to be of the protection domain `pd`. `None` where it is that
    /// region still, with the keys that it has; otherwise a region that takes its place, and the old one is
    /// deregistered next, which must not fail. On failure the region stays as it was.
    fn rereg_user_mr(
        device: &Device<Self>,
        mr: &Self::Mr,
        pd: &Self::Pd,
        change: &MrChange,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Option<(Self::Mr, MrKeys)>>;
    /// Deregisters a region.
    fn dereg_mr(mr: &Self::Mr) -> Result;
    /// A region of a kernel consumer for fast registration of up to `pages` pages.
    fn alloc_mr(device: &Device<Self>, pd: &Self::Pd, pages: u32) -> Result<(Self::Mr, MrKeys)>;
    /// Forgets the pages of such a region. No key of it is valid now.
    fn unmap_mr(mr: &Self::Mr);
    /// Adds a page to it, by its address in the kernel. Any context.
    fn map_mr_page(mr: &Self::Mr, address: u64) -> Result;
    /// All pages were added: `length` bytes from `address` on. Any context.
    fn map_mr_end(mr: &Self::Mr, address: u64, length: u64, page_size: u32) -> Result;

    /// Allocates a memory window of type 1 or 2; returns it with its key.
    fn alloc_mw(
        device: &Device<Self>,
        pd: &Self::Pd,
        mw_type: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Mw, u32)>;
    /// Gives a window back, bound or not.
    fn dealloc_mw(mw: &Self::Mw) -> Result;
}

/// ib_core's objects as this driver has them.
pub(crate) type Ucontext<D> = Object<raw::ib_ucontext, <D as Driver>::Ucontext>;
pub(crate) type Pd<D> = Object<raw::ib_pd, <D as Driver>::Pd>;
pub(crate) type Ah<D> = Object<raw::ib_ah, <D as Driver>::Ah>;
pub(crate) type Cq<D> = Object<raw::ib_cq, Reporting<raw::ib_cq, <D as Driver>::Cq>>;
pub(crate) type Qp<D> = Object<raw::ib_qp, Reporting<raw::ib_qp, <D as Driver>::Qp>>;
pub(crate) type Srq<D> = Object<raw::ib_srq, Reporting<raw::ib_srq, <D as Driver>::Srq>>;
pub(crate) type Xrcd<D> = Object<raw::ib_xrcd, <D as Driver>::Xrcd>;
pub(crate) type Mw<D> = Object<raw::ib_mw, <D as Driver>::Mw>;
pub(crate) type Counter<D> = Object<raw::rdma_counter, <D as Driver>::Counter>;
pub(crate) type Mr<D> = Object<raw::ib_mr, <D as Driver>::Mr>;

/// An ib_core return value from a `Result`.
pub(crate) fn errno(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
