// SPDX-License-Identifier: GPL-2.0

//! Runs a case for a given number of rounds while `selftests/run bench-core` counts instructions.

use rrxe_core_bench::cases;
use std::process::ExitCode;

const USAGE: &str = "usage: core-bench --list | core-bench ROUNDS CASE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => {
            for case in cases() {
                println!("{}\t{}", case.packets, case.name);
            }
            ExitCode::SUCCESS
        }
        [rounds, name] => match run(rounds, name) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("core-bench: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(rounds: &str, name: &str) -> Result<(), String> {
    let rounds: u32 = rounds
        .parse()
        .map_err(|_| format!("{rounds} is no number of rounds"))?;
    let case = cases()
        .into_iter()
        .find(|case| case.name == name)
        .ok_or_else(|| format!("there is no case '{name}': core-bench --list has all"))?;
    let mut round = case.start();
    for _ in 0..rounds {
        round.round();
    }
    match round.fault() {
        Some(fault) => Err(format!("{name}: {fault}")),
        None => Ok(()),
    }
}
