// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C world: libibverbs' public and private interfaces, uverbs commands, the C library.
//!
//! libibverbs has no header for providers in its development package and no C is wanted here, so
//! these are declarations of our own. [`layout`] asserts at compile time that they are laid out
//! as C lays out the originals.
//!
//! libibverbs numbers its private interface (the PABI) and opens only providers of its own number.
//! [`pabi`] holds what differs between the numbers, in a file for each; the feature `pabi65` chooses
//! 65, and 34 is the default. A further number is a further file and a further feature.

pub(crate) mod command;
pub(crate) mod driver;
mod layout;
pub(crate) mod operations;
pub(crate) mod os;
pub(crate) mod verbs;

#[cfg(not(feature = "pabi65"))]
pub(crate) mod pabi34;
#[cfg(feature = "pabi65")]
pub(crate) mod pabi65;

#[cfg(not(feature = "pabi65"))]
pub(crate) use pabi34 as pabi;
#[cfg(feature = "pabi65")]
pub(crate) use pabi65 as pabi;
