// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! librrxe: the rdma-core provider of rrxe.
//!
//! libibverbs loads this library, and the library's constructor registers the provider. After that,
//! all work is done by the functions of [`context::OPS`]. The library exports no symbol.
//!
//! | where | what |
//! |---|---|
//! | [`context`], [`pd`], [`mr`], [`mw`], [`ah`] | one verbs object each: create, modify, destroy |
//! | [`cq`], [`qp`], [`srq`], [`xrcd`] | one verbs object each: create, modify, destroy |
//! | [`object`] | code that creating and destroying them has in common |
//! | [`memlock`] | explains why memory could not be pinned |
//! | [`quota`] | explains that a user has its share of the objects |
//! | [`cq_ex`] | the extended way to poll a completion queue |
//! | [`cpu_yield`] | yields the CPU after repeated empty polls |
//! | [`post`], [`wr`] | the two ways to post work requests: lists, and `ibv_wr_*` |
//! | [`ring`] | memory shared with the kernel |

#![cfg_attr(
    test,
    expect(clippy::unwrap_used, reason = "a test that panics has failed")
)]

#[expect(dead_code, reason = "each side of the ABI uses its part of the file")]
#[path = "../../drivers/rrxe/abi.rs"]
mod abi;
mod ah;
mod clock;
mod completion_queue;
mod context;
mod cpu_yield;
mod cq;
mod cq_ex;
mod doorbell;
mod environment;
mod ffi;
mod lock;
mod memlock;
mod mr;
mod mw;
mod object;
mod pd;
mod post;
mod qp;
mod quota;
mod recv_queue;
mod register;
mod ring;
mod send_queue;
mod srq;
mod wr;
mod xrcd;
