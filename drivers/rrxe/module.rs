// SPDX-License-Identifier: GPL-2.0

//! The driver's type for ib_core, and the work queues of the module.

use linux_rdma::sync::ModuleWorkqueue;

/// Stands for the driver in the types of `linux_rdma`. driver.rs implements its verbs.
pub(crate) struct Rrxe;

/// The work items that report asynchronous events, which sleep.
pub(crate) static EVENT_QUEUE: ModuleWorkqueue = ModuleWorkqueue::closed();

/// The work items that flush queues, in a thread that other programs can preempt.
pub(crate) static FLUSH_QUEUE: ModuleWorkqueue = ModuleWorkqueue::closed();
