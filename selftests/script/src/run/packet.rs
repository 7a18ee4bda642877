// SPDX-License-Identifier: GPL-2.0

//! Injects packets, and compares received packets with expected ones.

use super::{Result, Run, STEPS};
use crate::endpoint::{Wait, PEER_QPN};
use crate::packet::{self, Recipe, Seen};
use crate::script::{Data, PacketSpec, REGION};
use std::fmt::Write as _;

/// Number of further waits of the length `after` for a packet; used only with virtual time.
const LATEST: u64 = 4;

impl Run<'_> {
    pub(super) fn inject(&mut self, at: usize, spec: &PacketSpec) -> Result<()> {
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
        self.injected.clone_from(&bytes);
        self.end.inject(&bytes)
    }

    pub(super) fn expect_packet(&mut self, at: usize, spec: &PacketSpec, text: &str) -> Result<()> {
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

    pub(super) fn maybe_packet(&mut self, at: usize, spec: &PacketSpec) -> Result<()> {
        while let Some((time, seen)) = self.next(Wait::Silence)? {
            if !self.differences(spec, &seen)?.is_empty() {
                self.pending.push_front((time, seen));
                break;
            }
            self.log.push(format!("{at:4}  <-- {seen}"));
        }
        Ok(())
    }

    pub(super) fn expect_nothing(&mut self) -> Result<()> {
        match self.next(Wait::Silence)? {
            None => Ok(()),
            Some((_, seen)) => {
                let text = format!("expected nothing\nreal     {seen}");
                self.log.push(format!("      <-- {seen}"));
                Err(text)
            }
        }
    }

    /// Returns the next packet, if any.
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

    fn class(&self) -> &'static str {
        match self.spec.service.as_str() {
            "uc" => "uc",
            "ud" => "ud",
            _ => "rc",
        }
    }

    /// Returns the expected fields of a packet by name and value.
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

    /// Returns the names of the fields that differ.
    fn differences(&self, spec: &PacketSpec, seen: &Seen) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, value) in self.rows(spec)? {
            let found = seen.get(&name);
            // A plain `ack` matches an ACK with any number of credits.
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

    /// Returns whether the script specifies the credit count or the RNR timer.
    fn exact_credit(&self, spec: &PacketSpec) -> bool {
        spec.fields
            .iter()
            .any(|(name, _)| name == "credit" || name == "timer")
    }

    /// Formats both packets side by side.
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
}
