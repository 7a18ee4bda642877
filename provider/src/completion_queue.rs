// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The completion queue: a ring that the kernel produces and this side consumes.
//!
//! This module is independent of libibverbs' objects; [`crate::cq`] and [`crate::cq_ex`] are the
//! two ways to read the queue.

use crate::abi::{self, Cqe};
use crate::ffi::os::EINVAL;
use crate::ffi::verbs::IbvWc;
use crate::lock::{Guard, Lock};
use crate::memory::Owned;
use crate::ring::Ring;
use core::ffi::c_int;
use core::mem::{size_of, ManuallyDrop};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Bytes of a completion entry.
pub(crate) const STRIDE: u32 = size_of::<Cqe>() as u32;

/// Flags with the same meaning in [`IbvWc::wc_flags`] as in [`Cqe::flags`]. The others are internal
/// or mean something else there.
const WC_FLAGS: u8 = abi::CQE_GRH | abi::CQE_WITH_IMM | abi::CQE_WITH_INV;

/// [`service_level`] of a datagram: the packet had a UDP header.
const ROCE_V2: u8 = 8;
/// [`service_level`] of a datagram: the packet had an IPv6 header.
const ROCE_IPV6: u8 = 1;
/// [`service_level`] of a datagram: the packet had an IPv4 header.
const ROCE_IPV4: u8 = 2;

/// A completion queue.
///
/// # Invariants
///
/// `ring` points to one of the rings in `state`, which are kept, so a reference to a ring is valid
/// as long as this value.
pub(crate) struct CompletionQueue {
    ring: AtomicPtr<Ring>,
    /// Number of times that `ring` has changed.
    changes: AtomicU32,
    state: Lock<State>,
}

/// The rings of a completion queue, and how much of the present one was read.
struct State {
    /// Entries consumed so far.
    consumed: u32,
    /// All rings of the queue, present and former, each at the index of the binary logarithm of its
    /// capacity. Former ones have no contents, but keep their addresses: a thread that arms the
    /// queue, or posts a send, may still read or write a header. The sum of all capacities is less
    /// than twice the largest.
    rings: [Option<Owned<Ring>>; CAPACITIES],
}

/// Number of different capacities.
const CAPACITIES: usize = 32;

impl CompletionQueue {
    /// Creates an empty queue in `ring`, whose stride is [`STRIDE`]. If `shared` is false, the
    /// consumer promises to use one thread only. Fails with `ENOMEM`.
    pub(crate) fn new(ring: Ring, shared: bool) -> Result<Self, c_int> {
        let mut state = State {
            consumed: 0,
            rings: [const { None }; CAPACITIES],
        };
        let address = core::ptr::from_ref(state.keep(ring)?);
        // INVARIANT: `address` is that of the only ring.
        Ok(Self {
            ring: AtomicPtr::new(address.cast_mut()),
            changes: AtomicU32::new(0),
            state: if shared {
                Lock::new(state)
            } else {
                // SAFETY: one thread at a time uses the queue, as the consumer promises
                // (IBV_CREATE_CQ_ATTR_SINGLE_THREADED). This type accesses the value by one guard
                // at a time.
                unsafe { Lock::new_unshared(state) }
            },
        })
    }

    /// Returns the ring.
    #[inline]
    pub(crate) fn ring(&self) -> &Ring {
        // SAFETY: by the invariant it is valid as long as `self`.
        unsafe { &*self.ring.load(Ordering::SeqCst) }
    }

    /// Requests an event ([`abi::ARM_ANY`] or [`abi::ARM_SOLICITED`]). Takes no lock: consumers may
    /// arm between `start_poll` and `end_poll`, too.
    pub(crate) fn arm(&self, request: u32) {
        loop {
            let changes = self.changes.load(Ordering::SeqCst);
            self.ring().arm(request);
            // If the queue was resized meanwhile, the kernel may have missed the request when it
            // changed rings: see `resize`.
            if self.changes.load(Ordering::SeqCst) == changes {
                return;
            }
        }
    }

    /// Returns whether the queue raises no further event before the kernel is called: see
    /// [`crate::abi`], "The limit of events".
    pub(crate) fn is_at_limit(&self) -> bool {
        self.ring().events().load(Ordering::Acquire) >= abi::MAX_EVENTS
    }

    /// Returns whether an arming with `request` must raise an event for completions that already
    /// wait: there are some that it asks for, and the program has polled since the last event, so
    /// it may rely on another one. See [`crate::abi`], "Arming a completion queue that is not
    /// empty". Called after [`CompletionQueue::arm`].
    pub(crate) fn is_event_due(&self, request: u32) -> bool {
        let ring = self.ring();
        let consumed = ring.consumer().load(Ordering::Acquire);
        ring.producer().load(Ordering::Acquire) != consumed
            && ring.notified().load(Ordering::Acquire) != consumed
            && ring.is_armed()
            && (request & abi::ARM_ANY != 0 || {
                // While the queue is open, there may be a solicited completion. If the consumer
                // promised to use one thread only, that thread is here and uses no reader: it may
                // be between `start_poll` and `end_poll`, but not within one of the calls.
                let state = self.state.try_lock();
                state.is_none_or(|state| self.reader(state).has_solicited())
            })
    }

    /// Replaces the ring by one of `capacity` entries, a power of two, if `command` has the kernel
    /// do so; the kernel moves the waiting completions and restarts the counters in the new ring.
    /// Does nothing if the ring has that capacity. Otherwise `allocate` makes a ring, unless the
    /// queue has had that capacity before.
    ///
    /// Returns an error of `allocate` or `command`, or the requests (`ARM_*`) that came too late
    /// for the kernel to move. Those are armed in the new ring.
    pub(crate) fn resize(
        &self,
        capacity: u32,
        allocate: impl FnOnce() -> Result<Ring, c_int>,
        command: impl FnOnce(&Ring) -> Result<(), c_int>,
    ) -> Result<u32, c_int> {
        let mut state = self.state.lock();
        let old = self.ring();
        if old.capacity() == capacity {
            return Ok(0);
        }
        let new = match state.kept(capacity) {
            // A thread may have armed the former ring late. It arms the present one as well.
            Some(kept) => {
                kept.reset();
                kept
            }
            None => state.keep(allocate()?)?,
        };
        if let Err(error) = command(new) {
            new.discard();
            return Err(error);
        }
        // INVARIANT: it is one of the rings that are kept.
        self.ring
            .store(core::ptr::from_ref(new).cast_mut(), Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
        // A concurrent `arm` either sees the change, or its request is seen here.
        let late = old.disarm();
        if late != 0 {
            new.arm(late);
        }
        old.discard();
        state.consumed = 0;
        Ok(late)
    }

    /// Opens the queue for reading: acquires its lock. If the reader is forgotten, the queue stays
    /// open.
    pub(crate) fn open(&self) -> Reader<'_> {
        self.reader(self.state.lock())
    }

    /// Returns the reader of the open queue, which stays open unless the reader is dropped.
    ///
    /// # Safety
    ///
    /// The queue's lock is held on behalf of the caller, for example by a reader that was
    /// forgotten, and there is no other reader.
    pub(crate) unsafe fn current(&self) -> ManuallyDrop<Reader<'_>> {
        // SAFETY: the caller's contract.
        ManuallyDrop::new(self.reader(unsafe { self.state.held() }))
    }

    /// Returns the reader for the holder of the lock, under which the ring does not change.
    fn reader<'a>(&'a self, state: Guard<'a, State>) -> Reader<'a> {
        Reader {
            ring: self.ring(),
            state,
        }
    }
}

impl State {
    /// Returns the ring of a capacity, if there is one.
    fn kept(&self, capacity: u32) -> Option<&Ring> {
        self.rings.get(index(capacity))?.as_deref()
    }

    /// Keeps a new ring. Fails with `ENOMEM`.
    fn keep(&mut self, ring: Ring) -> Result<&Ring, c_int> {
        let place = self.rings.get_mut(index(ring.capacity())).ok_or(EINVAL)?;
        Ok(place.insert(Owned::new(ring)?))
    }
}

/// Returns the index of a capacity, a power of two.
fn index(capacity: u32) -> usize {
    capacity.trailing_zeros() as usize
}

/// Takes entries from a completion queue, under its lock, which is released when the reader is
/// dropped.
pub(crate) struct Reader<'a> {
    ring: &'a Ring,
    state: Guard<'a, State>,
}

impl Reader<'_> {
    /// Returns the number of entries that can be consumed.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        let produced = self.ring.producer().load(Ordering::Acquire);
        let waiting = produced.wrapping_sub(self.state.consumed);
        waiting.min(self.ring.capacity())
    }

    fn read(&self, counter: u32) -> Cqe {
        // SAFETY: the slot has room for an entry, for which any bytes are valid. It is one of those
        // available, so the kernel does not write to it before it is returned.
        unsafe { self.ring.slot(counter).cast::<Cqe>().read() }
    }

    /// Returns the oldest completion without removing it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Cqe> {
        (self.available() != 0).then(|| self.read(self.state.consumed))
    }

    /// Removes the oldest completion and returns the next one. Does nothing if there is no next
    /// one.
    #[inline]
    pub(crate) fn peek_next(&mut self) -> Option<Cqe> {
        if self.available() < 2 {
            return None;
        }
        self.release(1);
        Some(self.read(self.state.consumed))
    }

    /// Removes the `count` oldest completions.
    #[inline]
    pub(crate) fn release(&mut self, count: u32) {
        let consumed = self.state.consumed.wrapping_add(count);
        self.state.consumed = consumed;
        self.ring.consumer().store(consumed, Ordering::Release);
    }

    /// Removes up to `room` completions, passes each to `put` with its index, and returns their
    /// number.
    #[inline]
    pub(crate) fn take(&mut self, room: u32, mut put: impl FnMut(u32, Cqe)) -> u32 {
        let count = self.available().min(room);
        for i in 0..count {
            put(i, self.read(self.state.consumed.wrapping_add(i)));
        }
        if count != 0 {
            self.release(count);
        }
        count
    }

    /// Returns whether a completion waits that counts as solicited; failed ones always do.
    fn has_solicited(&self) -> bool {
        (0..self.available()).any(|i| {
            let entry = self.read(self.state.consumed.wrapping_add(i));
            entry.flags & abi::CQE_SOLICITED != 0 || entry.status != abi::STATUS_SUCCESS
        })
    }

    /// Removes all completions of the queue pair `qp_num`, which must be unable to complete further
    /// work requests. The other completions keep their order.
    pub(crate) fn remove(&mut self, qp_num: u32) {
        // Goes from the newest entry to the oldest. Each remaining entry moves up by the number of
        // newer ones that are removed; the free entries at the old end are returned.
        let count = self.available();
        let mut removed: u32 = 0;
        for i in (0..count).rev() {
            let counter = self.state.consumed.wrapping_add(i);
            let entry = self.read(counter);
            if entry.qp_num == qp_num {
                removed = removed.wrapping_add(1);
            } else if removed != 0 {
                let to = self.ring.slot(counter.wrapping_add(removed)).cast::<Cqe>();
                // SAFETY: the slot is among those available, which are ours until returned.
                unsafe { to.write(entry) };
            }
        }
        if removed != 0 {
            self.release(removed);
        }
    }
}

/// Converts a completion into the form that `ibv_poll_cq` reports.
#[inline]
pub(crate) fn to_wc(entry: &Cqe) -> IbvWc {
    IbvWc {
        wr_id: entry.wr_id,
        status: u32::from(entry.status),
        opcode: u32::from(entry.opcode),
        vendor_err: entry.vendor_err,
        byte_len: entry.byte_len,
        imm_data: entry.imm_or_key,
        qp_num: entry.qp_num,
        src_qp: entry.src_qp,
        wc_flags: wc_flags(entry),
        pkey_index: entry.pkey_index,
        // RoCE has no LIDs.
        slid: 0,
        sl: service_level(entry),
        dlid_path_bits: 0,
    }
}

/// Returns the service level of a completion. RoCE packets have none. For a datagram the field
/// tells the packet's network header type, as in completions of mlx5, since the verbs have no other
/// field for it. UCX relies on this: without it, UCX treats every packet as IPv6.
#[inline]
pub(crate) fn service_level(entry: &Cqe) -> u8 {
    if entry.flags & abi::CQE_GRH == 0 {
        return entry.sl;
    }
    match entry.network_hdr_type {
        abi::NETWORK_IPV4 => ROCE_V2 | ROCE_IPV4,
        abi::NETWORK_IPV6 => ROCE_V2 | ROCE_IPV6,
        _ => entry.sl,
    }
}

/// Returns the `enum ibv_wc_flags` of a completion.
#[inline]
pub(crate) fn wc_flags(entry: &Cqe) -> u32 {
    u32::from(entry.flags & WC_FLAGS)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn queue(capacity: u32) -> CompletionQueue {
        CompletionQueue::new(Ring::allocate(capacity, STRIDE).unwrap(), true).unwrap()
    }

    /// Publishes an entry as the kernel would.
    pub(crate) fn produce(queue: &CompletionQueue, entry: Cqe) {
        let counter = queue.ring().producer().load(Ordering::Relaxed);
        let consumed = queue.ring().consumer().load(Ordering::Acquire);
        assert!(counter.wrapping_sub(consumed) < queue.ring().capacity());
        // SAFETY: the test is the producer, and the slot is free.
        unsafe { queue.ring().slot(counter).cast::<Cqe>().write(entry) };
        queue
            .ring()
            .producer()
            .store(counter.wrapping_add(1), Ordering::Release);
    }

    fn cqe(wr_id: u64, qp_num: u32) -> Cqe {
        Cqe {
            wr_id,
            qp_num,
            ..Cqe::default()
        }
    }

    fn drain(queue: &CompletionQueue) -> Vec<u64> {
        let mut ids = Vec::new();
        queue
            .open()
            .take(u32::MAX, |_, entry| ids.push(entry.wr_id));
        ids
    }

    #[test]
    fn takes_in_order_and_no_more_than_asked() {
        let queue = queue(4);
        let mut expected = 0;
        for round in 0..6 {
            for i in 0..3 {
                produce(&queue, cqe(round * 3 + i, 1));
            }
            let mut seen = Vec::new();
            let n = queue.open().take(2, |i, entry| seen.push((i, entry.wr_id)));
            assert_eq!((n, seen), (2, vec![(0, expected), (1, expected + 1)]));
            assert_eq!(drain(&queue), [expected + 2]);
            assert_eq!(drain(&queue), []);
            expected += 3;
        }
    }

    #[test]
    fn a_wild_producer_counter_is_cut_to_the_ring() {
        let queue = queue(4);
        queue.ring().producer().store(1000, Ordering::Relaxed);
        assert_eq!(drain(&queue).len(), 4);
    }

    #[test]
    fn removes_one_queue_pair_and_keeps_the_order_of_others() {
        let queue = queue(8);
        // Move the counters so that the removal crosses the end of the ring.
        for i in 0..5 {
            produce(&queue, cqe(i, 9));
        }
        drain(&queue);
        for (id, qp) in [
            (1, 7),
            (2, 8),
            (3, 7),
            (4, 9),
            (5, 7),
            (6, 7),
            (7, 8),
            (8, 9),
        ] {
            produce(&queue, cqe(id, qp));
        }
        queue.open().remove(5);
        queue.open().remove(7);
        produce(&queue, cqe(10, 7));
        assert_eq!(drain(&queue), [2, 4, 7, 8, 10]);
        queue.open().remove(7);
        assert_eq!(drain(&queue), []);
    }

    fn resize(
        queue: &CompletionQueue,
        capacity: u32,
        command: impl FnOnce(&Ring) -> Result<(), c_int>,
    ) -> Result<u32, c_int> {
        queue.resize(capacity, || Ring::allocate(capacity, STRIDE), command)
    }

    #[test]
    fn resizing_keeps_less_than_two_rings() {
        let queue = queue(1024);
        let capacities = [1024, 512, 1024, 64, 2048, 1];
        for capacity in capacities.into_iter().cycle().take(1000) {
            assert_eq!(resize(&queue, capacity, |_| Ok(())), Ok(0));
            for i in 0..u64::from(capacity) {
                produce(&queue, cqe(i, 1));
            }
            assert!(drain(&queue).into_iter().eq(0..u64::from(capacity)));
        }
        let state = queue.state.lock();
        let kept = state.rings.iter().flatten().map(|ring| ring.capacity());
        assert!(kept.sum::<u32>() < 2 * 2048);
    }

    #[test]
    fn resizing_to_the_same_capacity_changes_nothing() {
        let queue = queue(4);
        produce(&queue, cqe(7, 1));
        queue.arm(abi::ARM_ANY);
        let done = queue.resize(4, || Err(12), |_| Err(22));
        assert_eq!(done, Ok(0));
        assert_eq!(drain(&queue), [7]);
        assert_eq!(queue.ring().disarm(), abi::ARM_ANY);
    }

    #[test]
    fn a_ring_that_is_used_again_is_empty_and_not_armed() {
        let queue = queue(4);
        let first = queue.ring();
        assert_eq!(resize(&queue, 8, |_| Ok(())), Ok(0));
        // A late thread: it will find a changed number and arm the other ring.
        first.arm(abi::ARM_ANY);
        // The memory was not given back.
        first.consumer().store(3, Ordering::Relaxed);
        first.events().store(abi::MAX_EVENTS, Ordering::Relaxed);
        assert_eq!(resize(&queue, 4, |_| Ok(())), Ok(0));
        assert!(core::ptr::eq(first, queue.ring()) && !first.is_armed());
        assert_eq!(first.consumer().load(Ordering::Relaxed), 0);
        assert!(!queue.is_at_limit());
    }

    #[test]
    fn threads_arm_while_the_queue_is_resized() {
        let queue = queue(4);
        std::thread::scope(|scope| {
            let arming = scope.spawn(|| {
                for _ in 0..20_000 {
                    queue.arm(abi::ARM_ANY);
                    // Posting a send reads the ring, too.
                    let _ = queue.ring().is_armed();
                }
            });
            let mut capacity = 4;
            while !arming.is_finished() {
                capacity = if capacity == 4 { 256 } else { 4 };
                assert!(resize(&queue, capacity, |_| Ok(())).is_ok());
            }
        });
        queue.arm(abi::ARM_SOLICITED);
        assert_ne!(queue.ring().disarm() & abi::ARM_SOLICITED, 0);
    }

    #[test]
    fn resize_starts_anew_and_keeps_the_request_for_an_event() {
        let queue = queue(2);
        for i in 0..3 {
            produce(&queue, cqe(i, 1));
            drain(&queue);
        }
        queue.arm(abi::ARM_SOLICITED);
        let refused = resize(&queue, 8, |_| Err(22));
        assert_eq!((refused, queue.ring().capacity()), (Err(22), 2));
        // This kernel has not moved the request.
        let done = resize(&queue, 8, |_| Ok(()));
        assert_eq!((done, queue.ring().capacity()), (Ok(abi::ARM_SOLICITED), 8));
        assert_eq!(queue.ring().disarm(), abi::ARM_SOLICITED);
        for i in 0..8 {
            produce(&queue, cqe(i, 1));
        }
        assert_eq!(drain(&queue), [0, 1, 2, 3, 4, 5, 6, 7]);
        queue.arm(abi::ARM_ANY);
        assert_eq!(queue.ring().disarm(), abi::ARM_ANY);
    }

    /// Takes one completion.
    fn poll_one(queue: &CompletionQueue) {
        assert_eq!(queue.open().take(1, |_, _| {}), 1);
    }

    /// Raises an event as the kernel would.
    fn notify(queue: &CompletionQueue) {
        assert_ne!(queue.ring().disarm(), 0);
        let consumed = queue.ring().consumer().load(Ordering::Relaxed);
        queue.ring().notified().store(consumed, Ordering::Relaxed);
    }

    fn arm(queue: &CompletionQueue, request: u32) -> bool {
        queue.arm(request);
        queue.is_event_due(request)
    }

    fn fresh(capacity: u32) -> CompletionQueue {
        let queue = queue(capacity);
        let notified = queue.ring().notified();
        notified.store(abi::NOT_NOTIFIED, Ordering::Relaxed);
        queue
    }

    #[test]
    fn an_event_is_due_for_completions_that_wait() {
        let queue = fresh(8);
        assert!(!arm(&queue, abi::ARM_ANY));
        queue.ring().disarm();
        produce(&queue, cqe(1, 1));
        assert!(arm(&queue, abi::ARM_ANY));
        // The kernel has consumed the arm request before this side reads it.
        notify(&queue);
        assert!(!queue.is_event_due(abi::ARM_ANY));
        // Nothing was polled since; the program is about to poll.
        produce(&queue, cqe(2, 1));
        assert!(!arm(&queue, abi::ARM_ANY));
        drain(&queue);
        assert!(!arm(&queue, abi::ARM_ANY));
    }

    #[test]
    fn an_event_is_due_after_each_completion_polled_alone() {
        let queue = fresh(8);
        for i in 0..5 {
            produce(&queue, cqe(i, 1));
        }
        for left in (0..5).rev() {
            assert!(arm(&queue, abi::ARM_ANY));
            notify(&queue);
            assert!(!arm(&queue, abi::ARM_ANY));
            poll_one(&queue);
            assert_eq!(queue.is_event_due(abi::ARM_ANY), left != 0);
        }
    }

    #[test]
    fn an_event_is_due_for_a_solicited_or_failed_completion() {
        let solicited = Cqe {
            flags: abi::CQE_SOLICITED,
            ..cqe(2, 1)
        };
        let failed = Cqe {
            status: 5,
            ..cqe(2, 1)
        };
        for entry in [solicited, failed] {
            let queue = fresh(8);
            produce(&queue, cqe(1, 1));
            assert!(!arm(&queue, abi::ARM_SOLICITED));
            assert!(queue.is_event_due(abi::ARM_ANY));
            produce(&queue, entry);
            assert!(arm(&queue, abi::ARM_SOLICITED));
            poll_one(&queue);
            assert!(arm(&queue, abi::ARM_SOLICITED));
            poll_one(&queue);
            produce(&queue, cqe(3, 1));
            assert!(!arm(&queue, abi::ARM_SOLICITED));
        }
    }

    #[test]
    fn the_limit_of_events_needs_the_kernel() {
        let queue = fresh(8);
        for (events, limit) in [(0, false), (15, false), (16, true), (17, true)] {
            queue.ring().events().store(events, Ordering::Relaxed);
            assert_eq!(queue.is_at_limit(), limit);
        }
    }

    #[test]
    fn arming_does_not_wait_for_the_lock() {
        let queue = fresh(8);
        produce(&queue, cqe(1, 1));
        assert!(!arm(&queue, abi::ARM_SOLICITED));
        let reader = queue.open();
        // The completion might be solicited.
        assert!(arm(&queue, abi::ARM_SOLICITED));
        assert!(reader.peek().is_some());
    }

    #[test]
    fn the_service_level_tells_the_kind_of_a_datagram() {
        for (flags, network, level) in [
            (abi::CQE_GRH, abi::NETWORK_IPV4, 10),
            (abi::CQE_GRH, abi::NETWORK_IPV6, 9),
            (abi::CQE_GRH, 0, 0),
            (0, abi::NETWORK_IPV4, 0),
        ] {
            let entry = Cqe {
                flags,
                network_hdr_type: network,
                ..cqe(1, 1)
            };
            assert_eq!(to_wc(&entry).sl, level);
        }
    }

    #[test]
    fn maps_every_field_of_a_completion() {
        let entry = Cqe {
            wr_id: 0x1122_3344_5566_7788,
            timestamp: 1,
            byte_len: 4096,
            imm_or_key: 0xaabb_ccdd,
            qp_num: 17,
            src_qp: 1,
            status: 12,
            opcode: 129,
            flags: abi::CQE_GRH | abi::CQE_WITH_IMM | abi::CQE_SOLICITED,
            sl: 3,
            vendor_err: 77,
            pkey_index: 2,
            ..Cqe::default()
        };
        let wc = to_wc(&entry);
        assert_eq!(wc.wr_id, 0x1122_3344_5566_7788);
        assert_eq!((wc.status, wc.opcode, wc.vendor_err), (12, 129, 77));
        assert_eq!((wc.byte_len, wc.imm_data), (4096, 0xaabb_ccdd));
        assert_eq!((wc.qp_num, wc.src_qp), (17, 1));
        // IBV_WC_GRH and IBV_WC_WITH_IMM; the solicited bit is IBV_WC_TM_SYNC_REQ there.
        assert_eq!(wc.wc_flags, 3);
        assert_eq!(
            (wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits),
            (2, 0, 3, 0)
        );
        let entry = Cqe {
            flags: abi::CQE_WITH_INV,
            ..entry
        };
        assert_eq!(to_wc(&entry).wc_flags, 8);
    }
}
