// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Outgoing packets: headers as bytes, payload by reference.

use crate::icrc;
use crate::lengths::total;
use crate::psn::Psn;
use crate::responder::DomainId;
use crate::wire::{Bth, Opcode, Operation};
use crate::Fault;

/// Maximum length of BTH and extension headers in bytes (atomics of XRC).
pub const MAX_HEADER: usize = 44;

/// Length of the longest payload in bytes: the largest PMTU.
const MAX_PAYLOAD: u32 = 4096;

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
        /// The protection domain to which [`check_remote`] granted the access.
        ///
        /// [`check_remote`]: crate::ResponderEnv::check_remote
        domain: DomainId,
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
        debug_assert!(
            payload.len() <= MAX_PAYLOAD,
            "the payload exceeds every PMTU"
        );
        debug_assert!(
            payload == Payload::None || !payload.is_empty(),
            "a payload without bytes"
        );
        debug_assert!(
            !matches!(bth.opcode.operation(), None | Some(Operation::Unsupported)),
            "an opcode that no receiver knows"
        );
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
        debug_assert!(N & 3 == 0, "a header with a part of a word");
        let space = self.header.get_mut(usize::from(self.header_len)..);
        let space = space.and_then(<[u8]>::first_chunk_mut);
        debug_assert!(space.is_some(), "the headers exceed MAX_HEADER");
        if let Some(space) = space {
            *space = bytes;
            self.header_len = self.header_len.wrapping_add(N as u8);
        }
    }

    /// Returns whether the packet is a response without a payload.
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
        debug_assert!(
            usize::from(self.header_len) >= Bth::LEN,
            "a packet without a BTH"
        );
        self.psn = self.psn.next();
        if let Some(bth) = self.header.first_chunk_mut() {
            Bth::put_psn(bth, self.psn);
        }
        match &mut self.payload {
            Payload::None => {}
            Payload::Send { offset, len } => {
                debug_assert!(offset.checked_add(*len).is_some(), "an offset wraps");
                *offset = offset.wrapping_add(*len);
            }
            Payload::Read { va, len, .. } => *va = va.wrapping_add(u64::from(*len)),
        }
    }

    /// Calls `transmit` for each packet of a burst, for environments that send single packets.
    /// Returns how many were accepted, and why the next one was not.
    #[inline]
    pub fn for_each_in_burst(
        &self,
        count: u32,
        mut transmit: impl FnMut(&TxPacket) -> Result<(), TxError>,
    ) -> (u32, Result<(), TxError>) {
        debug_assert!(count != 0, "a burst without packets");
        // Most packets are alone, and need no copy.
        let mut later = None;
        for accepted in 0..count {
            let packet = if accepted == 0 {
                self
            } else {
                let later = later.get_or_insert(*self);
                later.advance();
                later
            };
            if let Err(error) = transmit(packet) {
                return (accepted, Err(error));
            }
        }
        (count, Ok(()))
    }

    /// Returns BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        let header = self.header.get(..usize::from(self.header_len));
        debug_assert!(header.is_some(), "the header length exceeds the header");
        header.unwrap_or(&self.header)
    }

    /// Returns the UDP payload length: bytes from the BTH to the end of the ICRC.
    #[inline]
    pub fn udp_payload_len(&self) -> u32 {
        let padded = total([self.payload.len() as usize, self.pad.into()]);
        debug_assert!(padded & 3 == 0, "a wrong pad count");
        total([self.header_len.into(), padded, icrc::ICRC]) as u32
    }
}

/// Reason why the driver did not accept a packet. A packet that it accepts but cannot send is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// The batch is full. Transmission stops, and continues with this packet at the next poll.
    Full,
    /// The payload could not be read. Requester: the work request is malformed, or its keys do not
    /// permit the access. Responder: the memory of a READ is no longer accessible. With
    /// [`Fault::NotPresent`] transmission stops, and continues with this packet after
    /// `on_memory_present`.
    Payload(Fault),
}

impl TxError {
    /// Returns the fault, unless transmission continues with the same packet later.
    #[inline]
    pub(crate) fn permanent(self) -> Option<Fault> {
        match self {
            TxError::Full | TxError::Payload(Fault::NotPresent) => None,
            TxError::Payload(fault) => Some(fault),
        }
    }
}

impl From<Fault> for TxError {
    #[inline]
    fn from(fault: Fault) -> TxError {
        TxError::Payload(fault)
    }
}

/// Impossible states, each of which an assertion catches.
#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::Service;

    fn packet() -> TxPacket {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly);
        TxPacket::new(Bth::new(opcode, 1, Psn::new(0)), Payload::None, true)
    }

    #[test]
    #[should_panic(expected = "the headers exceed MAX_HEADER")]
    fn header_without_space() {
        packet().push([0; MAX_HEADER - Bth::LEN + 4]);
    }

    #[test]
    #[should_panic(expected = "the header length exceeds the header")]
    fn wrong_header_length() {
        let mut packet = packet();
        packet.header_len = MAX_HEADER as u8 + 1;
        packet.header();
    }

    #[test]
    #[should_panic(expected = "a wrong pad count")]
    fn wrong_pad_count() {
        let mut packet = packet();
        packet.pad = 1;
        packet.udp_payload_len();
    }
}
