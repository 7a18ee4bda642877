// SPDX-License-Identifier: GPL-2.0

//! The objects of the verbs interface, except for queue pairs ([`crate::qp`]) and memory regions
//! ([`crate::mr`]).

pub(crate) mod address_handle;
pub(crate) mod cq;
pub(crate) mod srq;
