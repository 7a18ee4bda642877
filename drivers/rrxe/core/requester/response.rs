// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The receiving direction of the requester.

use super::*;
use crate::Packet;

impl Requester {
    /// Takes an acknowledgement, a READ response or an atomic acknowledgement.
    pub fn handle_packet<E: RequesterEnv>(
        &mut self,
        slots: &mut [SendSlot],
        now: u64,
        packet: &Packet,
        env: &mut E,
    ) -> Outcome {
        let _ = (slots, now, packet, env);
        Outcome::default()
    }

    /// Looks at the timers. Calling it too early does no harm.
    pub fn handle_timeout<E: RequesterEnv>(
        &mut self,
        slots: &mut [SendSlot],
        now: u64,
        env: &mut E,
    ) -> Outcome {
        let _ = (slots, now, env);
        Outcome::default()
    }

    /// To the Error state: completes everything outstanding as flushed, in order (J-13).
    pub fn enter_error<E: RequesterEnv>(&mut self, slots: &mut [SendSlot], env: &mut E) {
        let _ = (slots, env);
    }
}
