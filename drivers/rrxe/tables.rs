// SPDX-License-Identifier: GPL-2.0

//! Lookup tables for packets and work requests: queue pairs, memory regions, address handles,
//! shared receive queues.
//!
//! The tables belong to the module and not to a device: a queue pair number finds its queue pair in
//! one step, and all other fields of the packet are compared with that queue pair. Numbers that
//! peers name are table indices after a keyed permutation, so that they can't be guessed.

use crate::{
    limits,
    qp::Qp,
    verbs::{address_handle::AddressHandle, mr::MrTable, quota::Quotas, srq::Srq},
};
use core::ops::RangeInclusive;
use kernel::{
    new_spinlock,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, Arc, ArcBorrow, SpinLock,
    },
};
use linux_rdma::{
    random,
    sync::{IndexPool, RcuListEntry, RcuLists, RcuTable, SoftirqBudget},
};
use rrxe_core::permute::Permutation;

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

/// Smallest number of allocations before a number is reused, so that a late packet, or a key that a
/// peer has kept, finds nothing. The number of an object that has lived for a whole round may be
/// reused soon after the object's end. A table uses 8 bytes for each number.
const MIN_REUSE_DISTANCE: u32 = 32_768;

/// First and last number of the domain that the permutation works on: 24 bits, without the numbers
/// with a special meaning (0, 1 and 0xffffff as queue pairs).
const FIRST_NUMBER: u32 = 2;
const LAST_NUMBER: u32 = 0xff_fffe;

/// Objects that packets name by unguessable numbers.
#[pin_data]
pub(crate) struct NumberTable<T: Send + Sync + 'static> {
    table: RcuTable<T>,
    permutation: Permutation,
    #[pin]
    pool: IndexPool,
    /// The last index that may be allocated; [`FIRST_NUMBER`] is the first.
    last: u32,
    /// One more than the index that was allocated last. Nothing sleeps with it locked, so that no
    /// program waits for another one whose control group has no memory left.
    #[pin]
    next: SpinLock<u32>,
    used: Atomic<u32>,
}

impl<T: Send + Sync + 'static> NumberTable<T> {
    /// Returns a table for `max` objects.
    pub(crate) fn new(max: u32) -> impl PinInit<Self, Error> {
        let key = [random::bytes(), random::bytes()].map(u64::from_ne_bytes);
        try_pin_init!(Self {
            table: RcuTable::new()?,
            permutation: Permutation::new(key, FIRST_NUMBER, LAST_NUMBER).ok_or(EINVAL)?,
            pool <- IndexPool::new(),
            last: max.saturating_add(FIRST_NUMBER - 1).min(LAST_NUMBER),
            next <- new_spinlock!(FIRST_NUMBER, "rrxe_numbers"),
            used: Atomic::new(0),
        })
    }

    /// Reserves an index. Returns it with its external number. Sleeps.
    ///
    /// Allocation cycles through the lowest indices, so that a table has few leaves: four times the
    /// number in use, and at least [`MIN_REUSE_DISTANCE`].
    pub(crate) fn reserve(&self) -> Result<(u32, u32)> {
        let cycle = self.used.load(Relaxed).saturating_mul(4);
        let cycle = cycle.max(MIN_REUSE_DISTANCE);
        let range = FIRST_NUMBER..=self.last.min(FIRST_NUMBER.saturating_add(cycle));
        let index = loop {
            let first = match self.take_next(&range) {
                Err(first) => first,
                Ok(result) => break result?,
            };
            // The pool needs memory, once for each 1,024 indices. It is charged to the current
            // process, which may have to reclaim some first.
            let index = self.pool.alloc_from(first, range.clone(), GFP_KERNEL)?;
            if self.settle(first, index) {
                break index;
            }
        };
        self.used.fetch_add(1, Relaxed);
        // Never fails: all indices are in the permutation's domain.
        Ok((index, self.permutation.apply(index).ok_or(EINVAL)?))
    }

    /// Allocates the next index without sleeping. Returns the index to start from as an error if
    /// that needs more memory than is free at once.
    fn take_next(&self, range: &RangeInclusive<u32>) -> Result<Result<u32>, u32> {
        let mut next = self.next.lock();
        match self.pool.alloc_from(*next, range.clone(), GFP_NOWAIT) {
            Err(e) if e == ENOMEM => Err(*next),
            Ok(index) => {
                *next = index.wrapping_add(1);
                Ok(Ok(index))
            }
            error => Ok(error),
        }
    }

    /// Accepts an index that was allocated from `first` on without the lock. If others have been
    /// allocated meanwhile, frees the index, which may have been in use until a moment ago, and
    /// returns false. The memory for the index that is next then exists.
    fn settle(&self, first: u32, index: u32) -> bool {
        let mut next = self.next.lock();
        let settled = *next == first;
        if settled {
            *next = index.wrapping_add(1);
        } else {
            self.pool.free(index);
        }
        settled
    }

    /// Makes the object visible to the packet path.
    pub(crate) fn publish(&self, index: u32, object: Arc<T>) -> Result {
        self.table.insert(index, object, GFP_KERNEL_ACCOUNT)
    }

    /// Returns the object with this number.
    #[inline]
    pub(crate) fn get<'a>(&'a self, number: u32, rcu: &'a rcu::Guard) -> Option<ArcBorrow<'a, T>> {
        self.table.get(self.permutation.invert(number)?, rcu)
    }

    /// Hides the object from the packet path.
    pub(crate) fn withdraw(&self, index: u32) {
        self.table.remove(index);
    }

    /// Frees an index for later reuse.
    pub(crate) fn release(&self, index: u32) {
        self.used.fetch_sub(1, Relaxed);
        self.pool.free(index);
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[kernel::prelude::kunit_tests(rrxe_tables)]
mod tests {
    use super::*;

    /// An index that was allocated without the lock counts only if no other one was meanwhile: one
    /// that was freed a moment ago must not be used again at once.
    #[test]
    fn an_allocation_that_took_long_starts_anew() -> Result {
        let table = KBox::pin_init(NumberTable::<()>::new(100), GFP_KERNEL)?;
        let range = FIRST_NUMBER..=100;
        // No time has passed.
        let index = table.pool.alloc_from(2, range.clone(), GFP_KERNEL)?;
        assert!(table.settle(2, index));
        assert_eq!(table.take_next(&range), Ok(Ok(3)));
        // Another process allocates and frees 4 while this one waits for memory.
        assert_eq!(table.take_next(&range), Ok(Ok(4)));
        table.pool.free(4);
        let index = table.pool.alloc_from(4, range.clone(), GFP_KERNEL)?;
        assert_eq!((index, table.settle(4, index)), (4, false));
        assert_eq!(table.take_next(&range), Ok(Ok(5)));
        assert_eq!(table.reserve()?.0, 6);
        // The index that was given up is free.
        assert_eq!(table.pool.alloc(range, GFP_KERNEL), Ok(4));
        Ok(())
    }
}
