// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packet headers. All fields are big-endian (IBA 9.2, 9.3).
//!
//! A header is a plain struct with `from_bytes` and `to_bytes`, which are inverse to each other
//! except for reserved bits: those are sent as zero and ignored on receipt.

mod aeth;
mod bth;
mod headers;
mod opcode;
mod udp;

pub use aeth::{credits, rnr_timer, Aeth, NakCode, Syndrome};
pub use bth::{Bth, DEFAULT_PKEY};
pub use headers::{AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
pub use opcode::{Opcode, Operation};
pub use udp::{ipv4_lengths_agree, ipv6_lengths_agree};

/// Length of the invariant CRC at the end of each packet, in bytes.
pub const ICRC_LEN: u32 = 4;

/// Mask of a queue pair number, which has 24 bits.
pub const QPN_MASK: u32 = 0x00ff_ffff;
