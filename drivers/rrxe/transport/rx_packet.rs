// SPDX-License-Identifier: GPL-2.0

//! Received packets, from the network stack or from another queue pair of the device.

use super::{
    flow::ECN,
    gids::{Arrival, Interfaces},
    loopback::LoopbackPacket,
    path::Path,
    tx::Transport,
};
use crate::mr::{MemoryRange, Segments};
use kernel::{prelude::*, sync::rcu};
use linux_rdma::net::{Datagram, Fragment, KeptDatagram, NetDevice, UdpPacket, UDP_HEADER};
use rrxe_core::{
    icrc::ICRC,
    lengths::{times, total},
    Fault, Minus, Packet, Time, MAX_HEADER,
};

/// Bytes in front of a datagram's payload: a Global Route Header, or an IPv4 header in the last 20
/// of them (IBA 11.4.2.1, A17.4).
const GRH_LEN: usize = rrxe_core::responder::GRH_LEN as usize;

/// A packet with parsed headers and a verified ICRC, or a burst of such packets.
pub(crate) struct RxPacket<'a> {
    pub(crate) packet: &'a Packet,
    source: PacketSource<'a>,
    /// The network device that received the packet; `None` for packets that were buffered, and for
    /// packets that bypassed the network stack.
    netdev: Option<&'a NetDevice>,
    pub(crate) now: Time,
}

/// The container of a packet.
#[derive(Clone, Copy)]
enum PacketSource<'a> {
    /// A packet of the network stack. For a burst it is the first one, and the others follow it.
    Datagram(Datagram<'a>),
    /// A packet from another queue pair of the device.
    Loopback(LoopbackPacket<'a>),
}

impl RxPacket<'_> {
    /// Returns the transport by which the packet came.
    #[inline]
    pub(crate) fn transport(&self) -> Transport {
        match self.source {
            PacketSource::Datagram(_) => Transport::Stack,
            PacketSource::Loopback(_) => Transport::Loopback,
        }
    }

    /// Returns whether the packet has an ECN mark: it met with congestion on its way. Nothing can
    /// mark a packet that never left the device.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.skb().is_some_and(|skb| skb.tos() & ECN == ECN)
    }

    /// Returns how the packet came. `None` if it was buffered.
    #[inline]
    pub(crate) fn arrival(&self) -> Option<Arrival<'_>> {
        match &self.source {
            PacketSource::Datagram(_) => self.netdev.map(Arrival::Stack),
            PacketSource::Loopback(loopback) => loopback.batch.namespace.map(Arrival::Loopback),
        }
    }

    /// Returns whether the packet comes from the peer of a path, and came to the interface
    /// of that path, which is one of `interfaces`.
    #[inline]
    pub(crate) fn is_from_peer_of(
        &self,
        path: &Path,
        interfaces: &Interfaces,
        rcu: &rcu::Guard,
    ) -> bool {
        let (source, destination) = match &self.source {
            PacketSource::Datagram(datagram) => datagram.packet().addresses(),
            PacketSource::Loopback(loopback) => (loopback.batch.source, loopback.batch.destination),
        };
        path.is_from_peer(source, destination)
            && self
                .arrival()
                .is_some_and(|arrival| interfaces.is_at_path(arrival, path, rcu))
    }

    /// Keeps the packet beyond its reception. Returns `None` if the packet can't be kept and is
    /// lost, because its payload is still in the sender's memory.
    pub(crate) fn keep(&self) -> Option<KeptDatagram> {
        match &self.source {
            PacketSource::Datagram(datagram) => Some(datagram.keep()),
            PacketSource::Loopback(_) => None,
        }
    }

    /// Calls `f` for each contiguous piece of `len` bytes of the payload, from `offset` on, in
    /// order.
    #[inline]
    fn for_each_fragment(
        &self,
        offset: usize,
        len: usize,
        f: impl FnMut(Fragment<'_>),
    ) -> Result<(), Fault> {
        let (start, packets) = (self.packet.header_len.into(), self.packet.packets as usize);
        match &self.source {
            // The payloads of a burst are contiguous in a `LoopbackBatch`.
            PacketSource::Loopback(loopback) => loopback.for_each(offset, len, f),
            PacketSource::Datagram(datagram) if packets == 1 => {
                datagram.for_each(total([offset, start]), len, f)
            }
            PacketSource::Datagram(datagram) => {
                let each = self.payload_len().checked_div(packets).unwrap_or(0);
                datagram.for_each_in_burst(start, each, offset, len, f)
            }
        }
        .map_err(|_| Fault::Malformed)
    }

    /// Copies the start of the payload.
    pub(crate) fn copy_payload(&self, to: &mut [u8]) -> Result<(), Fault> {
        let (mut at, mut result) = (0usize, Ok(()));
        self.for_each_fragment(0, to.len(), |fragment| {
            let end = total([at, fragment.len()]);
            let copied = to.get_mut(at..end).ok_or(EINVAL);
            result = result.and(copied.and_then(|to| fragment.copy_to(to)));
            at = end;
        })?;
        result.map_err(|_| Fault::Malformed)
    }

    /// Returns the IP header in front of a UD datagram as the consumer sees it: an IPv6 header, or
    /// 20 zero bytes and an IPv4 header.
    pub(crate) fn grh(&self) -> [u8; GRH_LEN] {
        let mut grh = [0; GRH_LEN];
        if let PacketSource::Datagram(datagram) = &self.source {
            if let Some(ip) = datagram.ipv6_header() {
                grh = ip;
            } else if let (Some(ip), Some(to)) = (datagram.ipv4_header(), grh.last_chunk_mut()) {
                *to = ip;
            }
        }
        grh
    }

    /// Returns the packet of the network stack that contains this one.
    #[inline]
    pub(crate) fn skb(&self) -> Option<&UdpPacket> {
        match &self.source {
            PacketSource::Datagram(datagram) => Some(datagram.packet()),
            PacketSource::Loopback(_) => None,
        }
    }

    /// Returns the VLAN identifier of the interface that a datagram is addressed to. The packet
    /// itself is untagged: the VLAN device has removed the tag.
    pub(crate) fn vlan_id(&self, interfaces: &Interfaces, rcu: &rcu::Guard) -> Option<u16> {
        interfaces.vlan_id_at(self.arrival()?, &self.skb()?.destination(), rcu)
    }

    /// Copies `len` bytes of the payload, from `offset` on, to the start of a range.
    #[inline]
    pub(crate) fn copy_to_range(
        &self,
        offset: usize,
        len: usize,
        to: &MemoryRange<'_>,
    ) -> Result<(), Fault> {
        let (mut at, mut result) = (0usize, Ok(()));
        self.for_each_fragment(offset, len, |fragment| {
            if result.is_ok() {
                result = to.write_fragment(at, &fragment);
            }
            at = total([at, fragment.len()]);
        })?;
        result
    }

    /// Copies the payload to data segments, from byte `offset` of these on.
    pub(crate) fn scatter(&self, offset: u32, to: &Segments<'_>) -> Result<(), Fault> {
        to.for_each_writable(offset, self.payload_len(), |range, done, n| {
            self.copy_to_range(done, n, range)
        })
    }

    /// Returns the length of the IP packet in bytes, or the total length of those of a burst.
    pub(crate) fn ip_len(&self) -> u64 {
        let packets = self.packet.packets;
        let each = match &self.source {
            PacketSource::Datagram(datagram) => {
                let (headers, payload) = (datagram.ip_header_len(), datagram.payload_len());
                total([headers, UDP_HEADER, payload])
            }
            PacketSource::Loopback(loopback) => {
                let payload = self.packet.payload_len.checked_div(packets).unwrap_or(0) as usize;
                let (header, pad) = (self.packet.header_len.into(), self.packet.bth.pad.into());
                loopback.batch.ip_len(total([header, payload, pad, ICRC]))
            }
        };
        times(packets, each as u32)
    }

    /// Returns the length of the payload in bytes.
    pub(crate) fn payload_len(&self) -> usize {
        self.packet.payload_len as usize
    }
}

impl<'a> RxPacket<'a> {
    /// Returns a packet of the network stack, or a burst that starts with it.
    #[inline]
    pub(crate) fn of(
        packet: &'a Packet,
        datagram: Datagram<'a>,
        netdev: Option<&'a NetDevice>,
        now: Time,
    ) -> Self {
        Self {
            packet,
            source: PacketSource::Datagram(datagram),
            netdev,
            now,
        }
    }

    /// Returns a packet, or a burst, from another queue pair of the device.
    #[inline]
    pub(crate) fn from_loopback(
        packet: &'a Packet,
        loopback: LoopbackPacket<'a>,
        now: Time,
    ) -> Self {
        Self {
            packet,
            source: PacketSource::Loopback(loopback),
            netdev: None,
            now,
        }
    }
}

/// Parses the headers of a datagram. Reads them into `head`, possibly with bytes that follow them.
/// Returns `None` if the datagram is not a packet.
// Otherwise the packet is returned through memory and copied.
#[inline(always)]
pub(crate) fn parse(datagram: &Datagram<'_>, head: &mut [u8; MAX_HEADER]) -> Option<Packet> {
    let total = datagram.payload_len();
    // A copy of constant length needs no function call.
    let start = if total >= MAX_HEADER {
        datagram.copy_bits(0, head).ok()?;
        head.as_slice()
    } else {
        let start = head.get_mut(..total)?;
        datagram.copy_bits(0, start).ok()?;
        start
    };
    Packet::parse(start, u32::try_from(total).ok()?).ok()
}

/// Returns whether two datagrams are the same packet, sent twice. Fields that may change in a
/// retransmission are ignored ([`Packet::repeats`]).
#[cold]
pub(crate) fn is_same(a: &Datagram<'_>, b: &Datagram<'_>) -> bool {
    let (Some(one), Some(other)) = (
        parse(a, &mut [0; MAX_HEADER]),
        parse(b, &mut [0; MAX_HEADER]),
    ) else {
        return false;
    };
    if !one.repeats(&other) || one.payload_len != other.payload_len {
        return false;
    }
    let len = one.payload_len as usize;
    (0..len).step_by(64).all(|at| {
        let n = len.minus(at).min(64);
        let piece = |datagram: &Datagram<'_>, start: u8| {
            let mut bytes = [0; 64];
            let from = total([start.into(), at]);
            let copied = datagram.copy_bits(from, bytes.get_mut(..n)?);
            copied.is_ok().then_some(bytes)
        };
        let left = piece(a, one.header_len);
        left.is_some() && left == piece(b, other.header_len)
    })
}
