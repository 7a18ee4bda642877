// SPDX-License-Identifier: GPL-2.0

//! The parser: a script is made of lines of words. Errors are found before anything runs, and
//! reported with file, line and a hint for correction.

mod attributes;
mod packet;
mod step;
mod words;

pub use attributes::set_attribute;

use crate::script::{Line, Script};
use step::step;
use words::{value, Words};

type Result<T> = std::result::Result<T, String>;

/// Parses a script. `file` is the name used in messages.
///
/// # Errors
///
/// Returns file, line and a hint for correction.
pub fn parse(file: &str, text: &str) -> Result<Script> {
    let mut script = Script {
        file: file.into(),
        about: String::new(),
        ids: Vec::new(),
        core_only: None,
        guest_only: None,
        strict: false,
        lines: Vec::new(),
    };
    let wrong = |number: usize, why: String| format!("{file}:{number}: {why}");
    let mut lines = Vec::new();
    let mut head = true;
    for (at, raw) in text.lines().enumerate() {
        let number = at + 1;
        if let Some(words) = raw.strip_prefix('#').filter(|_| head) {
            if !words.contains("SPDX") {
                script.about = format!("{} {}", script.about, words.trim());
            }
            continue;
        }
        let line = raw.split(" #").next().unwrap_or("").trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        head = false;
        let mut words = Words::new(line);
        match words.next() {
            Some("tests") => {
                while let Some(word) = words.next() {
                    if !is_id(word) {
                        let why = format!("`{word}` is no statement; right is: tests B-08 B-09");
                        return Err(wrong(number, why));
                    }
                    script.ids.push(word.into());
                }
            }
            Some(mark @ ("core-only" | "guest-only")) => {
                let why = words.rest();
                if why.is_empty() {
                    return Err(wrong(number, format!("{mark} is followed by the reason")));
                }
                if mark == "core-only" {
                    script.core_only = Some(why);
                } else {
                    script.guest_only = Some(why);
                }
            }
            Some("recovery") => {
                if words.rest() != "strict" {
                    let why = "`recovery` is followed by `strict`";
                    return Err(wrong(number, why.into()));
                }
                script.strict = true;
            }
            _ => lines.push((number, line.to_string())),
        }
    }
    script.about = script.about.trim().to_string();
    if script.about.is_empty() {
        return Err(wrong(
            1,
            "a script begins with a comment: what it is about".into(),
        ));
    }
    if script.ids.is_empty() {
        return Err(wrong(
            1,
            "no statement is named; right is: tests B-08 B-09".into(),
        ));
    }
    let mut flat = Vec::new();
    unroll(&lines, &mut flat, &[]).map_err(|(number, why)| wrong(number, why))?;
    let mut class = String::new();
    for (number, text) in flat {
        let step = step(&mut Words::new(&text), &mut class).map_err(|why| wrong(number, why))?;
        if class.is_empty() {
            return Err(wrong(
                number,
                "no queue pair yet; right is first: qp rc (or uc, ud)".into(),
            ));
        }
        script.lines.push(Line { number, text, step });
    }
    Ok(script)
}

/// Returns whether a word has the form of a statement id: a letter, a hyphen, two digits.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(group, number)| {
        group.len() == 1
            && group.chars().all(|c| c.is_ascii_uppercase())
            && number.len() == 2
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

/// Replaces variables and unrolls loops. Appends line numbers and texts to `out`.
fn unroll(
    lines: &[(usize, String)],
    out: &mut Vec<(usize, String)>,
    variables: &[(String, String)],
) -> std::result::Result<(), (usize, String)> {
    let mut at = 0;
    while let Some((number, raw)) = lines.get(at) {
        let mut text = raw.clone();
        for (name, value) in variables {
            text = text.replace(&format!("${name}"), value);
        }
        let words: Vec<_> = text.split_whitespace().collect();
        at += 1;
        if words.first() != Some(&"for") {
            if words.first() == Some(&"end") {
                return Err((*number, "`end` without a `for`".into()));
            }
            out.push((*number, text));
            continue;
        }
        let mut depth = 1;
        let from = at;
        while depth > 0 {
            let Some((_, inner)) = lines.get(at) else {
                return Err((*number, "the loop has no `end`".into()));
            };
            match inner.split_whitespace().next() {
                Some("for") => depth += 1,
                Some("end") => depth -= 1,
                _ => {}
            }
            at += 1;
        }
        let [_, name, "in", values @ ..] = words.as_slice() else {
            return Err((
                *number,
                "a loop begins: for NAME in VALUE… (or 1..15)".into(),
            ));
        };
        for value in loop_values(values).map_err(|why| (*number, why))? {
            let mut inner = variables.to_vec();
            inner.push(((*name).into(), value));
            unroll(&lines[from..at - 1], out, &inner)?;
        }
    }
    Ok(())
}

/// Returns the values that a loop iterates over.
fn loop_values(words: &[&str]) -> Result<Vec<String>> {
    let mut values = Vec::new();
    for word in words {
        match word.split_once("..") {
            None => values.push((*word).to_string()),
            Some((from, to)) => {
                let (from, to) = (value(from)?.number, value(to)?.number);
                values.extend((from..=to).map(|n| n.to_string()));
            }
        }
    }
    Ok(values)
}
