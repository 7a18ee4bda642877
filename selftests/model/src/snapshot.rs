// SPDX-License-Identifier: GPL-2.0

//! States are the same where their fields are. The core's types need no traits for that: what they
//! print for debugging has every field.

use std::fmt::{self, Debug, Write};
use std::hash::Hasher;

/// Fields that tell of the past and decide nothing: statistics, and the measured rate, which only
/// counts where congestion is notified.
const LEFT_OUT: [&str; 2] = ["counters: ", "rate: "];

/// 128 bits of a state.
pub type Key = [u64; 2];

/// What decides about the future in these.
pub fn key(parts: &[&dyn Debug]) -> Key {
    let mut text = String::with_capacity(4096);
    for part in parts {
        let _: fmt::Result = write!(text, "{part:?};");
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((at, name)) = LEFT_OUT
        .iter()
        .filter_map(|name| rest.find(name).map(|at| (at, name)))
        .min()
    {
        kept.push_str(&rest[..at]);
        rest = behind_value(&rest[at + name.len()..]);
    }
    kept.push_str(rest);
    let mut hashers = [
        std::hash::DefaultHasher::new(),
        std::hash::DefaultHasher::new(),
    ];
    hashers[1].write_u8(1);
    hashers.each_mut().map(|hasher| {
        hasher.write(kept.as_bytes());
        hasher.finish()
    })
}

/// What follows a value of a field, printed as `Name { … }` or as a word.
fn behind_value(text: &str) -> &str {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' if depth == 0 => return &text[at..],
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => return &text[at..],
            _ => {}
        }
    }
    ""
}
