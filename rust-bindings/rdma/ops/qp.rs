// SPDX-License-Identifier: GPL-2.0

//! Queue pairs, and what is posted to them.

use super::{no_udata, Ops};
use crate::{
    raw,
    rdma::{
        device::Device,
        object::{errno, Driver, Pd, Qp},
        qp::{QpAttr, QpAttrMask, QpInit},
        udata::Udata,
        wr::{RecvWrs, SendWrs},
    },
};
use core::ptr::NonNull;
use kernel::{ffi::c_int, prelude::*};

impl<D: Driver> Ops<D> {
    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new queue pair of a device of `D`, its protection domain null
    /// or live; `init` is valid, and the objects that it names live; `udata` is null or that of
    /// the command.
    pub(super) unsafe extern "C" fn create_qp(
        ib: *mut raw::ib_qp,
        init: *mut raw::ib_qp_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the queue pair and set its device, domain and
        // the rest of what `create_qp()` (verbs.c) sets before it calls this; nobody else has it
        // yet. `destroy_qp` ends it. What `init` names is the driver's, and ib_core holds
        // references on it; `pd` is null for an XRC target. `udata` is that of a command that is
        // being executed, whose context is another one's only after it has ended.
        errno(unsafe {
            Qp::<D>::create_reporting(ib, |target| {
                let mut from = QpInit::<D>::from_raw(&*init)?;
                let pd = NonNull::new((*ib).pd);
                let context = Udata::from_ptr(udata);
                let (qp, number) = D::create_qp(
                    Device::from_raw((*ib).device),
                    context.as_ref().and_then(|udata| udata.context::<D>()),
                    pd.map(|pd| Pd::<D>::from_ptr(pd.as_ptr()).data()),
                    &mut from,
                    target,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                let cap = from.cap;
                (*init).cap = raw::ib_qp_cap {
                    max_rdma_ctxs: (*init).cap.max_rdma_ctxs,
                    ..cap.to_raw()
                };
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
    pub(super) unsafe extern "C" fn modify_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        mask: c_int,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        let mask = QpAttrMask(mask as u32);
        // SAFETY: The queue pair is live, and ib_core holds its references on what `attr` names
        // (`_ib_modify_qp()`, verbs.c) until this returns.
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
    pub(super) unsafe extern "C" fn query_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        _mask: c_int,
        init: *mut raw::ib_qp_init_attr,
    ) -> c_int {
        // SAFETY: By the requirements; all zeroes is a valid C struct of integers and pointers.
        errno(unsafe {
            D::query_qp(Qp::<D>::from_ptr(ib).driver()).map(|(from, cap, signal_all)| {
                attr.write(from.to_raw(cap));
                let mut answer: raw::ib_qp_init_attr = core::mem::zeroed();
                answer.event_handler = (*ib).event_handler;
                answer.qp_context = (*ib).qp_context;
                answer.send_cq = (*ib).send_cq;
                answer.recv_cq = (*ib).recv_cq;
                answer.srq = (*ib).srq;
                answer.qp_type = (*ib).qp_type;
                answer.port_num = 1;
                answer.sq_sig_type = if signal_all {
                    raw::ib_sig_type_IB_SIGNAL_ALL_WR
                } else {
                    raw::ib_sig_type_IB_SIGNAL_REQ_WR
                };
                answer.cap = cap.to_raw();
                init.write(answer);
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`, which nobody uses afterwards if this
    /// succeeds.
    pub(super) unsafe extern "C" fn destroy_qp(
        ib: *mut raw::ib_qp,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: The queue pair is live, and ib_core calls this once for it
        // (`ib_destroy_qp_user()`, verbs.c). It frees it if this succeeds, and what reported its
        // events is closed by then.
        errno(unsafe { Qp::<D>::destroy_reporting(ib, D::destroy_qp) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live queue pair of `D`, `gid` is valid.
    pub(super) unsafe extern "C" fn attach_mcast(
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
    pub(super) unsafe extern "C" fn detach_mcast(
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
    pub(super) unsafe extern "C" fn post_send(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_send_wr,
        bad: *mut *const raw::ib_send_wr,
    ) -> c_int {
        // SAFETY: The queue pair is live, and the list stays until this returns, by the
        // requirements. On failure ib_core wants to know the work request (ib_verbs.h,
        // `ib_post_send()`).
        errno(unsafe {
            let mut wrs = SendWrs::<D>::new(ib, wr);
            D::post_send(Qp::<D>::from_ptr(ib).driver(), &mut wrs).inspect_err(|_| *bad = wrs.bad())
        })
    }

    /// Posts a list of receives with `post`.
    ///
    /// # Safety
    ///
    /// `wr` is null or a list that stays as it is until this returns, `bad` is valid for writes.
    pub(super) unsafe fn post_list(
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
        post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
    ) -> c_int {
        // SAFETY: The list stays as it is until `post` returns, and `bad` is valid for writes, as
        // the caller promises.
        errno(unsafe {
            let mut wrs = RecvWrs::new(wr);
            post(&mut wrs).inspect_err(|_| *bad = wrs.bad())
        })
    }

    /// # Safety
    ///
    /// As for `post_send` (ib_verbs.h, `ib_post_recv()`).
    pub(super) unsafe extern "C" fn post_recv(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The queue pair is live; the list and `bad` are what `post_list` asks for
        // (ib_verbs.h, `ib_post_recv()`).
        unsafe {
            let qp = Qp::<D>::from_ptr(ib).driver();
            Self::post_list(wr, bad, |wrs| D::post_recv(qp, wrs))
        }
    }
}
