// SPDX-License-Identifier: GPL-2.0

//! Tables of objects that peers name by numbers. The numbers are table indices after a keyed
//! permutation, so that they can't be guessed.

use core::ops::RangeInclusive;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        rcu, Arc, ArcBorrow, Mutex,
    },
};
use linux_rdma::{
    random,
    sync::{IndexPool, RcuTable},
};
use rrxe_core::permute::Permutation;

/// Smallest number of allocations before a number is reused, so that a late packet, or a key that a
/// peer has kept, finds nothing. The number of an object that has lived for a whole round may be
/// reused soon after the object's end. A table uses 8 bytes for each number.
const MIN_REUSE_DISTANCE: u32 = 32_768;

/// Allocator of 24-bit indices. Those in `range` are allocated in turn.
#[pin_data]
struct Numbers {
    #[pin]
    pool: IndexPool,
    permutation: Permutation,
    range: RangeInclusive<u32>,
    /// One more than the index that was allocated last.
    #[pin]
    next: Mutex<u32>,
    used: Atomic<u32>,
}

/// First and last number of the domain that the permutation works on: 24 bits, without the numbers
/// with a special meaning (0, 1 and 0xffffff as queue pairs).
const FIRST_NUMBER: u32 = 2;
const LAST_NUMBER: u32 = 0xff_fffe;

fn permutation() -> Result<Permutation> {
    let key = || {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    };
    Permutation::new([key(), key()], FIRST_NUMBER, LAST_NUMBER).ok_or(EINVAL)
}

impl Numbers {
    /// Returns an allocator for at most `max` numbers at a time.
    fn new(max: u32) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pool <- IndexPool::new(),
            permutation: permutation()?,
            range: FIRST_NUMBER
                ..=FIRST_NUMBER.saturating_add(max.saturating_sub(1)).min(LAST_NUMBER),
            next <- new_mutex!(FIRST_NUMBER, "rrxe_numbers"),
            used: Atomic::new(0),
        })
    }

    /// Returns a free index and its external number.
    ///
    /// Allocation cycles through the lowest part of the range, so that a table has few leaves. That
    /// part is four times as large as the number of indices in use, and at least
    /// [`MIN_REUSE_DISTANCE`].
    fn reserve(&self) -> Result<(u32, u32)> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let part = self
            .used
            .load(Relaxed)
            .saturating_mul(4)
            .max(MIN_REUSE_DISTANCE);
        let mut next = self.next.lock();
        let part = first..=last.min(first.saturating_add(part));
        let index = self.pool.alloc_from(*next, part, GFP_KERNEL_ACCOUNT)?;
        *next = index.wrapping_add(1);
        match self.permutation.apply(index) {
            Some(number) => {
                self.used.fetch_add(1, Relaxed);
                Ok((index, number))
            }
            None => {
                self.pool.free(index);
                Err(EINVAL)
            }
        }
    }

    /// Frees an index for later reuse.
    fn release(&self, index: u32) {
        self.used.fetch_sub(1, Relaxed);
        self.pool.free(index);
    }
}

/// Objects that packets name by unguessable numbers.
#[pin_data]
pub(crate) struct NumberTable<T: Send + Sync + 'static> {
    #[pin]
    numbers: Numbers,
    table: RcuTable<T>,
}

impl<T: Send + Sync + 'static> NumberTable<T> {
    /// Returns a table for `max` objects.
    pub(crate) fn new(max: u32) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            numbers <- Numbers::new(max),
            table: RcuTable::new()?,
        })
    }

    /// Reserves an index. Returns it with its external number.
    pub(crate) fn reserve(&self) -> Result<(u32, u32)> {
        self.numbers.reserve()
    }

    /// Makes the object visible to the packet path.
    pub(crate) fn publish(&self, index: u32, object: Arc<T>) -> Result {
        self.table.insert(index, object, GFP_KERNEL_ACCOUNT)
    }

    /// Returns the object with this number.
    #[inline]
    pub(crate) fn get<'a>(&'a self, number: u32, rcu: &'a rcu::Guard) -> Option<ArcBorrow<'a, T>> {
        self.table
            .get(self.numbers.permutation.invert(number)?, rcu)
    }

    /// Hides the object from the packet path.
    pub(crate) fn withdraw(&self, index: u32) {
        self.table.remove(index);
    }

    /// Frees the number for reuse.
    pub(crate) fn release(&self, index: u32) {
        self.numbers.release(index);
    }
}
