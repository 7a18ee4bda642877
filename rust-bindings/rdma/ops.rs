// SPDX-License-Identifier: GPL-2.0

//! `struct ib_device_ops`: from ib_core's calls to the driver's functions.
//!
//! Operations with an enum in their signature go through C trampolines (trampolines.c), since kCFI
//! compares the types of a call and its target, and an enum is not an integer there.

use super::{
    address::AddressInfo,
    attr::{CqInitAttr, DeviceAttr, PortAttr},
    device::Device,
    memory::{access, KernelMemory},
    object::{errno, Ah, Cq, Driver, Mr, MrKeys, Mw, Pd, Qp, Srq, Ucontext, Xrcd},
    qp::{QpAttr, QpAttrMask, QpInit},
    srq::{SrqAttr, SrqAttrMask, XrcSrq},
    udata::Udata,
    wr::{RecvWrs, SendWrs, Wc},
};
use crate::raw;
use core::{mem::size_of, ptr::NonNull, slice};
use kernel::{
    ffi::{c_int, c_uint},
    prelude::*,
    ThisModule,
};

/// `ERR_PTR()` for operations that return an object.
fn err_ptr<T>(e: Error) -> *mut T {
    e.to_errno() as isize as *mut T
}

/// A result as an integer that counts, or an error number.
fn count(result: Result<usize>) -> c_int {
    match result {
        Ok(n) => c_int::try_from(n).unwrap_or(c_int::MAX),
        Err(e) => e.to_errno(),
    }
}

/// Checks and answers commands that have no driver part.
fn no_udata(udata: Option<&mut Udata<'_>>) -> Result {
    match udata {
        Some(udata) => udata.expect_nothing(),
        None => Ok(()),
    }
}

/// The operations of driver `D`, as C functions.
///
/// ib_core calls them (`struct ib_device_ops`). For all of them: it passes objects of this
/// driver's devices, which exist while it calls, and what else it passes is valid for that time;
/// it serializes creation and destruction of an object with its other operations. "A live object"
/// is one that was created and is not being destroyed.
struct Ops<D: Driver>(core::marker::PhantomData<D>);

impl<D: Driver> Ops<D> {
    /// # Safety
    ///
    /// The last operation that ib_core calls for a device of `D` (device.c, `ib_dealloc_device()`).
    unsafe extern "C" fn dealloc_driver(ib: *mut raw::ib_device) {
        // SAFETY: A device of `D`, which ib_core does not use any more, by the requirements.
        unsafe {
            let device = Device::<D>::from_raw(ib);
            D::dealloc(device.data());
            device.drop_data();
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `attr` is valid for writes, `udata` is null or
    /// that of the command.
    unsafe extern "C" fn query_device(
        ib: *mut raw::ib_device,
        attr: *mut raw::ib_device_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements; nobody else uses `attr` meanwhile.
        errno(unsafe {
            D::query_device(Device::from_raw(ib), &mut DeviceAttr::new(&mut *attr))
                .and_then(|()| no_udata(Udata::from_ptr(udata).as_mut()))
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `attr` is valid for writes.
    unsafe extern "C" fn query_port(
        ib: *mut raw::ib_device,
        port: u32,
        attr: *mut raw::ib_port_attr,
    ) -> c_int {
        // SAFETY: By the requirements; nobody else uses `attr` meanwhile.
        errno(unsafe { D::query_port(Device::from_raw(ib), port, &mut PortAttr::new(&mut *attr)) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `immutable` is valid for writes.
    unsafe extern "C" fn port_immutable(
        ib: *mut raw::ib_device,
        port: u32,
        immutable: *mut raw::ib_port_immutable,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            D::port_immutable(Device::from_raw(ib), port).map(|from| {
                (*immutable).core_cap_flags = raw::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
                (*immutable).pkey_tbl_len = from.pkey_tbl_len as c_int;
                (*immutable).gid_tbl_len = from.gid_tbl_len as c_int;
                (*immutable).max_mad_size = raw::IB_MGMT_MAD_SIZE;
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `pkey` is valid for writes.
    unsafe extern "C" fn query_pkey(
        ib: *mut raw::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe { D::query_pkey(Device::from_raw(ib), port, index).map(|k| *pkey = k) })
    }

    /// # Safety
    ///
    /// None: what ib_core passes is not looked at.
    unsafe extern "C" fn get_link_layer(_ib: *mut raw::ib_device, _port: u32) -> u32 {
        raw::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    /// # Safety
    ///
    /// Called by ib_core, which frees what this returns; it may be null (sysfs.c).
    unsafe extern "C" fn alloc_hw_port_stats(
        _ib: *mut raw::ib_device,
        _port: u32,
    ) -> *mut raw::rdma_hw_stats {
        // SAFETY: The names are static, as many as said, and `StatName` is a transparent wrapper
        // of what rdma_alloc_hw_stats_struct() takes (verbs.c).
        unsafe {
            raw::rdma_alloc_hw_stats_struct(
                D::PORT_STATS.as_ptr().cast(),
                D::PORT_STATS.len() as c_int,
                raw::RDMA_HW_STATS_DEFAULT_LIFESPAN as usize,
            )
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`; `stats` is null or what `alloc_hw_port_stats`
    /// returned, and ib_core holds its lock.
    unsafe extern "C" fn get_hw_stats(
        ib: *mut raw::ib_device,
        stats: *mut raw::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        if stats.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: By the requirements; the struct has as many values as `alloc_hw_port_stats` said,
        // which nobody else writes to under the lock.
        count(unsafe {
            let values = (*stats).value.as_mut_slice(D::PORT_STATS.len());
            D::port_stats(Device::from_raw(ib), port, values).map(|()| D::PORT_STATS.len())
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new context of a device of `D`, `udata` is null or that of the
    /// command.
    unsafe extern "C" fn alloc_ucontext(
        ib: *mut raw::ib_ucontext,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Ucontext::<D>::create(ib, || {
                let mut udata = Udata::from_ptr(udata).ok_or(EINVAL)?;
                D::alloc_ucontext(Device::from_raw((*ib).device), &mut udata)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live context of `D`, which nobody uses afterwards.
    unsafe extern "C" fn dealloc_ucontext(ib: *mut raw::ib_ucontext) {
        // It can't fail.
        // SAFETY: By the requirements.
        let _ = unsafe { Ucontext::<D>::destroy(ib, |_| Ok(())) };
    }

    /// Nothing of a device is mapped into user space (rings are the user's own memory), so a
    /// device can go while programs have it open: ib_core destroys their objects.
    ///
    /// # Safety
    ///
    /// None: what ib_core passes is not looked at.
    unsafe extern "C" fn disassociate_ucontext(_ib: *mut raw::ib_ucontext) {}

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new protection domain of a device of `D`, `udata` is null or
    /// that of the command.
    unsafe extern "C" fn alloc_pd(ib: *mut raw::ib_pd, udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Pd::<D>::create(ib, || {
                D::alloc_pd(
                    Device::from_raw((*ib).device),
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live protection domain of `D`, which nobody uses afterwards.
    unsafe extern "C" fn dealloc_pd(ib: *mut raw::ib_pd, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe { Pd::<D>::destroy(ib, |_| Ok(())) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new XRC domain of a device of `D`, `udata` is null or that of
    /// the command.
    unsafe extern "C" fn alloc_xrcd(ib: *mut raw::ib_xrcd, udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Xrcd::<D>::create(ib, || {
                D::alloc_xrcd(
                    Device::from_raw((*ib).device),
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live XRC domain of `D`, which nobody uses afterwards.
    unsafe extern "C" fn dealloc_xrcd(ib: *mut raw::ib_xrcd, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe { Xrcd::<D>::destroy(ib, |_| Ok(())) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new address handle of a live protection domain of `D`, `init`
    /// is valid, and ib_core holds the reference on its source GID (verbs.c, `rdma_create_ah()` and
    /// `rdma_create_user_ah()`); `udata` is null or that of the command.
    unsafe extern "C" fn create_ah(
        ib: *mut raw::ib_ah,
        init: *mut raw::rdma_ah_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Ah::<D>::create(ib, || {
                let flags = (*init).flags;
                D::create_ah(
                    Device::from_raw((*ib).device),
                    Pd::<D>::from_ptr((*ib).pd).data(),
                    AddressInfo::from_raw(&*(*init).ah_attr)?,
                    flags & raw::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0,
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live address handle of `D`, `attr` is valid for writes.
    unsafe extern "C" fn query_ah(ib: *mut raw::ib_ah, attr: *mut raw::rdma_ah_attr) -> c_int {
        // SAFETY: By the requirements; all zeroes is a valid C struct of integers and pointers.
        unsafe {
            *attr = core::mem::zeroed();
            D::query_ah(Ah::<D>::from_ptr(ib).data()).to_raw(&mut *attr);
        }
        0
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live address handle of `D`, which nobody uses afterwards.
    unsafe extern "C" fn destroy_ah(ib: *mut raw::ib_ah, _flags: u32) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Ah::<D>::destroy(ib, |ah| {
                D::destroy_ah(ah);
                Ok(())
            })
        })
    }

    /// # Safety
    ///
    /// As for `create_cq`; `udata` is that of the command.
    unsafe fn new_cq(
        ib: *mut raw::ib_cq,
        attr: *const raw::ib_cq_init_attr,
        mut udata: Option<Udata<'_>>,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Cq::<D>::create_reporting(ib, |target| {
                let attr = CqInitAttr {
                    cqe: (*attr).cqe,
                    comp_vector: (*attr).comp_vector,
                    flags: (*attr).flags,
                };
                let device = Device::from_raw((*ib).device);
                let (cq, cqe) = D::create_cq(device, &attr, target, udata.as_mut())?;
                (*ib).cqe = cqe as c_int;
                Ok(cq)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new completion queue of a device of `D`, `attr` is valid.
    unsafe extern "C" fn create_cq(
        ib: *mut raw::ib_cq,
        attr: *const raw::ib_cq_init_attr,
        _attrs: *mut raw::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: By the requirements; a kernel consumer has no udata (cq.c).
        unsafe { Self::new_cq(ib, attr, None) }
    }

    /// # Safety
    ///
    /// As for `create_cq`; `attrs` is the bundle of a user's command.
    unsafe extern "C" fn create_user_cq(
        ib: *mut raw::ib_cq,
        attr: *const raw::ib_cq_init_attr,
        attrs: *mut raw::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: By the requirements; the bundle of a user's command holds its udata.
        unsafe { Self::new_cq(ib, attr, Udata::from_ptr(raw::shim_attrs_udata(attrs))) }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live completion queue of `D`, `udata` is that of the command.
    unsafe extern "C" fn resize_user_cq(
        ib: *mut raw::ib_cq,
        cqe: c_uint,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            D::resize_cq(
                Device::from_raw((*ib).device),
                Cq::<D>::from_ptr(ib).driver(),
                cqe,
                Udata::from_ptr(udata).as_mut(),
            )
            .map(|cqe| (*ib).cqe = cqe as c_int)
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live completion queue of `D`, which nobody uses afterwards.
    unsafe extern "C" fn destroy_cq(ib: *mut raw::ib_cq, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Cq::<D>::destroy_reporting(ib, |cq| {
                D::destroy_cq(cq);
                Ok(())
            })
        })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer: `ib` is a live completion queue of `D`, `wc` has room for
    /// `entries` completions (ib_verbs.h, `ib_poll_cq()`).
    unsafe extern "C" fn poll_cq(
        ib: *mut raw::ib_cq,
        entries: c_int,
        wc: *mut raw::ib_wc,
    ) -> c_int {
        let Ok(entries) = usize::try_from(entries) else {
            return EINVAL.to_errno();
        };
        // SAFETY: By the requirements; `Wc` is a transparent wrapper.
        count(unsafe {
            D::poll_cq(
                Cq::<D>::from_ptr(ib).driver(),
                slice::from_raw_parts_mut(wc.cast::<Wc>(), entries),
            )
        })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer or ib_core: `ib` is a live completion queue of `D`.
    unsafe extern "C" fn req_notify_cq(ib: *mut raw::ib_cq, flags: u32) -> c_int {
        let solicited_only = flags & raw::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
            == raw::ib_cq_notify_flags_IB_CQ_SOLICITED;
        let report_missed = flags & raw::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
        // SAFETY: By the requirements.
        let cq = unsafe { Cq::<D>::from_ptr(ib).driver() };
        count(D::req_notify_cq(cq, solicited_only, report_missed).map(usize::from))
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new queue pair of a device of `D`, its protection domain null
    /// or live; `init` is valid, and the objects that it names live; `udata` is null or that of
    /// the command.
    unsafe extern "C" fn create_qp(
        ib: *mut raw::ib_qp,
        init: *mut raw::ib_qp_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Qp::<D>::create_reporting(ib, |target| {
                let mut from = QpInit::<D>::from_raw(&*init)?;
                let pd = NonNull::new((*ib).pd);
                let (qp, number) = D::create_qp(
                    Device::from_raw((*ib).device),
                    pd.map(|pd| Pd::<D>::from_ptr(pd.as_ptr()).data()),
                    &mut from,
                    target,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                let cap = from.cap;
                cap.to_raw(&mut (*init).cap);
                (*ib).qp_num = number;
                Ok(qp)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`; `attr` is valid, and ib_core holds the
    /// references on its source GIDs (verbs.c, `_ib_modify_qp()`); `udata` is null or that of the
    /// command.
    unsafe extern "C" fn modify_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        mask: c_int,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        let mask = QpAttrMask(mask as u32);
        // SAFETY: By the requirements.
        errno(unsafe {
            no_udata(Udata::from_ptr(udata).as_mut())
                .and_then(|()| QpAttr::from_raw(&*attr, mask))
                .and_then(|attr| {
                    D::modify_qp(
                        Device::from_raw((*ib).device),
                        Qp::<D>::from_ptr(ib).driver(),
                        &attr,
                        mask,
                    )
                })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`; `attr` and `init` are valid for writes.
    unsafe extern "C" fn query_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        _mask: c_int,
        init: *mut raw::ib_qp_init_attr,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            D::query_qp(Qp::<D>::from_ptr(ib).driver()).map(|(from, cap, signal_all)| {
                from.to_raw(&mut *attr);
                cap.to_raw(&mut (*attr).cap);
                (*init).event_handler = (*ib).event_handler;
                (*init).qp_context = (*ib).qp_context;
                (*init).send_cq = (*ib).send_cq;
                (*init).recv_cq = (*ib).recv_cq;
                (*init).srq = (*ib).srq;
                (*init).qp_type = (*ib).qp_type;
                (*init).port_num = 1;
                (*init).sq_sig_type = if signal_all {
                    raw::ib_sig_type_IB_SIGNAL_ALL_WR
                } else {
                    raw::ib_sig_type_IB_SIGNAL_REQ_WR
                };
                cap.to_raw(&mut (*init).cap);
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`, which nobody uses afterwards if this
    /// succeeds.
    unsafe extern "C" fn destroy_qp(ib: *mut raw::ib_qp, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe { Qp::<D>::destroy_reporting(ib, D::destroy_qp) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`, `gid` is valid.
    unsafe extern "C" fn attach_mcast(
        ib: *mut raw::ib_qp,
        gid: *mut raw::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the requirements; a GID is sixteen bytes (verbs.c, ib_attach_mcast()).
        errno(unsafe {
            D::attach_mcast(
                Device::from_raw((*ib).device),
                Qp::<D>::from_ptr(ib).driver(),
                &(*gid).raw,
            )
        })
    }

    /// # Safety
    ///
    /// As for `attach_mcast`.
    unsafe extern "C" fn detach_mcast(
        ib: *mut raw::ib_qp,
        gid: *mut raw::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: As in `attach_mcast`.
        errno(unsafe {
            D::detach_mcast(
                Device::from_raw((*ib).device),
                Qp::<D>::from_ptr(ib).driver(),
                &(*gid).raw,
            )
        })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer or uverbs: `ib` is a live queue pair of `D`; `wr` is null or a
    /// list that stays as it is until this returns, `bad` is valid for writes (ib_verbs.h,
    /// `ib_post_send()`; uverbs_cmd.c).
    unsafe extern "C" fn post_send(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_send_wr,
        bad: *mut *const raw::ib_send_wr,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            let mut wrs = SendWrs::<D>::new(wr);
            D::post_send(Qp::<D>::from_ptr(ib).driver(), &mut wrs).inspect_err(|_| *bad = wrs.bad())
        })
    }

    /// Posts a list of receives with `post`.
    ///
    /// # Safety
    ///
    /// `wr` is null or a list that stays as it is until this returns, `bad` is valid for writes.
    unsafe fn post_list(
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
        post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            let mut wrs = RecvWrs::new(wr);
            post(&mut wrs).inspect_err(|_| *bad = wrs.bad())
        })
    }

    /// # Safety
    ///
    /// As for `post_send` (ib_verbs.h, `ib_post_recv()`).
    unsafe extern "C" fn post_recv(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the requirements.
        unsafe {
            let qp = Qp::<D>::from_ptr(ib).driver();
            Self::post_list(wr, bad, |wrs| D::post_recv(qp, wrs))
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new shared receive queue of a live protection domain of `D`,
    /// `init` is valid; for XRC, ib_core holds references on domain and completion queue (verbs.c,
    /// `ib_create_srq_user()`); `udata` is null or that of the command.
    unsafe extern "C" fn create_srq(
        ib: *mut raw::ib_srq,
        init: *mut raw::ib_srq_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Srq::<D>::create_reporting(ib, |target| {
                let xrc = match (*init).srq_type {
                    raw::ib_srq_type_IB_SRQT_BASIC => None,
                    raw::ib_srq_type_IB_SRQT_XRC => Some(XrcSrq {
                        xrcd: Xrcd::<D>::from_ptr((*ib).ext.__bindgen_anon_1.xrc.xrcd).data(),
                        cq: Cq::<D>::from_ptr((*ib).ext.cq).driver(),
                    }),
                    _ => return Err(crate::errno::not_supported()),
                };
                let mut attr = SrqAttr::from_raw(&(*init).attr);
                let (srq, number) = D::create_srq(
                    Device::from_raw((*ib).device),
                    Pd::<D>::from_ptr((*ib).pd).data(),
                    &mut attr,
                    xrc,
                    target,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                attr.to_raw(&mut (*init).attr);
                if (*init).srq_type == raw::ib_srq_type_IB_SRQT_XRC {
                    (*(*ib).ext.__bindgen_anon_1.xrc).srq_num = number;
                }
                Ok(srq)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live shared receive queue of `D`, `attr` is valid, `udata` is
    /// null or that of the command.
    unsafe extern "C" fn modify_srq(
        ib: *mut raw::ib_srq,
        attr: *mut raw::ib_srq_attr,
        mask: u32,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            D::modify_srq(
                Device::from_raw((*ib).device),
                Srq::<D>::from_ptr(ib).driver(),
                &SrqAttr::from_raw(&*attr),
                SrqAttrMask(mask),
                Udata::from_ptr(udata).as_mut(),
            )
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live shared receive queue of `D`, `attr` is valid for writes.
    unsafe extern "C" fn query_srq(ib: *mut raw::ib_srq, attr: *mut raw::ib_srq_attr) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            D::query_srq(Srq::<D>::from_ptr(ib).driver()).map(|from| from.to_raw(&mut *attr))
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live shared receive queue of `D`, which nobody uses afterwards.
    unsafe extern "C" fn destroy_srq(ib: *mut raw::ib_srq, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Srq::<D>::destroy_reporting(ib, |srq| {
                D::destroy_srq(srq);
                Ok(())
            })
        })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer or uverbs: `ib` is a live shared receive queue of `D`; the rest
    /// as for `post_recv` (ib_verbs.h, `ib_post_srq_recv()`).
    unsafe extern "C" fn post_srq_recv(
        ib: *mut raw::ib_srq,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the requirements.
        unsafe {
            let srq = Srq::<D>::from_ptr(ib).driver();
            Self::post_list(wr, bad, |wrs| D::post_srq_recv(srq, wrs))
        }
    }

    /// Boxes a region and fills in what drivers fill in.
    ///
    /// # Safety
    ///
    /// Called by an operation that returns a region of `pd`, a live protection domain of `D`.
    unsafe fn new_mr(pd: *mut raw::ib_pd, result: Result<(D::Mr, MrKeys)>) -> *mut raw::ib_mr {
        let boxed = result.and_then(|(data, keys)| Ok((Mr::<D>::new_boxed(data)?, keys)));
        match boxed {
            Ok((mr, keys)) => {
                let mr = KBox::into_raw(mr).cast::<raw::ib_mr>();
                // SAFETY: The region is ours until we return it; ib_core takes it then, and gives
                // it back in `dereg_mr`. The rest by the requirements.
                unsafe {
                    (*mr).device = (*pd).device;
                    (*mr).pd = pd;
                    (*mr).lkey = keys.lkey;
                    (*mr).rkey = keys.rkey;
                }
                mr
            }
            Err(e) => err_ptr(e),
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`.
    unsafe extern "C" fn get_dma_mr(pd: *mut raw::ib_pd, access: c_int) -> *mut raw::ib_mr {
        // SAFETY: By the requirements.
        unsafe {
            let result = D::get_dma_mr(
                Device::from_raw((*pd).device),
                Pd::<D>::from_ptr(pd).data(),
                KernelMemory::new(),
                access as u32,
            );
            Self::new_mr(pd, result)
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`, `udata` is that of the command.
    unsafe extern "C" fn reg_user_mr(
        pd: *mut raw::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access_flags: c_int,
        dmah: *mut raw::ib_dmah,
        udata: *mut raw::ib_udata,
    ) -> *mut raw::ib_mr {
        if !dmah.is_null() {
            return err_ptr(crate::errno::not_supported());
        }
        // SAFETY: By the requirements.
        unsafe {
            let result = D::reg_user_mr(
                Device::from_raw((*pd).device),
                Pd::<D>::from_ptr(pd).data(),
                start,
                length,
                iova,
                access_flags as u32 & !access::OPTIONAL,
                Udata::from_ptr(udata).as_mut(),
            );
            Self::new_mr(pd, result)
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `mr` is a live region of `D`, which ib_core does not use afterwards if
    /// this succeeds (verbs.c, `ib_dereg_mr_user()`).
    unsafe extern "C" fn dereg_mr(mr: *mut raw::ib_mr, _udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements. On success the region is ours again, as `new_mr` boxed it.
        errno(unsafe {
            Mr::<D>::destroy(mr, D::dereg_mr).map(|()| drop(KBox::from_raw(mr.cast::<Mr<D>>())))
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`.
    unsafe extern "C" fn alloc_mr(
        pd: *mut raw::ib_pd,
        mr_type: u32,
        max_num_sg: u32,
    ) -> *mut raw::ib_mr {
        if mr_type != raw::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return err_ptr(crate::errno::not_supported());
        }
        // SAFETY: By the requirements.
        unsafe {
            let result = D::alloc_mr(
                Device::from_raw((*pd).device),
                Pd::<D>::from_ptr(pd).data(),
                max_num_sg,
            );
            Self::new_mr(pd, result)
        }
    }

    /// # Safety
    ///
    /// Called by ib_sg_to_pages() for the region that `map_mr_sg` gave it.
    unsafe extern "C" fn set_page(mr: *mut raw::ib_mr, address: u64) -> c_int {
        // SAFETY: A live region of `D`, by the requirements.
        errno(unsafe { D::map_mr_page(Mr::<D>::from_ptr(mr).data(), address) })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer: `mr` is a live region of `D` for fast registration; `sg` is a
    /// list of `nents` entries, mapped for its device; `offset` is null or valid (verbs.c,
    /// `ib_map_mr_sg()`).
    unsafe extern "C" fn map_mr_sg(
        mr: *mut raw::ib_mr,
        sg: *mut raw::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        // SAFETY: By the requirements; the "DMA addresses" of the list are addresses in the direct
        // map (ib_dma_map_sg()). ib_sg_to_pages() (verbs.c) calls `set_page` for this region and
        // sets its address and length.
        unsafe {
            let data = Mr::<D>::from_ptr(mr).data();
            D::unmap_mr(data);
            let mapped = raw::ib_sg_to_pages(mr, sg, nents, offset, Some(Self::set_page));
            if mapped < 0 {
                return mapped;
            }
            match D::map_mr_end(data, (*mr).iova, (*mr).length, (*mr).page_size) {
                Ok(()) => mapped,
                Err(e) => e.to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new window of a device of `D`, of which uverbs has set type and
    /// protection domain, which lives (uverbs_cmd.c); `udata` is that of the command.
    unsafe extern "C" fn alloc_mw(ib: *mut raw::ib_mw, udata: *mut raw::ib_udata) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe {
            Mw::<D>::create(ib, || {
                let (data, rkey) = D::alloc_mw(
                    Device::from_raw((*ib).device),
                    Pd::<D>::from_ptr((*ib).pd).data(),
                    (*ib).type_,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                (*ib).rkey = rkey;
                Ok(data)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live window of `D`, which nobody uses afterwards if this
    /// succeeds.
    unsafe extern "C" fn dealloc_mw(ib: *mut raw::ib_mw) -> c_int {
        // SAFETY: By the requirements.
        errno(unsafe { Mw::<D>::destroy(ib, D::dealloc_mw) })
    }

    /// What the trampolines call.
    const ENUM_OPS: raw::rdma_enum_ops = raw::rdma_enum_ops {
        req_notify_cq: Some(Self::req_notify_cq),
        get_link_layer: Some(Self::get_link_layer),
        modify_srq: Some(Self::modify_srq),
        alloc_mr: Some(Self::alloc_mr),
    };

    const ENUM_OPS_REF: &'static raw::rdma_enum_ops = &Self::ENUM_OPS;
}

/// The operations behind the trampolines.
pub(super) fn enum_ops<D: Driver>() -> *const raw::rdma_enum_ops {
    Ops::<D>::ENUM_OPS_REF
}

/// Sets the operations of a device.
///
/// # Safety
///
/// `ib` was allocated as a [`Device<D>`] and is not registered yet.
pub(super) unsafe fn set_ops<D: Driver>(ib: *mut raw::ib_device) {
    // SAFETY: A C struct of integers and nullable function pointers, for which zeroes are valid.
    let mut ops: raw::ib_device_ops = unsafe { core::mem::zeroed() };
    ops.owner = ThisModule::as_ptr(D::module());
    ops.driver_id = D::DRIVER_ID;
    ops.uverbs_abi_ver = D::ABI_VERSION;
    ops.set_uverbs_robust_udata(1);

    ops.dealloc_driver = Some(Ops::<D>::dealloc_driver);
    ops.query_device = Some(Ops::<D>::query_device);
    ops.query_port = Some(Ops::<D>::query_port);
    ops.get_port_immutable = Some(Ops::<D>::port_immutable);
    ops.get_link_layer = Some(raw::rdma_trampoline_get_link_layer);
    ops.query_pkey = Some(Ops::<D>::query_pkey);
    ops.alloc_hw_port_stats = Some(Ops::<D>::alloc_hw_port_stats);
    ops.get_hw_stats = Some(Ops::<D>::get_hw_stats);
    ops.alloc_ucontext = Some(Ops::<D>::alloc_ucontext);
    ops.dealloc_ucontext = Some(Ops::<D>::dealloc_ucontext);
    ops.disassociate_ucontext = Some(Ops::<D>::disassociate_ucontext);
    ops.alloc_pd = Some(Ops::<D>::alloc_pd);
    ops.dealloc_pd = Some(Ops::<D>::dealloc_pd);
    ops.create_ah = Some(Ops::<D>::create_ah);
    ops.create_user_ah = Some(Ops::<D>::create_ah);
    ops.query_ah = Some(Ops::<D>::query_ah);
    ops.destroy_ah = Some(Ops::<D>::destroy_ah);
    ops.create_cq = Some(Ops::<D>::create_cq);
    ops.create_user_cq = Some(Ops::<D>::create_user_cq);
    ops.resize_user_cq = Some(Ops::<D>::resize_user_cq);
    ops.destroy_cq = Some(Ops::<D>::destroy_cq);
    ops.poll_cq = Some(Ops::<D>::poll_cq);
    ops.req_notify_cq = Some(raw::rdma_trampoline_req_notify_cq);
    ops.create_qp = Some(Ops::<D>::create_qp);
    ops.modify_qp = Some(Ops::<D>::modify_qp);
    ops.query_qp = Some(Ops::<D>::query_qp);
    ops.destroy_qp = Some(Ops::<D>::destroy_qp);
    ops.attach_mcast = Some(Ops::<D>::attach_mcast);
    ops.detach_mcast = Some(Ops::<D>::detach_mcast);
    ops.post_send = Some(Ops::<D>::post_send);
    ops.post_recv = Some(Ops::<D>::post_recv);
    ops.alloc_xrcd = Some(Ops::<D>::alloc_xrcd);
    ops.dealloc_xrcd = Some(Ops::<D>::dealloc_xrcd);
    ops.create_srq = Some(Ops::<D>::create_srq);
    ops.modify_srq = Some(raw::rdma_trampoline_modify_srq);
    ops.query_srq = Some(Ops::<D>::query_srq);
    ops.destroy_srq = Some(Ops::<D>::destroy_srq);
    ops.post_srq_recv = Some(Ops::<D>::post_srq_recv);
    ops.get_dma_mr = Some(Ops::<D>::get_dma_mr);
    ops.reg_user_mr = Some(Ops::<D>::reg_user_mr);
    ops.dereg_mr = Some(Ops::<D>::dereg_mr);
    ops.alloc_mr = Some(raw::rdma_trampoline_alloc_mr);
    ops.map_mr_sg = Some(Ops::<D>::map_mr_sg);
    ops.alloc_mw = Some(Ops::<D>::alloc_mw);
    ops.dealloc_mw = Some(Ops::<D>::dealloc_mw);

    ops.size_ib_ucontext = size_of::<Ucontext<D>>();
    ops.size_ib_pd = size_of::<Pd<D>>();
    ops.size_ib_ah = size_of::<Ah<D>>();
    ops.size_ib_cq = size_of::<Cq<D>>();
    ops.size_ib_mw = size_of::<Mw<D>>();
    ops.size_ib_qp = size_of::<Qp<D>>();
    ops.size_ib_srq = size_of::<Srq<D>>();
    ops.size_ib_xrcd = size_of::<Xrcd<D>>();

    // SAFETY: Copies the operations into the device (device.c), which is not registered yet.
    unsafe { raw::ib_set_device_ops(ib, &ops) };
}
