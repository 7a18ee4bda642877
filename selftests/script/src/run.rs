// SPDX-License-Identifier: GPL-2.0

//! Runs a script: speaks as the peer, and compares what the end point does with what is expected.

use crate::endpoint::{
    Completion, EndPoint, QpSpec, Refused, Region, SendPost, State, Wait, PEER_QPN,
};
use crate::packet::{self, Recipe, Seen};
use crate::parse::{
    self, CompletionSpec, Data, Line, PacketSpec, Script, SendSpec, Step, Value, REGION, REGION_LEN,
};
use std::collections::VecDeque;
use std::fmt::Write as _;

type Result<T> = std::result::Result<T, String>;

/// How much later than its earliest moment a packet may come, where time is virtual.
const LATEST: u64 = 4;

/// Into how many pieces the time is cut in which something may come, where time is virtual.
const STEPS: u64 = 1000;

/// A region, and what it must hold.
struct Memory {
    name: String,
    region: Region,
    shadow: Vec<u8>,
}

/// A run in progress.
struct Run<'a> {
    end: &'a mut dyn EndPoint,
    spec: QpSpec,
    qpn: u32,
    memory: Vec<Memory>,
    /// Packets that were looked at and left.
    pending: VecDeque<(u64, Seen)>,
    /// Packets that are expected not before this.
    earliest: u64,
    /// The last packet injected.
    injected: Vec<u8>,
    /// UDP source ports of the packets that came.
    ports: Vec<u64>,
    sends: Vec<SendPost>,
    recvs: Vec<usize>,
    /// The last completions' identifiers: of receives, of sends.
    last_id: [u64; 2],
    /// The conversation so far.
    log: Vec<String>,
}

/// Runs a script.
///
/// # Errors
///
/// What is different from what the script says: file, line, both packets, the conversation.
pub fn run(script: &Script, end: &mut dyn EndPoint) -> std::result::Result<(), String> {
    let mut run = Run {
        end,
        spec: QpSpec::default(),
        qpn: 0,
        memory: Vec::new(),
        pending: VecDeque::new(),
        earliest: 0,
        injected: Vec::new(),
        ports: Vec::new(),
        sends: Vec::new(),
        recvs: Vec::new(),
        last_id: [0; 2],
        log: Vec::new(),
    };
    for line in &script.lines {
        run.line(line).map_err(|why| {
            let place = format!("{}:{}: {}", script.file, line.number, line.text);
            run.report(&place, &why)
        })?;
    }
    run.finish()
        .map_err(|why| run.report(&format!("{}: at the end", script.file), &why))
}

/// `count` bytes in which each has another neighbourhood.
fn initial(count: usize) -> Vec<u8> {
    (0..count)
        .map(|n| (n.wrapping_mul(7).wrapping_add(n >> 8) as u8) ^ 0x55)
        .collect()
}

impl Run<'_> {
    fn report(&self, place: &str, why: &str) -> String {
        let mut text = format!("{place}\n{why}\nthe conversation:\n");
        for line in &self.log {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        let at = line.number;
        match &line.step {
            Step::Inject(_) => {}
            Step::ExpectPacket(_) | Step::MaybePacket(_) => {}
            _ => self.log.push(format!("{at:4}      {}", line.text)),
        }
        match &line.step {
            Step::Qp(spec) => self.queue_pair(spec),
            Step::Region { name, len, rights } => self.region(name, *len, rights),
            Step::Deregister(name) => {
                let at = self.find(name)?;
                let id = self.memory[at].region.id;
                self.end.deregister(id)
            }
            Step::SetNumber {
                region,
                offset,
                number,
            } => self.set(region, *offset, &number.to_le_bytes()),
            Step::Modify {
                state,
                spec,
                refused,
            } => {
                for (name, text) in spec {
                    parse::set_attribute(&mut self.spec, name, text)?;
                }
                let result = self.end.modify(*state, &self.spec);
                if *state == State::Reset && result.is_ok() {
                    self.sends.clear();
                    self.recvs.clear();
                    self.last_id = [0; 2];
                }
                verdict(result, *refused)
            }
            Step::PostRecv {
                len,
                bad_lkey,
                refused,
            } => {
                self.act()?;
                let id = self.recvs.len() as u64 + 1;
                let result = self.end.post_recv(id, *len, *bad_lkey);
                if !refused {
                    self.recvs.push(*len);
                }
                verdict(result, *refused)
            }
            Step::PostSend(spec) => self.post(spec),
            Step::Inject(spec) => self.inject(at, spec),
            Step::Advance(time) => self.end.advance(*time),
            Step::ExpectPacket(spec) => self.expect_packet(at, spec, &line.text),
            Step::MaybePacket(spec) => self.maybe_packet(at, spec),
            Step::ExpectNothing => self.expect_nothing(),
            Step::ExpectCompletion(spec) => self.expect_completion(spec),
            Step::ExpectNoCompletion => self.expect_no_completion(false),
            Step::ExpectState(state) => self.expect_state(*state),
            Step::ExpectPsn { sq, rq } => {
                let found = self.end.query()?;
                same("sq-psn", sq.map(u64::from), found.sq_psn.into())?;
                same("rq-psn", rq.map(u64::from), found.rq_psn.into())
            }
            Step::ExpectMemory {
                region,
                offset,
                data,
            } => {
                let at = self.find(region)?;
                let shadow = &mut self.memory[at].shadow;
                let place = shadow
                    .get_mut(*offset..*offset + data.len())
                    .ok_or_else(|| format!("region {region} is not that long"))?;
                place.copy_from_slice(data);
                self.check_memory()
            }
            Step::ExpectEvent(name) => match self.end.event(Wait::Due)? {
                Some(found) if found == *name => Ok(()),
                Some(found) => Err(format!("expected event {name}\nreal     event {found}")),
                None => Err(format!("expected event {name}\nreal     none")),
            },
            Step::ExpectNoEvent => match self.end.event(Wait::Silence)? {
                None => Ok(()),
                Some(found) => Err(format!("expected no event\nreal     event {found}")),
            },
            Step::ExpectOnePort => self.one_port(),
            Step::ExpectCounter { name, value } => {
                let found = self.end.counter(name)?;
                same(name, Some(*value), found)
            }
        }
    }

    fn one_port(&self) -> Result<()> {
        let Some(first) = self.ports.first() else {
            return Err("no packet has come".into());
        };
        if *first < 0xc000 {
            return Err(format!("UDP source port {first} is below 0xc000"));
        }
        match self.ports.iter().find(|port| *port != first) {
            Some(other) => Err(format!("UDP source ports {first} and {other}")),
            None => Ok(()),
        }
    }

    /// Something is about to be done: what follows comes after this moment.
    fn act(&mut self) -> Result<()> {
        self.earliest = self.end.now()?;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.memory
            .iter()
            .position(|memory| memory.name == name)
            .ok_or_else(|| {
                format!("there is no region {name}; right is first: mr {name} 4096 read")
            })
    }

    fn region(&mut self, name: &str, len: usize, rights: &str) -> Result<()> {
        let shadow = initial(len);
        let region = self.end.region(&shadow, rights)?;
        self.memory.push(Memory {
            name: name.into(),
            region,
            shadow,
        });
        Ok(())
    }

    fn set(&mut self, name: &str, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.find(name)?;
        let memory = &mut self.memory[at];
        let place = memory
            .shadow
            .get_mut(offset..offset + bytes.len())
            .ok_or_else(|| format!("region {name} is not that long"))?;
        place.copy_from_slice(bytes);
        self.end.set_memory(memory.region.id, offset, bytes)
    }

    fn queue_pair(&mut self, spec: &QpSpec) -> Result<()> {
        self.finish()?;
        self.memory.clear();
        self.pending.clear();
        self.ports.clear();
        self.sends.clear();
        self.recvs.clear();
        self.last_id = [0; 2];
        self.spec = spec.clone();
        self.qpn = self.end.queue_pair(spec)?;
        self.region(REGION, REGION_LEN, "lwra")?;
        for state in [State::Init, State::Rtr, State::Rts] {
            if state <= spec.state {
                verdict(self.end.modify(state, spec), false)?;
            }
        }
        if spec.state > State::Rts {
            verdict(self.end.modify(spec.state, spec), false)?;
        }
        self.act()
    }

    /// A number, with what a region adds to it.
    fn resolve(&self, name: &str, value: &Value) -> Result<u64> {
        let Some(region) = &value.region else {
            return Ok(value.number);
        };
        let region = &self.memory[self.find(region)?].region;
        match name {
            "va" => Ok(region.va.wrapping_add(value.number)),
            "rkey" => Ok(u64::from(region.rkey).wrapping_add(value.number) & 0xffff_ffff),
            "key" => Ok(u64::from(region.rkey).wrapping_add(value.number) & 0xffff_ffff),
            _ => Err(format!("{name} is a plain number, none of a region")),
        }
    }

    fn post(&mut self, spec: &SendSpec) -> Result<()> {
        self.act()?;
        let data = spec.data.clone().unwrap_or(Data::Count(0x10));
        let post = SendPost {
            id: self.sends.len() as u64 + 1,
            op: spec.op.clone(),
            data: match spec.op.as_str() {
                "read" | "cmp-swap" | "fetch-add" | "flush" => vec![0xee; spec.len],
                _ => data.bytes(spec.len),
            },
            va: self.resolve("va", &spec.va)?,
            rkey: self.resolve("rkey", &spec.key)? as u32,
            imm: spec.imm,
            compare: spec.compare,
            swap: spec.swap,
            qpn: spec.qpn.unwrap_or(PEER_QPN),
            qkey: spec.qkey.unwrap_or(self.spec.qkey),
            signaled: !spec.unsignaled,
            solicited: spec.solicited,
            fence: spec.fence,
            bad_lkey: spec.bad_lkey,
        };
        let result = self.end.post_send(&post);
        if !spec.refused {
            self.sends.push(post);
        }
        verdict(result, spec.refused)
    }

    fn class(&self) -> &'static str {
        match self.spec.service.as_str() {
            "uc" => "uc",
            "ud" => "ud",
            _ => "rc",
        }
    }

    fn inject(&mut self, at: usize, spec: &PacketSpec) -> Result<()> {
        let (peer, own) = self.end.addresses();
        let operation = spec.opcode & 0x1f;
        let request = !matches!(operation, 0x0d..=0x12);
        let ends = matches!(operation, 0x02..=0x05 | 0x08..=0x0c | 0x13..=0x1d);
        let mut fields: Vec<(String, u64)> = vec![
            ("ip-src".into(), u32::from(peer).into()),
            ("ip-dst".into(), u32::from(own).into()),
            ("qpn".into(), self.qpn.into()),
            (
                "ackreq".into(),
                u64::from(request && ends && spec.opcode < 0x20),
            ),
            ("qkey".into(), self.spec.qkey.into()),
            ("src-qpn".into(), PEER_QPN.into()),
            ("syndrome".into(), 0x1f),
        ];
        let len = spec.len.unwrap_or(match (&spec.data, operation) {
            (Some(Data::Bytes(bytes)), _) => bytes.len(),
            (_, 0x00 | 0x01 | 0x06 | 0x07 | 0x0d | 0x0e) => self.spec.mtu as usize,
            (_, 0x0c | 0x11..=0x14 | 0x1c) => 0,
            (_, 0x1d) => 8,
            _ if spec.opcode == 0x81 => 0,
            _ => 64,
        });
        let region = &self.memory[self.find(REGION)?].region;
        fields.push(("va".into(), region.va));
        fields.push(("rkey".into(), region.rkey.into()));
        fields.push(("dlen".into(), len as u64));
        for (name, value) in &spec.fields {
            fields.push((name.clone(), self.resolve(name, value)?));
        }
        let mut later = Vec::new();
        for (name, value) in &spec.later {
            later.push((name.clone(), self.resolve(name, value)?));
        }
        let data = spec.data.clone().unwrap_or(Data::Count(0xa0));
        let bytes = Recipe {
            opcode: spec.opcode,
            fields,
            payload: data.bytes(len),
            pad_byte: spec.pad_byte,
            pad_len: spec.pad_len,
            cut: spec.cut,
            no_icrc: spec.no_icrc,
            tail: spec.tail,
            later,
            flip: spec.flip,
            bad_icrc: spec.bad_icrc,
        }
        .build();
        let seen = Seen {
            bytes: bytes.clone(),
            class: self.class(),
        };
        self.log.push(format!("{at:4}  --> {seen}"));
        self.act()?;
        self.injected.clone_from(&bytes);
        self.end.inject(&bytes)
    }

    /// The next packet, if there is one.
    fn next(&mut self, wait: Wait) -> Result<Option<(u64, Seen)>> {
        if let Some(found) = self.pending.pop_front() {
            return Ok(Some(found));
        }
        let class = self.class();
        let found = self.end.packet(wait)?;
        Ok(found.map(|(time, bytes)| {
            let seen = Seen { bytes, class };
            self.ports.extend(seen.get("udp-src"));
            (time, seen)
        }))
    }

    fn expect_packet(&mut self, at: usize, spec: &PacketSpec, text: &str) -> Result<()> {
        self.earliest += spec.after.unwrap_or(0);
        let mut found = self.next(Wait::Due)?;
        if let Some(after) = spec.after.filter(|_| self.end.virtual_time()) {
            for _ in 0..LATEST {
                if found.is_none() {
                    self.end.advance(after)?;
                    found = self.next(Wait::Due)?;
                }
            }
        }
        if let Some(within) = spec.within.filter(|_| self.end.virtual_time()) {
            for _ in 0..STEPS {
                if found.is_none() {
                    self.end.advance(within / STEPS)?;
                    found = self.next(Wait::Due)?;
                }
            }
        }
        loop {
            let Some((time, seen)) = found else {
                let table = self.table(spec, None)?;
                self.log.push(format!("{at:4}  <-- (nothing)  {text}"));
                return Err(table);
            };
            let differences = self.differences(spec, &seen)?;
            self.log.push(format!("{at:4}  <-- {seen}"));
            let earlier = spec.last && seen.name() == "ack";
            if !differences.is_empty() && earlier {
                found = self.next(Wait::Due)?;
                continue;
            }
            if !differences.is_empty() {
                return self.table(spec, Some(&seen)).and_then(Err);
            }
            if spec.after.is_some() && time < self.earliest {
                let early = (self.earliest - time) as f64 / 1e6;
                return Err(format!("that packet came {early} ms too early"));
            }
            return Ok(());
        }
    }

    fn maybe_packet(&mut self, at: usize, spec: &PacketSpec) -> Result<()> {
        if let Some((time, seen)) = self.next(Wait::Silence)? {
            if self.differences(spec, &seen)?.is_empty() {
                self.log.push(format!("{at:4}  <-- {seen}"));
            } else {
                self.pending.push_front((time, seen));
            }
        }
        Ok(())
    }

    fn expect_nothing(&mut self) -> Result<()> {
        match self.next(Wait::Silence)? {
            None => Ok(()),
            Some((_, seen)) => {
                let text = format!("expected nothing\nreal     {seen}");
                self.log.push(format!("      <-- {seen}"));
                Err(text)
            }
        }
    }

    /// What is expected of a packet, by name: with the value as text.
    fn rows(&self, spec: &PacketSpec) -> Result<Vec<(String, u64)>> {
        let mut rows = vec![("opcode".to_string(), u64::from(spec.opcode))];
        let said = |name: &str| spec.fields.iter().any(|(known, _)| known == name);
        if self.spec.service != "ud" && !said("qpn") && spec.opcode != 0x81 {
            rows.push(("qpn".into(), PEER_QPN.into()));
        }
        if !said("version") {
            rows.push(("version".into(), 0));
        }
        for (name, value) in &spec.fields {
            rows.push((name.clone(), self.resolve(name, value)?));
        }
        Ok(rows)
    }

    fn wanted_payload(&self, spec: &PacketSpec, seen: &Seen) -> Result<Option<Vec<u8>>> {
        let len = spec.len.unwrap_or(seen.payload().len());
        match &spec.data {
            None => Ok(None),
            Some(Data::Region(name, offset)) => {
                let shadow = &self.memory[self.find(name)?].shadow;
                let bytes = shadow.get(*offset..*offset + len);
                Ok(Some(bytes.ok_or("the region is not that long")?.to_vec()))
            }
            Some(data) => Ok(Some(data.bytes(len))),
        }
    }

    /// The names of what differs.
    fn differences(&self, spec: &PacketSpec, seen: &Seen) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, value) in self.rows(spec)? {
            let found = seen.get(&name);
            // `ack` stands for any acknowledgement, however many credits it grants.
            let any_ack = name == "syndrome" && value == 0x1f && !self.exact_credit(spec);
            let same = if any_ack {
                found.is_some_and(|syndrome| syndrome < 0x20)
            } else {
                found == Some(value)
            };
            if !same {
                names.push(name);
            }
        }
        if spec.len.is_some_and(|len| len != seen.payload().len()) {
            names.push("len".into());
        }
        if let Some(wanted) = self.wanted_payload(spec, seen)? {
            if wanted != seen.payload() {
                names.push("payload".into());
            }
        }
        if spec.zero_pad && seen.padding().iter().any(|byte| *byte != 0) {
            names.push("padding".into());
        }
        if !seen.icrc_is_right() {
            names.push("icrc".into());
        }
        Ok(names)
    }

    /// Whether the script itself names the syndrome's credits.
    fn exact_credit(&self, spec: &PacketSpec) -> bool {
        spec.fields
            .iter()
            .any(|(name, _)| name == "credit" || name == "timer")
    }

    /// Both packets side by side.
    fn table(&self, spec: &PacketSpec, seen: Option<&Seen>) -> Result<String> {
        let mut text = format!("  {:10} {:>20}   {:>20}\n", "", "expected", "real");
        let mut row = |name: &str, wanted: &str, real: &str, differs: bool| {
            let mark = if differs { "  <<<" } else { "" };
            let _ = writeln!(text, "  {name:10} {wanted:>20}   {real:>20}{mark}");
        };
        let class = self.class();
        let name = packet::name(spec.opcode, class);
        let Some(seen) = seen else {
            row("", &name, "nothing", true);
            for (name, value) in self.rows(spec)? {
                row(&name, &packet::show(&name, value), "", false);
            }
            return Ok(text);
        };
        let differences = self.differences(spec, seen)?;
        let differs = |name: &str| differences.iter().any(|known| known == name);
        row(
            "",
            &name,
            &packet::name(seen.opcode(), class),
            differs("opcode"),
        );
        let rows = self.rows(spec)?;
        for field in packet::FIELDS {
            let wanted = rows.iter().find(|(name, _)| name == field.name);
            let real = seen.get(field.name);
            let transport = !matches!(field.header, packet::Header::Ip | packet::Header::Udp);
            let has = packet::headers(seen.opcode()).contains(&field.header)
                || packet::headers(spec.opcode).contains(&field.header) && wanted.is_some();
            if field.name != "opcode" && has && (transport && real.is_some() || wanted.is_some()) {
                let show = |value: u64| packet::show(field.name, value);
                row(
                    field.name,
                    &wanted.map_or(String::new(), |(_, value)| show(*value)),
                    &real.map_or(String::new(), show),
                    differs(field.name),
                );
            }
        }
        let len = spec.len.map_or(String::new(), |len| len.to_string());
        row(
            "len",
            &len,
            &seen.payload().len().to_string(),
            differs("len"),
        );
        if let Some(wanted) = self.wanted_payload(spec, seen)? {
            let at = wanted
                .iter()
                .zip(seen.payload())
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            row(
                &format!("from +{at}"),
                &packet::hex(&wanted[at.min(wanted.len())..], 8),
                &packet::hex(&seen.payload()[at.min(seen.payload().len())..], 8),
                differs("payload"),
            );
        }
        if differs("padding") {
            row("padding", "00", &packet::hex(seen.padding(), 3), true);
        }
        row(
            "icrc",
            "right",
            if seen.icrc_is_right() {
                "right"
            } else {
                "wrong"
            },
            differs("icrc"),
        );
        Ok(text)
    }

    fn expect_completion(&mut self, spec: &CompletionSpec) -> Result<()> {
        let send = !spec.op.starts_with("recv");
        let wanted = format!("expected {} {}", spec.op, spec.statuses.join("/"));
        let mut found = self.end.completion(send, Wait::Due)?;
        if let Some(within) = spec.within.filter(|_| self.end.virtual_time()) {
            for _ in 0..STEPS {
                if found.is_none() {
                    self.end.advance(within / STEPS)?;
                    found = self.end.completion(send, Wait::Due)?;
                }
            }
        }
        let Some(found) = found else {
            return Err(format!("{wanted}\nreal     no completion"));
        };
        let op = if found.status == "success" {
            found.op.clone()
        } else if send {
            // Of a failure, verbs tell only which request it was.
            let posted = self.sends.get(found.id.wrapping_sub(1) as usize);
            posted.map_or("?".into(), |post| completes_as(&post.op).into())
        } else {
            spec.op.clone()
        };
        let real = format!(
            "real     {op} {} id {} len {}",
            found.status, found.id, found.len
        );
        if op != spec.op || !spec.statuses.contains(&found.status) {
            return Err(format!("{wanted}\n{real}"));
        }
        let last = &mut self.last_id[usize::from(send)];
        if found.id <= *last {
            return Err(format!(
                "{real}\nafter the completion of id {last}: twice, or out of order"
            ));
        }
        *last = found.id;
        same("id", spec.id, found.id)?;
        same("len", spec.len.map(u64::from), found.len.into())?;
        if let Some(imm) = spec.imm {
            let real = found.imm.ok_or("expected immediate data; there is none")?;
            same("imm", Some(imm.into()), real.into())?;
        }
        same("src-qpn", spec.src_qpn.map(u64::from), found.src_qpn.into())?;
        self.check_buffer(spec, &found)
    }

    /// What the buffer of a completion holds.
    fn check_buffer(&self, spec: &CompletionSpec, found: &Completion) -> Result<()> {
        if spec.ip_header && found.data.get(20..40) != self.injected.get(..20) {
            let real = packet::hex(found.data.get(20..40).unwrap_or(&[]), 20);
            let wanted = packet::hex(&self.injected, 20);
            return Err(format!("the IP header\nexpected {wanted}\nreal     {real}"));
        }
        let Some(data) = &spec.data else {
            return Ok(());
        };
        // Datagrams have 40 bytes before them.
        let front = if self.spec.service == "ud" && spec.op == "recv" {
            40
        } else {
            0
        };
        let len = found.len as usize;
        let real = found.data.get(front..len).unwrap_or(&[]);
        let wanted = data.bytes(len.saturating_sub(front));
        if real != wanted {
            let at = real
                .iter()
                .zip(&wanted)
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            return Err(format!(
                "the buffer from byte {at} on\nexpected {}\nreal     {}",
                packet::hex(&wanted[at..], 16),
                packet::hex(real.get(at..).unwrap_or(&[]), 16)
            ));
        }
        match found
            .data
            .get(len..)
            .unwrap_or(&[])
            .iter()
            .position(|b| *b != 0xee)
        {
            Some(at) => Err(format!(
                "byte {} of the buffer, behind the message, was written to",
                len + at
            )),
            None => Ok(()),
        }
    }

    fn expect_no_completion(&mut self, flushed: bool) -> Result<()> {
        for send in [true, false] {
            while let Some(found) = self.end.completion(send, Wait::Silence)? {
                // A receive may also end with the request that was refused.
                let refused = !send && found.status == "rem-inv-req";
                if !(flushed && (refused || found.status == "wr-flush")) {
                    return Err(format!(
                        "expected no completion\nreal     {} queue: id {} {} {} len {}",
                        if send { "send" } else { "receive" },
                        found.id,
                        found.op,
                        found.status,
                        found.len
                    ));
                }
            }
        }
        Ok(())
    }

    fn expect_state(&mut self, state: State) -> Result<()> {
        let mut found = self.end.query()?.state;
        for _ in 0..200 {
            if found == state || self.end.virtual_time() {
                break;
            }
            self.end.advance(20_000_000)?;
            found = self.end.query()?.state;
        }
        if found == state {
            return Ok(());
        }
        Err(format!(
            "expected state {}\nreal     state {}",
            state.name(),
            found.name()
        ))
    }

    /// Where time is real, what was sent last may not be there yet: no answer may have been asked for.
    fn check_memory(&mut self) -> Result<()> {
        let mut verdict = self.compare_memory();
        for _ in 0..200 {
            if verdict.is_ok() || self.end.virtual_time() {
                break;
            }
            self.end.advance(20_000_000)?;
            verdict = self.compare_memory();
        }
        verdict
    }

    fn compare_memory(&mut self) -> Result<()> {
        for memory in &self.memory {
            let found = self.end.memory(memory.region.id, memory.shadow.len())?;
            let at = found.iter().zip(&memory.shadow).position(|(a, b)| a != b);
            if let Some(at) = at {
                return Err(format!(
                    "region {} from byte {at} on\nexpected {}\nreal     {}",
                    memory.name,
                    packet::hex(&memory.shadow[at..], 16),
                    packet::hex(&found[at..], 16)
                ));
            }
        }
        Ok(())
    }

    /// What must be so when a conversation ends: nothing more is said, all memory is as it was
    /// said to be, and what is left of work requests was flushed.
    fn finish(&mut self) -> Result<()> {
        if self.memory.is_empty() {
            return Ok(());
        }
        // A request without an answer is repeated when its time has come, and that has come
        // already where time is real.
        let repeats = !self.end.virtual_time() && self.spec.timeout != 0 && !self.sends.is_empty();
        if !repeats {
            self.expect_nothing()?;
        }
        self.expect_no_completion(true)?;
        self.check_memory()
    }
}

/// The opcode of the completion of a work request.
fn completes_as(op: &str) -> &str {
    match op {
        "send-imm" | "send-inv" => "send",
        "write-imm" => "write",
        other => other,
    }
}

fn same(name: &str, wanted: Option<u64>, found: u64) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != found => Err(format!(
            "{name}: expected {wanted} ({wanted:#x})\n{name}: real     {found} ({found:#x})"
        )),
        _ => Ok(()),
    }
}

fn verdict(result: std::result::Result<(), Refused>, refused: bool) -> Result<()> {
    match (result, refused) {
        (Ok(()), false) | (Err(Refused::Errno(_)), true) => Ok(()),
        (Ok(()), true) => Err("expected a refusal\nreal     it was taken".into()),
        (Err(Refused::Errno(number)), false) => {
            Err(format!("expected success\nreal     errno {number}"))
        }
        (Err(Refused::Broken(why)), _) => Err(why),
    }
}
