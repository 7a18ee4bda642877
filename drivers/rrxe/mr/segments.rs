// SPDX-License-Identifier: GPL-2.0

//! The data segments of a work request.

use super::{
    pager::{Absent, WINDOW},
    MemoryRange, MrTable, Reference,
};
use crate::{
    pd::PdId,
    ring::{abi::Sge, wqe},
};
use linux_rdma::{net::PacketWriter, sync::BurstGuard};
use rrxe_core::Fault;

/// The memory that a work request names, with the protection domain to check it against.
#[derive(Clone, Copy)]
pub(crate) struct Segments<'a> {
    pub(crate) mrs: &'a MrTable,
    pub(crate) burst: &'a BurstGuard,
    pub(crate) pd: PdId,
    pub(crate) list: &'a [Sge],
}

impl<'a> Segments<'a> {
    /// Returns the bytes `addr..addr + len` of a segment.
    #[inline]
    fn local(&self, lkey: u32, addr: u64, len: u32, write: bool) -> Result<MemoryRange<'a>, Fault> {
        let mrs = self.mrs;
        mrs.local(self.burst, self.pd, lkey, addr, len, write)
    }

    /// Appends `len` bytes, from byte `offset` of the list on, to a packet.
    #[inline]
    pub(crate) fn gather(
        &self,
        offset: u32,
        len: u32,
        to: &mut PacketWriter<'_>,
    ) -> Result<(), Fault> {
        wqe::for_each_piece(self.list, offset, len as usize, |lkey, addr, _, n| {
            self.local(lkey, addr, n, false)?.read(0, n, to)
        })
    }

    /// Returns the key and the address of `len` bytes, from byte `offset` of the list on, if they
    /// lie in one segment.
    fn single(&self, offset: u32, len: u32) -> Option<(u32, u64)> {
        let mut found = None;
        let result = wqe::for_each_piece(self.list, offset, len as usize, |lkey, addr, _, n| {
            found = Some((lkey, addr));
            // Stops at the first segment if the bytes span several.
            (n == len).then_some(()).ok_or(Fault::Malformed)
        });
        found.filter(|_| result.is_ok())
    }

    /// Returns `len` bytes from byte `offset` of the list on, if they lie in one readable segment.
    pub(crate) fn whole(&self, offset: u32, len: u32) -> Option<MemoryRange<'a>> {
        let (lkey, addr) = self.single(offset, len)?;
        self.local(lkey, addr, len, false).ok()
    }

    /// Returns a reference to `len` bytes from byte `offset` of the list on, if they lie in one
    /// segment.
    pub(crate) fn reference(&self, offset: u32, len: u32) -> Option<Reference> {
        let (lkey, addr) = self.single(offset, len)?;
        Some(Reference::local(self.pd, lkey, addr))
    }

    /// Calls `f` for each piece of the `len` writable bytes from byte `offset` of the list on, with
    /// its memory, the number of bytes before it, and its length.
    #[inline]
    pub(crate) fn for_each_writable(
        &self,
        offset: u32,
        len: usize,
        mut f: impl FnMut(&MemoryRange<'_>, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        wqe::for_each_piece(self.list, offset, len, |lkey, addr, done, n| {
            f(&self.local(lkey, addr, n, true)?, done, n as usize)
        })
    }

    /// Returns the part of the list that a pager should bring in after an access to byte `offset`
    /// and those after it has found a page absent. Returns `None` if none of it is on-demand
    /// memory.
    #[cold]
    pub(crate) fn absent(&self, offset: u32, write: bool) -> Option<Absent> {
        let left = wqe::total(self.list).saturating_sub(offset.into());
        let len = left.min(WINDOW.into()) as usize;
        let mut found = None;
        // An error ends the search, or shows when the access is repeated.
        let _ = wqe::for_each_piece(self.list, offset, len, |lkey, addr, _, n| {
            match self.local(lkey, addr, n, write)?.absent(write) {
                Some((absent, true)) => {
                    found = Some(absent);
                    Err(Fault::NotPresent)
                }
                Some((present, false)) => {
                    found.get_or_insert(present);
                    Ok(())
                }
                None => Ok(()),
            }
        });
        found
    }

    /// Copies bytes to the list, from byte `offset` on.
    pub(crate) fn scatter(&self, offset: u32, from: &[u8]) -> Result<(), Fault> {
        self.for_each_writable(offset, from.len(), |range, done, n| {
            let piece = from.get(done..).and_then(|from| from.get(..n));
            range.write(0, piece.ok_or(Fault::Malformed)?)
        })
    }
}
