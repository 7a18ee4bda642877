// SPDX-License-Identifier: GPL-2.0

//! The objects of the verbs interface, except for queue pairs ([`crate::qp`]), and the devices that
//! they belong to.

pub(crate) mod address_handle;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod link;
pub(crate) mod multicast;
pub(crate) mod srq;
