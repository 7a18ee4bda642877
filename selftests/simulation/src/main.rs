// SPDX-License-Identifier: GPL-2.0

//! Runs seeds of the simulation, or replays one with its packets.

use rrxe_simulation::Summary;
use std::panic::{catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: simulate [--efficiency] [--seeds FIRST..END] [--jobs N] [--group N] [--failures N]
       simulate [--efficiency] --replay SEED

  --efficiency  the simulation of flows through a bottleneck
  --seeds       the seeds, END not included (0..1000)
  --jobs        threads (as many as there are CPUs)
  --group       a line of its own for so many seeds, as cargo prints one for a test (10000)
  --failures    stop after so many seeds that fail (5)
  --replay      one seed, with everything that happens in it";

/// Command-line options.
struct Options {
    efficiency: bool,
    first: u64,
    end: u64,
    jobs: usize,
    group: u64,
    failures: usize,
    replay: Option<u64>,
}

impl Options {
    /// Runs a seed.
    fn run(&self, seed: u64, trace: bool) -> Summary {
        if self.efficiency {
            rrxe_simulation::efficiency::run(seed, trace)
        } else {
            rrxe_simulation::run(seed, trace)
        }
    }
}

fn options() -> Option<Options> {
    let mut options = Options {
        efficiency: false,
        first: 0,
        end: 1000,
        jobs: thread::available_parallelism().map_or(1, |n| n.get()),
        group: 10_000,
        failures: 5,
        replay: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--efficiency" {
            options.efficiency = true;
            continue;
        }
        let value = words.next()?;
        match word.as_str() {
            "--seeds" => {
                let (first, end) = value.split_once("..")?;
                options.first = first.parse().ok()?;
                options.end = end.parse().ok()?;
            }
            "--jobs" => options.jobs = value.parse().ok().filter(|&n| n > 0)?,
            "--group" => options.group = value.parse().ok().filter(|&n| n > 0)?,
            "--failures" => options.failures = value.parse().ok().filter(|&n| n > 0)?,
            "--replay" => options.replay = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(options)
}

/// State shared by all threads.
struct Shared {
    next: AtomicU64,
    done: AtomicU64,
    packets: AtomicU64,
    requests: AtomicU64,
    failed: Mutex<Vec<(u64, String)>>,
}

/// Returns the message of a panic.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(words), _) => words.clone(),
        (None, Some(words)) => (*words).to_string(),
        (None, None) => "a panic without words".to_string(),
    }
}

fn work(shared: &Shared, options: &Options) {
    loop {
        let seed = shared.next.fetch_add(1, Relaxed);
        if seed >= options.end {
            return;
        }
        match catch_unwind(|| options.run(seed, false)) {
            Ok(Summary {
                packets, requests, ..
            }) => {
                shared.packets.fetch_add(packets, Relaxed);
                shared.requests.fetch_add(requests, Relaxed);
            }
            Err(panic) => {
                let words = words(&*panic);
                let mut failed = shared.failed.lock().expect("nobody panics with it");
                println!("seed {seed}: {words}");
                let which = if options.efficiency {
                    " EFFICIENCY=1"
                } else {
                    ""
                };
                println!("    replay it: make replay SEED={seed}{which}");
                failed.push((seed, words));
                if failed.len() >= options.failures {
                    shared.next.store(options.end, Relaxed);
                }
            }
        }
        shared.done.fetch_add(1, Relaxed);
    }
}

/// Prints a progress line to standard error every five seconds.
fn report_progress(shared: &Shared, options: &Options, started: Instant) {
    let total = options.end.saturating_sub(options.first);
    let mut last = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(50));
        let done = shared.done.load(Relaxed);
        if done >= total || shared.next.load(Relaxed) >= options.end {
            return;
        }
        if last.elapsed() >= Duration::from_secs(5) {
            last = Instant::now();
            let seconds = started.elapsed().as_secs();
            let packets = shared.packets.load(Relaxed);
            eprintln!("simulation: {done} of {total} seeds, {packets} packets, {seconds} s");
        }
    }
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(seed) = options.replay {
        let summary = options.run(seed, true);
        println!("seed {seed} is clean: {summary:?}");
        return ExitCode::SUCCESS;
    }
    set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(options.first),
        done: AtomicU64::new(0),
        packets: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        failed: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| work(&shared, &options));
        }
        scope.spawn(|| report_progress(&shared, &options, started));
    });

    let failed = shared.failed.into_inner().expect("all threads have ended");
    let mut first = options.first;
    while first < options.end {
        let end = options.end.min(first.saturating_add(options.group));
        let bad = failed.iter().find(|(seed, _)| (first..end).contains(seed));
        // A run that was stopped early says nothing about the seeds that it did not reach.
        match bad {
            Some((seed, _)) => println!("test seeds-{first}-{} ... FAILED, seed {seed}", end - 1),
            None if failed.is_empty() => println!("test seeds-{first}-{} ... ok", end - 1),
            None => {}
        }
        first = end;
    }
    println!(
        "simulation: {} seeds, {} failed; {} packets, {} work requests; {:.1} s",
        shared.done.into_inner(),
        failed.len(),
        shared.packets.into_inner(),
        shared.requests.into_inner(),
        started.elapsed().as_secs_f64()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
