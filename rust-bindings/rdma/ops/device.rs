// SPDX-License-Identifier: GPL-2.0

//! Devices, their ports and statistics, and the contexts of processes that have them open.

use super::Ops;
use crate::{
    net::NetDevice,
    raw,
    rdma::{
        device::Device,
        import::ContextQuery,
        object::{errno, Driver, Mad, NewGid, Ucontext},
        roce,
        udata::{no_udata, Udata},
    },
};
use core::ffi::c_void;
use kernel::{
    error::to_result,
    ffi::{c_char, c_int},
    prelude::*,
};

impl<D: Driver> Ops<D> {
    pub(super) unsafe extern "C" fn dealloc_driver(ib: *mut raw::ib_device) {
        // SAFETY: `ib` is a device of `D`, and `ib_dealloc_device()` (device.c) calls no other
        // operation afterwards.
        unsafe {
            let device = Device::<D>::from_raw(ib);
            D::dealloc(device.data());
            (*device.data.get()).assume_init_drop();
        }
    }

    pub(super) unsafe extern "C" fn get_dev_fw_str(_ib: *mut raw::ib_device, text: *mut c_char) {
        let version = D::VERSION.to_bytes_with_nul();
        const { assert!(D::VERSION.count_bytes() < raw::ETHTOOL_FWVERS_LEN as usize) };
        // SAFETY: `ib_get_device_fw_str()` (device.c) requires a buffer of `IB_FW_VERSION_NAME_MAX`
        // bytes, which equals `ETHTOOL_FWVERS_LEN`: enough for the version and its zero.
        unsafe { (text.cast::<u8>()).copy_from_nonoverlapping(version.as_ptr(), version.len()) };
    }

    pub(super) unsafe extern "C" fn query_device(
        ib: *mut raw::ib_device,
        attr: *mut raw::ib_device_attr,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: `setup_device()` (device.c) and `ib_uverbs_ex_query_device()` (uverbs_cmd.c) pass
        // a valid device and attributes that nothing else uses during the call.
        errno(unsafe {
            *attr = D::query_device(Device::from_raw(ib)).to_raw();
            no_udata(Udata::from_ptr(udata).as_mut())
        })
    }

    pub(super) unsafe extern "C" fn query_port(
        ib: *mut raw::ib_device,
        _port: u32,
        attr: *mut raw::ib_port_attr,
    ) -> c_int {
        // SAFETY: The device is live until this returns. Nothing else uses the attributes during
        // the call (`__ib_query_port()` in device.c, `get_port_immutable`).
        let (device, attr) = unsafe { (Device::<D>::from_raw(ib), &mut *attr) };
        let Some(netdev) = device.netdev() else {
            return ENODEV.to_errno();
        };
        *attr = D::query_port(device, &netdev).to_raw();
        let (state, physical) = match (netdev.is_up(), netdev.is_operational()) {
            (true, true) => (
                raw::ib_port_state_IB_PORT_ACTIVE,
                raw::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
            ),
            (true, false) => (
                raw::ib_port_state_IB_PORT_DOWN,
                raw::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
            ),
            (false, _) => (
                raw::ib_port_state_IB_PORT_DOWN,
                raw::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
            ),
        };
        attr.state = state;
        attr.phys_state = physical as u8;
        // SAFETY: The device is live.
        unsafe { roce::fill_port(ib, attr) }
    }

    pub(super) unsafe extern "C" fn get_port_immutable(
        ib: *mut raw::ib_device,
        port: u32,
        immutable: *mut raw::ib_port_immutable,
    ) -> c_int {
        let mut attr = pin_init::zeroed();
        // SAFETY: The device is live until this returns, and `immutable` is valid for writes
        // (device.c, `setup_port_data()`).
        errno(unsafe {
            to_result(Self::query_port(ib, port, &mut attr)).map(|()| {
                (*immutable).core_cap_flags = roce::CORE_CAP_FLAGS;
                (*immutable).pkey_tbl_len = attr.pkey_tbl_len.into();
                (*immutable).gid_tbl_len = attr.gid_tbl_len;
                (*immutable).max_mad_size = roce::MAX_MAD_SIZE;
            })
        })
    }

    pub(super) unsafe extern "C" fn query_pkey(
        _ib: *mut raw::ib_device,
        _port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        // SAFETY: `pkey` is valid for writes (device.c, `ib_query_pkey()`).
        errno(D::query_pkey(index).map(|k| unsafe { *pkey = k }))
    }

    pub(super) unsafe extern "C" fn add_gid(
        attr: *const raw::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: `add_roce_gid()` (cache.c) passes an entry of a live device that nothing else
        // uses yet, and whose network device is not null and holds a reference.
        errno(unsafe {
            let gid = NewGid {
                index: u32::from((*attr).index),
                gid: (*attr).gid.raw,
                netdev: NetDevice::from_raw((*attr).ndev),
            };
            D::add_gid(Device::from_raw((*attr).device), &gid)
        })
    }

    pub(super) unsafe extern "C" fn del_gid(
        attr: *const raw::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: `del_gid()` (cache.c) passes an entry for which `add_gid` has succeeded, of a
        // live device.
        unsafe { D::del_gid(Device::from_raw((*attr).device), u32::from((*attr).index)) };
        0
    }

    pub(super) unsafe extern "C" fn alloc_hw_port_stats(
        _ib: *mut raw::ib_device,
        _port: u32,
    ) -> *mut raw::rdma_hw_stats {
        Self::alloc_stats()
    }

    /// Allocates memory for the values of a port's statistics. Returns null on failure.
    pub(super) fn alloc_stats() -> *mut raw::rdma_hw_stats {
        // SAFETY: The names are a static array of the given length, and `StatName` is a transparent
        // wrapper of the type that rdma_alloc_hw_stats_struct() (verbs.c) takes.
        unsafe {
            raw::rdma_alloc_hw_stats_struct(
                D::PORT_STATS.as_ptr().cast(),
                D::PORT_STATS.len() as c_int,
                raw::RDMA_HW_STATS_DEFAULT_LIFESPAN as usize,
            )
        }
    }

    pub(super) unsafe extern "C" fn get_hw_stats(
        ib: *mut raw::ib_device,
        stats: *mut raw::rdma_hw_stats,
        _port: u32,
        _index: c_int,
    ) -> c_int {
        // SAFETY: `alloc_hw_port_stats` returned `stats`, which is not null here (sysfs.c; nldev.c,
        // `stat_get_doit_default_counter()`) and has a value for each of `PORT_STATS`. ib_core
        // holds its lock, so nothing else writes to the values.
        unsafe {
            let values = (*stats).value.as_mut_slice(D::PORT_STATS.len());
            D::port_stats(Device::from_raw(ib), values);
        }
        D::PORT_STATS.len() as c_int
    }

    /// Passes a MAD to the driver. Without a response, ib_core treats the MAD as it would without
    /// this operation.
    pub(super) unsafe extern "C" fn process_mad(
        ib: *mut raw::ib_device,
        _flags: c_int,
        port: u32,
        _wc: *const raw::ib_wc,
        _grh: *const raw::ib_grh,
        mad: *const raw::ib_mad,
        response: *mut raw::ib_mad,
        _response_size: *mut usize,
        _response_pkey_index: *mut u16,
    ) -> c_int {
        // SAFETY: `ib_mad_recv_done()`, `handle_outgoing_dr_smp()` (mad.c) and `get_perf_mad()`
        // (sysfs.c) pass a live device. The MAD has `IB_MGMT_MAD_SIZE` bytes, the port's
        // `max_mad_size`, and nothing writes to it during the call.
        let made = unsafe { D::process_mad(Device::from_raw(ib), port, &*mad.cast::<Mad>()) };
        let Some(made) = made else {
            return raw::ib_mad_result_IB_MAD_RESULT_SUCCESS as c_int;
        };
        // SAFETY: The same functions pass another buffer of that size, which nothing else uses.
        unsafe { response.cast::<Mad>().write(made) };
        (raw::ib_mad_result_IB_MAD_RESULT_SUCCESS | raw::ib_mad_result_IB_MAD_RESULT_REPLY) as c_int
    }

    pub(super) unsafe extern "C" fn alloc_ucontext(
        ib: *mut raw::ib_ucontext,
        udata: *mut raw::ib_udata,
    ) -> c_int {
        // SAFETY: uverbs passes a new context and its device (uverbs_cmd.c, `ib_init_ucontext()`).
        errno(unsafe {
            Ucontext::<D>::create(ib, || {
                let mut udata = Udata::from_ptr(udata).ok_or(EINVAL)?;
                D::alloc_ucontext(Device::from_raw((*ib).device), &mut udata)
            })
        })
    }

    pub(super) unsafe extern "C" fn query_ucontext(
        context: *mut raw::ib_ucontext,
        attrs: *mut raw::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: uverbs passes a live context and the attributes of the command
        // (uverbs_std_types_device.c, `UVERBS_METHOD_QUERY_CONTEXT`). The device has the
        // definitions of import.c (`register`).
        errno(unsafe {
            let query = ContextQuery::from_ptr(attrs).ok_or(EINVAL);
            query.and_then(|mut query| D::query_ucontext(Ucontext::<D>::data(context), &mut query))
        })
    }

    pub(super) unsafe extern "C" fn dealloc_ucontext(ib: *mut raw::ib_ucontext) {
        // SAFETY: The context is live, all of its objects have been destroyed, and ib_core calls
        // this once for it (uverbs_main.c, `ufile_destroy_ucontext()`).
        unsafe { Ucontext::<D>::drop_data(ib) };
    }

    /// Allows removing a device while programs have it open: ib_core then destroys their objects.
    /// There is nothing to do here, because no device memory is mapped into user space (rings are
    /// the user's own memory).
    pub(super) unsafe extern "C" fn disassociate_ucontext(_ib: *mut raw::ib_ucontext) {}
}
