// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Points in time: nanoseconds of the driver's monotonic clock.

/// Returns the earliest of these times, or `None` if all are `None`.
///
/// `u64::MAX`, which the clock reaches after 584 years, counts as `None`. So each element costs a
/// conditional move instead of branches.
#[inline]
pub fn earliest<const N: usize>(times: [Option<u64>; N]) -> Option<u64> {
    let earlier = |first: u64, time: Option<u64>| first.min(time.unwrap_or(u64::MAX));
    let first = times.into_iter().fold(u64::MAX, earlier);
    (first != u64::MAX).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::earliest;

    #[test]
    fn the_earliest_of_several_times() {
        assert_eq!(earliest([]), None);
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([Some(7), None, Some(3), Some(5)]), Some(3));
        assert_eq!(earliest([Some(0), None]), Some(0));
        assert_eq!(earliest([None, Some(u64::MAX - 1)]), Some(u64::MAX - 1));
    }
}
