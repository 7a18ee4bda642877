// SPDX-License-Identifier: GPL-2.0

//! Incoming packets: from UDP port 4791 to the queue pair that they are for.
//!
//! Everything here runs in the softirq that received the packet. What does not belong to a queue
//! pair, or not to a packet as the specification wants it, is dropped without an answer.

use crate::{driver::Rrxe, qp::Qp, tables::Tables};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    crc32::crc32_le,
    net::{IpAddr, NetDevice, RxSkb, UdpReceive},
    rdma::device::by_netdev,
    time::monotonic_ns,
};
use rrxe_core::{icrc, wire, Packet, MAX_HEADER};

/// Bytes of the ICRC at the end of each packet.
const ICRC: usize = 4;

/// The queue pair number of the general services interface.
const GSI: u32 = 1;

/// What packets are received for.
#[repr(align(8))]
pub(crate) struct Receiver {
    tables: Arc<Tables>,
}

/// A packet with its headers parsed and its ICRC verified.
pub(crate) struct Incoming<'a> {
    pub(crate) packet: Packet,
    pub(crate) skb: &'a RxSkb,
    pub(crate) now: u64,
}

impl Incoming<'_> {
    /// Where the payload starts, from the first byte of the BTH.
    pub(crate) fn payload_offset(&self) -> usize {
        self.packet.header_len.into()
    }

    /// Bytes of payload.
    pub(crate) fn payload_len(&self) -> usize {
        self.packet.payload_len as usize
    }
}

impl Receiver {
    pub(crate) fn new(tables: Arc<Tables>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { tables }, GFP_KERNEL)?)
    }

    /// Parses and verifies; `None` where the packet is to be dropped.
    fn check<'a>(skb: &'a RxSkb) -> Option<Incoming<'a>> {
        let total = skb.payload_len();
        let mut head = [0; MAX_HEADER];
        let head = head.get_mut(..total.min(MAX_HEADER))?;
        skb.copy_bits(0, head).ok()?;
        let packet = Packet::parse(head, u32::try_from(total).ok()?).ok()?;
        let headers = head.get(..packet.header_len.into())?;

        let udp = skb.udp_header();
        let ip = skb.ip_header();
        let mut state = match skb.source() {
            // IPv4 options and IPv6 extension headers are not allowed for (IBA A17.3).
            IpAddr::V4(_) => icrc::ipv4(crc32_le, ip.try_into().ok()?, udp, headers),
            IpAddr::V6(_) => icrc::ipv6(crc32_le, ip.try_into().ok()?, udp, headers),
        };
        let body = total.checked_sub(headers.len())?.checked_sub(ICRC)?;
        skb.for_each(headers.len(), body, |fragment| {
            state = fragment.crc32_le(state);
        })
        .ok()?;
        let mut received = [0; ICRC];
        skb.copy_bits(total.checked_sub(ICRC)?, &mut received)
            .ok()?;
        if received != icrc::finish(state) {
            return None;
        }
        Some(Incoming {
            packet,
            skb,
            now: monotonic_ns(),
        })
    }

    /// Whether a datagram that came in on `dev` may be for a queue pair of the network device
    /// `own`: it came in there or on a VLAN of it, or came from this host to an address of it.
    fn is_for(dev: &NetDevice, own: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> bool {
        let dev = dev.vlan_real_dev().unwrap_or(dev);
        if dev == own {
            return true;
        }
        if !dev.is_loopback() {
            return false;
        }
        match dev.net(rcu).device_of_address(&skb.destination()) {
            Some(holder) => holder.vlan_real_dev().unwrap_or(&holder) == own,
            None => false,
        }
    }

    /// The QP1 of the device that a packet is for.
    fn gsi(dev: &NetDevice, skb: &RxSkb, rcu: &rcu::Guard) -> Option<Arc<Qp>> {
        let dev = dev.vlan_real_dev().unwrap_or(dev);
        let device = if dev.is_loopback() {
            let holder = dev.net(rcu).device_of_address(&skb.destination())?;
            by_netdev::<Rrxe>(holder.vlan_real_dev().unwrap_or(&holder))?
        } else {
            by_netdev::<Rrxe>(dev)?
        };
        device.data().gsi()
    }
}

impl UdpReceive for Receiver {
    fn receive(&self, dev: &NetDevice, skb: RxSkb) {
        let rcu = rcu::read_lock();
        let Some(incoming) = Self::check(&skb) else {
            return;
        };
        let number = incoming.packet.bth.dest_qpn;
        if number == GSI {
            if let Some(qp) = Self::gsi(dev, &skb, &rcu) {
                Qp::receive(qp.as_arc_borrow(), &incoming, &rcu);
            }
        } else if let Some(qp) = self.tables.qps.get(number, &rcu) {
            let belongs = match incoming.packet.bth.opcode.class() {
                wire::Class::Ud => Self::is_for(dev, &qp.device.netdev, &skb, &rcu),
                // The path says whose packets a connected queue pair takes, and in which
                // namespace.
                _ => dev.net(&rcu) == qp.device.netdev.net(&rcu),
            };
            if belongs {
                Qp::receive(qp, &incoming, &rcu);
            }
        }
        skb.consume();
    }
}
