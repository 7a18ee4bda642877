// SPDX-License-Identifier: GPL-2.0

//! How packets leave and arrive: through the network stack, or from one queue pair to another of
//! the same device. Nothing here imports queue pairs.

pub(crate) mod flow;
pub(crate) mod gids;
pub(crate) mod local_queue;
pub(crate) mod loopback;
pub(crate) mod path;
pub(crate) mod payload;
pub(crate) mod rx;
pub(crate) mod rx_packet;
pub(crate) mod tx;
