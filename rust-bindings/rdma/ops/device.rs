// SPDX-License-Identifier: GPL-2.0

//! Devices, their ports and statistics, and the contexts of who has them open.

use super::{count, no_udata, Ops};
use crate::{
    raw,
    rdma::{
        attr::{DeviceAttr, PortAttr},
        device::Device,
        object::{errno, Driver, Ucontext},
        udata::Udata,
    },
};
use kernel::{
    ffi::{c_char, c_int},
    prelude::*,
};

impl<D: Driver> Ops<D> {
    /// # Safety
    ///
    /// The last operation that ib_core calls for a device of `D` (device.c, `ib_dealloc_device()`).
    pub(super) unsafe extern "C" fn dealloc_driver(ib: *mut raw::ib_device) {
        // SAFETY: A device of `D`, which ib_core does not use any more, by the requirements.
        unsafe {
            let device = Device::<D>::from_raw(ib);
            D::dealloc(device.data());
            device.drop_data();
        }
    }

    /// # Safety
    ///
    /// Called by ib_core (device.c, `ib_get_device_fw_str()`): `text` is zeroed or left as it was
    /// by an earlier call, and has room for `IB_FW_VERSION_NAME_MAX` bytes, which is `ETHTOOL_FWVERS_LEN`.
    pub(super) unsafe extern "C" fn get_dev_fw_str(_ib: *mut raw::ib_device, text: *mut c_char) {
        // One byte stays for the terminating zero.
        let room = (raw::ETHTOOL_FWVERS_LEN as usize).saturating_sub(1);
        let version = D::IDENTITY.version.to_bytes();
        let len = version.len().min(room);
        // SAFETY: By the requirements there is room for so many bytes and a zero.
        unsafe {
            text.cast::<u8>()
                .copy_from_nonoverlapping(version.as_ptr(), len);
            text.cast::<u8>().add(len).write(0);
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `attr` is valid for writes, `udata` is null or
    /// that of the command.
    pub(super) unsafe extern "C" fn query_device(
        ib: *mut raw::ib_device,
        attr: *mut raw::ib_device_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: By the requirements; nobody else uses `attr` meanwhile.
        errno(unsafe {
            D::query_device(Device::from_raw(ib), &mut DeviceAttr::new(&mut *attr))
                .and_then(|()| no_udata(Udata::from_ptr(udata).as_mut()))
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `attr` is valid for writes.
    pub(super) unsafe extern "C" fn query_port(
        ib: *mut raw::ib_device,
        port: u32,
        attr: *mut raw::ib_port_attr,
    ) -> c_int {
        // SAFETY: By the requirements; nobody else uses `attr` meanwhile.
        errno(unsafe { D::query_port(Device::from_raw(ib), port, &mut PortAttr::new(&mut *attr)) })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `immutable` is valid for writes.
    pub(super) unsafe extern "C" fn port_immutable(
        ib: *mut raw::ib_device,
        port: u32,
        immutable: *mut raw::ib_port_immutable,
    ) -> c_int {
        // SAFETY: The device is live until this returns, and `immutable` is valid for writes
        // (device.c, `setup_port_data()`).
        errno(unsafe {
            D::port_immutable(Device::from_raw(ib), port).map(|from| {
                (*immutable).core_cap_flags = raw::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
                (*immutable).pkey_tbl_len = from.pkey_tbl_len as c_int;
                (*immutable).gid_tbl_len = from.gid_tbl_len as c_int;
                (*immutable).max_mad_size = raw::IB_MGMT_MAD_SIZE;
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`, `pkey` is valid for writes.
    pub(super) unsafe extern "C" fn query_pkey(
        ib: *mut raw::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        // SAFETY: The device is live until this returns, and `pkey` is valid for writes (device.c,
        // `ib_query_pkey()`).
        errno(unsafe { D::query_pkey(Device::from_raw(ib), port, index).map(|k| *pkey = k) })
    }

    /// # Safety
    ///
    /// None: what ib_core passes is not looked at.
    pub(super) unsafe extern "C" fn get_link_layer(_ib: *mut raw::ib_device, _port: u32) -> u32 {
        raw::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    /// # Safety
    ///
    /// Called by ib_core, which frees what this returns; it may be null (sysfs.c).
    pub(super) unsafe extern "C" fn alloc_hw_port_stats(
        _ib: *mut raw::ib_device,
        _port: u32,
    ) -> *mut raw::rdma_hw_stats {
        Self::alloc_stats()
    }

    /// Returns room for the values of a port's statistics, or null.
    pub(super) fn alloc_stats() -> *mut raw::rdma_hw_stats {
        // SAFETY: The names are static, as many as said, and `StatName` is a transparent wrapper
        // of what rdma_alloc_hw_stats_struct() takes (verbs.c).
        unsafe {
            raw::rdma_alloc_hw_stats_struct(
                D::PORT_STATS.as_ptr().cast(),
                D::PORT_STATS.len() as c_int,
                raw::RDMA_HW_STATS_DEFAULT_LIFESPAN as usize,
            )
        }
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a device of `D`; `stats` is null or what `alloc_hw_port_stats`
    /// returned, and ib_core holds its lock.
    pub(super) unsafe extern "C" fn get_hw_stats(
        ib: *mut raw::ib_device,
        stats: *mut raw::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        if stats.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: By the requirements; the struct has as many values as `alloc_hw_port_stats` said,
        // which nobody else writes to under the lock.
        count(unsafe {
            let values = (*stats).value.as_mut_slice(D::PORT_STATS.len());
            D::port_stats(Device::from_raw(ib), port, values).map(|()| D::PORT_STATS.len())
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a new context of a device of `D`, `udata` is null or that of the
    /// command.
    pub(super) unsafe extern "C" fn alloc_ucontext(
        ib: *mut raw::ib_ucontext,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: ib_core has allocated and zeroed the context and set its device; nobody else has
        // it yet (uverbs_cmd.c, `ib_init_ucontext()`). `dealloc_ucontext` ends it.
        errno(unsafe {
            Ucontext::<D>::create(ib, || {
                let mut udata = Udata::from_ptr(udata).ok_or(EINVAL)?;
                D::alloc_ucontext(Device::from_raw((*ib).device), &mut udata)
            })
        })
    }

    /// # Safety
    ///
    /// Called by ib_core: `ib` is a live context of `D`, which nobody uses afterwards.
    pub(super) unsafe extern "C" fn dealloc_ucontext(ib: *mut raw::ib_ucontext) {
        // It can't fail.
        // SAFETY: The context is live, all its objects are gone, and ib_core calls this once for it
        // (uverbs_main.c, `ufile_destroy_ucontext()`).
        let _ = unsafe { Ucontext::<D>::destroy(ib, |_| Ok(())) };
    }

    /// Nothing of a device is mapped into user space (rings are the user's own memory), so a
    /// device can go while programs have it open: ib_core destroys their objects.
    ///
    /// # Safety
    ///
    /// None: what ib_core passes is not looked at.
    pub(super) unsafe extern "C" fn disassociate_ucontext(_ib: *mut raw::ib_ucontext) {}
}
