// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Points in time, and lengths of time. Both are in nanoseconds.

use core::ops::{Add, AddAssign, Div, Mul, Sub};

/// A point in time: nanoseconds of the driver's monotonic clock.
///
/// The clock ends after 584 years. Arithmetic on times asserts that no result is beyond that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The end of the clock.
    pub const END: Time = Time(u64::MAX);

    /// Returns the time at which the clock shows `ns` nanoseconds.
    #[inline]
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// Returns the nanoseconds that the clock shows at this time.
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns the time that has passed since `earlier`; none if that is later than this time. A
    /// CPU reads the clock before it locks a queue pair, so another CPU may have locked it first
    /// with a later time.
    #[inline]
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time after a wait; `None` if the clock ends before.
    #[inline]
    pub const fn checked_add(self, wait: Span) -> Option<Time> {
        match self.0.checked_add(wait.0) {
            Some(ns) => Some(Time(ns)),
            None => None,
        }
    }
}

impl Add<Span> for Time {
    type Output = Time;

    #[inline]
    fn add(self, wait: Span) -> Time {
        let time = self.checked_add(wait);
        debug_assert!(time.is_some(), "a time beyond the end of the clock");
        time.unwrap_or(Time::END)
    }
}

impl AddAssign<Span> for Time {
    #[inline]
    fn add_assign(&mut self, wait: Span) {
        *self = *self + wait;
    }
}

impl Sub<Span> for Time {
    type Output = Time;

    #[inline]
    fn sub(self, span: Span) -> Time {
        let ns = self.0.checked_sub(span.0);
        debug_assert!(ns.is_some(), "a time before the start of the clock");
        Time(ns.unwrap_or(0))
    }
}

/// A length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);

    /// Returns a span of nanoseconds.
    #[inline]
    pub const fn from_ns(ns: u64) -> Span {
        Span(ns)
    }

    /// Returns a span of microseconds.
    #[inline]
    pub const fn from_us(us: u32) -> Span {
        // Below 2^42.
        Span((us as u64).wrapping_mul(1000))
    }

    /// Returns the nanoseconds.
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns whether this is no time.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the difference to another span.
    #[inline]
    pub const fn abs_diff(self, other: Span) -> Span {
        Span(self.0.abs_diff(other.0))
    }

    /// Returns by how much this span is longer than another one; zero if it is not.
    #[inline]
    pub const fn beyond(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// Doubles the span `steps` times (exponential back-off). If the result would be longer than
    /// the longest span, it is that one, which no timeout reaches.
    #[inline]
    pub const fn doubled(self, steps: u32) -> Span {
        debug_assert!(steps < u64::BITS, "a back-off without end");
        Span(self.0.saturating_mul(1u64.wrapping_shl(steps)))
    }

    /// Returns how often `each` fits into the span; `None` if `each` is zero.
    #[inline]
    pub const fn checked_div(self, each: Span) -> Option<u64> {
        self.0.checked_div(each.0)
    }
}

impl Add for Span {
    type Output = Span;

    #[inline]
    fn add(self, other: Span) -> Span {
        let ns = self.0.checked_add(other.0);
        debug_assert!(ns.is_some(), "a sum of spans overflows");
        Span(ns.unwrap_or(u64::MAX))
    }
}

impl Sub for Span {
    type Output = Span;

    #[inline]
    fn sub(self, other: Span) -> Span {
        let ns = self.0.checked_sub(other.0);
        debug_assert!(ns.is_some(), "a negative span");
        Span(ns.unwrap_or(0))
    }
}

impl Mul<u32> for Span {
    type Output = Span;

    #[inline]
    fn mul(self, factor: u32) -> Span {
        let ns = self.0.checked_mul(factor.into());
        debug_assert!(ns.is_some(), "a multiple of a span overflows");
        Span(ns.unwrap_or(u64::MAX))
    }
}

impl Div<u32> for Span {
    type Output = Span;

    #[inline]
    fn div(self, parts: u32) -> Span {
        debug_assert!(parts != 0, "a span is divided by zero");
        Span(self.0.checked_div(parts.into()).unwrap_or(self.0))
    }
}

/// Returns the earliest of these times, or `None` if all are `None`.
///
/// [`Time::END`] counts as `None`. So each element costs a conditional move instead of branches.
#[inline]
pub fn earliest<const N: usize>(times: [Option<Time>; N]) -> Option<Time> {
    let earlier = |first: Time, time: Option<Time>| first.min(time.unwrap_or(Time::END));
    let first = times.into_iter().fold(Time::END, earlier);
    (first != Time::END).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Option<Time> {
        Some(Time::from_ns(ns))
    }

    #[test]
    fn the_earliest_of_several_times() {
        assert_eq!(earliest([]), None);
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([at(7), None, at(3), at(5)]), at(3));
        assert_eq!(earliest([at(0), None]), at(0));
        assert_eq!(earliest([None, at(u64::MAX - 1)]), at(u64::MAX - 1));
    }

    #[test]
    fn arithmetic() {
        let (start, wait) = (Time::from_ns(100), Span::from_us(3));
        assert_eq!(start + wait, Time::from_ns(3100));
        assert_eq!(start + wait - wait, start);
        assert_eq!((start + wait).since(start), wait);
        assert_eq!(start.since(start + wait), Span::ZERO);
        assert_eq!(start.checked_add(Span::from_ns(u64::MAX)), None);
        assert_eq!(wait * 4 - wait, wait + wait * 2);
        assert_eq!(wait * 7 / 8, Span::from_ns(2625));
        assert_eq!(
            (wait.beyond(wait * 2), (wait * 2).beyond(wait)),
            (Span::ZERO, wait)
        );
        assert_eq!(wait.abs_diff(wait * 3), wait * 2);
        assert_eq!(wait.doubled(3), wait * 8);
        assert_eq!(wait.doubled(63), Span::from_ns(u64::MAX));
        assert_eq!((wait * 7).checked_div(wait * 2), Some(3));
        assert_eq!(wait.checked_div(Span::ZERO), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a negative span")]
    fn negative_span() {
        let _ = Span::ZERO - Span::from_ns(1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a time beyond the end of the clock")]
    fn beyond_the_end_of_the_clock() {
        let _ = Time::END + Span::from_ns(1);
    }
}
