// SPDX-License-Identifier: GPL-2.0

//! The type that stands for the driver in the types of `linux_rdma`. driver.rs implements its
//! verbs; the other files need only the name.

/// The driver.
pub(crate) struct Rrxe;
