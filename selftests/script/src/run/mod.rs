// SPDX-License-Identifier: GPL-2.0

//! Runs a script: plays the peer, and compares the behaviour of the end point with the script.

mod completion;
mod memory;
mod packet;

use crate::endpoint::{EndPoint, QpSpec, Refused, SendPost, State, Wait, PEER_QPN};
use crate::packet::Seen;
use crate::parse::set_attribute;
use crate::script::{Data, Line, Script, SendSpec, Step, Value, REGION, REGION_LEN};
use memory::Memory;
use std::collections::VecDeque;
use std::fmt::Write as _;

type Result<T> = std::result::Result<T, String>;

/// Number of steps into which a waiting period is divided; used only with virtual time.
const STEPS: u64 = 1000;

/// A running script.
struct Run<'a> {
    end: &'a mut dyn EndPoint,
    spec: QpSpec,
    qpn: u32,
    memory: Vec<Memory>,
    /// Packets received but not yet matched.
    pending: VecDeque<(u64, Seen)>,
    /// Earliest valid time of the next packet.
    earliest: u64,
    /// Whether the last step was an action: a post or an injected packet.
    acting: bool,
    /// The last injected packet.
    injected: Vec<u8>,
    /// UDP source ports of the received packets.
    ports: Vec<u64>,
    sends: Vec<SendPost>,
    recvs: Vec<usize>,
    /// Ids of the last completions: of receives, of sends.
    last_id: [u64; 2],
    /// The conversation so far.
    log: Vec<String>,
}

/// Runs a script.
///
/// # Errors
///
/// Returns the first deviation from the script: file, line, both packets, and the conversation.
pub fn run(script: &Script, end: &mut dyn EndPoint) -> std::result::Result<(), String> {
    let mut run = Run {
        end,
        spec: QpSpec::default(),
        qpn: 0,
        memory: Vec::new(),
        pending: VecDeque::new(),
        earliest: 0,
        acting: false,
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
        self.time_actions(&line.step)?;
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
                    set_attribute(&mut self.spec, name, text)?;
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
        self.earliest = self.end.now()?;
        Ok(())
    }

    /// Times expected packets from the first of successive actions: with a real clock, the endpoint
    /// may already respond to it before this program performs the next one.
    fn time_actions(&mut self, step: &Step) -> Result<()> {
        let acts = matches!(
            step,
            Step::PostRecv { .. } | Step::PostSend(_) | Step::Inject(_)
        );
        if acts && !self.acting {
            self.earliest = self.end.now()?;
        }
        self.acting = acts;
        Ok(())
    }

    /// Resolves a value; adds the address or key of a region if one is named.
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

    /// Checks the end of a conversation: no packet is left, the regions have their expected
    /// content, and the remaining work requests were flushed.
    fn finish(&mut self) -> Result<()> {
        if self.memory.is_empty() {
            return Ok(());
        }
        // An unacknowledged request is retransmitted on a timeout, which in real time may already
        // have expired.
        let repeats = !self.end.virtual_time() && self.spec.timeout != 0 && !self.sends.is_empty();
        if !repeats {
            self.expect_nothing()?;
        }
        self.expect_no_completion(true)?;
        self.check_memory()
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
