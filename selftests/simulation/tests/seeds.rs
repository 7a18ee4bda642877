// SPDX-License-Identifier: GPL-2.0

//! The first thousand seeds, as part of `cargo test`. The program runs many more.

/// Prints the command that replays the seed if the test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay it: make replay SEED={}", self.0);
        }
    }
}

#[test]
fn a_thousand_seeds() {
    for seed in 0..1000 {
        let _seed = Seed(seed);
        rrxe_simulation::run(seed, false);
    }
}

/// A seed determines the whole run.
#[test]
fn seeds_are_deterministic() {
    let runs = [(); 2].map(|()| rrxe_simulation::run(4711, false));
    assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
}
