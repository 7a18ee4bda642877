// SPDX-License-Identifier: GPL-2.0

//! Equality of states. Two states are equal if all their fields are. The core's types need no
//! traits for that: their `Debug` output contains every field.

use std::fmt::{self, Debug, Write};
use std::hash::Hasher;

/// Fields that do not influence future behaviour: statistics, and the measured rate, which is used
/// only after congestion notifications.
const LEFT_OUT: [&str; 2] = ["counters: ", "rate: "];

/// A 128-bit hash of a state.
pub type Key = [u64; 2];

/// Returns a hash of every field of `parts` that influences future behaviour.
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

/// Skips a field's value, printed as `Name { … }` or as a word, and returns the rest of the text.
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
