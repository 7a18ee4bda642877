// SPDX-License-Identifier: GPL-2.0

//! Access to the bytes that a key was checked for.

use super::{Changing, Kind, Memory};
use kernel::sync::rcu;
use linux_rdma::{
    net::{Fragment, Room},
    rdma::memory::{KernelMemory, MappedMemory, Word},
    sync::BhLocked,
};
use rrxe_core::{AtomicOp, Fault};

/// Bytes that an access was checked for, while the RCU read lock is held.
pub(crate) struct Span<'a> {
    pub(super) source: Source<'a>,
    pub(super) rcu: &'a rcu::Guard,
    /// Of its first byte in the memory.
    pub(super) offset: u64,
}

pub(super) enum Source<'a> {
    Fixed(&'a Memory),
    /// Locked, so that nobody invalidates the key meanwhile.
    Changing(BhLocked<'a, Changing>),
}

/// The memory of a span.
enum Place<'a> {
    Mapped(MappedMemory<'a>),
    Kernel(&'a KernelMemory),
}

impl Span<'_> {
    fn place(&self) -> Result<Place<'_>, Fault> {
        let memory = match &self.source {
            Source::Fixed(memory) => memory,
            Source::Changing(state) => match (&state.pages, &state.bound) {
                (Some(pages), _) => return Ok(Place::Mapped(pages.access())),
                (None, Some((region, _))) => match &region.kind {
                    Kind::Fixed(fixed) => &fixed.memory,
                    _ => return Err(Fault::Protection),
                },
                (None, None) => return Err(Fault::Protection),
            },
        };
        match memory {
            Memory::User(pinned) => pinned
                .access(self.rcu)
                .map(Place::Mapped)
                .ok_or(Fault::Protection),
            Memory::Kernel(memory) => Ok(Place::Kernel(memory)),
        }
    }

    /// Appends bytes from byte `offset` on to a packet. The caller asked for at least as many as that.
    #[inline]
    pub(crate) fn read(&self, offset: u64, len: u32, to: &mut Room<'_>) -> Result<(), Fault> {
        let (at, len) = (self.offset.wrapping_add(offset), len as usize);
        match self.place()? {
            Place::Mapped(memory) => memory.read(at, len, to),
            Place::Kernel(memory) => memory.read(at, len, to),
        }
        .map_err(|_| Fault::Protection)
    }

    /// Copies to byte `offset` from its start. The caller asked for at least that many bytes.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let at = self.offset.wrapping_add(offset as u64);
        match self.place()? {
            Place::Mapped(memory) => memory.write(at, from).map_err(|_| Fault::Protection),
            Place::Kernel(memory) => {
                memory.write(at, from);
                Ok(())
            }
        }
    }

    /// As [`Span::write`], from a fragment of a packet.
    #[inline]
    pub(crate) fn write_fragment(&self, offset: usize, from: &Fragment<'_>) -> Result<(), Fault> {
        let at = self.offset.wrapping_add(offset as u64);
        match self.place()? {
            Place::Mapped(memory) => memory
                .write_fragment(at, from)
                .map_err(|_| Fault::Protection),
            Place::Kernel(memory) => {
                memory.write_fragment(at, from);
                Ok(())
            }
        }
    }

    /// The word at its start.
    fn word(&self) -> Result<Word<'_>, Fault> {
        match self.place()? {
            Place::Mapped(memory) => memory.word(self.offset),
            Place::Kernel(memory) => memory.word(self.offset),
        }
        .map_err(|_| Fault::Protection)
    }

    /// Stores a word at its start in one, after everything that was written before.
    pub(crate) fn store(&self, value: u64) -> Result<(), Fault> {
        self.word()?.store(value);
        Ok(())
    }

    /// Executes an atomic operation at its start; returns what was there.
    pub(crate) fn atomic(&self, op: AtomicOp) -> Result<u64, Fault> {
        let word = self.word()?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => word.compare_swap(compare, swap),
            AtomicOp::FetchAdd { add } => word.fetch_add(add),
        })
    }
}
