// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packet sequence numbers: 24 bits, modulo 2^24 (IBA 9.7.1).

/// Number of packet sequence numbers: 2^24.
pub const MODULUS: u32 = 1 << 24;

const MASK: u32 = 0x00ff_ffff;

/// Maximum number of outstanding packet sequence numbers: 2^23, so that the responder can tell old
/// ones from new ones (IBA 9.7.1).
pub const MAX_OUTSTANDING: u32 = 1 << 23;

/// A packet sequence number (or, with the same arithmetic, a message sequence number).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

/// Region of a PSN relative to the expected one (IBA 9.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The expected PSN.
    Expected,
    /// One of the 2^23 - 1 PSNs after it: packets in between are missing.
    Future,
    /// One of the 2^23 PSNs before it.
    Duplicate,
}

impl Psn {
    /// Returns the PSN of the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// Returns the value, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        debug_assert!(self.0 < MODULUS, "a PSN of more than 24 bits");
        self.0
    }

    /// Returns the PSN `n` later.
    #[inline]
    pub const fn add(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// Returns the PSN `n` earlier.
    #[inline]
    pub const fn sub(self, n: u32) -> Psn {
        debug_assert!(n < MODULUS, "a distance of more than all PSNs");
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// Returns the next PSN.
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// Returns the previous PSN.
    #[inline]
    pub const fn prev(self) -> Psn {
        self.sub(1)
    }

    /// Returns the forward distance from `base` to this PSN: 0 to 2^24 - 1.
    #[inline]
    pub const fn since(self, base: Psn) -> u32 {
        self.0.wrapping_sub(base.0) & MASK
    }

    /// Returns whether this PSN is one of the 2^23 PSNs after another.
    #[inline]
    pub const fn is_after(self, other: Psn) -> bool {
        matches!(self.since(other), 1..=MAX_OUTSTANDING)
    }

    /// Returns the region of this PSN relative to the expected one.
    #[inline]
    pub const fn region(self, expected: Psn) -> Region {
        match self.since(expected) {
            0 => Region::Expected,
            n if n < MAX_OUTSTANDING => Region::Future,
            _ => Region::Duplicate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// B-01: the borders of both regions, with the expected PSN at the edges of the number space.
    #[test]
    fn b_01_regions() {
        for e in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let e = Psn::new(e);
            assert_eq!(e.region(e), Region::Expected);
            assert_eq!(e.add(1).region(e), Region::Future);
            assert_eq!(e.add(MAX_OUTSTANDING - 1).region(e), Region::Future);
            assert_eq!(e.add(MAX_OUTSTANDING).region(e), Region::Duplicate);
            assert_eq!(e.sub(MAX_OUTSTANDING).region(e), Region::Duplicate);
            assert_eq!(e.sub(1).region(e), Region::Duplicate);
        }
    }

    #[test]
    fn only_24_bits() {
        assert_eq!(Psn::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
    }

    proptest! {
        #[test]
        fn add_and_since_are_inverse(base: u32, n in 0..MODULUS) {
            let base = Psn::new(base);
            prop_assert_eq!(base.add(n).since(base), n);
            prop_assert_eq!(base.add(n).sub(n), base);
        }
    }
}
