// SPDX-License-Identifier: GPL-2.0

//! Congestion management (IBA A17.9): the core decides, this file sends and takes notifications.
//!
//! Connected queue pairs take part: their packets leave as ECN-capable, what comes in marked is
//! answered by a congestion notification packet, and one that comes in slows down its queue pair.
//! docs/congestion.md has the settings and their reasons.

use crate::{
    counters::Counter,
    incoming::Incoming,
    limits,
    path::Path,
    qp::{send::SendSide, Qp},
    tx::{Carrier, Pen},
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
/// What notifications leave with: DSCP 48 (network control), which is hardware's default; not
/// capable of ECN, since nobody slows down for a notification.
const NOTIFICATION: u8 = 48 << 2;

/// Whether packets that come in marked are answered.
fn is_notification_point() -> bool {
    linux_rdma::parameter::<u8>(crate::module_parameters::roce_np.value()) != 0
}

/// Whether notifications slow down their queue pair.
fn is_reaction_point() -> bool {
    linux_rdma::parameter::<u8>(crate::module_parameters::roce_rp.value()) != 0
}

/// The type of service of connected queue pairs' packets, of which the consumer chooses the DSCP.
pub(crate) fn connected_tos(traffic_class: u8) -> u8 {
    if is_reaction_point() {
        traffic_class & !ECN | ECT
    } else {
        traffic_class
    }
}

/// Whether a packet met with congestion on its way.
pub(crate) fn is_marked(tos: u8) -> bool {
    tos & ECN == CE
}

/// A notification that may be due.
pub(crate) struct Due {
    packet: TxPacket,
    path: Arc<Path>,
    source_port: u16,
}

impl Due {
    /// For a packet that came in: `notification` is what the core has to say of it.
    #[inline]
    pub(crate) fn of(
        incoming: &Incoming<'_>,
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
    /// A packet came in marked: notifies the peer, unless that was done a moment ago. No lock may
    /// be held.
    pub(crate) fn notify(&self, due: Due, now: u64, rcu: &rcu::Guard) {
        self.count(Counter::MarkedPackets);
        if !is_notification_point() {
            return;
        }
        let interval = u64::from(linux_rdma::parameter::<u32>(
            crate::module_parameters::min_time_between_cnps.value(),
        ));
        let interval = interval.saturating_mul(1000);
        if !lock_bh(&self.notification).marked(now, interval) {
            return;
        }
        let mut queue = TxQueue::new();
        let packet = Carrier::new(&due.path, &self.device, due.source_port, rcu)
            .map(|carrier| carrier.with_tos(NOTIFICATION))
            .and_then(|carrier| {
                carrier
                    .packet(&due.packet, &mut Pen::default(), |_| Ok(()))
                    .ok()?
            });
        if let Some(packet) = packet {
            queue.push(packet);
        }
        let sent = self.transmit(&mut queue).sent;
        self.tally(|counters| counters.add(Counter::NotificationsSent, sent.into()));
    }

    /// A notification came in (A-08: nobody but the rates learns of it).
    pub(crate) fn receive_notification(this: ArcBorrow<'_, Self>, incoming: &Incoming<'_>) {
        let qp = &*this;
        if !pkey::matches(incoming.packet.bth.pkey, limits::DEFAULT_PKEY) {
            qp.device.count_bad_pkeys(1);
            return;
        }
        let from_peer =
            |side: &SendSide| side.path.as_ref().is_some_and(|p| incoming.comes_along(p));
        let mut react = is_reaction_point() && qp.qp_type.is_connected();
        if react {
            let mut side = lock_bh(&qp.send);
            // L-08
            react = from_peer(&side);
            if react {
                side.requester.notified(incoming.now);
            }
        }
        if react {
            lock_bh(&qp.recv).responder.notified(incoming.now);
        }
        qp.count(if react {
            Counter::NotificationsHandled
        } else {
            Counter::NotificationsIgnored
        });
    }
}
