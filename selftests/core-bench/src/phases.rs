// SPDX-License-Identifier: GPL-2.0

//! The calls into the core that are counted, each by the name of a function here.
//!
//! They stay functions of their own, whatever the compiler thinks of that, and get nothing that it
//! could know beforehand: what the core has inlined is inlined into them, as it is in a driver.

use crate::env::Sink;
use rrxe_core::{
    icrc, Outcome, Packet, ParseError, PostError, Progress, Requester, Resource, Responder,
    SendRequest, SendSlot,
};

/// Parses the headers of a packet that came in.
#[inline(never)]
pub fn parse(head: &[u8], total_len: u32, to: &mut Result<Packet, ParseError>) {
    *to = Packet::parse(head, total_len);
}

/// The ICRC of a packet by itself.
#[inline(never)]
pub fn icrc(ip: &[u8; 20], udp: &[u8; 8], headers: &[u8], payload: &[u8]) -> [u8; 4] {
    let state = icrc::ipv4(icrc::crc32_le, ip, udp, headers);
    icrc::finish(icrc::crc32_le(state, payload))
}

/// The ICRC of a packet in a row of one size.
#[inline(never)]
pub fn icrc_in_row(
    prefix: &mut icrc::Prefix,
    ident: u16,
    headers: &[u8],
    payload: &[u8],
) -> [u8; 4] {
    prefix.set_ident(ident);
    let state = prefix.start(icrc::crc32_le, headers);
    icrc::finish(icrc::crc32_le(state, payload))
}

/// What an ICRC goes over, put together, for a checksum that costs nothing.
#[inline(never)]
pub fn icrc_bytes(ip: &[u8; 20], udp: &[u8; 8], headers: &[u8]) -> u32 {
    icrc::ipv4(no_crc, ip, udp, headers)
}

/// As [`icrc_bytes`], in a row.
#[inline(never)]
pub fn icrc_bytes_in_row(prefix: &mut icrc::Prefix, ident: u16, headers: &[u8]) -> u32 {
    prefix.set_ident(ident);
    prefix.start(no_crc, headers)
}

/// Wants to have the bytes, and does nothing with them.
#[inline(always)]
fn no_crc(state: u32, bytes: &[u8]) -> u32 {
    std::hint::black_box(bytes);
    state
}

/// Requester: takes a work request.
#[inline(never)]
pub fn post(
    requester: &mut Requester,
    slots: &mut [SendSlot],
    request: &SendRequest,
) -> Result<u32, PostError> {
    requester.post(slots, *request)
}

/// Requester: sends what there is.
#[inline(never)]
pub fn transmit(
    requester: &mut Requester,
    slots: &mut [SendSlot],
    now: u64,
    env: &mut Sink,
) -> Progress {
    requester.poll_transmit(slots, now, BUDGET, env)
}

/// Requester: takes an answer.
#[inline(never)]
pub fn take_answer(
    requester: &mut Requester,
    slots: &mut [SendSlot],
    now: u64,
    packet: &Packet,
    env: &mut Sink,
) -> Outcome {
    requester.handle_packet(slots, now, packet, env)
}

/// Responder: takes a request.
#[inline(never)]
pub fn take_request(
    responder: &mut Responder<Vec<Resource>>,
    now: u64,
    packet: &Packet,
    env: &mut Sink,
) -> Outcome {
    responder.handle_packet(now, packet, env)
}

/// Responder: sends what there is.
#[inline(never)]
pub fn answer(responder: &mut Responder<Vec<Resource>>, now: u64, env: &mut Sink) -> Progress {
    responder.poll_transmit(now, BUDGET, env)
}

/// Packets that a call may send: more than a round has.
const BUDGET: u32 = 64;
