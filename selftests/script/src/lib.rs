// SPDX-License-Identifier: GPL-2.0

//! Packet scripts: transport tests that read like a conversation.
//!
//! A script (selftests/conformance/*.rrx; docs/testing.md describes the format) posts work
//! requests, injects packets as the peer of a queue pair, and states the expected behaviour of the
//! end point under test. [`parse`] turns the text into a [`Script`]. [`run`] runs it against an
//! [`EndPoint`]: the transport core with a virtual clock ([`core::Core`]), or a driver in a guest
//! through a helper ([`remote::Remote`]).

pub mod core;
pub mod endpoint;
pub mod packet;
pub mod parse;
pub mod remote;
pub mod run;
pub mod script;

pub use endpoint::EndPoint;
pub use parse::parse;
pub use run::run;
pub use script::Script;

use std::path::{Path, PathBuf};

/// Returns the paths of all scripts in the repository, sorted by name.
///
/// # Errors
///
/// Returns an error if the folder can't be read.
pub fn all() -> std::io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "rrx") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads and parses a script.
///
/// # Errors
///
/// Returns file, line and a hint for correction.
pub fn load(path: &Path) -> Result<Script, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    parse(&name, &text)
}

/// Runs a script against the core.
///
/// # Errors
///
/// Returns a description of the first deviation from the script.
pub fn run_on_core(script: &Script) -> Result<(), String> {
    let mut core = if script.strict {
        core::Core::strict()
    } else {
        core::Core::default()
    };
    run(script, &mut core)
}
