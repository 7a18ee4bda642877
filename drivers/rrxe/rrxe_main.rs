// SPDX-License-Identifier: GPL-2.0

//! rrxe: a software RoCEv2 device.
//!
//! After `rdma link add rrxe0 type rrxe netdev eth0`, the Ethernet interface has an RDMA device.
//! ARCHITECTURE.md describes the structure of the module.

#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

#[cfg(not(CONFIG_64BIT))]
compile_error!("rrxe needs a 64-bit kernel: it converts 64-bit addresses to usize");
// Kbuild says so, too, before it compiles anything.
#[cfg(CONFIG_PREEMPT_RT)]
compile_error!("rrxe does not support kernels with CONFIG_PREEMPT_RT=y");

mod config;
mod counters;
mod demux;
mod device;
mod device_core;
mod driver;
mod limits;
mod link;
mod module;
mod mr;
mod number_table;
mod pd;
mod qp;
mod quota;
mod ring;
mod tables;
mod transport;
mod verbs;

use crate::{
    demux::{sockets, Receiver},
    link::{State, STATE},
    module::{Rrxe, EVENT_QUEUE, FLUSH_QUEUE},
    qp::table::QpTables,
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::{
    net::{self, NetdevNotifier},
    rdma::LinkRegistration,
    sync::{rcu_barrier, OpenWorkqueue, Placement, UserThreads, HAS_USER_THREADS},
};

module! {
    type: Module,
    name: "rrxe",
    authors: ["The rrxe authors"],
    description: "Software RoCEv2 device",
    license: "GPL v2",
    alias: ["rdma-link-rrxe"],
    params: {
        roce_np: u8 {
            default: 1,
            description: "Notification point: send CNPs for ECN-marked packets; 0 or 1 (default 1)",
        },
        roce_rp: u8 {
            default: 1,
            description: "Reaction point: mark packets ECN-capable and reduce the rate on CNPs; 0 or 1 (default 1)",
        },
        min_time_between_cnps: u32 {
            default: 50,
            description: "Minimum time between two CNPs of a queue pair, in us; 0: no minimum (default 50)",
        },
        same_host_icrc: u8 {
            default: 0,
            description: "Compute ICRCs and use the network stack between queue pairs of one device, too; 0 or 1 (default 0)",
        },
        ack_delay_us: u32 {
            default: 400,
            description: "Maximum delay of an ACK that is sent with a reply, in us; 0: no delay, at most 1000000 (default 400)",
        },
        gid_table_len: u32 {
            default: 256,
            description: "Number of GID table entries of a device, 16 to 256 (default 256)",
        },
        local_guard: u8 {
            default: 1,
            description: "Require CAP_NET_RAW to send to UDP port 4791 in namespaces with an address of a device; 0 or 1 (default 1)",
        },
        poll_mode: u8 {
            default: 1,
            description: "Allow poll mode, in which a kernel thread polls the send queues of a program; 0 or 1 (default 1)",
        },
        strict_recovery: u8 {
            default: 0,
            description: "Recover losses by go-back-N and the timers of the IBA specification only; 0 or 1 (default 0)",
        },
    },
}

/// The loaded module. Its fields are dropped in their order.
#[pin_data]
struct Module {
    /// First, so that it is dropped first: the removal of devices waits for these calls.
    _long_calls: LongCallsOwner,
    /// Dropped next: after that, no device exists and none can be added.
    link: LinkRegistration<Rrxe>,
    #[pin]
    notifier: NetdevNotifier,
    /// Dropped after the last device, and before what the threads and work items use.
    _threads: UserThreads,
    _events: OpenWorkqueue,
    _flushes: OpenWorkqueue,
    state: SharedState,
    /// Dropped last, because until then packets may still be created.
    _packets: net::PacketOwners,
}

/// Lets programs begin system calls that may sleep for any time. Dropping this interrupts them.
struct LongCallsOwner(Arc<tables::Tables>);

impl LongCallsOwner {
    fn new() -> Result<Self> {
        let state = STATE.lock();
        Ok(Self(state.as_ref().ok_or(ENODEV)?.tables.clone()))
    }
}

impl Drop for LongCallsOwner {
    fn drop(&mut self) {
        self.0.long_calls.close();
    }
}

/// Owner of the contents of [`STATE`].
struct SharedState;

impl SharedState {
    fn new() -> Result<Self> {
        let config = config::Config::from_parameters();
        let tables = tables::Tables::new()?;
        let qps = QpTables::new()?;
        let receiver = Receiver::new(qps.clone())?;
        let sockets = sockets::Sockets::new(receiver, config.local_guard)?;
        let state = State {
            tables,
            qps,
            sockets,
            config,
        };
        *STATE.lock() = Some(Arc::new(state, GFP_KERNEL)?);
        Ok(Self)
    }
}

impl Drop for SharedState {
    fn drop(&mut self) {
        let state = STATE.lock().take();
        // Objects removed from the tables refer to the tables and are dropped after a grace period.
        // The tables must not be dropped from there, since dropping them sleeps.
        rcu_barrier();
        drop(state);
        rcu_barrier();
        pr_info!("unloaded\n");
    }
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Called exactly once, when the module is loaded.
        unsafe { STATE.init() };
        if !HAS_USER_THREADS {
            pr_notice!("poll mode is not available, because the kernel lacks CONFIG_VHOST_TASK; each doorbell is a system call\n");
        }
        try_pin_init!(Self {
            _packets: net::PacketOwners::new()?,
            state: SharedState::new()?,
            _long_calls: LongCallsOwner::new()?,
            _threads: UserThreads::new()?,
            _flushes: FLUSH_QUEUE.open(c"rrxe_flush", Placement::QueueingCpu)?,
            _events: EVENT_QUEUE.open(c"rrxe_events", Placement::Anywhere)?,
            notifier <- NetdevNotifier::new::<link::Follower>(),
            link: LinkRegistration::new()?,
        }? Error)
    }
}
