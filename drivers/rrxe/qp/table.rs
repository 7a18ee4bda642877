// SPDX-License-Identifier: GPL-2.0

//! The queue pairs of all devices, by number, and QP1 of each device.

use super::{multicast::Groups, Qp};
use crate::{
    device_core::DeviceCore, limits, number_table::NumberTable, transport::local_queue::LocalQueue,
};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, Arc,
    },
};
use linux_rdma::sync::{RcuListEntry, RcuLists};

/// The queue pairs that packets find.
#[pin_data]
pub(crate) struct QpTables {
    pub(crate) qps: Arc<NumberTable<Qp>>,
    /// QP1 of each device.
    #[pin]
    pub(crate) gsis: Gsis,
}

impl QpTables {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                qps: Arc::pin_init(NumberTable::new(limits::MAX_QP), GFP_KERNEL)?,
                gsis <- Gsis::new(),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// The state of a device that knows its queue pairs.
#[pin_data]
pub(crate) struct DeviceQps {
    pub(crate) core: Arc<DeviceCore>,
    /// The queue pairs of all devices.
    pub(crate) tables: Arc<QpTables>,
    /// The device's packets that are queued on this host.
    pub(crate) local_queue: Arc<LocalQueue<Qp>>,
    #[pin]
    pub(crate) multicast: Groups,
}

impl DeviceQps {
    pub(crate) fn new(core: &Arc<DeviceCore>, tables: &Arc<QpTables>) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                core: core.clone(),
                tables: tables.clone(),
                local_queue: LocalQueue::new()?,
                multicast <- Groups::new(),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// The queue pairs of the general services interface (QP1).
#[pin_data]
pub(crate) struct Gsis {
    #[pin]
    list: RcuLists<Gsi, 1>,
    /// Number of entries so far.
    made: Atomic<u64>,
}

/// QP1 of a device.
pub(crate) struct Gsi {
    /// Increases from one to the next. ib_core creates the queue pairs in the order in which the
    /// connection manager adds the devices to its list (`add_client_context()`, device.c).
    pub(crate) order: u64,
    pub(crate) qp: Arc<Qp>,
}

impl Gsis {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: Before the module is unloaded, `SharedState` (rrxe_main.rs) waits for RCU
            // callbacks after it has dropped the tables.
            list <- unsafe { RcuLists::new(c"rrxe_gsis", static_lock_class!()) },
            made: Atomic::new(0),
        })
    }

    pub(crate) fn iter<'a>(&'a self, rcu: &'a rcu::Guard) -> impl Iterator<Item = &'a Gsi> {
        self.list.iter(0, rcu)
    }

    /// Adds QP1 of a device. Returns `EBUSY` if the device has one.
    pub(crate) fn add(&self, qp: Arc<Qp>) -> Result {
        let order = self.made.fetch_add(1, Relaxed);
        let device = qp.device.clone();
        let entry = RcuListEntry::new(Gsi { order, qp }, GFP_KERNEL)?;
        let mut list = self.list.lock();
        let is_taken = {
            let rcu = rcu::read_lock();
            let mut others = self.iter(&rcu);
            others.any(|gsi| Arc::ptr_eq(&gsi.qp.device, &device))
        };
        if is_taken {
            return Err(EBUSY);
        }
        list.push(0, entry);
        Ok(())
    }

    /// Removes QP1 of a device, if it was added.
    pub(crate) fn remove(&self, qp: &Arc<Qp>) {
        let mut list = self.list.lock();
        list.remove(0, |gsi| Arc::ptr_eq(&gsi.qp, qp));
    }
}
