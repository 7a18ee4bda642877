// SPDX-License-Identifier: GPL-2.0

//! A sparse table of shared objects, read under RCU.
//!
//! C header: `include/linux/rcupdate.h`.

use super::rcu::{rcu_barrier, Record};
use core::ptr::{self, NonNull};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        rcu, Arc, ArcBorrow,
    },
};

/// Index bits that one level of the table resolves.
const LEVEL_BITS: u32 = 8;
/// Slots of one node.
const SLOTS: usize = 1 << LEVEL_BITS;

/// A table of up to 2^24 entries by index, whose readers take neither lock nor reference.
///
/// Three levels, allocated when an index in their range is first used and kept until the table
/// goes. Writers don't lock either, so everything but dropping the table is allowed in any
/// context.
///
/// The table owns a reference to each entry. [`remove`](RcuTable::remove) gives it up once all
/// readers that may see the entry are done; where it is the last one, the entry is dropped by an
/// RCU callback, in softirq context.
pub struct RcuTable<T: Send + Sync + 'static> {
    root: KBox<Directory<Directory<Leaf<T>>>>,
}

/// An inner node: pointers to nodes of the level below, null where there is none yet.
///
/// # Invariants
///
/// A pointer that is not null came from [`KBox::into_raw`], and does not change any more.
struct Directory<N> {
    children: [Atomic<*mut N>; SLOTS],
}

/// A node of the lowest level.
///
/// # Invariants
///
/// - `values[i]` is null, or points to the value that the record of `records[i]` holds (or, for
///   an instant, of a record that `remove` has just taken out: RCU defers its end).
/// - `records[i]` is null or came from [`KBox::into_raw`], and whoever clears it owns it.
/// - `values[i]` is set only by who has just set `records[i]`, and cleared before it.
struct Leaf<T> {
    /// What readers follow.
    values: [Atomic<*mut T>; SLOTS],
    /// What writers own, the references to the values: kept apart, so that readers' cache lines
    /// hold values only.
    records: [Atomic<*mut Record<Arc<T>>>; SLOTS],
}

/// Position of an index in the three levels.
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

// SAFETY: Null pointers are the valid empty state of an `Atomic<*mut _>`.
unsafe impl<N> pin_init::Zeroable for Directory<N> {}
// SAFETY: Null pointers are the valid empty state of all its atomics, values and records.
unsafe impl<T> pin_init::Zeroable for Leaf<T> {}

impl<N: pin_init::Zeroable> Directory<N> {
    /// The child in a slot, if it exists.
    #[inline]
    fn child(&self, slot: usize) -> Option<&N> {
        // Acquire: pairs with the publication in `child_or_new`.
        let child = self.children.get(slot)?.load(Acquire);
        // SAFETY: By the type invariant a child that is not null is a live box until `self` is
        // dropped, and only shared references to it are made before that.
        unsafe { child.as_ref() }
    }

    /// The child in a slot, made if it does not exist.
    fn child_or_new(&self, slot: usize, flags: Flags) -> Result<&N> {
        if let Some(child) = self.child(slot) {
            return Ok(child);
        }
        let new = KBox::into_raw(KBox::<N>::zeroed(flags)?);
        let entry = self.children.get(slot).ok_or(EINVAL)?;
        // INVARIANT: `new` came from `into_raw`, and only null is replaced.
        if entry.cmpxchg(ptr::null_mut(), new, Full).is_err() {
            // Somebody else was faster.
            // SAFETY: `new` was not published, so it is still ours.
            drop(unsafe { KBox::from_raw(new) });
        }
        self.child(slot).ok_or(EINVAL)
    }
}

impl<N> Drop for Directory<N> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let child = *child.get_mut();
            if !child.is_null() {
                // SAFETY: By the type invariant it came from `into_raw`. `&mut self` means that
                // there are no readers.
                drop(unsafe { KBox::from_raw(child) });
            }
        }
    }
}

impl<T> Drop for Leaf<T> {
    fn drop(&mut self) {
        for record in &mut self.records {
            let record = *record.get_mut();
            if !record.is_null() {
                // SAFETY: As in `Directory::drop`.
                drop(unsafe { KBox::from_raw(record) });
            }
        }
    }
}

impl<T: Send + Sync + 'static> RcuTable<T> {
    /// An empty table.
    pub fn new() -> Result<Self> {
        Ok(Self {
            root: KBox::zeroed(GFP_KERNEL)?,
        })
    }

    /// The entry at `index`, for as long as the guard is held. Any context.
    ///
    /// [`Arc::from`] makes a reference of its own from what is returned.
    #[inline]
    pub fn get<'a>(&'a self, index: u32, _guard: &'a rcu::Guard) -> Option<ArcBorrow<'a, T>> {
        let (top, middle, low) = split(index)?;
        let leaf = self.root.child(top)?.child(middle)?;
        // Acquire: pairs with the publication in `insert`.
        let value = NonNull::new(leaf.values.get(low)?.load(Acquire))?;
        // SAFETY: The value was seen under RCU, so the table's reference to it outlives the
        // guard: `remove` clears the slot first and drops the reference after a grace period,
        // and dropping the table needs it unborrowed. It is never made unique, since the table
        // holds a reference.
        Some(unsafe { ArcBorrow::from_raw(value.as_ptr()) })
    }

    /// As [`get`](RcuTable::get), for who needs no reference of its own.
    #[inline]
    pub fn get_ref<'a>(&'a self, index: u32, guard: &'a rcu::Guard) -> Option<&'a T> {
        let value: *const T = &*self.get(index, guard)?;
        // SAFETY: Valid for `'a`, as what `get` returns is.
        Some(unsafe { &*value })
    }

    /// Puts an entry at `index`. Any context, if `flags` allows it.
    ///
    /// # Errors
    ///
    /// `EBUSY`: there is an entry. `EINVAL`: the index is not below 2^24. `ENOMEM`.
    pub fn insert(&self, index: u32, value: Arc<T>, flags: Flags) -> Result {
        let (top, middle, low) = split(index).ok_or(EINVAL)?;
        let leaf = self
            .root
            .child_or_new(top, flags)?
            .child_or_new(middle, flags)?;
        let values = leaf.values.get(low).ok_or(EINVAL)?;
        let records = leaf.records.get(low).ok_or(EINVAL)?;
        let target = Arc::as_ptr(&value).cast_mut();
        let record = KBox::into_raw(Record::new(value, flags)?);
        if records.cmpxchg(ptr::null_mut(), record, Full).is_err() {
            // SAFETY: The record was not published, so it is still ours.
            drop(unsafe { KBox::from_raw(record) });
            return Err(EBUSY);
        }
        // INVARIANT: The record is ours to complete: until the value is set, `remove` finds
        // nothing, and `insert` finds the record.
        values.xchg(target, Full);
        Ok(())
    }

    /// Takes the entry at `index` out and returns a reference to it. Any context.
    ///
    /// Readers that found the entry before may use it until their guard ends. The index can be
    /// used again at once.
    pub fn remove(&self, index: u32) -> Option<Arc<T>> {
        let (top, middle, low) = split(index)?;
        let leaf = self.root.child(top)?.child(middle)?;
        // Of several removers one gets the value, and with it the record.
        let value = leaf.values.get(low)?.xchg(ptr::null_mut(), Full);
        if value.is_null() {
            return None;
        }
        let record = NonNull::new(leaf.records.get(low)?.xchg(ptr::null_mut(), Full))?;
        // SAFETY: By the type invariants the record is live, and ours now that it is cleared.
        let value = unsafe { record.as_ref() }.value.clone();
        // SAFETY: The record came from `into_raw`, is ours, and only readers of its value are
        // left. Dropping the table waits for the callback.
        unsafe { Record::drop_later(record) };
        Some(value)
    }
}

impl<T: Send + Sync + 'static> Drop for RcuTable<T> {
    /// Drops all entries, and waits for the end of those that were removed. Sleeps.
    fn drop(&mut self) {
        // The callbacks are code of this module, which may be about to go.
        rcu_barrier();
    }
}
