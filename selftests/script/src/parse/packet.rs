// SPDX-License-Identifier: GPL-2.0

//! Parses packets, both injected and expected.

use super::words::{data, time, Words};
use super::Result;
use crate::packet;
use crate::script::{Data, PacketSpec, Value};

pub(super) fn injected(words: &mut Words<'_>, class: &str) -> Result<PacketSpec> {
    let mut spec = packet_name(words, class)?;
    let mut later = false;
    while let Some(word) = words.next() {
        match word {
            "then" => later = true,
            "flip-bit" => spec.flip = Some(words.int("the bit's number from the BTH on")?),
            _ if later => spec.later.push(field(words, word, spec.opcode)?),
            "len" => spec.len = Some(words.int("the payload's length")?),
            "fill" | "data" => spec.data = data(words, word)?,
            "pad-byte" => spec.pad_byte = words.int("what the padding is made of")?,
            "pad-len" => spec.pad_len = Some(words.int("how much padding there is")?),
            "cut" => spec.cut = words.int("bytes to take off the end")?,
            "tail" => spec.tail = words.int("bytes behind the datagram")?,
            "no-icrc" => spec.no_icrc = true,
            "icrc" => {
                words.one_of("state of an ICRC", &["bad"])?;
                spec.bad_icrc = true;
            }
            "no-ackreq" => spec.fields.push(("ackreq".into(), Value::default())),
            _ => spec.fields.push(field(words, word, spec.opcode)?),
        }
    }
    Ok(spec)
}

pub(super) fn expected(words: &mut Words<'_>, class: &str) -> Result<PacketSpec> {
    let last = words.takes("last");
    let mut spec = packet_name(words, class)?;
    spec.last = last;
    while let Some(word) = words.next() {
        match word {
            "len" => spec.len = Some(words.int("the payload's length")?),
            "fill" | "data" => spec.data = data(words, word)?,
            "from" => {
                let at = words.value("a place such as mr+100")?;
                let region = at
                    .region
                    .ok_or("a place names its region, such as mr+100")?;
                spec.data = Some(Data::Region(region, at.number as usize));
            }
            "after" => spec.after = Some(time(words.need("a time")?)?),
            "within" => spec.within = Some(time(words.need("a time")?)?),
            "zero-pad" => spec.zero_pad = true,
            "no-ackreq" => spec.fields.push(("ackreq".into(), Value::default())),
            _ => spec.fields.push(field(words, word, spec.opcode)?),
        }
    }
    Ok(spec)
}

/// Parses a packet name and sets the fields that it implies.
fn packet_name(words: &mut Words<'_>, class: &str) -> Result<PacketSpec> {
    let mut spec = PacketSpec::default();
    let word = words.need("the name of a packet")?;
    let mut put = |name: &str, number: u64| {
        spec.fields.push((
            name.into(),
            Value {
                region: None,
                number,
            },
        ));
    };
    spec.opcode = match word {
        "opcode" => {
            let byte: u8 = words.int("an opcode")?;
            put("opcode", byte.into());
            byte
        }
        "ack" => 0x11,
        "nak" => {
            let code = words.one_of("NAK", &packet::NAKS)?;
            let at = packet::NAKS.iter().position(|known| *known == code);
            put("syndrome", 0x60 + at.unwrap_or(0) as u64);
            0x11
        }
        "rnr-nak" => 0x11,
        name => packet::opcode(name, class).ok_or_else(|| {
            format!(
                "`{name}` is no packet; those are: ack, nak, rnr-nak, cnp, opcode N, {} (or of \
                 another service: uc.send-only)",
                packet::names().join(", ")
            )
        })?,
    };
    if word == "rnr-nak" {
        let mut timer = 12;
        if words.takes("timer") {
            timer = words.number("the RNR timer's code")?;
        }
        put("syndrome", 0x20 | timer);
    }
    if word == "ack" && !words.words.contains(&"credit") && !words.words.contains(&"syndrome") {
        put("syndrome", 0x1f);
    }
    Ok(spec)
}

/// Parses `NAME VALUE`, or `NAME` alone for single-bit fields.
fn field(words: &mut Words<'_>, name: &str, opcode: u8) -> Result<(String, Value)> {
    let Some(width) = packet::width(name) else {
        let mut names: Vec<_> = packet::FIELDS.iter().map(|f| f.name).collect();
        names.dedup();
        return Err(format!(
            "`{name}` is no field; those are: len, fill, data, {}",
            names.join(", ")
        ));
    };
    if !packet::has(opcode, name) {
        return Err(format!(
            "{} has no field {name}",
            packet::name(opcode, "rc")
        ));
    }
    let digit = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    if width == 1 && !words.peek().is_some_and(digit) {
        let one = Value {
            region: None,
            number: 1,
        };
        return Ok((name.into(), one));
    }
    let mut value = words.value(name)?;
    // Sequence numbers wrap around: 0-1 is the highest one.
    let rounds = value.number.wrapping_add(1 << 24) < 3 << 24;
    if matches!(name, "psn" | "msn") && value.region.is_none() && rounds {
        value.number &= 0x00ff_ffff;
    }
    if width < 64 && value.region.is_none() && value.number >> width != 0 {
        return Err(format!("{:#x} does not fit into {name}", value.number));
    }
    Ok((name.into(), value))
}
