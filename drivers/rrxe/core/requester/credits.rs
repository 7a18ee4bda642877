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
use crate::{Ext, Packet, RingCounter};

/// Counts of messages that consume a receive work request of the peer, since Reset. They wrap.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    /// Messages whose last packet was sent; a rewind sets it back.
    pub(super) sent: RingCounter,
    /// Messages completed.
    pub(super) completed: RingCounter,
    /// Value of `sent` up to which messages may be sent; `None` without a limit.
    limit: Option<RingCounter>,
}

impl Credits {
    /// Notes that the last packet of a message was sent.
    #[inline]
    pub(super) fn on_sent<L>(&mut self, op: &SendOp<L>) {
        self.sent = self.sent.add(op.uses_receive().into());
    }

    /// Notes that the oldest message is complete.
    #[inline]
    pub(super) fn on_completed<L>(&mut self, op: &SendOp<L>) {
        self.completed = self.completed.add(op.uses_receive().into());
        debug_assert!(
            !self.completed.is_after(self.sent),
            "a message completes that was not sent"
        );
    }

    /// Returns whether another message may be sent.
    fn is_left(&self) -> bool {
        self.limit
            .is_none_or(|limit| self.sent == self.completed || limit.is_after(self.sent))
    }

    /// Applies a credit code, which counts from the completed messages. The limit only rises.
    pub(super) fn grant(&mut self, code: u8) {
        let Some(more) = credits(code) else {
            self.limit = None;
            return;
        };
        let granted = self.completed.add(more);
        if self.limit.is_none_or(|limit| granted.is_after(limit)) {
            self.limit = Some(granted);
        }
        debug_assert!(
            self.limit.is_some_and(|limit| !granted.is_after(limit)),
            "the peer granted more than the limit"
        );
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Returns whether the peer has a receive work request for this message, as far as it has
    /// reported. A message that has started continues.
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
