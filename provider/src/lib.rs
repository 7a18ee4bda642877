// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! librrxe: the rdma-core provider of rrxe.
//!
//! libibverbs loads this library, and the library's constructor registers the provider
//! ([`register`]). After that, libibverbs and the program call the verbs. The library exports no
//! symbol.
//!
//! A verb gets its objects as [`ffi::ptr::Ptr`], which states what C code guarantees. Each object
//! with state has a module, and [`object`] has the others; below those with queues are
//! [`send_queue`], [`recv_queue`], [`completion_queue`] and their [`ring`], the memory shared with
//! the kernel, which know no verbs.

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
mod mw;
mod object;
mod post;
mod qp;
mod recv_queue;
mod register;
mod ring;
mod send_queue;
mod shortage;
mod srq;
mod wr;
