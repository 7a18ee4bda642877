// SPDX-License-Identifier: GPL-2.0

//! The configuration of devices (packaging/rrxe.7).

use crate::{
    limits::{path::MAX_ACK_DELAY_US, GID_TABLE_LENS},
    module_parameters,
};
use linux_rdma::{parameter, sync::HAS_USER_THREADS};
use rrxe_core::{RecoveryMode, Span};

/// The configuration of a device, and of the module.
#[derive(Clone)]
pub(crate) struct Config {
    /// A notification is sent for marked packets.
    pub(crate) is_notification_point: bool,
    /// Packets are ECN-capable, and notifications slow down their queue pair.
    pub(crate) is_reaction_point: bool,
    /// Minimum time between two notifications of a queue pair.
    pub(crate) cnp_interval: Span,
    /// Packets between queue pairs of one device may bypass the network stack.
    pub(crate) may_bypass: bool,
    /// Longest time for which an ACK is delayed.
    pub(crate) max_ack_delay: Span,
    /// Entries of the GID table, which holds the addresses of the network device and its VLANs.
    /// ib_core makes three files for each entry, and again in every network namespace
    /// (`ib_setup_port_attrs()` in drivers/infiniband/core/sysfs.c): with a long table, these files
    /// take most of the time for adding a link or creating a namespace.
    pub(crate) gid_table_len: u32,
    /// How queue pairs detect and repair losses (docs/transport.md).
    pub(crate) recovery: RecoveryMode,
    /// Programs may use poll mode.
    pub(crate) poll_mode: bool,
    /// UDP port 4791 is guarded in each namespace that has a device.
    pub(crate) local_guard: bool,
}

impl Config {
    /// Reads the module parameters, which can be set only when the module is loaded.
    pub(crate) fn from_parameters() -> Self {
        let is_set = |value: u8| value != 0;
        let ack_delay_us: u32 = parameter(module_parameters::ack_delay_us.value());
        let gid_table_len: u32 = parameter(module_parameters::gid_table_len.value());
        let recovery = if is_set(parameter(module_parameters::strict_recovery.value())) {
            RecoveryMode::Strict
        } else {
            RecoveryMode::Selective
        };
        Self {
            is_notification_point: is_set(parameter(module_parameters::roce_np.value())),
            is_reaction_point: is_set(parameter(module_parameters::roce_rp.value())),
            cnp_interval: Span::from_us(parameter(
                module_parameters::min_time_between_cnps.value(),
            )),
            may_bypass: !is_set(parameter(module_parameters::same_host_icrc.value())),
            max_ack_delay: Span::from_us(ack_delay_us.min(MAX_ACK_DELAY_US)),
            gid_table_len: gid_table_len.clamp(*GID_TABLE_LENS.start(), *GID_TABLE_LENS.end()),
            recovery,
            poll_mode: HAS_USER_THREADS && is_set(parameter(module_parameters::poll_mode.value())),
            local_guard: is_set(parameter(module_parameters::local_guard.value())),
        }
    }
}
