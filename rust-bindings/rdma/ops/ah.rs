// SPDX-License-Identifier: GPL-2.0

//! Address handles.

use super::Ops;
use crate::{
    raw,
    rdma::{
        address::AddressInfo,
        device::Device,
        object::{errno, Ah, Driver, Pd},
        udata::Udata,
    },
};
use kernel::ffi::c_int;

impl<D: Driver> Ops<D> {
    /// Implements `create_ah` and `create_user_ah`.
    pub(super) unsafe extern "C" fn create_ah(
        ib: *mut raw::ib_ah,
        init: *mut raw::rdma_ah_init_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the handle and set its device and live domain.
        // Nothing else uses it yet, and `init` is valid until this returns (verbs.c,
        // `_rdma_create_ah()`). The callers of that function hold the reference to the source GID.
        // `destroy_ah` destroys the handle.
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

    pub(super) unsafe extern "C" fn query_ah(
        ib: *mut raw::ib_ah,
        attr: *mut raw::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: The handle is live, and `attr` is valid for writes (verbs.c, `rdma_query_ah()`).
        unsafe { attr.write(D::query_ah(Ah::<D>::from_ptr(ib).data()).to_raw()) };
        0
    }

    pub(super) unsafe extern "C" fn destroy_ah(ib: *mut raw::ib_ah, _flags: u32) -> c_int {
        // SAFETY: The handle is live and not used afterwards, and ib_core calls this once for it
        // (verbs.c, `rdma_destroy_ah_user()`).
        unsafe { Ah::<D>::destroy(ib, D::destroy_ah) };
        0
    }
}
