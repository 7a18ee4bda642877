// SPDX-License-Identifier: GPL-2.0

//! Protection domains, XRC domains and address handles.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        object::{errno, Ah, Driver, Pd, Xrcd},
        roce::AddressInfo,
        udata::{no_udata, Udata},
    },
};
use kernel::ffi::c_int;

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn alloc_pd(
        ib: *mut raw::ib_pd,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core passes a new domain, with its device (verbs.c, `__ib_alloc_pd()`;
        // uverbs_cmd.c, `ib_uverbs_alloc_pd()`).
        errno(unsafe {
            let device = Device::from_raw((*ib).device);
            Pd::<D>::create(ib, || {
                no_udata(Udata::from_ptr(udata).as_mut())?;
                D::alloc_pd(device, !udata.is_null())
            })
        })
    }

    pub(super) unsafe extern "C" fn alloc_xrcd(
        ib: *mut raw::ib_xrcd,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core passes a new domain, with its device (verbs.c, `ib_alloc_xrcd_user()`).
        errno(unsafe {
            let device = Device::from_raw((*ib).device);
            Xrcd::<D>::create(ib, || {
                no_udata(Udata::from_ptr(udata).as_mut())?;
                D::alloc_xrcd(device, !udata.is_null())
            })
        })
    }

    /// Implements `create_ah` and `create_user_ah`.
    pub(super) unsafe extern "C" fn create_ah(
        ib: *mut raw::ib_ah,
        init: *mut raw::rdma_ah_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core passes a new handle, with its device and live domain (verbs.c,
        // `_rdma_create_ah()`). The callers of that function hold the reference to the source GID.
        errno(unsafe {
            Ah::<D>::create(ib, || {
                D::create_ah(
                    Device::from_raw((*ib).device),
                    Pd::<D>::data((*ib).pd),
                    AddressInfo::from_raw(&*(*init).ah_attr)?,
                    (*init).flags & raw::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0,
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        })
    }

    pub(super) unsafe extern "C" fn query_ah(
        ib: *mut raw::ib_ah,
        attr: *mut raw::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: The handle is live, and `attr` is valid for writes (verbs.c, `rdma_query_ah()`).
        unsafe { attr.write(D::query_ah(Ah::<D>::data(ib)).to_raw()) };
        0
    }

    pub(super) unsafe extern "C" fn destroy_ah(ib: *mut raw::ib_ah, _flags: u32) -> c_int {
        // SAFETY: ib_core calls this once for a live handle, and does not use it afterwards
        // (verbs.c, `rdma_destroy_ah_user()`).
        unsafe {
            D::destroy_ah(Ah::<D>::data(ib));
            Ah::<D>::drop_data(ib);
        }
        0
    }
}
