// SPDX-License-Identifier: GPL-2.0

//! Congestion management (IBA A17.9): the ECN bits of packets. The core decides; qp/cnp.rs sends
//! and receives notifications. docs/congestion.md has the settings and their reasons.

use crate::config::Config;

/// The two ECN bits of the type of service or traffic class (RFC 3168).
const ECN: u8 = 3;
/// Capable of ECN, as RoCE hardware marks its packets: ECT(0).
const ECT: u8 = 2;
/// Congestion experienced.
const CE: u8 = 3;

/// Returns the type of service of a connected queue pair's packets, which leave as ECN-capable if
/// notifications slow it down. The consumer chooses the DSCP.
pub(crate) fn connected_tos(config: &Config, traffic_class: u8) -> u8 {
    if config.is_reaction_point {
        traffic_class & !ECN | ECT
    } else {
        traffic_class
    }
}

/// Returns whether a packet met with congestion on its way.
pub(crate) fn is_marked(tos: u8) -> bool {
    tos & ECN == CE
}
