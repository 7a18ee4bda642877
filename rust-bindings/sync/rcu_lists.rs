// SPDX-License-Identifier: GPL-2.0

//! Lists that are read under RCU, with one lock for all writers.
//!
//! C header: `include/linux/rcupdate.h`.

use super::rcu::{rcu_barrier, Record};
use core::ptr::{self, NonNull};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        rcu, LockClassKey, Mutex, MutexGuard,
    },
};

/// Link to an entry, or null.
type Link<T> = Atomic<*mut Record<Node<T>>>;

struct Node<T> {
    next: Link<T>,
    value: T,
}

// SAFETY: A node owns its value. The link is only a pointer, and is an atomic.
unsafe impl<T: Send> Send for Node<T> {}

/// An entry that is in no list yet: adding it can't fail.
pub struct RcuListEntry<T: Send + 'static>(KBox<Record<Node<T>>>);

impl<T: Send + 'static> RcuListEntry<T> {
    /// Allocates an entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(value: T, flags: Flags) -> Result<Self> {
        let next = Atomic::new(ptr::null_mut());
        Ok(Self(Record::new(Node { next, value }, flags)?))
    }
}

/// The heads of `N` lists, which own all entries.
struct Heads<T: Send + 'static, const N: usize>([Link<T>; N]);

impl<T: Send + 'static, const N: usize> Drop for Heads<T, N> {
    /// Drops all values at once, since there are no readers any more, and waits for the end of
    /// those that were removed. Sleeps.
    fn drop(&mut self) {
        // The callbacks are code of this module, which may be about to go.
        rcu_barrier();
        for head in &mut self.0 {
            let mut next = *head.get_mut();
            while !next.is_null() {
                // SAFETY: From `into_raw` by the invariants of `RcuLists`, and `&mut self` means
                // that there are neither readers nor writers.
                let mut record = unsafe { KBox::from_raw(next) };
                next = *record.value.next.get_mut();
            }
        }
    }
}

/// `N` lists of `T`, and a description of all of them (`S`), which writers lock.
///
/// Readers take neither lock nor reference. Adding and removing an entry needs no memory. A removed
/// value is dropped after a grace period by an RCU callback in softirq context: its `Drop` must not
/// sleep. Dropping the lists waits for the callbacks, which sleeps.
///
/// # Invariants
///
/// - Each link is null or came from [`KBox::into_raw`], and leads to an entry of one list only.
/// - Links are changed by the owner of the writers' lock only. An entry that is unlinked is dropped
///   after a grace period.
#[pin_data]
pub struct RcuLists<T: Send + Sync + 'static, S, const N: usize> {
    heads: Heads<T, N>,
    #[pin]
    writers: Mutex<S>,
}

// SAFETY: The lists own values that may be dropped by another thread, and hand out `&T`.
unsafe impl<T: Send + Sync, S: Send, const N: usize> Send for RcuLists<T, S, N> {}
// SAFETY: Shared references hand out `&T`, and `S` and the links change under a lock.
unsafe impl<T: Send + Sync, S: Send, const N: usize> Sync for RcuLists<T, S, N> {}

impl<T: Send + Sync + 'static, S, const N: usize> RcuLists<T, S, N> {
    /// Returns `N` empty lists. Name and key are those of the writers' lock, for lockdep.
    pub fn new(
        state: S,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        // INVARIANT: All links are null.
        pin_init!(Self {
            heads: Heads([const { Atomic::new(ptr::null_mut()) }; N]),
            writers <- Mutex::new(state, name, key),
        })
    }

    /// Returns the values of a list; none if there is no list of this index. Any context.
    #[inline]
    pub fn iter<'a>(&'a self, list: usize, _guard: &'a rcu::Guard) -> impl Iterator<Item = &'a T> {
        let mut link = self.heads.0.get(list);
        core::iter::from_fn(move || {
            // SAFETY: Null, or a live entry by the type invariants: it was seen under RCU, and is
            // dropped only after a grace period. Acquire pairs with the publication in `push`.
            let record = unsafe { link?.load(Acquire).as_ref() }?;
            link = Some(&record.value.next);
            Some(&record.value.value)
        })
    }

    /// Locks the lists for changes. Sleeps.
    pub fn lock(&self) -> RcuListsWriter<'_, T, S, N> {
        // INVARIANT: The guard is of this lock.
        RcuListsWriter {
            lists: self,
            state: self.writers.lock(),
        }
    }
}

/// The right to change lists.
///
/// # Invariants
///
/// `state` is the guard of the lock of `lists`.
pub struct RcuListsWriter<'a, T: Send + Sync + 'static, S, const N: usize> {
    lists: &'a RcuLists<T, S, N>,
    state: MutexGuard<'a, S>,
}

impl<T: Send + Sync + 'static, S: Unpin, const N: usize> RcuListsWriter<'_, T, S, N> {
    /// Returns the description of all lists.
    pub fn state(&mut self) -> &mut S {
        &mut self.state
    }

    /// Adds an entry at the front of a list. If there is no list of this index, drops the entry.
    pub fn push(&mut self, list: usize, entry: RcuListEntry<T>) {
        let Some(head) = self.lists.heads.0.get(list) else {
            return;
        };
        entry.0.value.next.store(head.load(Relaxed), Relaxed);
        // INVARIANT: From `into_raw`, and the lock is held. Release publishes the entry.
        head.store(KBox::into_raw(entry.0), Release);
    }

    /// Removes the first value of a list that `is_it` accepts. Returns whether there was one.
    pub fn remove(&mut self, list: usize, mut is_it: impl FnMut(&T) -> bool) -> bool {
        let mut link = self.lists.heads.0.get(list);
        while let Some(here) = link {
            let Some(record) = NonNull::new(here.load(Relaxed)) else {
                return false;
            };
            // SAFETY: By the type invariants the entry is live: only this writer may unlink it.
            let node = unsafe { &record.as_ref().value };
            if is_it(&node.value) {
                // INVARIANT: The lock is held, and the entry is dropped after a grace period.
                // Release, since a reader must see the rest of the list as it was published.
                here.store(node.next.load(Relaxed), Release);
                // SAFETY: From `into_raw` by the type invariants. It is unlinked, so
                // only readers still use it. Dropping the lists waits for the callback.
                unsafe { Record::drop_later(record) };
                return true;
            }
            link = Some(&node.next);
        }
        false
    }
}
