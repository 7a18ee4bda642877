// SPDX-License-Identifier: GPL-2.0

//! The first seeds, as part of `cargo test`. The program runs many more.

/// Prints the command that replays the seed if the test panics.
struct Seed(u64, &'static str);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay it: make replay SEED={}{}", self.0, self.1);
        }
    }
}

#[test]
fn a_thousand_seeds() {
    for seed in 0..1000 {
        let _seed = Seed(seed, "");
        rrxe_simulation::run(seed, false);
    }
}

#[test]
fn forty_seeds_of_flows() {
    for seed in 0..40 {
        let _seed = Seed(seed, " EFFICIENCY=1");
        rrxe_simulation::efficiency::run(seed, false);
    }
}

/// Flows whose round trips become longer than the probe timeout, so that each packet or each
/// message is acknowledged after a superfluous probe.
#[test]
fn flows_whose_probes_are_all_superfluous() {
    for seed in [2471, 8744, 8949, 17178, 19064] {
        let _seed = Seed(seed, " EFFICIENCY=1");
        rrxe_simulation::efficiency::run(seed, false);
    }
}

/// A seed determines the whole run.
#[test]
fn seeds_are_deterministic() {
    for run in [rrxe_simulation::run, rrxe_simulation::efficiency::run] {
        let runs = [(); 2].map(|()| run(4711, false));
        assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
    }
}
