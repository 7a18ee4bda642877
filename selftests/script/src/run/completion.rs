// SPDX-License-Identifier: GPL-2.0

//! Compares completions with the expected ones.

use super::{same, Result, Run, STEPS};
use crate::endpoint::{Completion, Wait};
use crate::packet;
use crate::script::CompletionSpec;

impl Run<'_> {
    pub(super) fn expect_completion(&mut self, spec: &CompletionSpec) -> Result<()> {
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
            // A failed completion identifies only the work request, not the opcode.
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

    /// Compares the buffer of a completion with the expected content.
    fn check_buffer(&self, spec: &CompletionSpec, found: &Completion) -> Result<()> {
        if spec.ip_header && found.data.get(20..40) != self.injected.get(..20) {
            let real = packet::hex(found.data.get(20..40).unwrap_or(&[]), 20);
            let wanted = packet::hex(&self.injected, 20);
            return Err(format!("the IP header\nexpected {wanted}\nreal     {real}"));
        }
        let Some(data) = &spec.data else {
            return Ok(());
        };
        // UD reserves 40 bytes before the payload.
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

    pub(super) fn expect_no_completion(&mut self, flushed: bool) -> Result<()> {
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
}

/// Returns the completion opcode of a work request.
fn completes_as(op: &str) -> &str {
    match op {
        "send-imm" | "send-inv" => "send",
        "write-imm" => "write",
        other => other,
    }
}
