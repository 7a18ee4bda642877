// SPDX-License-Identifier: GPL-2.0

//! Kernel interfaces that the `kernel` crate does not cover yet: networking and RDMA.
//!
//! The code is written as if for `rust/kernel`: it has a safe interface, documents the C contracts
//! in safety comments, and does not depend on the driver that uses it.

#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![allow(
    clashing_extern_declarations,
    reason = "some functions that bindgen declares are declared again as safe, with references"
)]

mod compat;
pub mod crc32;
pub mod errno;
pub mod net;
pub mod random;
mod raw;
pub mod rdma;
mod shared_bytes;
pub mod sync;
pub mod time;
pub mod user;

pub use compat::parameter;
