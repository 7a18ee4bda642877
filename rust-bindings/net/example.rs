// SPDX-License-Identifier: GPL-2.0

//! An example: a service that echoes short UDP datagrams over IPv4 (RFC 862). Clippy checks it, and
//! it is not part of the module as shipped.

#![allow(dead_code, reason = "compiled to be checked")]

use super::{
    open_udp_tunnel, Datagram, Flow, InNamespace, IpAddr, IpVersion, NetDevice, NetExit, NetRef,
    Route, RxSkb, TxChain, TxDatagram, TxQueue, TxSkb, UdpReceive, IPPROTO_UDP, IPV4_HEADER,
    UDP_HEADER,
};
use crate::{errno::not_supported, sync::BurstGuard};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};

/// Port of the service.
const PORT: u16 = 7;

/// Length of the longest payload that is echoed, in bytes.
const MAX_PAYLOAD: usize = 256;

/// The receiver of the datagrams of a socket.
#[repr(align(8))]
struct Echo;

impl UdpReceive for Echo {
    fn receive(&self, dev: &NetDevice, skb: RxSkb, burst: &BurstGuard) {
        let mut replies = TxQueue::default();
        // The replies of two such services would never end.
        let datagrams = skb.datagrams().filter(|_| skb.source_port() != PORT);
        for datagram in datagrams {
            // A datagram without a reply is lost, as any datagram may be.
            if let Ok(reply) = reply_to(dev, &datagram, burst) {
                replies.push(reply);
            }
        }
        skb.consume();
        let _ = replies.xmit_all();
    }

    fn is_same_receiver(_: &[u8; 12], _: &[u8; 12]) -> bool {
        true
    }

    fn may_chain(&self, _: &NetDevice, _: &IpAddr, _: &[u8; 12], _: &rcu::Guard) -> bool {
        false
    }
}

/// Returns the reply to a datagram: its payload, sent back.
///
/// # Errors
///
/// `EMSGSIZE`: the payload is too long. `EOPNOTSUPP`: the datagram is not of IPv4. `ENOMEM`, and
/// the errors of the route.
fn reply_to(dev: &NetDevice, datagram: &Datagram<'_>, rcu: &rcu::Guard) -> Result<TxSkb> {
    let mut payload = [0; MAX_PAYLOAD];
    let payload = payload.get_mut(..datagram.payload_len()).ok_or(EMSGSIZE)?;
    datagram.copy_bits(0, payload)?;
    let packet = datagram.packet();
    let (destination, source) = packet.addresses();
    let flow = Flow {
        source,
        destination,
        tos: 0,
        source_port: PORT,
        destination_port: packet.source_port(),
    };
    let headers = headers_of(&flow, payload.len())?;
    let route = Route::lookup(dev, &flow)?;
    let reply = TxDatagram::new(route.headroom(rcu), &headers, payload.len(), |writer| {
        writer.push(payload)
    })??;
    TxChain::new(reply).finish(&route, 0, rcu)
}

/// Returns the IPv4 header (RFC 791) and the UDP header (RFC 768) of a datagram. The stack computes
/// the checksum of the former, and zero stands for none in the latter.
fn headers_of(flow: &Flow, len: usize) -> Result<[u8; IPV4_HEADER + UDP_HEADER]> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.source, flow.destination) else {
        return Err(not_supported());
    };
    let len = u16::try_from(len)?;
    let udp_len = len.checked_add(UDP_HEADER as u16).ok_or(EMSGSIZE)?;
    let ip_len = udp_len.checked_add(IPV4_HEADER as u16).ok_or(EMSGSIZE)?;
    let mut headers = [0; IPV4_HEADER + UDP_HEADER];
    let fields: [(usize, &[u8]); 9] = [
        (0, &[0x45, flow.tos]),
        (2, &ip_len.to_be_bytes()),
        // Don't Fragment: then the identification may be 0 (RFC 6864).
        (6, &[0x40, 0]),
        (8, &[64, IPPROTO_UDP]),
        (12, &source),
        (16, &destination),
        (20, &flow.source_port.to_be_bytes()),
        (22, &flow.destination_port.to_be_bytes()),
        (24, &udp_len.to_be_bytes()),
    ];
    for (at, bytes) in fields {
        let place = headers.get_mut(at..).and_then(|h| h.get_mut(..bytes.len()));
        place.ok_or(EINVAL)?.copy_from_slice(bytes);
    }
    Ok(headers)
}

/// Starts the service in a namespace. It ends when the result is dropped, or with the namespace.
fn start(exit: &Arc<NetExit>, net: &NetRef) -> Result<InNamespace<Echo>> {
    let echo = Arc::new(Echo, GFP_KERNEL)?;
    open_udp_tunnel(exit, net, IpVersion::V4, PORT, 0, echo)
}
