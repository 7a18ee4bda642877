// SPDX-License-Identifier: GPL-2.0

//! Access to the bytes that a key was checked for.

use super::{KeyState, Kind, Memory, MrTable};
use crate::verbs::pd::PdId;
use kernel::sync::{
    atomic::{Atomic, Full, Release},
    rcu,
};
use linux_rdma::{
    net::{Fragment, PacketWriter},
    rdma::memory::{access, MappedMemory},
    sync::BhLocked,
};
use rrxe_core::{AtomicOp, Fault};

/// Bytes that an access was checked for, valid while the RCU read lock is held.
///
/// # Invariants
///
/// [`MrTable::span`] has found the bytes inside the memory that a valid key of their protection
/// domain names. If the source is locked, the key stays valid.
pub(crate) struct Span<'a> {
    pub(super) source: Source<'a>,
    pub(super) rcu: &'a rcu::Guard,
    /// Offset of the first byte in the memory.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u32,
}

/// Bytes that an access was checked for, to be looked up again soon. The second lookup sees any
/// change to the region.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    pub(crate) pd: PdId,
    pub(crate) key: u32,
    pub(crate) va: u64,
    /// Required rights; 0 for the queue pair's own work requests.
    pub(crate) required: u32,
}

impl Reference {
    /// Returns a reference to bytes of a data segment, to be sent.
    pub(crate) fn local(pd: PdId, lkey: u32, va: u64) -> Self {
        Self {
            pd,
            key: lkey,
            va,
            required: 0,
        }
    }

    /// Returns a reference to bytes that a READ asks for.
    pub(crate) fn to_read(pd: PdId, rkey: u32, va: u64) -> Self {
        Self {
            pd,
            key: rkey,
            va,
            required: access::REMOTE_READ,
        }
    }
}

impl MrTable {
    /// Returns the memory of `len` bytes, and the offset of the first one, if they are pinned user
    /// memory. Other memory does not qualify: its owner may reuse it once the work request has
    /// completed.
    #[inline]
    pub(crate) fn pinned<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        reference: &Reference,
        len: u64,
    ) -> Option<(MappedMemory<'a>, u64)> {
        let mr = self.get(reference.key, rcu)?;
        let Kind::Registered(registered) = &mr.kind else {
            return None;
        };
        let Memory::User(pinned) = &registered.memory else {
            return None;
        };
        let Reference {
            pd,
            key,
            va,
            required,
        } = *reference;
        let offset = registered.find(key, required, va, va.checked_add(len)?)?;
        let memory = pinned.access(rcu)?;
        (mr.pd.get() == pd).then_some((memory, offset))
    }
}

pub(super) enum Source<'a> {
    Registered(&'a Memory),
    /// Locked, so that the key can't be invalidated meanwhile.
    Locked(BhLocked<'a, KeyState>),
}

impl Span<'_> {
    /// Returns the memory, and the offset of the span in it.
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
        match memory {
            Memory::User(pinned) => pinned
                .access(self.rcu)
                .map(|memory| (memory, self.offset))
                .ok_or(Fault::Protection),
            Memory::Kernel(memory) => {
                // SAFETY: By the type invariant the key and the protection domain were checked.
                // User programs have no such domain (`Mr::kernel`), and peers have no rights to
                // such a region. A kernel consumer has therefore named these bytes by the L_Key in
                // a work request of this queue pair, which completes after its memory was accessed.
                let memory = unsafe { memory.access(self.offset, self.len.into()) };
                Ok((memory, 0))
            }
        }
    }

    /// Appends `len` bytes, from byte `offset` on, to a packet. They must be inside the span.
    #[inline]
    pub(crate) fn read(
        &self,
        offset: u64,
        len: u32,
        to: &mut PacketWriter<'_>,
    ) -> Result<(), Fault> {
        let (memory, start) = self.memory()?;
        memory
            .read(start.wrapping_add(offset), len as usize, to)
            .map_err(|_| Fault::Protection)
    }

    /// Copies bytes to the span, from byte `offset` on. They must fit.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let (memory, start) = self.memory()?;
        memory
            .write(start.wrapping_add(offset as u64), from)
            .map_err(|_| Fault::Protection)
    }

    /// Copies a fragment of a packet to the span, from byte `offset` on. It must fit.
    #[inline]
    pub(crate) fn write_fragment(&self, offset: usize, from: &Fragment<'_>) -> Result<(), Fault> {
        let (memory, start) = self.memory()?;
        memory
            .write_fragment(start.wrapping_add(offset as u64), from)
            .map_err(|_| Fault::Protection)
    }

    /// Returns the word at the start.
    fn word(&self) -> Result<&Atomic<u64>, Fault> {
        let (memory, start) = self.memory()?;
        memory.word(start).map_err(|_| Fault::Protection)
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
