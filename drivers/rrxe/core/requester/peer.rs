// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties of the peer that the requester has found out.

use super::{RecoveryMode, Requester, WINDOW};
use crate::psn::Psn;
use crate::wire::Operation;
use crate::Packet;

/// Consecutive repairs that a peer known to keep out-of-order packets may acknowledge alone (lost
/// NAKs cause that, too) before it counts as one that drops them.
const MAX_UNEXTENDED_REPAIRS: u8 = 3;

/// The peer's handling of out-of-order packets, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Arq {
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
pub(super) enum ReadRestart {
    #[default]
    Unknown,
    /// The last retransmission began at this PSN.
    Asked(Psn),
    /// The peer answers as if to a READ of its own, with FIRST or ONLY, as it should (C-07). Other
    /// peers (rdma_rxe) continue with MIDDLE and LAST, which cannot be told from delayed responses.
    WithFirst,
}

impl Requester {
    /// Notes that the peer acknowledged a repair alone. Returns whether it still counts as one that
    /// keeps out-of-order packets.
    pub(super) fn keeps_despite_unextended_repair(&mut self) -> bool {
        match &mut self.arq {
            Arq::SelectiveRepeat(repairs) if *repairs < MAX_UNEXTENDED_REPAIRS => {
                *repairs = repairs.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// Handles a READ response with a PSN within the READ, or with one already acknowledged.
    /// Returns whether it answers the original request, not a retransmission.
    #[inline]
    pub(super) fn on_response_within_read(&mut self, packet: &Packet) -> bool {
        use Operation::{ReadResponseFirst, ReadResponseOnly};
        let is_first = matches!(packet.operation, ReadResponseFirst | ReadResponseOnly);
        match self.read_restart {
            ReadRestart::Asked(from) if is_first && from == packet.psn() => {
                self.read_restart = ReadRestart::WithFirst;
                false
            }
            ReadRestart::WithFirst => !is_first,
            _ => false,
        }
    }

    /// Records how the peer handles out-of-order packets.
    pub(super) fn set_arq(&mut self, arq: Arq) {
        if self.mode == RecoveryMode::Strict {
            return;
        }
        // A peer that drops packets beyond a gap needs a smaller window, because each is sent
        // again.
        match (self.arq == Arq::GoBackN, arq == Arq::GoBackN) {
            (false, true) => self.window.on_peer_drops(),
            (true, false) => self.window.size = WINDOW,
            _ => {}
        }
        self.arq = arq;
    }
}
