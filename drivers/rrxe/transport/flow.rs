// SPDX-License-Identifier: GPL-2.0

//! The route, the header fields and the start of the ICRC that the packets of a batch share.

use super::{gids::Interfaces, path::Path};
use crate::{config::Config, limits};
use kernel::sync::rcu;
use linux_rdma::{
    crc32::crc32_le,
    net::{Headroom, IpAddr, NetDevice, Route, IPV4_HEADER, IPV6_HEADER, UDP_HEADER},
};
use rrxe_core::{
    icrc::{LastPrefix, Prefix},
    lengths::total,
    TxPacket,
};

/// The two ECN bits of the type of service or traffic class (RFC 3168). If both are set, the packet
/// met with congestion on its way.
pub(super) const ECN: u8 = 3;
/// Capable of ECN, as RoCE hardware marks its packets: ECT(0).
const ECT: u8 = 2;

/// Route and header fields that the packets of one path share, for the duration of a batch.
pub(crate) struct FlowTemplate<'a> {
    pub(super) path: &'a Path,
    pub(super) route: Route,
    source_port: u16,
    tos: u8,
    /// Several packets may cross the stack as a chain.
    pub(super) may_chain: bool,
    /// Space in front of the IP header of each packet.
    pub(super) headroom: Headroom,
    /// Packets may be queued on this host.
    pub(super) may_queue: bool,
    /// A capture sees the packets.
    is_captured: bool,
}

/// The IP header of a packet.
enum IpHeader {
    V4([u8; IPV4_HEADER]),
    V6([u8; IPV6_HEADER]),
}

/// The IP and UDP headers of a packet.
enum Headers {
    V4([u8; IPV4_HEADER + UDP_HEADER]),
    V6([u8; IPV6_HEADER + UDP_HEADER]),
}

impl Headers {
    #[inline]
    fn new(ip: &IpHeader, udp: &[u8; UDP_HEADER]) -> Self {
        match ip {
            IpHeader::V4(ip) => Self::V4(join(ip, udp)),
            IpHeader::V6(ip) => Self::V6(join(ip, udp)),
        }
    }

    /// Sets the IPv4 Identification. Does nothing for IPv6.
    #[inline]
    fn set_ident(&mut self, ident: u16) {
        if let Self::V4([_, _, _, _, i0, i1, ..]) = self {
            [*i0, *i1] = ident.to_be_bytes();
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// Returns an IP header and a UDP header, one after the other.
#[inline]
fn join<const N: usize>(ip: &[u8], udp: &[u8; UDP_HEADER]) -> [u8; N] {
    let mut bytes = [0; N];
    let (to_ip, to_udp) = bytes.split_at_mut(N.saturating_sub(UDP_HEADER));
    if to_ip.len() == ip.len() {
        to_ip.copy_from_slice(ip);
    }
    to_udp.copy_from_slice(udp);
    bytes
}

/// Cache of the last packet's headers, for packets of the same length on the same path.
#[derive(Default)]
pub(super) struct LastHeaders(Option<(usize, Headers)>);

/// Returns whether a device is one end of a veth pair. Without a queueing discipline, it passes
/// each packet straight to the receiver's stack on this host.
#[inline]
pub(super) fn is_veth(dev: &NetDevice) -> bool {
    dev.is_kind(c"veth")
}

/// Returns whether packets that leave through a device may wait on this host: in a queueing
/// discipline, in a hardware ring, or in a lower device.
pub(super) fn may_queue(dev: &NetDevice, is_veth: bool, rcu: &rcu::Guard) -> bool {
    dev.has_queue(rcu) || !(is_veth || dev.is_loopback())
}

impl<'a> FlowTemplate<'a> {
    /// Returns the template for packets of a type of service or traffic class. Returns `None` if
    /// there is no route: the packets are lost. Packets cross the stack together, unless a capture
    /// must see them as they are on a wire.
    #[inline(always)]
    pub(crate) fn new(
        path: &'a Path,
        source_port: u16,
        tos: u8,
        interfaces: &Interfaces,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let route = path.route(interfaces, source_port, rcu)?;
        let dev = route.device(rcu);
        let (is_veth, is_captured) = (route.is_over_veth(), dev.is_captured(rcu));
        let may_queue = may_queue(dev, is_veth, rcu);
        // Such rules see only the first packet of a chain.
        let may_chain = !is_captured && !dev.has_egress_rules();
        Some(Self {
            path,
            headroom: route.headroom(rcu),
            route,
            source_port,
            tos,
            may_chain,
            may_queue,
            is_captured,
        })
    }

    /// Returns the template for a connected queue pair, which reacts to congestion.
    pub(super) fn connected(
        path: &'a Path,
        source_port: u16,
        config: &Config,
        interfaces: &Interfaces,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let tos = match path.info.traffic_class {
            // Packets are ECN-capable if notifications slow the queue pair down (IBA A17.9). The
            // consumer chooses the DSCP.
            class if config.is_reaction_point => class & !ECN | ECT,
            class => class,
        };
        Self::new(path, source_port, tos, interfaces, rcu)
    }

    /// Returns the template for datagrams to one destination. Multicasts leave one by one, because
    /// the stack copies them.
    pub(super) fn datagrams(
        path: &'a Path,
        source_port: u16,
        interfaces: &Interfaces,
        rcu: &rcu::Guard,
    ) -> Option<Self> {
        let class = path.info.traffic_class;
        let mut template = Self::new(path, source_port, class, interfaces, rcu)?;
        if path.destination.is_multicast() {
            template.may_chain = false;
        }
        Some(template)
    }

    /// Returns whether the route leads back over the loopback device, with neither a queueing
    /// discipline nor a capture that must see the packets.
    #[inline]
    pub(super) fn is_loopback_route(&self, rcu: &rcu::Guard) -> bool {
        self.route.device(rcu).is_loopback() && !self.may_queue && !self.is_captured
    }

    fn udp_header(&self, payload_len: usize) -> [u8; UDP_HEADER] {
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = limits::ROCE_UDP_PORT.to_be_bytes();
        // At most 64 KiB with all headers.
        let [l0, l1] = (total([payload_len, UDP_HEADER]) as u16).to_be_bytes();
        // No checksum: the ICRC is the stronger protection.
        [s0, s1, d0, d1, l0, l1, 0, 0]
    }

    /// Returns the IP header of a packet; `ident` is the IPv4 Identification.
    #[inline]
    fn ip_header(&self, ident: u16, udp_payload_len: usize) -> IpHeader {
        let (info, tos) = (&self.path.info, self.tos);
        let hops = match info.hop_limit {
            0 => limits::DEFAULT_HOP_LIMIT,
            n => n,
        };
        let len = total([udp_payload_len, UDP_HEADER]);
        match (self.path.source, self.path.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [l0, l1] = (total([len, IPV4_HEADER]) as u16).to_be_bytes();
                let [i0, i1] = ident.to_be_bytes();
                let [s0, s1, s2, s3] = source;
                let [d0, d1, d2, d3] = destination;
                // 0x40: don't fragment. 17: UDP.
                IpHeader::V4([
                    0x45, tos, l0, l1, i0, i1, 0x40, 0, hops, 17, 0, 0, s0, s1, s2, s3, d0, d1, d2,
                    d3,
                ])
            }
            // Both addresses of a path have the same version of IP.
            _ => {
                let mut header = [0; IPV6_HEADER];
                let first = 6 << 28 | u32::from(tos) << 20 | info.flow_label;
                let (fixed, addresses) = header.split_at_mut(8);
                let [f0, f1, f2, f3] = first.to_be_bytes();
                let [l0, l1] = (len as u16).to_be_bytes();
                fixed.copy_from_slice(&[f0, f1, f2, f3, l0, l1, 17, hops]);
                let (source, destination) = addresses.split_at_mut(16);
                source.copy_from_slice(&info.sgid);
                destination.copy_from_slice(&info.dgid);
                IpHeader::V6(header)
            }
        }
    }

    /// Returns the part of the ICRC's input in front of the BTH.
    fn prefix(&self, ident: u16, udp_payload_len: usize) -> Prefix {
        let udp = self.udp_header(udp_payload_len);
        match self.ip_header(ident, udp_payload_len) {
            IpHeader::V4(ip) => Prefix::ipv4(&ip, &udp),
            IpHeader::V6(ip) => Prefix::ipv6(&ip, &udp),
        }
    }

    /// Returns the state of the ICRC after the headers of a packet. `ident` is the packet's IPv4
    /// Identification. `last` caches the prefix of the previous packet.
    pub(super) fn start_icrc(&self, packet: &TxPacket, ident: u16, last: &mut LastPrefix) -> u32 {
        let total = packet.udp_payload_len() as usize;
        let prefix = last.prefix(total, ident, || Some(self.prefix(ident, total)));
        prefix.map_or(0, |prefix| prefix.start(crc32_le, packet.header()))
    }

    /// Returns the IP and UDP headers of a packet. `last` caches those of the previous packet.
    #[inline]
    pub(super) fn headers<'b>(
        &self,
        ident: u16,
        udp_payload_len: usize,
        last: &'b mut LastHeaders,
    ) -> &'b [u8] {
        match &mut last.0 {
            Some((len, headers)) if *len == udp_payload_len => headers.set_ident(ident),
            other => {
                let ip = self.ip_header(ident, udp_payload_len);
                let headers = Headers::new(&ip, &self.udp_header(udp_payload_len));
                *other = Some((udp_payload_len, headers));
            }
        }
        last.0.as_ref().map_or(&[], |(_, headers)| headers.bytes())
    }
}
