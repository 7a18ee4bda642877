// SPDX-License-Identifier: GPL-2.0

//! The measured cases.

use crate::conversation::{attributes, conversation, request, slots, START};
use crate::env::Sink;
use crate::phases;
use rrxe_core::{icrc, Packet, ParseError, Psn, Requester, SendSlot};
use rrxe_testkit::{Frame, Op, Responder};
use std::hint::black_box;

/// Bytes of a long message: 16 packets.
const LONG_MESSAGE: u32 = 65_536;
const SHORT: u32 = 8;
/// Number of work requests in a list, for the cases that post lists.
const LIST: u32 = 16;

/// Nanoseconds between two rounds: more than a round trip, so that a round finds no work left by
/// the previous one.
const BETWEEN: u64 = 100_000;

/// A repeatable piece of work.
pub trait Round {
    /// Runs one round.
    fn round(&mut self);

    /// Returns what went wrong, if anything did. The measurement is then invalid.
    fn fault(&self) -> Option<String> {
        None
    }
}

/// A case to measure.
pub struct Case {
    /// The measured part and its packets.
    pub name: &'static str,
    /// Number of packets per round.
    pub packets: u32,
    make: fn() -> Box<dyn Round>,
}

impl Case {
    /// Prepares the case.
    pub fn start(&self) -> Box<dyn Round> {
        (self.make)()
    }
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let case = |name, packets, make| Case {
        name,
        packets,
        make,
    };
    vec![
        case("parse, SEND ONLY", 1, || parse(0, Op::Send, SHORT)),
        case("parse, WRITE FIRST", 1, || {
            parse(0, Op::Write, LONG_MESSAGE)
        }),
        case("parse, READ RESPONSE MIDDLE", 1, || {
            parse_response(1, Op::Read, LONG_MESSAGE)
        }),
        case("parse, ACKNOWLEDGE", 1, || {
            parse_response(0, Op::Send, SHORT)
        }),
        case("ICRC, 64 B", 1, || icrc_alone(64)),
        case("ICRC, 1 KiB", 1, || icrc_alone(1024)),
        case("ICRC, 4 KiB", 1, || icrc_alone(4096)),
        case("ICRC, 64 B in a row", 1, || icrc_in_row(64)),
        case("ICRC, 1 KiB in a row", 1, || icrc_in_row(1024)),
        case("ICRC, 4 KiB in a row", 1, || icrc_in_row(4096)),
        case("ICRC, without the checksum", 1, || {
            Box::new(IcrcBytes(IcrcInput::new(0)))
        }),
        case("ICRC, without the checksum, in a row", 1, || {
            Box::new(IcrcBytesInRow(IcrcInput::new(0)))
        }),
        case("requester, WRITE 64 KiB", 16, || {
            sender(Op::Write, LONG_MESSAGE, 1)
        }),
        case("requester, READ 64 KiB", 16, || {
            sender(Op::Read, LONG_MESSAGE, 1)
        }),
        case("requester, SEND 8 B", 1, || sender(Op::Send, SHORT, 1)),
        case("requester, SEND 8 B, lists of 16", 16, || {
            sender(Op::Send, SHORT, LIST)
        }),
        case("responder, WRITE 64 KiB", 16, || {
            receiver(Op::Write, LONG_MESSAGE, 1)
        }),
        case("responder, READ 64 KiB", 16, || {
            receiver(Op::Read, LONG_MESSAGE, 1)
        }),
        case("responder, SEND 8 B", 1, || receiver(Op::Send, SHORT, 1)),
        case("responder, SEND 8 B, lists of 16", 16, || {
            receiver(Op::Send, SHORT, LIST)
        }),
    ]
}

/// A packet whose headers are parsed.
struct Parse {
    sent: Frame,
    total_len: u32,
    parsed: Result<Packet, ParseError>,
}

/// Prepares parsing of the request packet at index `at`.
fn parse(at: usize, op: Op, length: u32) -> Box<dyn Round> {
    let (requests, _) = conversation(request(op, length), 1);
    parse_of(&requests[at])
}

/// Prepares parsing of the response packet at index `at`.
fn parse_response(at: usize, op: Op, length: u32) -> Box<dyn Round> {
    let (_, responses) = conversation(request(op, length), 1);
    parse_of(&responses[at])
}

fn parse_of(sent: &Frame) -> Box<dyn Round> {
    Box::new(Parse {
        sent: sent.clone(),
        total_len: sent.total_len(),
        parsed: Ok(sent.packet()),
    })
}

impl Round for Parse {
    fn round(&mut self) {
        let Parse {
            sent,
            total_len,
            parsed,
        } = self;
        phases::parse(black_box(&sent.head), black_box(*total_len), parsed);
    }

    fn fault(&self) -> Option<String> {
        (self.parsed != Ok(self.sent.packet())).then(|| format!("parsed as {:?}", self.parsed))
    }
}

/// A packet whose ICRC is computed.
struct IcrcInput {
    ip: [u8; 20],
    udp: [u8; 8],
    headers: Vec<u8>,
    payload: Vec<u8>,
    prefix: icrc::Prefix,
    ident: u16,
}

impl IcrcInput {
    /// Creates a SEND ONLY with `payload` bytes.
    fn new(payload: usize) -> IcrcInput {
        let (requests, _) = conversation(request(Op::Send, SHORT), 1);
        let (ip, udp) = ([0x45; 20], [0x12; 8]);
        IcrcInput {
            ip,
            udp,
            headers: requests[0].header().to_vec(),
            payload: vec![0x5a; payload],
            prefix: icrc::Prefix::ipv4(&ip, &udp),
            ident: 0x4545,
        }
    }
}

struct Icrc(IcrcInput);
struct IcrcInRow(IcrcInput);
struct IcrcBytes(IcrcInput);
struct IcrcBytesInRow(IcrcInput);

fn icrc_alone(payload: usize) -> Box<dyn Round> {
    Box::new(Icrc(IcrcInput::new(payload)))
}

fn icrc_in_row(payload: usize) -> Box<dyn Round> {
    Box::new(IcrcInRow(IcrcInput::new(payload)))
}

impl Round for Icrc {
    fn round(&mut self) {
        let IcrcInput {
            ip,
            udp,
            headers,
            payload,
            ..
        } = &self.0;
        black_box(phases::icrc(
            black_box(ip),
            black_box(udp),
            black_box(headers),
            black_box(payload),
        ));
    }
}

impl Round for IcrcInRow {
    fn round(&mut self) {
        let IcrcInput {
            headers,
            payload,
            prefix,
            ident,
            ..
        } = &mut self.0;
        *ident = ident.wrapping_add(1);
        black_box(phases::icrc_in_row(
            black_box(prefix),
            *ident,
            black_box(headers),
            black_box(payload),
        ));
    }
}

impl Round for IcrcBytes {
    fn round(&mut self) {
        let IcrcInput {
            ip, udp, headers, ..
        } = &self.0;
        black_box(phases::icrc_bytes(
            black_box(ip),
            black_box(udp),
            black_box(headers),
        ));
    }
}

impl Round for IcrcBytesInRow {
    fn round(&mut self) {
        let IcrcInput {
            headers,
            prefix,
            ident,
            ..
        } = &mut self.0;
        *ident = ident.wrapping_add(1);
        black_box(phases::icrc_bytes_in_row(
            black_box(prefix),
            *ident,
            black_box(headers),
        ));
    }
}

/// Renumbers packets whose PSNs started at 0 to start at `from`.
fn renumber(packets: &mut [Packet], psns: &[u32], from: Psn) {
    for (packet, psn) in packets.iter_mut().zip(psns) {
        packet.bth.psn = from.add(*psn);
    }
}

/// Returns the parsed packets and their original PSNs.
fn parsed(sent: &[Frame]) -> (Vec<Packet>, Vec<u32>) {
    let packets: Vec<_> = sent.iter().map(Frame::packet).collect();
    let psns = packets.iter().map(|packet| packet.psn().get()).collect();
    (packets, psns)
}

/// A requester that is fed with the recorded responses of a responder.
struct Sender {
    requester: Requester,
    slots: Vec<SendSlot>,
    request: SendSlot,
    /// Number of work requests posted together.
    list: u32,
    responses: Vec<Packet>,
    psns: Vec<u32>,
    /// Number of packets sent per round.
    sends: usize,
    rounds: u64,
    sink: Sink,
}

fn sender(op: Op, length: u32, list: u32) -> Box<dyn Round> {
    let request = request(op, length);
    let (requests, responses) = conversation(request, list);
    let (responses, psns) = parsed(&responses);
    Box::new(Sender {
        requester: attributes().requester(),
        slots: slots(),
        request,
        list,
        responses,
        psns,
        sends: requests.len(),
        rounds: 0,
        sink: Sink::default(),
    })
}

impl Round for Sender {
    fn round(&mut self) {
        let now = START + self.rounds * BETWEEN;
        let from = Psn::new(self.requester.next_psn());
        renumber(&mut self.responses, &self.psns, from);
        let Sender {
            requester,
            slots,
            sink,
            ..
        } = self;
        for _ in 0..self.list {
            let posted = phases::post(requester, slots, black_box(&self.request));
            sink.wrong += u64::from(posted.is_none());
        }
        let _ = black_box(phases::transmit(requester, slots, now, sink));
        for response in &self.responses {
            let _ = black_box(phases::receive_response(
                requester,
                slots,
                now + BETWEEN / 2,
                response,
                sink,
            ));
        }
        self.rounds += 1;
    }

    fn fault(&self) -> Option<String> {
        let expected = (
            self.rounds * self.sends as u64,
            self.rounds * u64::from(self.list),
        );
        let found = (self.sink.sent, self.sink.done);
        (found != expected || self.sink.wrong != 0 || self.requester.outstanding() != 0).then(
            || {
                format!(
                    "packets sent and work requests done should be {expected:?}, and are {found:?}"
                )
            },
        )
    }
}

/// A responder that is fed with the recorded requests of a requester.
struct Receiver {
    responder: Responder,
    requests: Vec<Packet>,
    psns: Vec<u32>,
    /// Number of packets sent per round.
    sends: usize,
    rounds: u64,
    sink: Sink,
}

fn receiver(op: Op, length: u32, list: u32) -> Box<dyn Round> {
    let (requests, responses) = conversation(request(op, length), list);
    let (requests, psns) = parsed(&requests);
    Box::new(Receiver {
        responder: attributes().responder(),
        requests,
        psns,
        sends: responses.len(),
        rounds: 0,
        sink: Sink::default(),
    })
}

impl Round for Receiver {
    fn round(&mut self) {
        let now = START + self.rounds * BETWEEN;
        let from = Psn::new(self.responder.expected_psn());
        renumber(&mut self.requests, &self.psns, from);
        let Receiver {
            responder, sink, ..
        } = self;
        for request in &self.requests {
            let _ = black_box(phases::receive_request(responder, now, request, sink));
        }
        let _ = black_box(phases::respond(responder, now, sink));
        self.rounds += 1;
    }

    fn fault(&self) -> Option<String> {
        let (expected, found) = (self.rounds * self.sends as u64, self.sink.sent);
        (found != expected || self.sink.wrong != 0)
            .then(|| format!("packets sent should be {expected}, and are {found}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that even after many rounds all packets are sent, acknowledged and completed.
    #[test]
    fn cases_do_what_they_say() {
        for case in cases() {
            let mut round = case.start();
            for _ in 0..1000 {
                round.round();
            }
            assert_eq!(round.fault(), None, "{}", case.name);
        }
    }

    /// Checks the packet counts by which the reported figures are divided.
    #[test]
    fn packets_of_a_round() {
        for (op, length, list, requests, responses) in [
            (Op::Write, LONG_MESSAGE, 1, 16, 1),
            (Op::Read, LONG_MESSAGE, 1, 1, 16),
            (Op::Send, SHORT, 1, 1, 1),
            (Op::Send, SHORT, LIST, 16, 1),
        ] {
            let (sent, received) = conversation(request(op, length), list);
            assert_eq!(
                (sent.len(), received.len()),
                (requests, responses),
                "{op:?}"
            );
        }
    }
}
