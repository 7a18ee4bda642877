// SPDX-License-Identifier: GPL-2.0

//! Validation of received packets: their ICRCs, and packets that can be handled as one burst.

use linux_rdma::{
    crc32::crc32_le,
    net::{Datagram, IpVersion},
};
use rrxe_core::{
    icrc::{self, LastPrefix, Prefix, ICRC},
    wire::{self, Bth},
    Increment, Packet,
};

/// Packets to be handled as one burst ([`Packet::burst`]).
pub(crate) struct Burst<'a> {
    first: Packet,
    /// The first packet.
    pub(crate) datagram: Datagram<'a>,
    /// The header that the next packet must have.
    next: [u8; Bth::LEN],
    packets: u32,
    /// Number of packets that the queue pair accepts at once.
    max: u32,
}

impl<'a> Burst<'a> {
    /// Returns a burst of one packet, whose BTH is `header`. It may grow to `max` packets.
    #[inline]
    pub(crate) fn new(
        first: Packet,
        datagram: Datagram<'a>,
        header: &[u8; Bth::LEN],
        max: u32,
    ) -> Self {
        Self {
            first,
            datagram,
            next: Packet::next_header(header),
            packets: 1,
            max,
        }
    }

    /// Adds a datagram if it is the next packet of the burst. Returns whether it is. `prefix`
    /// caches the ICRC prefix of the previous packet.
    #[inline]
    pub(crate) fn extend(&mut self, datagram: &Datagram<'_>, prefix: &mut LastPrefix) -> bool {
        let mut header = [0; Bth::LEN];
        let is_next = self.packets < self.max
            && datagram.payload_len() == self.datagram.payload_len()
            && datagram.copy_bits(0, &mut header).is_ok()
            && header == self.next
            && check_icrc(datagram, &header, prefix) == Some(true);
        if is_next {
            self.next = Packet::next_header(&header);
            self.packets.increment();
        }
        is_next
    }

    /// Returns the headers of the burst.
    #[inline]
    pub(crate) fn packet(&self) -> Packet {
        self.first.burst(self.packets)
    }
}

/// Returns the part of the ICRC's input in front of the BTH; `None` if the datagram is no packet.
fn prefix(datagram: &Datagram<'_>) -> Option<Prefix> {
    let packet_len = u32::try_from(datagram.payload_len()).ok()?;
    let udp = datagram.udp_header();
    // IPv4 options and IPv6 extension headers are not supported (IBA A17.3).
    let (prefix, lengths_agree) = match datagram.packet().version() {
        IpVersion::V4 => {
            let ip = datagram.ipv4_header()?;
            let agree = wire::ipv4_lengths_agree(&ip, &udp, packet_len);
            (Prefix::ipv4(&ip, &udp), agree)
        }
        IpVersion::V6 => {
            let ip = datagram.ipv6_header()?;
            let agree = wire::ipv6_lengths_agree(&ip, &udp, packet_len);
            (Prefix::ipv6(&ip, &udp), agree)
        }
    };
    // The stack truncates a packet to its UDP length, regardless of the IP length.
    lengths_agree.then_some(prefix)
}

/// Returns whether the ICRC is right; `None` if the datagram is no packet.
#[inline(always)]
pub(crate) fn check_icrc(
    datagram: &Datagram<'_>,
    headers: &[u8],
    last: &mut LastPrefix,
) -> Option<bool> {
    let total = datagram.payload_len();
    let prefix = last.prefix(total, datagram.ident(), || prefix(datagram))?;
    let mut state = prefix.start(crc32_le, headers);
    let body = total.checked_sub(headers.len())?.checked_sub(ICRC)?;
    datagram
        .for_each(headers.len(), body, |fragment| {
            state = fragment.crc32_le(state);
        })
        .ok()?;
    let mut received = [0; ICRC];
    datagram
        .copy_bits(total.checked_sub(ICRC)?, &mut received)
        .ok()?;
    Some(icrc::finish(state) == received)
}
