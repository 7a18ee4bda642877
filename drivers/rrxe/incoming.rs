// SPDX-License-Identifier: GPL-2.0

//! A packet that came in, by the stack or without it, and the row of those that came together.

use crate::{
    direct::InParcel,
    mr::Span,
    path::Path,
    qp::{After, Qp},
    rx::with_addressed,
};
use kernel::{
    prelude::*,
    sync::{rcu, ArcBorrow},
};
use linux_rdma::{
    net::{Datagram, Fragment, KeptDatagram, NetDevice, RxSkb, UDP_HEADER},
    vector::Vector,
};
use rrxe_core::{icrc::LastPrefix, Fault, Packet, MAX_HEADER};

/// Bytes of the ICRC at the end of each packet.
pub(crate) const ICRC: usize = 4;

/// Bytes in front of a datagram's payload: a Global Route Header, or the last 20 of them an IPv4
/// header (IBA 11.4.2.1, A17.4).
const GRH_LEN: usize = rrxe_core::responder::GRH_LEN as usize;

/// A packet with its headers parsed and its ICRC verified, or a run of them.
pub(crate) struct Incoming<'a> {
    pub(crate) packet: &'a Packet,
    carried: Carried<'a>,
    /// The network device that received it; `None` for packets that were kept or never crossed
    /// the stack, and for runs.
    netdev: Option<&'a NetDevice>,
    pub(crate) now: u64,
}

/// What a packet came in.
#[derive(Clone, Copy)]
enum Carried<'a> {
    /// A packet of the stack. Of a run it is the first, which the others are behind.
    Datagram(Datagram<'a>),
    /// The parcel of another queue pair of the device.
    Parcel(InParcel<'a>),
}

impl Incoming<'_> {
    /// Where the payload starts, from the first byte of the BTH.
    fn payload_offset(&self) -> usize {
        self.packet.header_len.into()
    }

    /// Whether it never was a packet of the stack.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.carried, Carried::Parcel(_))
    }

    /// IPv4 type of service or IPv6 traffic class. Nothing marks what never leaves the device.
    #[inline]
    pub(crate) fn tos(&self) -> u8 {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.packet().tos(),
            Carried::Parcel(_) => 0,
        }
    }

    /// Whether it comes from the peer that a path leads to.
    #[inline]
    pub(crate) fn comes_along(&self, path: &Path) -> bool {
        match &self.carried {
            Carried::Datagram(datagram) => path.carries(datagram.packet()),
            Carried::Parcel(parcel) => parcel.comes_along(path),
        }
    }

    /// Whether it is of a row that comes as it was made on this host.
    #[inline]
    pub(crate) fn is_of_row_from_here(&self) -> bool {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.is_of_row_from_here(),
            Carried::Parcel(_) => false,
        }
    }

    /// Keeps it for longer than it is being received. `None` where that can't be, and it is lost: its payload is where its
    /// sender has it.
    pub(crate) fn keep(&self) -> Option<KeptDatagram> {
        match &self.carried {
            Carried::Datagram(datagram) => Some(datagram.keep()),
            Carried::Parcel(_) => None,
        }
    }

    /// Copies the start of the payload.
    pub(crate) fn copy_payload(&self, to: &mut [u8]) -> Result<(), Fault> {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.copy_bits(self.payload_offset(), to),
            Carried::Parcel(parcel) => {
                let (mut at, mut result) = (0usize, Ok(()));
                let taken = parcel.for_each(0, to.len(), |fragment| {
                    let end = at.wrapping_add(fragment.len());
                    let copied = to.get_mut(at..end).ok_or(EINVAL);
                    result = result.and(copied.and_then(|to| fragment.copy_to(to)));
                    at = end;
                });
                taken.and(result)
            }
        }
        .map_err(|_| Fault::Malformed)
    }

    /// The IP header that stands in front of a datagram of UD, as its consumer sees it: an IPv6 header, or an IPv4 header behind
    /// 20 bytes of zeros.
    pub(crate) fn grh(&self) -> [u8; GRH_LEN] {
        let mut grh = [0; GRH_LEN];
        if let Carried::Datagram(datagram) = &self.carried {
            if let Some(ip) = datagram.ipv6_header() {
                grh = ip;
            } else if let (Some(ip), Some(to)) = (datagram.ipv4_header(), grh.last_chunk_mut()) {
                *to = ip;
            }
        }
        grh
    }

    /// The packet of the stack that it came in, maybe with others.
    pub(crate) fn skb(&self) -> Option<&RxSkb> {
        match &self.carried {
            Carried::Datagram(datagram) => Some(datagram.packet()),
            Carried::Parcel(_) => None,
        }
    }

    /// Returns the VLAN identifier of the network device that a datagram is addressed to. The
    /// packet has no tag any more: the VLAN device has removed it.
    pub(crate) fn vlan_id(&self, rcu: &rcu::Guard) -> Option<u16> {
        with_addressed(self.netdev?, self.skb()?, rcu, |dev| dev.vlan_id(rcu))
    }

    /// Copies `len` bytes of the payload at `offset` to the start of a span.
    #[inline]
    pub(crate) fn place(&self, offset: usize, len: usize, to: &Span<'_>) -> Result<(), Fault> {
        let (mut at, mut result) = (0usize, Ok(()));
        let write = |fragment: Fragment<'_>| {
            if result.is_ok() {
                result = to.write_fragment(at, &fragment);
            }
            at = at.wrapping_add(fragment.len());
        };
        let (start, packets) = (self.payload_offset(), self.packet.packets as usize);
        match &self.carried {
            // What follows each other lies behind each other there.
            Carried::Parcel(parcel) => parcel.for_each(offset, len, write),
            Carried::Datagram(datagram) if packets == 1 => {
                datagram.for_each(start.wrapping_add(offset), len, write)
            }
            Carried::Datagram(datagram) => {
                let each = self.payload_len().checked_div(packets).unwrap_or(0);
                datagram.for_each_in_row(start, each, offset, len, write)
            }
        }
        .map_err(|_| Fault::Malformed)?;
        result
    }

    /// Bytes of the IP packet, of a run of all of them.
    pub(crate) fn ip_len(&self) -> u64 {
        let packets = self.packet.packets;
        let each = match &self.carried {
            Carried::Datagram(datagram) => {
                let headers = datagram.ip_header_len().wrapping_add(UDP_HEADER);
                datagram.payload_len().wrapping_add(headers)
            }
            Carried::Parcel(parcel) => {
                let payload = self.packet.payload_len.checked_div(packets).unwrap_or(0) as usize;
                let around = self.payload_offset().wrapping_add(self.packet.pad.into());
                parcel.ip_len(payload.wrapping_add(around).wrapping_add(ICRC))
            }
        };
        (each as u64).wrapping_mul(packets.into())
    }

    /// Bytes of payload.
    pub(crate) fn payload_len(&self) -> usize {
        self.packet.payload_len as usize
    }
}

impl<'a> Incoming<'a> {
    /// A packet of the stack, or a run of which this is the first.
    #[inline]
    pub(crate) fn of(packet: &'a Packet, datagram: Datagram<'a>, now: u64) -> Self {
        Self {
            packet,
            carried: Carried::Datagram(datagram),
            netdev: None,
            now,
        }
    }

    /// Names the network device that received it.
    #[inline]
    pub(crate) fn received_by(self, netdev: &'a NetDevice) -> Self {
        Self {
            netdev: Some(netdev),
            ..self
        }
    }

    /// A packet, or a run, that another queue pair of the device has sent.
    #[inline]
    pub(crate) fn in_parcel(packet: &'a Packet, parcel: InParcel<'a>, now: u64) -> Self {
        Self {
            packet,
            carried: Carried::Parcel(parcel),
            netdev: None,
            now,
        }
    }

    /// What its bytes are copied with.
    #[inline]
    pub(crate) fn vector(&self) -> &'a Vector {
        match &self.carried {
            Carried::Datagram(datagram) => datagram.vector(),
            Carried::Parcel(parcel) => parcel.vector,
        }
    }

    /// The same of a packet that was verified before, and kept until now.
    pub(crate) fn with_kept<R>(
        &self,
        kept: &KeptDatagram,
        f: impl FnOnce(&Incoming<'_>) -> R,
    ) -> Option<R> {
        let datagram = kept.datagram(self.vector());
        let packet = parse(&datagram, &mut [0; MAX_HEADER])?;
        Some(f(&Incoming::of(&packet, datagram, self.now)))
    }
}

/// The headers of a datagram, which are read into `head`, maybe with more behind them. `None` where it is no packet.
// A packet is returned through memory otherwise, and copied.
#[inline(always)]
pub(crate) fn parse(datagram: &Datagram<'_>, head: &mut [u8; MAX_HEADER]) -> Option<Packet> {
    let total = datagram.payload_len();
    // A copy whose length is known beforehand needs no call.
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

/// Whether two datagrams are one packet that was sent twice. What may change when it is sent again
/// does not count ([`Packet::repeats`]).
#[cold]
pub(crate) fn is_same(a: &Datagram<'_>, b: &Datagram<'_>) -> bool {
    let parsed = (
        parse(a, &mut [0; MAX_HEADER]),
        parse(b, &mut [0; MAX_HEADER]),
    );
    let (Some(one), Some(other)) = parsed else {
        return false;
    };
    if !one.repeats(&other) || one.payload_len != other.payload_len {
        return false;
    }
    let (mut at, len) = (0usize, one.payload_len as usize);
    while at < len {
        let (mut left, mut right) = ([0u8; 64], [0u8; 64]);
        let n = left.len().min(len.wrapping_sub(at));
        let copied = |datagram: &Datagram<'_>, start: u8, to: &mut [u8]| {
            let from = usize::from(start).wrapping_add(at);
            to.get_mut(..n)
                .is_some_and(|to| datagram.copy_bits(from, to).is_ok())
        };
        let both = copied(a, one.header_len, &mut left) && copied(b, other.header_len, &mut right);
        if !both || left != right {
            return false;
        }
        at = at.wrapping_add(n);
    }
    true
}

/// The queue pair that packets which came together are for, and what they have left to do there.
pub(crate) struct Row<'a> {
    qp: Option<ArcBorrow<'a, Qp>>,
    after: After<'a>,
    /// What the ICRC of the packet before began with.
    pub(crate) prefix: LastPrefix,
    /// What the packets are copied and summed up with: not held while anything else is done.
    vector: &'a Vector,
}

impl<'a> Row<'a> {
    pub(crate) fn new(vector: &'a Vector) -> Self {
        Self {
            qp: None,
            after: After::default(),
            prefix: LastPrefix::default(),
            vector,
        }
    }

    pub(crate) fn vector(&self) -> &'a Vector {
        self.vector
    }

    /// The queue pair of the packet before, if it has this number.
    pub(crate) fn last(&self, number: u32) -> Option<ArcBorrow<'a, Qp>> {
        self.qp.filter(|qp| qp.number == number)
    }

    /// The next packet is for this queue pair.
    pub(crate) fn of(&mut self, qp: ArcBorrow<'a, Qp>) -> &mut After<'a> {
        let same = self.qp.is_some_and(|other| core::ptr::eq(&*other, &*qp));
        if !same {
            self.finish();
            self.qp = Some(qp);
        }
        &mut self.after
    }

    /// The queue pair of the packet before.
    pub(crate) fn current(&mut self) -> Option<(ArcBorrow<'a, Qp>, &mut After<'a>)> {
        Some((self.qp?, &mut self.after))
    }

    /// What is left to do is done.
    pub(crate) fn finish(&mut self) {
        self.vector.release();
        if let Some(qp) = self.qp.take() {
            Qp::after(qp, core::mem::take(&mut self.after));
        }
    }
}
