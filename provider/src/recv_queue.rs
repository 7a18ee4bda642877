// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receive queue: a ring of work queue entries that this side produces.
//!
//! This module is independent of libibverbs' objects.

use crate::abi::RecvWqe;
use crate::ffi::os::{EINVAL, ENOMEM};
use crate::ffi::verbs::{IbvRecvWr, IbvSge};
use crate::lock::Lock;
use crate::ring::Ring;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::size_of;
use core::sync::atomic::Ordering;

/// Limits of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvLimits {
    /// Work requests that may be outstanding, at most the ring's capacity.
    pub(crate) depth: u32,
    /// Data segments of a work request. They fit into an entry of the ring.
    pub(crate) max_sge: u32,
}

/// Counters of entries, protected by the queue's lock.
#[derive(Default)]
struct State {
    /// Entries that were added.
    next: u32,
    /// Entries that the kernel had taken at the last look.
    consumed: u32,
}

/// A receive queue.
///
/// # Invariants
///
/// `limits` fit the ring, as their fields say.
pub(crate) struct RecvQueue {
    ring: Ring,
    limits: RecvLimits,
    lock: Lock,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is only accessed under the lock.
unsafe impl Sync for RecvQueue {}

const WQE_SIZE: u32 = 16;
const SGE_SIZE: u32 = 16;
const _: () = assert!(size_of::<RecvWqe>() == WQE_SIZE as usize);
const _: () = assert!(size_of::<IbvSge>() == SGE_SIZE as usize);

impl RecvQueue {
    /// Creates an empty queue in `ring`. `limits` are reduced to what the ring has room for.
    pub(crate) fn new(ring: Ring, limits: RecvLimits) -> Self {
        let mut queue = Self {
            ring,
            limits: RecvLimits {
                depth: 0,
                max_sge: 0,
            },
            lock: Lock::new(true),
            state: UnsafeCell::new(State::default()),
        };
        queue.set_limits(limits);
        queue
    }

    /// Creates an empty queue for a consumer that has a lock of its own. `limits` are reduced to
    /// what the ring has room for.
    pub(crate) fn unshared(ring: Ring, limits: RecvLimits) -> Self {
        Self {
            lock: Lock::new(false),
            ..Self::new(ring, limits)
        }
    }

    /// Replaces the ring by one that contains the waiting entries, at equal counters. The depth
    /// becomes the new ring's capacity.
    pub(crate) fn replace_ring(&mut self, ring: Ring) {
        self.ring = ring;
        self.set_limits(RecvLimits {
            depth: self.ring.capacity(),
            ..self.limits
        });
    }

    /// Replaces the limits, reduced to what the ring has room for.
    pub(crate) fn set_limits(&mut self, limits: RecvLimits) {
        let room = self.ring.stride().saturating_sub(WQE_SIZE);
        // INVARIANT: reduced to the ring's capacity and to the room in an entry.
        self.limits = RecvLimits {
            depth: limits.depth.min(self.ring.capacity()),
            max_sge: limits.max_sge.min(room.wrapping_div(SGE_SIZE)),
        };
    }

    /// Returns the limits of the queue.
    pub(crate) fn limits(&self) -> RecvLimits {
        self.limits
    }

    /// Returns the ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Runs `fill` with an [`Adder`] for work requests, then publishes the added ones to the
    /// kernel. Returns the result of `fill` and whether any were added.
    pub(crate) fn post<T>(&self, fill: impl FnOnce(&mut Adder<'_>) -> T) -> (T, bool) {
        self.lock.with(|| {
            // SAFETY: under the lock, so this is the only reference.
            let state = unsafe { &mut *self.state.get() };
            let before = state.next;
            let result = fill(&mut Adder { queue: self, state });
            let added = state.next != before;
            if added {
                self.ring.producer().store(state.next, Ordering::Release);
            }
            (result, added)
        })
    }

    /// Empties the queue after the kernel has emptied its side.
    pub(crate) fn reset(&self) {
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        self.post(|adder| {
            adder.state.consumed = consumed;
            adder.state.next = consumed;
        });
    }
}

/// Adds work requests to a receive queue, under its lock.
pub(crate) struct Adder<'a> {
    queue: &'a RecvQueue,
    state: &'a mut State,
}

impl Adder<'_> {
    /// Adds a work request. Fails with `EINVAL` if it has too many segments, or with `ENOMEM` if
    /// the queue is full.
    ///
    /// # Safety
    ///
    /// `list` points to `count` segments, if `count` is more than 0.
    pub(crate) unsafe fn add(
        &mut self,
        wr_id: u64,
        list: *const IbvSge,
        count: c_int,
    ) -> Result<(), c_int> {
        let limits = self.queue.limits;
        let num_sge = u32::try_from(count)
            .ok()
            .filter(|&n| n <= limits.max_sge)
            .ok_or(EINVAL)?;
        if self.state.next.wrapping_sub(self.state.consumed) >= limits.depth {
            self.state.consumed = self.queue.ring.consumer().load(Ordering::Acquire);
            if self.state.next.wrapping_sub(self.state.consumed) >= limits.depth {
                return Err(ENOMEM);
            }
        }
        let at = self.queue.ring.slot(self.state.next).cast::<RecvWqe>();
        // SAFETY: the slot is not published, since the queue is not full, and by the queue's
        // invariant `max_sge` segments fit behind its fixed part. The caller guarantees that the
        // source is readable.
        unsafe {
            at.write(RecvWqe {
                wr_id,
                num_sge,
                reserved: 0,
            });
            if num_sge != 0 {
                at.add(1)
                    .cast::<IbvSge>()
                    .copy_from_nonoverlapping(list, num_sge as usize);
            }
        }
        self.state.next = self.state.next.wrapping_add(1);
        Ok(())
    }

    /// Adds a list of work requests. Fails at the first one that cannot be added, and returns the
    /// error of [`Adder::add`] and that work request. The ones before it are added.
    ///
    /// # Safety
    ///
    /// `list` is a list of work requests; all pointers in it are valid.
    pub(crate) unsafe fn add_list(
        &mut self,
        list: *mut IbvRecvWr,
    ) -> Result<(), (c_int, *mut IbvRecvWr)> {
        let mut next = list;
        // SAFETY: each element is a work request or null.
        unsafe {
            while let Some(request) = next.as_ref() {
                self.add(request.wr_id, request.sg_list, request.num_sge)
                    .map_err(|error| (error, next))?;
                next = request.next;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> RecvQueue {
        let limits = RecvLimits {
            depth: 4,
            max_sge: 2,
        };
        RecvQueue::new(Ring::allocate(4, 64).unwrap(), limits)
    }

    #[test]
    fn limits_are_cut_to_the_ring() {
        let limits = RecvLimits {
            depth: 100,
            max_sge: 100,
        };
        let queue = RecvQueue::new(Ring::allocate(8, 64).unwrap(), limits);
        assert_eq!(
            queue.limits(),
            RecvLimits {
                depth: 8,
                max_sge: 3
            }
        );
    }

    #[test]
    fn fills_entries_until_it_is_full() {
        let queue = queue();
        let sges = [1_u64, 2].map(|n| IbvSge {
            addr: n,
            length: 100,
            lkey: n as u32,
        });
        let (results, added) = queue.post(|adder| {
            // SAFETY: the list has the number of segments that each accepted call passes.
            unsafe {
                [
                    adder.add(10, sges.as_ptr(), 2),
                    adder.add(11, sges.as_ptr(), 3),
                    adder.add(12, core::ptr::null(), -1),
                    adder.add(13, core::ptr::null(), 0),
                    adder.add(14, sges.as_ptr(), 1),
                    adder.add(15, sges.as_ptr(), 1),
                    adder.add(16, sges.as_ptr(), 1),
                ]
            }
        });
        assert!(added);
        let expected = [
            Ok(()),
            Err(EINVAL),
            Err(EINVAL),
            Ok(()),
            Ok(()),
            Ok(()),
            Err(ENOMEM),
        ];
        assert_eq!(results, expected);
        assert_eq!(queue.ring().producer().load(Ordering::Acquire), 4);

        let at = queue.ring().slot(0);
        // SAFETY: the test is the consumer of this published entry.
        let (wqe, second) = unsafe {
            (
                at.cast::<RecvWqe>().read(),
                at.add(32).cast::<IbvSge>().read(),
            )
        };
        assert_eq!((wqe.wr_id, wqe.num_sge), (10, 2));
        assert_eq!((second.addr, second.length, second.lkey), (2, 100, 2));

        queue.ring().consumer().store(1, Ordering::Release);
        // SAFETY: no segments.
        let (result, _) = queue.post(|adder| unsafe { adder.add(17, core::ptr::null(), 0) });
        assert_eq!(result, Ok(()));
        // SAFETY: the test is the consumer of this published entry.
        let wqe = unsafe { queue.ring().slot(4).cast::<RecvWqe>().read() };
        assert_eq!(wqe.wr_id, 17);
    }

    #[test]
    fn reset_follows_the_consumer() {
        let queue = queue();
        for _ in 0..3 {
            // SAFETY: no segments.
            let (result, _) = queue.post(|adder| unsafe { adder.add(1, core::ptr::null(), 0) });
            assert_eq!(result, Ok(()));
        }
        queue.ring().consumer().store(1, Ordering::Release);
        queue.reset();
        assert_eq!(queue.ring().producer().load(Ordering::Acquire), 1);
        // SAFETY: no segments.
        let (result, _) = queue.post(|adder| unsafe {
            (0..4)
                .map(|i| adder.add(i, core::ptr::null(), 0))
                .collect::<Vec<_>>()
        });
        assert!(result.iter().all(Result::is_ok));
    }
}
