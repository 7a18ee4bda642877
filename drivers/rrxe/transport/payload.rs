// SPDX-License-Identifier: GPL-2.0

//! The payload of outgoing packets: where it is, and how it is read.

use crate::mr::{KeyUser, MemoryRange, Reference, Segments};
use linux_rdma::net::PacketWriter;
use rrxe_core::Fault;

/// The location of the payload of consecutive packets, one after the other.
pub(crate) enum TxPayload<'a> {
    /// The packets have no payload.
    None,
    /// Bytes that the queue pair holds: inline data, an operand.
    Bytes(&'a [u8]),
    /// The data segments of a work request, from this byte on.
    Segments(Segments<'a>, u32),
    /// Memory that the peer reads, from address `va` on.
    Region { user: KeyUser, rkey: u32, va: u64 },
}

impl TxPayload<'_> {
    /// Returns a reference to the first `len` bytes, if one key names all of them.
    pub(super) fn reference(&self, len: u32) -> Option<Reference> {
        match *self {
            Self::None | Self::Bytes(_) => None,
            Self::Segments(segments, offset) => segments.reference(offset, len),
            Self::Region { user, rkey, va } => Some(Reference::to_read(user.pd, rkey, va)),
        }
    }
}

/// Access to the payload of consecutive packets. The code that sends packets is compiled for each
/// implementation, because a choice for each packet would cost more.
pub(super) trait ReadPayload {
    /// Appends `len` bytes, from byte `at` on, to a packet.
    fn read(&self, at: u32, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault>;
}

/// No payload.
impl ReadPayload for () {
    #[inline]
    fn read(&self, _: u32, _: u32, _: &mut PacketWriter<'_>) -> Result<(), Fault> {
        Ok(())
    }
}

impl ReadPayload for &[u8] {
    #[inline]
    fn read(&self, at: u32, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        let bytes = self.get(at as usize..).and_then(|b| b.get(..len as usize));
        to.push(bytes.ok_or(Fault::Malformed)?)
            .map_err(|_| Fault::Malformed)
    }
}

/// Data segments, from a byte on. Each read looks up their keys.
impl ReadPayload for (&Segments<'_>, u32) {
    #[inline]
    fn read(&self, at: u32, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        let (segments, offset) = self;
        segments.gather(offset.wrapping_add(at), len, to)
    }
}

/// Memory of which the key has been looked up.
impl ReadPayload for MemoryRange<'_> {
    #[inline]
    fn read(&self, at: u32, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        MemoryRange::read(self, at.into(), len, to)
    }
}
