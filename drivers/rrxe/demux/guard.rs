// SPDX-License-Identifier: GPL-2.0

//! The guard of UDP port 4791: keeps programs from sending datagrams that a queue pair, on this or
//! another host, would mistake for RoCEv2 packets.
//!
//! The driver's own packets have no socket. Any other datagram to the port needs a socket whose
//! opener had CAP_NET_RAW, which allows sending arbitrary packets anyway. A datagram that this host
//! forwards must not have one of its own addresses, which a container behind source NAT gets. See
//! docs/security.md.

use super::device_on;
use crate::{counters::Counter, limits::ROCE_UDP_PORT};
use kernel::{prelude::*, sync::rcu};
use linux_rdma::{
    net::{ForwardedPacket, LocalPacket, NetDevice, Outgoing},
    time::LogLimit,
};

/// The guard of all namespaces.
pub(crate) struct Guard {
    messages: LogLimit,
}

impl Guard {
    pub(crate) fn new() -> Self {
        Self {
            messages: LogLimit::new(),
        }
    }

    /// Counts a refused datagram at the device on this network device.
    fn count(holder: Option<&NetDevice>) {
        let rcu = rcu::read_lock();
        if let Some(device) = holder.and_then(|netdev| device_on(netdev, &rcu)) {
            device.data().core.counters.count(Counter::RefusedLocally);
        }
    }

    #[cold]
    fn refused(&self, packet: &LocalPacket<'_>) {
        Self::count(packet.source_holder().as_deref());
        if self.messages.may_print() {
            pr_warn!(
                "refused a datagram of user {} to UDP port {}, which a peer could mistake for a packet of this device; give the program CAP_NET_RAW to permit it, or load rrxe with local_guard=0\n",
                packet.owner(),
                ROCE_UDP_PORT
            );
        }
    }

    #[cold]
    fn refused_to_forward(&self, holder: &NetDevice) {
        Self::count(Some(holder));
        if self.messages.may_print() {
            pr_warn!(
                "a forwarded datagram to UDP port {} has an address of {} after source NAT, so a peer could mistake it for a packet of that device, and it was dropped; exclude the port from source NAT, or load rrxe with local_guard=0\n",
                ROCE_UDP_PORT,
                holder.name()
            );
        }
    }
}

impl Outgoing for Guard {
    #[inline]
    fn may_leave(&self, packet: &LocalPacket<'_>) -> bool {
        let may =
            packet.udp_destination_port() != Some(ROCE_UDP_PORT) || packet.opener_has_net_raw();
        if !may {
            self.refused(packet);
        }
        may
    }

    #[inline]
    fn may_forward(&self, packet: &ForwardedPacket<'_>) -> bool {
        if packet.udp_destination_port() != Some(ROCE_UDP_PORT) {
            return true;
        }
        let holder = packet.source_holder();
        if let Some(holder) = &holder {
            self.refused_to_forward(holder);
        }
        holder.is_none()
    }
}
