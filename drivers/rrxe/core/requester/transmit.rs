// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sending direction of the requester.

use super::*;

impl Requester {
    /// Sends what may be sent now, `budget` packets at most.
    pub fn poll_transmit<E: RequesterEnv>(
        &mut self,
        slots: &mut [SendSlot],
        now: u64,
        budget: u32,
        env: &mut E,
    ) -> Progress {
        let _ = (slots, now, budget, env);
        Progress::default()
    }
}
