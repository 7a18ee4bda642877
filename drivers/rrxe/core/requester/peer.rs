// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties of the peer that the requester has found out.

use super::{RecoveryMode, Requester};
use crate::psn::Psn;
use crate::wire::Operation;

/// Consecutive repairs that a peer known to keep out-of-order packets may acknowledge alone (lost
/// NAKs cause that, too) before it counts as one that drops them.
const MAX_UNEXTENDED_REPAIRS: u8 = 3;

/// The peer's handling of out-of-order packets, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Arq {
    /// Nothing yet.
    #[default]
    Unknown,
    /// The peer keeps packets beyond a gap. The number is that of the last repairs that it
    /// acknowledged alone.
    SelectiveRepeat(u8),
    /// The peer drops packets beyond a gap (rdma_rxe keeps nothing).
    GoBackN,
}

/// The peer's answer to a READ that was retransmitted from a PSN within it on.
#[derive(Clone, Copy, Debug, Default)]
enum ReadRestart {
    #[default]
    Unknown,
    /// The last retransmission began at this PSN.
    Asked(Psn),
    /// The peer answers as if to a READ of its own, with FIRST or ONLY, as it should (C-07). Other
    /// peers (rdma_rxe) continue with MIDDLE and LAST, which cannot be told from delayed responses.
    WithFirst,
}

/// Properties of the peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub(super) arq: Arq,
    read_restart: ReadRestart,
}

impl Peer {
    /// Returns the initial state: in strict mode every peer counts as one that drops packets.
    pub(super) const fn new(mode: RecoveryMode) -> Peer {
        Peer {
            arq: match mode {
                RecoveryMode::Selective => Arq::Unknown,
                RecoveryMode::Strict => Arq::GoBackN,
            },
            read_restart: ReadRestart::Unknown,
        }
    }

    /// Returns whether the peer is known to keep out-of-order packets.
    pub(super) fn is_selective(&self) -> bool {
        matches!(self.arq, Arq::SelectiveRepeat(_))
    }

    /// Returns whether the peer drops out-of-order packets.
    #[inline]
    pub(super) fn is_go_back_n(&self) -> bool {
        matches!(self.arq, Arq::GoBackN)
    }

    /// Notes that the peer acknowledged a repair alone. Returns whether it still counts as one that
    /// keeps out-of-order packets.
    pub(super) fn on_unextended_repair(&mut self) -> bool {
        match &mut self.arq {
            Arq::SelectiveRepeat(repairs) if *repairs < MAX_UNEXTENDED_REPAIRS => {
                *repairs = repairs.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// Notes that a READ is being retransmitted from this PSN within it on.
    pub(super) fn on_read_restarted(&mut self, psn: Psn) {
        if !matches!(self.read_restart, ReadRestart::WithFirst) {
            self.read_restart = ReadRestart::Asked(psn);
        }
    }

    /// Handles a READ response with a PSN within the READ, or with one already acknowledged.
    /// Returns whether it answers the original request, not a retransmission.
    #[inline]
    pub(super) fn on_response_within_read(&mut self, operation: Operation, psn: Psn) -> bool {
        let is_first = matches!(
            operation,
            Operation::ReadResponseFirst | Operation::ReadResponseOnly
        );
        match self.read_restart {
            ReadRestart::Asked(from) if is_first && from == psn => {
                self.read_restart = ReadRestart::WithFirst;
                false
            }
            ReadRestart::WithFirst => !is_first,
            _ => false,
        }
    }
}

impl Requester {
    /// Records how the peer handles out-of-order packets.
    pub(super) fn set_arq(&mut self, arq: Arq) {
        if self.mode == RecoveryMode::Strict {
            return;
        }
        // A peer that drops packets beyond a gap needs a smaller window, because each is sent
        // again.
        let was_go_back_n = self.peer.is_go_back_n();
        self.peer.arq = arq;
        match (was_go_back_n, self.peer.is_go_back_n()) {
            (false, true) => self.window.on_peer_drops(),
            (true, false) => self.window.on_peer_buffers(),
            _ => {}
        }
    }
}
