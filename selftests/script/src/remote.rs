// SPDX-License-Identifier: GPL-2.0

//! An end point behind a pipe: each request line gets one response line.
//!
//! The helper at the other end (selftests/guest/lib/scripts.py) uses verbs and raw sockets in a
//! guest and knows nothing about scripts. A response is `ok` with words, `errno N`, or `error` with
//! a message.

use crate::endpoint::{
    Completion, EndPoint, QpSpec, Query, Refused, Region, Result, SendPost, State, Wait, PEER_QPN,
};
use crate::packet::{hex, unhex};
use std::io::{BufRead, Write};
use std::net::Ipv4Addr;

/// The near end of the pipe.
pub struct Remote<R, W> {
    from: R,
    to: W,
    addresses: (Ipv4Addr, Ipv4Addr),
}

/// The placeholder for an empty byte string or an absent value.
const NONE: &str = "-";

fn bytes(digits: &str) -> Result<Vec<u8>> {
    if digits == NONE {
        return Ok(Vec::new());
    }
    unhex(digits).ok_or_else(|| format!("no hexadecimal digits: {digits}"))
}

fn digits(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return NONE.into();
    }
    hex(bytes, usize::MAX)
}

fn number<T: std::str::FromStr>(words: &[String], at: usize) -> Result<T> {
    let word = words.get(at).ok_or("the response is too short")?;
    word.parse()
        .map_err(|_| format!("no number in the response: {word}"))
}

fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Due => "due",
        Wait::Silence => "silence",
    }
}

impl<R: BufRead, W: Write> Remote<R, W> {
    /// Opens the connection and reads the addresses.
    ///
    /// # Errors
    ///
    /// Returns an error if the helper does not respond.
    pub fn new(from: R, to: W) -> Result<Self> {
        let unknown = Ipv4Addr::UNSPECIFIED;
        let mut remote = Remote {
            from,
            to,
            addresses: (unknown, unknown),
        };
        let words = remote.ask("hello")?;
        let address = |at: usize| -> Result<Ipv4Addr> { number(&words, at) };
        remote.addresses = (address(0)?, address(1)?);
        Ok(remote)
    }

    fn call(&mut self, line: &str) -> std::result::Result<Vec<String>, Refused> {
        let broken = |why: std::io::Error| Refused::Broken(why.to_string());
        writeln!(self.to, "{line}").map_err(broken)?;
        self.to.flush().map_err(broken)?;
        let mut reply = String::new();
        self.from.read_line(&mut reply).map_err(broken)?;
        let reply = reply.trim();
        let (kind, rest) = reply.split_once(' ').unwrap_or((reply, ""));
        match kind {
            "ok" => Ok(rest.split_whitespace().map(String::from).collect()),
            "errno" => Err(Refused::Errno(rest.parse().unwrap_or(0))),
            _ => Err(Refused::Broken(format!("`{line}`: {reply}"))),
        }
    }

    fn ask(&mut self, line: &str) -> Result<Vec<String>> {
        self.call(line).map_err(|why| match why {
            Refused::Errno(number) => format!("`{line}`: errno {number}"),
            Refused::Broken(why) => why,
        })
    }
}

impl<R: BufRead, W: Write> EndPoint for Remote<R, W> {
    fn addresses(&self) -> (Ipv4Addr, Ipv4Addr) {
        self.addresses
    }

    fn virtual_time(&self) -> bool {
        false
    }

    fn now(&mut self) -> Result<u64> {
        let words = self.ask("now")?;
        number(&words, 0)
    }

    fn advance(&mut self, nanoseconds: u64) -> Result<()> {
        self.ask(&format!("sleep {nanoseconds}")).map(|_| ())
    }

    fn region(&mut self, bytes: &[u8], rights: &str) -> Result<Region> {
        let rights = if rights.is_empty() { NONE } else { rights };
        let words = self.ask(&format!("region {rights} {}", digits(bytes)))?;
        Ok(Region {
            id: number(&words, 0)?,
            va: number(&words, 1)?,
            rkey: number(&words, 2)?,
        })
    }

    fn memory(&mut self, region: usize, len: usize) -> Result<Vec<u8>> {
        let words = self.ask(&format!("memory {region} {len}"))?;
        bytes(words.first().ok_or("no memory in the response")?)
    }

    fn set_memory(&mut self, region: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        let digits = digits(bytes);
        self.ask(&format!("set-memory {region} {offset} {digits}"))
            .map(|_| ())
    }

    fn deregister(&mut self, region: usize) -> Result<()> {
        self.ask(&format!("deregister {region}")).map(|_| ())
    }

    fn queue_pair(&mut self, spec: &QpSpec) -> Result<u32> {
        let words = self.ask(&format!("qp {}", spec.service))?;
        number(&words, 0)
    }

    fn modify(&mut self, state: State, spec: &QpSpec) -> std::result::Result<(), Refused> {
        let access = if spec.access.is_empty() {
            NONE
        } else {
            &spec.access
        };
        let line = format!(
            "modify {} {} {} {} {} {} {} {} {} {} {} {access} {} {PEER_QPN}",
            state.name(),
            spec.service,
            spec.sq_psn,
            spec.rq_psn,
            spec.mtu,
            spec.timeout,
            spec.retry,
            spec.rnr_retry,
            spec.rnr_timer,
            spec.rd_atomic,
            spec.dest_rd_atomic,
            spec.qkey,
        );
        self.call(&line).map(|_| ())
    }

    fn query(&mut self) -> Result<Query> {
        let words = self.ask("query")?;
        let name = words.first().ok_or("no state in the response")?;
        Ok(Query {
            state: State::from_name(name).ok_or_else(|| format!("no state: {name}"))?,
            sq_psn: number(&words, 1)?,
            rq_psn: number(&words, 2)?,
        })
    }

    fn post_recv(
        &mut self,
        id: u64,
        len: usize,
        bad_lkey: bool,
    ) -> std::result::Result<(), Refused> {
        self.call(&format!("recv {id} {len} {}", u8::from(bad_lkey)))
            .map(|_| ())
    }

    fn post_send(&mut self, post: &SendPost) -> std::result::Result<(), Refused> {
        let mut flags = String::new();
        for (set, letter) in [
            (post.signaled, 's'),
            (post.solicited, 'e'),
            (post.fence, 'f'),
            (post.bad_lkey, 'b'),
        ] {
            if set {
                flags.push(letter);
            }
        }
        if flags.is_empty() {
            flags = NONE.into();
        }
        let line = format!(
            "send {} {} {flags} {} {} {} {} {} {} {} {}",
            post.id,
            post.op,
            post.va,
            post.rkey,
            post.imm,
            post.compare,
            post.swap,
            post.qpn,
            post.qkey,
            digits(&post.data),
        );
        self.call(&line).map(|_| ())
    }

    fn completion(&mut self, send: bool, wait: Wait) -> Result<Option<Completion>> {
        let queue = if send { "send" } else { "recv" };
        let words = self.ask(&format!("completion {queue} {}", wait_name(wait)))?;
        if words.is_empty() {
            return Ok(None);
        }
        let text = |at: usize| words.get(at).cloned().unwrap_or_default();
        Ok(Some(Completion {
            id: number(&words, 0)?,
            status: text(1),
            op: text(2),
            len: number(&words, 3)?,
            imm: number(&words, 4).ok(),
            src_qpn: number(&words, 5)?,
            data: bytes(&text(6))?,
        }))
    }

    fn event(&mut self, wait: Wait) -> Result<Option<String>> {
        let words = self.ask(&format!("event {}", wait_name(wait)))?;
        Ok(words.first().cloned())
    }

    fn counter(&mut self, name: &str) -> Result<u64> {
        let words = self.ask(&format!("counter {name}"))?;
        number(&words, 0)
    }

    fn inject(&mut self, datagram: &[u8]) -> Result<()> {
        self.ask(&format!("inject {}", digits(datagram)))
            .map(|_| ())
    }

    fn packet(&mut self, wait: Wait) -> Result<Option<(u64, Vec<u8>)>> {
        let words = self.ask(&format!("packet {}", wait_name(wait)))?;
        if words.is_empty() {
            return Ok(None);
        }
        let digits = words.get(1).ok_or("no packet in the response")?;
        Ok(Some((number(&words, 0)?, bytes(digits)?)))
    }
}
