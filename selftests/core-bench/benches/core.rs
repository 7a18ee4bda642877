// SPDX-License-Identifier: GPL-2.0

//! Measures the cases by wall-clock time.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use rrxe_core_bench::cases;

fn core(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core");
    for case in cases() {
        let mut round = case.start();
        group.throughput(Throughput::Elements(case.packets.into()));
        group.bench_function(case.name, |bencher| bencher.iter(|| round.round()));
        assert_eq!(round.fault(), None, "{}", case.name);
    }
    group.finish();
}

criterion_group!(benches, core);
criterion_main!(benches);
