// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packet headers: one file for each, all fields big-endian (IBA 9.2, 9.3).
//!
//! A header is a plain struct with `from_bytes` and `to_bytes`, which are inverse to each other
//! except for reserved bits: those are sent as zero and ignored on receipt.

/// Declares a header of big-endian integers. Bits outside of a field's mask are reserved.
macro_rules! header {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $int:ident $(& $mask:ident)?,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $int,)+
        }

        impl $name {
            /// Length of the header in bytes.
            pub const LEN: usize = 0 $(+ size_of::<$int>())+;

            /// Parses the header.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $name::LEN]) -> $name {
                let rest = bytes.as_slice();
                $(let ($field, rest) = $crate::wire::take(rest);)+
                let _: &[u8] = rest;
                $name { $($field: $int::from_be_bytes($field) $(& $mask)?,)+ }
            }

            /// Serializes the header. Values wider than their field lose their upper bits.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $name::LEN] {
                let mut bytes = [0; $name::LEN];
                let rest = bytes.as_mut_slice();
                $(let rest = $crate::wire::put(rest, (self.$field $(& $mask)?).to_be_bytes());)+
                let _: &[u8] = rest;
                bytes
            }
        }
    };
}

mod aeth;
mod atomiceth;
mod bth;
mod deth;
mod feth;
mod immdt;
mod opcode;
mod reth;
mod udp;
mod xrceth;

pub use aeth::{credits, Aeth, AtomicAckEth, NakCode, Syndrome};
pub use atomiceth::AtomicEth;
pub use bth::{Bth, DEFAULT_PKEY};
pub use deth::Deth;
pub use feth::Feth;
pub use immdt::{Ieth, ImmDt};
pub use opcode::{Class, Opcode, Operation};
pub use reth::Reth;
pub use udp::{ipv4_lengths_agree, ipv6_lengths_agree};
pub use xrceth::XrcEth;

/// The UDP destination port of RoCEv2 (IBA A17).
pub const UDP_PORT: u16 = 4791;

/// Length of the invariant CRC at the end of each packet, in bytes.
pub const ICRC_LEN: u32 = 4;

/// Mask of a queue pair number, which has 24 bits.
pub const QPN_MASK: u32 = 0x00ff_ffff;

/// The destination queue pair number of multicast packets.
pub const QPN_MULTICAST: u32 = 0x00ff_ffff;

/// Splits off the next field of a header, which is long enough.
#[inline(always)]
fn take<const N: usize>(header: &[u8]) -> ([u8; N], &[u8]) {
    match header.split_first_chunk() {
        Some((field, rest)) => (*field, rest),
        None => ([0; N], &[]),
    }
}

/// Writes the next field of a header, which is long enough. Returns the rest.
#[inline(always)]
fn put<const N: usize>(header: &mut [u8], field: [u8; N]) -> &mut [u8] {
    match header.split_first_chunk_mut() {
        Some((place, rest)) => {
            *place = field;
            rest
        }
        None => &mut [],
    }
}
