// SPDX-License-Identifier: GPL-2.0

//! How packets leave and arrive: through UDP sockets, or from one queue pair to another of the same
//! device.
//!
//! | file | contents |
//! |---|---|
//! | [`flow`] | route and header fields that the packets of a batch share |
//! | [`guard`] | protection of the UDP port against other programs of this host |
//! | [`icrc_elision`] | packets without ICRCs between two ends on this host |
//! | [`local_queue`] | limit of the packets that are queued on this host |
//! | [`loopback`] | packets between queue pairs of one device |
//! | [`path`] | route and addresses of a queue pair's packets |
//! | [`rx`], [`rx_packet`] | incoming packets; the type of a received packet |
//! | [`sockets`] | the sockets of each network namespace |
//! | [`tx`] | outgoing packets |

pub(crate) mod flow;
mod guard;
pub(crate) mod icrc_elision;
pub(crate) mod local_queue;
pub(crate) mod loopback;
pub(crate) mod path;
pub(crate) mod rx;
pub(crate) mod rx_packet;
pub(crate) mod sockets;
pub(crate) mod tx;
