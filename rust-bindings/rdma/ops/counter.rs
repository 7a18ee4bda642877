// SPDX-License-Identifier: GPL-2.0

//! Counters that `rdma statistic` binds to queue pairs.
//!
//! ib_core (counters.c) calls an allocated `struct rdma_counter` its own until the first queue pair
//! is bound to it: if that fails, it frees the struct without another call to the driver. So the
//! first binding is the create operation of the [`Object`](crate::rdma::Object).
//!
//! The statistics of a port are what its driver says, plus what the counters on it say, plus what
//! counters said before they were freed.

use super::Ops;
use crate::{
    raw,
    rdma::{
        device::Device,
        object::{errno, Counter, Driver, Qp},
    },
};
use core::ptr;
use kernel::{ffi::c_int, prelude::*};

impl<D: Driver> Ops<D> {
    /// Does nothing: the first binding initializes. ib_core needs the operation (counters.c,
    /// `alloc_and_bind()`).
    ///
    /// # Safety
    ///
    /// None: what ib_core passes is not looked at.
    pub(super) unsafe extern "C" fn counter_init(_ib: *mut raw::rdma_counter) {}

    /// Returns room for the values of all of a port's statistics: ib_core reads them by the port's
    /// indices (counters.c, `get_running_counters_hwstat_sum()`). It shows none that is disabled.
    ///
    /// # Safety
    ///
    /// Called by ib_core, which frees what this returns; it may be null (counters.c).
    pub(super) unsafe extern "C" fn counter_alloc_stats(
        _ib: *mut raw::rdma_counter,
    ) -> *mut raw::rdma_hw_stats {
        let stats = Self::alloc_stats();
        if stats.is_null() {
            return stats;
        }
        for &stat in D::PORT_ONLY_STATS {
            if stat < D::PORT_STATS.len() {
                // SAFETY: Nobody else has the struct yet. Its bitmap has a bit for each statistic
                // (verbs.c, `rdma_alloc_hw_stats_struct()`), in words of `usize`'s size.
                unsafe { Self::set_bit((*stats).is_disabled.cast(), stat) };
            }
        }
        stats
    }

    /// Sets a bit of a bitmap.
    ///
    /// # Safety
    ///
    /// The bitmap consists of words and has the bit, and nobody else uses it meanwhile.
    unsafe fn set_bit(bitmap: *mut usize, bit: usize) {
        const BITS: usize = usize::BITS as usize;
        let (word, bit) = (bit / BITS, bit % BITS);
        // SAFETY: The bitmap has the bit, so it has the word, which nobody else uses, as the caller
        // promises.
        unsafe { *bitmap.add(word) |= 1 << bit };
    }

    /// # Safety
    ///
    /// Called by ib_core, which holds the counter's lock: `ib` is a counter of a device of `D`,
    /// `qp` a live queue pair of the same (counters.c, `__rdma_counter_bind_qp()`).
    pub(super) unsafe extern "C" fn counter_bind_qp(
        ib: *mut raw::rdma_counter,
        qp: *mut raw::ib_qp,
        _port: u32,
    ) -> c_int {
        // SAFETY: By the requirements. A counter without a number was never bound (ib_core zeroes
        // the struct) or was destroyed again just below.
        errno(unsafe {
            match (*ib).id {
                0 => Self::create_bound(ib, qp),
                _ => Self::bind(ib, qp),
            }
        })
    }

    /// Creates the driver's part of a counter, and binds a queue pair to it.
    ///
    /// # Safety
    ///
    /// As for `counter_bind_qp`; the driver's part does not exist.
    unsafe fn create_bound(ib: *mut raw::rdma_counter, qp: *mut raw::ib_qp) -> Result {
        // SAFETY: By the requirements. Nobody but this call uses the counter before it is bound.
        unsafe {
            Counter::<D>::create(ib, || {
                let (counter, number) = D::create_counter(Device::from_raw((*ib).device))?;
                (*ib).id = number;
                Ok(counter)
            })?;
            Self::bind(ib, qp).inspect_err(|_| {
                Self::counter_dealloc(ib);
                (*ib).id = 0;
            })
        }
    }

    /// Binds a queue pair to a counter.
    ///
    /// # Safety
    ///
    /// As for `counter_bind_qp`; the driver's part exists.
    unsafe fn bind(ib: *mut raw::rdma_counter, qp: *mut raw::ib_qp) -> Result {
        // SAFETY: By the requirements. ib_core leaves the queue pair's pointer to the driver and
        // reads it without a lock (nldev.c, `fill_stat_counter_qps()`).
        unsafe {
            let counter = Counter::<D>::from_ptr(ib).data();
            D::bind_counter(counter, Qp::<D>::from_ptr(qp).driver())?;
            ptr::write_volatile(&raw mut (*qp).counter, ib);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// Called by ib_core, which holds the lock of the counter that the queue pair was bound to:
    /// `qp` is a live queue pair of `D` (counters.c, `__rdma_counter_unbind_qp()`).
    pub(super) unsafe extern "C" fn counter_unbind_qp(qp: *mut raw::ib_qp, _port: u32) -> c_int {
        // SAFETY: By the requirements; the pointer is as in `bind`.
        unsafe {
            if ptr::read_volatile(&raw const (*qp).counter).is_null() {
                // Another call was faster: its caller gives the reference to the counter back.
                return EINVAL.to_errno();
            }
            D::unbind_counter(Qp::<D>::from_ptr(qp).driver());
            ptr::write_volatile(&raw mut (*qp).counter, ptr::null_mut());
        }
        0
    }

    /// # Safety
    ///
    /// Called by ib_core, which holds the counter's lock: `ib` is a counter of `D` to which a queue
    /// pair is or was bound, with room as `counter_alloc_stats` returned it.
    pub(super) unsafe extern "C" fn counter_update_stats(ib: *mut raw::rdma_counter) -> c_int {
        // SAFETY: By the requirements there is a value for each statistic. ib_core reads them
        // without the counter's lock (counters.c, `get_running_counters_hwstat_sum()`).
        unsafe {
            let counter = Counter::<D>::from_ptr(ib).data();
            let values = (&raw mut (*(*ib).stats).value).cast::<u64>();
            for stat in 0..D::PORT_STATS.len() {
                ptr::write_volatile(values.add(stat), D::counter_value(counter, stat));
            }
        }
        0
    }

    /// # Safety
    ///
    /// Called by ib_core for a counter of `D` after the last queue pair was unbound from it; nobody
    /// uses it afterwards (counters.c, `counter_release()`).
    pub(super) unsafe extern "C" fn counter_dealloc(ib: *mut raw::rdma_counter) -> c_int {
        // SAFETY: The driver's part exists, since a queue pair was bound, and nobody uses it
        // afterwards (counters.c, `counter_release()`).
        errno(unsafe {
            Counter::<D>::destroy(ib, |counter| {
                D::destroy_counter(Device::from_raw((*ib).device), counter);
                Ok(())
            })
        })
    }
}
