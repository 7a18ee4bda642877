// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! End-to-end credits (IBA 9.7.7): the number of messages for which the peer has receive work
//! requests.
//!
//! An acknowledgement may carry the number of messages after the acknowledged one that will find a
//! receive work request. Only messages that consume one need a credit. Without credits the
//! requester sends a single such message, whose last packet asks for an acknowledgement that brings
//! new credits (D-15, D-19). There is no limit unless the peer reports one.

use super::{DriverPart, Requester, SendOp, SendSlot};
use crate::congestion::CongestionControl;
use crate::wire::{credits, Operation, Syndrome};
use crate::{Ext, Packet};

/// Counts of messages that consume a receive work request of the peer, since Reset. They wrap.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    /// Messages whose last packet was sent; a rewind sets it back.
    pub(super) sent: u32,
    /// Messages completed.
    pub(super) completed: u32,
    /// Value of `sent` up to which messages may be sent; `None` without a limit.
    limit: Option<u32>,
}

impl Credits {
    /// Notes that the last packet of a message was sent.
    #[inline]
    pub(super) fn on_sent<L>(&mut self, op: &SendOp<L>) {
        self.sent = self.sent.wrapping_add(u32::from(op.uses_receive()));
    }

    /// Notes that the oldest message is complete.
    #[inline]
    pub(super) fn on_completed<L>(&mut self, op: &SendOp<L>) {
        self.completed = self.completed.wrapping_add(u32::from(op.uses_receive()));
        debug_assert!(
            self.sent == self.completed || is_beyond(self.sent, self.completed),
            "a message completes that was not sent"
        );
    }

    /// Returns whether another message may be sent.
    fn is_left(&self) -> bool {
        self.limit
            .is_none_or(|limit| self.sent == self.completed || is_beyond(limit, self.sent))
    }

    /// Applies a credit code, which counts from the completed messages. The limit only rises.
    pub(super) fn grant(&mut self, code: u8) {
        let Some(more) = credits(code) else {
            self.limit = None;
            return;
        };
        let granted = self.completed.wrapping_add(more);
        if self.limit.is_none_or(|limit| is_beyond(granted, limit)) {
            self.limit = Some(granted);
        }
        debug_assert!(
            self.limit.is_some_and(|limit| !is_beyond(granted, limit)),
            "the peer granted more than the limit"
        );
    }
}

/// Returns whether one counter is ahead of the other, by less than half of the range.
fn is_beyond(counter: u32, other: u32) -> bool {
    counter.wrapping_sub(other).wrapping_sub(1) < u32::MAX >> 1
}

impl<C: CongestionControl> Requester<C> {
    /// Returns whether the peer has room for this message, as far as it has reported. A message
    /// that has started continues.
    #[inline]
    pub(super) fn has_credit<P: DriverPart>(&self, slot: &SendSlot<P>) -> bool {
        !slot.op.uses_receive() || slot.is_within(self.psn.next) || self.credits.is_left()
    }

    /// Returns the credit code of a packet that repeats the last acknowledgement, because the peer
    /// has posted receive work requests (D-16). `None` for any other packet.
    #[cold]
    pub(super) fn credit_update(&self, packet: &Packet, credit: Option<u8>) -> Option<u8> {
        let repeats =
            packet.operation == Operation::Acknowledge && packet.psn() == self.psn.una.prev();
        credit.filter(|_| repeats && self.credits.limit.is_some())
    }
}

/// Returns the credit code of a positive acknowledgement.
#[inline]
pub(super) fn credit_code(packet: &Packet) -> Option<u8> {
    let (Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _)) = packet.ext else {
        return None;
    };
    match Syndrome::decode(aeth.syndrome) {
        Syndrome::Ack { credit } => Some(credit),
        _ => None,
    }
}
