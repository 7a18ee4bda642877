// SPDX-License-Identifier: GPL-2.0

//! Memory regions and windows.

use super::{err_ptr, Ops};
use crate::{
    raw,
    rdma::{
        device::Device,
        memory::{access, KernelMemory},
        object::{errno, Driver, Mr, MrChange, MrKeys, Mw, Pd, UserMemory},
        udata::Udata,
    },
};
use core::ptr;
use kernel::{
    error::from_err_ptr,
    ffi::{c_int, c_uint},
    prelude::*,
};

impl<D: Driver> Ops<D> {
    /// Boxes the region that `make` makes and fills in what drivers fill in.
    ///
    /// # Safety
    ///
    /// Called by an operation that returns a region of `pd`, a live protection domain of `D`.
    unsafe fn new_mr(
        pd: *mut raw::ib_pd,
        make: impl FnOnce() -> Result<(D::Mr, MrKeys)>,
    ) -> *mut raw::ib_mr {
        // SAFETY: The same is asked for.
        unsafe { Self::new_mr_or_none(pd, || make().map(Some)) }
    }

    /// The same, or a null pointer where it makes none.
    ///
    /// # Safety
    ///
    /// As for [`Ops::new_mr`].
    unsafe fn new_mr_or_none(
        pd: *mut raw::ib_pd,
        make: impl FnOnce() -> Result<Option<(D::Mr, MrKeys)>>,
    ) -> *mut raw::ib_mr {
        match Mr::<D>::new_boxed(make) {
            Ok(Some((mr, keys))) => {
                let mr = KBox::into_raw(mr).cast::<raw::ib_mr>();
                // SAFETY: The region is ours until we return it; ib_core takes it then, and gives
                // it back in `dereg_mr`. The rest by the requirements.
                unsafe {
                    (*mr).device = (*pd).device;
                    (*mr).pd = pd;
                    (*mr).lkey = keys.lkey;
                    (*mr).rkey = keys.rkey;
                }
                mr
            }
            Ok(None) => ptr::null_mut(),
            Err(e) => err_ptr(e),
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`.
    pub(super) unsafe extern "C" fn get_dma_mr(
        pd: *mut raw::ib_pd,
        access: c_int,
    ) -> *mut raw::ib_mr {
        // SAFETY: The domain is live until this returns, and so is its device. Kernel consumers
        // alone have such regions: `__ib_alloc_pd()` (verbs.c) is the only caller.
        unsafe {
            Self::new_mr(pd, || {
                D::get_dma_mr(
                    Device::from_raw((*pd).device),
                    Pd::<D>::from_ptr(pd).data(),
                    KernelMemory::new(),
                    access as u32,
                )
            })
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`, `udata` is that of the command.
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
            return err_ptr(crate::errno::not_supported());
        }
        // SAFETY: uverbs holds the domain until this returns, and so its device (uverbs_cmd.c,
        // `ib_uverbs_reg_mr()`); `udata` is that of the command.
        unsafe {
            Self::new_mr(pd, || {
                D::reg_user_mr(
                    Device::from_raw((*pd).device),
                    Pd::<D>::from_ptr(pd).data(),
                    &UserMemory {
                        start,
                        length,
                        iova,
                    },
                    access_flags as u32 & !access::OPTIONAL,
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `mr` is a live region of `D` with memory of a program, which nobody else changes or
    /// deregisters meanwhile; `pd` is a live protection domain of `D`, that of `mr` or another of its device;
    /// `udata` is that of the command (uverbs_cmd.c, `ib_uverbs_rereg_mr()`, which takes the old region's
    /// place for the one that is returned, if one is, and deregisters the old one).
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
        // SAFETY: uverbs holds the region and both domains until this returns (uverbs_cmd.c,
        // `ib_uverbs_rereg_mr()`); `udata` is that of the command.
        let new = unsafe {
            Self::new_mr_or_none(pd, || {
                D::rereg_user_mr(
                    Device::from_raw((*pd).device),
                    Mr::<D>::from_ptr(mr).data(),
                    Pd::<D>::from_ptr(pd).data(),
                    &change,
                    Udata::from_ptr(udata).as_mut(),
                )
            })
        };
        // ib_core sets these of a region that stays, but not of another in its place
        // (ib_uverbs_rereg_mr() in uverbs_cmd.c).
        if let (Ok(new), Some(memory)) = (from_err_ptr(new), &change.memory) {
            // SAFETY: Null, or a region that is ours until we return it.
            if let Some(new) = unsafe { new.as_mut() } {
                (new.length, new.iova) = (memory.length, memory.iova);
            }
        }
        new
    }

    /// # Safety
    ///
    /// Called by ib_core: `mr` is a live region of `D`, which ib_core does not use afterwards if
    /// this succeeds (verbs.c, `ib_dereg_mr_user()`).
    pub(super) unsafe extern "C" fn dereg_mr(
        mr: *mut raw::ib_mr,
        _udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements. On success the region is ours again, as `new_mr` boxed it.
        errno(unsafe {
            Mr::<D>::destroy(mr, D::dereg_mr).map(|()| drop(KBox::from_raw(mr.cast::<Mr<D>>())))
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `pd` is a live protection domain of `D`.
    pub(super) unsafe extern "C" fn alloc_mr(
        pd: *mut raw::ib_pd,
        mr_type: u32,
        max_num_sg: u32,
    ) -> *mut raw::ib_mr {
        if mr_type != raw::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return err_ptr(crate::errno::not_supported());
        }
        // SAFETY: The domain is live until this returns, and so is its device (verbs.c,
        // `ib_alloc_mr()`).
        unsafe {
            Self::new_mr(pd, || {
                D::alloc_mr(
                    Device::from_raw((*pd).device),
                    Pd::<D>::from_ptr(pd).data(),
                    max_num_sg,
                )
            })
        }
    }

    /// # Safety
    ///
    /// Called by ib_sg_to_pages() for the region that `map_mr_sg` gave it.
    unsafe extern "C" fn set_page(mr: *mut raw::ib_mr, address: u64) -> c_int {
        // SAFETY: A live region of `D`, by the requirements.
        errno(unsafe { D::map_mr_page(Mr::<D>::from_ptr(mr).data(), address) })
    }

    /// # Safety
    ///
    /// Called by a kernel consumer: `mr` is a live region of `D` for fast registration; `sg` is a
    /// list of `nents` entries, mapped for its device; `offset` is null or valid (verbs.c,
    /// `ib_map_mr_sg()`).
    pub(super) unsafe extern "C" fn map_mr_sg(
        mr: *mut raw::ib_mr,
        sg: *mut raw::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        // SAFETY: By the requirements; the "DMA addresses" of the list are addresses in the direct
        // map (ib_dma_map_sg()). ib_sg_to_pages() (verbs.c) calls `set_page` for this region and
        // sets its address and length.
        unsafe {
            let data = Mr::<D>::from_ptr(mr).data();
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

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new window of a device of `D`, of which uverbs has set type and
    /// protection domain, which lives (uverbs_cmd.c); `udata` is that of the command.
    pub(super) unsafe extern "C" fn alloc_mw(
        ib: *mut raw::ib_mw,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the window and set its device, type and domain,
        // which uverbs holds (uverbs_cmd.c, `ib_uverbs_alloc_mw()`); nobody else has it yet.
        // `dealloc_mw` ends it.
        errno(unsafe {
            Mw::<D>::create(ib, || {
                let (data, rkey) = D::alloc_mw(
                    Device::from_raw((*ib).device),
                    Pd::<D>::from_ptr((*ib).pd).data(),
                    (*ib).type_,
                    Udata::from_ptr(udata).as_mut(),
                )?;
                (*ib).rkey = rkey;
                Ok(data)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live window of `D`, which nobody uses afterwards if this
    /// succeeds.
    pub(super) unsafe extern "C" fn dealloc_mw(ib: *mut raw::ib_mw) -> c_int {
        // SAFETY: The window is live, and ib_core calls this once for it, unless it fails
        // (uverbs_main.c, `uverbs_dealloc_mw()`).
        errno(unsafe { Mw::<D>::destroy(ib, D::dealloc_mw) })
    }
}
