// SPDX-License-Identifier: GPL-2.0

//! Copies payload from and to the data segments of a work request.

use crate::{
    ring::{abi::Sge, wqe},
    transport::rx_packet::RxPacket,
    verbs::{
        mr::{MrTable, Reference, Span},
        pd::PdId,
    },
};
use kernel::sync::rcu;
use linux_rdma::net::PacketWriter;
use rrxe_core::Fault;

/// The memory that a work request names, with the protection domain to check it against.
#[derive(Clone, Copy)]
pub(crate) struct Segments<'a> {
    pub(crate) mrs: &'a MrTable,
    pub(crate) rcu: &'a rcu::Guard,
    pub(crate) pd: PdId,
    pub(crate) list: &'a [Sge],
}

impl Segments<'_> {
    /// Appends `len` bytes, from byte `offset` of the list on, to a packet.
    pub(crate) fn gather(
        &self,
        offset: u32,
        len: u32,
        to: &mut PacketWriter<'_>,
    ) -> Result<(), Fault> {
        wqe::for_each_piece(self.list, offset, len as usize, |lkey, addr, _, n| {
            self.mrs
                .local(self.rcu, self.pd, lkey, addr, n, false)?
                .read(0, n, to)
        })
    }

    /// Returns the key and the address of `len` bytes, from byte `offset` of the list on, if they
    /// lie in one segment.
    fn single(&self, offset: u32, len: u32) -> Option<(u32, u64)> {
        let mut found = None;
        let result = wqe::for_each_piece(self.list, offset, len as usize, |lkey, addr, _, n| {
            found = Some((lkey, addr));
            // Stops at the first segment if the range spans several.
            (n == len).then_some(()).ok_or(Fault::Malformed)
        });
        found.filter(|_| result.is_ok())
    }

    /// Returns `len` bytes from byte `offset` of the list on, if they lie in one readable segment.
    pub(crate) fn whole(&self, offset: u32, len: u32) -> Option<Span<'_>> {
        let (lkey, addr) = self.single(offset, len)?;
        let span = self.mrs.local(self.rcu, self.pd, lkey, addr, len, false);
        span.ok()
    }

    /// Returns a reference to `len` bytes from byte `offset` of the list on, if they lie in one
    /// segment of pinned user memory.
    pub(crate) fn reference(&self, offset: u32, len: u32) -> Option<Reference> {
        let (lkey, addr) = self.single(offset, len)?;
        let reference = Reference::local(self.pd, lkey, addr);
        let pinned = self.mrs.pinned(self.rcu, &reference, len.into());
        pinned.map(|_| reference)
    }

    /// Copies bytes to the list, from byte `offset` on.
    pub(crate) fn scatter(&self, offset: u32, from: &[u8]) -> Result<(), Fault> {
        wqe::for_each_piece(self.list, offset, from.len(), |lkey, addr, done, n| {
            let piece = from
                .get(done..)
                .and_then(|f| f.get(..n as usize))
                .ok_or(Fault::Malformed)?;
            self.mrs
                .local(self.rcu, self.pd, lkey, addr, n, true)?
                .write(0, piece)
        })
    }

    /// Copies the payload of a packet to the list, from byte `offset` on.
    pub(crate) fn scatter_payload(&self, offset: u32, from: &RxPacket<'_>) -> Result<(), Fault> {
        wqe::for_each_piece(
            self.list,
            offset,
            from.payload_len(),
            |lkey, addr, done, n| {
                let span = self.mrs.local(self.rcu, self.pd, lkey, addr, n, true)?;
                from.copy_to_span(done, n as usize, &span)
            },
        )
    }
}
