// SPDX-License-Identifier: GPL-2.0

//! A deterministic network of end points on top of the transport core.
//!
//! One seed decides everything: end points and queue pairs, when their consumers act, and how the
//! network treats each packet. The simulator knows the origin of every packet and the expected
//! value of every byte, and checks each action of the core as it happens. It panics on a violation.
//! See docs/testing.md.

mod backing;
mod config;
mod data;
pub mod efficiency;
mod env;
mod flow;
mod oracle;
mod receives;
mod world;

pub use world::{run, Summary};
