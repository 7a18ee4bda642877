// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use super::Ops;
use crate::{
    compat::SRQ_BUFFERS,
    raw,
    rdma::{
        device::Device,
        object::{errno, Cq, Driver, Pd, Srq, XrcSrq, Xrcd},
        udata::Udata,
    },
};
use kernel::{ffi::c_int, prelude::*};

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn create_srq(
        ib: *mut raw::ib_srq,
        init: *mut raw::ib_srq_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the queue and set its device, domain and, for
        // XRC, the objects in `ext`, all of which are live. Nothing else uses the queue yet, and
        // `init` is valid until this returns (verbs.c, `ib_create_srq_user()`). `destroy_srq`
        // destroys it.
        errno(unsafe {
            Srq::<D>::create_reporting(ib, |target| {
                let mut udata = Udata::from_ptr(udata);
                if let Some(udata) = &udata {
                    udata.expect_without(SRQ_BUFFERS)?;
                }
                let xrc = match (*init).srq_type {
                    raw::ib_srq_type_IB_SRQT_BASIC => None,
                    raw::ib_srq_type_IB_SRQT_XRC => Some(XrcSrq {
                        xrcd: Xrcd::<D>::from_ptr((*ib).ext.__bindgen_anon_1.xrc.xrcd).data(),
                        cq: &**Cq::<D>::from_ptr((*ib).ext.cq).data(),
                    }),
                    _ => return Err(crate::errno::not_supported()),
                };
                // The caller's attributes change only if this succeeds.
                let mut attr = (*init).attr;
                let (srq, number) = D::create_srq(
                    Device::from_raw((*ib).device),
                    Pd::<D>::from_ptr((*ib).pd).data(),
                    &mut attr,
                    xrc,
                    target,
                    udata.as_mut(),
                )?;
                (*init).attr = attr;
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
        // SAFETY: The queue is live, and `attr` is valid until this returns (verbs.c,
        // `ib_modify_srq()`; uverbs_cmd.c). `udata` is that of the command.
        errno(unsafe {
            D::modify_srq(
                Device::from_raw((*ib).device),
                Srq::<D>::from_ptr(ib).data(),
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
        unsafe { attr.write(D::query_srq(Srq::<D>::from_ptr(ib).data())) };
        0
    }

    pub(super) unsafe extern "C" fn destroy_srq(
        ib: *mut raw::ib_srq,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: The queue is live and not used afterwards, and ib_core calls this once for it
        // (verbs.c, `ib_destroy_srq_user()`).
        unsafe { Srq::<D>::destroy(ib, |srq| D::destroy_srq(srq)) };
        0
    }

    pub(super) unsafe extern "C" fn post_srq_recv(
        ib: *mut raw::ib_srq,
        wr: *const raw::ib_recv_wr,
        bad: *mut *const raw::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The caller of `ib_post_srq_recv()` (ib_verbs.h) guarantees that the queue is
        // live, that the list does not change until this returns, and that `bad` is valid for
        // writes.
        unsafe {
            let srq = Srq::<D>::from_ptr(ib).data();
            Self::post_list(wr, bad, |wrs| D::post_srq_recv(srq, wrs))
        }
    }
}
