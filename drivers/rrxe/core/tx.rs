// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Outgoing packets: headers as bytes, payload by reference.

use crate::psn::Psn;
use crate::wire::{Bth, Opcode, Operation};

/// Maximum length of BTH and extension headers in bytes (atomics of XRC).
pub const MAX_HEADER: usize = 44;

/// Source of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The packet has no payload.
    None,
    /// From the data segments (or the inline data) of a send work request.
    Send {
        /// Offset of the first byte in the work request's scatter list.
        offset: u32,
        /// Length in bytes: 1 to PMTU.
        len: u32,
    },
    /// From the memory of an RDMA READ. The driver checks the access again for each packet.
    Read {
        /// The region's key.
        rkey: u32,
        /// Address of the first byte in the region.
        va: u64,
        /// Length in bytes: 1 to PMTU.
        len: u32,
    },
}

impl Payload {
    /// Returns the length in bytes, without padding.
    #[inline]
    pub const fn len(&self) -> u32 {
        match *self {
            Payload::None => 0,
            Payload::Send { len, .. } | Payload::Read { len, .. } => len,
        }
    }

    /// Returns whether there is no payload.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send: [`TxPacket::header`], the payload, [`TxPacket::pad`] zero bytes, and the ICRC,
/// which the driver computes, because only it knows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPacket {
    header: [u8; MAX_HEADER],
    header_len: u8,
    /// Number of zero bytes after the payload: 0 to 3.
    pub pad: u8,
    /// Whether this is the last or only packet of a message.
    pub last: bool,
    /// The BTH's opcode.
    pub opcode: Opcode,
    /// The BTH's packet sequence number.
    pub psn: Psn,
    /// The payload.
    pub payload: Payload,
}

impl TxPacket {
    /// Returns a packet with this BTH and payload, and without extension headers. Sets the BTH's
    /// pad count from the payload.
    #[inline]
    pub(crate) fn new(mut bth: Bth, payload: Payload, last: bool) -> TxPacket {
        let pad = (payload.len() as u8).wrapping_neg() & 3;
        bth.pad = pad;
        let mut packet = TxPacket {
            header: [0; MAX_HEADER],
            header_len: 0,
            pad,
            last,
            opcode: bth.opcode,
            psn: bth.psn,
            payload,
        };
        packet.push(bth.to_bytes());
        packet
    }

    /// Appends an extension header.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        let room = self.header.get_mut(usize::from(self.header_len)..);
        if let Some(room) = room.and_then(<[u8]>::first_chunk_mut) {
            *room = bytes;
            self.header_len = self.header_len.wrapping_add(N as u8);
        }
    }

    /// Returns whether the packet is an answer without a payload.
    #[inline]
    pub fn is_acknowledgement(&self) -> bool {
        matches!(
            self.opcode.operation(),
            Some(Operation::Acknowledge | Operation::AtomicAcknowledge)
        )
    }

    /// Turns the packet into the next one of a burst: increments the PSN and advances the payload.
    #[inline]
    pub fn advance(&mut self) {
        self.psn = self.psn.next();
        if let Some(bth) = self.header.first_chunk_mut() {
            Bth::put_psn(bth, self.psn);
        }
        match &mut self.payload {
            Payload::None => {}
            Payload::Send { offset, len, .. } => *offset = offset.wrapping_add(*len),
            Payload::Read { va, len, .. } => *va = va.wrapping_add(u64::from(*len)),
        }
    }

    /// Hands over a burst packet by packet. Returns how many were taken, and why the next one was
    /// not.
    pub fn for_each_in_burst(
        &self,
        count: u32,
        mut transmit: impl FnMut(&TxPacket) -> Result<(), TxError>,
    ) -> (u32, Result<(), TxError>) {
        let mut packet = *self;
        for taken in 0..count {
            if let Err(error) = transmit(&packet) {
                return (taken, Err(error));
            }
            packet.advance();
        }
        (count, Ok(()))
    }

    /// Returns BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header
            .get(..usize::from(self.header_len))
            .unwrap_or(&self.header)
    }

    /// Returns the UDP payload length: bytes from the BTH to the end of the ICRC.
    #[inline]
    pub fn udp_payload_len(&self) -> u32 {
        u32::from(self.header_len)
            .wrapping_add(self.payload.len())
            .wrapping_add(u32::from(self.pad))
            .wrapping_add(crate::wire::ICRC_LEN)
    }
}

/// Reason why the driver did not take a packet. A packet that it takes but cannot send is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// The batch is full. Transmission stops, and continues with this packet at the next poll.
    NoRoom,
    /// Requester: the work request's own memory could not be read (L_Key, range, malformed).
    Local(crate::Fault),
    /// Responder: the memory of a READ is not (or no longer) accessible.
    RemoteAccess,
}

/// Returns how many packets of one were taken: 0 or 1.
#[inline]
pub(crate) fn taken(result: Result<(), TxError>) -> (u32, Result<(), TxError>) {
    (u32::from(result.is_ok()), result)
}
