// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! BTH opcodes (IBA 9.2.1, table of the opcodes): three bits of transport class, five of operation.

use crate::Service;

/// The opcode byte of a BTH. Any value is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Defines [`Operation`], and its conversion from the low five bits of an opcode.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)+) => {
        /// The operation: the low five bits of an opcode.
        #[expect(missing_docs, reason = "named as the specification names them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$doc])* $name = $code,)+
            /// A congestion notification packet (opcode 0x81 as a whole).
            Cnp = 0x1e,
            /// An RC or XRC opcode that is reserved, or unknown to this implementation. The
            /// responder sends a NAK Invalid Request.
            Unsupported = 0x1f,
        }

        impl Operation {
            /// Returns the operation of the low five bits, as RC and XRC define it.
            #[inline]
            const fn of_low_bits(opcode: Opcode) -> Operation {
                match opcode.0 & 0x1f {
                    $($code => Operation::$name,)+
                    _ => Operation::Unsupported,
                }
            }
        }
    };
}

operations! {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    /// IBA A19.
    Flush = 0x1c,
    /// IBA A19.
    AtomicWrite = 0x1d,
}

impl Operation {
    /// Returns whether the operation is for a requester instead of a responder.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Operation::ReadResponseFirst
                | Operation::ReadResponseMiddle
                | Operation::ReadResponseLast
                | Operation::ReadResponseOnly
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
        )
    }
}

impl Opcode {
    /// Congestion notification packet (IBA A17).
    pub const CNP: Opcode = Opcode(0x81);

    /// Builds an opcode. [`Operation::Cnp`] and [`Operation::Unsupported`] have no opcode of a
    /// service and yield a reserved one.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Opcode {
        Opcode(((service as u8) << 5) | operation as u8)
    }

    /// Returns the service of the transport class, unless that is congestion notification (100),
    /// reliable datagram (010), or reserved for manufacturers (110, 111).
    #[inline]
    pub const fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            3 => Some(Service::Ud),
            5 => Some(Service::Xrc),
            _ => None,
        }
    }

    /// Returns the operation. `None` if the opcode has no meaning, or none to this implementation,
    /// in which case the packet must be dropped silently.
    #[inline]
    pub const fn operation(self) -> Option<Operation> {
        use Operation::*;
        let operation = Operation::of_low_bits(self);
        match self.service() {
            Some(Service::Rc | Service::Xrc) => Some(operation),
            Some(Service::Uc) if (operation as u8) <= WriteOnlyImm as u8 => Some(operation),
            Some(Service::Ud) if matches!(operation, SendOnly | SendOnlyImm) => Some(operation),
            None if self.0 == Opcode::CNP.0 => Some(Cnp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_opcode_comes_back() {
        let mut known = 0;
        for byte in 0..=255u8 {
            let Some(operation) = Opcode(byte).operation() else {
                continue;
            };
            let Some(service) = Opcode(byte).service() else {
                assert_eq!((Opcode(byte), operation), (Opcode::CNP, Operation::Cnp));
                continue;
            };
            if operation != Operation::Unsupported {
                assert_eq!(Opcode::new(service, operation), Opcode(byte));
                known += 1;
            }
        }
        assert_eq!(known, 25 + 12 + 2 + 25);
    }

    /// manufacturers' opcodes are unknown.
    #[test]
    fn a_09_manufacturers() {
        for byte in 0xc0..=0xffu8 {
            assert_eq!(Opcode(byte).operation(), None);
        }
    }
}
