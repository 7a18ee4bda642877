// SPDX-License-Identifier: GPL-2.0

//! Protection domains and XRC domains.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        object::{errno, Driver, Pd, Xrcd},
        udata::{no_udata, Udata},
    },
};
use kernel::ffi::c_int;

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn alloc_pd(
        ib: *mut raw::ib_pd,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the domain and set its device; nothing else uses
        // it yet (verbs.c, `__ib_alloc_pd()`; uverbs_cmd.c, `ib_uverbs_alloc_pd()`). `dealloc_pd`
        // destroys it.
        errno(unsafe {
            Pd::<D>::create(ib, || {
                no_udata(Udata::from_ptr(udata).as_mut())?;
                D::alloc_pd(Device::from_raw((*ib).device), !udata.is_null())
            })
        })
    }

    pub(super) unsafe extern "C" fn dealloc_pd(
        ib: *mut raw::ib_pd,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: The domain is live and not used afterwards, and ib_core calls this once for it
        // (verbs.c, `ib_dealloc_pd_user()`).
        unsafe { Pd::<D>::destroy(ib, |_| ()) };
        0
    }

    pub(super) unsafe extern "C" fn alloc_xrcd(
        ib: *mut raw::ib_xrcd,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the domain and set its device; nothing else uses
        // it yet (verbs.c, `ib_alloc_xrcd_user()`). `dealloc_xrcd` destroys it.
        errno(unsafe {
            Xrcd::<D>::create(ib, || {
                no_udata(Udata::from_ptr(udata).as_mut())?;
                D::alloc_xrcd(Device::from_raw((*ib).device), !udata.is_null())
            })
        })
    }

    pub(super) unsafe extern "C" fn dealloc_xrcd(
        ib: *mut raw::ib_xrcd,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: The domain is live and not used afterwards, and ib_core calls this once for it
        // (verbs.c, `ib_dealloc_xrcd_user()`).
        unsafe { Xrcd::<D>::destroy(ib, |_| ()) };
        0
    }
}
