// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! End-to-end credits: how many messages the peer has receive work requests for (IBA 9.7.7).
//!
//! An acknowledgement may say how many messages after the one that it acknowledges find a receive
//! work request. Only messages that use one up need a credit. Without credits a single one of them
//! is on its way, and its acknowledgement brings new credits; its last packet asks for that (D-15,
//! D-19). A requester begins without a limit, and keeps to limits only if the peer reports them.

use super::{Requester, SendOp, SendSlot};
use crate::wire::{credits, Operation, Syndrome};
use crate::{Ext, Packet};

/// Messages that use up a receive work request of the peer, counted since Reset. The counters wrap.
#[derive(Clone, Debug)]
pub(super) struct Credits {
    /// Those whose last packet has been sent, as far as transmission has come.
    sent: u32,
    /// Those completed.
    completed: u32,
    /// As many as may be sent; `None`: any number.
    limit: Option<u32>,
}

impl Credits {
    pub(super) const fn new() -> Credits {
        Credits {
            sent: 0,
            completed: 0,
            limit: None,
        }
    }

    /// Takes note that transmission has passed a message.
    #[inline]
    pub(super) fn sent(&mut self, op: SendOp) {
        self.sent = self.sent.wrapping_add(u32::from(op.uses_receive()));
    }

    /// Takes note that the oldest message is complete.
    #[inline]
    pub(super) fn completed(&mut self, op: SendOp) {
        self.completed = self.completed.wrapping_add(u32::from(op.uses_receive()));
    }

    /// Takes note that transmission goes on at the oldest message.
    pub(super) fn rewound(&mut self) {
        self.sent = self.completed;
    }

    /// Returns whether another message may be sent.
    fn is_left(&self) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        self.sent == self.completed || is_beyond(limit, self.sent)
    }

    /// Takes the credit code of an acknowledgement of all that is complete. A limit only rises: the
    /// peer can't take back a receive work request.
    fn grant(&mut self, code: u8) {
        let Some(more) = credits(code) else {
            self.limit = None;
            return;
        };
        let granted = self.completed.wrapping_add(more);
        if self.limit.is_none_or(|limit| is_beyond(granted, limit)) {
            self.limit = Some(granted);
        }
    }
}

/// Returns whether one counter is ahead of the other, by less than half of their range.
fn is_beyond(counter: u32, other: u32) -> bool {
    counter.wrapping_sub(other).wrapping_sub(1) < u32::MAX >> 1
}

impl Requester {
    /// Returns whether the peer has room for this message, as far as it has said. A message that
    /// has begun goes on.
    #[inline]
    pub(super) fn has_credit(&self, slot: &SendSlot) -> bool {
        !slot.op.uses_receive() || slot.is_within(self.send_psn) || self.credits.is_left()
    }

    /// Reads the credits of an answer that has been handled. If it was beyond a READ or atomic
    /// without an answer, they count from there, and so are fewer than they are.
    #[inline]
    pub(super) fn note_credits(&mut self, packet: &Packet) {
        if let Some(code) = credit_code(packet) {
            self.credits.grant(code);
        }
    }

    /// Returns whether the packet acknowledges once more what was acknowledged last, and takes its
    /// credits if it does: the peer has posted receive work requests (D-16).
    #[cold]
    pub(super) fn is_credit_update(&mut self, packet: &Packet) -> bool {
        let repeats = packet.operation == Operation::Acknowledge && packet.psn() == self.una.prev();
        match credit_code(packet).filter(|_| repeats && self.credits.limit.is_some()) {
            Some(code) => {
                self.credits.grant(code);
                true
            }
            None => false,
        }
    }
}

/// The credit code of a positive acknowledgement.
#[inline]
fn credit_code(packet: &Packet) -> Option<u8> {
    let (Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _)) = packet.ext else {
        return None;
    };
    match Syndrome::decode(aeth.syndrome) {
        Syndrome::Ack { credit } => Some(credit),
        _ => None,
    }
}
