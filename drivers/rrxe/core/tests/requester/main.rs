// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests of the requester, statement by statement, against a peer made of single packets.

mod absent_memory;
mod credits;
mod local;
mod probes;
mod read_recovery;
mod recovery;
mod responses;
mod retries;
mod sending;
mod states;
mod status;
mod strict;
mod window;

use rrxe_core::requester::{self, MAX_FLUSH, MIN_ACK_TIMEOUT};
use rrxe_core::wire::{Aeth, AtomicAckEth, NakCode, Operation, Syndrome};
use rrxe_core::{
    wire, Destination, Ext, Fault, Packet, Progress, Psn, SendOp, SendSlot, Service, Span, Status,
    Time,
};
use rrxe_testkit::{acknowledge, packet, Host, Op, Pair, Request, BASE, DATAGRAM, RKEY, START_PSN};

const MTU: u32 = 1024;
const ACK: Syndrome = Syndrome::ACK_UNLIMITED;
const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::SequenceError);

/// The acknowledge timeout of the hosts: the smallest one, because that of code 8 is shorter.
const TIMEOUT: u64 = MIN_ACK_TIMEOUT.ns();

/// Time after which a gap in the responses is reported.
const GAP_DELAY: u64 = 100_000;

/// Returns a host whose driver drops out-of-order packets.
fn host() -> Host {
    buffering_host().without_reorder_buffer()
}

/// Returns a host whose driver buffers out-of-order packets.
fn buffering_host() -> Host {
    Host::new(Service::Rc, 0, MTU)
}

/// Returns the requester's PSN with this index.
fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[0]).add(n)
}

fn post(host: &mut Host, op: Op, length: u32) -> u64 {
    post_with(host, Request::new(op, length))
}

fn post_with(host: &mut Host, mut request: Request) -> u64 {
    request.signaled = true;
    if host.service == Service::Ud {
        request.to.get_or_insert(DATAGRAM);
    }
    let size = request.length.max(8) as usize;
    host.post(request, vec![0x5a; size]).unwrap()
}

fn response(operation: Operation, n: u32, len: usize) -> Packet {
    let ext = match operation {
        Operation::ReadResponseMiddle => Ext::None,
        _ => Ext::Aeth(Aeth::new(ACK, Psn::new(0))),
    };
    packet(operation, psn(n), ext, len)
}

fn atomic_ack(n: u32, original: u64) -> Packet {
    let ext = Ext::AtomicAck(Aeth::new(ACK, Psn::new(0)), AtomicAckEth { original });
    packet(Operation::AtomicAcknowledge, psn(n), ext, 0)
}

fn ack(host: &mut Host, n: u32, syndrome: Syndrome) {
    ack_at(host, 0, n, syndrome);
}

fn ack_at(host: &mut Host, now: u64, n: u32, syndrome: Syndrome) {
    let _ = host.take(now, &acknowledge(psn(n), syndrome), &[]);
}

/// Returns a host with `count` single-packet WRITEs in flight and a measured round trip of 100 us.
fn in_flight(count: u32) -> Host {
    let mut host = buffering_host();
    post(&mut host, Op::Write, 1);
    host.drain(0);
    ack_at(&mut host, 100_000, 0, ACK);
    for _ in 0..count {
        post(&mut host, Op::Write, 1);
    }
    assert_eq!(host.drain(200_000).len(), count as usize);
    host
}

fn respond_at(host: &mut Host, now: u64, operation: Operation, n: u32) {
    let _ = host.take(now, &response(operation, n, 1024), &[n as u8; 1024]);
}

fn respond(host: &mut Host, operation: Operation, n: u32) {
    respond_at(host, 0, operation, n);
}

fn expire(host: &mut Host, at: u64) {
    let _ = host.timeout(at);
}

fn psns(packets: &[(Packet, Vec<u8>)]) -> Vec<u32> {
    packets.iter().map(|(p, _)| p.psn().since(psn(0))).collect()
}
