// SPDX-License-Identifier: GPL-2.0

//! The bytes that messages are made of.

use rrxe_testkit::Random;
use std::sync::OnceLock;

/// Size in bytes of the table that all message data comes from.
const TABLE: usize = 1 << 17;

fn table() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut random = Random::new(0x7272_7865);
        (0..TABLE / 8)
            .flat_map(|_| random.next_u64().to_le_bytes())
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
