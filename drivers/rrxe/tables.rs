// SPDX-License-Identifier: GPL-2.0

//! Lookup tables for packets and work requests: queue pairs, memory regions, address handles,
//! shared receive queues.
//!
//! The tables belong to the module and not to a device: a queue pair number finds its queue pair in
//! one step, and all other fields of the packet are compared with that queue pair. Numbers that
//! peers see are table indices after a keyed permutation, so that they can't be guessed.

use crate::{
    limits,
    number_table::NumberTable,
    qp::Qp,
    verbs::{address_handle::AddressHandle, mr::MrTable, quota::Quotas, srq::Srq},
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::sync::{IndexPool, RcuTable};

/// Queue pairs by number.
pub(crate) type QpTable = NumberTable<Qp>;

/// Shared receive queues for XRC by number.
pub(crate) type SrqTable = NumberTable<Srq>;

/// Address handles by number. Only the owning process sees the numbers.
#[pin_data]
pub(crate) struct AddressTable {
    #[pin]
    pool: IndexPool,
    table: RcuTable<AddressHandle>,
}

/// All tables, and the quotas of all objects.
#[pin_data]
pub(crate) struct Tables {
    #[pin]
    pub(crate) qps: QpTable,
    pub(crate) mrs: Arc<MrTable>,
    #[pin]
    pub(crate) addresses: AddressTable,
    #[pin]
    pub(crate) srqs: SrqTable,
    pub(crate) quotas: Quotas,
}

impl Tables {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                qps <- NumberTable::new(limits::MAX_QP),
                mrs: Arc::pin_init(MrTable::new(), GFP_KERNEL)?,
                addresses <- try_pin_init!(AddressTable {
                    pool <- IndexPool::new(),
                    table: RcuTable::new()?,
                }),
                srqs <- NumberTable::new(limits::MAX_SRQ),
                quotas: Quotas::new()?,
            }? Error),
            GFP_KERNEL,
        )
    }
}

impl AddressTable {
    /// Inserts the handle that `make` creates for its number, and makes it visible to work
    /// requests.
    pub(crate) fn insert(
        &self,
        flags: Flags,
        make: impl FnOnce(u32) -> Result<Arc<AddressHandle>>,
    ) -> Result<Arc<AddressHandle>> {
        let number = self.pool.alloc(1..=limits::MAX_AH, flags)?;
        let result = make(number).and_then(|ah| {
            self.table.insert(number, ah.clone(), flags)?;
            Ok(ah)
        });
        if result.is_err() {
            self.pool.free(number);
        }
        result
    }

    /// Returns the handle with this number.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        number: u32,
        rcu: &'a rcu::Guard,
    ) -> Option<ArcBorrow<'a, AddressHandle>> {
        self.table.get(number, rcu)
    }

    /// Hides the handle from work requests, and frees its number.
    pub(crate) fn remove(&self, number: u32) {
        if self.table.remove(number) {
            self.pool.free(number);
        }
    }
}
