// SPDX-License-Identifier: GPL-2.0

//! Queue pairs, and the posting of work requests.

use super::Ops;
use crate::{
    raw,
    rdma::{
        details::Details,
        device::Device,
        object::{errno, Driver, Pd, Qp},
        qp::{QpAttr, QpAttrMask, QpInit},
        roce,
        udata::{no_udata, Udata},
        wr::{RecvWrs, SendWrs},
    },
};
use kernel::{error::from_result, ffi::c_int};

/// The attributes of CREATE_QP that give its rings other memory.
const BUFFERS: [u32; 3] = [
    raw::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_BUF_UMEM,
    raw::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM,
    raw::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM,
];

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn create_qp(
        ib: *mut raw::ib_qp,
        init: *mut raw::ib_qp_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: `create_qp()` (verbs.c) passes a new queue pair, with its device and its domain,
        // which is null for an XRC target. The objects in `init` are the driver's, and ib_core
        // holds references to them.
        errno(unsafe {
            Qp::<D>::create_reporting(ib, |target| {
                let mut from = QpInit::<D>::from_raw(&*init)?;
                let context = Udata::from_ptr(udata);
                if let Some(udata) = &context {
                    udata.expect_without(&BUFFERS)?;
                }
                let (qp, number) = D::create_qp(
                    Device::from_raw((*ib).device),
                    context.as_ref().and_then(|udata| udata.context::<D>()),
                    Pd::<D>::data_of((*ib).pd),
                    &mut from,
                    target,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                from.cap.write_to(&mut (*init).cap);
                (*ib).qp_num = number;
                Ok(qp)
            })
        })
    }

    pub(super) unsafe extern "C" fn modify_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        mask: c_int,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        let mask = QpAttrMask(mask as u32);
        // SAFETY: The queue pair is live, and `_ib_modify_qp()` (verbs.c) holds the references in
        // `attr` until this returns.
        from_result(|| unsafe {
            no_udata(Udata::from_ptr(udata).as_mut())?;
            let (device, qp) = (Device::from_raw((*ib).device), Qp::<D>::data(ib));
            D::modify_qp(device, qp, &QpAttr::from_raw(&*attr, mask)?, mask).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn query_qp(
        ib: *mut raw::ib_qp,
        attr: *mut raw::ib_qp_attr,
        _mask: c_int,
        init: *mut raw::ib_qp_init_attr,
    ) -> c_int {
        // SAFETY: `ib_query_qp()` (verbs.c) passes a live queue pair, and `attr` and `init` are
        // valid for writes.
        unsafe {
            let (from, cap, signal_all) = D::query_qp(Qp::<D>::data(ib));
            attr.write(from.to_raw(cap));
            let mut init_attr: raw::ib_qp_init_attr = pin_init::zeroed();
            init_attr.event_handler = (*ib).event_handler;
            init_attr.qp_context = (*ib).qp_context;
            init_attr.send_cq = (*ib).send_cq;
            init_attr.recv_cq = (*ib).recv_cq;
            init_attr.srq = (*ib).srq;
            init_attr.qp_type = (*ib).qp_type;
            init_attr.port_num = roce::PORT;
            init_attr.sq_sig_type = if signal_all {
                raw::ib_sig_type_IB_SIGNAL_ALL_WR
            } else {
                raw::ib_sig_type_IB_SIGNAL_REQ_WR
            };
            cap.write_to(&mut init_attr.cap);
            init.write(init_attr);
        }
        0
    }

    pub(super) unsafe extern "C" fn fill_res_qp_entry(
        message: *mut raw::sk_buff,
        ib: *mut raw::ib_qp,
    ) -> c_int {
        // SAFETY: `fill_res_qp_entry_query()` (nldev.c) passes its message, and a queue pair that
        // is live, because nldev holds a reference to its entry of restrack.
        from_result(|| unsafe {
            Details::fill(message, |details| {
                D::describe_qp(Qp::<D>::data(ib), details)
            })
            .map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn attach_mcast(
        ib: *mut raw::ib_qp,
        gid: *mut raw::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: ib_attach_mcast() (verbs.c) passes a live queue pair and a valid GID, all of
        // whose union members are sixteen bytes.
        errno(unsafe { D::attach_mcast(Qp::<D>::data(ib), &(*gid).raw) })
    }

    pub(super) unsafe extern "C" fn detach_mcast(
        ib: *mut raw::ib_qp,
        gid: *mut raw::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: ib_detach_mcast() (verbs.c) passes a live queue pair and a valid GID, all of
        // whose union members are sixteen bytes.
        errno(unsafe { D::detach_mcast(Qp::<D>::data(ib), &(*gid).raw) })
    }

    pub(super) unsafe extern "C" fn post_send(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_send_wr,
        bad: *mut *const raw::ib_send_wr,
    ) -> c_int {
        // SAFETY: The caller of `ib_post_send()` (ib_verbs.h) guarantees that the queue pair is
        // live, that the list does not change until this returns, and that `bad` is valid. Only a
        // failure may change `bad` (net/rds/ib_send.c, `rds_ib_xmit()`).
        errno(unsafe {
            let mut wrs = SendWrs::new(ib, wr);
            D::post_send(Qp::<D>::data(ib), &mut wrs).inspect_err(|_| *bad = wrs.last)
        })
    }

    pub(super) unsafe extern "C" fn post_recv(
        ib: *mut raw::ib_qp,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The caller of `ib_post_recv()` (ib_verbs.h) guarantees that the queue pair is
        // live, that the list does not change until this returns, and that `bad` is valid.
        errno(unsafe {
            let mut wrs = RecvWrs::new(wr);
            D::post_recv(Qp::<D>::data(ib), &mut wrs).inspect_err(|_| *bad = wrs.last)
        })
    }
}
