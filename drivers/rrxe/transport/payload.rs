// SPDX-License-Identifier: GPL-2.0

//! The payload of outgoing packets: where it is, and how it is read.

use crate::mr::{KeyUser, MrTable, Reference, Segments, Span};
use linux_rdma::{net::PacketWriter, sync::BurstGuard};
use rrxe_core::{Fault, RemoteAccess};

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

/// Access to the payload of consecutive packets.
pub(super) enum PayloadReader<'a> {
    Bytes(&'a [u8]),
    /// Each read looks up the keys of the segments.
    Segments(Segments<'a>, u32),
    /// Memory of which the key has been looked up.
    Span(Span<'a>),
}

impl<'a> TxPayload<'a> {
    /// Returns a reference to the first `len` bytes, if one key names all of them.
    pub(super) fn reference(&self, len: u32) -> Option<Reference> {
        match *self {
            Self::None | Self::Bytes(_) => None,
            Self::Segments(segments, offset) => segments.reference(offset, len),
            Self::Region { user, rkey, va } => Some(Reference::to_read(user.pd, rkey, va)),
        }
    }

    /// Returns access to the payload of `count` packets, of `len` bytes each. Looks up the key only
    /// once for several packets. Returns `Protection` if the peer may not read the region.
    #[inline]
    pub(super) fn reader(
        &self,
        mrs: &'a MrTable,
        burst: &'a BurstGuard,
        len: u32,
        count: u32,
    ) -> Result<PayloadReader<'a>, Fault> {
        let whole = len.checked_mul(count).ok_or(Fault::Length)?;
        Ok(match *self {
            Self::None => PayloadReader::Bytes(&[]),
            Self::Bytes(bytes) => PayloadReader::Bytes(bytes),
            Self::Segments(segments, offset) => {
                if count > 1 {
                    if let Some(span) = segments.whole(offset, whole) {
                        return Ok(PayloadReader::Span(span));
                    }
                }
                PayloadReader::Segments(segments, offset)
            }
            Self::Region { user, rkey, va } => {
                let span = mrs.remote(burst, user, rkey, va, whole, RemoteAccess::Read)?;
                PayloadReader::Span(span)
            }
        })
    }
}

impl PayloadReader<'_> {
    /// Appends `len` bytes, from byte `at` on, to a packet.
    #[inline(always)]
    pub(super) fn read(&self, at: u32, len: u32, to: &mut PacketWriter<'_>) -> Result<(), Fault> {
        match self {
            Self::Bytes(bytes) => {
                let bytes = bytes.get(at as usize..).and_then(|b| b.get(..len as usize));
                to.push(bytes.ok_or(Fault::Malformed)?)
                    .map_err(|_| Fault::Malformed)
            }
            Self::Segments(segments, offset) => segments.gather(offset.wrapping_add(at), len, to),
            Self::Span(span) => span.read(at.into(), len, to),
        }
    }
}
