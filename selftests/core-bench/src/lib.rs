// SPDX-License-Identifier: GPL-2.0

//! Per-packet cost of the transport core: the cases that `make bench-core` measures
//! (docs/benchmarking.md).
//!
//! A [`Case`] runs in rounds that differ only in packet sequence numbers. The functions of
//! [`phases`] contain all of the measured code and nothing else: the instruction count of a phase
//! is that of the function with its name.

mod cases;
mod conversation;
mod env;
pub mod phases;

pub use cases::{cases, Case, Round};
