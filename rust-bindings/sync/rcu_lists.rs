// SPDX-License-Identifier: GPL-2.0

//! Lists that are read under RCU, with one lock for all writers.
//!
//! C header: `include/linux/rcupdate.h`.

use super::rcu::Record;
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

/// An entry of a list.
struct Node<T> {
    next: Link<T>,
    value: T,
}

// SAFETY: A node owns its value. The link is an atomic pointer and does not own anything.
unsafe impl<T: Send> Send for Node<T> {}

/// An allocated entry that is not in a list yet. Adding it cannot fail.
pub struct RcuListEntry<T: Send + 'static>(KBox<Record<Node<T>>>);

impl<T: Send + 'static> RcuListEntry<T> {
    /// Allocates an entry. Returns `ENOMEM` on failure.
    pub fn new(value: T, flags: Flags) -> Result<Self> {
        let next = Atomic::new(ptr::null_mut());
        Ok(Self(Record::new(Node { next, value }, flags)?))
    }
}

/// The heads of `N` lists, which own all entries.
struct Heads<T: Send + 'static, const N: usize>([Link<T>; N]);

impl<T: Send + 'static, const N: usize> Drop for Heads<T, N> {
    /// Drops all remaining values immediately, because there are no readers left.
    fn drop(&mut self) {
        for head in &mut self.0 {
            let mut next = *head.get_mut();
            while !next.is_null() {
                // SAFETY: By the invariants of `RcuLists`, the entry came from `into_raw`. `&mut
                // self` rules out readers and writers.
                let mut record = unsafe { KBox::from_raw(next) };
                next = *record.value.next.get_mut();
            }
        }
    }
}

/// `N` lists of `T`, with one lock for all writers.
///
/// Readers take neither a lock nor a reference. Linking and removing an entry allocate no memory.
/// An RCU callback drops a removed value in softirq context after a grace period, so its `Drop`
/// must not sleep. Dropping the lists does not sleep, so an RCU callback may do that, too.
///
/// # Invariants
///
/// - Each link is null or came from [`KBox::into_raw`], and leads to an entry of one list only.
/// - Only the owner of the writers' lock changes links. An unlinked entry is dropped after a grace
///   period.
#[pin_data]
pub struct RcuLists<T: Send + Sync + 'static, const N: usize> {
    heads: Heads<T, N>,
    #[pin]
    writers: Mutex<()>,
}

// SAFETY: The lists own values, which another thread may drop, and hand out `&T`.
unsafe impl<T: Send + Sync, const N: usize> Send for RcuLists<T, N> {}
// SAFETY: Shared references hand out `&T`; a lock protects changes to the links.
unsafe impl<T: Send + Sync, const N: usize> Sync for RcuLists<T, N> {}

impl<T: Send + Sync + 'static, const N: usize> RcuLists<T, N> {
    /// Creates `N` empty lists. `name` and `key` are those of the writers' lock, for lockdep.
    ///
    /// # Safety
    ///
    /// The module calls [`rcu_barrier`](super::rcu_barrier) after it has dropped the lists, and
    /// before it is unloaded.
    pub unsafe fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        // INVARIANT: All links are null.
        pin_init!(Self {
            heads: Heads([const { Atomic::new(ptr::null_mut()) }; N]),
            writers <- Mutex::new((), name, key),
        })
    }

    /// Returns the values of a list, or nothing if there is no list with this index. Any context.
    #[inline]
    pub fn iter<'a>(&'a self, list: usize, _guard: &'a rcu::Guard) -> impl Iterator<Item = &'a T> {
        let mut link = self.heads.0.get(list);
        core::iter::from_fn(move || {
            // SAFETY: The pointer is null or a live entry: it was read under RCU, and an entry is
            // dropped only after a grace period (type invariants). Acquire pairs with the
            // publication in `push`.
            let record = unsafe { link?.load(Acquire).as_ref() }?;
            link = Some(&record.value.next);
            Some(&record.value.value)
        })
    }

    /// Locks the lists for modification. Sleeps.
    pub fn lock(&self) -> RcuListsWriter<'_, T, N> {
        // INVARIANT: The guard belongs to the lock of `self`.
        RcuListsWriter {
            lists: self,
            _guard: self.writers.lock(),
        }
    }
}

/// Write access to the lists.
///
/// # Invariants
///
/// `_guard` is that of the writers' lock of `lists`.
pub struct RcuListsWriter<'a, T: Send + Sync + 'static, const N: usize> {
    lists: &'a RcuLists<T, N>,
    _guard: MutexGuard<'a, ()>,
}

impl<T: Send + Sync + 'static, const N: usize> RcuListsWriter<'_, T, N> {
    /// Adds an entry at the front of a list. Drops the entry if there is no list with this index.
    pub fn push(&mut self, list: usize, entry: RcuListEntry<T>) {
        let Some(head) = self.lists.heads.0.get(list) else {
            return;
        };
        entry.0.value.next.store(head.load(Relaxed), Relaxed);
        // INVARIANT: The entry comes from `into_raw`, and the lock is held. Release publishes the
        // entry.
        head.store(KBox::into_raw(entry.0), Release);
    }

    /// Removes the first value of a list for which `is_it` returns true. Returns whether there was
    /// one.
    pub fn remove(&mut self, list: usize, mut is_it: impl FnMut(&T) -> bool) -> bool {
        let mut link = self.lists.heads.0.get(list);
        while let Some(here) = link {
            let Some(record) = NonNull::new(here.load(Relaxed)) else {
                return false;
            };
            // SAFETY: The entry is live: only the holder of the writers' lock unlinks entries (type
            // invariants).
            let node = unsafe { &record.as_ref().value };
            if is_it(&node.value) {
                // INVARIANT: The lock is held, and the entry is dropped after a grace period.
                // Release ordering lets readers see the rest of the list as it was published.
                here.store(node.next.load(Relaxed), Release);
                // SAFETY: By the type invariants, the entry came from `into_raw`. It is unlinked,
                // so only readers still use it. The module waits for the callback (`new`).
                unsafe { Record::drop_later(KBox::from_raw(record.as_ptr())) };
                return true;
            }
            link = Some(&node.next);
        }
        false
    }
}
