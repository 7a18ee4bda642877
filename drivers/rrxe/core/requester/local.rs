// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that wait, or get lost, in the queues of the requester's own host. They say nothing
//! about the path or the peer: they use up no retry, and the window stays as it is.

use super::recovery::is_after;
use super::Requester;

/// Losses and expired timers without progress that use up no retry. After that many, they do: a
/// packet that never leaves the host is an error.
const FORGIVEN: u8 = 100;

impl Requester {
    /// Starts the timers for an answer again, if they have expired: for a driver that still has
    /// packets of this queue pair in a queue of its own host, for which no answer can have come.
    /// To be called before [`Requester::handle_timeout`].
    pub fn restart_timers(&mut self, now: u64) {
        if self.ack_deadline.is_some_and(|at| at <= now) && self.forgiven < FORGIVEN {
            self.forgiven = self.forgiven.saturating_add(1);
            self.arm_ack_timer(now);
        }
        if self.recovery.probe_at.is_some_and(|at| at <= now) {
            self.arm_probe(now);
        }
    }

    /// Takes note that the host itself has dropped some of the packets that were just sent.
    pub fn dropped_locally(&mut self) {
        self.dropped_until = Some(self.max_psn);
    }

    /// Returns whether a packet that is missing may be one that the host itself has dropped.
    pub(super) fn is_local_loss(&self) -> bool {
        self.dropped_until
            .is_some_and(|until| is_after(until, self.una))
    }

    /// Uses up a retry, unless the loss is the host's own. Returns whether there was one left.
    pub(super) fn use_retry(&mut self) -> bool {
        if self.is_local_loss() && self.forgiven < FORGIVEN {
            self.forgiven = self.forgiven.saturating_add(1);
            return true;
        }
        match self.retries_left.checked_sub(1) {
            Some(left) => {
                self.retries_left = left;
                true
            }
            None => false,
        }
    }
}
