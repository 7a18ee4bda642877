// SPDX-License-Identifier: GPL-2.0

//! What the fuzz targets do with their input. Each is a module with a function `run`, which panics
//! where something is wrong.
//!
//! | target | feeds | and checks |
//! |---|---|---|
//! | [`parse`] | bytes | that the packet parser is total, and emits what it took |
//! | [`responder`] | packets, faults, polls | what it places, answers and completes |
//! | [`requester`] | work requests, answers, timers | that each completes once, in order, and for a reason |
//! | [`wqe`] | work-queue entries as a ring holds them | that what comes of them keeps within bounds |
//! | [`differential`] | packets with payload | that core and [`model`] give the same answers, completions and memory |
//! | [`conversation`] | work requests, a peer, losses | that the core's requester and [`model`] get all done, once and in order |
//!
//! An input is a script: bytes that are read from the front, with zeros where they end, so that
//! every input means something and a small change of it is a small change of what happens.
//! [`script`] has the words, and writes them too: seeds are made from captures that way.

#![forbid(unsafe_code)]

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the driver and the provider use the rest"
)]
#[path = "../../drivers/rrxe/abi.rs"]
mod abi;
#[allow(dead_code, reason = "programs can't do what kernel consumers can")]
#[path = "../../drivers/rrxe/wqe.rs"]
mod entry;
#[allow(dead_code, reason = "the driver uses the rest")]
#[path = "../../drivers/rrxe/limits.rs"]
mod limits;

pub mod conversation;
pub mod differential;
pub mod hold;
pub mod model;
pub mod parse;
pub mod requester;
pub mod responder;
pub mod script;
pub mod world;
pub mod wqe;
