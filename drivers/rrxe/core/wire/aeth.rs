// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! ACK Extended Transport Header (IBA 9.3.5).

use crate::psn::Psn;
use crate::Span;

/// The AETH: the responder's verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledgement or reason of a NAK; see [`Syndrome`].
    pub syndrome: u8,
    /// Number of messages that the responder has completed, modulo 2^24.
    pub msn: Psn,
}

impl Aeth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Builds a header.
    #[inline]
    pub const fn new(syndrome: Syndrome, msn: Psn) -> Aeth {
        Aeth {
            syndrome: syndrome.encode(),
            msn,
        }
    }

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; Aeth::LEN]) -> Aeth {
        let [syndrome, m0, m1, m2] = *b;
        Aeth {
            syndrome,
            msn: Psn::new(u32::from_be_bytes([0, m0, m1, m2])),
        }
    }

    /// Serializes the header.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Aeth::LEN] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome, m0, m1, m2]
    }
}

/// The meaning of an AETH's syndrome byte (IBA 9.7.5.2, D-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// 000ccccc: acknowledged. The code gives the number of messages for which the responder has
    /// space; see [`credits`].
    Ack {
        /// Credit code, 0 to 31.
        credit: u8,
    },
    /// 001ttttt: receiver not ready. The requester retries after the time of the timer code.
    RnrNak {
        /// Timer code, 0 to 31; see [`rnr_timer`].
        timer: u8,
    },
    /// 011nnnnn: not acknowledged.
    Nak(NakCode),
    /// Any other value, which the requester ignores (D-07), such as NAK code 4 (reliable datagram).
    Reserved(u8),
}

/// Reason of a NAK (IBA 9.7.5.2.2 and following).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// Packets are missing; the requester must retransmit from the PSN of the NAK on.
    SequenceError = 0,
    /// The request is malformed, or not allowed by the queue pair.
    InvalidRequest = 1,
    /// Wrong key, range or rights.
    RemoteAccess = 2,
    /// The responder failed to execute the request.
    RemoteOperational = 3,
}

impl Syndrome {
    /// Acknowledgement of a responder without end-to-end flow control.
    pub const ACK_UNLIMITED: Syndrome = Syndrome::Ack { credit: 31 };

    /// Decodes a syndrome byte.
    #[inline]
    pub const fn decode(byte: u8) -> Syndrome {
        let low = byte & 0x1f;
        match (byte >> 5, low) {
            (0, _) => Syndrome::Ack { credit: low },
            (1, _) => Syndrome::RnrNak { timer: low },
            (3, 0) => Syndrome::Nak(NakCode::SequenceError),
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// Encodes a syndrome byte.
    #[inline]
    pub const fn encode(self) -> u8 {
        match self {
            Syndrome::Ack { credit } => credit & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Returns the number of messages of a credit code (IBA 9.7.7.2, D-17); `None` for 31, which means
/// no limit. Ignores all but the low five bits.
#[inline]
pub const fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        31 => None,
        n => Some(scale(n)),
    }
}

/// Returns the minimum wait of the RNR NAK timer (IBA 9.7.5.2.8, table of the encodings). Ignores
/// all but the low five bits.
#[inline]
pub const fn rnr_timer(code: u8) -> Span {
    let tens_of_us = match code & 0x1f {
        0 => 65_536,
        n => scale(n),
    };
    // Below 10^6.
    Span::from_us(tens_of_us.wrapping_mul(10))
}

/// Returns the value of a five-bit code on the scale of credits and RNR timers: 0 to 3, and then
/// 2^k and 1.5 * 2^k for each k.
const fn scale(code: u8) -> u32 {
    debug_assert!(code < 32, "a code of more than five bits");
    match code as u32 {
        n @ 0..4 => n,
        n => (2 | n & 1).wrapping_shl((n >> 1).wrapping_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-05, and D-07's list of reserved values. The NAK code 4 is for reliable datagrams only.
    #[test]
    fn d_05_syndromes() {
        for byte in 0..=255u8 {
            let syndrome = Syndrome::decode(byte);
            assert_eq!(syndrome.encode(), byte);
            let reserved = byte >= 0x80 || byte >> 5 == 2 || byte >> 5 == 3 && byte & 0x1f > 3;
            assert_eq!(
                matches!(syndrome, Syndrome::Reserved(_)),
                reserved,
                "{byte:#x}"
            );
        }
        assert_eq!(Syndrome::ACK_UNLIMITED.encode(), 0x1f);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccess).encode(), 0x62);
    }

    /// D-17
    #[test]
    fn d_17_credit_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, n) in table.iter().enumerate() {
            assert_eq!(credits(code as u8), Some(*n), "code {code}");
        }
        assert_eq!(credits(31), None);
    }

    /// E-04: the table in milliseconds, as printed in the specification.
    #[test]
    fn e_04_rnr_table() {
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, ms) in ms.iter().enumerate() {
            let ns = (ms * 1e6f64).round() as u64;
            assert_eq!(rnr_timer(code as u8).ns(), ns, "code {code}");
        }
    }

    #[test]
    fn aeth_round_trip() {
        let aeth = Aeth::from_bytes(&[0x1f, 1, 2, 3]);
        assert_eq!(aeth, Aeth::new(Syndrome::ACK_UNLIMITED, Psn::new(0x010203)));
        assert_eq!(aeth.to_bytes(), [0x1f, 1, 2, 3]);
    }
}
