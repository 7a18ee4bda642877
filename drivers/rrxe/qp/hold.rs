// SPDX-License-Identifier: GPL-2.0

//! Packets that came before their turn, kept until then: the core's [`Reorder`] has their order,
//! this has the packets.

use crate::{device::DeviceState, limits};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::net::KeptDatagram;
use rrxe_core::{reorder::HELD, Held, Psn, Reorder};

/// Places to begin with: a few losses on a short way.
const FIRST: usize = 128;

/// What one side of a queue pair keeps. Packets count against the device's share.
pub(crate) struct HoldBack {
    device: Arc<DeviceState>,
    reorder: Reorder,
    /// Made when the first packet comes early, and larger as need be; most queue pairs never see one.
    ring: KVec<Option<Held<KeptDatagram>>>,
}

impl HoldBack {
    pub(crate) fn new(device: Arc<DeviceState>) -> Self {
        Self {
            device,
            reorder: Reorder::new(),
            ring: KVec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reorder.is_empty()
    }

    /// Makes the ring, or a larger one where it is full. Softirqs get here: where there is no memory, no more is kept.
    fn prepare(&mut self) -> Result {
        let places = self.ring.len();
        if (self.reorder.len() as usize) < places || places >= HELD {
            return Ok(());
        }
        let more = places.saturating_mul(2).clamp(FIRST, HELD);
        let mut ring = KVec::with_capacity(more, GFP_ATOMIC | __GFP_NOWARN)?;
        for _ in 0..more {
            ring.push(None, GFP_ATOMIC)?;
        }
        self.reorder.move_to(&mut self.ring, &mut ring);
        self.ring = ring;
        Ok(())
    }

    /// Keeps a packet that comes after `expected`. Where it can't be kept, or there is no room for it, it is lost.
    pub(crate) fn hold(&mut self, kept: Option<KeptDatagram>, expected: Psn, psn: Psn) {
        let Some(kept) = kept else {
            return;
        };
        if !self.device.may_hold(limits::MAX_HELD) {
            return;
        }
        // Without more room, nearer packets push out farther ones.
        let _ = self.prepare();
        let before = self.reorder.len();
        let lost = self.reorder.hold(&mut self.ring, expected, psn, kept);
        self.account(before);
        drop(lost);
    }

    /// Takes out the first packet, if it is due.
    pub(crate) fn next(
        &mut self,
        expected: Psn,
        due: impl FnOnce(Psn) -> bool,
    ) -> Option<KeptDatagram> {
        if self.reorder.is_empty() {
            return None;
        }
        let before = self.reorder.len();
        let next = self.reorder.next(&mut self.ring, expected, due);
        self.account(before);
        next
    }

    /// Lets everything go.
    pub(crate) fn clear(&mut self) {
        let before = self.reorder.len();
        self.reorder.clear(&mut self.ring);
        self.account(before);
    }

    fn account(&self, before: u32) {
        self.device
            .count_held(self.reorder.len().wrapping_sub(before) as i32);
    }
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        self.clear();
    }
}
