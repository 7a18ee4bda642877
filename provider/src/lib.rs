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
//!
//! The library does not use `std` (except for a thread-local value in [`cpu_yield`]) nor `alloc`:
//! their allocations end the program if there is no memory, their output ends it if standard error
//! fails, and their environment is that of the user also in a set-user-ID program. [`memory`],
//! [`text`] and [`environment`] replace them.

#![cfg_attr(not(test), no_std)]
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
mod dm;
mod domain;
mod doorbell;
#[cfg(test)]
#[expect(
    dead_code,
    reason = "only the kernel posts fast registrations, and receives"
)]
#[path = "../../drivers/rrxe/ring/wqe.rs"]
mod entry;
mod environment;
mod ffi;
#[cfg(test)]
#[expect(dead_code, reason = "the driver uses the rest")]
#[path = "../../drivers/rrxe/limits.rs"]
mod limits;
mod lock;
mod memory;
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
mod text;
mod wr;
