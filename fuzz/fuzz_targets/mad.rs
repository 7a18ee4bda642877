// SPDX-License-Identifier: GPL-2.0

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rrxe_fuzz::mad::run(data));
