// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Text without allocation, and the lines that the provider writes to standard error.

use crate::ffi::os;
use core::fmt::{self, Write};

/// Text of at most `N` bytes. Longer text is cut off.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    /// Formats `text`.
    pub(crate) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut new = Self {
            bytes: [0; N],
            length: 0,
        };
        // Writing does not fail.
        let _ = new.write_fmt(text);
        new
    }

    /// Returns the text.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns the text, followed by zeros.
    pub(crate) fn into_bytes(self) -> [u8; N] {
        self.bytes
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(text.bytes()) {
            *to = from;
            self.length = self.length.wrapping_add(1);
        }
        Ok(())
    }
}

/// Writes a line to standard error, if that is possible: the program continues in any case.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let line = Text::<512>::new(format_args!("librrxe: {text}\n"));
    os::write_to_stderr(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_off() {
        let text = Text::<4>::new(format_args!("{}.{}", 1, 2));
        assert_eq!(text.as_bytes(), b"1.2");
        assert_eq!(text.into_bytes(), *b"1.2\0");
        let text = Text::<4>::new(format_args!("{}.{}", 123, 45));
        assert_eq!(text.as_bytes(), b"123.");
    }
}
