// SPDX-License-Identifier: GPL-2.0

//! The share of a bottleneck that queue pairs use, and their fairness, with and without ECN.
//! `--nocapture` prints the table.

use super::checks::Period;
use super::config::{Config, Marking, Path, Peers, Trouble, MS};
use super::net::Net;
use rrxe_testkit::{Op, Random};

const MTU: u32 = 1024;
const MESSAGE: u32 = 65_536;

/// 10 Gbit/s, 50 us, with a queue of 400 packets.
const LONG: Path = Path {
    service: 870,
    delay: 25_000,
    back: 25_000,
    queue: 400,
    marking: Marking::None,
    loss: 0,
    back_loss: 0,
    spray: 0,
};

/// Returns flows of WRITEs, each with `depth` messages of 64 KiB under way, that start within
/// `spread` nanoseconds.
fn writes(path: Path, flows: usize, depth: usize, spread: u64, seed: u64) -> Net {
    let config = Config {
        flows,
        op: Op::Write,
        mtu: MTU,
        message: MESSAGE,
        depth,
        peers: Peers::Buffer,
        trouble: Trouble::Nothing,
        paths: [path; 3],
        times: [0; 3],
        settle: 0,
        spread,
        poll: 0,
        timeout: 14,
        retry_count: 7,
        longest: 0,
    };
    Net::new(config, Random(seed), false)
}

/// Runs for this time in nanoseconds, and measures after the first fifth of it.
fn run(net: &mut Net, time: u64) -> Period {
    let end = net.now + time;
    net.run_until(net.now + time / 5);
    let period = Period::start(net);
    net.run_until(end);
    period.end(net)
}

/// A row of the table: a path, the number of queue pairs, the smallest share of the link and the
/// largest share of dropped packets, both in percent.
type Row = (&'static str, Path, usize, u64, u64);

/// Runs queue pairs over a path for a second, and prints the result. Returns whether it is within
/// the limits.
fn is_within(row: Row) -> bool {
    let (name, path, flows, min_share, max_dropped) = row;
    let mut net = writes(path, flows, 16, 2 * MS, 7);
    let period = run(&mut net, 1000 * MS);
    let percent = |packets: u64, of: u64| packets as f64 / of as f64 * 100.0;
    let (share, fair) = (period.used * 100.0, period.fairness);
    let dropped = percent(net.counts.dropped, net.counts.data);
    println!(
        "{name}, {flows} queue pairs: {share:.1} % of the link (at least {min_share}), Jain {fair:.2}, {dropped:.1} % dropped (at most {max_dropped}), {:.1} % sent again",
        percent(period.retransmitted, period.counts.data)
    );
    share >= min_share as f64 && dropped <= max_dropped as f64 && fair >= 0.95
}

/// Without ECN, losses limit the senders.
#[test]
fn drop_tail() {
    let short = Path { queue: 100, ..LONG };
    let rows = [
        ("queue of 400 packets", LONG, 2, 90, 2),
        ("queue of 400 packets", LONG, 8, 90, 2),
        ("queue of 400 packets", LONG, 64, 90, 8),
        ("queue of 100 packets", short, 2, 90, 2),
        ("queue of 100 packets", short, 8, 90, 4),
    ];
    assert_eq!(rows.into_iter().filter(|row| !is_within(*row)).count(), 0);
}

/// A queue that marks packets as in the DCQCN paper.
#[test]
fn marking() {
    let marking = Marking::Red;
    let path = Path { marking, ..LONG };
    let rows = [2, 8, 32].map(|flows| {
        let (share, dropped) = if flows == 32 { (90, 3) } else { (93, 2) };
        ("RED from 5 to 200 packets", path, flows, share, dropped)
    });
    assert_eq!(rows.into_iter().filter(|row| !is_within(*row)).count(), 0);
}

/// Returns the share of the link that a queue pair uses over a round trip of 10 ms, after another
/// round trip at first.
fn after(delay: u64) -> f64 {
    let path = |delay| Path {
        queue: 8000,
        delay,
        back: delay,
        ..LONG
    };
    let mut net = writes(path(delay), 1, 128, 2 * MS, 1);
    net.run_until(net.now + 100 * MS);
    net.path = path(5 * MS);
    net.run_until(net.now + 500 * MS);
    run(&mut net, 500 * MS).used * 100.0
}

/// A connection whose path becomes longer is as fast as a new one.
#[test]
fn a_path_becomes_longer() {
    let (fresh, longer) = (after(5 * MS), after(25_000));
    println!("round trip 10 ms: {fresh:.1} % of the link, {longer:.1} % after 50 us");
    assert!(longer >= fresh * 0.95);
}

/// Returns the time in which a new queue pair sends this number of messages of 64 KiB over an idle
/// path.
fn first(messages: u64) -> u64 {
    let mut net = writes(LONG, 1, 16, 0, 1);
    let start = net.now;
    while net.counts.requests < messages {
        assert!(net.step(), "nothing happens any more");
    }
    net.now - start
}

/// Slow start costs a new queue pair little: the first 64 KiB are one flight.
#[test]
fn a_new_connection() {
    let (one, sixteen) = (first(1), first(16));
    println!(
        "first 64 KiB: {} us, first MiB: {} us",
        one / 1000,
        sixteen / 1000
    );
    // The time on the link, with the random gaps of the sender, and a round trip.
    assert!(one < 64 * 870 * 5 / 4 + 60_000, "{one}");
    assert!(sixteen < (1024 * 870 * 5 / 4 + 60_000) * 3 / 2, "{sixteen}");
}
