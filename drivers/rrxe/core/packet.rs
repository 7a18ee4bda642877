// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Parsed packets: BTH, the extension headers of the opcode, and lengths.

use crate::icrc::ICRC;
use crate::lengths::{times, total};
use crate::psn::Psn;
use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Operation, Reth, XrcEth,
};
use crate::Service;

/// A received packet, or a burst: successive packets that differ only in the PSN, which increments.
/// The payload stays in the driver's memory. A half of a queue pair that accepts a burst
/// ([`crate::Responder::accepts_burst`], [`crate::Requester::accepts_burst`]) handles it like a
/// single packet with all of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The Base Transport Header.
    pub bth: Bth,
    /// Operation of the BTH's opcode.
    pub operation: Operation,
    /// The shared receive queue of an XRC request. Otherwise 0.
    pub xrc_srqn: u32,
    /// The extension headers except the XRCETH.
    pub ext: Ext,
    /// Length of BTH and extension headers in bytes. The payload follows them.
    pub header_len: u8,
    /// Bytes of payload without padding and ICRC; for a burst, of all packets together.
    pub payload_len: u32,
    /// Number of packets; more than 1 for a burst.
    pub packets: u32,
}

/// The extension headers of a packet: every valid combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// None, or unknown because the opcode is unsupported.
    None,
    /// Immediate data.
    Imm(ImmDt),
    /// A key to invalidate.
    Ieth(Ieth),
    /// Remote memory.
    Reth(Reth),
    /// Remote memory and immediate data.
    RethImm(Reth, ImmDt),
    /// A FLUSH of remote memory.
    Flush(Feth, Reth),
    /// An atomic operation.
    Atomic(AtomicEth),
    /// An acknowledgement.
    Aeth(Aeth),
    /// The acknowledgement of an atomic operation.
    AtomicAck(Aeth, AtomicAckEth),
    /// A datagram.
    Deth(Deth),
    /// A datagram with immediate data.
    DethImm(Deth, ImmDt),
    /// A congestion notification: 16 reserved bytes.
    Cnp,
}

/// Reason for dropping a packet without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Shorter than headers, padding and ICRC, or not a multiple of four bytes.
    Length,
    /// A transport version other than 0.
    Version,
    /// An opcode without a meaning here.
    Opcode,
    /// Queue pair 0 does not exist on RoCE.
    DestQp,
}

/// Reserved bytes after the BTH of a congestion notification (IBA A17.9.3).
pub(crate) const CNP_RESERVED: usize = 16;

/// Splits off the first `N` bytes.
#[inline]
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; N], ParseError> {
    let (chunk, rest) = bytes.split_first_chunk::<N>().ok_or(ParseError::Length)?;
    *bytes = rest;
    Ok(chunk)
}

impl Packet {
    /// Parses the headers.
    ///
    /// `head` is the start of the UDP payload, and must include all headers ([`crate::MAX_HEADER`]
    /// bytes are always enough). `total_len` is the length of the whole UDP payload, including
    /// padding and ICRC.
    ///
    /// # Errors
    ///
    /// Returns an error if the packet must be dropped silently. Nothing here depends on the payload
    /// or the ICRC.
    // Inlined because otherwise the packet is returned through memory and copied.
    #[inline(always)]
    pub fn parse(head: &[u8], total_len: u32) -> Result<Packet, ParseError> {
        let mut rest = head;
        let bth = Bth::from_bytes(take(&mut rest)?);
        if bth.version != 0 {
            return Err(ParseError::Version);
        }
        if bth.dest_qpn == 0 {
            return Err(ParseError::DestQp);
        }
        let operation = bth.opcode.operation().ok_or(ParseError::Opcode)?;
        let has_xrceth = bth.opcode.service() == Some(Service::Xrc)
            && !operation.is_response()
            && operation != Operation::Unsupported;
        let xrc_srqn = if has_xrceth {
            XrcEth::from_bytes(take(&mut rest)?).srqn
        } else {
            0
        };
        let ext = Self::parse_ext(&bth, operation, &mut rest)?;
        let header_len = head.len().wrapping_sub(rest.len()) as u8;
        debug_assert!(
            usize::from(header_len) <= crate::MAX_HEADER,
            "the headers exceed MAX_HEADER"
        );
        debug_assert!(header_len & 3 == 0, "a header with a part of a word");
        debug_assert!(bth.pad <= 3, "a pad count of more than two bits");

        // Headers, padding and ICRC must fit. Headers are multiples of four bytes, and so is the
        // payload with its padding.
        let others = total([header_len.into(), bth.pad.into(), ICRC]);
        let payload_len = total_len
            .checked_sub(others as u32)
            .ok_or(ParseError::Length)?;
        if total_len & 3 != 0 {
            return Err(ParseError::Length);
        }
        Ok(Packet {
            bth,
            operation,
            xrc_srqn,
            ext,
            header_len,
            payload_len,
            packets: 1,
        })
    }

    #[inline(always)]
    fn parse_ext(bth: &Bth, operation: Operation, rest: &mut &[u8]) -> Result<Ext, ParseError> {
        use Operation as O;
        if bth.opcode.service() == Some(Service::Ud) {
            let deth = Deth::from_bytes(take(rest)?);
            return Ok(match operation {
                O::SendOnlyImm => Ext::DethImm(deth, ImmDt(*take(rest)?)),
                _ => Ext::Deth(deth),
            });
        }
        Ok(match operation {
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => Ext::Imm(ImmDt(*take(rest)?)),
            O::SendLastInvalidate | O::SendOnlyInvalidate => {
                Ext::Ieth(Ieth::from_bytes(take(rest)?))
            }
            O::WriteFirst | O::WriteOnly | O::ReadRequest | O::AtomicWrite => {
                Ext::Reth(Reth::from_bytes(take(rest)?))
            }
            O::WriteOnlyImm => {
                let reth = Reth::from_bytes(take(rest)?);
                Ext::RethImm(reth, ImmDt(*take(rest)?))
            }
            O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly | O::Acknowledge => {
                Ext::Aeth(Aeth::from_bytes(take(rest)?))
            }
            O::AtomicAcknowledge => {
                let aeth = Aeth::from_bytes(take(rest)?);
                Ext::AtomicAck(aeth, AtomicAckEth::from_bytes(take(rest)?))
            }
            O::Flush => {
                let feth = Feth::from_bytes(take(rest)?);
                Ext::Flush(feth, Reth::from_bytes(take(rest)?))
            }
            O::CompareSwap | O::FetchAdd => Ext::Atomic(AtomicEth::from_bytes(take(rest)?)),
            O::Cnp => {
                take::<CNP_RESERVED>(rest)?;
                Ext::Cnp
            }
            _ => Ext::None,
        })
    }

    /// Returns whether the packet is for the requester ([`crate::Requester`]) instead of the
    /// responder.
    #[inline]
    pub fn is_response(&self) -> bool {
        self.operation.is_response()
    }

    /// Returns whether this may be a copy of `other` according to its headers. A request may differ
    /// only in the fields that can change in a retransmission. A response must have the same
    /// length. (The responses to a READ with another start have other headers.)
    pub fn repeats(&self, other: &Packet) -> bool {
        if self.is_response() {
            return other.is_response() && self.payload_len == other.payload_len;
        }
        let bth = Bth {
            ackreq: other.bth.ackreq,
            fecn: other.bth.fecn,
            becn: other.bth.becn,
            ..self.bth
        };
        Packet { bth, ..*self } == *other
    }

    /// Returns the packet sequence number; for a burst, the first one.
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth.psn
    }

    /// Returns whether a burst can start with this packet: it is in the middle of a message, and
    /// has no header but the BTH.
    #[inline]
    pub fn starts_burst(&self) -> bool {
        matches!(
            self.operation,
            Operation::SendMiddle | Operation::WriteMiddle | Operation::ReadResponseMiddle
        ) && usize::from(self.header_len) == Bth::LEN
            && self.bth.pad == 0
            && self.payload_len != 0
    }

    /// Returns the burst of `packets` packets that starts with this one.
    #[inline]
    pub fn burst(self, packets: u32) -> Packet {
        debug_assert!(packets != 0, "a burst without packets");
        debug_assert!(self.packets == 1, "a burst of bursts");
        debug_assert!(
            packets == 1 || self.starts_burst(),
            "a burst starts in the middle of a message"
        );
        debug_assert!(
            self.payload_len.checked_mul(packets).is_some(),
            "the payload of a burst overflows"
        );
        Packet {
            packets,
            payload_len: times(packets, self.payload_len) as u32,
            ..self
        }
    }

    /// Returns the header of the next packet of a burst. `header` belongs to a packet for which
    /// [`starts_burst`](Self::starts_burst) holds.
    #[inline]
    pub fn next_header(header: &[u8; Bth::LEN]) -> [u8; Bth::LEN] {
        let mut next = *header;
        Bth::put_psn(&mut next, Bth::from_bytes(header).psn.next());
        next
    }
}
