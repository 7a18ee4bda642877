// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The send queue: a ring of work queue entries that this side produces.
//!
//! This module is independent of libibverbs' objects; `ibv_post_send` ([`crate::post`]) and
//! the `ibv_wr_*` family ([`crate::wr`]) are two ways to fill a [`Batch`].

use crate::abi::{self, wr_opcode, SendWqe};
use crate::ffi::os::{EINVAL, ENOMEM};
use crate::ffi::verbs::{IbvQpCap, IbvSge};
use crate::lock::{Guard, Lock};
use crate::ring::Ring;
use core::ffi::c_int;
use core::mem::{size_of, ManuallyDrop};
use core::sync::atomic::Ordering;

/// Flags that a work request passes to the kernel unchanged: `enum ibv_send_flags` has the values
/// of [`SendWqe::flags`].
pub(crate) const PASSED_FLAGS: u32 =
    (abi::WQE_FENCE | abi::WQE_SIGNALED | abi::WQE_SOLICITED) as u32;
/// `IBV_SEND_INLINE`, which is not among them: the call that supplies the data decides whether it
/// is inline.
pub(crate) const SEND_INLINE: u32 = abi::WQE_INLINE as u32;

/// A set of opcodes: bit `n` stands for opcode `n`.
pub(crate) type Opcodes = u16;

/// Returns the set that contains only `opcode` (one of [`wr_opcode`]).
pub(crate) const fn only(opcode: u8) -> Opcodes {
    1_u16.wrapping_shl(opcode as u32)
}

/// Returns whether `set` contains `opcode`, which may be any number that a consumer passes.
#[inline]
pub(crate) fn contains(set: Opcodes, opcode: u32) -> bool {
    1_u16.checked_shl(opcode).is_some_and(|bit| set & bit != 0)
}

/// Opcodes that can carry inline data.
const WITH_INLINE: Opcodes = only(wr_opcode::SEND)
    | only(wr_opcode::SEND_WITH_IMM)
    | only(wr_opcode::SEND_WITH_INV)
    | only(wr_opcode::RDMA_WRITE)
    | only(wr_opcode::RDMA_WRITE_WITH_IMM);

/// Counters of entries and the error of the batch.
#[derive(Default)]
struct State {
    /// Entries that the kernel can see.
    published: u32,
    /// Entries that the kernel can see, plus those in preparation.
    next: u32,
    /// Entries that the kernel had completed at the last look.
    consumed: u32,
    /// Error that prevents the batch in preparation from being published, or 0.
    error: c_int,
    /// Union of the flags in the batch in preparation.
    flags: u8,
    /// The previous batch contained a signaled work request.
    signaled: bool,
}

/// A batch that was published to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Entries published since the queue was created (wrapping).
    pub(crate) counter: u32,
    /// Union of the flags of all published work requests.
    pub(crate) flags: u8,
    /// The batch before this one contained a signaled work request, too.
    pub(crate) follows_signaled: bool,
}

/// A send queue.
///
/// # Invariants
///
/// `depth` is at most the ring's capacity. `max_sge` and `max_inline` fit into an entry.
pub(crate) struct SendQueue {
    ring: Ring,
    /// Work requests that may be outstanding.
    depth: u32,
    /// Data segments of a work request.
    max_sge: u32,
    /// Bytes of inline data of a work request.
    max_inline: u32,
    /// The flags of every work request: [`abi::WQE_SIGNALED`] if all generate a completion.
    flags: u8,
    state: Lock<State>,
}

impl SendQueue {
    /// Creates an empty queue in `ring`. The limits in `cap` are reduced to the capacities of the
    /// ring. If `signal_all`, every work request generates a completion regardless of its flags. If
    /// not `shared`, the consumer promises to use one thread only.
    pub(crate) fn new(ring: Ring, cap: &IbvQpCap, signal_all: bool, shared: bool) -> Self {
        // An entry has these bytes behind its fixed part.
        let room = ring.stride().saturating_sub(WQE_SIZE);
        let max_sge = room.wrapping_div(SGE_SIZE).min(u16::MAX.into());
        // INVARIANT: reduced to the capacities of the ring and of an entry.
        Self {
            depth: cap.max_send_wr.min(ring.capacity()),
            max_sge: cap.max_send_sge.min(max_sge),
            max_inline: cap.max_inline_data.min(room),
            ring,
            flags: if signal_all { abi::WQE_SIGNALED } else { 0 },
            state: Lock::shared_if(shared, State::default()),
        }
    }

    /// Returns the bytes of inline data that a work request may have.
    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Returns the ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Opens a batch: acquires the queue's lock. If `error` is not 0, the batch accepts nothing and
    /// fails with it. If the batch is forgotten, it stays open.
    pub(crate) fn open(&self, error: c_int) -> Batch<'_> {
        let mut state = self.state.lock();
        state.next = state.published;
        state.error = error;
        state.flags = self.flags;
        Batch { queue: self, state }
    }

    /// Returns the open batch, which stays open unless it is dropped.
    ///
    /// # Safety
    ///
    /// The queue's lock is held on behalf of the caller, for example by a batch that was forgotten,
    /// and there is no other batch.
    pub(crate) unsafe fn current(&self) -> ManuallyDrop<Batch<'_>> {
        // SAFETY: the caller's contract.
        let state = unsafe { self.state.held() };
        ManuallyDrop::new(Batch { queue: self, state })
    }

    /// Empties the queue after the kernel has emptied its side.
    pub(crate) fn reset(&self) {
        let mut batch = self.open(0);
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        batch.state.consumed = consumed;
        batch.state.next = consumed;
        batch.publish();
    }
}

const WQE_SIZE: u32 = size_of::<SendWqe>() as u32;
const SGE_SIZE: u32 = size_of::<IbvSge>() as u32;

/// Work requests in preparation, under the queue's lock. Dropping the batch releases the lock.
pub(crate) struct Batch<'a> {
    queue: &'a SendQueue,
    state: Guard<'a, State>,
}

impl Batch<'_> {
    /// Adds a work request without data. Fails with `ENOMEM` if the queue is full, or with the
    /// batch's error if it has one.
    #[inline]
    pub(crate) fn push(&mut self, wqe: SendWqe) -> Result<Slot<'_>, c_int> {
        if self.state.error != 0 {
            return Err(self.state.error);
        }
        if self.full() {
            return Err(ENOMEM);
        }
        let at = self.queue.ring.slot(self.state.next).cast::<SendWqe>();
        // SAFETY: an entry fits into the slot, and it is not published: the queue is not full.
        unsafe { at.write(wqe) };
        self.state.flags |= wqe.flags;
        self.state.next = self.state.next.wrapping_add(1);
        Ok(Slot {
            queue: self.queue,
            at,
        })
    }

    fn full(&mut self) -> bool {
        let depth = self.queue.depth;
        if self.state.next.wrapping_sub(self.state.consumed) < depth {
            return false;
        }
        self.state.consumed = self.queue.ring.consumer().load(Ordering::Acquire);
        self.state.next.wrapping_sub(self.state.consumed) >= depth
    }

    /// Returns the work request that was added last, so that the caller can extend it, or `None` if
    /// the batch is empty or has failed.
    #[inline]
    pub(crate) fn last(&mut self) -> Option<Slot<'_>> {
        if self.state.error != 0 || self.state.next == self.state.published {
            return None;
        }
        let at = self.queue.ring.slot(self.state.next.wrapping_sub(1)).cast();
        Some(Slot {
            queue: self.queue,
            at,
        })
    }

    /// Removes the work request that was added last.
    #[cold]
    pub(crate) fn pop(&mut self) {
        if self.state.next != self.state.published {
            self.state.next = self.state.next.wrapping_sub(1);
        }
    }

    /// Makes the whole batch fail with `error`, unless it has failed already.
    #[cold]
    pub(crate) fn fail(&mut self, error: c_int) {
        if self.state.error == 0 {
            self.state.error = error;
        }
    }

    /// Returns the error that prevents the batch from being published, or 0.
    pub(crate) fn error(&self) -> c_int {
        self.state.error
    }

    /// Publishes all added work requests to the kernel. Returns `None` if the batch is empty.
    #[inline]
    pub(crate) fn publish(&mut self) -> Option<Published> {
        if self.state.next == self.state.published {
            return None;
        }
        self.state.published = self.state.next;
        self.queue
            .ring
            .producer()
            .store(self.state.next, Ordering::Release);
        let published = Published {
            counter: self.state.next,
            flags: self.state.flags,
            follows_signaled: self.state.signaled,
        };
        self.state.signaled = published.flags & abi::WQE_SIGNALED != 0;
        Some(published)
    }
}

/// A work request in preparation.
pub(crate) struct Slot<'a> {
    queue: &'a SendQueue,
    /// An entry of the queue's ring that holds a [`SendWqe`] and is not published.
    at: *mut SendWqe,
}

impl Slot<'_> {
    /// Returns the fixed part of the entry.
    #[inline]
    pub(crate) fn wqe(&mut self) -> &mut SendWqe {
        // SAFETY: the entry is ours until published.
        unsafe { &mut *self.at }
    }

    /// Sets the data segments, in place of any earlier data. Fails with `EINVAL` if there are too
    /// many.
    ///
    /// # Safety
    ///
    /// `list` points to `count` segments, if `count` is not 0.
    #[inline]
    pub(crate) unsafe fn set_sges(
        &mut self,
        list: *const IbvSge,
        count: usize,
    ) -> Result<(), c_int> {
        if count > self.queue.max_sge as usize {
            return Err(EINVAL);
        }
        let wqe = self.wqe();
        wqe.num_sge = count as u16;
        wqe.flags &= !abi::WQE_INLINE;
        wqe.inline_length = 0;
        if count != 0 {
            // SAFETY: the entry is ours until published, and by the queue's invariant `max_sge`
            // segments fit behind its fixed part. The caller guarantees that the source is
            // readable.
            unsafe {
                let to = self.at.add(1).cast::<IbvSge>();
                to.copy_from_nonoverlapping(list, count);
            }
        }
        Ok(())
    }

    /// Makes the data inline and empty, in place of any earlier data. Fails with `EINVAL` if the
    /// opcode sends no data.
    #[inline]
    pub(crate) fn set_inline(&mut self) -> Result<(), c_int> {
        let wqe = self.wqe();
        if !contains(WITH_INLINE, u32::from(wqe.opcode)) {
            return Err(EINVAL);
        }
        wqe.num_sge = 0;
        wqe.flags |= abi::WQE_INLINE;
        wqe.inline_length = 0;
        Ok(())
    }

    /// Appends inline data, after [`Slot::set_inline`]. Fails with `EINVAL` if it is too long.
    ///
    /// # Safety
    ///
    /// `from` points to `length` readable bytes, if `length` is not 0.
    #[inline]
    pub(crate) unsafe fn append_inline(
        &mut self,
        from: *const u8,
        length: usize,
    ) -> Result<(), c_int> {
        let used = self.wqe().inline_length;
        let total = u32::try_from(length)
            .ok()
            .and_then(|length| used.checked_add(length))
            .filter(|&total| total <= self.queue.max_inline)
            .ok_or(EINVAL)?;
        if length != 0 {
            // SAFETY: by the queue's invariant `max_inline` bytes fit behind the fixed part. The
            // caller guarantees that the source is readable.
            unsafe {
                let to = self.at.add(1).cast::<u8>().add(used as usize);
                to.copy_from_nonoverlapping(from, length);
            }
            self.wqe().inline_length = total;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entry::{SendBounds, SendSlot};
    use rrxe_core::Service;

    const LIMITS: IbvQpCap = IbvQpCap {
        max_send_wr: 4,
        max_recv_wr: 0,
        max_send_sge: 3,
        max_recv_sge: 0,
        max_inline_data: 60,
    };

    pub(crate) fn queue() -> SendQueue {
        SendQueue::new(Ring::allocate(4, 128).unwrap(), &LIMITS, false, true)
    }

    /// Takes entry `counter` as the kernel would.
    pub(crate) fn take(queue: &SendQueue, counter: u32) -> (SendWqe, Vec<u8>) {
        assert!(
            queue
                .ring()
                .producer()
                .load(Ordering::Acquire)
                .wrapping_sub(counter) as i32
                > 0
        );
        let at = queue.ring().slot(counter);
        // SAFETY: the test is the consumer of this published entry.
        let (wqe, data) = unsafe {
            (
                at.cast::<SendWqe>().read(),
                core::slice::from_raw_parts(at.add(64), 64).to_vec(),
            )
        };
        queue
            .ring()
            .consumer()
            .store(counter.wrapping_add(1), Ordering::Release);
        (wqe, data)
    }

    /// Takes entry `counter` as the kernel would, and decodes it.
    pub(crate) fn decode(queue: &SendQueue, counter: u32, service: Service) -> SendSlot {
        let bounds = SendBounds {
            service,
            is_user: true,
            signal_all: false,
            max_sge: 2,
            max_inline: 16,
        };
        let mut slot = SendSlot::default();
        take(queue, counter).0.decode(&mut slot, &bounds);
        slot
    }

    fn wqe(wr_id: u64) -> SendWqe {
        SendWqe {
            wr_id,
            opcode: wr_opcode::SEND,
            ..SendWqe::default()
        }
    }

    #[test]
    fn sets_of_opcodes() {
        assert!(contains(WITH_INLINE, 2) && !contains(WITH_INLINE, 4));
        assert!(!contains(Opcodes::MAX, 16) && !contains(Opcodes::MAX, 34));
        assert!(!contains(Opcodes::MAX, u32::MAX));
    }

    #[test]
    fn limits_are_cut_to_the_ring() {
        let limits = IbvQpCap {
            max_send_wr: 100,
            max_send_sge: 100,
            max_inline_data: 1000,
            ..LIMITS
        };
        let queue = SendQueue::new(Ring::allocate(8, 128).unwrap(), &limits, false, true);
        assert_eq!((queue.depth, queue.max_sge, queue.max_inline), (8, 4, 64));
    }

    #[test]
    fn is_full_at_its_depth_and_free_again_when_consumed() {
        let queue = queue();
        let mut counter = 0;
        for round in 0..5 {
            let mut batch = queue.open(0);
            for i in 0..4 {
                assert!(batch.push(wqe(round * 4 + i)).is_ok());
            }
            assert_eq!(batch.push(wqe(99)).err(), Some(ENOMEM));
            assert!(batch.publish().is_some());
            assert!(batch.publish().is_none());
            for i in 0..4 {
                assert_eq!(take(&queue, counter).0.wr_id, round * 4 + i);
                counter += 1;
            }
        }
    }

    #[test]
    fn a_smaller_depth_than_the_ring_holds() {
        let limits = IbvQpCap {
            max_send_wr: 3,
            ..LIMITS
        };
        let queue = SendQueue::new(Ring::allocate(4, 128).unwrap(), &limits, false, true);
        let mut batch = queue.open(0);
        for i in 0..3 {
            assert!(batch.push(wqe(i)).is_ok());
        }
        assert_eq!(batch.push(wqe(3)).err(), Some(ENOMEM));
    }

    #[test]
    fn counters_wrap() {
        let queue = queue();
        let start = u32::MAX - 1;
        queue.ring().consumer().store(start, Ordering::Relaxed);
        queue.reset();
        let mut batch = queue.open(0);
        for i in 0..4 {
            assert!(batch.push(wqe(i)).is_ok());
        }
        assert_eq!(batch.push(wqe(4)).err(), Some(ENOMEM));
        batch.publish();
        for i in 0..4 {
            assert_eq!(take(&queue, start.wrapping_add(i)).0.wr_id, u64::from(i));
        }
        assert_eq!(queue.ring().producer().load(Ordering::Relaxed), 2);
    }

    #[test]
    fn nothing_shows_before_it_is_published_or_after_it_was_given_up() {
        let queue = queue();
        let mut batch = queue.open(0);
        assert!(batch.push(wqe(1)).is_ok());
        assert_eq!(queue.ring().producer().load(Ordering::Relaxed), 0);
        drop(batch);
        let mut batch = queue.open(0);
        assert!(batch.last().is_none());
        assert!(batch.publish().is_none());
        assert_eq!(queue.ring().producer().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_failed_batch_takes_nothing() {
        let queue = queue();
        let mut batch = queue.open(EINVAL);
        assert_eq!(batch.push(wqe(1)).err(), Some(EINVAL));
        batch.fail(ENOMEM);
        assert_eq!(batch.error(), EINVAL);
        drop(batch);
        assert_eq!(queue.open(0).error(), 0);
    }

    #[test]
    fn segments_and_inline_data_replace_each_other() {
        let queue = queue();
        let sges = [1_u64, 2, 3].map(|n| IbvSge {
            addr: n * 4096,
            length: 10,
            lkey: n as u32,
        });
        let mut batch = queue.open(0);
        let mut slot = batch.push(wqe(7)).ok().unwrap();
        // SAFETY: all sources are readable for the lengths given.
        unsafe {
            assert_eq!(slot.set_inline(), Ok(()));
            assert_eq!(slot.append_inline(b"hello".as_ptr(), 5), Ok(()));
            assert_eq!(slot.append_inline(core::ptr::null(), 0), Ok(()));
            assert_eq!(slot.append_inline(b", world".as_ptr(), 7), Ok(()));
            assert_eq!(slot.append_inline([0; 49].as_ptr(), 49), Err(EINVAL));
        }
        let mut slot = batch.push(wqe(8)).ok().unwrap();
        assert_eq!(slot.set_inline(), Ok(()));
        // SAFETY: as above.
        unsafe {
            assert_eq!(slot.append_inline([1; 60].as_ptr(), 60), Ok(()));
            assert_eq!(slot.set_sges(sges.as_ptr(), 3), Ok(()));
            assert_eq!(slot.set_sges(sges.as_ptr(), 4), Err(EINVAL));
        }
        let read = SendWqe {
            opcode: wr_opcode::RDMA_READ,
            ..SendWqe::default()
        };
        assert_eq!(batch.push(read).ok().unwrap().set_inline(), Err(EINVAL));
        batch.publish();

        let (entry, data) = take(&queue, 0);
        assert_eq!(
            (entry.flags, entry.num_sge, entry.inline_length),
            (abi::WQE_INLINE, 0, 12)
        );
        assert_eq!(data.get(..12), Some(b"hello, world".as_slice()));
        let (entry, data) = take(&queue, 1);
        assert_eq!((entry.flags, entry.num_sge, entry.inline_length), (0, 3, 0));
        assert_eq!(data.get(32..40), Some(12_288_u64.to_ne_bytes().as_slice()));
        assert_eq!(data.get(40..44), Some(10_u32.to_ne_bytes().as_slice()));
        assert_eq!(data.get(44..48), Some(3_u32.to_ne_bytes().as_slice()));
    }
}
