// SPDX-License-Identifier: GPL-2.0

//! Seeded randomness, and the bytes that messages are made of.

use std::sync::OnceLock;

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator whose output depends only on `seed`.
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed);
        random.0 = random.next() ^ seed;
        random
    }

    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `n` - 1; `n` must not be 0.
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// Returns a number from `from` to `to`, both inclusive.
    pub fn between(&mut self, from: u32, to: u32) -> u32 {
        from + self.below(to - from + 1)
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille != 0 && self.below(1000) < per_mille
    }

    /// Returns a random element of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// Size in bytes of the table that all message data comes from.
const TABLE: usize = 1 << 17;

fn table() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut random = Random::new(0x7272_7865);
        (0..TABLE / 8)
            .flat_map(|_| random.next().to_le_bytes())
            .collect()
    })
}

/// Returns `len` bytes of the random table, starting at `place`. Different places yield different
/// bytes. `len` is at most [`MAX_LENGTH`].
pub fn data(place: u32, len: u32) -> &'static [u8] {
    let start = place as usize % (TABLE - MAX_LENGTH as usize);
    &table()[start..start + len as usize]
}

/// Maximum length of a piece of [`data`].
pub const MAX_LENGTH: u32 = 1 << 15;
