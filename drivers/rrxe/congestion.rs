// SPDX-License-Identifier: GPL-2.0

//! Congestion management (IBA A17.9): the core decides, this file sends and receives notifications.
//!
//! Only connected queue pairs take part. Their packets leave as ECN-capable. A queue pair answers a
//! marked packet with a congestion notification packet (CNP), and sends more slowly after it
//! received one. docs/congestion.md has the settings and their reasons.

use crate::{
    config::Config,
    counters::Counter,
    limits,
    path::Path,
    qp::{requester::SendSide, Qp},
    rx_packet::RxPacket,
    tx::{FlowTemplate, IcrcScratch},
};
use kernel::sync::{rcu, Arc, ArcBorrow};
use linux_rdma::{net::TxQueue, sync::lock_bh};
use rrxe_core::{pkey, TxPacket};

/// The two ECN bits of the type of service or traffic class (RFC 3168).
const ECN: u8 = 3;
/// Capable of ECN, as RoCE hardware marks its packets: ECT(0).
const ECT: u8 = 2;
/// Congestion experienced.
pub(crate) const CE: u8 = 3;
/// Type of service of notifications: DSCP 48 (network control), the default of hardware. Not
/// ECN-capable, because nothing slows down for a notification.
const NOTIFICATION: u8 = 48 << 2;

/// Returns the type of service of a connected queue pair's packets. The consumer chooses the DSCP.
pub(crate) fn connected_tos(config: &Config, traffic_class: u8) -> u8 {
    if config.is_reaction_point {
        traffic_class & !ECN | ECT
    } else {
        traffic_class
    }
}

/// Returns whether a packet met with congestion on its way.
pub(crate) fn is_marked(tos: u8) -> bool {
    tos & ECN == CE
}

/// A notification that may be due.
pub(crate) struct PendingCnp {
    packet: TxPacket,
    path: Arc<Path>,
    source_port: u16,
}

impl PendingCnp {
    /// Returns the notification for a received packet, if it is marked; `notification` makes the
    /// core's part.
    #[inline]
    pub(crate) fn of(
        incoming: &RxPacket<'_>,
        path: &Option<Arc<Path>>,
        source_port: u16,
        notification: impl FnOnce() -> Option<TxPacket>,
    ) -> Option<Self> {
        if !is_marked(incoming.tos()) {
            return None;
        }
        Some(Self {
            packet: notification()?,
            path: path.clone()?,
            source_port,
        })
    }
}

impl Qp {
    /// Notifies the peer of a marked packet, unless the last notification was sent a moment ago.
    /// The caller must hold no lock.
    pub(crate) fn send_cnp(&self, cnp: PendingCnp, now: u64, rcu: &rcu::Guard) {
        self.count(Counter::MarkedPackets);
        let config = &self.device.config;
        if !config.is_notification_point
            || !lock_bh(&self.notification_point).marked(now, config.cnp_interval)
        {
            return;
        }
        let mut queue = TxQueue::new();
        let packet = FlowTemplate::new(&cnp.path, &self.device, cnp.source_port, rcu)
            .map(|template| template.with_tos(NOTIFICATION))
            .and_then(|template| {
                template
                    .packet(&cnp.packet, &mut IcrcScratch::default(), |_| Ok(()))
                    .ok()?
            });
        if let Some(packet) = packet {
            queue.push(packet);
        }
        let sent = self.transmit(&mut queue).sent;
        self.with_counters(|counters| counters.add(Counter::CnpsSent, sent.into()));
    }

    /// Handles a notification. It affects only the rates.
    pub(crate) fn receive_cnp(this: ArcBorrow<'_, Self>, incoming: &RxPacket<'_>) {
        let qp = &*this;
        if !pkey::matches(incoming.packet.bth.pkey, limits::DEFAULT_PKEY) {
            qp.device.count_bad_pkeys(1);
            return;
        }
        let from_peer = |side: &SendSide| {
            side.path
                .as_ref()
                .is_some_and(|p| incoming.is_from_peer_of(p))
        };
        let mut react = qp.device.config.is_reaction_point && qp.qp_type.is_connected();
        if react {
            let mut side = lock_bh(&qp.send);
            // L-08
            react = from_peer(&side);
            if react {
                side.requester.on_cnp(incoming.now);
            }
        }
        if react {
            lock_bh(&qp.recv).responder.on_cnp(incoming.now);
        }
        qp.count(if react {
            Counter::CnpsHandled
        } else {
            Counter::CnpsIgnored
        });
    }
}
