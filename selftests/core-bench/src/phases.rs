// SPDX-License-Identifier: GPL-2.0

//! The measured calls into the core, one function per phase.
//!
//! The phases are never inlined, and the compiler can't predict their arguments. They contain
//! the code that the core inlines into its callers, as in a driver.

use crate::env::Sink;
use rrxe_core::{icrc, Outcome, Packet, ParseError, Progress, Requester, SendSlot, Time};
use rrxe_testkit::{crc32_le, Responder};

/// Parses the headers of a received packet.
#[inline(never)]
pub fn parse(head: &[u8], total_len: u32, to: &mut Result<Packet, ParseError>) {
    *to = Packet::parse(head, total_len);
}

/// Computes the ICRC of a single packet.
#[inline(never)]
pub fn icrc(ip: &[u8; 20], udp: &[u8; 8], headers: &[u8], payload: &[u8]) -> [u8; 4] {
    let state = icrc::Prefix::ipv4(ip, udp).start(crc32_le, headers);
    icrc::finish(crc32_le(state, payload))
}

/// Computes the ICRC of one of a series of packets that share `prefix`.
#[inline(never)]
pub fn icrc_in_row(
    prefix: &mut icrc::Prefix,
    ident: u16,
    headers: &[u8],
    payload: &[u8],
) -> [u8; 4] {
    prefix.set_ident(ident);
    let state = prefix.start(crc32_le, headers);
    icrc::finish(crc32_le(state, payload))
}

/// Assembles the input of an ICRC, with a checksum function that does nothing.
#[inline(never)]
pub fn icrc_bytes(ip: &[u8; 20], udp: &[u8; 8], headers: &[u8]) -> u32 {
    icrc::Prefix::ipv4(ip, udp).start(no_crc, headers)
}

/// Assembles the input of an ICRC for one of a series of packets that share `prefix`.
#[inline(never)]
pub fn icrc_bytes_in_row(prefix: &mut icrc::Prefix, ident: u16, headers: &[u8]) -> u32 {
    prefix.set_ident(ident);
    prefix.start(no_crc, headers)
}

/// Consumes the bytes without computing a checksum.
#[inline(always)]
fn no_crc(state: u32, bytes: &[u8]) -> u32 {
    std::hint::black_box(bytes);
    state
}

/// Requester: posts a work request.
#[inline(never)]
pub fn post(requester: &mut Requester, slots: &mut [SendSlot], request: &SendSlot) -> Option<()> {
    let slot = requester.free_slot(slots)?;
    *slot = *request;
    requester.post(slot);
    Some(())
}

/// Requester: transmits what is pending.
#[inline(never)]
pub fn transmit(
    requester: &mut Requester,
    slots: &mut [SendSlot],
    now: u64,
    env: &mut Sink,
) -> Progress {
    requester.poll_transmit(slots, Time::from_ns(now), BUDGET, env)
}

/// Requester: handles a response.
#[inline(never)]
pub fn receive_response(
    requester: &mut Requester,
    slots: &mut [SendSlot],
    now: u64,
    packet: &Packet,
    env: &mut Sink,
) -> Outcome {
    requester.handle_packet(slots, Time::from_ns(now), packet, env)
}

/// Responder: handles a request.
#[inline(never)]
pub fn receive_request(
    responder: &mut Responder,
    now: u64,
    packet: &Packet,
    env: &mut Sink,
) -> Outcome {
    responder.handle_packet(Time::from_ns(now), packet, env)
}

/// Responder: transmits what is pending.
#[inline(never)]
pub fn respond(responder: &mut Responder, now: u64, env: &mut Sink) -> Progress {
    responder.poll_transmit(Time::from_ns(now), BUDGET, env)
}

/// Maximum number of packets per call; no round has that many.
const BUDGET: u32 = 64;
