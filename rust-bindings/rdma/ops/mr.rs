// SPDX-License-Identifier: GPL-2.0

//! Memory regions and windows.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        memory::{access, KernelMemory},
        object::{errno, Driver, Mr, MrAdvice, MrChange, Mw, Pd, UserMemory},
        udata::{no_udata, Udata},
        wr,
    },
};
use core::ptr;
use kernel::{
    alloc::flags::__GFP_ZERO,
    error::from_err_ptr,
    ffi::{c_int, c_uint},
    prelude::*,
};

/// `IB_UVERBS_ADVISE_MR_FLAG_FLUSH` (ib_user_ioctl_verbs.h).
const ADVISE_FLUSH: u32 = 1;

impl<D: Driver> Ops<D> {
    /// Allocates an object for the region that `make` creates for the protection domain, and fills
    /// in the fields that drivers set. Returns null if `make` returns `None`.
    ///
    /// # Safety
    ///
    /// The caller is an operation that returns a region of `pd`, a live protection domain of `D`.
    pub(super) unsafe fn new_mr(
        pd: *mut raw::ib_pd,
        make: impl FnOnce(&Device<D>, &D::Pd) -> Result<Option<(D::Mr, u32)>>,
    ) -> *mut raw::ib_mr {
        let new = || {
            let memory = KBox::<Mr<D>>::new_uninit(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?;
            // SAFETY: The caller guarantees that the domain, and thus its device, is live until the
            // operation returns.
            let (device, domain) = unsafe { (Device::from_raw((*pd).device), Pd::<D>::data(pd)) };
            let Some((data, key)) = make(device, domain)? else {
                return Ok(ptr::null_mut());
            };
            let mr = KBox::into_raw(memory).cast::<raw::ib_mr>();
            // SAFETY: This function owns the region until it is returned. Then ib_core owns it,
            // until it passes it to `dereg_mr`. Zeroes are a valid `struct ib_mr`: numbers, and
            // pointers that may be null. The caller guarantees that `pd` is live.
            unsafe {
                (*mr).device = (*pd).device;
                (*mr).pd = pd;
                (*mr).lkey = key;
                (*mr).rkey = key;
                Mr::<D>::create(mr, || Ok(data))?;
            }
            Ok(mr)
        };
        new().unwrap_or_else(|e: Error| e.to_ptr())
    }

    pub(super) unsafe extern "C" fn get_dma_mr(
        pd: *mut raw::ib_pd,
        access: c_int,
    ) -> *mut raw::ib_mr {
        // SAFETY: The domain is live until this returns. Only kernel consumers have such regions:
        // `__ib_alloc_pd()` (verbs.c) is the only caller.
        unsafe {
            Self::new_mr(pd, |device, pd| {
                D::get_dma_mr(device, pd, KernelMemory::new(), access as u32).map(Some)
            })
        }
    }

    pub(super) unsafe extern "C" fn reg_user_mr(
        pd: *mut raw::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access_flags: c_int,
        dmah: *mut raw::ib_dmah,
        udata: *mut raw::ib_udata,
    ) -> *mut raw::ib_mr {
        if !dmah.is_null() {
            return crate::errno::not_supported().to_ptr();
        }
        // SAFETY: uverbs holds the domain until this returns (uverbs_cmd.c, `ib_uverbs_reg_mr()`).
        // `udata` is that of the command.
        unsafe {
            Self::new_mr(pd, |device, pd| {
                let mut udata = Udata::from_ptr(udata);
                no_udata(udata.as_mut())?;
                let context = udata.as_ref().and_then(|udata| udata.context::<D>());
                let memory = UserMemory {
                    start,
                    length,
                    iova,
                };
                let access = access_flags as u32 & !access::OPTIONAL;
                D::reg_user_mr(device, context, pd, &memory, access).map(Some)
            })
        }
    }

    pub(super) unsafe extern "C" fn rereg_user_mr(
        mr: *mut raw::ib_mr,
        flags: c_int,
        start: u64,
        length: u64,
        iova: u64,
        access_flags: c_int,
        pd: *mut raw::ib_pd,
        udata: *mut raw::ib_udata,
    ) -> *mut raw::ib_mr {
        let flags = flags as u32;
        let change = MrChange {
            memory: (flags & raw::ib_mr_rereg_flags_IB_MR_REREG_TRANS != 0).then_some(UserMemory {
                start,
                length,
                iova,
            }),
            access: (flags & raw::ib_mr_rereg_flags_IB_MR_REREG_ACCESS != 0)
                .then_some(access_flags as u32 & !access::OPTIONAL),
        };
        // SAFETY: uverbs holds the region, exclusively, and both domains, which belong to one
        // device, until this returns (uverbs_cmd.c, `ib_uverbs_rereg_mr()`). `udata` is that of the
        // command. This function owns a new region until it is returned.
        unsafe {
            let new = Self::new_mr(pd, |device, pd| {
                let mut udata = Udata::from_ptr(udata);
                no_udata(udata.as_mut())?;
                let context = udata.as_ref().and_then(|udata| udata.context::<D>());
                D::rereg_user_mr(device, context, Mr::<D>::data(mr), pd, &change)
            });
            // ib_core sets these fields if the region stays, but not in a region that replaces it
            // (ib_uverbs_rereg_mr() in uverbs_cmd.c).
            if let (Ok(new), Some(memory)) = (from_err_ptr(new), &change.memory) {
                if let Some(new) = new.as_mut() {
                    (new.length, new.iova) = (memory.length, memory.iova);
                }
            }
            new
        }
    }

    pub(super) unsafe extern "C" fn dereg_mr(
        mr: *mut raw::ib_mr,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: `ib_dereg_mr_user()` (verbs.c) passes a live region. On success ib_core no longer
        // uses it, and `new_mr` boxed it.
        errno(unsafe {
            D::dereg_mr(Mr::<D>::data(mr)).map(|()| {
                Mr::<D>::drop_data(mr);
                drop(KBox::from_raw(mr.cast::<Mr<D>>()));
            })
        })
    }

    pub(super) unsafe extern "C" fn advise_mr(
        pd: *mut raw::ib_pd,
        advice: u32,
        flags: u32,
        list: *const raw::ib_sge,
        count: u32,
    ) -> c_int {
        // SAFETY: The domain is live until this returns (uverbs_std_types_mr.c,
        // `UVERBS_METHOD_ADVISE_MR`; verbs.c, `ib_advise_mr()`), and so is the list of `count`
        // elements, which nothing changes.
        errno(unsafe {
            let advice = MrAdvice {
                ranges: wr::segments(list, count as i32),
                advice,
                flush: flags & ADVISE_FLUSH != 0,
            };
            D::advise_mr(Device::from_raw((*pd).device), Pd::<D>::data(pd), &advice)
        })
    }

    pub(super) unsafe extern "C" fn alloc_mr(
        pd: *mut raw::ib_pd,
        mr_type: u32,
        max_num_sg: u32,
    ) -> *mut raw::ib_mr {
        if mr_type != raw::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return crate::errno::not_supported().to_ptr();
        }
        // SAFETY: The domain is live until this returns (verbs.c, `ib_alloc_mr()`).
        unsafe {
            Self::new_mr(pd, |device, pd| {
                D::alloc_mr(device, pd, max_num_sg).map(Some)
            })
        }
    }

    /// Adds a page to a region. Callback of ib_sg_to_pages() (verbs.c).
    unsafe extern "C" fn set_page(mr: *mut raw::ib_mr, address: u64) -> c_int {
        // SAFETY: `map_mr_sg` passed a live region of `D` to ib_sg_to_pages() (verbs.c).
        errno(unsafe { D::map_mr_page(Mr::<D>::data(mr), address) })
    }

    pub(super) unsafe extern "C" fn map_mr_sg(
        mr: *mut raw::ib_mr,
        sg: *mut raw::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        // SAFETY: The caller of `ib_map_mr_sg()` (verbs.c) guarantees a live region, a mapped list
        // of `nents` entries, whose "DMA addresses" are addresses in the direct map
        // (ib_dma_map_sg()), and an `offset` that is null or valid. ib_sg_to_pages() (verbs.c)
        // calls `set_page` for this region, and sets the region's address and length.
        unsafe {
            let data = Mr::<D>::data(mr);
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

    pub(super) unsafe extern "C" fn alloc_mw(
        ib: *mut raw::ib_mw,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: uverbs passes a new window, with its device, type and live domain (uverbs_cmd.c,
        // `ib_uverbs_alloc_mw()`).
        errno(unsafe {
            Mw::<D>::create(ib, || {
                no_udata(Udata::from_ptr(udata).as_mut())?;
                let (device, pd) = (Device::from_raw((*ib).device), Pd::<D>::data((*ib).pd));
                let (data, rkey) = D::alloc_mw(device, pd, (*ib).type_)?;
                (*ib).rkey = rkey;
                Ok(data)
            })
        })
    }

    pub(super) unsafe extern "C" fn dealloc_mw(ib: *mut raw::ib_mw) -> c_int {
        // SAFETY: The window is live, and ib_core calls this once for it, or again after a failure
        // (uverbs_main.c, `uverbs_dealloc_mw()`).
        errno(unsafe { D::dealloc_mw(Mw::<D>::data(ib)).map(|()| Mw::<D>::drop_data(ib)) })
    }
}
