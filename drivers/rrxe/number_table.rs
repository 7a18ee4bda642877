// SPDX-License-Identifier: GPL-2.0

//! Tables of objects that packets name by number.
//!
//! Numbers that peers name are table indices after a keyed permutation, so that they can't be
//! guessed.

use core::ops::RangeInclusive;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, Arc, ArcBorrow, SpinLock,
    },
};
use linux_rdma::{
    random,
    sync::{IndexPool, RcuTable},
};
use rrxe_core::{permute::Permutation, Increment};

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
        let cycle = self.used.load(Relaxed).min(LAST_NUMBER) << 2;
        let cycle = cycle.max(MIN_REUSE_DISTANCE);
        let range = FIRST_NUMBER..=self.last.min(FIRST_NUMBER.saturating_add(cycle));
        let index = loop {
            let first = match self.allocate_next(&range) {
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
    fn allocate_next(&self, range: &RangeInclusive<u32>) -> Result<Result<u32>, u32> {
        let mut next = self.next.lock();
        match self.pool.alloc_from(*next, range.clone(), GFP_NOWAIT) {
            Err(e) if e == ENOMEM => Err(*next),
            Ok(index) => {
                *next = index;
                next.increment();
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
            *next = index;
            next.increment();
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
        assert_eq!(table.allocate_next(&range), Ok(Ok(3)));
        // Another process allocates and frees 4 while this one waits for memory.
        assert_eq!(table.allocate_next(&range), Ok(Ok(4)));
        table.pool.free(4);
        let index = table.pool.alloc_from(4, range.clone(), GFP_KERNEL)?;
        assert_eq!((index, table.settle(4, index)), (4, false));
        assert_eq!(table.allocate_next(&range), Ok(Ok(5)));
        assert_eq!(table.reserve()?.0, 6);
        // The index that was given up is free.
        assert_eq!(table.pool.alloc(range, GFP_KERNEL), Ok(4));
        Ok(())
    }
}
