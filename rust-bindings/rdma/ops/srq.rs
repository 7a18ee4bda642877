// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use super::Ops;
use crate::{
    compat::SRQ_BUFFERS,
    raw,
    rdma::{
        attr::SrqAttr,
        device::Device,
        object::{errno, Cq, Driver, Pd, Srq, XrcSrq, Xrcd},
        udata::Udata,
        wr::RecvWrs,
    },
};
use kernel::{ffi::c_int, prelude::*};

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn create_srq(
        ib: *mut raw::ib_srq,
        init: *mut raw::ib_srq_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core passes a new queue, with its device, its live domain and, for XRC, the
        // live objects in `ext` (verbs.c, `ib_create_srq_user()`).
        errno(unsafe {
            Srq::<D>::create_reporting(ib, |target| {
                let mut udata = Udata::from_ptr(udata);
                if let Some(udata) = &udata {
                    udata.expect_without(SRQ_BUFFERS)?;
                }
                let xrc = match (*init).srq_type {
                    raw::ib_srq_type_IB_SRQT_BASIC => None,
                    raw::ib_srq_type_IB_SRQT_XRC => Some(XrcSrq {
                        xrcd: Xrcd::<D>::data((*ib).ext.__bindgen_anon_1.xrc.xrcd),
                        cq: &**Cq::<D>::data((*ib).ext.cq),
                    }),
                    _ => return Err(crate::errno::not_supported()),
                };
                // The caller's attributes change only if this succeeds.
                let mut attr = SrqAttr::from_raw(&(*init).attr);
                let (srq, number) = D::create_srq(
                    Device::from_raw((*ib).device),
                    Pd::<D>::data((*ib).pd),
                    &mut attr,
                    xrc,
                    target,
                    udata.as_mut(),
                )?;
                (*init).attr = attr.to_raw();
                if (*init).srq_type == raw::ib_srq_type_IB_SRQT_XRC {
                    (*ib).ext.__bindgen_anon_1.xrc.srq_num = number;
                }
                Ok(srq)
            })
        })
    }

    pub(super) unsafe extern "C" fn modify_srq(
        ib: *mut raw::ib_srq,
        attr: *mut raw::ib_srq_attr,
        mask: u32,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        const MAX_WR: u32 = raw::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: u32 = raw::ib_srq_attr_mask_IB_SRQ_LIMIT;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return EINVAL.to_errno();
        }
        // SAFETY: The queue and `attr` are valid (verbs.c, `ib_modify_srq()`; uverbs_cmd.c).
        errno(unsafe {
            D::modify_srq(
                Device::from_raw((*ib).device),
                Srq::<D>::data(ib),
                (mask & MAX_WR != 0).then_some((*attr).max_wr),
                (mask & LIMIT != 0).then_some((*attr).srq_limit),
                Udata::from_ptr(udata).as_mut(),
            )
        })
    }

    pub(super) unsafe extern "C" fn query_srq(
        ib: *mut raw::ib_srq,
        attr: *mut raw::ib_srq_attr,
    ) -> c_int {
        // SAFETY: The queue is live, and `attr` is valid for writes (verbs.c, `ib_query_srq()`).
        unsafe { attr.write(D::query_srq(Srq::<D>::data(ib)).to_raw()) };
        0
    }

    pub(super) unsafe extern "C" fn post_srq_recv(
        ib: *mut raw::ib_srq,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The caller of `ib_post_srq_recv()` (ib_verbs.h) guarantees that the queue is
        // live, that the list does not change until this returns, and that `bad` is valid.
        errno(unsafe {
            let mut wrs = RecvWrs::new(wr);
            D::post_srq_recv(Srq::<D>::data(ib), &mut wrs).inspect_err(|_| *bad = wrs.last)
        })
    }
}
