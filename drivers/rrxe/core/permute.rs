// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A keyed permutation of 24-bit numbers. It makes queue pair numbers and memory keys hard to guess
//! although they derive from table indices.
//!
//! A Feistel network with two 12-bit halves permutes all 2^24 numbers. For a smaller domain the
//! permutation is repeated until the result is in the domain ("cycle walking"), which is again a
//! permutation. This prevents guesses by outsiders, but is not a cipher.

/// Number of rounds of the Feistel network.
const ROUNDS: usize = 8;

/// Number of bits in a half.
const HALF: u32 = 12;

const HALF_MASK: u32 = (1 << HALF) - 1;

/// A round function: over all keys, two different inputs have every pair of outputs with equal
/// probability (multiply, add, and take the highest bits: Dietzfelbinger 1996).
#[derive(Clone, Copy, Default)]
struct Round {
    factor: u64,
    addend: u64,
}

impl Round {
    #[inline]
    fn of(self, half: u32) -> u32 {
        debug_assert!(half <= HALF_MASK, "half of a number has 12 bits");
        let product = u64::from(half).wrapping_mul(self.factor);
        (product.wrapping_add(self.addend) >> (64 - HALF)) as u32
    }
}

/// A permutation of the numbers `first..=last`.
#[derive(Clone, Copy)]
pub struct Permutation {
    rounds: [Round; ROUNDS],
    first: u32,
    last: u32,
}

/// The SplitMix64 finalizer: every input bit affects every output bit.
#[inline]
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Permutation {
    /// Returns the permutation of `first..=last` for a random key. `None` if the range is empty,
    /// exceeds 24 bits, or has less than a sixteenth of all numbers (cycle walking takes long).
    pub fn new(key: [u64; 2], first: u32, last: u32) -> Option<Permutation> {
        let size = last.checked_sub(first)?;
        if last >= crate::psn::MODULUS || size < crate::psn::MODULUS / 16 {
            return None;
        }
        let [mut state, tweak] = key;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(mix(state) ^ tweak)
        };
        let rounds = core::array::from_fn(|_| Round {
            factor: next(),
            addend: next(),
        });
        Some(Permutation {
            rounds,
            first,
            last,
        })
    }

    #[inline]
    fn forward(&self, x: u32) -> u32 {
        let (mut l, mut r) = ((x >> HALF) & HALF_MASK, x & HALF_MASK);
        for round in &self.rounds {
            (l, r) = (r, l ^ round.of(r));
        }
        (l << HALF) | r
    }

    #[inline]
    fn backward(&self, x: u32) -> u32 {
        let (mut l, mut r) = ((x >> HALF) & HALF_MASK, x & HALF_MASK);
        for round in self.rounds.iter().rev() {
            (l, r) = (r ^ round.of(l), l);
        }
        (l << HALF) | r
    }

    #[inline]
    fn contains(&self, x: u32) -> bool {
        self.first <= x && x <= self.last
    }

    /// Steps until the number is in the domain. This terminates: a cycle that starts in the domain
    /// returns to its start at the latest. If the domain has nearly all numbers, steps are rare.
    #[cold]
    fn walk(&self, mut x: u32, step: impl Fn(&Self, u32) -> u32) -> u32 {
        while !self.contains(x) {
            x = step(self, x);
        }
        x
    }

    #[inline]
    fn map(&self, x: u32, step: impl Fn(&Self, u32) -> u32) -> Option<u32> {
        if !self.contains(x) {
            return None;
        }
        debug_assert!(self.last < crate::psn::MODULUS, "the domain has 24 bits");
        let y = step(self, x);
        debug_assert!(y < crate::psn::MODULUS, "the image has 24 bits");
        Some(if self.contains(y) {
            y
        } else {
            self.walk(y, step)
        })
    }

    /// Returns the image of `x`; `None` if `x` is not in the domain.
    #[inline]
    pub fn apply(&self, x: u32) -> Option<u32> {
        debug_assert!(
            !self.contains(x) || self.backward(self.forward(x)) == x,
            "the rounds are no permutation"
        );
        self.map(x, Self::forward)
    }

    /// Returns the number whose image is `y`; `None` if `y` is not in the domain.
    #[inline]
    pub fn invert(&self, y: u32) -> Option<u32> {
        self.map(y, Self::backward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    #[test]
    fn is_a_permutation_of_its_domain() {
        let (first, last) = (2, 0xff_fffe);
        let p = Permutation::new([1, 2], first, last).unwrap();
        let mut seen = vec![false; 1 << 24];
        for x in first..=last {
            let y = p.apply(x).unwrap();
            assert!((first..=last).contains(&y));
            assert!(!core::mem::replace(&mut seen[y as usize], true));
        }
        assert_eq!(p.apply(0), None);
        assert_eq!(p.invert(0xff_ffff), None);
    }

    #[test]
    fn neighbours_land_far_apart() {
        let p = Permutation::new([3, 4], 0, 0xff_ffff).unwrap();
        let close = (0..1000)
            .filter(|&x| p.apply(x).unwrap().abs_diff(p.apply(x + 1).unwrap()) < 0x1000)
            .count();
        assert!(close < 10, "{close} of 1000");
    }

    #[test]
    fn refuses_bad_domains() {
        assert!(Permutation::new([0, 0], 5, 4).is_none());
        assert!(Permutation::new([0, 0], 0, 1 << 24).is_none());
        assert!(Permutation::new([0, 0], 0, 1000).is_none());
    }

    proptest! {
        #[test]
        fn inverts(key: [u64; 2], first in 0u32..0x1000, x in 0x1000u32..0xff_0000) {
            let p = Permutation::new(key, first, 0xff_0000).unwrap();
            let y = p.apply(x).unwrap();
            prop_assert_eq!(p.invert(y), Some(x));
        }
    }
}
