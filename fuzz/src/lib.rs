// SPDX-License-Identifier: GPL-2.0

//! Implementation of the fuzz targets. Each is a module with a function `run`, which panics if it
//! finds an error.
//!
//! | target | feeds | checks |
//! |---|---|---|
//! | [`parse`] | bytes | that the packet parser is total and that packets survive a round trip |
//! | [`mad`] | management datagrams | that exactly the agent's requests have the right response |
//! | [`responder`] | packets, faults, polls | payload placement, responses and completions |
//! | [`requester`] | work requests, responses, timers | one justified completion each, in order |
//! | [`wqe`] | work queue entries as in a ring | that decoding them stays within bounds |
//! | [`differential`] | packets with payload | that the core's responder and [`model`] agree |
//! | [`conversation`] | work requests, a peer, losses | that all work completes once, in order |
//!
//! An input is a script: bytes that are read from the front, followed by zeros. So every input has
//! a meaning, and a small change of the input is a small change of the events. [`script`] defines
//! the format and can also write it: it converts captures into seeds.

#![forbid(unsafe_code)]

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the driver and the provider use the rest"
)]
#[path = "../../drivers/rrxe/ring/abi.rs"]
mod abi;
#[allow(dead_code, reason = "programs can't do what kernel consumers can")]
#[path = "../../drivers/rrxe/ring/wqe.rs"]
mod entry;
#[allow(dead_code, reason = "the driver uses the rest")]
#[path = "../../drivers/rrxe/limits.rs"]
mod limits;

pub mod conversation;
pub mod differential;
pub mod mad;
pub mod model;
pub mod parse;
pub mod requester;
pub mod responder;
pub mod script;
pub mod world;
pub mod wqe;
