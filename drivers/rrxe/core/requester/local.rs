// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that wait or get lost in the queues of the requester's own host. They say nothing about
//! the path or the peer, so they use up no retry and leave the window unchanged.

use super::Requester;

/// Losses and expired timers without progress that use up no retry. Further ones do, because a
/// packet that never leaves the host is an error.
const MAX_UNCOUNTED_RETRIES: u8 = 100;

impl Requester {
    /// Restarts expired answer timers. The driver calls this before [`Requester::handle_timeout`]
    /// if its host still queues packets of this queue pair.
    pub fn restart_timers(&mut self, now: u64) {
        if self.ack_deadline.is_some_and(|at| at <= now)
            && self.uncounted_retries < MAX_UNCOUNTED_RETRIES
        {
            self.uncounted_retries = self.uncounted_retries.saturating_add(1);
            self.arm_ack_timer(now);
        }
        if self.loss.probe_at.is_some_and(|at| at <= now) {
            self.arm_probe(now);
        }
    }

    /// Notes that the host itself dropped some of the packets just sent.
    pub fn dropped_locally(&mut self) {
        self.dropped_until = Some(self.max_psn);
    }

    /// Returns whether the host itself may have dropped the missing packet.
    pub(super) fn is_local_loss(&self) -> bool {
        self.dropped_until
            .is_some_and(|until| until.is_after(self.una))
    }

    /// Uses up a retry, unless the host caused the loss. Returns whether one was left.
    pub(super) fn use_retry(&mut self) -> bool {
        if self.is_local_loss() && self.uncounted_retries < MAX_UNCOUNTED_RETRIES {
            self.uncounted_retries = self.uncounted_retries.saturating_add(1);
            return true;
        }
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or(0);
        left.is_some()
    }
}
