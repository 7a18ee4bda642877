// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C interfaces: libibverbs' public and private interfaces, uverbs commands, and the C library.
//!
//! libibverbs' development package has no header for providers, and this library avoids C code, so
//! it has its own declarations. [`layout`] asserts at compile time that they match the layout of
//! the C originals.
//!
//! libibverbs numbers its private interface (the PABI) and opens only providers with its own
//! number. The environment variable `RRXE_PABI` of the build selects it, 34 by default; [`driver`]
//! has the differences.

#[macro_use]
mod layout;

pub(crate) mod command;
pub(crate) mod driver;
pub(crate) mod layouts;
pub(crate) mod os;
pub(crate) mod ptr;
pub(crate) mod verbs;
