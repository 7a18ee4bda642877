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
use core::mem::size_of;
use kernel::{
    prelude::*,
    sync::Arc,
    transmute::{AsBytes, FromBytes},
};
use linux_rdma::rdma::{memory::SharedMemory, qp::QpCap, wr::DataSegment, Device};

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
    pub(crate) fn producer(&self) -> u32 {
        self.load_acquire(RING_PRODUCER)
    }

    /// Tells the producer whether to call the kernel after publishing.
    pub(crate) fn want_doorbell(&self, wanted: bool) {
        self.store_release(RING_DOORBELL, wanted.into());
    }

    /// Reads a word of the header. Later reads see what was written before it.
    #[inline]
    pub(crate) fn load_acquire(&self, word: usize) -> u32 {
        self.memory.load_acquire(self.start.wrapping_add(word))
    }

    /// Writes a word of the header, after all earlier writes.
    #[inline]
    pub(crate) fn store_release(&self, word: usize, value: u32) {
        let word = self.start.wrapping_add(word);
        self.memory.store_release(word, value);
    }

    /// Exchanges a word of the header, with full ordering. Returns its old value.
    pub(crate) fn exchange(&self, word: usize, value: u32) -> u32 {
        self.memory.exchange(self.start.wrapping_add(word), value)
    }

    /// Returns the slot of the entry at a counter.
    pub(crate) fn slot(&self, counter: u32) -> usize {
        (counter & self.capacity.wrapping_sub(1)) as usize
    }

    /// Reads the entry at a counter, once.
    #[inline]
    pub(crate) fn read<T: FromBytes + Copy>(&self, counter: u32) -> Result<T> {
        self.memory.read(self.offset(counter))
    }

    /// Writes the entry at a counter.
    #[inline]
    pub(crate) fn write<T: AsBytes + Copy>(&self, counter: u32, entry: &T) -> Result {
        self.memory.write(self.offset(counter), entry)
    }

    /// Returns the offset of the entry at a counter in the memory.
    fn offset(&self, counter: u32) -> usize {
        // The capacity is a power of two, and the size of the whole was computed without overflow.
        self.slot(counter)
            .wrapping_mul(self.stride as usize)
            .wrapping_add(RING_HEADER_SIZE)
            .wrapping_add(self.start)
    }

    /// Copies entries of another ring to the same counters of this one.
    pub(crate) fn copy_entries(&self, from: &Ring, first: u32, count: u32) -> Result {
        // Strides are multiples of 16.
        let stride = self.stride.min(from.stride) as usize;
        for i in 0..count {
            let counter = first.wrapping_add(i);
            let (source, to) = (from.offset(counter), self.offset(counter));
            for at in (0..stride).step_by(16) {
                let piece: [u64; 2] = from.memory.read(source.wrapping_add(at))?;
                self.memory.write(to.wrapping_add(at), &piece)?;
            }
        }
        Ok(())
    }
}

/// The consuming side of a work queue.
pub(crate) struct Consumer {
    pub(crate) ring: Ring,
    /// Entries taken so far. The kernel never reads its counter in the ring.
    taken: u32,
    /// Entries whose work requests have completed: their slots may be used again.
    retired: u32,
    /// The producer counter was impossible: no entry is taken until the next reset.
    broken: bool,
}

impl Consumer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            ring,
            taken: 0,
            retired: 0,
            broken: false,
        }
    }

    /// Returns the number of entries that can be taken. Returns `EINVAL` once if the producer
    /// claims more entries than the ring holds, and 0 from then on.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<u32> {
        if self.broken {
            return Ok(0);
        }
        let producer = self.ring.producer();
        let waiting = producer.wrapping_sub(self.taken);
        let in_use = producer.wrapping_sub(self.retired);
        if waiting > self.ring.capacity || in_use > self.ring.capacity {
            self.broken = true;
            return Err(EINVAL);
        }
        Ok(waiting)
    }

    /// Returns whether [`Consumer::available`] has something to report: entries, or an impossible
    /// producer counter.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.broken && self.ring.producer() != self.taken
    }

    /// Returns the counter of the next entry, and the number of entries that can be taken. Returns
    /// `EINVAL` if the producer counter is or was impossible.
    pub(crate) fn waiting(&mut self) -> Result<(u32, u32)> {
        let count = self.available()?;
        if self.broken {
            return Err(EINVAL);
        }
        Ok((self.taken, count))
    }

    /// Replaces the ring and keeps the counters; `producer` is the producer's counter. Returns the
    /// old ring.
    pub(crate) fn replace(&mut self, ring: Ring, producer: u32) -> Ring {
        let old = core::mem::replace(&mut self.ring, ring);
        self.ring.store_release(RING_PRODUCER, producer);
        self.publish();
        old
    }

    /// Reads the next entry.
    #[inline]
    pub(crate) fn next<T: FromBytes + Copy>(&self) -> Result<T> {
        self.ring.read(self.taken)
    }

    /// Reads the data segments that follow the first `head` bytes of the next entry.
    #[inline]
    pub(crate) fn next_segments(&self, head: usize, to: &mut [abi::Sge]) -> Result {
        if head.wrapping_add(to.len().wrapping_mul(16)) > self.ring.stride as usize {
            return Err(EINVAL);
        }
        let mut offset = self.ring.offset(self.taken).wrapping_add(head);
        for segment in to {
            *segment = self.ring.memory.read(offset)?;
            offset = offset.wrapping_add(size_of::<abi::Sge>());
        }
        Ok(())
    }

    /// Reads the bytes that follow the first `head` bytes of the next entry.
    #[inline]
    pub(crate) fn next_bytes(&self, head: usize, to: &mut [u8]) -> Result {
        if head.wrapping_add(to.len()) > self.ring.stride as usize {
            return Err(EINVAL);
        }
        let offset = self.ring.offset(self.taken).wrapping_add(head);
        self.ring.memory.read_bytes(offset, to)
    }

    /// Advances past the next entry after it was copied out.
    #[inline]
    pub(crate) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Frees the slot of the oldest work request, which has completed. Must be called before the
    /// completion is pushed, because the consumer may post as soon as it sees that.
    #[inline]
    pub(crate) fn retire(&mut self) {
        self.retired = self.retired.wrapping_add(1);
        self.publish();
    }

    fn publish(&self) {
        self.ring.store_release(RING_CONSUMER, self.retired);
    }

    /// Discards the entries of the ring (Reset state).
    pub(crate) fn discard(&mut self) {
        self.taken = self.ring.producer();
        self.retired = self.taken;
        self.broken = false;
        self.publish();
    }

    /// Tells the producer to call the kernel only after it has published `more` further entries.
    pub(crate) fn want_doorbell_after(&self, more: u32) {
        // The counter needs no check: only the producer uses the result.
        let event = self.ring.producer().wrapping_add(more);
        self.ring.store_release(RING_DOORBELL_EVENT, event);
        self.ring.want_doorbell(false);
    }
}

/// The producing side of a work queue of a kernel consumer.
pub(crate) struct Producer {
    ring: Ring,
    produced: u32,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, produced: 0 }
    }

    /// Writes an entry with its data segments or inline data, and publishes it. Returns `ENOMEM` if
    /// the ring is full, `EINVAL` if the entry does not fit.
    pub(crate) fn push<T: AsBytes + Copy>(
        &mut self,
        entry: &T,
        segments: &[DataSegment],
        inline: &[u8],
    ) -> Result {
        let consumer = self.ring.load_acquire(RING_CONSUMER);
        if self.produced.wrapping_sub(consumer) >= self.ring.capacity {
            return Err(ENOMEM);
        }
        let start = self.ring.offset(self.produced);
        let end = start.wrapping_add(self.ring.stride as usize);
        let mut at = start.wrapping_add(size_of::<T>());
        self.ring.memory.write(start, entry)?;
        for s in segments {
            let sge = abi::Sge {
                addr: s.addr,
                length: s.length,
                lkey: s.lkey,
            };
            let next = at.wrapping_add(size_of::<abi::Sge>());
            if next > end {
                return Err(EINVAL);
            }
            self.ring.memory.write(at, &sge)?;
            at = next;
        }
        if at.wrapping_add(inline.len()) > end {
            return Err(EINVAL);
        }
        self.ring.memory.write_bytes(at, inline)?;
        self.produced = self.produced.wrapping_add(1);
        self.ring.store_release(RING_PRODUCER, self.produced);
        Ok(())
    }
}
