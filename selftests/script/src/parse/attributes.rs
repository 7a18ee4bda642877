// SPDX-License-Identifier: GPL-2.0

//! Parses attributes of queue pairs, states, and rights of regions.

use super::words::Words;
use super::Result;
use crate::endpoint::{QpSpec, State};
use crate::script::QpChange;

const ATTRIBUTES: [&str; 13] = [
    "sq-psn",
    "rq-psn",
    "mtu",
    "timeout",
    "retry",
    "rnr-retry",
    "rnr-timer",
    "rd-atomic",
    "dest-rd-atomic",
    "access",
    "qkey",
    "state",
    "refused",
];

/// Sets an attribute of a queue pair.
pub fn set_attribute(spec: &mut QpSpec, name: &str, text: &str) -> Result<()> {
    let mut words = Words::new(text);
    match name {
        "sq-psn" => spec.sq_psn = words.int(name)?,
        "rq-psn" => spec.rq_psn = words.int(name)?,
        "mtu" => {
            spec.mtu = words
                .one_of("MTU", &["256", "512", "1024", "2048", "4096"])?
                .parse()
                .unwrap_or(0);
        }
        "timeout" => spec.timeout = words.int(name)?,
        "retry" => spec.retry = words.int(name)?,
        "rnr-retry" => spec.rnr_retry = words.int(name)?,
        "rnr-timer" => spec.rnr_timer = words.int(name)?,
        "rd-atomic" => spec.rd_atomic = words.int(name)?,
        "dest-rd-atomic" => spec.dest_rd_atomic = words.int(name)?,
        "qkey" => spec.qkey = words.int(name)?,
        "access" => spec.access = rights(words.need("rights")?, false)?,
        "state" => spec.state = state(words.need("a state")?)?,
        _ => {
            return Err(format!(
                "`{name}` is no attribute; those are: {}",
                ATTRIBUTES.join(", ")
            ))
        }
    }
    Ok(())
}

pub(super) fn attributes(words: &mut Words<'_>) -> Result<(QpChange, bool)> {
    let (mut changes, mut refused) = (Vec::new(), false);
    while let Some(name) = words.next() {
        if name == "refused" {
            refused = true;
            continue;
        }
        let text = words.need(name)?;
        set_attribute(&mut QpSpec::default(), name, text)?;
        changes.push((name.into(), text.into()));
    }
    Ok((changes, refused))
}

pub(super) fn state(name: &str) -> Result<State> {
    State::from_name(name).ok_or_else(|| {
        format!(
            "`{name}` is no state; those are: {}",
            State::NAMES.join(", ")
        )
    })
}

/// Parses access rights: `none`, or a comma-separated list of local, write, read, atomic, flush,
/// persist.
pub(super) fn rights(text: &str, local: bool) -> Result<String> {
    let mut found = String::new();
    for right in text.split(',') {
        match right {
            "none" => {}
            "local" if local => found.push('l'),
            "write" => found.push('w'),
            "read" => found.push('r'),
            "atomic" => found.push('a'),
            "flush" => found.push('f'),
            "persist" => found.push('p'),
            _ => {
                return Err(format!(
                    "`{right}` is no right; those are: none, {}write, read, atomic, flush, persist, with commas between",
                    if local { "local, " } else { "" }
                ))
            }
        }
    }
    Ok(found)
}
