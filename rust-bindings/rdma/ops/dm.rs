// SPDX-License-Identifier: GPL-2.0

//! Memory of the device, and mappings of the device.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        memory::access,
        object::{errno, Dm, Driver, Ucontext},
    },
};
use kernel::{
    alloc::flags::__GFP_ZERO, error::from_err_ptr, ffi::c_int, mm::virt::VmaNew, prelude::*,
};

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn alloc_dm(
        ib: *mut raw::ib_device,
        context: *mut raw::ib_ucontext,
        attr: *mut raw::ib_dm_alloc_attr,
        attrs: *mut raw::uverbs_attr_bundle,
    ) -> *mut raw::ib_dm {
        let new = || {
            let memory = KBox::<Dm<D>>::new_uninit(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            let dm = KBox::into_raw(memory).cast::<raw::ib_dm>();
            // SAFETY: uverbs passes a live device and context, and the attributes of the command,
            // which has the attribute of the handle (uverbs_std_types_dm.c,
            // `UVERBS_METHOD_DM_ALLOC`). This function owns the memory until it is returned. Zeroes
            // are a valid `struct ib_dm`, which uverbs fills in.
            let created = unsafe {
                Dm::<D>::create(dm, || {
                    let (device, context) = (Device::from_raw(ib), Ucontext::<D>::data(context));
                    let handle = raw::shim_attrs_dm_handle(attrs);
                    D::alloc_dm(device, context, handle, (*attr).length, (*attr).alignment)
                })
            };
            if created.is_err() {
                // SAFETY: The pointer comes from `into_raw` above, and the data were not created.
                drop(unsafe { KBox::<core::mem::MaybeUninit<Dm<D>>>::from_raw(dm.cast()) });
            }
            created.map(|()| dm)
        };
        new().unwrap_or_else(|e: Error| e.to_ptr())
    }

    pub(super) unsafe extern "C" fn dealloc_dm(
        dm: *mut raw::ib_dm,
        _attrs: *mut raw::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: `uverbs_free_dm()` (uverbs_std_types_dm.c) passes a live memory without regions,
        // once, and does not use it afterwards. `alloc_dm` boxed it.
        unsafe {
            Dm::<D>::drop_data(dm);
            drop(KBox::<core::mem::MaybeUninit<Dm<D>>>::from_raw(dm.cast()));
        }
        0
    }

    pub(super) unsafe extern "C" fn reg_dm_mr(
        pd: *mut raw::ib_pd,
        dm: *mut raw::ib_dm,
        attr: *mut raw::ib_dm_mr_attr,
        _attrs: *mut raw::uverbs_attr_bundle,
    ) -> *mut raw::ib_mr {
        // SAFETY: uverbs holds the domain and the memory until this returns, and has checked that
        // the range is inside the memory (uverbs_std_types_mr.c, `UVERBS_METHOD_DM_MR_REG`).
        unsafe {
            let mr = Self::new_mr(pd, |device, pd| {
                let flags = (*attr).access_flags & !(access::OPTIONAL | access::ZERO_BASED);
                let (offset, len) = ((*attr).offset, (*attr).length);
                D::reg_dm_mr(device, pd, Dm::<D>::data(dm), offset, len, flags).map(Some)
            });
            // uverbs reports it to programs that import the region (`UVERBS_METHOD_QUERY_MR`).
            if from_err_ptr(mr).is_ok() {
                (*mr).length = (*attr).length;
            }
            mr
        }
    }

    pub(super) unsafe extern "C" fn mmap(
        context: *mut raw::ib_ucontext,
        area: *mut raw::vm_area_struct,
    ) -> c_int {
        // SAFETY: `ib_uverbs_mmap()` (uverbs_main.c) passes a live context, and an area that is
        // being set up by mmap().
        errno(unsafe {
            let page = (*area).vm_pgoff;
            D::mmap(Ucontext::<D>::data(context), page, VmaNew::from_raw(area))
        })
    }
}
