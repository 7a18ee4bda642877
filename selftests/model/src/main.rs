// SPDX-License-Identifier: GPL-2.0

//! Explores all interleavings of a few small messages between the core's requester and responder of
//! a reliable connection, over a network that may lose, duplicate and reorder some packets. See
//! docs/testing.md.

mod connection;
mod snapshot;

use connection::{Connection, Kind};
use stateright::{Checker, Model};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: explore [--messages N] [--losses N] [--duplicates N] [--overtakes N] [--timers N] [--jobs N]

  All sequences of N messages (2), of one or two packets, of every kind. What the network may do in
  each: lose packets (1), double them (1), let one overtake another (1); and timers that may fire
  although a response is on its way (1).";

fn options() -> Option<(usize, Connection, usize)> {
    let mut connection = Connection {
        kinds: Vec::new(),
        losses: 1,
        duplicates: 1,
        overtakes: 1,
        timers: 1,
    };
    let mut messages = 2;
    let mut jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value: u8 = words.next()?.parse().ok()?;
        match word.as_str() {
            "--messages" => messages = usize::from(value).clamp(1, 4),
            "--losses" => connection.losses = value,
            "--duplicates" => connection.duplicates = value,
            "--overtakes" => connection.overtakes = value,
            "--timers" => connection.timers = value,
            "--jobs" => jobs = usize::from(value.max(1)),
            _ => return None,
        }
    }
    // With fewer disturbances than retries, every message must succeed.
    let disturbances = [
        connection.losses,
        connection.duplicates,
        connection.overtakes,
    ];
    let sum: u32 = disturbances.iter().map(|&n| u32::from(n)).sum();
    if sum + u32::from(connection.timers) > 7 {
        eprintln!("seven disturbances at most: there are seven retries");
        return None;
    }
    Some((messages, connection, jobs))
}

fn main() -> ExitCode {
    let Some((messages, connection, jobs)) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let started = Instant::now();
    let mut said = started;
    let total = Kind::ALL.len().pow(messages as u32);
    let mut states = 0;
    for number in 0..total {
        let kinds: Vec<Kind> = (0..messages as u32)
            .map(|at| Kind::ALL[number / Kind::ALL.len().pow(at) % Kind::ALL.len()])
            .collect();
        let name = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>();
        let name = name.join("-");
        let model = Connection {
            kinds,
            ..connection.clone()
        };
        let checker = model.checker().threads(jobs).spawn_bfs().join();
        states += checker.unique_state_count();
        for (property, path) in checker.discoveries() {
            // `DONE` is a `sometimes` property: its discovery is a success.
            if property == connection::DONE {
                continue;
            }
            println!("test {name} ... FAILED, {property}");
            println!("{path}");
            if let Some(violation) = &path.last_state().violation {
                println!("{violation}");
            }
            return ExitCode::FAILURE;
        }
        if checker.discovery(connection::DONE).is_none() {
            println!("test {name} ... FAILED, nothing is ever done");
            return ExitCode::FAILURE;
        }
        println!("test {name} ... ok");
        if said.elapsed() >= Duration::from_secs(5) {
            said = Instant::now();
            let seconds = started.elapsed().as_secs();
            eprintln!(
                "model: {} of {total}, {states} states, {seconds} s",
                number + 1
            );
        }
    }
    println!(
        "model: {total} sequences of {messages} messages, {states} states; {:.1} s",
        started.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
