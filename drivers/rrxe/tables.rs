// SPDX-License-Identifier: GPL-2.0

//! What packets and work requests look up by number: queue pairs, memory regions, address handles.
//!
//! The tables belong to the module, not to a device: a queue pair number finds its queue pair in
//! one step, and everything else about a packet is compared with that queue pair. Numbers that a
//! stranger sees are table indices behind a keyed permutation, so that they can't be guessed.

use crate::{address_handle::AddressHandle, limits, mr::Mr, qp::Qp, srq::Srq};
use core::ops::RangeInclusive;
use kernel::{
    alloc::Flags,
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

/// Numbers of a round, at least, in which each is given out once: a late packet, or a key that a
/// peer has kept, then finds nothing. A number whose object has lived for a whole round may be given
/// out again soon after its end. A table has 8 bytes for each.
const ROUND: u32 = 32_768;

/// Indices of 24 bits, of which those in `range` are given out in turn.
#[pin_data]
struct Numbers {
    #[pin]
    pool: IndexPool,
    permutation: Permutation,
    range: RangeInclusive<u32>,
    /// One above the index that was given out last.
    #[pin]
    next: Mutex<u32>,
    used: Atomic<u32>,
    recent: Recent,
}

/// Numbers and their indices, as they were needed last: the way back through a permutation takes a hundred
/// instructions, and packets in a row name the same few. What a number's index is never changes, so nothing of this
/// gets old.
struct Recent([Atomic<u64>; RECENT]);

/// Places for those: 2 KiB.
const RECENT: usize = 256;

impl Recent {
    /// What no number is: they have 24 bits.
    const NONE: u64 = u64::MAX;

    fn new() -> Self {
        Self([const { Atomic::new(Self::NONE) }; RECENT])
    }

    /// The index of a number: the one of its place, or what `find` says.
    #[inline]
    fn index(&self, number: u32, find: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let place = self.0.get(number as usize % RECENT)?;
        let known = place.load(Relaxed);
        if known >> 32 == u64::from(number) {
            return Some(known as u32);
        }
        let index = find()?;
        place.store(u64::from(number) << 32 | u64::from(index), Relaxed);
        Some(index)
    }
}

/// First and last number of the domain that a permutation works on: 24 bits, without the numbers
/// that mean something (0, 1 and 0xffffff as queue pairs).
const FIRST: u32 = 2;
const LAST: u32 = 0xff_fffe;

fn permutation() -> Result<Permutation> {
    let key = || {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    };
    Permutation::new([key(), key()], FIRST, LAST).ok_or(EINVAL)
}

impl Numbers {
    /// At most `max` numbers at a time.
    fn new(max: u32) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pool <- IndexPool::new(),
            permutation: permutation()?,
            range: FIRST..=FIRST.saturating_add(max.saturating_sub(1)).min(LAST),
            next <- new_mutex!(FIRST, "rrxe_numbers"),
            used: Atomic::new(0),
            recent: Recent::new(),
        })
    }

    /// Returns a free index and the number that stands for it outside.
    ///
    /// Indices go round in the lowest part of the range, so that a table has few leaves. That part
    /// has four times as many as are used, and [`ROUND`] at least.
    fn reserve(&self) -> Result<(u32, u32)> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let part = self.used.load(Relaxed).saturating_mul(4).max(ROUND);
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

    /// Lets an index be used again, when its turn has come.
    fn release(&self, index: u32) {
        self.used.fetch_sub(1, Relaxed);
        self.pool.free(index);
    }

    #[inline]
    fn index(&self, number: u32) -> Option<u32> {
        self.recent
            .index(number, || self.permutation.invert(number))
    }
}

/// Objects that packets name by numbers which can't be guessed.
#[pin_data]
pub(crate) struct NumberTable<T: Send + Sync + 'static> {
    #[pin]
    numbers: Numbers,
    table: RcuTable<T>,
}

/// Queue pairs by number.
pub(crate) type QpTable = NumberTable<Qp>;

/// Shared receive queues for XRC by number.
pub(crate) type SrqTable = NumberTable<Srq>;

/// Memory regions by key: 24 bits of number, and 8 low bits that change with each use of it.
#[pin_data]
pub(crate) struct RegionTable {
    #[pin]
    regions: NumberTable<Mr>,
}

/// Address handles by number, which only their own process sees.
#[pin_data]
pub(crate) struct AddressTable {
    #[pin]
    pool: IndexPool,
    table: RcuTable<AddressHandle>,
}

/// All tables.
#[pin_data]
pub(crate) struct Tables {
    #[pin]
    pub(crate) qps: QpTable,
    #[pin]
    pub(crate) regions: RegionTable,
    #[pin]
    pub(crate) addresses: AddressTable,
    #[pin]
    pub(crate) srqs: SrqTable,
}

impl Tables {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                qps <- NumberTable::new(limits::MAX_QP),
                regions <- try_pin_init!(RegionTable {
                    regions <- NumberTable::new(limits::MAX_MR),
                }),
                addresses <- try_pin_init!(AddressTable {
                    pool <- IndexPool::new(),
                    table: RcuTable::new()?,
                }),
                srqs <- NumberTable::new(limits::MAX_SRQ),
            }? Error),
            GFP_KERNEL,
        )
    }
}

impl<T: Send + Sync + 'static> NumberTable<T> {
    /// Room for `max` objects.
    fn new(max: u32) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            numbers <- Numbers::new(max),
            table: RcuTable::new()?,
        })
    }

    /// An index and the number that stands for it.
    pub(crate) fn reserve(&self) -> Result<(u32, u32)> {
        self.numbers.reserve()
    }

    /// Lets packets find the object.
    pub(crate) fn publish(&self, index: u32, object: Arc<T>) -> Result {
        self.table.insert(index, object, GFP_KERNEL_ACCOUNT)
    }

    /// The object of this number.
    #[inline]
    pub(crate) fn get<'a>(&'a self, number: u32, rcu: &'a rcu::Guard) -> Option<ArcBorrow<'a, T>> {
        self.table.get(self.numbers.index(number)?, rcu)
    }

    /// No packet finds the object from now on.
    pub(crate) fn withdraw(&self, index: u32) {
        drop(self.table.remove(index));
    }

    /// The number may be used again.
    pub(crate) fn release(&self, index: u32) {
        self.numbers.release(index);
    }
}

impl RegionTable {
    /// An index and the key that stands for it.
    pub(crate) fn reserve(&self) -> Result<(u32, u32)> {
        let (index, number) = self.regions.reserve()?;
        Ok((index, number << 8 | random::u32() & 0xff))
    }

    /// Lets work requests and packets find the region.
    pub(crate) fn publish(&self, index: u32, mr: Arc<Mr>) -> Result {
        self.regions.publish(index, mr)
    }

    /// The region at the place of this key; whether it is its key is for the caller to check.
    #[inline]
    pub(crate) fn get<'a>(&'a self, key: u32, rcu: &'a rcu::Guard) -> Option<&'a Mr> {
        let NumberTable { numbers, table } = &self.regions;
        table.get_ref(numbers.index(key >> 8)?, rcu)
    }

    /// A reference to it, to be kept.
    pub(crate) fn get_arc(&self, key: u32, rcu: &rcu::Guard) -> Option<Arc<Mr>> {
        self.regions.get(key >> 8, rcu).map(Arc::from)
    }

    /// Nobody finds the region from now on.
    pub(crate) fn withdraw(&self, index: u32) {
        self.regions.withdraw(index);
    }

    /// The index may be used again.
    pub(crate) fn release(&self, index: u32) {
        self.regions.release(index);
    }
}

impl AddressTable {
    /// Lets work requests find the handle that `make` makes of its number.
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

    /// The handle of this number.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        number: u32,
        rcu: &'a rcu::Guard,
    ) -> Option<ArcBorrow<'a, AddressHandle>> {
        self.table.get(number, rcu)
    }

    /// Nobody finds the handle from now on.
    pub(crate) fn remove(&self, number: u32) {
        if self.table.remove(number).is_some() {
            self.pool.free(number);
        }
    }
}
