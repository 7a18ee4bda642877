// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets on their way out: headers as bytes, payload by reference.

use crate::psn::Psn;
use crate::wire::{Bth, Opcode, Operation};

/// Most bytes that BTH and extension headers take together (atomics of XRC).
pub const MAX_HEADER: usize = 44;

/// Where the payload of a packet is to be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    None,
    /// From the data segments (or the inline data) of a send work request.
    Send {
        /// The work request's slot.
        slot: u32,
        /// First byte, counted through the work request's scatter list.
        offset: u32,
        /// Bytes: 1 to PMTU.
        len: u32,
    },
    /// From the memory that an RDMA READ asks for. The driver checks key, range and rights anew
    /// for each packet.
    Read {
        /// The region's key.
        rkey: u32,
        /// First byte's address in the region.
        va: u64,
        /// Bytes: 1 to PMTU.
        len: u32,
    },
}

impl Payload {
    /// Bytes of payload, without padding.
    #[inline]
    pub const fn len(&self) -> u32 {
        match *self {
            Payload::None => 0,
            Payload::Send { len, .. } | Payload::Read { len, .. } => len,
        }
    }

    /// Whether there is no payload.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send. On the wire: [`TxPacket::header`], the payload, [`TxPacket::pad`] zero bytes
/// and the ICRC, which the driver computes since it knows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPacket {
    header: [u8; MAX_HEADER],
    header_len: u8,
    /// Zero bytes after the payload: 0 to 3.
    pub pad: u8,
    /// Whether it is the first or only packet of a message.
    pub first: bool,
    /// Whether it is the last or only packet of a message.
    pub last: bool,
    /// The BTH's opcode.
    pub opcode: Opcode,
    /// The BTH's packet sequence number.
    pub psn: Psn,
    /// Requester: the slot of the work request. Responder: 0.
    pub slot: u32,
    /// The payload.
    pub payload: Payload,
}

impl TxPacket {
    /// A packet with this header and payload and no extension headers yet. The BTH's pad count is
    /// set from the payload.
    #[inline]
    pub(crate) fn new(mut bth: Bth, payload: Payload) -> TxPacket {
        let pad = (payload.len() as u8).wrapping_neg() & 3;
        bth.pad = pad;
        let mut packet = TxPacket {
            header: [0; MAX_HEADER],
            header_len: 0,
            pad,
            first: false,
            last: false,
            opcode: bth.opcode,
            psn: bth.psn,
            slot: 0,
            payload,
        };
        packet.push(bth.to_bytes());
        packet
    }

    /// Appends an extension header.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        let at = usize::from(self.header_len);
        let room = self
            .header
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut::<N>);
        if let Some(room) = room {
            *room = bytes;
            self.header_len = self.header_len.wrapping_add(N as u8);
        }
    }

    /// Returns whether it answers a request, and carries no payload.
    #[inline]
    pub fn is_acknowledgement(&self) -> bool {
        matches!(
            self.opcode.operation(),
            Some(Operation::Acknowledge | Operation::AtomicAcknowledge)
        )
    }

    /// Becomes the next packet of a run: the PSN is one more, and the payload what follows.
    #[inline]
    pub fn step(&mut self) {
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

    /// Hands over a run packet by packet: how many were taken, and why the next one was not.
    pub fn each_of_run(
        &self,
        count: u32,
        mut transmit: impl FnMut(&TxPacket) -> Result<(), TxError>,
    ) -> (u32, Result<(), TxError>) {
        let mut packet = *self;
        for taken in 0..count {
            if let Err(error) = transmit(&packet) {
                return (taken, Err(error));
            }
            packet.step();
        }
        (count, Ok(()))
    }

    /// BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header
            .get(..usize::from(self.header_len))
            .unwrap_or(&self.header)
    }

    /// Bytes from the first of the BTH to the last of the ICRC: the UDP payload length.
    #[inline]
    pub fn udp_payload_len(&self) -> u32 {
        u32::from(self.header_len)
            .wrapping_add(self.payload.len())
            .wrapping_add(u32::from(self.pad))
            .wrapping_add(crate::wire::ICRC_LEN)
    }
}

/// Why the driver did not take a packet. A packet that it took and could not send is a lost
/// packet, for which it reports success: the protocol recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// No room in the batch. Transmission stops here and resumes with the same packet when polled
    /// again.
    NoRoom,
    /// Requester: the work request's own memory could not be read (L_Key, range, malformed).
    Local(crate::Fault),
    /// Responder: the memory that a READ asked for is not (or no longer) accessible.
    RemoteAccess,
}

/// How many packets were taken of one.
#[inline]
pub(crate) fn taken(result: Result<(), TxError>) -> (u32, Result<(), TxError>) {
    (u32::from(result.is_ok()), result)
}
