// SPDX-License-Identifier: GPL-2.0

//! Lookup tables for packets and work requests: queue pairs, memory regions, address handles,
//! shared receive queues.
//!
//! The tables belong to the module and not to a device: a queue pair number finds its queue pair in
//! one step, and all other fields of the packet are compared with that queue pair.

use crate::{
    limits,
    mr::MrTable,
    number_table::NumberTable,
    qp::Qp,
    quota::Quotas,
    verbs::{address_handle::AddressHandle, srq::Srq},
};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, Arc,
    },
};
use linux_rdma::sync::{IndexPool, RcuListEntry, RcuLists, RcuTable, SoftirqBudget};

/// All tables, and the quotas of all objects.
#[pin_data]
pub(crate) struct Tables {
    #[pin]
    pub(crate) qps: NumberTable<Qp>,
    pub(crate) mrs: Arc<MrTable>,
    /// Address handles by number. Only the owning process sees the numbers.
    pub(crate) addresses: RcuTable<AddressHandle>,
    #[pin]
    pub(crate) address_numbers: IndexPool,
    /// Shared receive queues for XRC.
    #[pin]
    pub(crate) srqs: NumberTable<Srq>,
    /// QP1 of each device.
    #[pin]
    pub(crate) gsis: Gsis,
    pub(crate) quotas: Quotas,
    /// Time of the timers of all queue pairs.
    pub(crate) timer_budget: SoftirqBudget,
}

impl Tables {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                qps <- NumberTable::new(limits::MAX_QP),
                mrs: Arc::pin_init(MrTable::new(limits::MAX_MR + limits::MAX_MW), GFP_KERNEL)?,
                addresses: RcuTable::new()?,
                address_numbers <- IndexPool::new(),
                srqs <- NumberTable::new(limits::MAX_SRQ),
                gsis <- Gsis::new(),
                quotas: Quotas::new()?,
                timer_budget: SoftirqBudget::new(limits::path::TIMER_BUDGET)?,
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
