// SPDX-License-Identifier: GPL-2.0

//! A deterministic network of end points over the transport core.
//!
//! One seed decides everything: end points and queue pairs, what their consumers do and when, and
//! what the network does to each packet. The simulator knows what every packet really is and what
//! every byte must be, and judges each action of the core when it happens; a violation is a panic.
//! See docs/testing.md.

mod config;
mod env;
mod flow;
mod ground;
mod random;
mod receives;
mod world;

pub use world::{run, Summary};
