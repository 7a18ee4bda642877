// SPDX-License-Identifier: GPL-2.0

//! What the transport core costs per packet: the cases that `make bench-core` measures
//! (docs/performance.md).
//!
//! A [`Case`] is done round by round; each round is like the one before, but for the packet sequence
//! numbers. What is to be counted happens in the functions of [`phases`], and nothing else does:
//! the count of a phase is that of the function with its name.

mod cases;
mod conversation;
mod env;
pub mod phases;

pub use cases::{cases, Case, Round};
