// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use super::Ops;
use crate::{
    raw,
    rdma::{
        attr::{CqInitAttr, Moderation},
        device::Device,
        object::{errno, Cq, Driver},
        udata::Udata,
        wr::WcBuffer,
    },
};
use core::{ptr::NonNull, slice};
use kernel::{
    ffi::{c_int, c_uint},
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// The attributes of CREATE_CQ that give the ring other memory.
const BUFFERS: [u32; 5] = [
    raw::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUFFER_VA,
    raw::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH,
    raw::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUFFER_FD,
    raw::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET,
    raw::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUF_UMEM,
];

impl<D: Driver> Ops<D> {
    /// Implements `create_cq` and `create_user_cq`.
    pub(super) unsafe extern "C" fn create_cq(
        ib: *mut raw::ib_cq,
        attr: *const raw::ib_cq_init_attr,
        attrs: *mut raw::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: ib_core passes a new queue, with its device (verbs.c, `__ib_create_cq()`; cq.c,
        // `__ib_alloc_cq()`; uverbs_cmd.c, `create_cq()`; uverbs_std_types_cq.c). The bundle of a
        // command contains its udata.
        errno(unsafe {
            Cq::<D>::create_reporting(ib, |target| {
                // A kernel consumer has no attributes.
                let mut udata = NonNull::new(attrs)
                    .and_then(|attrs| Udata::from_ptr(raw::shim_attrs_udata(attrs.as_ptr())));
                if let Some(udata) = &udata {
                    udata.expect_without(&BUFFERS)?;
                }
                let device = Device::from_raw((*ib).device);
                let attr = CqInitAttr::from_raw(&*attr);
                let (cq, cqe) = D::create_cq(device, &attr, target, udata.as_mut())?;
                (*ib).cqe = cqe as c_int;
                Ok(cq)
            })
        })
    }

    pub(super) unsafe extern "C" fn resize_user_cq(
        ib: *mut raw::ib_cq,
        cqe: c_uint,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: The queue is live, and `udata` is that of the command. `ib_uverbs_resize_cq()`
        // (uverbs_cmd.c) shares access to the object, so another call may write `cqe` meanwhile.
        errno(unsafe {
            D::resize_cq(
                Device::from_raw((*ib).device),
                Cq::<D>::data(ib),
                cqe,
                Udata::from_ptr(udata).as_mut(),
            )
            .map(|cqe| Atomic::from_ptr(&raw mut (*ib).cqe).store(cqe as c_int, Relaxed))
        })
    }

    pub(super) unsafe extern "C" fn modify_cq(
        ib: *mut raw::ib_cq,
        count: u16,
        period: u16,
    ) -> c_int {
        // SAFETY: The queue is live (verbs.c, `rdma_set_cq_moderation()`).
        let cq = unsafe { Cq::<D>::data(ib) };
        errno(D::modify_cq(cq, Moderation { count, period }))
    }

    pub(super) unsafe extern "C" fn poll_cq(
        ib: *mut raw::ib_cq,
        entries: c_int,
        wc: *mut raw::ib_wc,
    ) -> c_int {
        let entries = match usize::try_from(entries) {
            // The pointer may be null.
            Ok(0) => return 0,
            Ok(entries) => entries,
            Err(_) => return EINVAL.to_errno(),
        };
        // SAFETY: The caller of `ib_poll_cq()` (ib_verbs.h) guarantees that the queue is live and
        // that there is space for the completions, which need not be initialized.
        let (cq, entries) = unsafe {
            let entries = slice::from_raw_parts_mut(wc.cast(), entries);
            (Cq::<D>::data(ib), entries)
        };
        let mut buffer = WcBuffer::new(entries);
        D::poll_cq(cq, &mut buffer);
        buffer.completions().len() as c_int
    }

    pub(super) unsafe extern "C" fn req_notify_cq(ib: *mut raw::ib_cq, flags: u32) -> c_int {
        let solicited_only = flags & raw::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
            == raw::ib_cq_notify_flags_IB_CQ_SOLICITED;
        let report_missed = flags & raw::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
        // SAFETY: The caller of `ib_req_notify_cq()` (ib_verbs.h) keeps the queue alive during the
        // call.
        let cq = unsafe { Cq::<D>::data(ib) };
        D::req_notify_cq(cq, solicited_only, report_missed).into()
    }
}
