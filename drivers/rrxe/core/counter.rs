// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters that wrap: statistics, and positions in rings.

use core::cmp::Ordering;

/// A statistic: a number of events, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat(u32);

impl Stat {
    /// Returns the number of events.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Counts an event.
    #[inline]
    pub fn increment(&mut self) {
        self.add(1);
    }

    /// Counts `events` events.
    #[inline]
    pub fn add(&mut self, events: u32) {
        self.0 = self.0.wrapping_add(events);
    }
}

impl PartialEq<u32> for Stat {
    fn eq(&self, other: &u32) -> bool {
        self.0 == *other
    }
}

impl PartialOrd<u32> for Stat {
    fn partial_cmp(&self, other: &u32) -> Option<Ordering> {
        self.0.partial_cmp(other)
    }
}

/// A count with a bound below the maximum of its type.
pub trait Increment {
    /// Adds one.
    fn increment(&mut self);
}

macro_rules! impl_increment {
    ($($int:ty)*) => {$(
        impl Increment for $int {
            #[inline]
            fn increment(&mut self) {
                debug_assert!(*self != <$int>::MAX, "a count overflows");
                *self = self.wrapping_add(1);
            }
        }
    )*};
}

impl_increment!(u8 u32);

/// A number from which only as much as it has is subtracted.
pub trait Minus {
    /// Returns the difference, which is not negative.
    fn minus(self, less: Self) -> Self;
}

macro_rules! impl_minus {
    ($($int:ty)*) => {$(
        impl Minus for $int {
            #[inline]
            fn minus(self, less: $int) -> $int {
                debug_assert!(self >= less, "a difference is negative");
                self.checked_sub(less).unwrap_or(0)
            }
        }
    )*};
}

impl_minus!(u32 u64 usize);

/// A position in a ring: counts the entries before it since the ring was created, modulo 2^32.
///
/// The length of a ring is a power of two, so the low bits are the index of the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounter(u32);

impl RingCounter {
    /// Returns the position after this number of entries.
    #[inline]
    pub const fn new(entries: u32) -> RingCounter {
        RingCounter(entries)
    }

    /// Returns the number of entries before this position, modulo 2^32.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the position `entries` entries later.
    #[inline]
    pub const fn add(self, entries: u32) -> RingCounter {
        RingCounter(self.0.wrapping_add(entries))
    }

    /// Returns the position `entries` entries earlier.
    #[inline]
    pub const fn sub(self, entries: u32) -> RingCounter {
        RingCounter(self.0.wrapping_sub(entries))
    }

    /// Returns the position after the next entry.
    #[inline]
    pub const fn next(self) -> RingCounter {
        self.add(1)
    }

    /// Moves to the position after the next entry.
    #[inline]
    pub fn advance(&mut self) {
        *self = self.next();
    }

    /// Returns the number of entries from `base` to this position, modulo 2^32.
    #[inline]
    const fn distance(self, base: RingCounter) -> u32 {
        self.0.wrapping_sub(base.0)
    }

    /// Returns the number of entries from `base` to this position, which is not before `base`.
    #[inline]
    pub const fn since(self, base: RingCounter) -> u32 {
        let entries = self.distance(base);
        debug_assert!(
            entries <= u32::MAX >> 1,
            "a position in a ring is before its base"
        );
        entries
    }

    /// Returns the number of entries from `base` to this position; `None` if there are more than
    /// `capacity`, which only a counter that a program has written can claim.
    #[inline]
    pub const fn checked_since(self, base: RingCounter, capacity: u32) -> Option<u32> {
        let entries = self.distance(base);
        if entries <= capacity {
            Some(entries)
        } else {
            None
        }
    }

    /// Returns whether this position is one of the 2^31 - 1 positions after another.
    #[inline]
    pub const fn is_after(self, other: RingCounter) -> bool {
        matches!(self.distance(other), 1..=0x7fff_ffff)
    }

    /// Returns the index of the entry at this position in a ring of `len` entries, a power of two.
    #[inline]
    pub const fn index(self, len: usize) -> usize {
        debug_assert!(len.is_power_of_two(), "a ring of the wrong size");
        self.0 as usize & len.wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_wrap() {
        let mut stat = Stat::default();
        stat.add(u32::MAX);
        assert!(stat > 5);
        stat.increment();
        assert_eq!(stat, 0);
    }

    /// Positions before and after the wrap.
    #[test]
    fn positions() {
        for base in [0, 7, u32::MAX - 1, u32::MAX].map(RingCounter::new) {
            let mut position = base;
            for n in 0..4 {
                assert_eq!(position.since(base), n);
                assert_eq!(position, base.add(n));
                assert_eq!(position.sub(n), base);
                assert_eq!(position.is_after(base), n != 0);
                assert!(!base.is_after(position));
                assert_eq!(position.index(4), (base.index(4) + n as usize) % 4);
                position.advance();
            }
            assert_eq!(base.add(4).checked_since(base, 4), Some(4));
            assert_eq!(base.add(5).checked_since(base, 4), None);
            assert_eq!(base.checked_since(base.add(1), 4), None);
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a position in a ring is before its base")]
    fn crossed_positions() {
        RingCounter::new(1).since(RingCounter::new(2));
    }
}
