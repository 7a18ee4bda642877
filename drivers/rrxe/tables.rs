// SPDX-License-Identifier: GPL-2.0

//! Lookup tables for packets and work requests: memory regions, address handles, shared receive
//! queues. [`crate::qp::table`] has the queue pairs.
//!
//! The tables belong to the module and not to a device: a number finds its object in one step.

use crate::{
    limits,
    mr::{Mr, MrTable},
    number_table::NumberTable,
    quota::Quotas,
    verbs::{address_handle::AddressHandles, srq::Srq},
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::sync::{LongCalls, SoftirqBudget};

/// The tables of all devices, and the quotas of all objects.
pub(crate) struct Tables {
    pub(crate) mrs: Arc<MrTable>,
    /// Key of the null region in `mrs`.
    pub(crate) null_key: u32,
    pub(crate) addresses: Arc<AddressHandles>,
    /// Shared receive queues for XRC.
    pub(crate) srqs: Arc<NumberTable<Srq>>,
    pub(crate) quotas: Arc<Quotas>,
    /// Time of the timers of all queue pairs.
    pub(crate) timer_budget: SoftirqBudget,
    /// System calls that may sleep for any time, by the device.
    pub(crate) long_calls: Pin<KBox<LongCalls>>,
}

impl Tables {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // One more than users can create, for the null region.
        let mrs = NumberTable::new(limits::MAX_MR + limits::MAX_MW + 1);
        let mrs = Arc::pin_init(mrs, GFP_KERNEL)?;
        let null_key = Mr::add_null(&mrs)?;
        let tables = Self {
            mrs,
            null_key,
            addresses: Arc::pin_init(AddressHandles::new(), GFP_KERNEL)?,
            srqs: Arc::pin_init(NumberTable::new(limits::MAX_SRQ), GFP_KERNEL)?,
            quotas: Quotas::new()?,
            timer_budget: SoftirqBudget::new(limits::path::TIMER_BUDGET)?,
            long_calls: KBox::pin_init(LongCalls::new(), GFP_KERNEL)?,
        };
        Ok(Arc::new(tables, GFP_KERNEL)?)
    }
}
