// SPDX-License-Identifier: GPL-2.0

//! Runs every script of selftests/conformance against the core, one test per script.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;

fn outcome(path: &std::path::Path) -> Result<(), String> {
    let script = rrxe_script::load(path)?;
    if script.guest_only.is_some() {
        return Ok(());
    }
    rrxe_script::run_on_core(&script)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let list = arguments.iter().any(|a| a == "--list");
    let files = match rrxe_script::all() {
        Ok(files) => files,
        Err(why) => {
            println!("selftests/conformance: {why}");
            return ExitCode::FAILURE;
        }
    };
    let (mut ran, mut failures) = (0, Vec::new());
    for path in files {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        if list {
            println!("{name}: test");
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| outcome(&path)))
            .unwrap_or_else(|_| Err("panicked, see above".into()));
        match result {
            Ok(()) => match rrxe_script::load(&path).ok().and_then(|s| s.guest_only) {
                Some(why) => println!("test {name} ... ignored, in guests only: {why}"),
                None => println!("test {name} ... ok"),
            },
            Err(why) => {
                println!("test {name} ... FAILED");
                failures.push(format!("---- {name} ----\n{why}"));
            }
        }
        ran += 1;
    }
    for failure in &failures {
        println!("\n{failure}");
    }
    if !list {
        println!("\nscripts: {ran} run, {} failed", failures.len());
    }
    ExitCode::from(u8::from(!failures.is_empty()))
}
