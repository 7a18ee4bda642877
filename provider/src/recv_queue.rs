// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receive queue: a ring of work queue entries that this side produces.
//!
//! This module is independent of libibverbs' objects. A lock around the queue protects it.

use crate::abi::RecvWqe;
use crate::ffi::os::{EINVAL, ENOMEM};
use crate::ffi::verbs::{IbvRecvWr, IbvSge};
use crate::ring::Ring;
use core::ffi::c_int;
use core::mem::size_of;
use core::sync::atomic::Ordering;

/// A receive queue.
///
/// # Invariants
///
/// `depth` is at most the ring's capacity. `max_sge` segments fit into an entry of the ring.
pub(crate) struct RecvQueue {
    ring: Ring,
    /// Work requests that may be outstanding.
    depth: u32,
    /// Data segments of a work request.
    max_sge: u32,
    /// Entries that the kernel can see.
    published: u32,
    /// Entries that were added.
    next: u32,
    /// Entries that the kernel had consumed when the counter was last read.
    consumed: u32,
}

const WQE_SIZE: u32 = size_of::<RecvWqe>() as u32;
const SGE_SIZE: u32 = size_of::<IbvSge>() as u32;

impl RecvQueue {
    /// Creates an empty queue in `ring`. `depth` is reduced to the ring's capacity. A work request
    /// may have all segments that fit into an entry.
    pub(crate) fn new(ring: Ring, depth: u32) -> Self {
        let room = ring.stride().saturating_sub(WQE_SIZE);
        // INVARIANT: reduced to the capacities of the ring and of an entry.
        Self {
            depth: depth.min(ring.capacity()),
            max_sge: room.wrapping_div(SGE_SIZE),
            ring,
            published: 0,
            next: 0,
            consumed: 0,
        }
    }

    /// Replaces the ring by one that contains the waiting entries, at equal counters. The depth
    /// becomes the new ring's capacity.
    pub(crate) fn replace_ring(&mut self, ring: Ring) {
        let depth = ring.capacity();
        *self = Self {
            published: self.published,
            next: self.next,
            consumed: self.consumed,
            ..Self::new(ring, depth)
        };
    }

    /// Returns the number of segments that a work request may have.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Publishes the added work requests to the kernel. Returns whether there were any.
    pub(crate) fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        self.ring.producer().store(self.next, Ordering::Release);
        true
    }

    /// Empties the queue after the kernel has emptied its side.
    pub(crate) fn reset(&mut self) {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next = self.consumed;
        self.publish();
    }

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
        let num_sge = u32::try_from(count).map_err(|_| EINVAL)?;
        if num_sge > self.max_sge {
            return Err(EINVAL);
        }
        if self.next.wrapping_sub(self.consumed) >= self.depth {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) >= self.depth {
                return Err(ENOMEM);
            }
        }
        let at = self.ring.slot(self.next).cast::<RecvWqe>();
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
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Adds a list of work requests. Fails at the first one that cannot be added, and returns the
    /// error of [`RecvQueue::add`] and that work request. The ones before it are added.
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
        RecvQueue::new(Ring::allocate(4, 48).unwrap(), 4)
    }

    #[test]
    fn limits_are_cut_to_the_ring() {
        let queue = RecvQueue::new(Ring::allocate(8, 64).unwrap(), 100);
        assert_eq!((queue.depth, queue.max_sge), (8, 3));
    }

    #[test]
    fn fills_entries_until_it_is_full() {
        let mut queue = queue();
        let sges = [1_u64, 2].map(|n| IbvSge {
            addr: n,
            length: 100,
            lkey: n as u32,
        });
        assert!(!queue.publish());
        // SAFETY: the list has the number of segments that each accepted call passes.
        let results = unsafe {
            [
                queue.add(10, sges.as_ptr(), 2),
                queue.add(11, sges.as_ptr(), 3),
                queue.add(12, core::ptr::null(), -1),
                queue.add(13, core::ptr::null(), 0),
                queue.add(14, sges.as_ptr(), 1),
                queue.add(15, sges.as_ptr(), 1),
                queue.add(16, sges.as_ptr(), 1),
            ]
        };
        assert_eq!(queue.ring().producer().load(Ordering::Acquire), 0);
        assert!(queue.publish());
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
        assert_eq!(unsafe { queue.add(17, core::ptr::null(), 0) }, Ok(()));
        queue.publish();
        // SAFETY: the test is the consumer of this published entry.
        let wqe = unsafe { queue.ring().slot(4).cast::<RecvWqe>().read() };
        assert_eq!(wqe.wr_id, 17);
    }

    #[test]
    fn reset_follows_the_consumer() {
        let mut queue = queue();
        for _ in 0..3 {
            // SAFETY: no segments.
            assert_eq!(unsafe { queue.add(1, core::ptr::null(), 0) }, Ok(()));
            queue.publish();
        }
        queue.ring().consumer().store(1, Ordering::Release);
        queue.reset();
        assert_eq!(queue.ring().producer().load(Ordering::Acquire), 1);
        for i in 0..4 {
            // SAFETY: no segments.
            assert_eq!(unsafe { queue.add(i, core::ptr::null(), 0) }, Ok(()));
        }
    }
}
