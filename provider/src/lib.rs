// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! librrxe: the rdma-core provider of rrxe.
//!
//! libibverbs loads this library, whose constructor registers the provider; from then on
//! everything happens in the functions of [`context::OPS`]. The library exports no symbol.
//!
//! | where | what |
//! |---|---|
//! | [`context`], [`pd`], [`mr`], [`mw`], [`ah`], [`cq`], [`qp`], [`srq`], [`xrcd`] | a verbs object each: create, change, destroy |
//! | [`object`] | what creating and destroying them has in common |
//! | [`memlock`] | why memory could not be pinned |
//! | [`cq_ex`] | the extended way to poll a completion queue |
//! | [`post`], [`wr`] | the two ways to post work: lists, and `ibv_wr_*` |
//! | [`ring`], [`send_queue`], [`recv_queue`], [`completion_queue`] | rings shared with the kernel; free of libibverbs' objects |
//! | [`doorbell`] | when and how the kernel is called |
//! | [`abi`] | the layout of rings and commands, the same file as in the kernel module |
//! | [`ffi`] | declarations of libibverbs and the C library |

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
mod recv_queue;
mod register;
mod ring;
mod send_queue;
mod srq;
mod waiting;
mod wr;
mod xrcd;
