// SPDX-License-Identifier: GPL-2.0

//! Counters that `rdma statistic` binds to queue pairs.
//!
//! ib_core (counters.c) owns an allocated `struct rdma_counter` until the first queue pair is bound
//! to it. If that fails, ib_core frees the struct without calling the driver. Therefore the first
//! binding serves as the create operation of the [`Object`](crate::rdma::Object).
//!
//! The statistics of a port are the sum of the driver's own values, of the counters on the port,
//! and of the last values of counters that were freed.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        object::{Counter, Driver, Qp},
    },
};
use core::ptr;
use kernel::{error::from_result, ffi::c_int, prelude::*};

impl<D: Driver> Ops<D> {
    /// Does nothing, because the first binding initializes the counter. ib_core requires the
    /// operation (counters.c, `alloc_and_bind()`).
    pub(super) unsafe extern "C" fn counter_init(_ib: *mut raw::rdma_counter) {}

    /// Allocates memory for the values of all of a port's statistics, because ib_core reads them by
    /// the port's indices (counters.c, `get_running_counters_hwstat_sum()`). It does not show
    /// disabled ones.
    pub(super) unsafe extern "C" fn counter_alloc_stats(
        _ib: *mut raw::rdma_counter,
    ) -> *mut raw::rdma_hw_stats {
        let stats = Self::alloc_stats();
        for &stat in D::PORT_ONLY_STATS {
            if !stats.is_null() && stat < D::PORT_STATS.len() {
                // SAFETY: Nothing else uses the struct yet. Its bitmap has a bit for each statistic
                // (verbs.c, `rdma_alloc_hw_stats_struct()`).
                unsafe { raw::__set_bit(stat, (*stats).is_disabled.cast()) };
            }
        }
        stats
    }

    pub(super) unsafe extern "C" fn counter_bind_qp(
        ib: *mut raw::rdma_counter,
        qp: *mut raw::ib_qp,
        _port: u32,
    ) -> c_int {
        // SAFETY: `__rdma_counter_bind_qp()` (counters.c) passes a counter and a live queue pair of
        // the same device, under the counter's lock. Without a number, the counter was never bound
        // or its first binding failed: its data does not exist. The driver sets the queue pair's
        // pointer, which ib_core reads without a lock (nldev.c, `fill_stat_counter_qps()`).
        from_result(|| unsafe {
            let is_first = (*ib).id == 0;
            if is_first {
                Counter::<D>::create(ib, || {
                    let (counter, number) = D::create_counter(Device::from_raw((*ib).device))?;
                    (*ib).id = number;
                    Ok(counter)
                })?;
            }
            let bound = D::bind_counter(Counter::<D>::data(ib), Qp::<D>::data(qp));
            if bound.is_ok() {
                ptr::write_volatile(&raw mut (*qp).counter, ib);
            } else if is_first {
                Self::counter_dealloc(ib);
                (*ib).id = 0;
            }
            bound.map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn counter_unbind_qp(qp: *mut raw::ib_qp, _port: u32) -> c_int {
        // SAFETY: `__rdma_counter_unbind_qp()` (counters.c) passes a live queue pair, under the
        // lock of its counter. The pointer to the counter is read without a lock (nldev.c,
        // `fill_stat_counter_qps()`).
        unsafe {
            if ptr::read_volatile(&raw const (*qp).counter).is_null() {
                // Another call was faster; its caller releases the reference to the counter.
                return EINVAL.to_errno();
            }
            D::unbind_counter(Qp::<D>::data(qp));
            ptr::write_volatile(&raw mut (*qp).counter, ptr::null_mut());
        }
        0
    }

    pub(super) unsafe extern "C" fn counter_update_stats(ib: *mut raw::rdma_counter) -> c_int {
        // SAFETY: A queue pair was bound, so the data exists, and `counter_alloc_stats` reserved
        // space for each statistic. ib_core reads the values without the counter's lock
        // (counters.c, `get_running_counters_hwstat_sum()`).
        unsafe {
            let counter = Counter::<D>::data(ib);
            let values = (&raw mut (*(*ib).stats).value).cast::<u64>();
            for stat in 0..D::PORT_STATS.len() {
                ptr::write_volatile(values.add(stat), D::counter_value(counter, stat));
            }
        }
        0
    }

    pub(super) unsafe extern "C" fn counter_dealloc(ib: *mut raw::rdma_counter) -> c_int {
        // SAFETY: A queue pair was bound, so the data exists. Nothing uses it afterwards
        // (counters.c, `counter_release()`).
        unsafe {
            D::destroy_counter(Device::from_raw((*ib).device), Counter::<D>::data(ib));
            Counter::<D>::drop_data(ib);
        }
        0
    }
}
