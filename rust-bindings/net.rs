// SPDX-License-Identifier: GPL-2.0

//! Networking: devices, namespaces, routes, UDP tunnel sockets and socket buffers.
//!
//! A receiver ([`UdpReceive`]) of a UDP tunnel socket gets packets, each of which holds one
//! [`Datagram`] or several. To send, look up a [`Route`], make a [`TxDatagram`], append it to a
//! [`TxChain`], push the finished chain to a [`TxQueue`], and call [`TxQueue::xmit_all`].
//! `example.rs` does both.

mod addr;
mod datagram;
mod device;
#[cfg(any(CONFIG_KUNIT = "y", clippy))]
mod example;
mod gro;
mod multicast;
mod namespace;
mod net_exit;
mod notifier;
mod outgoing;
mod owner;
mod packet_writer;
mod payload_arena;
mod queue_limit;
mod route;
mod rx;
mod skb;
mod tx;
mod tx_chain;
mod tx_queue;
mod udp_tunnel;

pub use addr::{IpAddr, IpVersion};
pub use datagram::{Datagram, Datagrams, Fragment, KeptDatagram};
pub use device::{DeviceName, InterfaceId, NetDevice};
pub use namespace::{NetNs, NetNsCookie, NetRef};
pub use net_exit::{InNamespace, NetExit};
pub use notifier::{NetdevEvents, NetdevNotifier};
pub use outgoing::{hook_outgoing, ForwardedPacket, LocalPacket, Outgoing};
pub use owner::{PacketOwners, TxOwner};
pub use packet_writer::PacketWriter;
pub use payload_arena::PayloadArena;
pub use queue_limit::QueueLimit;
pub use route::{Flow, Headroom, Route};
pub use rx::{RxSkb, UdpPacket};
pub use tx::TxSkb;
pub use tx_chain::{TxChain, TxDatagram};
pub use tx_queue::{TxQueue, XmitStats};
pub use udp_tunnel::{open_udp_tunnel, UdpReceive};

/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header (RFC 8200).
pub const IPV6_HEADER: usize = 40;
/// Bytes of a UDP header (RFC 768).
pub const UDP_HEADER: usize = 8;
/// Protocol number of UDP in IP headers (a value of an anonymous enum in C).
const IPPROTO_UDP: u8 = 17;
