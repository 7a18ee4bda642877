// SPDX-License-Identifier: GPL-2.0

//! The efficiency of flows that share a bottleneck, in simulated time.
//!
//! One seed decides everything: the flows, the path, and what disturbs them. A warm-up, a
//! disturbance and a quiet period follow each other, in which each flow always has work requests.
//! At the end all peers die. The checks panic on a violation. See docs/testing.md.

#[cfg(test)]
mod bottleneck;
mod checks;
mod config;
mod net;

use crate::Summary;
use checks::{Period, Report};
use config::Config;
use net::Net;
use rrxe_testkit::Random;

/// Runs a seed. Panics on any violation.
pub fn run(seed: u64, trace: bool) -> Summary {
    let mut random = Random::new(seed ^ 0x00ef_f1c1);
    let config = Config::new(&mut random);
    if trace {
        println!("{config:#?}");
    }
    let (mut net, report) = measure(config, random, trace);
    if trace {
        println!("{report:#?}");
    }
    checks::check(&report);
    checks::drain(&mut net);
    checks::lose_peers(&mut net);
    Summary {
        packets: net.counts.data + net.counts.returned,
        requests: net.counts.requests,
        nanoseconds: net.now,
    }
}

/// Runs the three phases, and measures each.
fn measure(config: Config, random: Random, trace: bool) -> (Net, Report) {
    let mut net = Net::new(config.clone(), random, trace);
    let [warm_up, disturbance, quiet] = config.times;
    let period = |net: &mut Net, time: u64| {
        let start = Period::start(net);
        let end = net.now + time;
        net.run_until(end);
        start.end(net)
    };
    let warm_up = period(&mut net, warm_up);
    net.path = config.paths[1];
    let adapting = period(&mut net, disturbance / 2);
    let disturbed = period(&mut net, disturbance / 2);
    net.path = config.paths[2];
    let settled = net.now + config.settle;
    net.run_until(settled);
    let quiet = period(&mut net, quiet - config.settle);
    let report = Report {
        config,
        warm_up,
        adapting,
        disturbed,
        quiet,
    };
    (net, report)
}
