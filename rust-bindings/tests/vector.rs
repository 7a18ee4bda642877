// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Compares the driver's x86-64 routines for CRC and copy, which only the kernel uses, with the
//! portable ones.
#![cfg(target_arch = "x86_64")]

#[path = "../crc32/fold.rs"]
mod fold;

#[path = "../vector/copy.rs"]
mod copy;

use proptest::prelude::*;
use rrxe_testkit::crc32_le;

/// Returns whether the CPU has the required instructions. Without them, the kernel's own tests skip
/// the routines, too.
fn cpu_can() -> bool {
    is_x86_feature_detected!("avx") && is_x86_feature_detected!("pclmulqdq")
}

proptest! {
    #[test]
    fn as_the_core(
        crc: u32,
        bytes in prop::collection::vec(any::<u8>(), fold::MIN_LEN..1500),
    ) {
        prop_assume!(cpu_can());
        let whole = bytes.len() & !15;
        let expected = crc32_le(crc, &bytes[..whole]);
        // SAFETY: A slice is valid for reads; the CPU has the instructions.
        let sum = unsafe { fold::crc32(crc, bytes.as_ptr(), bytes.len()) };
        prop_assert_eq!(sum, expected);
    }

    #[test]
    fn a_copy_is_the_same(
        bytes in prop::collection::vec(any::<u8>(), copy::BLOCK..2500),
        shift in 0usize..32,
    ) {
        prop_assume!(cpu_can());
        let mut to = vec![0x5a; bytes.len() + 32];
        // SAFETY: A slice is valid for reads, and the CPU has the instructions. `to` has room for
        // `bytes.len()` bytes at `shift`.
        unsafe { copy::copy(to.as_mut_ptr().add(shift), bytes.as_ptr(), bytes.len()) };
        let (before, rest) = to.split_at(shift);
        let (copied, behind) = rest.split_at(bytes.len());
        prop_assert_eq!(copied, &bytes[..]);
        prop_assert!(before.iter().chain(behind).all(|byte| *byte == 0x5a));
    }
}
