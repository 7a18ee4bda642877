// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The lock of a queue.
//!
//! A guard of `std`'s mutex lives in a scope, but `ibv_wr_start` and `ibv_start_poll` take a lock
//! in one call and release it in another. Critical sections are short (a batch of ring entries) and
//! never block, so waiters spin. The holder may have been preempted, so they yield after a while.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

/// Attempts before a waiter yields.
const SPINS: u32 = 64;

/// A spin lock, or a no-op if the consumer promised to use one thread only.
pub(crate) struct Lock {
    taken: AtomicBool,
    shared: bool,
}

impl Lock {
    /// Creates a free lock. If `shared` is false, all operations do nothing.
    pub(crate) const fn new(shared: bool) -> Self {
        Self {
            taken: AtomicBool::new(false),
            shared,
        }
    }

    /// Acquires the lock. The caller must pair every call with one of [`Lock::release`].
    #[inline]
    pub(crate) fn acquire(&self) {
        if self.shared
            && self
                .taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            self.wait();
        }
    }

    /// Acquires the lock if it is free and returns whether it was. If so, the caller must call
    /// [`Lock::release`].
    pub(crate) fn try_acquire(&self) -> bool {
        !self.shared
            || self
                .taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Releases the lock.
    #[inline]
    pub(crate) fn release(&self) {
        if self.shared {
            self.taken.store(false, Ordering::Release);
        }
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
                    std::thread::yield_now();
                }
            }
            if self
                .taken
                .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// Runs `body` under the lock.
    #[inline]
    pub(crate) fn with<T>(&self, body: impl FnOnce() -> T) -> T {
        self.acquire();
        let result = body();
        self.release();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;
    use core::cell::UnsafeCell;

    #[test]
    fn excludes_other_threads() {
        struct Shared {
            lock: Lock,
            value: UnsafeCell<u64>,
        }
        // SAFETY: the value is only touched under the lock.
        unsafe impl Sync for Shared {}
        const ROUNDS: u64 = 20_000;

        let mut shared = Shared {
            lock: Lock::new(true),
            value: UnsafeCell::new(0),
        };
        let one = &shared;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let all: &Shared = one;
                    for _ in 0..ROUNDS {
                        // SAFETY: under the lock, so there is no other access.
                        all.lock.with(|| unsafe { *all.value.get() += 1 });
                    }
                });
            }
        });
        assert_eq!(*shared.value.get_mut(), 4 * ROUNDS);
    }

    #[test]
    fn costs_nothing_where_one_thread_was_promised() {
        let lock = Lock::new(false);
        lock.acquire();
        lock.acquire();
        assert!(lock.try_acquire());
        lock.release();
    }

    #[test]
    fn is_tried() {
        let lock = Lock::new(true);
        assert!(lock.try_acquire());
        assert!(!lock.try_acquire());
        lock.release();
        assert!(lock.try_acquire());
    }
}
