// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C world: libibverbs' public and private interfaces, uverbs commands, the C library.
//!
//! libibverbs has no header for providers in its development package and no C is wanted here, so
//! these are declarations of our own. [`layout`] asserts at compile time that they are laid out
//! as C lays out the originals.
//!
//! libibverbs numbers its private interface (the PABI), and a provider is loaded by exactly one
//! number. What differs between numbers is in one file for each, of which [`pabi`] is the one in
//! use; supporting another is another such file and a `cfg`.

pub(crate) mod command;
pub(crate) mod driver;
mod layout;
pub(crate) mod os;
pub(crate) mod verbs;

pub(crate) mod pabi34;
pub(crate) use pabi34 as pabi;
