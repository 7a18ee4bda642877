// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Arithmetic on lengths and offsets in bytes, whose bounds other rules keep.

/// Returns the sum of lengths or offsets. They are lengths of headers, packets and memory that
/// exists, so the sum does not overflow.
#[inline]
pub fn total<const N: usize>(lengths: [usize; N]) -> usize {
    let mut sum = 0usize;
    for length in &lengths {
        debug_assert!(
            sum.checked_add(*length).is_some(),
            "a sum of lengths overflows"
        );
        sum = sum.wrapping_add(*length);
    }
    sum
}

/// Returns the length of `count` things of the same length, which does not overflow.
#[inline]
pub fn times(count: u32, length: u32) -> u64 {
    u64::from(count).wrapping_mul(length.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(total([]), 0);
        assert_eq!(total([12, 16, 4]), 32);
        assert_eq!(times(3, 4096), 12_288);
        assert_eq!(times(u32::MAX, u32::MAX), 0xffff_fffe_0000_0001);
    }
}
