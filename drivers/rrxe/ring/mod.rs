// SPDX-License-Identifier: GPL-2.0

//! Rings: those of work queues, which a consumer fills and the driver empties, and those of
//! completion queues, the other way round.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the provider, which uses the rest"
)]
pub(crate) mod abi;
pub(crate) mod wqe;

use crate::{limits, module::Rrxe};
use abi::{
    CreateQpCmd, RingSpec, RING_CONSUMER, RING_DOORBELL, RING_DOORBELL_EVENT, RING_HEADER_SIZE,
    RING_PRODUCER,
};
use core::mem::{size_of, size_of_val};
use kernel::{
    prelude::*,
    sync::Arc,
    transmute::{AsBytes, FromBytes},
};
use linux_rdma::rdma::{memory::SharedMemory, qp::QpCap, wr::DataSegment, Device};
use rrxe_core::{
    lengths::{times, total},
    RingCounter,
};

/// Marks the structs of the user ABI as plain data, which may be copied from and to user space.
macro_rules! plain_data {
    ($($ty:ident),* $(,)?) => {
        $(
            // SAFETY: A `repr(C)` struct of integers: any byte pattern is a valid value.
            unsafe impl FromBytes for abi::$ty {}
            // SAFETY: A `repr(C)` struct of integers without padding: abi.rs asserts its size,
            // which is the sum of its fields' sizes.
            unsafe impl AsBytes for abi::$ty {}
        )*
    };
}

plain_data!(
    SendWqe,
    RecvWqe,
    Sge,
    Cqe,
    AllocUcontextCmd,
    AllocUcontextResp,
    RingSpec,
    CreateQpCmd,
    CreateAhResp,
);

/// The memory and the shape of a ring.
#[derive(Clone)]
pub(crate) struct Ring {
    memory: Arc<SharedMemory>,
    /// Offset of its header in the memory.
    start: usize,
    /// Entries; a power of two.
    pub(crate) capacity: u32,
    stride: u32,
}

impl Ring {
    /// Pins the ring of a user program, if it has one. Returns `EINVAL` if the ring is too small
    /// for `entries` entries of `min_stride` bytes, or if its shape violates the ABI.
    pub(crate) fn from_user(
        device: &Device<Rrxe>,
        spec: &RingSpec,
        entries: u32,
        min_stride: u32,
    ) -> Result<Self> {
        if entries == 0 && spec.addr == 0 {
            // Nothing can be posted to this substitute.
            return Self::for_kernel(1, min_stride);
        }
        Self::check(spec, entries, min_stride)?;
        Self::pin(device, spec)
    }

    /// Pins a ring of a verified shape.
    pub(crate) fn pin(device: &Device<Rrxe>, spec: &RingSpec) -> Result<Self> {
        let memory = SharedMemory::from_user(device, spec.addr, spec.size().ok_or(EINVAL)?)?;
        Ok(Self::at(Arc::new(memory, GFP_KERNEL_ACCOUNT)?, 0, spec))
    }

    /// Pins the send and the receive ring of a queue pair; only once, if they are in one piece of
    /// memory. Returns `EINVAL` under the conditions of [`Ring::from_user`].
    pub(crate) fn pair_from_user(
        device: &Device<Rrxe>,
        cmd: &CreateQpCmd,
        cap: &QpCap,
        min_send: u32,
        min_recv: u32,
    ) -> Result<(Self, Self)> {
        let (sq, rq) = (&cmd.sq, &cmd.rq);
        let offset = sq.next_ring().ok_or(EINVAL)?;
        if sq.addr == 0 || rq.addr == 0 || sq.addr.checked_add(offset as u64) != Some(rq.addr) {
            return Ok((
                Self::from_user(device, sq, cap.max_send_wr, min_send)?,
                Self::from_user(device, rq, cap.max_recv_wr, min_recv)?,
            ));
        }
        Self::check(sq, cap.max_send_wr, min_send)?;
        let size = Self::check(rq, cap.max_recv_wr, min_recv)?;
        let size = offset.checked_add(size).ok_or(EINVAL)?;
        let memory = SharedMemory::from_user(device, sq.addr, size)?;
        let memory = Arc::new(memory, GFP_KERNEL_ACCOUNT)?;
        Ok((
            Self::at(memory.clone(), 0, sq),
            Self::at(memory, offset, rq),
        ))
    }

    /// Returns the size of a program's ring in bytes. Returns `EINVAL` under the conditions of
    /// [`Ring::from_user`].
    fn check(spec: &RingSpec, entries: u32, min_stride: u32) -> Result<usize> {
        let max = abi::send_stride(limits::MAX_SGE, limits::MAX_INLINE).ok_or(EINVAL)?;
        if !spec.capacity.is_power_of_two()
            || spec.stride & 15 != 0
            || spec.capacity < entries
            || spec.capacity > limits::MAX_QP_WR
            || spec.stride < min_stride
            || spec.stride > max
        {
            return Err(EINVAL);
        }
        spec.size().ok_or(EINVAL)
    }

    /// Returns a ring of a verified shape that starts at byte `start` of the memory.
    fn at(memory: Arc<SharedMemory>, start: usize, spec: &RingSpec) -> Self {
        Self {
            memory,
            start,
            capacity: spec.capacity,
            stride: spec.stride,
        }
    }

    /// Allocates a ring for a kernel consumer.
    pub(crate) fn for_kernel(entries: u32, stride: u32) -> Result<Self> {
        let spec = RingSpec {
            addr: 0,
            capacity: entries.max(1).checked_next_power_of_two().ok_or(EINVAL)?,
            stride,
        };
        let memory = SharedMemory::for_kernel(spec.size().ok_or(EINVAL)?)?;
        Ok(Self::at(Arc::new(memory, GFP_KERNEL_ACCOUNT)?, 0, &spec))
    }

    /// Returns the producer counter as the producer has published it.
    #[inline]
    pub(crate) fn producer(&self) -> RingCounter {
        self.counter(RING_PRODUCER)
    }

    /// Reads a counter of the header, which a program may have written. Later reads see the entries
    /// before it.
    #[inline]
    pub(crate) fn counter(&self, word: usize) -> RingCounter {
        RingCounter::new(self.load_acquire(word))
    }

    /// Writes a counter of the header, after all earlier writes.
    #[inline]
    pub(crate) fn publish(&self, word: usize, counter: RingCounter) {
        self.store_release(word, counter.get());
    }

    /// Tells the producer whether to call the kernel after publishing.
    pub(crate) fn want_doorbell(&self, wanted: bool) {
        self.store_release(RING_DOORBELL, wanted.into());
    }

    /// Reads a word of the header. Later reads see what was written before it.
    #[inline]
    pub(crate) fn load_acquire(&self, word: usize) -> u32 {
        self.memory.load_acquire(self.header(word))
    }

    /// Writes a word of the header, after all earlier writes.
    #[inline]
    pub(crate) fn store_release(&self, word: usize, value: u32) {
        self.memory.store_release(self.header(word), value);
    }

    /// Exchanges a word of the header, with full ordering. Returns its old value.
    pub(crate) fn exchange(&self, word: usize, value: u32) -> u32 {
        self.memory.exchange(self.header(word), value)
    }

    /// Returns the offset of a word of the header in the memory.
    #[inline]
    fn header(&self, word: usize) -> usize {
        total([self.start, word])
    }

    /// Returns the slot of the entry at a counter.
    #[inline]
    pub(crate) fn slot(&self, counter: RingCounter) -> usize {
        counter.index(self.capacity as usize)
    }

    /// Reads the entry at a counter, once.
    #[inline]
    pub(crate) fn read<T: FromBytes + Copy>(&self, counter: RingCounter) -> Result<T> {
        self.memory.read(self.offset(counter))
    }

    /// Writes the entry at a counter.
    #[inline]
    pub(crate) fn write<T: AsBytes + Copy>(&self, counter: RingCounter, entry: &T) -> Result {
        self.memory.write(self.offset(counter), entry)
    }

    /// Returns the offset of the entry at a counter in the memory.
    fn offset(&self, counter: RingCounter) -> usize {
        // The capacity is a power of two, and the size of the whole was computed without overflow.
        let before = times(self.slot(counter) as u32, self.stride) as usize;
        total([self.start, RING_HEADER_SIZE, before])
    }

    /// Returns the offset of the `len` bytes that follow the first `head` bytes of the entry at a
    /// counter. Returns `EINVAL` if they exceed the entry.
    #[inline]
    fn offset_within(&self, counter: RingCounter, head: usize, len: usize) -> Result<usize> {
        let end = head.checked_add(len).ok_or(EINVAL)?;
        if end > self.stride as usize {
            return Err(EINVAL);
        }
        Ok(total([self.offset(counter), head]))
    }

    /// Copies entries of another ring to the same counters of this one.
    pub(crate) fn copy_entries(&self, from: &Ring, first: RingCounter, count: u32) -> Result {
        // Strides are multiples of 16.
        let stride = self.stride.min(from.stride) as usize;
        for i in 0..count {
            let counter = first.add(i);
            for head in (0..stride).step_by(16) {
                let source = from.offset_within(counter, head, 16)?;
                let piece: [u64; 2] = from.memory.read(source)?;
                let to = self.offset_within(counter, head, 16)?;
                self.memory.write(to, &piece)?;
            }
        }
        Ok(())
    }
}

/// The consuming side of a work queue.
pub(crate) struct Consumer {
    pub(crate) ring: Ring,
    /// Entries fetched so far. The kernel never reads its counter in the ring.
    fetched: RingCounter,
    /// Entries whose work requests have completed: their slots may be used again.
    retired: RingCounter,
    /// The producer counter was impossible: no entry is fetched until the next reset.
    broken: bool,
}

impl Consumer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            ring,
            fetched: RingCounter::default(),
            retired: RingCounter::default(),
            broken: false,
        }
    }

    /// Returns the number of entries that can be fetched. Returns `EINVAL` once if the producer
    /// claims more entries than the ring holds, and 0 from then on.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<u32> {
        if self.broken {
            return Ok(0);
        }
        let (producer, capacity) = (self.ring.producer(), self.ring.capacity);
        let waiting = producer.checked_since(self.fetched, capacity);
        let in_use = producer.checked_since(self.retired, capacity);
        match (waiting, in_use) {
            (Some(waiting), Some(_)) => Ok(waiting),
            _ => {
                self.broken = true;
                Err(EINVAL)
            }
        }
    }

    /// Returns whether [`Consumer::available`] has something to report: entries, or an impossible
    /// producer counter.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.broken && self.ring.producer() != self.fetched
    }

    /// Returns the number of entries that the producer has posted and the driver has not fetched; 0
    /// if the producer counter is impossible.
    pub(crate) fn backlog(&self) -> u32 {
        let waiting = self
            .ring
            .producer()
            .checked_since(self.fetched, self.ring.capacity);
        waiting.filter(|_| !self.broken).unwrap_or(0)
    }

    /// Returns the counter of the next entry, and the number of entries that can be fetched.
    /// Returns `EINVAL` if the producer counter is or was impossible.
    pub(crate) fn waiting(&mut self) -> Result<(RingCounter, u32)> {
        let count = self.available()?;
        if self.broken {
            return Err(EINVAL);
        }
        Ok((self.fetched, count))
    }

    /// Replaces the ring and keeps the counters; `producer` is the producer's counter. Returns the
    /// old ring.
    pub(crate) fn replace(&mut self, ring: Ring, producer: RingCounter) -> Ring {
        let old = core::mem::replace(&mut self.ring, ring);
        self.ring.publish(RING_PRODUCER, producer);
        self.publish();
        old
    }

    /// Reads the next entry.
    #[inline]
    pub(crate) fn next<T: FromBytes + Copy>(&self) -> Result<T> {
        self.ring.read(self.fetched)
    }

    /// Reads the data segments that follow the first `head` bytes of the next entry.
    #[inline]
    pub(crate) fn next_segments(&self, head: usize, to: &mut [abi::Sge]) -> Result {
        let mut offset = self
            .ring
            .offset_within(self.fetched, head, size_of_val(to))?;
        for segment in to {
            *segment = self.ring.memory.read(offset)?;
            offset = total([offset, size_of::<abi::Sge>()]);
        }
        Ok(())
    }

    /// Reads the bytes that follow the first `head` bytes of the next entry.
    #[inline]
    pub(crate) fn next_bytes(&self, head: usize, to: &mut [u8]) -> Result {
        let offset = self.ring.offset_within(self.fetched, head, to.len())?;
        self.ring.memory.read_bytes(offset, to)
    }

    /// Advances past the next entry after it was copied out.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.fetched.advance();
    }

    /// Frees the slot of the oldest work request, which has completed. Must be called before the
    /// completion is pushed, because the consumer may post as soon as it sees that.
    #[inline]
    pub(crate) fn retire(&mut self) {
        self.retired.advance();
        self.publish();
    }

    fn publish(&self) {
        self.ring.publish(RING_CONSUMER, self.retired);
    }

    /// Discards the entries of the ring (Reset state).
    pub(crate) fn discard(&mut self) {
        self.fetched = self.ring.producer();
        self.retired = self.fetched;
        self.broken = false;
        self.publish();
    }

    /// Tells the producer to call the kernel only after it has published `more` further entries.
    pub(crate) fn want_doorbell_after(&self, more: u32) {
        // The counter needs no check: only the producer uses the result.
        let event = self.ring.producer().add(more);
        self.ring.publish(RING_DOORBELL_EVENT, event);
        self.ring.want_doorbell(false);
    }
}

/// The producing side of a work queue of a kernel consumer.
pub(crate) struct Producer {
    ring: Ring,
    produced: RingCounter,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Self {
        let produced = RingCounter::default();
        Self { ring, produced }
    }

    /// Writes an entry with its data segments or inline data, and publishes it. Returns `ENOMEM` if
    /// the ring is full, `EINVAL` if the entry does not fit.
    pub(crate) fn push<T: AsBytes + Copy>(
        &mut self,
        entry: &T,
        segments: &[DataSegment],
        inline: &[u8],
    ) -> Result {
        let (ring, produced) = (&self.ring, self.produced);
        if produced.since(ring.counter(RING_CONSUMER)) >= ring.capacity {
            return Err(ENOMEM);
        }
        ring.write(produced, entry)?;
        let mut head = size_of::<T>();
        for s in segments {
            let sge = abi::Sge {
                addr: s.addr,
                length: s.length,
                lkey: s.lkey,
            };
            let at = ring.offset_within(produced, head, size_of::<abi::Sge>())?;
            ring.memory.write(at, &sge)?;
            head = total([head, size_of::<abi::Sge>()]);
        }
        let at = ring.offset_within(produced, head, inline.len())?;
        ring.memory.write_bytes(at, inline)?;
        self.produced.advance();
        self.ring.publish(RING_PRODUCER, self.produced);
        Ok(())
    }
}
