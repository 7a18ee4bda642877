// SPDX-License-Identifier: GPL-2.0

//! Parses steps, one per line.

use super::attributes::{attributes, rights, set_attribute, state};
use super::packet::{expected, injected};
use super::words::{data, time, value, Words};
use super::Result;
use crate::endpoint::QpSpec;
use crate::script::{CompletionSpec, SendSpec, Step, REGION};

const STEPS: &str =
    "qp, mr, deregister, set, modify, post, inject, advance, expect, maybe, for … end";

/// Parses one line; `class` is the service of the current queue pair.
pub(super) fn step(words: &mut Words<'_>, class: &mut String) -> Result<Step> {
    let word = words.need("a step")?;
    let step = match word {
        "qp" => {
            let service = words.one_of("service", &["rc", "uc", "ud"])?;
            let mut spec = QpSpec {
                service: service.clone(),
                ..QpSpec::default()
            };
            for (name, text) in attributes(words)?.0 {
                set_attribute(&mut spec, &name, &text)?;
            }
            *class = service;
            Step::Qp(spec)
        }
        "mr" => {
            let name = words.need("a region's name")?.to_string();
            let len = words.int("its length")?;
            let rights = rights(words.need("rights")?, true)?;
            Step::Region { name, len, rights }
        }
        "deregister" => Step::Deregister(words.need("a region's name")?.into()),
        "set" => {
            let at = words.value("a place such as mr+8")?;
            Step::SetNumber {
                region: at.region.ok_or("a place names its region, such as mr+8")?,
                offset: at.number as usize,
                number: words.number("a number of 64 bits")?,
            }
        }
        "modify" => {
            let state = state(words.need("a state")?)?;
            let (spec, refused) = attributes(words)?;
            Step::Modify {
                state,
                spec,
                refused,
            }
        }
        "post" => post(words)?,
        "inject" => Step::Inject(injected(words, class)?),
        "advance" => Step::Advance(time(words.need("a time")?)?),
        "expect" => expect(words, class)?,
        "maybe" => Step::MaybePacket(expected(words, class)?),
        _ => return Err(format!("`{word}` is no step; those are: {STEPS}")),
    };
    words.end()?;
    Ok(step)
}

const SEND_OPS: [&str; 10] = [
    "send",
    "send-imm",
    "send-inv",
    "write",
    "write-imm",
    "read",
    "cmp-swap",
    "fetch-add",
    "flush",
    "atomic-write",
];

fn post(words: &mut Words<'_>) -> Result<Step> {
    if words.takes("recv") {
        let len = words.int("the buffer's length")?;
        let (mut bad_lkey, mut refused) = (false, false);
        while let Some(word) = words.next() {
            match word {
                "bad-lkey" => bad_lkey = true,
                "refused" => refused = true,
                _ => {
                    return Err(format!(
                        "`{word}` is no option; those are: bad-lkey, refused"
                    ))
                }
            }
        }
        return Ok(Step::PostRecv {
            len,
            bad_lkey,
            refused,
        });
    }
    let mut spec = SendSpec {
        op: words.one_of("work request (or recv)", &SEND_OPS)?,
        va: value(REGION)?,
        key: value(REGION)?,
        ..SendSpec::default()
    };
    let atomic = matches!(spec.op.as_str(), "cmp-swap" | "fetch-add");
    spec.len = if atomic {
        8
    } else {
        words.int("the message's length")?
    };
    while let Some(word) = words.next() {
        match word {
            "fill" | "data" => spec.data = data(words, word)?,
            "va" => spec.va = words.value("the remote address")?,
            "rkey" => spec.key = words.value("the remote key")?,
            "imm" => spec.imm = words.int("immediate data")?,
            "key" | "feth" => spec.imm = words.int("the key to invalidate")?,
            "compare" | "add" => spec.compare = words.number(word)?,
            "swap" => spec.swap = words.number(word)?,
            "qpn" => spec.qpn = Some(words.int(word)?),
            "qkey" => spec.qkey = Some(words.int(word)?),
            "unsignaled" => spec.unsignaled = true,
            "solicited" => spec.solicited = true,
            "fence" => spec.fence = true,
            "bad-lkey" => spec.bad_lkey = true,
            "refused" => spec.refused = true,
            _ => {
                return Err(format!(
                "`{word}` is no option; those are: fill, data, va, rkey, imm, key, compare, add, \
                     swap, feth, qpn, qkey, unsignaled, solicited, fence, bad-lkey, refused"
            ))
            }
        }
    }
    Ok(Step::PostSend(spec))
}

fn expect(words: &mut Words<'_>, class: &str) -> Result<Step> {
    match words.peek() {
        Some("nothing") => {
            words.next();
            Ok(Step::ExpectNothing)
        }
        Some("no") => {
            words.next();
            let what = words.one_of("thing to be absent", &["completion", "event"])?;
            Ok(if what == "event" {
                Step::ExpectNoEvent
            } else {
                Step::ExpectNoCompletion
            })
        }
        Some("completion") => {
            words.next();
            completion(words)
        }
        Some("state") => {
            words.next();
            Ok(Step::ExpectState(state(words.need("a state")?)?))
        }
        Some("memory") => {
            words.next();
            memory(words)
        }
        Some("one-source-port") => {
            words.next();
            Ok(Step::ExpectOnePort)
        }
        Some("event") => {
            words.next();
            Ok(Step::ExpectEvent(words.one_of("event", &EVENTS)?))
        }
        Some("counter") => {
            words.next();
            let name = words.one_of("counter", &COUNTERS)?;
            let value = words.number("its value")?;
            Ok(Step::ExpectCounter { name, value })
        }
        Some("sq-psn" | "rq-psn") => {
            let (mut sq, mut rq) = (None, None);
            while let Some(word) = words.next() {
                match word {
                    "sq-psn" => sq = Some(words.int(word)?),
                    "rq-psn" => rq = Some(words.int(word)?),
                    _ => return Err(format!("`{word}` stands where sq-psn or rq-psn is wanted")),
                }
            }
            Ok(Step::ExpectPsn { sq, rq })
        }
        _ => Ok(Step::ExpectPacket(expected(words, class)?)),
    }
}

const COMPLETIONS: [&str; 9] = [
    "send",
    "write",
    "read",
    "cmp-swap",
    "fetch-add",
    "flush",
    "atomic-write",
    "recv",
    "recv-write-imm",
];

const STATUSES: [&str; 13] = [
    "success",
    "loc-len",
    "loc-qp-op",
    "loc-prot",
    "wr-flush",
    "bad-resp",
    "loc-access",
    "rem-inv-req",
    "rem-access",
    "rem-op",
    "retry-exc",
    "rnr-retry-exc",
    "fatal",
];

fn completion(words: &mut Words<'_>) -> Result<Step> {
    let mut spec = CompletionSpec {
        op: words.one_of("kind of completion", &COMPLETIONS)?,
        statuses: statuses(words)?,
        ..CompletionSpec::default()
    };
    while let Some(word) = words.next() {
        match word {
            "id" => spec.id = Some(words.number(word)?),
            "len" => spec.len = Some(words.int(word)?),
            "imm" => spec.imm = Some(words.int(word)?),
            "src-qpn" => spec.src_qpn = Some(words.int(word)?),
            "fill" | "data" => spec.data = data(words, word)?,
            "ip-header" => spec.ip_header = true,
            "within" => spec.within = Some(time(words.need("a time")?)?),
            _ => {
                return Err(format!(
                    "`{word}` is nothing of a completion; that are: id, len, imm, src-qpn, fill, data, \
                     ip-header, within"
                ))
            }
        }
    }
    Ok(Step::ExpectCompletion(spec))
}

/// Parses a status, or several separated by slashes, any of which is accepted.
fn statuses(words: &mut Words<'_>) -> Result<Vec<String>> {
    let all = words.need("a status")?;
    all.split('/')
        .map(|one| Words::new(one).one_of("status", &STATUSES))
        .collect()
}

fn memory(words: &mut Words<'_>) -> Result<Step> {
    let at = words.value("a place such as mr+100")?;
    let region = at
        .region
        .ok_or("a place in memory names its region, such as mr+100")?;
    let offset = at.number as usize;
    let what = words.need("len, number or untouched")?;
    let data = match what {
        "untouched" => Vec::new(),
        "number" => words.number("a number of 64 bits")?.to_le_bytes().into(),
        "len" => {
            let len = words.int("a length")?;
            let word = words.need("fill or data")?;
            data(words, word)?
                .ok_or_else(|| format!("`{word}` stands where fill or data is wanted"))?
                .bytes(len)
        }
        _ => {
            return Err(format!(
                "`{what}` stands where len, number or untouched is wanted"
            ))
        }
    };
    Ok(Step::ExpectMemory {
        region,
        offset,
        data,
    })
}

const EVENTS: [&str; 7] = [
    "comm-est",
    "qp-access-err",
    "qp-req-err",
    "qp-fatal",
    "sq-drained",
    "qp-last-wqe-reached",
    "cq-err",
];

const COUNTERS: [&str; 3] = ["icrc-errors", "pkey-violations", "qkey-violations"];
