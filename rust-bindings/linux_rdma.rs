// SPDX-License-Identifier: GPL-2.0

//! Kernel interfaces that the `kernel` crate does not cover yet: networking and RDMA.
//!
//! Written as if for `rust/kernel`: safe outwards, with the C contracts in safety comments
//! inside, and without knowledge of the driver that uses them.

#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod compat;
pub mod cpu;
pub mod crc32;
pub mod errno;
pub mod net;
pub mod parameter;
pub mod random;
mod raw;
pub mod rdma;
mod shared_bytes;
pub mod sync;
pub mod time;
pub mod vector;

pub use compat::parameter;
