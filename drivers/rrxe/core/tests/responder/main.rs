// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests of the responder, statement by statement, against a peer made of single packets.

mod absent_memory;
mod acceptance;
mod acknowledgement;
mod bursts;
mod delayed_ack;
mod placement;
mod refusal;
mod reordering;
mod replay;
mod unreliable;
mod xrc;

use rrxe_core::wire::{AtomicEth, Deth, Ieth, ImmDt, NakCode, Operation as O, Reth, Syndrome};
use rrxe_core::{
    Ext, Fault, Packet, Psn, RecvOpcode, Resource, ResponderEvent, Service, Span, Status, Time,
    TxError,
};
use rrxe_testkit::{packet, packet_of, Host, Op, Request, BASE, MEMORY, QKEY, RKEY, START_PSN};

const MTU: usize = 1024;
const ACK: Syndrome = Syndrome::ACK_UNLIMITED;
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
const OPERATIONAL: Syndrome = Syndrome::Nak(NakCode::RemoteOperational);
const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::SequenceError);

/// Returns a host whose driver drops out-of-order packets.
fn host() -> Host {
    buffering_host().without_reorder_buffer()
}

/// Returns a host whose driver buffers out-of-order packets.
fn buffering_host() -> Host {
    Host::new(Service::Rc, 0, MTU as u32)
}

/// Returns the PSN with this index, counted from the first expected one.
fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[1]).add(n)
}

fn reth(va: u64, len: u32) -> Ext {
    Ext::Reth(Reth {
        va,
        rkey: RKEY,
        len,
    })
}

fn fetch_add(n: u32, va: u64, add: u64) -> Packet {
    let eth = AtomicEth {
        va,
        rkey: RKEY,
        swap_add: add,
        compare: 0,
    };
    packet(O::FetchAdd, psn(n), Ext::Atomic(eth), 0)
}

fn read(n: u32, va: u64, len: u32) -> Packet {
    packet(O::ReadRequest, psn(n), reth(va, len), 0)
}

fn send(n: u32) -> Packet {
    packet(O::SendOnly, psn(n), Ext::None, 4)
}

/// Takes a packet with a payload of `fill`, without polling for responses.
fn give(host: &mut Host, packet: &Packet, fill: u8) {
    let _ = host.take(0, packet, &vec![fill; packet.payload_len as usize]);
}

/// Takes a packet and returns the responses.
fn ask(host: &mut Host, packet: &Packet) -> Vec<(Packet, Vec<u8>)> {
    give(host, packet, 0xaa);
    host.drain(0)
}

/// Returns the PSN index, operation and syndrome (if any) of a response.
fn says(response: &Packet) -> (u32, O, Option<Syndrome>) {
    let syndrome = match response.ext {
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => Some(Syndrome::decode(aeth.syndrome)),
        _ => None,
    };
    (response.psn().since(psn(0)), response.operation, syndrome)
}

fn said(responses: &[(Packet, Vec<u8>)]) -> Vec<(u32, O, Option<Syndrome>)> {
    responses.iter().map(|(packet, _)| says(packet)).collect()
}

fn msn(response: &Packet) -> u32 {
    match response.ext {
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => aeth.msn.get(),
        _ => panic!("no AETH"),
    }
}

/// Expects exactly one ACKNOWLEDGE.
#[track_caller]
fn expect(responses: &[(Packet, Vec<u8>)], n: u32, syndrome: Syndrome) {
    assert_eq!(said(responses), [(n, O::Acknowledge, Some(syndrome))]);
}

fn statuses(host: &Host) -> Vec<Status> {
    host.driver
        .received
        .iter()
        .map(|r| r.completion.status)
        .collect()
}
