// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The lock of a queue.
//!
//! A guard of `std`'s mutex lives in a scope, but `ibv_wr_start` and `ibv_start_poll` take a lock
//! in one call and release it in another. Critical sections are short (a batch of ring entries) and
//! never block, so waiters spin. The holder may have been preempted, so they yield after a while.

use crate::ffi::os;
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Attempts before a waiter yields.
const SPINS: u32 = 64;

/// A value behind a spin lock, which is a no-op if the consumer promised to use one thread only.
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    shared: bool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value. If the lock is a no-op, only one thread
// does (`Lock::new_unshared`).
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value of a [`Lock`], which is released when the guard is dropped. If the guard is
/// forgotten, the lock stays held.
#[must_use = "the lock is released when the guard is dropped"]
pub(crate) struct Guard<'a, T>(&'a Lock<T>, PhantomData<&'a mut T>);

impl<T> Lock<T> {
    /// Creates a free lock.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            shared: true,
            value: UnsafeCell::new(value),
        }
    }

    /// Creates a lock that is a no-op.
    ///
    /// # Safety
    ///
    /// One thread at a time uses the lock, and no two guards access the value at a time.
    pub(crate) const unsafe fn new_unshared(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            shared: false,
            value: UnsafeCell::new(value),
        }
    }

    /// Creates a free lock, which is a no-op unless `shared`: the consumer promises to use one
    /// thread only, with a thread domain or by a flag.
    pub(crate) fn shared_if(shared: bool, value: T) -> Self {
        if shared {
            return Self::new(value);
        }
        // SAFETY: the consumer's promise. A verb ends each guard before it takes another.
        unsafe { Self::new_unshared(value) }
    }

    /// Acquires the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.shared && !self.take() {
            self.wait();
        }
        Guard(self, PhantomData)
    }

    /// Acquires the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        (!self.shared || self.take()).then(|| Guard(self, PhantomData))
    }

    /// Returns the guard of a lock that is held.
    ///
    /// # Safety
    ///
    /// The lock is held on behalf of the caller, for example by a guard that was forgotten, and
    /// there is no other guard.
    pub(crate) unsafe fn held(&self) -> Guard<'_, T> {
        Guard(self, PhantomData)
    }

    #[inline]
    fn take(&self) -> bool {
        self.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        loop {
            while self.taken.load(Ordering::Relaxed) {
                if spins < SPINS {
                    spins = spins.saturating_add(1);
                    spin_loop();
                } else {
                    os::sched_yield();
                }
            }
            if self.take() {
                return;
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard's owner holds the lock. If it is a no-op, no other guard is in use
        // (`Lock::new_unshared`).
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.shared {
            self.0.taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn excludes_other_threads() {
        const ROUNDS: u64 = 20_000;

        let shared = Lock::new(0_u64);
        let one = &shared;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        *one.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*shared.lock(), 4 * ROUNDS);
    }

    #[test]
    fn costs_nothing_where_one_thread_was_promised() {
        // SAFETY: this test is one thread, and accesses no value.
        let lock = unsafe { Lock::new_unshared(()) };
        core::mem::forget(lock.lock());
        core::mem::forget(lock.lock());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn is_tried() {
        let lock = Lock::new(());
        let guard = lock.try_lock();
        assert!(guard.is_some());
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn stays_taken_when_the_guard_is_forgotten() {
        let lock = Lock::new(());
        core::mem::forget(lock.lock());
        assert!(lock.try_lock().is_none());
        // SAFETY: this test holds the lock, and its guard was forgotten.
        drop(unsafe { lock.held() });
        assert!(lock.try_lock().is_some());
    }
}
