// SPDX-License-Identifier: GPL-2.0

//! Congestion notification packets (CNPs, IBA A17.9.3).
//!
//! Only connected queue pairs have them. A queue pair sends a notification for a marked packet, and
//! reduces its rate when it receives one.

use super::{Half, Qp};
use crate::{
    counters::Counter,
    transport::{flow::FlowTemplate, path::Path, rx_packet::RxPacket, tx::single_packet},
};
use kernel::sync::{Arc, ArcBorrow};
use linux_rdma::{
    net::TxQueue,
    sync::{lock_bh, BurstGuard},
    time::monotonic_ns,
};
use rrxe_core::{Time, TxPacket};

/// Type of service of notifications: DSCP 48 (network control), the default of hardware. Not
/// ECN-capable, because nothing slows down for a notification.
const NOTIFICATION: u8 = 48 << 2;

/// A notification that may be due.
pub(crate) struct PendingCnp {
    packet: TxPacket,
    path: Arc<Path>,
    source_port: u16,
}

impl PendingCnp {
    /// Returns the notification for a packet that a half has received, if it is marked.
    #[inline]
    pub(super) fn of<H: Half>(incoming: &RxPacket<'_>, half: &H) -> Option<Self> {
        if !incoming.is_marked() {
            return None;
        }
        Some(Self {
            packet: half.cnp(incoming.packet)?,
            path: half.tx().path.clone()?,
            source_port: half.tx().source_port,
        })
    }
}

impl Qp {
    /// Notifies the peer of `marked` packets, but not of those that arrived a moment after the last
    /// notification. The caller must hold no lock.
    pub(super) fn send_cnp(&self, cnp: &PendingCnp, marked: u32, burst: &BurstGuard) {
        self.with_counters(|counters| counters.add(Counter::MarkedPackets, marked.into()));
        let (config, interfaces) = (&self.device.config, &self.device.interfaces);
        if !config.is_notification_point {
            return;
        }
        let now = Time::from_ns(monotonic_ns());
        let mut queue = TxQueue::default();
        for _ in 0..marked {
            if !lock_bh(&self.notification_point).marked(now, config.cnp_interval) {
                break;
            }
            let template =
                FlowTemplate::new(&cnp.path, cnp.source_port, NOTIFICATION, interfaces, burst);
            if let Some(packet) = template.and_then(|t| single_packet(&t, &cnp.packet, burst)) {
                queue.push(packet);
            }
        }
        let sent = self.transmit(&mut queue).sent;
        self.with_counters(|counters| counters.add(Counter::CnpsSent, sent.into()));
    }

    /// Handles a notification. It affects only the rates.
    pub(super) fn receive_cnp(
        this: ArcBorrow<'_, Self>,
        incoming: &RxPacket<'_>,
        burst: &BurstGuard,
    ) {
        let qp = &*this;
        if !incoming.packet.bth.is_in_partition() {
            qp.device.count_bad_pkeys(1);
            return;
        }
        // Only a connected queue pair has a path (L-08).
        let slow_down = || {
            let mut side = lock_bh(&qp.send);
            let path = side.tx.path.as_ref()?;
            incoming
                .is_from_peer_of(path, &qp.device.interfaces, burst)
                .then(|| side.requester.on_cnp(incoming.now))
        };
        let requests = qp.device.config.is_reaction_point.then(slow_down);
        let Some(requests) = requests.flatten() else {
            qp.count(Counter::CnpsIgnored);
            return;
        };
        let responses = lock_bh(&qp.recv).responder.on_cnp(incoming.now);
        qp.with_counters(|counters| {
            counters.count(Counter::CnpsHandled);
            counters.add(Counter::RateReductions, requests.into());
            counters.add(Counter::RateReductions, responses.into());
        });
    }
}
