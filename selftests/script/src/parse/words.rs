// SPDX-License-Identifier: GPL-2.0

//! Splits lines into words and parses names, numbers, times and bytes.

use super::Result;
use crate::packet;
use crate::script::{Data, Value};

/// An iterator over the words of a line.
pub(super) struct Words<'a> {
    pub(super) words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Words<'a> {
        Words {
            words: text.split_whitespace().collect(),
            at: 0,
        }
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Returns the next word, or an error at the end of the line.
    pub(super) fn need(&mut self, what: &str) -> Result<&'a str> {
        self.next()
            .ok_or_else(|| format!("the line ends where {what} is wanted"))
    }

    /// Returns the next word, or an error if it is not one of `known`.
    pub(super) fn one_of(&mut self, what: &str, known: &[&str]) -> Result<String> {
        let word = self.need(what)?;
        if known.contains(&word) {
            return Ok(word.into());
        }
        Err(format!(
            "`{word}` is no {what}; those are: {}",
            known.join(", ")
        ))
    }

    /// Consumes the next word if it is `word`.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn value(&mut self, what: &str) -> Result<Value> {
        value(self.need(what)?)
    }

    pub(super) fn number(&mut self, what: &str) -> Result<u64> {
        let value = self.value(what)?;
        match value.region {
            Some(name) => Err(format!(
                "{what} is a plain number, not one of region {name}"
            )),
            None => Ok(value.number),
        }
    }

    pub(super) fn int<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let number = self.number(what)?;
        T::try_from(number).map_err(|_| format!("{number} is too large for {what}"))
    }

    pub(super) fn rest(&mut self) -> String {
        let rest = self.words[self.at..].join(" ");
        self.at = self.words.len();
        rest
    }

    pub(super) fn end(&self) -> Result<()> {
        match self.peek() {
            Some(word) => Err(format!("`{word}` is one word too many")),
            None => Ok(()),
        }
    }
}

/// Parses a value: `100`, `0xff`, `100+2*3-1`, `10.9.0.1`, `mr`, `mr+8`.
pub(super) fn value(text: &str) -> Result<Value> {
    let mut result = Value::default();
    if let Ok(address) = text.parse::<std::net::Ipv4Addr>() {
        result.number = u32::from(address).into();
        return Ok(result);
    }
    let wrong = || {
        format!(
            "`{text}` is no number; right are 100, 0xff, 100+2*3, mr+8 (of region mr), 10.9.0.1"
        )
    };
    let mut rest = text;
    let mut minus = false;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (term, more) = rest.split_at(end);
        let mut product: Option<u64> = None;
        for factor in term.split('*') {
            let number = if let Some(digits) = factor.strip_prefix("0x") {
                u64::from_str_radix(&digits.replace('_', ""), 16).ok()
            } else {
                factor.replace('_', "").parse().ok()
            };
            match number {
                Some(n) => product = Some(product.map_or(n, |p| p.wrapping_mul(n))),
                None if factor.chars().all(|c| c.is_ascii_alphanumeric())
                    && factor.starts_with(|c: char| c.is_ascii_alphabetic())
                    && result.region.is_none()
                    && !minus =>
                {
                    result.region = Some(factor.into());
                    product = Some(0);
                }
                None => return Err(wrong()),
            }
        }
        let product = product.ok_or_else(wrong)?;
        result.number = if minus {
            result.number.wrapping_sub(product)
        } else {
            result.number.wrapping_add(product)
        };
        match more.chars().next() {
            None => return Ok(result),
            Some(sign) => {
                minus = sign == '-';
                rest = &more[1..];
            }
        }
    }
}

/// Parses a time such as `67ms`, `10us` or `2s`. Returns nanoseconds.
pub(super) fn time(text: &str) -> Result<u64> {
    let wrong = || format!("`{text}` is no time; right are 67ms, 0.01ms, 10us, 2s, 500ns");
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Ok((number * unit).round() as u64)
}

pub(super) fn data(words: &mut Words<'_>, word: &str) -> Result<Option<Data>> {
    Ok(Some(match word {
        "fill" => Data::Count(words.int("the byte that the payload counts up from")?),
        "data" => {
            let digits = words.need("hexadecimal digits")?;
            Data::Bytes(
                packet::unhex(digits)
                    .ok_or_else(|| format!("`{digits}` are no pairs of hexadecimal digits"))?,
            )
        }
        _ => return Ok(None),
    }))
}
