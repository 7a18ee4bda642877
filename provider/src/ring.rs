// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Ring memory shared with the kernel; [`crate::abi`] describes its layout.
//!
//! The provider allocates the memory and passes its address in a create command; the kernel pins
//! the pages. The header words are accessed only by atomics. An entry belongs to the producer until
//! a release store of the producer counter publishes it, and to the consumer until a release store
//! of the consumer counter returns it. So entries need no atomics.

use crate::abi;
use crate::domain::Allocator;
use crate::ffi::os::{self, EINVAL, ENOMEM};
use core::ffi::c_int;
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{fence, AtomicU32, Ordering};

/// Memory of one or two rings: a mapping of this provider, or memory of a program's allocator.
///
/// When the process forks, it keeps the memory, and the child gets a copy: the kernel copies pinned
/// pages at once (`copy_present_page()` in mm/memory.c). So `ibv_dontfork_range` is not needed.
///
/// # Invariants
///
/// `base` is a page-aligned mapping of `bytes` bytes that this value owns, or memory of that size
/// and alignment that `allocator` has allocated.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    allocator: Option<Allocator>,
}

// SAFETY: only the address range itself is used through this type.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory. Fails with `ENOMEM`.
    fn new(bytes: usize) -> Result<Self, c_int> {
        let prot = os::PROT_READ | os::PROT_WRITE;
        let flags = os::MAP_PRIVATE | os::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let base = unsafe { os::mmap(null_mut(), bytes, prot, flags, -1, 0) };
        if base as isize == -1 {
            return Err(ENOMEM);
        }
        // INVARIANT: just mapped with that size.
        let base = NonNull::new(base.cast()).ok_or(ENOMEM)?;
        Ok(Self {
            base,
            bytes,
            allocator: None,
        })
    }

    /// Allocates zeroed memory, in whole pages, with `allocator` if there is one. Fails with
    /// `ENOMEM`, or with `EINVAL` if the allocator misplaces the memory.
    fn new_in(allocator: Option<&Allocator>, bytes: usize) -> Result<Self, c_int> {
        let Some(allocator) = allocator else {
            return Self::new(bytes);
        };
        let page = os::getauxval(os::AT_PAGESZ) as usize;
        let bytes = bytes.checked_next_multiple_of(page).ok_or(ENOMEM)?;
        match allocator.allocate(bytes, page)? {
            None => Self::new(bytes),
            Some(base) => {
                // SAFETY: the memory has these bytes, and nothing else uses it.
                unsafe { base.write_bytes(0, bytes) };
                // INVARIANT: just allocated with that size and alignment.
                Ok(Self {
                    base,
                    bytes,
                    allocator: Some(*allocator),
                })
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: by the invariant the memory is ours, or the allocator's. The kernel's object is
        // gone or was never created, and nothing uses a ring in it.
        unsafe {
            match &self.allocator {
                Some(allocator) => allocator.free(self.base),
                None => {
                    os::munmap(self.base.as_ptr().cast(), self.bytes);
                }
            }
        }
    }
}

/// Size of a ring: at least `entries` (1 or more) entries of `stride` bytes (a multiple of 16).
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) entries: u32,
    pub(crate) stride: u32,
}

impl Shape {
    /// Returns the ring's specification, without an address, and its size in bytes. Fails with
    /// `EINVAL` if they cannot be expressed.
    fn spec(self) -> Result<(abi::RingSpec, usize), c_int> {
        let spec = abi::RingSpec {
            addr: 0,
            capacity: self.entries.checked_next_power_of_two().ok_or(EINVAL)?,
            stride: self.stride,
        };
        Ok((spec, spec.size().ok_or(EINVAL)?))
    }
}

/// A ring: a header followed by a power of two of entries.
///
/// # Invariants
///
/// At least `RING_HEADER_SIZE + (mask + 1) * stride` bytes are mapped from `base` on, which no
/// other ring uses. `base` is a multiple of 64, `stride` one of 16, and `mask + 1` a power of two.
pub(crate) struct Ring {
    base: NonNull<u8>,
    mask: u32,
    stride: u32,
    /// The memory. `None` for the first of a pair: the second one owns the memory of both.
    mapping: Option<Mapping>,
}

// SAFETY: the memory is owned and the header words are atomic. The protocol above says which side
// may access which entry, and the queues enforce it with their locks.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Allocates an empty ring.
    ///
    /// Fails with `EINVAL` if the size cannot be expressed, or with `ENOMEM`.
    #[cfg(test)]
    pub(crate) fn allocate(entries: u32, stride: u32) -> Result<Self, c_int> {
        Self::allocate_in(None, entries, stride)
    }

    /// Allocates an empty ring, with `allocator` if there is one.
    ///
    /// Fails with `EINVAL` if the size cannot be expressed, or with `ENOMEM`.
    pub(crate) fn allocate_in(
        allocator: Option<&Allocator>,
        entries: u32,
        stride: u32,
    ) -> Result<Self, c_int> {
        let (spec, bytes) = Shape { entries, stride }.spec()?;
        let mapping = Mapping::new_in(allocator, bytes)?;
        // SAFETY: the mapping has the bytes of this one ring.
        let ring = unsafe { Self::at(&mapping, 0, spec) };
        Ok(Self {
            mapping: Some(mapping),
            ..ring
        })
    }

    /// Allocates two empty rings in one mapping, which the kernel must pin as a whole.
    ///
    /// Fails with `EINVAL` if a size cannot be expressed, or with `ENOMEM`.
    ///
    /// # Safety
    ///
    /// Nothing uses the first ring after the second is dropped.
    pub(crate) unsafe fn pair(
        allocator: Option<&Allocator>,
        first: Shape,
        second: Shape,
    ) -> Result<(Self, Self), c_int> {
        let ((first, _), (second, bytes)) = (first.spec()?, second.spec()?);
        let offset = first.next_ring().ok_or(EINVAL)?;
        let mapping = Mapping::new_in(allocator, offset.checked_add(bytes).ok_or(EINVAL)?)?;
        // SAFETY: the mapping has the bytes of the first up to `offset`, a multiple of 64, and from
        // there those of the second.
        let (first, second) = unsafe {
            (
                Self::at(&mapping, 0, first),
                Self::at(&mapping, offset, second),
            )
        };
        let mapping = Some(mapping);
        Ok((first, Self { mapping, ..second }))
    }

    /// Creates the ring of a specification, starting at byte `start` of a mapping, which the caller
    /// keeps.
    ///
    /// # Safety
    ///
    /// `start` is a multiple of 64, and no other ring uses the `spec.size()` bytes of the mapping
    /// that begin there. Nothing uses the ring without the mapping.
    unsafe fn at(mapping: &Mapping, start: usize, spec: abi::RingSpec) -> Self {
        // INVARIANT: as the caller says; a capacity is a power of two, and so at least 1.
        Self {
            // SAFETY: inside the mapping, by the caller's contract.
            base: unsafe { mapping.base.add(start) },
            mask: spec.capacity.wrapping_sub(1),
            stride: spec.stride,
            mapping: None,
        }
    }

    /// Gives back the memory of a ring that neither side uses. The ring keeps its addresses.
    pub(crate) fn discard(&self) {
        if let Some(Mapping {
            base,
            bytes,
            allocator: None,
        }) = &self.mapping
        {
            // SAFETY: the mapping is an anonymous one of this ring alone, and neither side uses its
            // entries.
            unsafe { os::discard(base.as_ptr().cast(), *bytes) };
        }
    }

    /// Makes a ring empty and disarmed that neither side uses.
    pub(crate) fn reset(&self) {
        for word in [
            abi::RING_PRODUCER,
            abi::RING_CONSUMER,
            abi::RING_DOORBELL,
            abi::RING_DOORBELL_EVENT,
            abi::RING_ARM,
            abi::RING_NOTIFIED,
            abi::RING_EVENTS,
            abi::RING_FLAGS,
        ] {
            self.word(word).store(0, Ordering::SeqCst);
        }
    }

    /// Returns the description of this ring for a create command.
    pub(crate) fn spec(&self) -> abi::RingSpec {
        abi::RingSpec {
            addr: self.base.as_ptr() as u64,
            capacity: self.capacity(),
            stride: self.stride,
        }
    }

    /// Returns the address and size in bytes of the memory that the kernel pins for this ring, and
    /// for the first one of a pair. The first one returns nothing.
    pub(crate) fn pinned(&self) -> (u64, usize) {
        let of = |mapping: &Mapping| (mapping.base.as_ptr() as u64, mapping.bytes);
        self.mapping.as_ref().map_or((0, 0), of)
    }

    /// Returns the number of entries.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// Returns the bytes of an entry.
    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: by the invariant the header is mapped and aligned, and its words are accessed
        // only by atomics, here and in the kernel. `offset` is that of a header word.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the producer counter: the entries published so far.
    pub(crate) fn producer(&self) -> &AtomicU32 {
        self.word(abi::RING_PRODUCER)
    }

    /// Returns the consumer counter: the entries consumed so far.
    pub(crate) fn consumer(&self) -> &AtomicU32 {
        self.word(abi::RING_CONSUMER)
    }

    /// Requests an event: ORs `request` into the word that the kernel reads after publishing.
    pub(crate) fn arm(&self, request: u32) {
        self.word(abi::RING_ARM).fetch_or(request, Ordering::SeqCst);
        // Pairs with the kernel's fence between publishing and reading the word: either the
        // kernel sees the request, or the poll that follows sees the completion.
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request for an event. Returns the request, or 0 if the kernel has consumed it.
    pub(crate) fn disarm(&self) -> u32 {
        self.word(abi::RING_ARM).swap(0, Ordering::SeqCst)
    }

    /// Returns whether a request for an event is pending.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.word(abi::RING_ARM).load(Ordering::Relaxed) != 0
    }

    /// Returns the consumer counter of the last event: see [`crate::abi::RingHeader::notified`].
    pub(crate) fn notified(&self) -> &AtomicU32 {
        self.word(abi::RING_NOTIFIED)
    }

    /// Tells the kernel that this side counts the events of the completion queue.
    pub(crate) fn count_events(&self) {
        self.word(abi::RING_FLAGS)
            .store(abi::COUNTS_EVENTS, Ordering::Relaxed);
    }

    /// Returns the events since the last call of the kernel: see [`crate::abi`], "The limit of
    /// events". 0 if the kernel does not count them.
    pub(crate) fn events(&self) -> &AtomicU32 {
        self.word(abi::RING_EVENTS)
    }

    /// Returns whether the kernel must be called after an entry was published.
    pub(crate) fn wants_doorbell(&self) -> bool {
        // Pairs with the kernel's fence between setting the word and its last look at the producer
        // counter before it stops polling.
        fence(Ordering::SeqCst);
        self.word(abi::RING_DOORBELL).load(Ordering::Relaxed) != 0
    }

    /// Returns whether a send queue needs a doorbell, now that its producer counter is `published`.
    #[inline]
    pub(crate) fn needs_doorbell(&self, published: u32) -> bool {
        // Pairs with the kernel's fence, as in `wants_doorbell`.
        fence(Ordering::SeqCst);
        // The kernel writes the counter of the next doorbell before it clears the doorbell flag.
        self.word(abi::RING_DOORBELL).load(Ordering::Acquire) != 0 || {
            let event = self.word(abi::RING_DOORBELL_EVENT).load(Ordering::Relaxed);
            // The counters wrap.
            published.wrapping_sub(event) < 1 << 31
        }
    }

    /// Acts as a kernel that needs no doorbell until the producer counter reaches `event`.
    #[cfg(test)]
    pub(crate) fn set_doorbell_event(&self, event: u32) {
        self.word(abi::RING_DOORBELL_EVENT)
            .store(event, Ordering::Relaxed);
        self.word(abi::RING_DOORBELL).store(0, Ordering::Release);
    }

    /// Returns whether this side has said that it counts events.
    #[cfg(test)]
    pub(crate) fn counts_events(&self) -> bool {
        self.word(abi::RING_FLAGS).load(Ordering::Relaxed) == abi::COUNTS_EVENTS
    }

    /// Returns the slot of entry `counter`: `stride` bytes, aligned to 16.
    pub(crate) fn slot(&self, counter: u32) -> *mut u8 {
        let index = (counter & self.mask) as usize;
        let offset = index
            .wrapping_mul(self.stride as usize)
            .wrapping_add(abi::RING_HEADER_SIZE);
        // SAFETY: the index is at most `mask`, so by the invariant the slot is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Mapping, Ring, Shape};
    use crate::abi;
    use crate::ffi::os::{self, EINVAL};
    use core::sync::atomic::Ordering;

    /// Returns the end of a page behind which nothing is mapped. The page stays mapped.
    pub(crate) fn start_of_a_hole() -> *mut u8 {
        let page = os::getauxval(os::AT_PAGESZ) as usize;
        let mapping = Mapping::new(page.wrapping_mul(2)).unwrap();
        let end = mapping.base.as_ptr().wrapping_add(page);
        core::mem::forget(mapping);
        // SAFETY: the second page is one of this mapping, which nothing uses. No access to it is
        // allowed from here on, and nothing else can be mapped there.
        let hidden = unsafe { os::mmap(end.cast(), page, 0, HIDDEN, -1, 0) };
        assert_eq!(hidden, end.cast());
        end
    }

    /// MAP_FIXED.
    const HIDDEN: core::ffi::c_int = os::MAP_PRIVATE | os::MAP_ANONYMOUS | 0x10;

    #[test]
    fn rounds_up_to_a_power_of_two() {
        for (asked, granted) in [(1, 1), (2, 2), (3, 4), (100, 128), (128, 128), (129, 256)] {
            let ring = Ring::allocate(asked, 64).unwrap();
            assert_eq!(ring.capacity(), granted);
            assert_eq!(ring.spec().capacity, granted);
            assert_eq!(ring.spec().stride, 64);
            assert_eq!(ring.spec().addr % 4096, 0);
        }
        assert_eq!(Ring::allocate(u32::MAX, 64).err(), Some(EINVAL));
    }

    #[test]
    fn two_in_one_mapping() {
        let shape = |entries, stride| Shape { entries, stride };
        let address = |ring: &Ring| ring.spec().addr as usize;
        let pair = |first, second| {
            // SAFETY: the first ring is dropped before the second.
            unsafe { Ring::pair(None, first, second) }
        };
        let (first, second) = pair(shape(3, 80), shape(5, 48)).unwrap();
        assert_eq!((first.capacity(), second.capacity()), (4, 8));
        // 256 + 4 * 80 bytes are 9 cache lines.
        assert_eq!(address(&second) - address(&first), 576);
        assert_eq!(first.spec().next_ring(), Some(576));
        assert_eq!(second.pinned(), (first.spec().addr, 576 + 256 + 8 * 48));
        assert_eq!(first.pinned(), (0, 0));
        let last = second.slot(7) as usize;
        drop(first);
        // The memory stays mapped for the other ring.
        // SAFETY: inside the second ring, which is alive and not shared.
        unsafe { core::ptr::write_bytes(last as *mut u8, 1, 48) };
        let much = shape(1 << 31, u32::MAX & !15);
        assert_eq!(pair(much, shape(u32::MAX, 16)).err(), Some(EINVAL));
    }

    #[test]
    fn a_discarded_ring_has_no_contents() {
        let ring = Ring::allocate(64, 64).unwrap();
        ring.arm(abi::ARM_ANY);
        let last = ring.slot(63);
        // SAFETY: inside the ring, which this test alone uses.
        unsafe { last.write(1) };
        ring.discard();
        // SAFETY: as above.
        assert_eq!((ring.is_armed(), unsafe { last.read() }), (false, 0));
    }

    #[test]
    fn strides_have_room_for_the_data() {
        assert_eq!(abi::send_stride(1, 0), Some(80));
        assert_eq!(abi::send_stride(1, 17), Some(96));
        assert_eq!(abi::send_stride(u32::MAX / 16, 0), None);
        assert_eq!(abi::recv_stride(2), Some(48));
        assert_eq!(abi::recv_stride(u32::MAX), None);
    }

    #[test]
    fn slots_wrap_and_stay_inside() {
        let ring = Ring::allocate(4, 32).unwrap();
        let base = ring.spec().addr as usize;
        let at = |counter| ring.slot(counter) as usize - base;
        assert_eq!(at(0), abi::RING_HEADER_SIZE);
        assert_eq!(at(3), abi::RING_HEADER_SIZE + 96);
        assert_eq!(at(4), at(0));
        assert_eq!(at(u32::MAX), at(3));
        assert_eq!(at(u32::MAX.wrapping_add(1)), at(0));
    }

    #[test]
    fn due_from_a_number_on() {
        let ring = Ring::allocate(4, 64).unwrap();
        for event in [0, 5, u32::MAX, 1 << 31] {
            ring.set_doorbell_event(event);
            assert!(!ring.needs_doorbell(event.wrapping_sub(1)));
            assert!(ring.needs_doorbell(event) && ring.needs_doorbell(event.wrapping_add(3)));
            ring.word(abi::RING_DOORBELL).store(1, Ordering::Relaxed);
            assert!(ring.needs_doorbell(event.wrapping_sub(1)));
        }
    }

    #[test]
    fn starts_empty_and_keeps_arm_requests() {
        let ring = Ring::allocate(4, 64).unwrap();
        assert_eq!(ring.producer().load(Ordering::Relaxed), 0);
        assert_eq!(ring.consumer().load(Ordering::Relaxed), 0);
        assert!(!ring.wants_doorbell());
        ring.word(abi::RING_DOORBELL).store(1, Ordering::Relaxed);
        assert!(ring.wants_doorbell());
        ring.arm(abi::ARM_SOLICITED);
        ring.arm(abi::ARM_ANY);
        assert_eq!(
            ring.word(abi::RING_ARM).load(Ordering::Relaxed),
            abi::ARM_ANY | abi::ARM_SOLICITED
        );
    }
}
