// SPDX-License-Identifier: GPL-2.0

//! The kernel's side of work queues: rings that a consumer fills and the driver empties.

use crate::abi::{
    self, CreateQpCmd, RingSpec, RING_CONSUMER, RING_DOORBELL, RING_DUE, RING_HEADER_SIZE,
    RING_PRODUCER,
};
use crate::limits;
use kernel::{prelude::*, sync::Arc, transmute::FromBytes};
use linux_rdma::rdma::{memory::SharedMemory, qp::QpCap, wr::DataSegment, Device};

/// Where a ring's entries are.
#[derive(Clone)]
pub(crate) struct Ring {
    memory: Arc<SharedMemory>,
    /// Offset of its header in the memory.
    start: usize,
    capacity: u32,
    stride: u32,
}

impl Ring {
    /// Pins the ring of a user program, if it has one. `EINVAL` where it is too small for `entries` entries of
    /// `min_stride` bytes, or not shaped as the ABI says.
    pub(crate) fn from_user<D: linux_rdma::rdma::Driver>(
        device: &Device<D>,
        spec: &RingSpec,
        entries: u32,
        min_stride: u32,
    ) -> Result<Self> {
        if entries == 0 && spec.addr == 0 {
            // There is none; nothing can be posted to what stands in for it.
            return Self::for_kernel(1, min_stride);
        }
        let size = Self::check(spec, entries, min_stride)?;
        let memory = SharedMemory::from_user(device, spec.addr, size)?;
        Ok(Self::at(Arc::new(memory, GFP_KERNEL_ACCOUNT)?, 0, spec))
    }

    /// Pins the send and the receive ring of a queue pair; once, if they are in one piece of
    /// memory. `EINVAL` as for [`Ring::from_user`].
    pub(crate) fn pair_from_user<D: linux_rdma::rdma::Driver>(
        device: &Device<D>,
        cmd: &CreateQpCmd,
        cap: &QpCap,
        min_send: u32,
        min_recv: u32,
    ) -> Result<(Self, Self)> {
        let (sq, rq) = (&cmd.sq, &cmd.rq);
        let behind = sq.behind().ok_or(EINVAL)?;
        if sq.addr == 0 || rq.addr == 0 || sq.addr.checked_add(behind as u64) != Some(rq.addr) {
            return Ok((
                Self::from_user(device, sq, cap.max_send_wr, min_send)?,
                Self::from_user(device, rq, cap.max_recv_wr, min_recv)?,
            ));
        }
        Self::check(sq, cap.max_send_wr, min_send)?;
        let size = Self::check(rq, cap.max_recv_wr, min_recv)?;
        let size = behind.checked_add(size).ok_or(EINVAL)?;
        let memory = SharedMemory::from_user(device, sq.addr, size)?;
        let memory = Arc::new(memory, GFP_KERNEL_ACCOUNT)?;
        Ok((
            Self::at(memory.clone(), 0, sq),
            Self::at(memory, behind, rq),
        ))
    }

    /// The bytes of a program's ring. `EINVAL` as for [`Ring::from_user`].
    fn check(spec: &RingSpec, entries: u32, min_stride: u32) -> Result<usize> {
        // A provider that knows no other strides rounds up to a power of two.
        let most = abi::send_stride(limits::MAX_SGE, limits::MAX_INLINE)
            .and_then(u32::checked_next_power_of_two)
            .ok_or(EINVAL)?;
        if !spec.capacity.is_power_of_two()
            || spec.stride & 15 != 0
            || spec.capacity < entries
            || spec.capacity > limits::MAX_QP_WR
            || spec.stride < min_stride
            || spec.stride > most
        {
            return Err(EINVAL);
        }
        spec.size().ok_or(EINVAL)
    }

    /// A ring whose shape was checked, from byte `start` of the memory on.
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

    /// Entries that it holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// What the producer says that it has published.
    #[inline]
    pub(crate) fn producer(&self) -> u32 {
        self.load_acquire(RING_PRODUCER)
    }

    /// Asks the producer to call the kernel after publishing, or no more.
    pub(crate) fn want_doorbell(&self, wanted: bool) {
        self.store_release(RING_DOORBELL, wanted.into());
    }

    /// Reads a word of the header, with acquire semantics.
    #[inline]
    fn load_acquire(&self, word: usize) -> u32 {
        self.memory.load_acquire(self.start.wrapping_add(word))
    }

    /// Writes a word of the header, with release semantics.
    #[inline]
    fn store_release(&self, word: usize, value: u32) {
        let word = self.start.wrapping_add(word);
        self.memory.store_release(word, value);
    }

    fn offset(&self, counter: u32) -> usize {
        // The capacity is a power of two, and the size of the whole was computed without overflow.
        let slot = counter & self.capacity.wrapping_sub(1);
        (slot as usize)
            .wrapping_mul(self.stride as usize)
            .wrapping_add(RING_HEADER_SIZE)
            .wrapping_add(self.start)
    }

    /// Copies the entry at a counter's value out.
    #[inline]
    fn entry<T: FromBytes + Copy>(&self, counter: u32) -> Result<T> {
        self.memory.read(self.offset(counter))
    }

    /// Copies the data segments behind an entry of `head` bytes out.
    #[inline]
    fn segments(&self, counter: u32, head: usize, to: &mut [DataSegment]) -> Result {
        let mut offset = self.offset(counter).wrapping_add(head);
        for segment in to {
            let sge: abi::Sge = self.memory.read(offset)?;
            *segment = DataSegment {
                addr: sge.addr,
                length: sge.length,
                lkey: sge.lkey,
            };
            offset = offset.wrapping_add(core::mem::size_of::<abi::Sge>());
        }
        Ok(())
    }
}

impl Ring {
    /// Copies entries of another ring to the places of the same counters.
    pub(crate) fn copy_entries(&self, from: &Ring, first: u32, count: u32) -> Result {
        let bytes = self.stride.min(from.stride) as usize;
        let mut buffer = [0; 128];
        for i in 0..count {
            let counter = first.wrapping_add(i);
            let mut done = 0usize;
            while done < bytes {
                let n = bytes.wrapping_sub(done).min(buffer.len());
                let piece = buffer.get_mut(..n).ok_or(EINVAL)?;
                from.memory
                    .read_bytes(from.offset(counter).wrapping_add(done), piece)?;
                self.memory
                    .write_bytes(self.offset(counter).wrapping_add(done), piece)?;
                done = done.wrapping_add(n);
            }
        }
        Ok(())
    }
}

/// The emptying side of a work queue.
pub(crate) struct Consumer {
    ring: Ring,
    /// Entries taken so far. The kernel's own: what the ring says is for the other side to read.
    taken: u32,
    /// Entries whose work requests have completed: their places may be used again.
    retired: u32,
    /// The producer claimed the impossible: nothing more is taken until Reset.
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

    /// Entries that wait to be taken. `EINVAL`, once, where the producer claims more than the ring
    /// holds; none from then on.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<u32> {
        if self.broken {
            return Ok(0);
        }
        let producer = self.ring.load_acquire(RING_PRODUCER);
        let waiting = producer.wrapping_sub(self.taken);
        let in_use = producer.wrapping_sub(self.retired);
        if waiting > self.ring.capacity || in_use > self.ring.capacity {
            self.broken = true;
            return Err(EINVAL);
        }
        Ok(waiting)
    }

    /// Whether there is something for who takes next: entries, or a producer that claims the impossible.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.broken && self.ring.producer() != self.taken
    }

    /// Entries that the ring holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// The ring.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The counter of the next entry, and how many wait. `EINVAL` where the producer claimed the
    /// impossible, now or before.
    pub(crate) fn waiting(&mut self) -> Result<(u32, u32)> {
        let count = self.available()?;
        if self.broken {
            return Err(EINVAL);
        }
        Ok((self.taken, count))
    }

    /// Puts another ring in place, with the same counters; `producer` is the producer's. Returns
    /// the old one.
    pub(crate) fn replace(&mut self, ring: Ring, producer: u32) -> Ring {
        let old = core::mem::replace(&mut self.ring, ring);
        self.ring.store_release(RING_PRODUCER, producer);
        self.publish();
        old
    }

    /// The next entry, as it is now.
    #[inline]
    pub(crate) fn next<T: FromBytes + Copy>(&self) -> Result<T> {
        self.ring.entry(self.taken)
    }

    /// The data segments of the next entry, which follow its first `head` bytes.
    #[inline]
    pub(crate) fn next_segments(&self, head: usize, to: &mut [DataSegment]) -> Result {
        if head.wrapping_add(to.len().wrapping_mul(16)) > self.ring.stride as usize {
            return Err(EINVAL);
        }
        self.ring.segments(self.taken, head, to)
    }

    /// The bytes behind the first `head` bytes of the next entry.
    #[inline]
    pub(crate) fn next_bytes(&self, head: usize, to: &mut [u8]) -> Result {
        if head.wrapping_add(to.len()) > self.ring.stride as usize {
            return Err(EINVAL);
        }
        self.ring
            .memory
            .read_bytes(self.ring.offset(self.taken).wrapping_add(head), to)
    }

    /// The next entry was copied out.
    #[inline]
    pub(crate) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// The oldest work request has completed: tells the producer that its place is free again.
    /// Before the completion is pushed, since who sees that may post at once.
    #[inline]
    pub(crate) fn retire(&mut self) {
        self.retired = self.retired.wrapping_add(1);
        self.publish();
    }

    fn publish(&self) {
        self.ring.store_release(RING_CONSUMER, self.retired);
    }

    /// Forgets what is in the ring (the Reset state).
    pub(crate) fn discard(&mut self) {
        self.taken = self.ring.load_acquire(RING_PRODUCER);
        self.retired = self.taken;
        self.broken = false;
        self.publish();
    }

    /// Asks the producer to call the kernel after publishing, or no more.
    pub(crate) fn want_doorbell(&self, wanted: bool) {
        self.ring.want_doorbell(wanted);
    }

    /// Asks the producer to call the kernel only once it has published so many more.
    pub(crate) fn want_doorbell_after(&self, more: u32) {
        // Whatever it says: the number is for the producer only.
        let producer = self.ring.load_acquire(RING_PRODUCER);
        let due = producer.wrapping_add(more);
        self.ring.store_release(RING_DUE, due);
        self.ring.store_release(RING_DOORBELL, 0);
    }
}

/// The filling side of a work queue of a kernel consumer.
pub(crate) struct Producer {
    ring: Ring,
    produced: u32,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, produced: 0 }
    }

    /// Writes an entry with its data segments, or inline data, and publishes it. `ENOMEM` where
    /// the ring is full, `EINVAL` where the entry does not fit.
    pub(crate) fn push<T: kernel::transmute::AsBytes + Copy>(
        &mut self,
        entry: &T,
        segments: impl Iterator<Item = DataSegment>,
        inline: &[u8],
    ) -> Result {
        let consumer = self.ring.load_acquire(RING_CONSUMER);
        if self.produced.wrapping_sub(consumer) >= self.ring.capacity {
            return Err(ENOMEM);
        }
        let start = self.ring.offset(self.produced);
        let end = start.wrapping_add(self.ring.stride as usize);
        let mut at = start.wrapping_add(core::mem::size_of::<T>());
        self.ring.memory.write(start, entry)?;
        for s in segments {
            let sge = abi::Sge {
                addr: s.addr,
                length: s.length,
                lkey: s.lkey,
            };
            if at.wrapping_add(core::mem::size_of::<abi::Sge>()) > end {
                return Err(EINVAL);
            }
            self.ring.memory.write(at, &sge)?;
            at = at.wrapping_add(core::mem::size_of::<abi::Sge>());
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
