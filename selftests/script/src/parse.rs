// SPDX-License-Identifier: GPL-2.0

//! The format: lines of words. Every mistake is found before anything runs, and told with file,
//! line, and what would be right.

use crate::endpoint::{QpSpec, State};
use crate::packet;

/// A script, ready to run.
#[derive(Debug)]
pub struct Script {
    /// The file's name, as it is told in messages.
    pub file: String,
    /// What it is about: the comment at its head.
    pub about: String,
    /// The statements that it tests.
    pub ids: Vec<String>,
    /// Why it runs over the core only.
    pub core_only: Option<String>,
    /// Why it runs in guests only.
    pub guest_only: Option<String>,
    pub lines: Vec<Line>,
}

/// One step, and where it is written.
#[derive(Debug)]
pub struct Line {
    pub number: usize,
    /// As written, with variables replaced.
    pub text: String,
    pub step: Step,
}

/// A number, or one that only the run knows: a region's address or key and something added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    pub region: Option<String>,
    pub number: u64,
}

/// The bytes of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Counting up from this byte.
    Count(u8),
    Bytes(Vec<u8>),
    /// What stands at this place of a region.
    Region(String, usize),
}

impl Data {
    /// `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        match self {
            Data::Count(first) => (0..len).map(|n| first.wrapping_add(n as u8)).collect(),
            Data::Bytes(bytes) => bytes.clone(),
            Data::Region(..) => Vec::new(),
        }
    }
}

/// A packet as it is written: to be sent, or to be expected.
#[derive(Clone, Debug, Default)]
pub struct PacketSpec {
    pub opcode: u8,
    pub fields: Vec<(String, Value)>,
    pub len: Option<usize>,
    pub data: Option<Data>,
    // Of packets to be sent.
    pub pad_byte: u8,
    pub pad_len: Option<usize>,
    pub cut: usize,
    pub no_icrc: bool,
    pub tail: usize,
    pub later: Vec<(String, Value)>,
    pub flip: Option<usize>,
    pub bad_icrc: bool,
    // Of packets to be expected.
    /// Earliest, in nanoseconds after what was last sent or expected.
    pub after: Option<u64>,
    /// Time may pass until it comes: at most this, in nanoseconds, where time is virtual.
    pub within: Option<u64>,
    /// Earlier acknowledgements may come before it.
    pub last: bool,
    /// The padding must be zero.
    pub zero_pad: bool,
}

/// A completion to be expected.
#[derive(Clone, Debug, Default)]
pub struct CompletionSpec {
    pub op: String,
    /// Any of these.
    pub statuses: Vec<String>,
    pub id: Option<u64>,
    pub len: Option<u32>,
    pub imm: Option<u32>,
    pub src_qpn: Option<u32>,
    pub data: Option<Data>,
    /// The buffer holds the IPv4 header of the last packet injected, where datagrams have it.
    pub ip_header: bool,
    /// As for packets.
    pub within: Option<u64>,
}

/// What a line asks for.
#[derive(Clone, Debug)]
pub enum Step {
    Qp(QpSpec),
    Region {
        name: String,
        len: usize,
        rights: String,
    },
    Deregister(String),
    Modify {
        state: State,
        spec: QpChange,
        refused: bool,
    },
    PostRecv {
        len: usize,
        bad_lkey: bool,
        refused: bool,
    },
    PostSend(SendSpec),
    Inject(PacketSpec),
    Advance(u64),
    SetNumber {
        region: String,
        offset: usize,
        number: u64,
    },
    ExpectPacket(PacketSpec),
    /// A packet that may come or not.
    MaybePacket(PacketSpec),
    ExpectNothing,
    ExpectCompletion(CompletionSpec),
    ExpectNoCompletion,
    ExpectState(State),
    ExpectPsn {
        sq: Option<u32>,
        rq: Option<u32>,
    },
    ExpectMemory {
        region: String,
        offset: usize,
        data: Vec<u8>,
    },
    ExpectEvent(String),
    ExpectNoEvent,
    /// All packets so far came from one UDP port in the range for that.
    ExpectOnePort,
    ExpectCounter {
        name: String,
        value: u64,
    },
}

/// Attributes that a `modify` changes.
pub type QpChange = Vec<(String, String)>;

/// A send work request as it is written.
#[derive(Clone, Debug, Default)]
pub struct SendSpec {
    pub op: String,
    pub len: usize,
    pub data: Option<Data>,
    pub va: Value,
    pub key: Value,
    pub imm: u32,
    pub compare: u64,
    pub swap: u64,
    pub qpn: Option<u32>,
    pub qkey: Option<u32>,
    pub unsignaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub bad_lkey: bool,
    pub refused: bool,
}

/// The name of the region that every script has: 64 KiB, for every kind of access.
pub const REGION: &str = "mr";
/// Its size.
pub const REGION_LEN: usize = 65536;

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

type Result<T> = std::result::Result<T, String>;

/// The words of a line, one after the other.
struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words {
            words: text.split_whitespace().collect(),
            at: 0,
        }
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// The next word, which must be there.
    fn need(&mut self, what: &str) -> Result<&'a str> {
        self.next()
            .ok_or_else(|| format!("the line ends where {what} is wanted"))
    }

    /// The next word, which must be one of these.
    fn one_of(&mut self, what: &str, known: &[&str]) -> Result<String> {
        let word = self.need(what)?;
        if known.contains(&word) {
            return Ok(word.into());
        }
        Err(format!(
            "`{word}` is no {what}; those are: {}",
            known.join(", ")
        ))
    }

    /// Takes the next word if it is this one.
    fn takes(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, what: &str) -> Result<Value> {
        value(self.need(what)?)
    }

    fn number(&mut self, what: &str) -> Result<u64> {
        let value = self.value(what)?;
        match value.region {
            Some(name) => Err(format!(
                "{what} is a plain number, not one of region {name}"
            )),
            None => Ok(value.number),
        }
    }

    fn int<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let number = self.number(what)?;
        T::try_from(number).map_err(|_| format!("{number} is too large for {what}"))
    }

    fn rest(&mut self) -> String {
        let rest = self.words[self.at..].join(" ");
        self.at = self.words.len();
        rest
    }

    fn end(&self) -> Result<()> {
        match self.peek() {
            Some(word) => Err(format!("`{word}` is one word too many")),
            None => Ok(()),
        }
    }
}

/// `100`, `0xff`, `100+2*3-1`, `10.9.0.1`, `mr`, `mr+8`.
fn value(text: &str) -> Result<Value> {
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

/// `67ms`, `10us`, `2s`, in nanoseconds.
fn time(text: &str) -> Result<u64> {
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

fn data(words: &mut Words<'_>, word: &str) -> Result<Option<Data>> {
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

/// The packet's name, with what its name says of the fields.
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

/// `NAME VALUE`, `NAME` alone for single bits.
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
    // Sequence numbers go round: 0-1 is the last.
    let rounds = value.number.wrapping_add(1 << 24) < 3 << 24;
    if matches!(name, "psn" | "msn") && value.region.is_none() && rounds {
        value.number &= 0x00ff_ffff;
    }
    if width < 64 && value.region.is_none() && value.number >> width != 0 {
        return Err(format!("{:#x} does not fit into {name}", value.number));
    }
    Ok((name.into(), value))
}

fn injected(words: &mut Words<'_>, class: &str) -> Result<PacketSpec> {
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

fn expected(words: &mut Words<'_>, class: &str) -> Result<PacketSpec> {
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

fn state(name: &str) -> Result<State> {
    State::from_name(name).ok_or_else(|| {
        format!(
            "`{name}` is no state; those are: {}",
            State::NAMES.join(", ")
        )
    })
}

/// `none`, or some of local, write, read, atomic with commas between.
fn rights(text: &str, local: bool) -> Result<String> {
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

fn attributes(words: &mut Words<'_>) -> Result<(QpChange, bool)> {
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

/// A status, or several with slashes between of which any will do.
fn statuses(words: &mut Words<'_>) -> Result<Vec<String>> {
    let all = words.need("a status")?;
    all.split('/')
        .map(|one| Words::new(one).one_of("status", &STATUSES))
        .collect()
}

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

const STEPS: &str =
    "qp, mr, deregister, set, modify, post, inject, advance, expect, maybe, for … end";

/// One line; `class` is the service of the queue pair in use.
fn step(words: &mut Words<'_>, class: &mut String) -> Result<Step> {
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

/// The values that a loop runs through.
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

/// Replaces variables and unrolls loops: line number and text.
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

/// Whether it has the form of a statement's id: a letter, a hyphen, digits.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(group, number)| {
        group.len() == 1
            && group.chars().all(|c| c.is_ascii_uppercase())
            && number.len() == 2
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

/// Reads a script. `file` is for messages.
///
/// # Errors
///
/// File, line, and what would be right.
pub fn parse(file: &str, text: &str) -> Result<Script> {
    let mut script = Script {
        file: file.into(),
        about: String::new(),
        ids: Vec::new(),
        core_only: None,
        guest_only: None,
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
