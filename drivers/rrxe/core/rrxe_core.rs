// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The transport of rrxe: the RoCEv2 protocol, and the management datagrams of a port ([`pma`]).
//!
//! The crate takes events (a work request was posted, a packet arrived, it is time T) and returns
//! actions (send this header with this part of that work request, write these bytes there, complete
//! this work request, wake me at T). It has no I/O, no allocation, no clock, no lock and no
//! `unsafe`. The same source is a crate of the kernel module and, under cargo, the target of tests,
//! simulations and fuzzers.
//!
//! # Shape
//!
//! A queue pair has two halves that share nothing, so the driver can use one lock for each:
//!
//! * [`Requester`] sends requests and receives the responses (the InfiniBand Architecture calls
//!   these parts requester and completer);
//! * [`Responder`] receives requests and sends the responses.
//!
//! Both follow one rule: `handle_*` takes an event and never transmits; `poll_transmit` transmits
//! within a budget. A driver handles a batch of packets and then polls for transmission once, which
//! coalesces acknowledgements. Actions go through a trait that the driver implements
//! ([`RequesterEnv`], [`ResponderEnv`]) and that is resolved at compile time.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | BTH | Base Transport Header, at the start of every packet (IBA 9.2) |
//! | RETH, AETH, DETH | extension headers: RDMA, acknowledge, datagram (IBA 9.3) |
//! | AtomicETH, AtomicAckETH, ImmDt, IETH | extension headers: atomics, immediate, invalidate |
//! | FETH, XRCETH | extension headers: FLUSH (IBA A19), extended reliable connection (IBA A14) |
//! | PSN, ePSN | packet sequence number; the one that the responder expects next |
//! | MSN | message sequence number: how many messages the responder has completed |
//! | PMTU | path MTU: payload bytes of a full packet, 256 to 4096 |
//! | RNR | receiver not ready: no receive work request was posted |
//! | ICRC | invariant CRC, the last four bytes of every packet |
//! | CNP | congestion notification packet |
//! | MAD, PMA | management datagram; performance management agent (IBA 16.1) |
//! | IBA | InfiniBand Architecture Specification, volume 1; A16 and A17 are its RoCE annexes |

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod completion;
pub mod congestion;
mod counter;
pub mod gap;
pub mod guesses;
pub mod icrc;
pub mod lengths;
mod mtu;
mod packet;
pub mod permute;
pub mod pma;
pub mod psn;
pub mod reorder;
pub mod requester;
pub mod responder;
mod time;
mod tx;
pub mod wire;

pub use completion::{Fault, Outcome, Progress, Status};
pub use counter::{Increment, Minus, RingCounter, Stat};
pub use mtu::Mtu;
pub use packet::{Ext, Packet, ParseError};
pub use psn::Psn;
pub use reorder::{Buffered, Reorder};
pub use requester::{
    Destination, DriverPart, Fence, RecoveryMode, Remote, Requester, RequesterEnv, SendCompletion,
    SendExt, SendOp, SendSlot,
};
pub use responder::{
    AtomicOp, DomainId, Flush, RecvCompletion, RecvOpcode, RemoteAccess, Resource, ResourceRing,
    Responder, ResponderEnv, ResponderEvent,
};
pub use time::{earliest, Span, Time};
pub use tx::{Payload, TxError, TxPacket, MAX_HEADER};

/// The transport service of a queue pair (IBA 9.7 to 9.8). The values are those of the transport
/// class, the top three bits of an opcode (IBA 9.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram; also the general services queue pair (QP1).
    Ud = 3,
    /// Extended reliable connection (IBA A14): a reliable connection whose requests name the shared
    /// receive queue. The initiator's queue pair is only a requester, the target's only a
    /// responder.
    Xrc = 5,
}

impl Service {
    /// Returns whether packets are acknowledged, and retransmitted until they are.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::Xrc)
    }
}
