// SPDX-License-Identifier: GPL-2.0

//! Some seeds, as part of `cargo test`; the program runs many more.

/// A failure prints what replays it.
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

/// What happens follows from the seed.
#[test]
fn seeds_are_deterministic() {
    let runs = [(); 2].map(|()| rrxe_simulation::run(4711, false));
    assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
}
