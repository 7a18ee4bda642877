// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! librrxe: the rdma-core provider of rrxe.
//!
//! libibverbs loads this library, and the library's constructor registers the provider
//! ([`register`]). After that, libibverbs and the program call the verbs. The library exports no
//! symbol.
//!
//! A verb gets its objects as [`ffi::ptr::Ptr`], which states what C code guarantees.
//!
//! | where | what |
//! |---|---|
//! | [`context`], [`pd`], [`mr`], [`mw`], [`ah`] | creating and modifying objects |
//! | [`cq`], [`qp`], [`srq`] | the same for objects with queues |
//! | [`object`] | code that creating them has in common, and most verbs that destroy them |
//! | [`shortage`] | explains which limit an object has exceeded |
//! | [`cq_ex`] | the extended way to poll a completion queue |
//! | [`cpu_yield`] | yields the CPU after repeated empty polls |
//! | [`post`], [`wr`] | the two ways to post work requests: lists, and `ibv_wr_*` |
//! | [`send_queue`], [`recv_queue`], [`completion_queue`] | the queues, without verbs |
//! | [`doorbell`] | tells the kernel of entries in a ring |
//! | [`ring`] | memory shared with the kernel |

#![cfg_attr(
    test,
    expect(clippy::unwrap_used, reason = "a test that panics has failed")
)]

#[expect(dead_code, reason = "each side of the ABI uses its part of the file")]
#[path = "../../drivers/rrxe/ring/abi.rs"]
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
mod mr;
mod mw;
mod object;
mod pd;
mod post;
mod qp;
mod recv_queue;
mod register;
mod ring;
mod send_queue;
mod shortage;
mod srq;
mod wr;
