// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Partition keys (IBA 10.9).

/// The default partition with full membership: the only entry of a RoCE port's table.
pub const DEFAULT: u16 = 0xffff;

/// Returns whether members with these keys may communicate: both are in one partition, and at least
/// one is a full member (IBA 10.9.3).
#[inline]
pub const fn matches(a: u16, b: u16) -> bool {
    let full = (a | b) & 0x8000 != 0;
    (a ^ b) & 0x7fff == 0 && full
}

#[cfg(test)]
mod tests {
    use super::matches;

    ///
    #[test]
    fn a_26_membership() {
        assert!(matches(0xffff, 0xffff));
        assert!(matches(0x7fff, 0xffff));
        assert!(matches(0xffff, 0x7fff));
        assert!(!matches(0x7fff, 0x7fff));
        assert!(!matches(0x8001, 0x8002));
    }
}
