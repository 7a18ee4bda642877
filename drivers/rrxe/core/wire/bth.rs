// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Base Transport Header (IBA 9.2).

use super::{Opcode, QPN_MASK};
use crate::psn::Psn;

/// The default partition with full membership: the only entry of a RoCE port's P_Key table.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The Base Transport Header: the first 12 bytes of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Kind of the packet, which determines the extension headers.
    pub opcode: Opcode,
    /// Solicited event: asks for a wake-up of the responder's consumer.
    pub solicited: bool,
    /// MigReq: always set without automatic path migration, ignored on receipt.
    pub migreq: bool,
    /// Number of zero bytes between the payload and the ICRC: 0 to 3.
    pub pad: u8,
    /// Transport version: 0 to 15. Only 0 is valid.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination queue pair number: 24 bits.
    pub dest_qpn: u32,
    /// The requester asks for an acknowledgement.
    pub ackreq: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length of the header in bytes.
    pub const LEN: usize = 12;

    /// Index of the byte that the ICRC masks: FECN, BECN and reserved bits (IBA 7.8.1).
    pub const RESV8A: usize = 4;

    /// Returns a header with the default P_Key and MigReq, and with no other flag.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: u32, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn,
            ackreq: false,
            psn,
        }
    }

    /// Returns whether the packet belongs to the default partition. The sender may be a limited
    /// member, because the receiver is a full one (IBA 10.9.3).
    #[inline]
    pub const fn is_in_partition(&self) -> bool {
        (self.pkey ^ DEFAULT_PKEY) & 0x7fff == 0
    }

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; Bth::LEN]) -> Bth {
        let [opcode, flags, pk0, pk1, ecn, qp0, qp1, qp2, ack, p0, p1, p2] = *b;
        Bth {
            opcode: Opcode(opcode),
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: (flags >> 4) & 3,
            version: flags & 0x0f,
            pkey: u16::from_be_bytes([pk0, pk1]),
            fecn: ecn & 0x80 != 0,
            becn: ecn & 0x40 != 0,
            dest_qpn: u32::from_be_bytes([0, qp0, qp1, qp2]),
            ackreq: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        }
    }

    /// Replaces the PSN in a serialized header.
    #[inline]
    pub fn put_psn(header: &mut [u8; Bth::LEN], psn: Psn) {
        let [.., high, middle, low] = header;
        [_, *high, *middle, *low] = psn.get().to_be_bytes();
    }

    /// Serializes the header. Values wider than their field lose their upper bits.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Bth::LEN] {
        let solicited = (self.solicited as u8) << 7;
        let migreq = (self.migreq as u8) << 6;
        let flags = solicited | migreq | ((self.pad & 3) << 4) | (self.version & 0x0f);
        let [pk0, pk1] = self.pkey.to_be_bytes();
        let ecn = ((self.fecn as u8) << 7) | ((self.becn as u8) << 6);
        let [_, qp0, qp1, qp2] = (self.dest_qpn & QPN_MASK).to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        let ack = (self.ackreq as u8) << 7;
        let Opcode(opcode) = self.opcode;
        [opcode, flags, pk0, pk1, ecn, qp0, qp1, qp2, ack, p0, p1, p2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_they_should() {
        let b = [
            0x0a, 0x70, 0xff, 0xfe, 0xc0, 1, 2, 3, 0x80, 0xa7, 0x88, 0xbc,
        ];
        let bth = Bth::from_bytes(&b);
        assert_eq!(bth.opcode, Opcode(0x0a));
        assert!(!bth.solicited && bth.migreq && bth.fecn && bth.becn && bth.ackreq);
        assert_eq!((bth.pad, bth.version, bth.pkey), (3, 0, 0xfffe));
        assert_eq!((bth.dest_qpn, bth.psn), (0x010203, Psn::new(0xa788bc)));
        assert_eq!(bth.to_bytes(), b);
    }

    ///
    #[test]
    fn a_26_membership() {
        let mut bth = Bth::new(Opcode::CNP, 0, Psn::new(0));
        for (pkey, is_in) in [(0xffff, true), (0x7fff, true), (0x8001, false), (1, false)] {
            bth.pkey = pkey;
            assert_eq!(bth.is_in_partition(), is_in);
        }
    }

    proptest! {
        /// reserved bits are ignored and sent as zero; all other bits survive a round trip.
        #[test]
        fn a_42_round_trip(mut b: [u8; 12]) {
            let bth = Bth::from_bytes(&b);
            b[4] &= 0xc0;
            b[8] &= 0x80;
            prop_assert_eq!(bth.to_bytes(), b);
            prop_assert_eq!(Bth::from_bytes(&b), bth);
        }
    }
}
