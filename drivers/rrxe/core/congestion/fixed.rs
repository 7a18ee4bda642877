// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A fixed window, for tests.

use super::{Acknowledgement, CongestionControl, PacketLoss};
use crate::psn::Psn;
use crate::{Mtu, Span, Time};

/// A limit of packets in flight that nothing changes, without a limit of the rate.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow(
    /// The number of packets.
    pub u32,
);

impl Default for FixedWindow {
    fn default() -> FixedWindow {
        FixedWindow(super::WINDOW)
    }
}

impl CongestionControl for FixedWindow {
    fn start(&mut self, _mtu: Mtu) {}

    fn window(&self) -> u32 {
        self.0
    }

    fn window_beyond_loss(&self) -> u32 {
        self.0
    }

    fn ackreq_after(&self) -> u32 {
        (self.0 >> 2).max(1)
    }

    fn admit(&mut self, _now: Time) -> bool {
        true
    }

    fn wakeup(&self) -> Option<Time> {
        None
    }

    fn stop_waiting(&mut self) {}

    fn burst(&self, _now: Time) -> u32 {
        u32::MAX
    }

    fn take_ackreq(&mut self, _now: Time) -> bool {
        false
    }

    fn on_sent(&mut self, _now: Time, _len: u32, _packets: u32) {}

    fn on_flight(&mut self, _una: Psn, _now: Time) {}

    fn on_ack(&mut self, _acknowledgement: &Acknowledgement) {}

    fn on_loss(&mut self, _loss: &PacketLoss) -> bool {
        false
    }

    fn on_late(&mut self, _una: Psn) {}

    fn on_timeout(&mut self) -> bool {
        false
    }

    fn on_peer(&mut self, _drops: bool) -> bool {
        false
    }

    fn on_drained(&mut self, _time: Span) {}

    fn on_cnp(&mut self, _now: Time) -> bool {
        false
    }
}
