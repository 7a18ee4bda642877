// SPDX-License-Identifier: GPL-2.0

//! A sparse table of shared objects that is read under RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use super::{
    atomic_place::AtomicPlace,
    rcu::{rcu_barrier, Record},
};
use core::ptr::{self, NonNull};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        rcu, Arc, ArcBorrow,
    },
};

/// Number of index bits that one level of the table resolves.
const LEVEL_BITS: u32 = 8;
/// Number of slots of a node.
const SLOTS: usize = 1 << LEVEL_BITS;

/// A table of up to 2^24 entries by index. Readers take neither a lock nor a reference.
///
/// It has three levels. A node is allocated when an index in its range is first used, and kept
/// until the table is dropped. Writers do not lock either, so everything except dropping the table
/// is allowed in any context.
///
/// The table owns a reference to each entry. [`remove`](RcuTable::remove) gives it up once all
/// readers that may see the entry have finished. If it is the last reference, an RCU callback drops
/// the entry in softirq context.
pub struct RcuTable<T: Send + Sync + 'static> {
    root: KBox<Directory<Directory<Leaf<T>>>>,
}

/// An inner node: pointers to nodes of the next level, or null for nodes not yet allocated.
///
/// # Invariants
///
/// Nothing takes a child out.
struct Directory<N> {
    children: [AtomicPlace<KBox<N>>; SLOTS],
}

/// A node of the lowest level.
///
/// # Invariants
///
/// - `values[i]` is null, or points to the value in the record of `records[i]`. While `remove`
///   runs, it may briefly be the value of the record just removed, which RCU keeps alive.
/// - Only the caller that has just filled `records[i]` sets `values[i]`. `values[i]` is cleared
///   before `records[i]`.
struct Leaf<T> {
    /// Pointers that readers follow.
    values: [Atomic<*mut T>; SLOTS],
    /// Records that own the references to the values. They are kept apart from `values`, so that
    /// the cache lines of readers hold only values.
    records: [AtomicPlace<KBox<Record<Arc<T>>>>; SLOTS],
}

/// Splits an index into its positions in the three levels. Returns `None` if the index is not below
/// 2^24.
fn split(index: u32) -> Option<(usize, usize, usize)> {
    if index >> (3 * LEVEL_BITS) != 0 {
        return None;
    }
    let mask = (SLOTS as u32).wrapping_sub(1);
    Some((
        (index >> (2 * LEVEL_BITS)) as usize,
        ((index >> LEVEL_BITS) & mask) as usize,
        (index & mask) as usize,
    ))
}

// SAFETY: All places may be empty.
unsafe impl<N> pin_init::Zeroable for Directory<N> {}
// SAFETY: A null pointer is a valid `Atomic<*mut _>`, and means that there is no value. All places
// may be empty.
unsafe impl<T> pin_init::Zeroable for Leaf<T> {}

impl<N: pin_init::Zeroable> Directory<N> {
    /// Returns the child in a slot, if it exists.
    #[inline]
    fn child(&self, slot: usize) -> Option<&N> {
        // SAFETY: Nothing takes a child out (type invariant).
        unsafe { self.children.get(slot)?.get() }
    }

    /// Returns the child in a slot, and allocates it if necessary.
    fn child_or_new(&self, slot: usize, flags: Flags) -> Result<&N> {
        if let Some(child) = self.child(slot) {
            return Ok(child);
        }
        let entry = self.children.get(slot).ok_or(EINVAL)?;
        // If this fails, another writer was faster.
        let _ = entry.fill(KBox::zeroed(flags)?);
        self.child(slot).ok_or(EINVAL)
    }
}

impl<T: Send + Sync + 'static> RcuTable<T> {
    /// Creates an empty table. Sleeps.
    pub fn new() -> Result<Self> {
        Ok(Self {
            root: KBox::zeroed(GFP_KERNEL)?,
        })
    }

    /// Returns the entry at `index`, valid while the guard is held. Any context.
    ///
    /// [`Arc::from`] turns the result into an owned reference.
    #[inline]
    pub fn get<'a>(&'a self, index: u32, _guard: &'a rcu::Guard) -> Option<ArcBorrow<'a, T>> {
        let (leaf, low) = self.leaf(index)?;
        // Acquire pairs with the publication in `insert`.
        let value = NonNull::new(leaf.values.get(low)?.load(Acquire))?;
        // SAFETY: The value was read under RCU, so the table's reference to it outlives the guard:
        // `remove` clears the slot first and drops the reference after a grace period, and the
        // table cannot be dropped while it is borrowed. The value is never made unique, because the
        // table holds a reference.
        Some(unsafe { ArcBorrow::from_raw(value.as_ptr()) })
    }

    /// Inserts an entry at `index`. Returns `EBUSY` if the index is in use, `EINVAL` if it is not
    /// below 2^24. Any context that `flags` allows.
    pub fn insert(&self, index: u32, value: Arc<T>, flags: Flags) -> Result {
        let (top, middle, low) = split(index).ok_or(EINVAL)?;
        let leaf = self
            .root
            .child_or_new(top, flags)?
            .child_or_new(middle, flags)?;
        let values = leaf.values.get(low).ok_or(EINVAL)?;
        let records = leaf.records.get(low).ok_or(EINVAL)?;
        let target = Arc::as_ptr(&value).cast_mut();
        let record = Record::new(value, flags)?;
        records.fill(record).map_err(|_| EBUSY)?;
        // INVARIANT: This function has just set the record. Until it sets the value, `remove` finds
        // nothing and another `insert` finds the record.
        values.xchg(target, Full);
        Ok(())
    }

    /// Removes the entry at `index`. Returns whether there was one. Any context.
    ///
    /// Readers that have already found the entry may use it until their guard ends. The index can
    /// be reused immediately.
    pub fn remove(&self, index: u32) -> bool {
        // SAFETY: Dropping the table waits for the callback.
        let drop_later = |record| unsafe { Record::drop_later(record) };
        self.take(index).map(drop_later).is_some()
    }

    /// Returns the leaf with the slot of an index, if it exists, and the position in the leaf.
    #[inline]
    fn leaf(&self, index: u32) -> Option<(&Leaf<T>, usize)> {
        let (top, middle, low) = split(index)?;
        Some((self.root.child(top)?.child(middle)?, low))
    }

    fn take(&self, index: u32) -> Option<KBox<Record<Arc<T>>>> {
        let (leaf, low) = self.leaf(index)?;
        // If several callers remove the index, one of them gets the value and thus the record.
        let value = leaf.values.get(low)?.xchg(ptr::null_mut(), Full);
        if value.is_null() {
            return None;
        }
        leaf.records.get(low)?.take()
    }
}

impl<T: Send + Sync + 'static> Drop for RcuTable<T> {
    /// Drops all entries, and waits until the removed ones have been dropped. Sleeps.
    fn drop(&mut self) {
        // The callbacks are code of this module, which may be unloaded soon.
        rcu_barrier();
    }
}
