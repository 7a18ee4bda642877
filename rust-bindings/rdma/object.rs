// SPDX-License-Identifier: GPL-2.0

//! The verbs objects, and the trait that a driver implements.

use super::{
    attr::{CqInitAttr, DeviceAttr, Moderation, PortAttr, SrqAttr, StatName},
    details::Details,
    device::{Device, LinkOps, LinkRequest},
    event::{CqTarget, OpenTarget, QpTarget, SrqTarget, Target},
    import::ContextQuery,
    qp::{QpAttr, QpAttrMask, QpCap, QpInit},
    roce::AddressInfo,
    udata::Udata,
    wr::{DataSegment, RecvWrs, SendWrs, WcBuffer},
};
use crate::{net::NetDevice, raw};
use core::{cell::UnsafeCell, ffi::c_int, mem::MaybeUninit, ops::Deref, ptr::NonNull};
use kernel::{error::VTABLE_DEFAULT_ERROR, mm::virt::VmaNew, prelude::*, str::CStr, sync::Arc};

/// An ib_core object, followed by the driver's data.
///
/// ib_core allocates and zeroes the object, initializes the ib struct, and calls the driver's
/// create operation. It frees the object after the destroy operation has returned.
///
/// # Invariants
///
/// `data` is initialized from the time the driver's create operation succeeds until its destroy
/// operation is called.
#[repr(C)]
pub struct Object<I, T> {
    ib: UnsafeCell<I>,
    data: UnsafeCell<MaybeUninit<T>>,
}

impl<I, T> Object<I, T> {
    /// Returns the driver's data.
    ///
    /// # Safety
    ///
    /// `ib` points to the ib struct of a `Self`. The create operation of the object has succeeded,
    /// and its destroy operation does not begin during `'a`.
    pub(crate) unsafe fn data<'a>(ib: *mut I) -> &'a T {
        // SAFETY: The ib struct is the first field of the `repr(C)` struct `Self`, whose data is
        // initialized (type invariant). Only the create and destroy operations write to the data,
        // and ib_core calls them when nothing else uses the object.
        unsafe { (*(*ib.cast::<Self>()).data.get()).assume_init_ref() }
    }

    /// Returns the driver's data of an object that may be absent: `ib` may be null.
    ///
    /// # Safety
    ///
    /// If `ib` is not null, it meets the requirements of [`Object::data`].
    pub(crate) unsafe fn data_of<'a>(ib: *mut I) -> Option<&'a T> {
        // SAFETY: The caller guarantees the requirements.
        NonNull::new(ib).map(|ib| unsafe { Self::data(ib.as_ptr()) })
    }

    /// Implements a create operation: stores the result of `create` as the driver's data.
    ///
    /// # Safety
    ///
    /// `ib` points to the ib struct of a `Self`. This is the only call for the object, and nothing
    /// else uses the object during the call.
    pub(crate) unsafe fn create(ib: *mut I, create: impl FnOnce() -> Result<T>) -> Result {
        let data = create()?;
        // INVARIANT: The create operation succeeds.
        // SAFETY: The caller guarantees the pointer, and exclusive use, so there is no reference to
        // the data yet.
        unsafe { (*(*ib.cast::<Self>()).data.get()).write(data) };
        Ok(())
    }

    /// Drops the driver's data.
    ///
    /// # Safety
    ///
    /// `ib` meets the requirements of [`Object::data`]. Nothing uses the object from now on.
    pub(crate) unsafe fn drop_data(ib: *mut I) {
        // SAFETY: The caller guarantees initialized data that nothing uses afterwards.
        unsafe { (*(*ib.cast::<Self>()).data.get()).assume_init_drop() };
    }

    /// Implements the destroy operation of an object that is destroyed by dropping its data.
    ///
    /// # Safety
    ///
    /// The caller is ib_core. It calls this once for a live object, and does not use the object
    /// afterwards (verbs.c, `ib_dealloc_pd_user()`, `ib_dealloc_xrcd_user()`,
    /// `ib_destroy_cq_user()`, `ib_destroy_qp_user()`, `ib_destroy_srq_user()`).
    pub(super) unsafe extern "C" fn destroy(ib: *mut I, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: The caller guarantees the requirements.
        unsafe { Self::drop_data(ib) };
        0
    }
}

/// The data of an object that reports events.
pub struct Reporting<I, T> {
    driver: T,
    // Dropped after the driver's data.
    _target: OpenTarget<I>,
}

impl<I, T> Deref for Reporting<I, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.driver
    }
}

impl<I, T> Object<I, Reporting<I, T>> {
    /// Implements a create operation like [`Object::create`]; `create` also gets the target for the
    /// events.
    ///
    /// # Safety
    ///
    /// `ib` meets the requirements of [`Object::create`].
    pub(crate) unsafe fn create_reporting(
        ib: *mut I,
        create: impl FnOnce(Arc<Target<I>>) -> Result<T>,
    ) -> Result {
        // SAFETY: The caller guarantees the requirements of `create`. The target is closed before
        // ib_core frees the object: here if creation fails, otherwise when the data is dropped.
        unsafe {
            Self::create(ib, || {
                let target = OpenTarget::new(NonNull::new(ib).ok_or(EINVAL)?)?;
                let driver = create(target.0.clone())?;
                Ok(Reporting {
                    driver,
                    _target: target,
                })
            })
        }
    }
}

/// A new entry of the GID table.
pub struct NewGid<'a> {
    /// Index in the table.
    pub index: u32,
    /// The GID (IPv4 as an IPv4-mapped address).
    pub gid: [u8; 16],
    /// The interface that has the address.
    pub netdev: &'a NetDevice,
}

/// A change of a region of user memory (`ibv_rereg_mr()`). Fields that are `None` stay unchanged.
pub struct MrChange {
    /// The new memory.
    pub memory: Option<UserMemory>,
    /// The new rights: `IB_ACCESS_*` flags, without those that a device may ignore.
    pub access: Option<u32>,
}

/// A range of memory of the current process, for registration.
pub struct UserMemory {
    /// Address in the process.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address of the first byte in work requests.
    pub iova: u64,
}

/// An advice about ranges of memory regions (`ibv_advise_mr()`).
pub struct MrAdvice<'a> {
    /// The ranges.
    pub ranges: &'a [DataSegment],
    /// `IB_UVERBS_ADVISE_MR_ADVICE_*`.
    pub advice: u32,
    /// The caller waits until the advice was followed, and is told if it can't be.
    pub flush: bool,
}

/// Values of [`MrAdvice::advice`] (`enum ib_uverbs_advise_mr_advice`, ib_user_ioctl_verbs.h).
pub mod advice {
    /// Bring the ranges in for reading.
    pub const PREFETCH: u32 = 0;
    /// Bring the ranges in for writing.
    pub const PREFETCH_WRITE: u32 = 1;
    /// Bring in the pages that the process has in its page tables.
    pub const PREFETCH_NO_FAULT: u32 = 2;
}

/// Additional arguments of CREATE_SRQ for XRC.
pub struct XrcSrq<'a, D: Driver> {
    /// XRC domain.
    pub xrcd: &'a D::Xrcd,
    /// Completion queue of the work requests.
    pub cq: &'a D::Cq,
}

/// An RDMA driver: the types of its objects and its operations.
///
/// ib_core serializes creation and destruction of an object against its other operations. An object
/// without a function for its destruction is destroyed by dropping its data. Functions and drops
/// may sleep. Exceptions are documented at each function.
///
/// A function with a default implementation is optional: programs and consumers get `EOPNOTSUPP`
/// for an operation that the driver lacks. A driver that can create an object of an optional kind
/// (counters, address handles, shared receive queues, regions for fast registration, memory
/// windows) needs the other functions for that kind, too, or the build fails. The type of an object
/// that the driver lacks is `()`.
#[vtable]
pub trait Driver: Sized + Send + Sync + 'static {
    /// The driver's data for a device.
    type Device: Send + Sync;
    /// The driver's data for a process that opened the device.
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
    /// Memory of the device.
    type Dm: Send + Sync;
    /// Counters that `rdma statistic` binds to queue pairs.
    type Counter: Send + Sync;

    /// `enum rdma_driver_id`, or a number that no other driver uses.
    const DRIVER_ID: u32;
    /// ABI version for the user-space provider.
    const ABI_VERSION: u32;
    /// The statistics of a port.
    const PORT_STATS: &'static [StatName] = &[];
    /// Indices of the statistics that counters of queue pairs do not have.
    const PORT_ONLY_STATS: &'static [usize] = &[];
    /// Type of link in `rdma link add`.
    const LINK_TYPE: &'static CStr;
    /// Version of the driver, which `ibstat` and `ibv_devinfo` show instead of a firmware version.
    const VERSION: &'static CStr;
    /// Type of channel adapter.
    const HCA_TYPE: &'static CStr;
    /// Hardware revision.
    const HW_REV: &'static CStr;
    /// Board identifier.
    const BOARD_ID: &'static CStr;

    /// Returns the operations of `rdma link add`, which are a static.
    fn link_ops() -> &'static LinkOps<Self>;

    /// Creates a device on a network device: `rdma link add NAME type TYPE netdev NETDEV`.
    fn newlink(request: &LinkRequest<'_, Self>, name: &CStr, netdev: &NetDevice) -> Result;

    /// Called before `rdma link delete` unregisters the device.
    fn dellink(device: &Device<Self>) -> Result;

    /// Releases external resources of the device. ib_core no longer uses the device.
    fn dealloc(device: &Self::Device);

    /// Returns the attributes of the device.
    fn query_device(device: &Device<Self>) -> DeviceAttr;
    /// Returns the attributes of the port, whose network device is `netdev`. The sizes of the
    /// tables never change.
    fn query_port(device: &Device<Self>, netdev: &NetDevice) -> PortAttr;
    /// Returns an entry of the P_Key table.
    fn query_pkey(_index: u16) -> Result<u16> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Called before ib_core adds an entry to the GID table of the port. If this fails, the entry
    /// is not added. Sleeps; RTNL may be held.
    fn add_gid(device: &Device<Self>, gid: &NewGid<'_>) -> Result;
    /// Called when ib_core has removed the entry with this index. Sleeps.
    fn del_gid(device: &Device<Self>, index: u32);

    /// Fills in the statistics of the port, in the order of [`PORT_STATS`](Self::PORT_STATS).
    /// ib_core adds the values of all current and former [counters](Self::Counter).
    fn port_stats(_device: &Device<Self>, _values: &mut [u64]) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates counters for queue pairs. Returns them with their number, which is not 0 and which
    /// is unique in the device.
    fn create_counter(_device: &Device<Self>) -> Result<(Self::Counter, u32)> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Destroys counters to which no queue pair is bound.
    fn destroy_counter(_device: &Device<Self>, _counter: &Self::Counter) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Binds a queue pair to counters. Returns `EBUSY` if it is bound to others.
    fn bind_counter(_counter: &Self::Counter, _qp: &Self::Qp) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Unbinds a queue pair from its counters, which count nothing of it after this has returned.
    fn unbind_counter(_qp: &Self::Qp) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Returns the value of a statistic by its index in [`PORT_STATS`](Self::PORT_STATS).
    fn counter_value(_counter: &Self::Counter, _stat: usize) -> u64 {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the response to a management datagram for a port, which comes from the network, a
    /// program or ib_core. `None` leaves the datagram to ib_core and its agents. Sleeps, except for
    /// a datagram of the directed-route class.
    fn process_mad(_device: &Device<Self>, _port: u32, _mad: &Mad) -> Option<Mad> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates the driver's data for a process that opens the device.
    fn alloc_ucontext(device: &Device<Self>, udata: &mut Udata<'_>) -> Result<Self::Ucontext>;
    /// Writes the response of [`alloc_ucontext`](Self::alloc_ucontext) for a program that imports
    /// the context. All programs with the context's file share the driver's data.
    fn query_ucontext(_context: &Self::Ucontext, _query: &mut ContextQuery<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates a protection domain of a user program or a kernel consumer.
    fn alloc_pd(device: &Device<Self>, is_user: bool) -> Result<Self::Pd>;

    /// Creates an address handle. Must not sleep if `may_sleep` is false.
    fn create_ah(
        _device: &Device<Self>,
        _pd: &Self::Pd,
        _info: AddressInfo,
        _may_sleep: bool,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result<Self::Ah> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Returns the address that the handle was created with.
    fn query_ah(_ah: &Self::Ah) -> AddressInfo {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Destroys an address handle. Must not sleep.
    fn destroy_ah(_ah: &Self::Ah) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates a completion queue with at least `attr.cqe` entries. Returns it with its actual
    /// number of entries.
    fn create_cq(
        device: &Device<Self>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Cq, u32)>;
    /// Resizes a user's completion queue. Returns its actual number of entries.
    fn resize_cq(
        _device: &Device<Self>,
        _cq: &Self::Cq,
        _cqe: u32,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result<u32> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Changes the moderation of a completion queue.
    fn modify_cq(_cq: &Self::Cq, _moderation: Moderation) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Moves completions to the buffer of a kernel consumer. Any context but hard interrupts.
    fn poll_cq(cq: &Self::Cq, to: &mut WcBuffer<'_>);
    /// Arms a completion queue. Returns true if completions may have been missed and
    /// `report_missed` is set. Any context but hard interrupts.
    fn req_notify_cq(cq: &Self::Cq, solicited_only: bool, report_missed: bool) -> bool;

    /// Creates a queue pair and returns it with its number. Updates `init.cap` to the granted
    /// values. XRC targets have no protection domain and no `udata`. `context` is that of the user
    /// program.
    fn create_qp(
        device: &Device<Self>,
        context: Option<&Self::Ucontext>,
        pd: Option<&Self::Pd>,
        init: &mut QpInit<'_, Self>,
        target: Arc<QpTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Qp, u32)>;
    /// Changes the attributes in `mask`. On failure, none of them changes.
    fn modify_qp(device: &Device<Self>, qp: &Self::Qp, attr: &QpAttr, mask: QpAttrMask) -> Result;
    /// Returns all attributes of a queue pair, its capabilities, and whether it signals every work
    /// request.
    fn query_qp(qp: &Self::Qp) -> (QpAttr, QpCap, bool);
    /// Adds the details of a queue pair that `rdma resource show qp -dd` prints.
    fn describe_qp(_qp: &Self::Qp, _details: &mut Details<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Attaches a datagram queue pair to a multicast group, given by its GID.
    fn attach_mcast(_qp: &Self::Qp, _gid: &[u8; 16]) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Detaches a queue pair from a multicast group.
    fn detach_mcast(_qp: &Self::Qp, _gid: &[u8; 16]) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Posts send work requests. A user's doorbell arrives as an empty list. Any context but hard
    /// interrupts. On failure, the last work request fetched from the list is the bad one.
    fn post_send(qp: &Self::Qp, wrs: &mut SendWrs<'_, Self>) -> Result;
    /// Posts receive work requests. A user's doorbell arrives as an empty list. Any context but
    /// hard interrupts. On failure, the last work request fetched from the list is the bad one.
    fn post_recv(qp: &Self::Qp, wrs: &mut RecvWrs<'_>) -> Result;

    /// Creates an XRC domain of a user program or a kernel consumer.
    fn alloc_xrcd(_device: &Device<Self>, _is_user: bool) -> Result<Self::Xrcd> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates a shared receive queue and returns it with its number, which only a queue for XRC
    /// has. Updates `attr` to the granted values; the limit is ignored.
    fn create_srq(
        _device: &Device<Self>,
        _pd: &Self::Pd,
        _attr: &mut SrqAttr,
        _xrc: Option<XrcSrq<'_, Self>>,
        _target: Arc<SrqTarget>,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Srq, u32)> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Resizes a shared receive queue to `max_wr`, and sets its limit to `limit`. On failure,
    /// neither of them changes.
    fn modify_srq(
        _device: &Device<Self>,
        _srq: &Self::Srq,
        _max_wr: Option<u32>,
        _limit: Option<u32>,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Returns the current attributes.
    fn query_srq(_srq: &Self::Srq) -> SrqAttr {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Posts receive work requests of a kernel consumer. Any context but hard interrupts. On
    /// failure, the last work request fetched from the list is the bad one.
    fn post_srq_recv(_srq: &Self::Srq, _wrs: &mut RecvWrs<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates a region of all kernel memory, for kernel consumers. Like the following operations,
    /// returns the region with its key, which is its L_Key and its R_Key.
    fn get_dma_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        memory: super::memory::KernelMemory,
        access: u32,
    ) -> Result<(Self::Mr, u32)>;
    /// Registers user memory. `context` is that of the user program.
    fn reg_user_mr(
        device: &Device<Self>,
        context: Option<&Self::Ucontext>,
        pd: &Self::Pd,
        memory: &UserMemory,
        access: u32,
    ) -> Result<(Self::Mr, u32)>;
    /// Changes a region of user memory, and moves it to the protection domain `pd`. Returns `None`
    /// if the region keeps its keys. Otherwise returns a region that replaces it, and ib_core then
    /// deregisters the old region, which must not fail. On failure, the region is unchanged.
    fn rereg_user_mr(
        _device: &Device<Self>,
        _context: Option<&Self::Ucontext>,
        _mr: &Self::Mr,
        _pd: &Self::Pd,
        _change: &MrChange,
    ) -> Result<Option<(Self::Mr, u32)>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Follows an advice about ranges of regions with on-demand paging. Returns `EOPNOTSUPP` for an
    /// advice that the driver does not know.
    fn advise_mr(_device: &Device<Self>, _pd: &Self::Pd, _advice: &MrAdvice<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Allocates `len` bytes of the device's memory, which start at a multiple of 2 to the power of
    /// `log_alignment`. The program knows them by `handle`, which is unique in the context.
    fn alloc_dm(
        _device: &Device<Self>,
        _context: &Self::Ucontext,
        _handle: u32,
        _len: u64,
        _log_alignment: u32,
    ) -> Result<Self::Dm> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Registers `len` bytes of the device's memory from `offset` on, by the addresses from 0 on.
    fn reg_dm_mr(
        _device: &Device<Self>,
        _pd: &Self::Pd,
        _dm: &Self::Dm,
        _offset: u64,
        _len: u64,
        _access: u32,
    ) -> Result<(Self::Mr, u32)> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Maps a part of the device that the program names by a number of pages from its beginning.
    fn mmap(_context: &Self::Ucontext, _page: usize, _area: &VmaNew) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Deregisters a region.
    fn dereg_mr(mr: &Self::Mr) -> Result;
    /// Allocates a region for fast registration of up to `pages` pages by a kernel consumer.
    fn alloc_mr(_device: &Device<Self>, _pd: &Self::Pd, _pages: u32) -> Result<(Self::Mr, u32)> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Removes the pages of such a region. None of its keys is valid at this time.
    fn unmap_mr(_mr: &Self::Mr) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Adds a page to such a region, given by its kernel address. Any context.
    fn map_mr_page(_mr: &Self::Mr, _address: u64) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Completes the mapping, which has `length` bytes starting at `address`. Any context.
    fn map_mr_end(_mr: &Self::Mr, _address: u64, _length: u64, _page_size: u32) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Allocates a memory window of type 1 or 2. Returns it with its key.
    fn alloc_mw(_device: &Device<Self>, _pd: &Self::Pd, _mw_type: u32) -> Result<(Self::Mw, u32)> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
    /// Deallocates a memory window, bound or not.
    fn dealloc_mw(_mw: &Self::Mw) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A management datagram (MAD).
pub type Mad = [u8; raw::IB_MGMT_MAD_SIZE as usize];

/// ib_core's objects with the data of driver `D`.
pub(crate) type Ucontext<D> = Object<raw::ib_ucontext, <D as Driver>::Ucontext>;
pub(crate) type Pd<D> = Object<raw::ib_pd, <D as Driver>::Pd>;
pub(crate) type Ah<D> = Object<raw::ib_ah, <D as Driver>::Ah>;
pub(crate) type Cq<D> = Object<raw::ib_cq, Reporting<raw::ib_cq, <D as Driver>::Cq>>;
pub(crate) type Qp<D> = Object<raw::ib_qp, Reporting<raw::ib_qp, <D as Driver>::Qp>>;
pub(crate) type Srq<D> = Object<raw::ib_srq, Reporting<raw::ib_srq, <D as Driver>::Srq>>;
pub(crate) type Xrcd<D> = Object<raw::ib_xrcd, <D as Driver>::Xrcd>;
pub(crate) type Mw<D> = Object<raw::ib_mw, <D as Driver>::Mw>;
pub(crate) type Counter<D> = Object<raw::rdma_counter, <D as Driver>::Counter>;
pub(crate) type Dm<D> = Object<raw::ib_dm, <D as Driver>::Dm>;
pub(crate) type Mr<D> = Object<raw::ib_mr, <D as Driver>::Mr>;

/// Converts a `Result` to the return value of an ib_core operation.
pub(crate) fn errno(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
