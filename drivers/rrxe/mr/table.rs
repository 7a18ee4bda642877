// SPDX-License-Identifier: GPL-2.0

//! The table of memory regions and windows by key, and the accesses by key.

use super::{
    is_inside,
    memory::{access_fault, fault, Memory},
    pager::{self, Absent, Pager},
    BinderId, KeyState, KeyUser, Kind, Mr,
};
use crate::{number_table::NumberTable, pd::PdId};
use kernel::sync::{
    atomic::{Atomic, Full, Release},
    Arc,
};
use linux_rdma::{
    net::{Fragment, PacketWriter},
    rdma::memory::{access, Backing, MappedMemory, OnDemand},
    sync::{arc_borrow_ref, lock_bh, smp_mb, BhLocked, BurstGuard},
};
use rrxe_core::{AtomicOp, Fault, Flush, RemoteAccess};

/// Memory regions and windows. A key is 24 bits of number, and 8 low bits that the consumer changes
/// with each use.
pub(crate) type MrTable = NumberTable<Mr>;

/// The bytes of an access, by the key that names their memory. Each lookup sees any change to the
/// region.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    pub(super) pd: PdId,
    pub(super) key: u32,
    pub(super) va: u64,
    /// Required rights: `IB_ACCESS_*` flags, none for reading one's own memory.
    pub(super) required: u32,
}

impl Reference {
    #[inline]
    fn new(pd: PdId, key: u32, va: u64, required: u32) -> Self {
        Self {
            pd,
            key,
            va,
            required,
        }
    }

    /// Returns a reference to bytes of a data segment, to be sent.
    #[inline]
    pub(crate) fn local(pd: PdId, lkey: u32, va: u64) -> Self {
        Self::new(pd, lkey, va, 0)
    }

    /// Returns a reference to bytes that a READ asks for.
    #[inline]
    pub(crate) fn to_read(pd: PdId, rkey: u32, va: u64) -> Self {
        Self::new(pd, rkey, va, access::REMOTE_READ)
    }
}

/// Bytes that an access was checked for, valid in the burst in which it was checked.
///
/// # Invariants
///
/// [`MrTable::range`] has found the bytes inside the memory that a valid key of their protection
/// domain names. If the source is locked, the key stays valid.
pub(crate) struct MemoryRange<'a> {
    source: Source<'a>,
    burst: &'a BurstGuard,
    /// Offset of the first byte in the memory.
    offset: u64,
    /// Bytes.
    len: u32,
}

/// The memory that a range points into.
enum Source<'a> {
    Registered(&'a Memory),
    /// Locked, so that the key can't be invalidated meanwhile.
    Locked(BhLocked<'a, KeyState>),
}

impl MrTable {
    /// Returns the region with the number in this key. The caller must check the rest of the key.
    #[inline]
    pub(super) fn by_key<'a>(&'a self, key: u32, burst: &'a BurstGuard) -> Option<&'a Mr> {
        self.get(key >> 8, burst).map(arc_borrow_ref)
    }

    /// Returns `len` bytes of a region or window, if the access is allowed. `qp` is the queue pair,
    /// if the access may use a window.
    #[inline]
    fn range<'a>(
        &'a self,
        burst: &'a BurstGuard,
        qp: Option<BinderId>,
        reference: Reference,
        len: u32,
    ) -> Result<MemoryRange<'a>, Fault> {
        let mr = self.by_key(reference.key, burst).ok_or(Fault::Protection)?;
        if let Kind::Registered(registered) = &mr.kind {
            let offset = mr.find(registered, reference, len.into());
            return Ok(MemoryRange {
                source: Source::Registered(&registered.memory),
                burst,
                offset: offset.ok_or(Fault::Protection)?,
                len,
            });
        }
        let (va, required) = (reference.va, reference.required);
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        let state = lock_bh(&mr.key_state);
        if !mr.is_in(reference.pd)
            || !state.valid
            || state.key != reference.key
            || state.access & required != required
            || !is_inside(state.iova, state.length, va, end)
        {
            return Err(Fault::Protection);
        }
        let start = match (&mr.kind, &state.bound, qp) {
            (Kind::FastReg, _, _) => 0,
            (Kind::Window(_), Some(bound), Some(qp))
                if state.binder.is_none_or(|binder| binder == qp) =>
            {
                bound.start
            }
            _ => return Err(Fault::Protection),
        };
        let offset = start.wrapping_add(va.wrapping_sub(state.iova));
        Ok(MemoryRange {
            source: Source::Locked(state),
            burst,
            offset,
            len,
        })
    }

    /// Returns the bytes `va..va + len` for the queue pair's own work requests.
    #[inline]
    pub(crate) fn local<'a>(
        &'a self,
        burst: &'a BurstGuard,
        pd: PdId,
        lkey: u32,
        va: u64,
        len: u32,
        write: bool,
    ) -> Result<MemoryRange<'a>, Fault> {
        let required = if write { access::LOCAL_WRITE } else { 0 };
        self.range(burst, None, Reference::new(pd, lkey, va, required), len)
    }

    /// Returns the bytes `va..va + len` for a request from the peer.
    #[inline]
    pub(crate) fn remote<'a>(
        &'a self,
        burst: &'a BurstGuard,
        by: KeyUser,
        rkey: u32,
        va: u64,
        len: u32,
        wants: RemoteAccess,
    ) -> Result<MemoryRange<'a>, Fault> {
        let required = match wants {
            RemoteAccess::Read => access::REMOTE_READ,
            RemoteAccess::Write => access::REMOTE_WRITE,
            RemoteAccess::Atomic => access::REMOTE_ATOMIC,
        };
        let reference = Reference::new(by.pd, rkey, va, required);
        self.range(burst, Some(by.qp), reference, len)
    }

    /// Returns the memory of `len` bytes, and the offset of the first one, if they are pinned user
    /// memory. Other memory does not qualify: its owner may reuse it once the work request has
    /// completed.
    #[inline]
    pub(crate) fn pinned<'a>(
        &'a self,
        burst: &'a BurstGuard,
        reference: &Reference,
        len: u64,
    ) -> Option<(MappedMemory<'a>, u64)> {
        let mr = self.by_key(reference.key, burst)?;
        let Kind::Registered(registered) = &mr.kind else {
            return None;
        };
        let Memory::User(pinned) = &registered.memory else {
            return None;
        };
        let offset = mr.find(registered, *reference, len)?;
        Some((pinned.map(burst)?, offset))
    }

    /// Makes earlier writes to a region globally visible (IBA A19), if the region allows that. No
    /// region is persistent.
    pub(crate) fn flush(
        &self,
        burst: &BurstGuard,
        pd: PdId,
        rkey: u32,
        flush: Flush,
    ) -> Result<(), Fault> {
        let mut required = 0;
        if flush.global {
            required |= access::FLUSH_GLOBAL;
        }
        if flush.persistent {
            required |= access::FLUSH_PERSISTENT;
        }
        let mr = self.by_key(rkey, burst).ok_or(Fault::Protection)?;
        // Windows and fast registrations never have these rights.
        let Kind::Registered(registered) = &mr.kind else {
            return Err(Fault::Protection);
        };
        // Without a range, the whole region is flushed.
        let (va, len) = flush.range.unwrap_or((registered.iova, 0));
        let reference = Reference::new(pd, rkey, va, required);
        mr.find(registered, reference, len.into())
            .ok_or(Fault::Protection)?;
        // The CPU wrote the data and caches are coherent, so a memory barrier is enough.
        smp_mb();
        Ok(())
    }
}

impl MemoryRange<'_> {
    /// Returns the memory, and the offset of byte `at` of the range in it.
    #[inline]
    fn memory_at(&self, at: u64) -> Result<(MappedMemory<'_>, u64), Fault> {
        let (memory, start) = self.memory()?;
        Ok((memory, start.wrapping_add(at)))
    }

    /// Returns the memory, and the offset of the range in it.
    #[inline]
    fn memory(&self) -> Result<(MappedMemory<'_>, u64), Fault> {
        let memory = match &self.source {
            Source::Registered(memory) => memory,
            Source::Locked(state) => match (&state.pages, &state.bound) {
                // SAFETY: By the type invariant the key is valid, and the source holds the lock
                // under which the key is invalidated. `driver.rs` maps only addresses from
                // ib_core's calls, and `MrHandle::unmap` invalidates the key before new ones are
                // mapped.
                (Some(pages), _) => return Ok((unsafe { pages.access() }, self.offset)),
                (None, Some(bound)) => match &bound.region.kind {
                    Kind::Registered(registered) => &registered.memory,
                    _ => return Err(Fault::Protection),
                },
                (None, None) => return Err(Fault::Protection),
            },
        };
        // SAFETY: By the type invariant the key and the protection domain were checked. User
        // programs have no domain with kernel memory (`Mr::kernel`), and peers have no rights to
        // it. A kernel consumer has therefore named these bytes by the L_Key in a work request of
        // this queue pair, which completes after its memory was accessed.
        let access = unsafe { memory.access(self.burst, self.offset, self.len.into()) };
        access.map_err(fault)
    }

    /// Returns the on-demand memory of the range, and the pager that brings in its pages.
    #[inline]
    fn on_demand(&self) -> Option<(&Arc<OnDemand>, &Arc<Pager>)> {
        let memory = match &self.source {
            Source::Registered(memory) => *memory,
            Source::Locked(state) => match &state.bound.as_ref()?.region.kind {
                Kind::Registered(registered) => &registered.memory,
                _ => return None,
            },
        };
        match memory {
            Memory::OnDemand(pages, pager) => Some((pages, pager)),
            _ => None,
        }
    }

    /// Returns whether the first `len` bytes of the range are present.
    #[inline]
    pub(crate) fn is_present(&self, len: u32, write: bool) -> bool {
        self.on_demand().is_none_or(|(pages, _)| {
            let len = len.min(self.len).into();
            pages.first_absent(self.offset, len, write).is_none()
        })
    }

    /// Returns the range as one that a pager can bring in. Returns `None` if it is not on-demand
    /// memory.
    #[cold]
    pub(super) fn to_bring_in(&self, write: bool) -> Option<Absent> {
        let (pages, pager) = self.on_demand()?;
        Some(Absent {
            pages: pages.clone(),
            pager: pager.clone(),
            offset: self.offset,
            len: self.len.into(),
            write,
        })
    }

    /// Returns the part of the range that a pager should bring in after an access has found a page
    /// absent: from the first absent page on, at most [`pager::WINDOW`] bytes. If all of it is
    /// present by now, that is its beginning. Returns `None` if it is not on-demand memory. The
    /// second value says whether a page is absent.
    #[cold]
    pub(crate) fn absent(&self, write: bool) -> Option<(Absent, bool)> {
        let mut absent = self.to_bring_in(write)?;
        let len = absent.len.min(pager::WINDOW.into());
        let first = absent.pages.first_absent(self.offset, len, write);
        absent.offset = first.unwrap_or(self.offset);
        absent.len = len.saturating_sub(absent.offset.saturating_sub(self.offset));
        Some((absent, first.is_some()))
    }

    /// Appends `len` bytes, from byte `at` on, to a packet. They must be inside the range.
    #[inline]
    pub(crate) fn read(&self, at: u64, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        let (memory, start) = self.memory_at(at)?;
        memory.read(start, len as usize, to).map_err(access_fault)
    }

    /// Copies bytes to the range, from byte `offset` on. They must fit.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let (memory, start) = self.memory_at(offset as u64)?;
        memory.write(start, from).map_err(access_fault)
    }

    /// Copies a fragment of a packet to the range, from byte `offset` on. It must fit.
    #[inline]
    pub(crate) fn write_fragment(&self, offset: usize, from: &Fragment<'_>) -> Result<(), Fault> {
        let (memory, start) = self.memory_at(offset as u64)?;
        memory.write_fragment(start, from).map_err(access_fault)
    }

    fn word(&self) -> Result<&Atomic<u64>, Fault> {
        let (memory, start) = self.memory()?;
        memory.word(start).map_err(access_fault)
    }

    /// Stores a word at the start with a single access, after all earlier writes.
    pub(crate) fn store(&self, value: u64) -> Result<(), Fault> {
        self.word()?.store(value, Release);
        Ok(())
    }

    /// Executes an atomic operation on the word at the start. Returns the old value.
    pub(crate) fn atomic(&self, op: AtomicOp) -> Result<u64, Fault> {
        let word = self.word()?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => match word.cmpxchg(compare, swap, Full) {
                Ok(old) | Err(old) => old,
            },
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Full),
        })
    }
}
