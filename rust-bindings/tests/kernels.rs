// SPDX-License-Identifier: GPL-2.0

//! Kernels for which the module is not built.

use std::path::Path;
use std::process::Command;

/// Returns whether Kbuild reads its file with this setting, and the last words of make.
fn reads(setting: &str) -> (bool, String) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let make = Command::new("make")
        .args(["-f", "Kbuild", "--eval=parsed:;", "parsed", setting])
        .current_dir(top)
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make runs");
    let words = String::from_utf8_lossy(&make.stderr).into_owned();
    (make.status.success(), words)
}

/// The build stops with a sentence before anything is compiled.
#[test]
fn real_time_kernels_are_refused() {
    let (reads_it, words) = reads("CONFIG_PREEMPT_RT=y");
    assert!(!reads_it);
    assert!(
        words.contains("rrxe does not support kernels with CONFIG_PREEMPT_RT=y"),
        "{words}"
    );
    for setting in ["CONFIG_PREEMPT_RT=", "CONFIG_PREEMPT_LAZY=y"] {
        let (reads_it, words) = reads(setting);
        assert!(reads_it, "{words}");
    }
}
