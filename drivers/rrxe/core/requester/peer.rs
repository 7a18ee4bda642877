// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties of the peer that the requester has found out.

use super::{RecoveryMode, Requester};
use crate::congestion::CongestionControl;
use crate::psn::Psn;
use crate::wire::Operation;
use crate::{Increment, Packet};

/// Repairs that a peer of unknown kind may acknowledge alone before it counts as one that drops
/// out-of-order packets. A full queue drops several packets in a row, and any peer then
/// acknowledges the repair of the first one alone.
const MAX_UNEXTENDED_TESTS: u8 = 1;

/// Consecutive repairs that a peer known to keep out-of-order packets may acknowledge alone (lost
/// NAKs cause that, too) before it counts as one that drops them.
const MAX_UNEXTENDED_REPAIRS: u8 = 20;

/// Losses after which a peer that counts as one that drops out-of-order packets is tested again.
/// Each test costs two round trips.
const LOSSES_BEFORE_TEST: u8 = 200;

/// The peer's handling of out-of-order packets, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arq {
    /// The peer has acknowledged this number of repairs alone.
    Unknown(u8),
    /// The peer keeps packets beyond a gap. The number is that of the last repairs that it
    /// acknowledged alone.
    SelectiveRepeat(u8),
    /// The peer drops packets beyond a gap (rdma_rxe keeps nothing). The number is that of the
    /// losses since the last test, and of the repairs of the present test.
    GoBackN(u8),
}

impl Default for Arq {
    fn default() -> Arq {
        Arq::Unknown(0)
    }
}

impl Arq {
    /// Returns whether the peer counts as one that drops packets beyond a gap.
    pub(super) fn drops(self) -> bool {
        matches!(self, Arq::GoBackN(_))
    }

    /// Returns whether the next repair is a test of the peer.
    pub(super) fn is_tested(self) -> bool {
        match self {
            Arq::Unknown(_) => true,
            Arq::SelectiveRepeat(_) => false,
            Arq::GoBackN(losses) => losses >= LOSSES_BEFORE_TEST,
        }
    }
}

/// The peer's response to a READ that was retransmitted from a PSN within it on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum ReadRestart {
    #[default]
    Unknown,
    /// The last retransmission began at this PSN.
    Asked(Psn),
    /// The peer responds as if to a READ of its own, with FIRST or ONLY, as it should (C-07). Other
    /// peers (rdma_rxe) continue with MIDDLE and LAST, which cannot be told from delayed responses.
    WithFirst,
}

/// Properties of the peer, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    pub(super) arq: Arq,
    pub(super) read_restart: ReadRestart,
}

impl Peer {
    /// Returns whether the peer is known to respond to a READ repeated from within as to a new one.
    pub(super) fn restarts_reads(&self) -> bool {
        matches!(self.read_restart, ReadRestart::WithFirst)
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Notes that the peer acknowledged a repair alone. Returns whether it may still keep
    /// out-of-order packets.
    pub(super) fn note_unextended_repair(&mut self) -> bool {
        let (repairs, max) = match &mut self.peer.arq {
            Arq::Unknown(repairs) => (repairs, MAX_UNEXTENDED_TESTS),
            Arq::SelectiveRepeat(repairs) => (repairs, MAX_UNEXTENDED_REPAIRS),
            Arq::GoBackN(losses) if *losses < LOSSES_BEFORE_TEST => return false,
            Arq::GoBackN(losses) => (losses, LOSSES_BEFORE_TEST + MAX_UNEXTENDED_TESTS),
        };
        let may_keep = *repairs < max;
        repairs.increment();
        may_keep
    }

    /// Notes a loss, unless a test of the peer is in progress.
    pub(super) fn note_loss(&mut self) {
        if self.attr.mode == RecoveryMode::Strict || self.peer.arq.is_tested() {
            return;
        }
        if let Arq::GoBackN(losses) = &mut self.peer.arq {
            losses.increment();
        }
    }

    /// Handles a READ response with a PSN within the READ, or with one already acknowledged.
    /// Returns whether it is for the original request, not a retransmission.
    #[inline]
    pub(super) fn on_response_within_read(&mut self, packet: &Packet) -> bool {
        use Operation::{ReadResponseFirst, ReadResponseOnly};
        let is_first = matches!(packet.operation, ReadResponseFirst | ReadResponseOnly);
        match self.peer.read_restart {
            ReadRestart::Asked(from) if is_first && from == packet.psn() => {
                self.peer.read_restart = ReadRestart::WithFirst;
                false
            }
            ReadRestart::WithFirst => !is_first,
            _ => false,
        }
    }

    /// Records how the peer handles out-of-order packets.
    pub(super) fn set_arq(&mut self, arq: Arq) {
        if self.attr.mode == RecoveryMode::Strict {
            return;
        }
        // A peer that drops packets beyond a gap needs a smaller window, because each is sent
        // again.
        let reduced = self.congestion.on_peer(arq.drops());
        self.note_reduction(reduced);
        self.peer.arq = arq;
    }
}
