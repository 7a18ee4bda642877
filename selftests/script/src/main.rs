// SPDX-License-Identifier: GPL-2.0

//! `rrxe_script FILE…` runs scripts against the core and prints the results. `rrxe_script --remote
//! FILE` runs one script against the end point at standard input and output. Its last line of
//! output is the result: `done ok`, or `done failed` followed by an explanation.

use rrxe_script::remote::Remote;
use std::path::Path;
use std::process::ExitCode;

fn remote(file: &str) -> Result<(), String> {
    let mut end = Remote::new(std::io::stdin().lock(), std::io::stdout())?;
    let script = rrxe_script::load(Path::new(file))?;
    rrxe_script::run(&script, &mut end)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, file] = arguments.as_slice() {
        if first == "--remote" {
            match remote(file) {
                Ok(()) => println!("done ok"),
                Err(why) => println!("done failed\n{why}"),
            }
            return ExitCode::SUCCESS;
        }
    }
    let mut failed = arguments.is_empty();
    for file in &arguments {
        let result = rrxe_script::load(Path::new(file)).and_then(|s| rrxe_script::run_on_core(&s));
        match result {
            Ok(()) => println!("ok {file}"),
            Err(why) => {
                failed = true;
                println!("FAIL {why}");
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
